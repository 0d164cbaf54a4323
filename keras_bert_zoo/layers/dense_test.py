"""The dense layer gives what Keras's gives, gradients of both orders too."""

import keras
import numpy as np
import pytest

from keras_bert_zoo.layers.dense import BertDense, matrix_product


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


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="the product by oneDNN is PyTorch's")
def test_gradients_of_both_orders_are_right():
    import torch

    generator = torch.Generator().manual_seed(0)
    a, b, x = (torch.randn(4, 4, generator=generator, requires_grad=True) for _ in range(3))

    def gradients(product):
        first = torch.autograd.grad((product(a, b).tanh() * x).sum(), (a, b), create_graph=True)
        second = torch.autograd.grad(sum((g**2).sum() for g in first), (a, b))
        return [*first, *second]

    for ours, theirs in zip(gradients(matrix_product), gradients(torch.matmul), strict=True):
        torch.testing.assert_close(ours, theirs)
