"""Spans of documents: the authors' rules one by one, and their order and single segments."""

import itertools
import random

import numpy as np
import pytest

from keras_bert_zoo.data import next_sentence_examples
from keras_bert_zoo.data.next_sentence import example_spans

pytestmark = pytest.mark.backend_free


def numbered_documents(count, sentences, pieces=1, seed=0):
    """Documents whose pieces are all different: document * 10**6 + place."""
    rng = np.random.default_rng(seed)
    documents = []
    for d in range(count):
        place, document = 0, []
        for _ in range(sentences):
            size = int(rng.integers(1, pieces + 1))
            document.append([d * 10**6 + place + k for k in range(size)])
            place += size
        documents.append(document)
    return documents


def is_contiguous(span):
    return span == list(range(span[0], span[0] + len(span)))


# === Next sentence ===


def authors_pairs(documents, sequence_length, passes, rng):
    """The authors' procedure, a sentence and a piece at a time, in the order of their draws.

    But for the targets, and the coins that say where a span loses pieces: these are drawn
    together.
    """
    room = sequence_length - 3
    targets = [
        rng.randint(2, room) if rng.random() < 0.1 else room for _ in range(passes * len(documents))
    ]
    for (index, document), target in zip(list(enumerate(documents)) * passes, targets, strict=True):
        chunk, i = [], 0
        while i < len(document):
            chunk.append(document[i])
            if i == len(document) - 1 or sum(map(len, chunk)) >= target:
                first_count = rng.randint(1, len(chunk) - 1) if len(chunk) >= 2 else 1
                first = list(itertools.chain(*chunk[:first_count]))
                is_random = len(chunk) == 1 or rng.random() < 0.5
                if is_random:
                    second = []
                    other = index
                    while other == index:
                        other = rng.randint(0, len(documents) - 1)
                    begin = rng.randint(0, len(documents[other]) - 1)
                    for sentence in documents[other][begin:]:
                        second += sentence
                        if len(second) >= target - len(first):
                            break
                    i -= len(chunk) - first_count
                else:
                    second = list(itertools.chain(*chunk[first_count:]))
                sizes, losers = [len(first), len(second)], []
                while sum(sizes) > room:
                    losers.append(0 if sizes[0] > sizes[1] else 1)
                    sizes[losers[-1]] -= 1
                for side, span in enumerate((first, second)):
                    coins = rng.getrandbits(losers.count(side)) if losers else 0
                    for toss in range(losers.count(side)):
                        del span[0 if coins >> toss & 1 else -1]
                yield first, second, int(is_random)
                chunk = []
            i += 1


@pytest.mark.parametrize("sequence_length", [5, 16, 64, 128])
def test_pairs_are_those_of_the_authors_procedure(sequence_length):
    documents = numbered_documents(7, 60, pieces=25) + numbered_documents(3, 2, pieces=200)
    rng = random.Random(5)
    expected = list(authors_pairs(documents, sequence_length, 3, rng))
    rng.shuffle(expected)
    found = next_sentence_examples(documents, sequence_length, duplicates=3, balanced=False, seed=5)
    assert found == expected


@pytest.mark.parametrize("balanced", [True, False])
def test_half_of_the_pairs_that_can_be_either_are_random(balanced):
    documents = numbered_documents(20, 2000)
    last = {document[-1][0] for document in documents}
    pairs = next_sentence_examples(documents, 20, balanced=balanced)
    # A sentence left over at a document's end has nothing that follows it.
    free = [pair.label for pair in pairs if not last & set(pair.first)]
    assert len(free) > 3000
    assert abs(np.mean(free) - 0.5) < 4 * 0.5 / np.sqrt(len(free))


def test_sentences_that_stand_alone_do_not_upset_the_balance():
    # Every fifth sentence fills a pair, so it always gets a random second one.
    documents = [[list(range(40 if s % 5 == 0 else 8)) for s in range(200)] for _ in range(20)]
    shares = {}
    for balanced in (True, False):
        pairs = next_sentence_examples(documents, 32, balanced=balanced, short_share=0)
        labels = [pair.label for pair in pairs]
        shares[balanced] = (np.mean(labels) - 0.5) / (0.5 / np.sqrt(len(labels)))
    assert abs(shares[True]) < 4 < shares[False]


@pytest.mark.parametrize("sequence_length", [5, 12, 64])
def test_every_pair_fits_and_has_two_sides(sequence_length):
    documents = numbered_documents(5, 100, pieces=30)
    pairs = next_sentence_examples(documents, sequence_length, duplicates=2)
    sizes = [len(pair.first) + len(pair.second) for pair in pairs]
    assert max(sizes) == sequence_length - 3
    assert all(pair.first and pair.second for pair in pairs)


