"""One encoder layer: attention and feed-forward, each added back and then normalised."""

import keras

from keras_bert_zoo.layers.common import (
    activation_function,
    check_epsilon,
    check_positive_int,
    check_rate,
    initializer,
)
from keras_bert_zoo.layers.dense import BertDense
from keras_bert_zoo.layers.dropout import BertDropout
from keras_bert_zoo.layers.self_attention import BertSelfAttention


@keras.saving.register_keras_serializable("keras_bert_zoo")
class BertEncoderBlock(keras.layers.Layer):
    """A post-LayerNorm transformer encoder layer, as in Devlin et al. 2018.

    `x = LayerNorm(x + Dropout(Attention(x)))`, then the same round the feed-forward
    network. `x` is a float tensor (batch, length, hidden_dim), `attention_mask` integers
    (batch, length), 1 where a real token stands, or (batch, length, length), 1 where a
    query may see a key; the output has the shape of `x`. Where `positions`, integers (batch,
    queries), are given, it is (batch, queries, hidden_dim): the states at these positions
    alone, which see all others as ever.

    With `rematerialize=True` training keeps nothing of a layer but its input, and computes
    the rest again, with the same dropout, when the gradients need it (Chen et al. 2016).

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
        rematerialize: bool = False,
        **kwargs,
    ):
        # The layers inside cast for themselves. Here the weights are only handed on, so that
        # `_recomputed` keeps no cast copies of them.
        super().__init__(autocast=False, **kwargs)
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
        self.rematerialize = rematerialize

        common = {"dtype": self.dtype_policy}
        self.attention = BertSelfAttention(
            hidden_dim, num_heads, attention_dropout, causal, name="attention", **common
        )
        self.attention_layer_norm = keras.layers.LayerNormalization(
            epsilon=layer_norm_epsilon, name="attention_layer_norm", **common
        )
        self.intermediate_dense = BertDense(
            intermediate_dim,
            activation=activation_function(hidden_activation),
            kernel_initializer=initializer(),
            name="intermediate",
            **common,
        )
        self.output_dense = BertDense(
            hidden_dim, kernel_initializer=initializer(), name="output", **common
        )
        self.output_layer_norm = keras.layers.LayerNormalization(
            epsilon=layer_norm_epsilon, name="output_layer_norm", **common
        )
        self.dropout = BertDropout(dropout, name="dropout", **common)

    def build(self, x_shape, attention_mask_shape=None, positions_shape=None):
        """Create the weights of both halves."""
        shape = (None, None, self.hidden_dim)
        self.attention.build(shape)
        self.attention_layer_norm.build(shape)
        self.intermediate_dense.build(shape)
        self.output_dense.build((None, None, self.intermediate_dim))
        self.output_layer_norm.build(shape)
        self.built = True

    def call(self, x, attention_mask, positions=None, training=None):
        """Transform `x` (batch, length, hidden_dim)."""
        x = keras.ops.cast(x, self.compute_dtype)
        if training and self.rematerialize:
            return self._recomputed(x, attention_mask, positions)
        return self._transformed(x, attention_mask, positions, training)

    def _transformed(self, x, attention_mask, positions, training):
        attended = self.attention(x, attention_mask, positions, training=training)
        if positions is not None:
            x = keras.ops.take_along_axis(x, keras.ops.expand_dims(positions, 2), axis=1)
        x = self.attention_layer_norm(x + self.dropout(attended, training=training))
        transformed = self.output_dense(self.intermediate_dense(x))
        return self.output_layer_norm(x + self.dropout(transformed, training=training))

    def _recomputed(self, x, attention_mask, positions):
        # `keras.RematScope` draws other dropout in the second run, or fails. Here both runs begin
        # with the same seeds, and the first gives back the next ones.
        weights = self.weights
        is_weight = {id(weight) for weight in weights}
        seeds = [variable for variable in self.variables if id(variable) not in is_weight]
        first_seeds = [seed.value * 1 for seed in seeds]

        def transform(x, *values):
            state = [*zip(weights, values, strict=True), *zip(seeds, first_seeds, strict=True)]
            with keras.StatelessScope(state) as scope:
                x = self._transformed(x, attention_mask, positions, training=True)
            return x, *(scope.get_current_value(seed) for seed in seeds)

        x, *next_seeds = keras.remat(transform)(x, *(weight.value for weight in weights))
        for seed, value in zip(seeds, next_seeds, strict=True):
            seed.assign(value)
        return x

    def compute_output_shape(self, x_shape, attention_mask_shape=None, positions_shape=None):
        """Return the shape of `x`, or of its rows at the positions."""
        return x_shape if positions_shape is None else (*positions_shape, x_shape[-1])

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
            "rematerialize": self.rematerialize,
        }
