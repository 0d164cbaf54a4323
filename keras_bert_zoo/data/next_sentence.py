"""Documents to next-sentence pairs, as the authors' code makes them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class NextSentenceExample(NamedTuple):
    """Two runs of piece ids, and 1 where the second does not follow the first, else 0."""

    first: list[int]
    second: list[int]
    is_random: int


def next_sentence_examples(
    documents: Sequence[Sequence[Sequence[int]]],
    sequence_length: int = 128,
    *,
    short_share: float = 0.1,
    duplicates: int = 1,
    seed: int = 0,
) -> list[NextSentenceExample]:
    """Return pairs of spans that fill `sequence_length` with their three marks.

    A span runs over whole sentences of one document. In half of the pairs the second span
    is what follows the first one; in the other half it comes from a random other document,
    and the sentences it took the place of are used for the next pair. A share of the pairs
    gets a random shorter target. A pair that is too long loses pieces one at a time from
    the longer span, at its front or its back. Devlin et al. 2018, appendix A.2.

    Args:
        documents: documents of sentences of piece ids; empty ones are passed over.
        sequence_length: pieces in a packed row, `[CLS]` and both `[SEP]` included.
        short_share: share of the pairs with a shorter target.
        duplicates: how often the documents are gone through, with other pairs each time.
        seed: an integer; the same seed gives the same pairs.

    Raises:
        ValueError: there are fewer than two documents, or no room for a pair.

    Example:
        >>> pairs = next_sentence_examples([[[7], [8]], [[9], [6]]], sequence_length=5)
        >>> sorted({len(pair.first) + len(pair.second) for pair in pairs})
        [2]
    """
    documents = [[list(s) for s in document if len(s)] for document in documents]
    documents = [document for document in documents if document]
    if len(documents) < 2:
        raise ValueError(
            "`documents` must hold at least two that are not empty: a random next sentence comes "
            f"from another document. Received: {len(documents)}."
        )
    if sequence_length < 5:
        raise ValueError(
            "`sequence_length` must be at least 5, room for two pieces and three marks. "
            f"Received: {sequence_length}."
        )
    rng = np.random.default_rng(seed)
    examples = []
    for _ in range(duplicates):
        for index in range(len(documents)):
            examples += _document_examples(documents, index, sequence_length - 3, short_share, rng)
    order = rng.permutation(len(examples))
    return [examples[i] for i in order]


def _document_examples(documents, index, room, short_share, rng):
    document = documents[index]
    examples = []
    start = 0
    while start < len(document):
        target = int(rng.integers(2, room + 1)) if rng.random() < short_share else room
        end, length = start, 0
        while end < len(document) and length < target:
            length += len(document[end])
            end += 1
        split = start + 1 if end - start < 2 else start + int(rng.integers(1, end - start))
        first = _join(document[start:split])
        is_random = end - start == 1 or rng.random() < 0.5
        if is_random:
            other = int(rng.integers(len(documents) - 1))
            other += other >= index
            second = _random_span(documents[other], target - len(first), rng)
            # What the random span took the place of is still to be used.
            start = split
        else:
            second = _join(document[split:end])
            start = end
        _truncate(first, second, room, rng)
        examples.append(NextSentenceExample(first, second, int(is_random)))
    return examples


def _random_span(document, length, rng):
    span = []
    for sentence in document[int(rng.integers(len(document))) :]:
        span += sentence
        if len(span) >= length:
            break
    return span


def _join(sentences):
    return [piece for sentence in sentences for piece in sentence]


def _truncate(first, second, room, rng):
    while len(first) + len(second) > room:
        longer = first if len(first) > len(second) else second
        del longer[0 if rng.random() < 0.5 else -1]
