"""The dense layer gives what Keras's gives."""

import keras
import numpy as np
import pytest

from keras_bert_zoo.layers.dense import BertDense


@pytest.mark.parametrize("shape", [(2, 3, 8), (5, 8), (0, 8)])
def test_outputs_are_those_of_keras(shape):
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    dense = BertDense(4, activation="relu", bias_initializer="ones")
    expected = np.maximum(x @ keras.ops.convert_to_numpy(dense.build(shape) or dense.kernel) + 1, 0)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(dense(x)), expected, rtol=1e-5, atol=1e-6)


def test_lora_is_of_the_layers_own_precision():
    x = keras.ops.ones((2, 3, 8))
    dense = BertDense(4, dtype="mixed_bfloat16")
    dense.build(x.shape)
    dense.enable_lora(2)
    assert keras.backend.standardize_dtype(dense(x).dtype) == "bfloat16"
    assert {variable.dtype for variable in dense.trainable_variables} == {"float32"}
