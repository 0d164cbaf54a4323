"""Pieces to rows: truncation, the special pieces round them, padding to a bucket of lengths."""

from collections.abc import Sequence

from keras_bert_zoo.preprocessing.lazy_tensorflow import tf

# Lengths grow by an eighth to a third, so that little is padded and a compiler that makes
# one program a shape makes few. Multiples of eight suit the vector units.
BUCKETS = (
    *range(8, 65, 8),
    *range(80, 129, 16),
    *range(160, 257, 32),
    *range(320, 513, 64),
)


def bucket_lengths(sequence_length: int, buckets: Sequence[int] | None = None) -> tuple[int, ...]:
    """Return the lengths a batch may be padded to, ascending, `sequence_length` the last.

    Raises:
        ValueError: a bucket is not a positive integer.

    Example:
        >>> bucket_lengths(30)
        (8, 16, 24, 30)
    """
    buckets = BUCKETS if buckets is None else tuple(buckets)
    if any(not isinstance(length, int) or length < 1 for length in buckets):
        raise ValueError(f"`buckets` must be positive integers. Received: {buckets!r}.")
    return (*sorted({length for length in buckets if length < sequence_length}), sequence_length)


def truncate_pair(first, second, budget: int):
    """Cut two ragged batches to `budget` pieces a row together, from the ends.

    The longer of the two loses a piece at a time, the second one where both are equal,
    as the authors' code does.
    """
    first_length = tf.cast(first.row_lengths(), tf.int32)
    second_length = tf.cast(second.row_lengths(), tf.int32)
    keep_first = tf.minimum(first_length, tf.maximum(budget - second_length, (budget + 1) // 2))
    keep_second = tf.minimum(second_length, tf.maximum(budget - first_length, budget // 2))
    return _head(first, keep_first), _head(second, keep_second)


def pack(first, second, *, cls_id: int, sep_id: int, pad_id: int, lengths: Sequence[int]) -> dict:
    """Make `[CLS] first [SEP]` or `[CLS] first [SEP] second [SEP]` rows of one bucket's length.

    Args:
        first: ragged integers (batch, pieces).
        second: the same, or None.
        cls_id, sep_id, pad_id: ids of the special pieces.
        lengths: what `bucket_lengths` gave; the batch gets the first that holds all rows.

    Returns:
        `token_ids`, `segment_ids` (1 for `second` and its mark) and `padding_mask` (1 for
        a real piece), int32 tensors (batch, length).
    """
    sequence_length = lengths[-1]
    first = tf.cast(first, tf.int32)
    if second is None:
        first = first[:, : sequence_length - 2]
        parts = [first]
    else:
        parts = truncate_pair(first, tf.cast(second, tf.int32), sequence_length - 3)
    batch = first.nrows(out_type=tf.int32)

    def mark(piece):
        return tf.RaggedTensor.from_tensor(
            tf.fill([batch, 1], piece), row_splits_dtype=first.row_splits.dtype
        )

    rows = [mark(cls_id)]
    for part in parts:
        rows += [part, mark(sep_id)]
    rows = tf.concat(rows, axis=1)
    row_length = tf.cast(rows.row_lengths(), tf.int32)
    length = smallest_bucket(tf.reduce_max(row_length), lengths)
    token_ids = rows.to_tensor(pad_id, shape=tf.stack([batch, length]))
    position = tf.range(length)[None, :]
    padding_mask = tf.cast(position < row_length[:, None], tf.int32)
    first_end = tf.cast(parts[0].row_lengths(), tf.int32) + 2
    segment_ids = tf.cast(position >= first_end[:, None], tf.int32) * padding_mask
    return {"token_ids": token_ids, "segment_ids": segment_ids, "padding_mask": padding_mask}


def smallest_bucket(longest, lengths: Sequence[int]):
    """Return the first of `lengths` that is at least `longest`, as a scalar int32 tensor."""
    longest = tf.cast(tf.maximum(longest, 1), tf.int32)
    return tf.gather(lengths, tf.searchsorted(list(lengths), [longest])[0])


def _head(ragged, keep):
    """Return the first `keep[i]` pieces of each row i."""
    position = tf.ragged.range(tf.cast(ragged.row_lengths(), tf.int32))
    position = position.with_row_splits_dtype(ragged.row_splits.dtype)
    values = tf.boolean_mask(ragged.values, position.values < tf.repeat(keep, ragged.row_lengths()))
    return tf.RaggedTensor.from_row_lengths(values, tf.cast(keep, ragged.row_splits.dtype))
