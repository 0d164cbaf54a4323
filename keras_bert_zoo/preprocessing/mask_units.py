"""Runs of pieces that are masked together, words and spans, and the choice among them.

Everything here is a function of its arguments: whoever calls draws the random numbers.
Positions are int32 and go with rows (batch, length).
"""

from typing import Any

import numpy as np

from keras_bert_zoo.preprocessing.lazy_tensorflow import tf

# Lengths of spans in words (Joshi et al. 2020, section 3.1): geometric, cut at the longest
# and rescaled to a sum of 1, which gives the paper's mean of 3.8.
_LONGEST_SPAN = 10
_GEOMETRIC = 0.2 * 0.8 ** np.arange(_LONGEST_SPAN)
SPAN_LENGTH_PROBABILITIES = _GEOMETRIC / _GEOMETRIC.sum()


def words(inside: Any, selectable: Any, joined: Any) -> tuple[Any, Any]:
    """Find the word of each piece.

    Args:
        inside: booleans (batch, length), whether a piece is part of a word.
        selectable: booleans, whether a piece may be chosen.
        joined: booleans, whether a piece continues the word of the piece before it.

    Returns:
        `first`, the position of the word's first piece, and `size`, how many pieces the word
        has; 0 where one of them may not be chosen, and outside words.
    """
    shape = tf.shape(inside)
    begins = inside & ~(joined & tf.pad(inside[:, :-1], [[0, 0], [1, 0]]))

    # Words are numbered through the batch from 1, which makes each a segment of one flat row.
    begins = tf.reshape(begins, [-1])
    word = tf.cumsum(tf.cast(begins, tf.int32))
    start = tf.concat([[0], tf.cast(tf.where(begins)[:, 0], tf.int32)], axis=0)
    first = tf.reshape(tf.gather(start, word), shape) - tf.range(shape[0])[:, None] * shape[1]

    def count(pieces):
        return tf.math.segment_sum(tf.cast(tf.reshape(pieces, [-1]), tf.int32), word)

    size = count(inside)
    size = tf.where(count(inside & selectable) == size, size, 0)
    size = tf.where(inside, tf.reshape(tf.gather(size, word), shape), 0)
    return tf.where(inside, first, tf.range(shape[1])), size


def spans(first: Any, size: Any, drawn: Any) -> tuple[Any, Any]:
    """Join words to spans, from left to right; where no word can be chosen, a span ends.

    Args:
        first, size: what `words` gave.
        drawn: integers (batch, length), how many words a span has that begins at a piece.

    Returns:
        `start`, the position of the first piece of each piece's span, and `need`, the pieces
        of the longest word from the span's first to the piece's own. Both mean something where
        `size` is not 0.
    """
    shape = tf.shape(first)
    is_word = tf.reshape((first == tf.range(shape[1])) & (size > 0), [-1])

    # Words are numbered through the batch from 1; number 0 stands for what is behind a stretch
    # of words, where spans end in any case.
    place = tf.concat([[-1], tf.cast(tf.where(is_word)[:, 0], tf.int32)], axis=0)
    number = tf.range(tf.size(place))
    pieces = tf.gather(tf.reshape(size, [-1]), tf.maximum(place, 0))
    begins = (place % shape[1] == 0) | (place != tf.roll(place + pieces, 1, axis=0))
    stretch = tf.cumsum(tf.cast(begins, tf.int32))
    next_span = number + tf.gather(tf.reshape(drawn, [-1]), tf.maximum(place, 0))
    inside = tf.gather(stretch, tf.minimum(next_span, number[-1])) == stretch
    next_span = tf.where(inside & (next_span <= number[-1]) & (number > 0), next_span, 0)

    # Each round follows twice as many spans as the one before: a step for each position would
    # be less to read, and several times slower for a few long rows.
    def follow(begins, next_span):
        reached = tf.math.unsorted_segment_max(begins, next_span, tf.size(begins))
        return tf.maximum(begins, reached), tf.gather(next_span, next_span)

    begins, _ = tf.while_loop(
        lambda _, next_span: tf.reduce_any(next_span > 0),
        follow,
        (tf.cast(begins, tf.int32), next_span),
    )
    begins = tf.concat([[1], begins[1:]], axis=0)
    span = tf.gather(tf.cast(tf.where(begins)[:, 0], tf.int32), tf.cumsum(begins) - 1)

    # And each of these looks back over twice as many words.
    need, distance = pieces, 1
    while distance < _LONGEST_SPAN:
        before = tf.where(number - distance >= span, tf.roll(need, distance, axis=0), 0)
        need, distance = tf.maximum(need, before), 2 * distance

    word = tf.cumsum(tf.cast(is_word, tf.int32))
    start = tf.gather(place, tf.gather(span, word)) % shape[1]
    return tf.reshape(start, shape), tf.reshape(tf.gather(need, word), shape)


def span_lengths(uniform: Any) -> Any:
    """Return span lengths, int32 from 1 to 10, for numbers that are uniform in [0, 1)."""
    limits = tf.constant(np.cumsum(SPAN_LENGTH_PROBABILITIES[:-1]), uniform.dtype)
    lengths = tf.searchsorted(limits, tf.reshape(uniform, [-1]), side="right") + 1
    return tf.reshape(lengths, tf.shape(uniform))


def choose(order: Any, size: Any, need: Any, room: Any) -> Any:
    """Choose items in random order; one that would exceed the room left is passed over.

    This is the rule of the BERT authors' code for whole words. The words of a span come one
    after the other and the first that is passed over ends the span: `need` holds the largest
    of them up to each, which makes all behind it unfit too.

    Args:
        order: floats (batch, length), the items' random numbers; those of a span are equal.
        size: integers, the items' pieces; 0 is no item.
        need: integers, the room without which an item is out of the question: its own size,
            or more.
        room: integers (batch,), how many pieces may be chosen in a row.

    Returns:
        booleans (batch, length), the chosen items.
    """
    shape = tf.shape(size)
    # Equal numbers keep their order, as in a stable sort.
    rank = tf.math.top_k(-tf.where(size > 0, order, np.inf), k=shape[1]).indices
    size = tf.gather(size, rank, batch_dims=1)
    need = tf.gather(need, rank, batch_dims=1)

    # Room only shrinks, so what does not fit now never will: each round takes the items that
    # still fit up to the first that they leave no room for, and a few rounds do.
    def fitting(taken, room):
        return (size > 0) & ~taken & (need <= room[:, None])

    def take(taken, room):
        fits = fitting(taken, room)
        total = tf.cumsum(tf.where(fits, size, 0), axis=1)
        new = fits & (total <= room[:, None])
        return taken | new, room - tf.reduce_sum(tf.where(new, size, 0), axis=1)

    taken, _ = tf.while_loop(
        lambda taken, room: tf.reduce_any(fitting(taken, room)),
        take,
        (tf.zeros_like(size, tf.bool), room),
    )
    rank = tf.reshape(rank + tf.range(shape[0])[:, None] * shape[1], [-1])
    taken = tf.gather(tf.reshape(taken, [-1]), tf.math.invert_permutation(rank))
    return tf.reshape(taken, shape)
