"""One vector for a text."""

import keras
import numpy as np
from keras import ops

from keras_bert_zoo.models.text_model import BertTask

POOLINGS = ("mean", "cls", "max")


@keras.saving.register_keras_serializable("keras_bert_zoo")
class BertTextEmbedder(BertTask, keras.Model):
    """The states of a text's pieces pooled into one vector (Reimers and Gurevych 2019).

    Inputs are the backbone's; the output is (batch, hidden_dim).

    Args:
        backbone: a `BertBackbone`.
        preprocessor: a `BertTextEmbedderPreprocessor`, so that texts can be given.
        pooling: `"mean"` or `"max"` over the real pieces, marks included, or `"cls"`,
            the first piece's state.
        normalize: divide each vector by its length.

    Example:
        >>> backbone = BertBackbone(
        ...     vocabulary_size=100, num_layers=2, num_heads=2, hidden_dim=8, intermediate_dim=16)
        >>> tuple(BertTextEmbedder(backbone)({
        ...     "token_ids": [[2, 5, 3]], "segment_ids": [[0, 0, 0]], "padding_mask": [[1, 1, 1]],
        ... }).shape)
        (1, 8)
    """

    uses_pooler = False

    def __init__(
        self,
        backbone,
        preprocessor=None,
        pooling: str = "mean",
        normalize: bool = False,
        name: str | None = None,
    ):
        # === Layers ===
        pool = TextPooling(pooling, normalize, name="pooling")

        # === Functional Model ===
        inputs = backbone.input
        outputs = pool(backbone(inputs)["sequence_output"], inputs["padding_mask"])
        super().__init__(inputs=inputs, outputs=outputs, name=name)

        # === Config ===
        self.pooling = pooling
        self.normalize = normalize
        self.set_up(backbone, preprocessor)

    def defaults(self) -> dict:
        """Return no loss: what vectors are trained for is the user's to say."""
        return {"loss": None, "weighted_metrics": None}

    def encode(self, texts, batch_size: int = 32) -> np.ndarray:
        """Return the vectors of a list of texts, floats (texts, hidden_dim)."""
        return self.predict(texts, batch_size=batch_size, verbose=0)

    def get_config(self):
        """Return the constructor's arguments."""
        return {**super().get_config(), "pooling": self.pooling, "normalize": self.normalize}


@keras.saving.register_keras_serializable("keras_bert_zoo")
class TextPooling(keras.layers.Layer):
    """Pools states (batch, length, hidden_dim) under a mask (batch, length), in float32."""

    def __init__(self, pooling: str = "mean", normalize: bool = False, **kwargs):
        super().__init__(dtype="float32", **kwargs)
        if pooling not in POOLINGS:
            raise ValueError(f"`pooling` must be one of {POOLINGS}. Received: {pooling!r}.")
        self.pooling = pooling
        self.normalize = normalize

    def call(self, states, padding_mask):
        """Return (batch, hidden_dim)."""
        real = ops.cast(padding_mask, "float32")[:, :, None]
        if self.pooling == "cls":
            pooled = states[:, 0]
        elif self.pooling == "max":
            pooled = ops.max(ops.where(real > 0, states, -1e30), axis=1)
            # A row without any real piece has no maximum.
            pooled = ops.where(ops.sum(real, axis=1) > 0, pooled, 0.0)
        else:
            pooled = ops.sum(states * real, axis=1) / ops.maximum(ops.sum(real, axis=1), 1.0)
        return ops.normalize(pooled, axis=-1) if self.normalize else pooled

    def compute_output_shape(self, states_shape, padding_mask_shape=None):
        """Return (batch, hidden_dim)."""
        return (states_shape[0], states_shape[-1])

    def get_config(self):
        """Return the constructor's arguments."""
        return {"pooling": self.pooling, "normalize": self.normalize, "name": self.name}
