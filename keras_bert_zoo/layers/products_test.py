"""The products are right, and their gradients of both orders."""

import keras
import numpy as np
import pytest

from keras_bert_zoo.layers.products import add_bias, matrix_product, product_with_rows


def test_products_and_sums_are_those_of_numpy():
    rng = np.random.default_rng(0)
    a, b, bias = (rng.normal(size=shape).astype("float32") for shape in ((5, 3), (3, 4), (4,)))
    for product in (matrix_product(a, b), product_with_rows(a, b.T.copy())):
        total = add_bias(keras.ops.convert_to_tensor(product), keras.ops.convert_to_tensor(bias))
        np.testing.assert_allclose(keras.ops.convert_to_numpy(total), a @ b + bias, rtol=1e-5)


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
