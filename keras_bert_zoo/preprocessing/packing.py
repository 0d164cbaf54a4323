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

TRUNCATIONS = ("longest_first", "only_first", "only_second")


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


def truncate(segments: Sequence, budget: int, truncation: str = "longest_first") -> list:
    """Cut each row's segments to `budget` pieces together, from their ends.

    Args:
        segments: ragged batches (batch, pieces), one or more.
        budget: most pieces a row may keep.
        truncation: `"longest_first"`: the longest loses a piece at a time, the last of
            those that are equally long, which for two is the rule of the authors' code.
            `"only_first"`, `"only_second"`: that one alone is cut.

    Returns:
        The ragged batches, cut.

    Raises:
        ValueError: the truncation is unknown, or there is no second segment to cut.
        tf.errors.InvalidArgumentError: when it runs, if a row's other segments alone have
            more than `budget` pieces.
    """
    check_truncation(truncation)
    lengths = tf.stack([tf.cast(s.row_lengths(), tf.int32) for s in segments], axis=1)
    if truncation == "longest_first":
        keep = _longest_first(lengths, budget)
    else:
        keep = _only_one(lengths, budget, truncation)
    return [_head(s, keep[:, i]) for i, s in enumerate(segments)]


def check_truncation(truncation: str) -> None:
    """Refuse what is no way to truncate, with a ValueError that names the ways there are."""
    if truncation not in TRUNCATIONS:
        raise ValueError(f"`truncation` must be one of {TRUNCATIONS}. Received: {truncation!r}.")


def pack(
    segments: Sequence,
    *,
    cls_id: int,
    sep_id: int,
    pad_id: int,
    lengths: Sequence[int],
    truncation: str = "longest_first",
) -> dict:
    """Make `[CLS] segment [SEP] segment [SEP] ...` rows of one bucket's length.

    Args:
        segments: ragged int32 (batch, pieces), one or more.
        cls_id, sep_id, pad_id: ids of the special pieces.
        lengths: what `bucket_lengths` gave; the batch gets the first that holds all rows.
        truncation: as in `truncate`.

    Returns:
        `token_ids`, `segment_ids` (0 for the first segment and its marks, 1 for the second
        and its mark, and so on) and `padding_mask` (1 for a real piece), int32 tensors
        (batch, length).

    Raises:
        ValueError: the longest row has no room for the marks.
    """
    marks = len(segments) + 1
    if lengths[-1] < marks:
        raise ValueError(
            f"`sequence_length` must hold the {marks} marks of {len(segments)} segments. "
            f"Received: {lengths[-1]}."
        )
    segments = truncate(segments, lengths[-1] - marks, truncation)
    batch = segments[0].nrows(out_type=tf.int32)
    starts, start = [], tf.ones([batch], tf.int32)
    for segment in segments:
        starts.append(start)
        start += tf.cast(segment.row_lengths(), tf.int32) + 1
    row_length = start
    length = smallest_bucket(tf.reduce_max(row_length), lengths)
    position = tf.range(length)[None, :]
    padding_mask = tf.cast(position < row_length[:, None], tf.int32)
    # All that no segment has is a mark, and all behind the last mark padding.
    token_ids = tf.where(padding_mask > 0, sep_id, pad_id)
    token_ids = tf.where(position == 0, cls_id, token_ids)
    segment_ids = tf.zeros_like(padding_mask)
    for segment, start in zip(segments, starts, strict=True):
        token_ids = _laid(token_ids, segment, start)
        segment_ids += tf.cast(position >= start[:, None], tf.int32) * padding_mask
    segment_ids = tf.maximum(segment_ids - 1, 0)
    return {"token_ids": token_ids, "segment_ids": segment_ids, "padding_mask": padding_mask}


def _laid(token_ids, segment, start):
    """Return the rows with each row's pieces of a segment from `start[row]` on."""
    row = tf.cast(segment.value_rowids(), tf.int32)
    place = tf.range(tf.size(row)) - tf.gather(tf.cast(segment.row_starts(), tf.int32) - start, row)
    return tf.tensor_scatter_nd_update(token_ids, tf.stack([row, place], axis=1), segment.values)


def smallest_bucket(longest, lengths: Sequence[int]):
    """Return the first of `lengths` that is at least `longest`, as a scalar int32 tensor."""
    if len(lengths) == 1:
        return tf.constant(lengths[0])  # so that the shape is static
    longest = tf.cast(tf.maximum(longest, 1), tf.int32)
    return tf.gather(lengths, tf.searchsorted(list(lengths), [longest])[0])


def _longest_first(lengths, budget):
    """Return how much of each segment stays: all is cut down to one level, as if by the piece."""
    count = lengths.shape[1]
    # If the i shortest stay whole, the others can have this level each; the highest is right.
    shorter = tf.cumsum(tf.sort(lengths, axis=1), axis=1, exclusive=True)
    level = tf.reduce_max((budget - shorter) // tf.range(count, 0, -1), axis=1, keepdims=True)
    keep = tf.minimum(lengths, level)
    # What does not divide evenly goes to the first of those that were cut.
    cut = tf.cast(lengths > level, tf.int32)
    rest = budget - tf.reduce_sum(keep, axis=1, keepdims=True)
    return keep + cut * tf.cast(tf.cumsum(cut, axis=1) <= rest, tf.int32)


def _only_one(lengths, budget, truncation):
    """Return how much of each segment stays if one alone is cut."""
    number = ("only_first", "only_second").index(truncation)
    count = lengths.shape[1]
    if number >= count:
        raise ValueError(f"`truncation={truncation!r}` needs a second text. Received: one.")
    is_cut = tf.one_hot(number, count, dtype=tf.int32)
    room = budget - tf.reduce_sum(lengths * (1 - is_cut), axis=1, keepdims=True)
    tf.debugging.assert_non_negative(
        room,
        f"`truncation={truncation!r}` can't make room: a row's other texts alone have more "
        f"than {budget} pieces, what `sequence_length` leaves beside the marks",
    )
    return tf.where(is_cut > 0, tf.minimum(lengths, room), lengths)


def _head(ragged, keep):
    """Return the first `keep[i]` pieces of each row i."""
    starts = tf.cast(ragged.row_starts(), tf.int32)
    places = tf.ragged.range(starts, starts + keep)
    return places.with_values(tf.gather(ragged.values, places.values))
