"""Random numbers that depend on a key and a position alone.

They are those of splitmix64 (Steele, Lea and Flood 2014). There is no state, so the order of
calls, the batch and the padding change nothing.
"""

from typing import Any

from keras_bert_zoo.preprocessing.lazy_tensorflow import tf

# The generator's constants as signed 64-bit numbers.
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2 = 0x94D049BB133111EB - 2**64

STREAMS = 4


def mix(number: Any) -> Any:
    """Return the finaliser of splitmix64 of int64 numbers."""
    number = tf.bitcast(tf.convert_to_tensor(number, tf.int64), tf.uint64)
    shift = tf.bitwise.right_shift

    def times(value, factor):
        # Signed multiplication wraps to the same bits, and has a kernel everywhere.
        return tf.bitcast(tf.bitcast(value, tf.int64) * factor, tf.uint64)

    number = times(number ^ shift(number, tf.constant(30, tf.uint64)), _MIX_1)
    number = times(number ^ shift(number, tf.constant(27, tf.uint64)), _MIX_2)
    return tf.bitcast(number ^ shift(number, tf.constant(31, tf.uint64)), tf.int64)


def bits(key: Any, stream: int, positions: Any, count: int) -> Any:
    """Return random bits.

    Args:
        key: int64 (batch,), a generator's state for each row.
        stream: which of a key's `STREAMS` independent streams.
        positions: integers (batch, any) or (1, any), which numbers of the stream.
        count: how many bits, at most 63.

    Returns:
        int64 (batch, any), from 0 to `2**count - 1`.
    """
    counter = tf.cast(positions, tf.int64) * STREAMS + (stream + 1)
    number = tf.bitcast(mix(key[:, None] + counter * _GOLDEN), tf.uint64)
    return tf.bitcast(tf.bitwise.right_shift(number, tf.constant(64 - count, tf.uint64)), tf.int64)


def uniform(key: Any, stream: int, positions: Any) -> Any:
    """Return float32 numbers in [0, 1); the arguments are those of `bits`."""
    # 24 bits are what a float32 holds exactly.
    return tf.cast(bits(key, stream, positions, 24), tf.float32) * 2.0**-24


def integers(key: Any, stream: int, positions: Any, limit: int) -> Any:
    """Return int64 numbers from 0 to `limit - 1`, at most `2**23`; see `bits`."""
    # The top bits of the product: no float rounds, and none is likelier by more than 2**-17.
    return tf.bitwise.right_shift(bits(key, stream, positions, 40) * limit, 40)
