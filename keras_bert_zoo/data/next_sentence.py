"""Documents to the spans that pre-training examples are made of, as the authors' code cuts them.

A corpus is three flat lists: the pieces of all sentences one after the other, `sentences`
with the place in it where each sentence begins and the last one ends, and `documents` with
the number of the sentence where each document begins and the last one ends. A span is then
two places, and an example six integers, whatever the texts' length.
"""

import operator
import random
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

# The marks of a row: [CLS] first [SEP] second [SEP], or [CLS] first [SEP].
MARKS = {"next_sentence": 3, "sentence_order": 3, "single": 2}


class NextSentenceExample(NamedTuple):
    """Two runs of piece ids and their label; a single segment has an empty second run.

    The label is 1 where the second run does not follow the first, else 0: it comes from
    another document (`next_sentence`), or the two were swapped (`sentence_order`).
    """

    first: list[int]
    second: list[int]
    label: int


def next_sentence_examples(
    documents: Sequence[Sequence[Sequence[int]]],
    sequence_length: int = 128,
    *,
    objective: str = "next_sentence",
    short_share: float = 0.1,
    balanced: bool = True,
    duplicates: int = 1,
    seed: int = 0,
) -> list[NextSentenceExample]:
    """Return examples whose spans fill `sequence_length` with their marks.

    `"next_sentence"` (Devlin et al. 2018, appendix A.2, by the rules of the authors' code):
    whole sentences of a document are collected up to a target, which is the full length, or
    in `short_share` of the passes over a document a random shorter one. They are split at a
    random sentence into two spans. In half of the pairs the second span gives way to
    sentences from a random place of a random other document, and what it held is used for
    the next pair. A pair that is too long loses pieces one at a time from the longer span,
    at its front or its back at random.

    `"sentence_order"` (Lan et al. 2020, ALBERT): two neighbouring spans made in the same way,
    swapped in half of the pairs. A pair takes two sentences at least: the last sentence of a
    document, left over, is paired with the one before it; a document of one sentence gives
    nothing.

    `"single"`: a document is cut into segments of the full length, one after the other;
    only its last may be shorter.

    Args:
        documents: documents of sentences of piece ids; empty ones are passed over.
        sequence_length: pieces in a packed row, marks included.
        objective: `"next_sentence"`, `"sentence_order"` or `"single"`.
        short_share: share of the passes over a document with a shorter target; of pairs only.
        balanced: the authors' code always gives a random second span to a sentence that was
            collected alone, so more than half of its pairs are random. If True, each such
            pair is made up for by a true one, the next that can be, which mostly is a full one: in
            WikiText-2's validation text 65% of the pairs under 100 pieces are random and 48% of
            the full ones, by their rule 79% and 51%. False is their code.
        duplicates: how often the documents are gone through, with other pairs each time.
        seed: an integer; the same seed gives the same examples.

    Raises:
        ValueError: a random second span is asked for and there are fewer than two documents;
            there is no room for an example; or an argument is out of its range.

    Example:
        >>> pairs = next_sentence_examples([[[7], [8]], [[9], [6]]], sequence_length=5)
        >>> sorted({len(pair.first) + len(pair.second) for pair in pairs})
        [2]
    """
    check_arguments(objective, sequence_length, short_share, duplicates)
    documents = [[s for s in document if len(s)] for document in documents]
    documents = [document for document in documents if document]
    if objective == "next_sentence" and len(documents) < 2:
        raise ValueError(
            "`documents` must hold at least two that are not empty: a random next sentence comes "
            f"from another document. Received: {len(documents)}."
        )
    pieces = [piece for document in documents for sentence in document for piece in sentence]
    examples = example_spans(
        list(accumulate((len(s) for document in documents for s in document), initial=0)),
        list(accumulate(map(len, documents), initial=0)),
        sequence_length,
        objective=objective,
        short_share=short_share,
        balanced=balanced,
        duplicates=duplicates,
        rng=random.Random(seed),
    )
    return [
        NextSentenceExample(pieces[a:b], pieces[c:d], label) for a, b, c, d, label, _ in examples
    ]


