"""GELU in training, with the gradient of TensorFlow's in closed form."""

import functools
import math
from collections.abc import Callable

import keras


def in_training(activation: Callable) -> Callable:
    """Return what gives the numbers of `activation`, by a cheaper gradient if there is one.

    There is for `keras.ops.gelu` (Hendrycks and Gimpel 2016) on TensorFlow, which keeps every step
    of the formula and walks back through each. Files to serve keep its own: converters know it.

    Example:
        >>> gelu = functools.partial(keras.ops.gelu, approximate=False)
        >>> round(float(in_training(gelu)(keras.ops.array(1.0))), 5)
        0.84134
    """
    if keras.backend.backend() != "tensorflow":
        return activation
    if getattr(activation, "func", None) is not keras.ops.gelu:
        return activation
    return functools.partial(_gelu, **activation.keywords)


if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    # Of the tanh form: the chance is sigmoid(SLOPE x + CUBIC x^3).
    _SLOPE = 2 * math.sqrt(2 / math.pi)
    _CUBIC = 0.044715 * _SLOPE

    # As one XLA kernel each: TensorFlow's own kernels pass over the numbers once a sign.
    @tf.function(jit_compile=True)
    def _value(x, approximate):
        """Return `x` times the chance that a normal number is below it."""
        return x * _chance(x, approximate)

    @tf.function(jit_compile=True)
    def _gradient(x, upstream, approximate):
        """Return the gradient of `x` from that of its GELU."""
        chance = _chance(x, approximate)
        if approximate:
            slope = x * chance * (1 - chance) * (_SLOPE + 3 * _CUBIC * tf.square(x))
        else:
            slope = x * tf.exp(-0.5 * tf.square(x)) * (1 / math.sqrt(2 * math.pi))
        return upstream * (chance + slope)

    def _chance(x, approximate):
        if approximate:
            return tf.sigmoid(x * (_SLOPE + _CUBIC * tf.square(x)))
        return 0.5 + 0.5 * tf.math.erf(x * math.sqrt(0.5))

    def _gelu(x, approximate):
        @tf.custom_gradient
        def apply(x):
            return _value(x, approximate), lambda upstream: _gradient(x, upstream, approximate)

        return apply(tf.convert_to_tensor(x))
