"""The products are right, and their gradients of both orders."""

import keras
import numpy as np
import pytest

from keras_bert_zoo.layers.products import matrix_product, product_with_rows


def test_products_with_and_without_bias_are_those_of_numpy():
    rng = np.random.default_rng(0)
    a, b, bias = (rng.normal(size=shape).astype("float32") for shape in ((5, 3), (3, 4), (4,)))
    for product in (matrix_product(a, b, bias), product_with_rows(a, b.T.copy(), bias)):
        np.testing.assert_allclose(keras.ops.convert_to_numpy(product), a @ b + bias, rtol=1e-5)
    product = keras.ops.convert_to_numpy(matrix_product(a, b))
    np.testing.assert_allclose(product, a @ b, rtol=1e-5)


def test_a_bias_may_be_a_view_and_matrices_empty():
    ones = keras.ops.ones
    bias = keras.ops.broadcast_to(keras.ops.ones((1,)), (4,))
    product = keras.ops.convert_to_numpy(matrix_product(ones((2, 3)), ones((3, 4)), bias))
    np.testing.assert_array_equal(product, np.full((2, 4), 4))
    for a, b in (((2, 0), (0, 4)), ((0, 3), (3, 4))):
        product = keras.ops.convert_to_numpy(matrix_product(ones(a), ones(b)))
        np.testing.assert_array_equal(product, np.zeros((a[0], 4)))


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="the product by oneDNN is PyTorch's")
def test_gradients_of_both_orders_are_right():
    import torch

    generator = torch.Generator().manual_seed(0)
    shapes = ((4, 4), (4, 4), (4, 4), (4,))
    a, b, x, bias = (torch.randn(s, generator=generator, requires_grad=True) for s in shapes)

    def gradients(product):
        first = torch.autograd.grad(
            (product(a, b, bias).tanh() * x).sum(), (a, b, bias), create_graph=True
        )
        second = torch.autograd.grad(sum((g**2).sum() for g in first), (a, b, bias))
        return [*first, *second]

    def plain(a, b, bias):
        return a @ b + bias

    for ours, theirs in zip(gradients(matrix_product), gradients(plain), strict=True):
        torch.testing.assert_close(ours, theirs)