def check_arguments(
    objective: str, sequence_length: int, short_share: float, duplicates: int
) -> None:
    """Refuse what is not known or out of its range, as `next_sentence_examples` says."""
    if objective not in MARKS:
        raise ValueError(f"`objective` must be one of {list(MARKS)}. Received: {objective!r}.")
    marks = MARKS[objective]
    least = 2 * marks - 1
    if sequence_length < least:
        raise ValueError(
            f"`sequence_length` must be at least {least}, room for {marks - 1} pieces and "
            f"{marks} marks. Received: {sequence_length}."
        )
    if not 0 <= short_share <= 1:
        raise ValueError(f"`short_share` must be in [0, 1]. Received: {short_share}.")
    if duplicates < 1:
        raise ValueError(f"`duplicates` must be at least 1. Received: {duplicates}.")


def example_spans(
    sentences: Sequence[int],
    documents: Sequence[int],
    sequence_length: int,
    *,
    objective: str,
    short_share: float,
    balanced: bool,
    duplicates: int,
    rng: random.Random,
) -> list[tuple[int, int, int, int, int, int]]:
    """Return examples in random order: both spans' ends, the label, and the pieces cut off.

    `sentences` and `documents` are the flat lists that this file begins with, without empty
    sentences or documents; the other arguments are those of `next_sentence_examples`.
    """
    room = sequence_length - MARKS[objective]
    if objective == "single":
        examples = list(_segments(sentences, documents, room)) * duplicates
    else:
        order = list(range(len(documents) - 1)) * duplicates
        is_order = objective == "sentence_order"
        examples = list(
            _pairs(sentences, documents, order, room, is_order, short_share, balanced, rng)
        )
    rng.shuffle(examples)
    return examples


def _segments(sentences, documents, room):
    edges = [sentences[d] for d in documents]
    for begin, end in pairwise(edges):
        for start in range(begin, end, room):
            yield start, min(start + room, end), end, end, 0, 0


def _pairs(sentences, documents, order, room, is_order, short_share, balanced, rng):
    last_document = len(documents) - 2
    schedule = [(rng.randint(2, room) if rng.random() < short_share else room, d) for d in order]
    if balanced:
        # Short targets leave most sentences alone; the long ones then make up for that.
        schedule.sort(key=operator.itemgetter(0))
    # Random pairs for want of a second sentence that are not made up for yet.
    forced = 0
    for target, index in schedule:
        start, stop = documents[index], documents[index + 1]
        if is_order and stop - start < 2:
            continue
        while start < stop:
            least = 1
            if is_order:
                start, least = min(start, stop - 2), 2
            # The first end of a sentence that reaches the target, or the document's own.
            end = min(bisect_left(sentences, sentences[start] + target, start + least), stop)
            size = end - start
            split = start + (rng.randint(1, size - 1) if size > 1 else 1)
            if size == 1:
                label, forced = True, forced + balanced
            elif forced:
                label, forced = False, forced - 1
            else:
                label = rng.random() < 0.5
            first, second = sentences[start], sentences[split]
            third, fourth = second, sentences[end]
            start = end
            if label and is_order:
                first, second, third, fourth = third, fourth, first, second
            elif label:
                # What the random span takes the place of is still to be used.
                start = split
                while (other := rng.randint(0, last_document)) == index:
                    pass
                begin = rng.randint(documents[other], documents[other + 1] - 1)
                third = sentences[begin]
                least_end = third + target - (second - first)
                end = bisect_left(sentences, least_end, begin + 1)
                fourth = sentences[min(end, documents[other + 1])]
            cut = second - first + fourth - third - room
            if cut > 0:
                # The longer span loses a piece at a time, the second one where both are equal.
                kept = max(room - (fourth - third), (room + 1) // 2)
                cut_first = max(0, second - first - kept)
                # Each at the front or the back: as many at the front as coins show heads.
                front = rng.getrandbits(cut_first).bit_count()
                first, second = first + front, second - (cut_first - front)
                cut_second = cut - cut_first
                front = rng.getrandbits(cut_second).bit_count()
                third, fourth = third + front, fourth - (cut_second - front)
            yield first, second, third, fourth, int(label), max(cut, 0)
