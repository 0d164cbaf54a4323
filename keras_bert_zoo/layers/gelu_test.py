"""GELU's gradient in closed form is that of its definition."""

import math

import keras
import numpy as np
import pytest

from keras_bert_zoo.layers.common import activation_function
from keras_bert_zoo.layers.gelu import in_training


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="the closed form is TensorFlow's"
)
@pytest.mark.parametrize("approximate", [False, True])
def test_the_gradient_is_the_slope_of_the_definition(approximate):
    import tensorflow as tf

    def definition(x):
        if approximate:
            inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
            return 0.5 * x * (1 + np.tanh(inner))
        return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))

    x = np.linspace(-6, 6, 49)
    slopes = (definition(x + 1e-5) - definition(x - 1e-5)) / 2e-5
    inputs = tf.constant(x, "float32")
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        name = "gelu_tanh" if approximate else "gelu"
        outputs = in_training(activation_function(name))(inputs)
    np.testing.assert_allclose(outputs, definition(x), atol=1e-6)
    np.testing.assert_allclose(tape.gradient(outputs, inputs), slopes, atol=2e-6)
