"""A long text as overlapping rows, each with the whole of the text that comes before it."""

from collections.abc import Sequence

from keras_bert_zoo.preprocessing.lazy_tensorflow import tf
from keras_bert_zoo.preprocessing.packing import pack


def slide(
    segments: Sequence,
    *,
    cls_id: int,
    sep_id: int,
    pad_id: int,
    lengths: Sequence[int],
    stride: int,
    first_length: int,
) -> dict:
    """Lay windows over the last segment, as the authors' code lays them over a passage.

    A window holds as many pieces as its row has room for. The next begins `stride` pieces
    further on, or right behind it where it is shorter than that, until one reaches the end.

    Args:
        segments: ragged integers (batch, pieces), one or two.
        cls_id, sep_id, pad_id, lengths: as `pack` takes them.
        stride: pieces from a window's start to that of the next.
        first_length: most pieces of the first of two segments.

    Returns:
        What `pack` returns, a row a window, and int32 tensors: `example_ids` (windows,), the
        row of `segments` a window comes from; `window_starts` (windows,), the place in the
        last segment of its first piece; `piece_places` (windows, length), the place in the
        last segment of the piece that stands there, -1 where none does; `max_context`
        (windows, length), 1 where no other window shows the piece in more context.

    Raises:
        tf.errors.InvalidArgumentError: when it runs, if a first segment leaves no room.
    """
    *firsts, last = segments
    firsts = [first[:, :first_length] for first in firsts]
    sizes = tf.cast(last.row_lengths(), tf.int32)
    begins = tf.ones_like(sizes)
    for first in firsts:
        begins += tf.cast(first.row_lengths(), tf.int32) + 1
    room = lengths[-1] - 1 - begins
    tf.debugging.assert_positive(
        room,
        f"The first text, cut to `first_length={first_length}`, leaves no room for a window in "
        f"`sequence_length={lengths[-1]}`",
    )
    step = tf.minimum(room, stride)
    count = 1 + tf.maximum(sizes - room + step - 1, 0) // step

    # From here on a row is a window.
    example_ids = tf.repeat(tf.range(tf.size(sizes)), count)
    begins, room, step, sizes, origins = (
        tf.gather(x, example_ids)
        for x in (begins, room, step, sizes, tf.cast(last.row_starts(), tf.int32))
    )
    starts = tf.ragged.range(count).values * step
    sizes = tf.minimum(room, sizes - starts)
    pieces = tf.ragged.range(origins + starts, origins + starts + sizes)
    pieces = pieces.with_values(tf.gather(last.values, pieces.values))
    rows = pack(
        [*(tf.gather(first, example_ids) for first in firsts), pieces],
        cls_id=cls_id,
        sep_id=sep_id,
        pad_id=pad_id,
        lengths=lengths,
    )
    offsets = tf.range(tf.shape(rows["token_ids"])[1]) - begins[:, None]
    is_piece = (offsets >= 0) & (offsets < sizes[:, None])
    # The batch's pieces counted through from 1; 0 where none stands.
    numbers = tf.where(is_piece, offsets + (origins + starts)[:, None] + 1, 0)
    return {
        **rows,
        "example_ids": example_ids,
        "window_starts": starts,
        "piece_places": tf.where(is_piece, offsets + starts[:, None], -1),
        "max_context": _max_context(numbers, offsets, sizes, 1 + tf.size(last.values)),
    }


def _max_context(numbers, offsets, sizes, count):
    """Return 1 where a window is its piece's best, by the score of the authors' code.

    Args:
        numbers: (windows, length), which piece stands there; 0 where none does.
        offsets: (windows, length), its place in the window.
        sizes: (windows,), pieces in the window.
        count: one more than the highest number.
    """
    context = tf.minimum(offsets, sizes[:, None] - 1 - offsets)
    # In double precision, as theirs, so that what ties there ties here.
    score = tf.cast(context, tf.float64) + 0.01 * tf.cast(sizes, tf.float64)[:, None]
    best = tf.math.unsorted_segment_max(score, numbers, count)
    is_best = (numbers > 0) & (score == tf.gather(best, numbers))
    # The first of equally good windows wins.
    window = tf.broadcast_to(tf.range(tf.size(sizes))[:, None], tf.shape(numbers))
    first = tf.math.unsorted_segment_min(window, tf.where(is_best, numbers, 0), count)
    return tf.cast(is_best & (window == tf.gather(first, numbers)), tf.int32)
