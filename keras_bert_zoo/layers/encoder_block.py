"""One encoder layer: attention and feed-forward, each added back and then normalised."""

import keras

from keras_bert_zoo.layers.common import (
    activation_function,
    check_epsilon,
    check_positive_int,
    check_rate,
    initializer,
)
from keras_bert_zoo.layers.self_attention import BertSelfAttention


@keras.saving.register_keras_serializable("keras_bert_zoo")
class BertEncoderBlock(keras.layers.Layer):
    """A post-LayerNorm transformer encoder layer, as in Devlin et al. 2018.

    `x = LayerNorm(x + Dropout(Attention(x)))`, then the same round the feed-forward
    network. `x` is a float tensor (batch, length, hidden_dim), `attention_mask` integers
    (batch, length), 1 where a real token stands, or (batch, length, length), 1 where a
    query may see a key; the output has the shape of `x`.

    Example:
        >>> block = BertEncoderBlock(hidden_dim=8, num_heads=2, intermediate_dim=16)
        >>> tuple(block(keras.ops.ones((1, 3, 8)), keras.ops.ones((1, 3))).shape)
        (1, 3, 8)
    """

    def __init__(
        self,
        hidden_dim: int,
        num_heads: int,
        intermediate_dim: int,
        hidden_activation: str = "gelu",
        dropout: float = 0.1,
        attention_dropout: float = 0.1,
        layer_norm_epsilon: float = 1e-12,
        causal: bool = False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_positive_int(intermediate_dim=intermediate_dim)
        check_rate(dropout=dropout)
        check_epsilon(layer_norm_epsilon)
        self.hidden_dim = hidden_dim
        self.num_heads = num_heads
        self.intermediate_dim = intermediate_dim
        self.hidden_activation = hidden_activation
        self.dropout_rate = dropout
        self.attention_dropout = attention_dropout
        self.layer_norm_epsilon = layer_norm_epsilon
        self.causal = causal

        common = {"dtype": self.dtype_policy}
        self.attention = BertSelfAttention(
            hidden_dim, num_heads, attention_dropout, causal, name="attention", **common
        )
        self.attention_layer_norm = keras.layers.LayerNormalization(
            epsilon=layer_norm_epsilon, name="attention_layer_norm", **common
        )
        self.intermediate_dense = keras.layers.Dense(
            intermediate_dim,
            activation=activation_function(hidden_activation),
            kernel_initializer=initializer(),
            name="intermediate",
            **common,
        )
        self.output_dense = keras.layers.Dense(
            hidden_dim, kernel_initializer=initializer(), name="output", **common
        )
        self.output_layer_norm = keras.layers.LayerNormalization(
            epsilon=layer_norm_epsilon, name="output_layer_norm", **common
        )
        self.dropout = keras.layers.Dropout(dropout, name="dropout", **common)

    def build(self, x_shape, attention_mask_shape=None):
        """Create the weights of both halves."""
        shape = (None, None, self.hidden_dim)
        self.attention.build(shape)
        self.attention_layer_norm.build(shape)
        self.intermediate_dense.build(shape)
        self.output_dense.build((None, None, self.intermediate_dim))
        self.output_layer_norm.build(shape)
        self.built = True

    def call(self, x, attention_mask, training=None):
        """Transform `x` (batch, length, hidden_dim)."""
        attended = self.attention(x, attention_mask, training=training)
        x = self.attention_layer_norm(x + self.dropout(attended, training=training))
        transformed = self.output_dense(self.intermediate_dense(x))
        return self.output_layer_norm(x + self.dropout(transformed, training=training))

    def compute_output_shape(self, x_shape, attention_mask_shape=None):
        """Return the shape of `x`."""
        return x_shape

    def get_config(self):
        """Return the constructor's arguments."""
        return {
            **super().get_config(),
            "hidden_dim": self.hidden_dim,
            "num_heads": self.num_heads,
            "intermediate_dim": self.intermediate_dim,
            "hidden_activation": self.hidden_activation,
            "dropout": self.dropout_rate,
            "attention_dropout": self.attention_dropout,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "causal": self.causal,
        }
