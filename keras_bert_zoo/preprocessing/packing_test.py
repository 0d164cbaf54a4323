"""Rows against the authors' packing rules, written out in plain Python."""

import numpy as np
import pytest
import tensorflow as tf

from keras_bert_zoo.preprocessing.packing import bucket_lengths, pack, truncate

pytestmark = pytest.mark.backend_free

CLS, SEP, PAD = 2, 3, 0


def authors_truncation(first, second, budget):
    """Cut a pair as `_truncate_seq_pair` of google-research/bert does."""
    first, second = list(first), list(second)
    while len(first) + len(second) > budget:
        (first if len(first) > len(second) else second).pop()
    return first, second


def truncated(rows, budget, truncation="longest_first"):
    """Cut rows of segments; `rows` is a list of tuples of lists."""
    columns = [tf.ragged.constant(list(c), tf.int32, 1) for c in zip(*rows, strict=True)]
    columns = (column.to_list() for column in truncate(columns, budget, truncation))
    return list(zip(*columns, strict=True))


def packed(*segments, lengths=(16,), **arguments):
    segments = [tf.ragged.constant(segment, tf.int32, ragged_rank=1) for segment in segments]
    rows = pack(segments, cls_id=CLS, sep_id=SEP, pad_id=PAD, lengths=lengths, **arguments)
    return {name: x.numpy().tolist() for name, x in rows.items()}


@pytest.mark.parametrize("budget", [0, 1, 2, 7, 8, 20])
def test_pairs_are_cut_as_the_authors_loop_cuts_them(budget):
    lengths = np.random.default_rng(budget).integers(0, 15, (500, 2))
    pairs = [(list(range(n)), list(range(100, 100 + m))) for n, m in lengths]
    assert truncated(pairs, budget) == [authors_truncation(*pair, budget) for pair in pairs]


@pytest.mark.parametrize("segments", [1, 3, 5])
@pytest.mark.parametrize("budget", [0, 1, 6, 13, 40])
def test_the_longest_segment_loses_a_piece_at_a_time(segments, budget):
    lengths = np.random.default_rng(budget).integers(0, 15, (300, segments))
    rows = [tuple(list(range(n)) for n in row) for row in lengths]
    expected = []
    for row in rows:
        row = [list(segment) for segment in row]
        while sum(map(len, row)) > budget:
            longest = max(map(len, row))
            last = max(i for i, segment in enumerate(row) if len(segment) == longest)
            row[last].pop()
        expected.append(tuple(row))
    assert truncated(rows, budget) == expected


def test_only_the_named_segment_is_cut():
    rows = [([1, 2, 3, 4], [5, 6, 7], [8]), ([1], [5], [])]
    assert truncated(rows, 5, "only_first") == [([1], [5, 6, 7], [8]), rows[1]]
    assert truncated(rows, 5, "only_second") == [([1, 2, 3, 4], [], [8]), rows[1]]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "graph"])
def test_a_segment_that_cannot_make_room_is_an_error(compiled):
    call = tf.function(truncate) if compiled else truncate
    columns = [tf.ragged.constant([[1], [1]]), tf.ragged.constant([[1], [1, 2, 3]])]
    with pytest.raises(tf.errors.InvalidArgumentError, match="other texts alone have"):
        call(columns, 2, "only_first")


def test_a_wrong_truncation_is_named():
    with pytest.raises(ValueError, match="longest_first.*'longest'"):
        packed([[7]], truncation="longest")
    with pytest.raises(ValueError, match="only_second.*needs a second text"):
        packed([[7]], truncation="only_second")


def test_segments_count_from_zero():
    assert packed([[7, 8]], [[]], [[5]], lengths=(8,)) == {
        "token_ids": [[CLS, 7, 8, SEP, SEP, 5, SEP, PAD]],
        "segment_ids": [[0, 0, 0, 0, 1, 2, 2, 0]],
        "padding_mask": [[1, 1, 1, 1, 1, 1, 1, 0]],
    }


def test_a_row_without_room_for_the_marks_is_refused():
    with pytest.raises(ValueError, match="4 marks of 3 segments. Received: 3"):
        packed([[7]], [[7]], [[7]], lengths=(3,))


