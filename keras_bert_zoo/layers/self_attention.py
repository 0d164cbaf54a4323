"""Multi-head self-attention with one product for queries, keys and values."""

import keras
from keras import ops

from keras_bert_zoo.layers.common import check_heads, check_rate, initializer
from keras_bert_zoo.layers.dense import BertDense
from keras_bert_zoo.layers.dropout import BertDropout

if keras.backend.backend() == "jax":
    import jax
elif keras.backend.backend() == "torch":
    import torch


@keras.saving.register_keras_serializable("keras_bert_zoo")
class BertSelfAttention(keras.layers.Layer):
    """Scaled dot-product self-attention over `num_heads` heads (Vaswani et al. 2017).

    Inputs are `x`, a float tensor (batch, length, hidden_dim), and `attention_mask`,
    integers (batch, length) that are 1 where a real token stands, or (batch, length,
    length) that are 1 where a query may see a key; hidden keys have no weight at all, and
    a query without any key attends evenly instead of dividing by zero. The output has
    the shape of `x`, or is (batch, queries, hidden_dim) where `positions`, integers (batch,
    queries), says which positions alone are to attend. With `causal=True` a position sees
    itself and what is left of it.

    The kernel of `qkv` has shape (hidden_dim, num_heads * 3 * head_dim): a head's
    query, key and value columns lie together, so that splitting the columns over
    devices splits the heads.

    The backend's fused kernel does the work, if it has one, unless attention dropout is in force;
    nor does PyTorch's in training in bfloat16 on a processor.

    Example:
        >>> layer = BertSelfAttention(hidden_dim=8, num_heads=2)
        >>> tuple(layer(keras.ops.ones((1, 3, 8)), keras.ops.ones((1, 3))).shape)
        (1, 3, 8)
    """

    def __init__(
        self,
        hidden_dim: int,
        num_heads: int,
        attention_dropout: float = 0.1,
        causal: bool = False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_heads(hidden_dim, num_heads)
        check_rate(attention_dropout=attention_dropout)
        self.hidden_dim = hidden_dim
        self.num_heads = num_heads
        self.head_dim = hidden_dim // num_heads
        self.attention_dropout = attention_dropout
        self.causal = causal
        self.qkv = BertDense(
            3 * hidden_dim, kernel_initializer=initializer(), dtype=self.dtype_policy, name="qkv"
        )
        self.output_dense = BertDense(
            hidden_dim, kernel_initializer=initializer(), dtype=self.dtype_policy, name="output"
        )
        self.dropout = BertDropout(attention_dropout, dtype=self.dtype_policy, name="dropout")

    def build(self, x_shape, attention_mask_shape=None, positions_shape=None):
        """Create the two projections' weights."""
        self.qkv.build((None, None, self.hidden_dim))
        self.output_dense.build((None, None, self.hidden_dim))
        self.built = True

    def call(self, x, attention_mask, positions=None, training=None):
        """Mix the positions of `x` (batch, length, hidden_dim)."""
        drop = training and self.attention_dropout > 0
        fused = not drop and _has_fused_kernel(x)
        query, key, value = self._project(x, heads_first=not fused)
        mask = _head_mask(attention_mask)
        if positions is not None:
            query = _at(positions, query, axis=1 if fused else 2)
            mask = self._mask_at(positions, mask, ops.shape(x)[1])
        # Each query that is left has its own row of a mask by now.
        causal = self.causal and positions is None
        if not fused:
            context = self._context(self._scores(query, key, mask, causal), value, drop)
            context = ops.transpose(context, (0, 2, 1, 3))
        else:
            context = ops.dot_product_attention(
                query,
                key,
                value,
                mask=mask,
                is_causal=causal,
            )
        batch, queries = ops.shape(context)[0], ops.shape(context)[1]
        return self.output_dense(ops.reshape(context, (batch, queries, self.hidden_dim)))

    def attention_scores(self, x, attention_mask):
        """Return the attention probabilities, (batch, num_heads, length, length) floats."""
        query, key, _ = self._project(ops.cast(x, self.compute_dtype), heads_first=True)
        scores = self._scores(query, key, _head_mask(attention_mask), self.causal)
        return ops.cast(ops.softmax(scores), self.compute_dtype)

    def _project(self, x, heads_first):
        """Return three of (batch, length, num_heads, head_dim), or with the heads before it."""
        batch, length = ops.shape(x)[0], ops.shape(x)[1]
        qkv = ops.reshape(self.qkv(x), (batch, length, self.num_heads, 3, self.head_dim))
        if heads_first:
            return ops.unstack(ops.transpose(qkv, (3, 0, 2, 1, 4)), 3)
        return ops.unstack(qkv, 3, axis=3)

    def _mask_at(self, positions, mask, length):
        """Return the mask's rows for some positions."""
        positions = ops.expand_dims(positions, (1, 3))
        if mask.shape[2] != 1:
            mask = ops.take_along_axis(mask, positions, axis=2)
        if self.causal:
            before = positions >= ops.arange(length, dtype=positions.dtype)
            mask = ops.logical_and(mask, before)
        return mask

    def _scores(self, query, key, mask, causal):
        """Return (batch, num_heads, queries, keys), far below all others where a key is hidden."""
        scores = ops.matmul(query * self.head_dim**-0.5, ops.transpose(key, (0, 1, 3, 2)))
        if causal:
            positions = ops.arange(ops.shape(scores)[-1])
            mask = ops.logical_and(mask, positions[:, None] >= positions[None, :])
        # In float32, because a float16 softmax over hundreds of keys loses the small weights. No
        # score changes the sum with a number so large, yet it is finite: a row of padding only
        # gives an even softmax and not NaN.
        return ops.cast(scores, "float32") + ops.where(mask, 0.0, -1e30)

    def _context(self, scores, value, drop):
        """Return the values' mean by the softmax of the scores, the heads before the queries."""
        # XLA is quicker where the few sums divide the result, and not each of the many weights.
        # The result before that could be more than float16 has numbers for.
        late = keras.backend.backend() == "jax" and self.compute_dtype != "float16"
        if late:
            weights = ops.exp(scores - ops.stop_gradient(ops.max(scores, -1, keepdims=True)))
            total = ops.cast(ops.sum(weights, -1, keepdims=True), self.compute_dtype)
        else:
            weights = ops.softmax(scores)
        weights = self.dropout(ops.cast(weights, self.compute_dtype), training=drop)
        context = ops.matmul(weights, value)
        return context / total if late else context

    def compute_output_shape(self, x_shape, attention_mask_shape=None, positions_shape=None):
        """Return the shape of `x`, or of its rows at the positions."""
        return x_shape if positions_shape is None else (*positions_shape, x_shape[-1])

    def get_config(self):
        """Return the constructor's arguments."""
        return {
            **super().get_config(),
            "hidden_dim": self.hidden_dim,
            "num_heads": self.num_heads,
            "attention_dropout": self.attention_dropout,
            "causal": self.causal,
        }


def _has_fused_kernel(x):
    # What Keras calls instead on TensorFlow, and JAX on a processor, is a slower composition; so is
    # the gradient of PyTorch's kernel for processors in bfloat16, which computes in float32.
    if keras.backend.backend() == "jax":
        return jax.default_backend() != "cpu"
    if keras.backend.backend() == "torch":
        is_slow = x.device.type == "cpu" and x.dtype == torch.bfloat16 and torch.is_grad_enabled()
        return not is_slow
    return False


def _at(positions, query, axis):
    """Return the queries at some positions; `axis` is that of the positions."""
    others = tuple(i for i in range(1, 4) if i != axis)
    return ops.take_along_axis(query, ops.expand_dims(positions, others), axis=axis)


def _head_mask(attention_mask):
    """Return the mask with an axis for the heads, and one for the queries if it has none."""
    mask = ops.cast(attention_mask, "bool")
    # Slices that add axes are more than LiteRT takes.
    return ops.expand_dims(mask, (1, 2) if len(mask.shape) == 2 else 1)
