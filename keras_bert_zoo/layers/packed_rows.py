"""Rows that hold several examples: where each piece's example begins, who may see whom.

`example_starts`, integers (batch, examples), says where in its row each example begins. What
fills it up is 0, which the row's first example has already. Every layer here takes None for
it, and then a row is one example.
"""

import keras
from keras import ops


def current_starts(example_starts, length):
    """Return (batch, length) integers: where the example that each position is in begins."""
    positions = ops.arange(length, dtype="int32")[None, None, :]
    starts = ops.cast(example_starts, "int32")[:, :, None]
    return ops.max(ops.where(starts <= positions, starts, 0), axis=1)


def first_states(states, example_starts=None):
    """Return the state of each row's, or of each example's, first position."""
    if example_starts is None:
        return states[:, 0, :]
    starts = ops.cast(example_starts, "int32")
    return ops.take_along_axis(states, starts[:, :, None], axis=1)


@keras.saving.register_keras_serializable("keras_bert_zoo")
class AttentionMask(keras.layers.Layer):
    """What each position may look at.

    Inputs are `padding_mask`, integers (batch, length), 1 where a real token stands, and
    `example_starts` (batch, examples) or None. The output is `padding_mask` itself for
    rows of one example, and integers (batch, length, length) for packed rows: 1 where a
    query and a key are in the same example and the key is real.

    Example:
        >>> mask = AttentionMask()(keras.ops.array([[1, 1, 1, 0]]), keras.ops.array([[0, 2]]))
        >>> keras.ops.convert_to_numpy(mask)[0].tolist()
        [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 0]]
    """

    def call(self, padding_mask, example_starts=None):
        """Return the mask."""
        if example_starts is None:
            return padding_mask
        starts = current_starts(example_starts, ops.shape(padding_mask)[1])
        same = ops.cast(starts[:, :, None] == starts[:, None, :], "int32")
        return same * ops.cast(padding_mask, "int32")[:, None, :]


@keras.saving.register_keras_serializable("keras_bert_zoo")
class FirstStates(keras.layers.Layer):
    """The states of `[CLS]`: each row's, or each example's where rows are packed.

    Inputs are `states`, floats (batch, length, hidden_dim), and `example_starts` (batch,
    examples) or None. The output is (batch, hidden_dim), or (batch, examples, hidden_dim).
    With `positions` the states are those of some positions only, and all of them are given.

    Example:
        >>> states = keras.ops.reshape(keras.ops.arange(4.0), (1, 4, 1))
        >>> keras.ops.convert_to_numpy(FirstStates()(states, keras.ops.array([[0, 2]]))).tolist()
        [[[0.0], [2.0]]]
    """

    def call(self, states, example_starts=None, positions=None):
        """Return the states."""
        return states if positions is not None else first_states(states, example_starts)


@keras.saving.register_keras_serializable("keras_bert_zoo")
class FirstPositions(keras.layers.Layer):
    """Where `[CLS]` stands: at each row's first position, or where each packed example begins.

    Inputs are `token_ids`, integers (batch, length), and `example_starts` (batch, examples)
    or None. The output is `example_starts`, or zeros (batch, 1).

    Example:
        >>> ids = keras.ops.zeros((2, 3), "int32")
        >>> keras.ops.convert_to_numpy(FirstPositions()(ids)).tolist()
        [[0], [0]]
    """

    def call(self, token_ids, example_starts=None):
        """Return the positions."""
        if example_starts is None:
            return ops.zeros((ops.shape(token_ids)[0], 1), "int32")
        return ops.cast(example_starts, "int32")


@keras.saving.register_keras_serializable("keras_bert_zoo")
class ExampleStates(keras.layers.Layer):
    """Drops the axis of the examples where each row is one.

    Inputs are `states` (batch, examples, hidden_dim) and `example_starts` (batch, examples)
    or None; the output is `states`, or (batch, hidden_dim) of rows that are not packed.

    Example:
        >>> tuple(ExampleStates()(keras.ops.ones((2, 1, 4))).shape)
        (2, 4)
    """

    def call(self, states, example_starts=None):
        """Return the states."""
        return states[:, 0] if example_starts is None else states
