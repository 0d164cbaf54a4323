"""One vector for a text."""

import keras
import numpy as np

from keras_bert_zoo.models.text_model import BertTask
from keras_bert_zoo.models.text_vectors import TextVectors


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
        # === Layers ===
        vectors = TextVectors(backbone, pooling, layers, normalize)

        # === Functional Model ===
        inputs = backbone.example_inputs()
        super().__init__(inputs=inputs, outputs=vectors(inputs), name=name)

        # === Config ===
        self.pooling = pooling
        self.normalize = normalize
        self.layer_way = layers
        self.layer_mix = vectors.layer_mix
        self.heads = vectors.heads
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