def test_spans_are_contiguous_and_come_from_the_right_document():
    pairs = next_sentence_examples(numbered_documents(5, 100, pieces=30), 64)
    assert {pair.label for pair in pairs} == {0, 1}
    for first, second, label in pairs:
        assert is_contiguous(first)
        assert is_contiguous(second)
        assert (first[0] // 10**6 != second[0] // 10**6) == bool(label)
        if not label:
            assert second[0] > first[-1]


def test_sentences_that_a_random_span_displaced_are_put_back():
    used = set()
    for first, second, label in next_sentence_examples(numbered_documents(4, 300), 16):
        used.update(first if label else first + second)
    assert used == {d * 10**6 + place for d in range(4) for place in range(300)}


def test_a_share_of_the_passes_over_a_document_has_a_shorter_target():
    documents = numbered_documents(1000, 40)
    full = 32 - 3

    def short(share):
        pairs = next_sentence_examples(documents, 32, short_share=share)
        # A document's first pair, if true: sentences of one piece reach a target exactly.
        first = [p for p in pairs if p.first[0] % 10**6 == 0 and not p.label]
        return np.mean([len(p.first + p.second) < full for p in first]), len(first)

    assert short(0.0)[0] == 0
    # A target is drawn from 2 to 29, all alike, so one of 28 short ones is full all the same.
    expected = 0.5 * 27 / 28
    found, count = short(0.5)
    assert count > 400
    assert abs(found - expected) < 4 * np.sqrt(expected * (1 - expected) / count)


# === Sentence order ===


def test_half_of_the_neighbours_are_swapped():
    pairs = next_sentence_examples(
        numbered_documents(20, 500, pieces=4), 32, objective="sentence_order", short_share=0
    )
    assert len(pairs) > 800
    for first, second, label in pairs:
        assert is_contiguous(first)
        assert is_contiguous(second)
        assert first[0] // 10**6 == second[0] // 10**6
        assert (first[0] > second[0]) == bool(label)
    share = np.mean([pair.label for pair in pairs])
    assert abs(share - 0.5) < 4 * 0.5 / np.sqrt(len(pairs))


def test_every_sentence_is_in_a_pair_of_two_at_least():
    documents = [[[1], [2], [3]], [[4]], [[5] * 40, [6] * 40]]
    pairs = next_sentence_examples(documents, 16, objective="sentence_order", short_share=0)
    used = [sorted(set(first)) + sorted(set(second)) for first, second, _ in pairs]
    # The second document has no neighbours in it.
    assert sorted(sorted(pair) for pair in used) == [[1, 2, 3], [5, 6]]
    pairs = next_sentence_examples(
        [[[1] * 20, [2] * 20, [3] * 20]], 16, objective="sentence_order", short_share=0
    )
    assert sorted(sorted({*first, *second}) for first, second, _ in pairs) == [[1, 2], [2, 3]]


# === Single segments ===


def test_single_segments_are_full_and_cover_each_document_once():
    documents = numbered_documents(6, 30, pieces=20)
    segments = next_sentence_examples(documents, 32, objective="single")
    assert all(not second and label == 0 for _, second, label in segments)
    by_document = [
        sorted(first for first, _, _ in segments if first[0] // 10**6 == d) for d in range(6)
    ]
    for document, parts in zip(documents, by_document, strict=True):
        assert list(itertools.chain(*parts)) == list(itertools.chain(*document))
        assert {len(part) for part in parts[:-1]} == {30}
        assert 1 <= len(parts[-1]) <= 30


# === All of them ===


@pytest.mark.parametrize("objective", ["next_sentence", "sentence_order"])
def test_the_seed_sets_the_pairs_and_duplicates_differ(objective):
    documents = numbered_documents(4, 50)
    once = next_sentence_examples(documents, 16, objective=objective, seed=3)
    assert once == next_sentence_examples(documents, 16, objective=objective, seed=3)
    assert once != next_sentence_examples(documents, 16, objective=objective, seed=4)
    twice = next_sentence_examples(documents, 16, objective=objective, seed=3, duplicates=2)
    distinct = {(tuple(p.first), tuple(p.second)) for p in twice}
    assert len(distinct) > 1.5 * len(once)


def test_what_was_cut_off_is_counted():
    # Two sentences of 10 pieces, room for 9.
    spans = example_spans(
        [0, 10, 20, 30, 40],
        [0, 2, 4],
        12,
        objective="next_sentence",
        short_share=0,
        balanced=True,
        duplicates=1,
        rng=random.Random(0),
    )
    assert {cut for *_, cut in spans} == {11}
    assert {b - a + d - c for a, b, c, d, _, _ in spans} == {9}


@pytest.mark.parametrize(
    ("documents", "arguments", "message"),
    [
        ([], {"sequence_length": 16}, "Received: 0"),
        ([[[7], [8]]], {"sequence_length": 16}, "Received: 1"),
        ([[[7], [8]], [], [[]]], {"sequence_length": 16}, "Received: 1"),
        ([[[7]], [[8]]], {"sequence_length": 4}, "at least 5.*Received: 4"),
        ([[[7]], [[8]]], {"sequence_length": 2, "objective": "single"}, "at least 3"),
        ([[[7]], [[8]]], {"short_share": 1.5}, r"`short_share`.*1\.5"),
        ([[[7]], [[8]]], {"duplicates": 0}, "`duplicates`.*0"),
        ([[[7]], [[8]]], {"objective": "previous"}, "'single'.*'previous'"),
    ],
)
def test_what_makes_no_examples_is_refused(documents, arguments, message):
    with pytest.raises(ValueError, match=message):
        next_sentence_examples(documents, **arguments)
