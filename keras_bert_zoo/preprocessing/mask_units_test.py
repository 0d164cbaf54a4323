"""Words, spans and the choice among them against plain Python."""

from itertools import islice

import numpy as np
import pytest
import tensorflow as tf

from keras_bert_zoo.preprocessing.mask_units import (
    SPAN_LENGTH_PROBABILITIES,
    choose,
    span_lengths,
    spans,
    words,
)

pytestmark = pytest.mark.backend_free


def booleans(*rows):
    return tf.constant([[c == "1" for c in row] for row in rows])


def test_a_word_is_a_piece_and_those_that_continue_it():
    first, size = words(
        booleans("0111101110", "1110111111"),
        booleans("1111111111", "1111111011"),
        booleans("0110111010", "1100111011"),
    )
    # A piece behind a mark begins a word, whatever it looks like.
    assert first.numpy().tolist() == [
        [0, 1, 1, 3, 3, 5, 6, 7, 7, 9],
        [0, 0, 2, 3, 4, 4, 4, 7, 7, 7],
    ]
    # The last word has a piece that may not be chosen.
    assert size.numpy().tolist() == [
        [0, 2, 2, 2, 2, 0, 1, 2, 2, 0],
        [2, 2, 1, 0, 3, 3, 3, 0, 0, 0],
    ]


def test_rows_without_words_have_none():
    first, size = words(booleans("000", "000"), booleans("111", "111"), booleans("111", "111"))
    assert first.numpy().tolist() == [[0, 1, 2]] * 2
    assert size.numpy().tolist() == [[0, 0, 0]] * 2


def test_spans_end_after_the_drawn_number_of_words_and_where_no_word_can_be_chosen():
    #         mark [a ##a] [b] [c] [d ##d ##d] mark [e] [f]
    first = tf.constant([[0, 1, 1, 3, 4, 5, 5, 5, 8, 9, 10]])
    size = tf.constant([[0, 2, 2, 1, 1, 3, 3, 3, 0, 1, 1]])
    drawn = tf.constant([[9, 2, 9, 9, 5, 9, 9, 9, 9, 1, 4]])
    start, need = (x.numpy()[0] for x in spans(first, size, drawn))
    inside = size.numpy()[0] > 0
    assert start[inside].tolist() == [1, 1, 1, 4, 4, 4, 4, 9, 10]
    assert need[inside].tolist() == [2, 2, 2, 1, 3, 3, 3, 1, 1]


def test_span_lengths_have_the_published_distribution():
    """Joshi et al. 2020: Geo(0.2), at most 10 words, "a mean span length of 3.8"."""
    grid = (np.arange(2**20) + 0.5) / 2**20
    lengths = span_lengths(tf.constant(grid, tf.float32)).numpy()
    share = np.bincount(lengths, minlength=11)[1:] / lengths.size
    geometric = [0.2 * 0.8 ** (k - 1) / (1 - 0.8**10) for k in range(1, 11)]
    np.testing.assert_allclose(share, geometric, atol=2e-6)
    np.testing.assert_allclose(SPAN_LENGTH_PROBABILITIES, geometric, rtol=1e-12)
    assert round(lengths.mean(), 1) == 3.8


def greedy(order, groups, room):
    """Groups of (place, size) in random order; each gives its items until one does not fit."""
    taken = set()
    for group in sorted(range(len(groups)), key=lambda g: order[g]):
        for place, size in groups[group]:
            if size > room:
                break
            taken.add(place)
            room -= size
    return taken


@pytest.mark.parametrize("longest_group", [1, 6])
def test_a_choice_is_what_the_authors_loop_makes(longest_group):
    rng = np.random.default_rng(longest_group)
    length, rows = 40, 300
    order, size, need = np.zeros((rows, length), "float32"), *np.zeros((2, rows, length), int)
    rooms, expected = rng.integers(0, 30, rows), []
    for row in range(rows):
        groups, numbers = [], []
        places = iter(np.flatnonzero(rng.random(length) < rng.random()).tolist())
        for place in places:
            group = [place, *islice(places, rng.integers(longest_group))]
            sizes = rng.choice([1, 1, 1, 2, 3, 5, 9], len(group))
            groups.append(list(zip(group, sizes.tolist(), strict=True)))
            # Few different numbers, so that many are equal: these keep their order.
            numbers.append(rng.integers(8) / 8)
            order[row, group] = numbers[-1]
            size[row, group], need[row, group] = sizes, np.maximum.accumulate(sizes)
        expected.append(greedy(numbers, groups, rooms[row]))
    taken = choose(
        tf.constant(order), *(tf.constant(x, tf.int32) for x in (size, need, rooms))
    ).numpy()
    assert [set(np.flatnonzero(row).tolist()) for row in taken] == expected
    assert any(len(row) > 4 for row in expected)