def test_one_text_has_two_marks_and_the_first_segment():
    assert packed([[7, 8], [9]], lengths=(4, 6)) == {
        "token_ids": [[CLS, 7, 8, SEP], [CLS, 9, SEP, PAD]],
        "segment_ids": [[0, 0, 0, 0], [0, 0, 0, 0]],
        "padding_mask": [[1, 1, 1, 1], [1, 1, 1, 0]],
    }


def test_the_second_text_and_its_mark_are_the_second_segment():
    assert packed([[7, 8], [9]], [[5], [6, 6]], lengths=(7,)) == {
        "token_ids": [[CLS, 7, 8, SEP, 5, SEP, PAD], [CLS, 9, SEP, 6, 6, SEP, PAD]],
        "segment_ids": [[0, 0, 0, 0, 1, 1, 0], [0, 0, 0, 1, 1, 1, 0]],
        "padding_mask": [[1, 1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1, 0]],
    }


@pytest.mark.parametrize(
    ("segments", "token_ids", "segment_ids"),
    [
        (([[7]], [[]]), [CLS, 7, SEP, SEP], [0, 0, 0, 1]),
        (([[]], [[7]]), [CLS, SEP, 7, SEP], [0, 0, 1, 1]),
        (([[]], [[]]), [CLS, SEP, SEP, PAD], [0, 0, 1, 0]),
        (([[]],), [CLS, SEP, PAD, PAD], [0, 0, 0, 0]),
    ],
)
def test_empty_texts_keep_their_marks(segments, token_ids, segment_ids):
    rows = packed(*segments, lengths=(4,))
    assert rows["token_ids"] == [token_ids]
    assert rows["segment_ids"] == [segment_ids]
    assert rows["padding_mask"] == [[int(piece != PAD) for piece in token_ids]]


def test_a_long_text_is_cut_at_its_end():
    assert packed([list(range(10, 30))], lengths=(5,))["token_ids"] == [[CLS, 10, 11, 12, SEP]]


def test_a_long_pair_fills_the_row():
    rows = packed([list(range(10, 30))], [list(range(40, 60))], lengths=(8,))
    assert rows["token_ids"] == [[CLS, 10, 11, 12, SEP, 40, 41, SEP]]
    assert rows["segment_ids"] == [[0, 0, 0, 0, 0, 1, 1, 1]]


@pytest.mark.parametrize(("pieces", "length"), [(0, 4), (2, 4), (3, 6), (4, 6), (5, 9), (50, 9)])
def test_a_batch_gets_the_smallest_bucket_that_holds_it(pieces, length):
    rows = packed([[7] * pieces, [7]], lengths=(4, 6, 9))
    assert np.shape(rows["token_ids"]) == (2, length)


def test_a_single_length_is_known_to_the_graph():
    dataset = tf.data.Dataset.from_tensors(tf.ragged.constant([[7]]))
    marks = {"cls_id": CLS, "sep_id": SEP, "pad_id": PAD}
    spec = dataset.map(lambda ids: pack([ids], **marks, lengths=(9,))).element_spec
    assert {part.shape[1] for part in spec.values()} == {9}


def test_a_batch_without_rows_is_packed():
    assert packed([], lengths=(4, 6))["token_ids"] == []


@pytest.mark.parametrize(
    ("sequence_length", "buckets", "lengths"),
    [
        (30, None, (8, 16, 24, 30)),
        (8, None, (8,)),
        (20, [], (20,)),
        (20, [15, 5, 5, 20, 40], (5, 15, 20)),
    ],
)
def test_buckets_ascend_to_the_sequence_length(sequence_length, buckets, lengths):
    assert bucket_lengths(sequence_length, buckets) == lengths


def test_default_buckets_go_far_beyond_512_too():
    assert bucket_lengths(512)[-1] == 512
    assert bucket_lengths(2048)[-1] == 2048


@pytest.mark.parametrize("buckets", [[0], [-8], [8.0], ["8"]])
def test_wrong_buckets_are_named(buckets):
    with pytest.raises(ValueError, match="buckets"):
        bucket_lengths(30, buckets)
