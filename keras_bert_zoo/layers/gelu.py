"""GELU, exact and by tanh, with the gradient of TensorFlow's in closed form."""

import math

import keras


def gelu(x, approximate: bool):
    """Return `x` times the chance that a normal number is below it (Hendrycks and Gimpel 2016).

    `x` are floats of any shape. With `approximate` the chance is by tanh, within 5e-4.

    Example:
        >>> [round(float(gelu(keras.ops.array(1.0), approximate=a)), 5) for a in (False, True)]
        [0.84134, 0.84119]
    """
    if keras.backend.backend() == "tensorflow":
        return _with_gradient(keras.ops.convert_to_tensor(x), approximate)
    return keras.ops.gelu(x, approximate=approximate)


if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    # Of the tanh form: the chance is sigmoid(SLOPE x + CUBIC x^3).
    _SLOPE = 2 * math.sqrt(2 / math.pi)
    _CUBIC = 0.044715 * _SLOPE

    def _with_gradient(x, approximate):
        # TensorFlow's own keeps every step of the formula and walks back through each.
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

        return apply(x)
