"""Dropout that asks for a quarter of the random numbers, which cost more than the dropping."""

import keras
from keras import ops


@keras.saving.register_keras_serializable("keras_bert_zoo")
class BertDropout(keras.layers.Dropout):
    """`keras.layers.Dropout` from eight random bits an entry, where Keras draws 32 for each.

    An entry goes where its bits, a number below 256, are below a threshold. The threshold is a
    whole number too, so it is drawn as well, once a call, from the two next to `256 * rate`: the
    chance to go is `rate` exactly. What stays is scaled by that call's own share.
    PyTorch's own dropout is as quick and is used there.

    Example:
        >>> x = keras.ops.ones((2, 3))
        >>> tuple(BertDropout(0.5)(x, training=True).shape)
        (2, 3)
    """

    def call(self, inputs, training=False):
        """Drop entries of `inputs`, floats of any shape, in training."""
        if _random_words is None or not training or not self.rate:
            return super().call(inputs, training=training)
        uniform = keras.random.uniform((), seed=self.seed_generator)
        threshold = ops.minimum(ops.floor(256 * self.rate + uniform), 255)
        kept = _random_bytes(ops.shape(inputs), self.seed_generator) >= ops.cast(threshold, "uint8")
        scale = ops.cast(256 / (256 - threshold), inputs.dtype)
        return inputs * (ops.cast(kept, inputs.dtype) * scale)


def _random_bytes(shape, seed_generator):
    """Return uint8 numbers, each as likely as any other."""
    # Words by rows, so that where the rows are spread over devices the words are too.
    words = _random_words((*shape[:-1], (shape[-1] + 3) // 4), seed_generator.next())
    rows = ops.reshape(_as_bytes(words), (*shape[:-1], -1))
    return rows[..., : shape[-1]]


if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    def _random_words(shape, seed):
        return tf.random.stateless_uniform(shape, tf.cast(seed, "int32"), None, None, "int32")

    def _as_bytes(words):
        return tf.bitcast(words, "uint8")

elif keras.backend.backend() == "jax":
    import jax

    def _random_words(shape, seed):
        key = jax.random.wrap_key_data(seed, impl="threefry2x32")
        return jax.random.bits(key, shape, "uint32")

    def _as_bytes(words):
        return jax.lax.bitcast_convert_type(words, "uint8")

else:
    _random_words = None
