"""Which of an encoder's states are read, and how several become one: the paper's table 7."""

from typing import NamedTuple

import keras
from keras import ops


class _Way(NamedTuple):
    """Which states, counted from the embeddings' on, and whether they are summed or joined."""

    states: slice
    is_sum: bool = False


# Devlin et al. 2018, table 7, in its order.
LAYER_WAYS = {
    "embeddings": _Way(slice(0, 1)),
    "second_to_last": _Way(slice(-2, -1)),
    "last": _Way(slice(-1, None)),
    "weighted_last_four": _Way(slice(-4, None), is_sum=True),
    "concat_last_four": _Way(slice(-4, None)),
    "weighted_all": _Way(slice(1, None), is_sum=True),
}


def layer_numbers(layers: str, num_layers: int) -> list[int]:
    """Return which states of an encoder a way reads: 0 the embeddings', `num_layers` the last.

    Raises:
        ValueError: there is no such way, or the encoder has fewer than the four layers of it.

    Example:
        >>> layer_numbers("concat_last_four", num_layers=12)
        [9, 10, 11, 12]
    """
    if layers not in LAYER_WAYS:
        raise ValueError(f"`layers` must be one of {list(LAYER_WAYS)}. Received: {layers!r}.")
    if layers.endswith("_last_four") and num_layers < 4:
        raise ValueError(f"`layers` is {layers!r}, but the encoder has {num_layers} layers.")
    return list(range(num_layers + 1))[LAYER_WAYS[layers].states]


@keras.saving.register_keras_serializable("keras_bert_zoo")
class LayerMix(keras.layers.Layer):
    """One state of the several that a way of table 7 reads.

    The input is a float tensor (..., layers, hidden_dim), the states that `layer_numbers` names;
    the output is (..., layers * hidden_dim), or for a weighted sum (..., hidden_dim), in float32.
    The sum's weights are learnt, a softmax over the layers times a scale, as in Peters et
    al. 2018, equation 1; at first it is the mean. The paper does not say how it weighted.

    Args:
        layers: one of `LAYER_WAYS`.

    Example:
        >>> from keras_bert_zoo.layers.layer_mix import LayerMix
        >>> states = keras.ops.array([[[1.0, 2.0], [3.0, 4.0]]])
        >>> keras.ops.convert_to_numpy(LayerMix("weighted_all")(states)).tolist()
        [[2.0, 3.0]]
        >>> keras.ops.convert_to_numpy(LayerMix("concat_last_four")(states)).tolist()
        [[1.0, 2.0, 3.0, 4.0]]
    """

    def __init__(self, layers: str, **kwargs):
        super().__init__(**{"dtype": "float32", **kwargs})
        if layers not in LAYER_WAYS:
            raise ValueError(f"`layers` must be one of {list(LAYER_WAYS)}. Received: {layers!r}.")
        self.layers = layers

    def build(self, states_shape):
        """Create a weighted sum's weights."""
        if LAYER_WAYS[self.layers].is_sum:
            self.mix = self.add_weight((states_shape[-2],), initializer="zeros", name="mix")
            self.scale = self.add_weight((), initializer="ones", name="scale")
        self.built = True

    def call(self, states):
        """Mix `states` (..., layers, hidden_dim)."""
        if LAYER_WAYS[self.layers].is_sum:
            weights = self.scale * ops.softmax(self.mix)
            return ops.sum(states * ops.expand_dims(weights, -1), axis=-2)
        shape = self.compute_output_shape(states.shape)
        return ops.reshape(states, (*ops.shape(states)[:-2], shape[-1]))

    def compute_output_shape(self, states_shape):
        """Return the shape without the axis of the layers."""
        *outer, layers, width = states_shape
        return (*outer, width if LAYER_WAYS[self.layers].is_sum else layers * width)

    def get_config(self):
        """Return the constructor's arguments."""
        return {**super().get_config(), "layers": self.layers}
