"""The masked-LM head. Every other head of BERT is one dense layer, made where it is used."""

import keras
from keras import ops

from keras_bert_zoo.layers.common import activation_function, initializer
from keras_bert_zoo.layers.dense import BertDense
from keras_bert_zoo.layers.products import product_with_rows


@keras.saving.register_keras_serializable("keras_bert_zoo")
class MaskedLMHead(keras.layers.Layer):
    """Scores of every vocabulary entry at the masked positions, and at no other.

    Dense, activation and LayerNorm, then the product with the transposed token table
    (the very table of `token_embedding`, not a copy) plus one bias an entry; Devlin et
    al. 2018, section 3.1.

    Inputs are `x`, a float tensor (batch, length, hidden_dim), and `mask_positions`,
    integers (batch, predictions) below length, or None where `x` holds the states of
    these positions already. The output is (batch, predictions, vocabulary_size) of float
    logits.

    Example:
        >>> table = keras.layers.Embedding(10, 4)
        >>> head = MaskedLMHead(table)
        >>> tuple(head(keras.ops.ones((1, 3, 4)), keras.ops.array([[1]])).shape)
        (1, 1, 10)
    """

    def __init__(
        self,
        token_embedding: keras.layers.Embedding,
        hidden_activation: str = "gelu",
        layer_norm_epsilon: float = 1e-12,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.token_embedding = token_embedding
        self.hidden_activation = hidden_activation
        self.layer_norm_epsilon = layer_norm_epsilon
        self.dense = BertDense(
            token_embedding.output_dim,
            activation=activation_function(hidden_activation),
            kernel_initializer=initializer(),
            dtype=self.dtype_policy,
            name="dense",
        )
        self.layer_norm = keras.layers.LayerNormalization(
            epsilon=layer_norm_epsilon, dtype=self.dtype_policy, name="layer_norm"
        )

    def build(self, x_shape, mask_positions_shape=None):
        """Create the transform's weights and the bias."""
        if not self.token_embedding.built:
            self.token_embedding.build()
        shape = (None, None, self.token_embedding.output_dim)
        self.dense.build(shape)
        self.layer_norm.build(shape)
        self.bias = self.add_weight(
            shape=(self.token_embedding.input_dim,), initializer="zeros", name="bias"
        )
        self.built = True

    def call(self, x, mask_positions=None):
        """Score the vocabulary at `mask_positions`, or at all of `x`."""
        if mask_positions is not None:
            mask_positions = ops.convert_to_tensor(mask_positions, dtype="int32")
            x = ops.take_along_axis(x, mask_positions[:, :, None], axis=1)
        masked = self.layer_norm(self.dense(x))
        rows = ops.reshape(masked, (-1, self.token_embedding.output_dim))
        table = ops.cast(self.token_embedding.embeddings, self.compute_dtype)
        logits = product_with_rows(rows, table, ops.cast(self.bias, self.compute_dtype))
        return ops.reshape(logits, (*ops.shape(x)[:-1], self.token_embedding.input_dim))

    def compute_output_shape(self, x_shape, mask_positions_shape=None):
        """Return (batch, predictions, vocabulary_size)."""
        return (*(mask_positions_shape or x_shape[:-1]), self.token_embedding.input_dim)

    def get_config(self):
        """Return the constructor's arguments."""
        return {
            **super().get_config(),
            "token_embedding": keras.layers.serialize(self.token_embedding),
            "hidden_activation": self.hidden_activation,
            "layer_norm_epsilon": self.layer_norm_epsilon,
        }

    @classmethod
    def from_config(cls, config):
        """Make the head; a table of its own is made if none is shared with it."""
        config = dict(config)
        config["token_embedding"] = keras.layers.deserialize(config["token_embedding"])
        return cls(**config)
