"""One vector for a text: which of its states are read, and how they are pooled."""

import keras
from keras import ops

from keras_bert_zoo.layers.layer_mix import LAYER_WAYS, LayerMix, layer_numbers
from keras_bert_zoo.layers.packed_rows import current_starts, first_states

POOLINGS = ("mean", "cls", "max", "pooled")


class TextVectors:
    """The way from an encoder to a vector a text, for a task to be built on.

    Args:
        backbone: a `BertBackbone`.
        pooling: `"mean"` or `"max"` over the real pieces, marks included; `"cls"`,
            the first piece's state; or `"pooled"`, what the pooler makes of that.
        layers: whose states are pooled, as `BertTextEmbedder` takes it.
        normalize: divide each vector by its length.

    Raises:
        ValueError: `pooling` or `layers` is none of these, they do not go together, or the
            encoder has too few layers.
    """

    def __init__(self, backbone, pooling: str, layers: str = "last", normalize: bool = False):
        self.backbone, self.layers = backbone, layers
        self.numbers = layer_numbers(layers, backbone.num_layers)
        if pooling == "pooled" and layers != "last":
            raise ValueError(
                f"`pooling='pooled'` reads the last layer only. Received: layers={layers!r}, which "
                "needs `pooling` 'mean', 'max' or 'cls'."
            )
        self.pool = TextPooling(pooling, normalize, name="pooling")
        # With weights to be learnt, it is a part of the task's head.
        self.layer_mix = None if layers == "last" else LayerMix(layers, name="layer_mix")

    @property
    def heads(self) -> tuple[str, ...]:
        """The names of the parts that have weights of their own."""
        return ("layer_mix",) if LAYER_WAYS[self.layers].is_sum else ()

    def __call__(self, inputs: dict):
        """Return (batch, width), or (batch, examples, width) of packed rows."""
        if self.pool.pooling == "pooled":
            states = self.backbone.first_pooled_output(inputs)
        elif self.layer_mix is None:
            states = self.backbone(inputs)["sequence_output"]
        else:
            states = self.backbone.layer_states(inputs)
            states = ops.stack([states[number] for number in self.numbers], axis=-2)
            states = self.layer_mix(states)
        return self.pool(states, inputs["padding_mask"], inputs["example_starts"])


@keras.saving.register_keras_serializable("keras_bert_zoo")
class TextPooling(keras.layers.Layer):
    """Pools states (batch, length, hidden_dim) under a mask (batch, length), in float32.

    With `pooling="pooled"` what comes is pooled already.

    With `example_starts` (batch, examples), where the examples of packed rows begin, each
    example is pooled by itself.
    """

    def __init__(self, pooling: str = "mean", normalize: bool = False, **kwargs):
        super().__init__(dtype="float32", **kwargs)
        if pooling not in POOLINGS:
            raise ValueError(f"`pooling` must be one of {POOLINGS}. Received: {pooling!r}.")
        self.pooling = pooling
        self.normalize = normalize

    def call(self, states, padding_mask, example_starts=None):
        """Return (batch, hidden_dim), or (batch, examples, hidden_dim) of packed rows."""
        if self.pooling == "pooled":
            pooled = states
        elif self.pooling == "cls":
            pooled = first_states(states, example_starts)
        else:
            pooled = self._over_pieces(states, ops.cast(padding_mask, "float32"), example_starts)
        return ops.normalize(pooled, axis=-1) if self.normalize else pooled

    def _over_pieces(self, states, real, example_starts):
        """Pool over the pieces that `real` (batch, length) has, of each row or each example."""
        if example_starts is None:
            starts = ops.zeros((ops.shape(real)[0], 1), "int32")
            return self._over_examples(states, real, starts)[:, 0]
        return self._over_examples(states, real, ops.cast(example_starts, "int32"))

    def _over_examples(self, states, real, starts):
        current = current_starts(starts, ops.shape(states)[1])
        # Slices that add axes are more than LiteRT takes.
        current, starts = ops.expand_dims(current, 1), ops.expand_dims(starts, 2)
        inside = ops.cast(current == starts, "float32") * ops.expand_dims(real, 1)
        count = ops.sum(inside, axis=-1, keepdims=True)
        if self.pooling == "mean":
            return ops.matmul(inside, states) / ops.maximum(count, 1.0)
        pieces = ops.where(ops.expand_dims(inside, 3) > 0, ops.expand_dims(states, 1), -1e30)
        # A row without any real piece has no maximum.
        return ops.where(count > 0, ops.max(pieces, axis=-2), 0.0)

    def get_config(self):
        """Return the constructor's arguments."""
        return {"pooling": self.pooling, "normalize": self.normalize, "name": self.name}
