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

    def _gelu(x, approximate):
        """Return `x` times the chance that a normal number is below it."""

        @tf.custom_gradient
        def apply(x):
            if approximate:
                chance = tf.sigmoid(x * (_SLOPE + _CUBIC * tf.square(x)))
            else:
                chance = 0.5 + 0.5 * tf.math.erf(x * math.sqrt(0.5))
            y = x * chance

            def gradient(upstream):
                if approximate:
                    slope = y * (1 - chance) * (_SLOPE + 3 * _CUBIC * tf.square(x))
                else:
                    slope = x * tf.exp(-0.5 * tf.square(x)) * (1 / math.sqrt(2 * math.pi))
                return upstream * (chance + slope)

            return y, gradient

        return apply(tf.convert_to_tensor(x))
