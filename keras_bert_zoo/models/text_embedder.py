"""One vector for a text."""

import keras
import numpy as np
from keras import ops

from keras_bert_zoo.layers.layer_mix import LayerMix, layer_numbers
from keras_bert_zoo.layers.packed_rows import current_starts, first_states
from keras_bert_zoo.models.text_model import BertTask

POOLINGS = ("mean", "cls", "max", "pooled")


@keras.saving.register_keras_serializable("keras_bert_zoo")
class BertTextEmbedder(BertTask, keras.Model):
    """The states of a text's pieces pooled into one vector (Reimers and Gurevych 2019).

    Inputs are the backbone's; the output is (batch, hidden_dim), or (batch, 4 * hidden_dim) of
    four layers' states joined.

    Args:
        backbone: a `BertBackbone`.
        preprocessor: a `BertTextEmbedderPreprocessor`, so that texts can be given.
        pooling: `"mean"` or `"max"` over the real pieces, marks included; `"cls"`,
            the first piece's state; or `"pooled"`, what the pooler makes of that.
        normalize: divide each vector by its length.
        layers: whose states are pooled: `"last"`, `"second_to_last"`, `"embeddings"`,
            `"concat_last_four"`, or, with weights that can be learnt and are even at first,
            `"weighted_last_four"` and `"weighted_all"` (Devlin et al. 2018, table 7).

    Raises:
        ValueError: `pooling` or `layers` is none of these, they do not go together, or the
            encoder has too few layers.

    Example:
        >>> backbone = BertBackbone(
        ...     vocabulary_size=100, num_layers=2, num_heads=2, hidden_dim=8, intermediate_dim=16)
        >>> tuple(BertTextEmbedder(backbone)({
        ...     "token_ids": [[2, 5, 3]], "segment_ids": [[0, 0, 0]], "padding_mask": [[1, 1, 1]],
        ... }).shape)
        (1, 8)
    """

    uses_pooler = False
    one_output_a_row = True

    def __init__(
        self,
        backbone,
        preprocessor=None,
        pooling: str = "mean",
        normalize: bool = False,
        layers: str = "last",
        name: str | None = None,
    ):
        numbers = layer_numbers(layers, backbone.num_layers)
        if pooling == "pooled" and layers != "last":
            raise ValueError(f"The pooler reads the last layer. Received: layers={layers!r}.")

        # === Layers ===
        pool = TextPooling(pooling, normalize, name="pooling")

        # === Functional Model ===
        inputs = backbone.example_inputs()
        if pooling == "pooled":
            states = backbone.first_pooled_output(inputs)
        elif layers == "last":
            states = backbone(inputs)["sequence_output"]
        else:
            states = backbone.layer_states(inputs)
            states = ops.stack([states[number] for number in numbers], axis=-2)
            states = LayerMix(layers, name="layer_mix")(states)
        outputs = pool(states, inputs["padding_mask"], inputs["example_starts"])
        super().__init__(inputs=inputs, outputs=outputs, name=name)

        # === Config ===
        self.pooling = pooling
        self.normalize = normalize
        self.layer_way = layers
        self.uses_pooler = pooling == "pooled"
        self.set_up(backbone, preprocessor)

    def defaults(self) -> dict:
        """Return no loss: what vectors are trained for is the user's to say."""
        return {"loss": None, "weighted_metrics": None}

    def encode(self, texts, batch_size: int = 32) -> np.ndarray:
        """Return the vectors of a list of texts, floats (texts, width)."""
        return self.predict(texts, batch_size=batch_size, verbose=0)

    def get_config(self):
        """Return the constructor's arguments."""
        return {
            **super().get_config(),
            "pooling": self.pooling,
            "normalize": self.normalize,
            "layers": self.layer_way,
        }


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
