"""Products of two matrices, and a bias on them, as each backend is quickest at them."""

import keras
from keras import ops


def matrix_product(a, b):
    """Return the product of the matrices `a` (m, k) and `b` (k, n).

    Example:
        >>> matrix_product(keras.ops.ones((2, 3)), keras.ops.ones((3, 1))).shape[0]
        2
    """
    a, b = ops.convert_to_tensor(a), ops.convert_to_tensor(b)
    return _Product.apply(a, b) if _onednn_takes(a, b) else ops.matmul(a, b)


def product_with_rows(a, b):
    """Return the products of the rows of `a` (m, k) with the rows of `b` (n, k), (m, n).

    Example:
        >>> product_with_rows(keras.ops.ones((2, 3)), keras.ops.ones((1, 3))).shape[0]
        2
    """
    if keras.backend.backend() == "tensorflow":
        # Else the gradient is made for the transposed `b`, and turned over.
        return tf.matmul(a, b, transpose_b=True)
    return matrix_product(a, ops.transpose(b))


def add_bias(rows, bias):
    """Return `rows` (m, n) plus `bias` (n,).

    Example:
        >>> add_bias(keras.ops.ones((1, 2)), keras.ops.ones((2,))).shape[1]
        2
    """
    if keras.backend.backend() == "tensorflow":
        # The gradient of a plain sum adds the rows up three times as slowly.
        return tf.nn.bias_add(rows, bias)
    return rows + bias


if keras.backend.backend() == "torch":
    import torch

    class _Product(torch.autograd.Function):
        """A product by oneDNN. PyTorch's own is by MKL, half as fast on processors not Intel's."""

        @staticmethod
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            return torch.ops.mkldnn._linear_pointwise(a, b.t(), None, "none", [], "")

        @staticmethod
        def backward(ctx, gradient):
            a, b = ctx.saved_tensors
            to_a, to_b = ctx.needs_input_grad
            return (
                _Product.apply(gradient, b.t()) if to_a else None,
                _Product.apply(a.t(), gradient) if to_b else None,
            )

    def _onednn_takes(a, b):
        # Compilers and exporters know the plain product.
        return (
            a.device.type == b.device.type == "cpu"
            and a.dtype == b.dtype == torch.float32
            and torch.backends.mkldnn.is_available()
            and not torch.compiler.is_compiling()
            and not torch.jit.is_tracing()
        )

else:
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

    def _onednn_takes(a, b):
        return False
