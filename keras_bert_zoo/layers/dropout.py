"""Dropout that asks for a quarter of the random numbers, which cost more than the dropping."""

import math

import keras
from keras import ops


@keras.saving.register_keras_serializable("keras_bert_zoo")
class BertDropout(keras.layers.Dropout):
    """`keras.layers.Dropout` from eight random bits an entry, where Keras draws 32 for each.

    An entry goes where its bits, a number below 256, are below a threshold. The threshold is a
    whole number too, so it is drawn as well, once a call, from the two next to `256 * rate`: the
    chance to go is `rate` exactly. What stays is scaled by that call's own share.
    Off a processor PyTorch has a quick dropout of its own, which is used there.

    Example:
        >>> x = keras.ops.ones((2, 3))
        >>> tuple(BertDropout(0.5)(x, training=True).shape)
        (2, 3)
    """

    def __call__(self, inputs, training=None):
        """Drop entries of `inputs` in training; else return it without Keras's way to a call."""
        return inputs if training is False else super().__call__(inputs, training=training)

    def call(self, inputs, training=False):
        """Drop entries of `inputs`, floats of any shape, in training."""
        if not training or not self.rate or self.noise_shape or not draws_bytes(inputs):
            return super().call(inputs, training=training)
        uniform, numbers = self._draw(ops.shape(inputs))
        threshold = ops.minimum(ops.floor(256 * self.rate + uniform), 255)
        kept = numbers >= ops.cast(threshold, "uint8")
        scale = ops.cast(256 / (256 - threshold), inputs.dtype)
        return inputs * (ops.cast(kept, inputs.dtype) * scale)

    def _draw(self, shape):
        """Return a number in [0, 1), and bytes of `shape`."""
        if keras.backend.backend() == "torch":
            # Without a seed from PyTorch's own generator, as Keras's dropout.
            seed = None if self.seed is None else int(self.seed_generator.next().sum())
            return _random_numbers(shape, seed)
        uniform = keras.random.uniform((), seed=self.seed_generator)
        return uniform, _random_bytes(shape, self.seed_generator.next())


def _words_shape(shape):
    # By rows, so that where the rows are spread over devices the words are too.
    return (*shape[:-1], (shape[-1] + 3) // 4)


def _in_shape(words_bytes, shape):
    return ops.reshape(words_bytes, (*shape[:-1], -1))[..., : shape[-1]]


def draws_bytes(inputs) -> bool:
    """Say whether `inputs` are where eight bits an entry are quicker than the backend's own."""
    return keras.backend.backend() != "torch" or inputs.device.type == "cpu"


if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    def _random_bytes(shape, seed):
        words = tf.random.stateless_uniform(
            _words_shape(shape), tf.cast(seed, "int32"), None, None, "int32"
        )
        return _in_shape(tf.bitcast(words, "uint8"), shape)

elif keras.backend.backend() == "jax":
    import jax

    def _random_bytes(shape, seed):
        key = jax.random.wrap_key_data(seed, impl="threefry2x32")
        if jax.default_backend() == "tpu":
            # Its memory is in tiles of 128 entries, and an axis of four bytes would fill one each.
            return jax.random.bits(key, shape, "uint8")
        words = jax.random.bits(key, _words_shape(shape), "uint32")
        return _in_shape(jax.lax.bitcast_convert_type(words, "uint8"), shape)

else:
    import torch

    def _random_numbers(shape, seed):
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        count = math.prod(shape)
        words = torch.empty((count + 7) // 8, dtype=torch.int64)
        words.random_(-(2**63), None, generator=generator)
        numbers = words.view(torch.uint8)[:count].view(tuple(shape))
        return torch.rand((), generator=generator), numbers
