"""Products of two matrices, and a bias on them, as each backend is quickest at them."""

import keras
from keras import ops


def matrix_product(a, b, bias=None):
    """Return the product of the matrices `a` (m, k) and `b` (k, n), plus `bias` (n,).

    Example:
        >>> matrix_product(keras.ops.ones((2, 3)), keras.ops.ones((3, 1))).shape[0]
        2
    """
    a, b = ops.convert_to_tensor(a), ops.convert_to_tensor(b)
    if bias is not None:
        bias = ops.convert_to_tensor(bias)
    if _onednn_takes(a, b, bias):
        return _Product.apply(a, b, bias)
    return _add_bias(ops.matmul(a, b), bias)


def product_with_rows(a, b, bias=None):
    """Return the products of the rows of `a` (m, k) with those of `b` (n, k), plus `bias` (n,).

    Example:
        >>> product_with_rows(keras.ops.ones((2, 3)), keras.ops.ones((1, 3))).shape[0]
        2
    """
    if keras.backend.backend() == "tensorflow":
        # Else the gradient is made for the transposed `b`, and turned over.
        return _add_bias(tf.matmul(a, b, transpose_b=True), bias)
    return matrix_product(a, ops.transpose(b), bias)


def _add_bias(rows, bias):
    if bias is None:
        return rows
    if keras.backend.backend() == "tensorflow":
        # The gradient of a plain sum adds the rows up three times as slowly.
        return tf.nn.bias_add(rows, bias)
    return rows + bias


if keras.backend.backend() == "torch":
    import torch

    class _Product(torch.autograd.Function):
        """A product by oneDNN. PyTorch's own is by MKL, half as fast on processors not Intel's."""

        @staticmethod
        def forward(ctx, a, b, bias):
            ctx.save_for_backward(a, b)
            # Of a bias it takes the memory as it lies.
            bias = bias if bias is None else bias.contiguous()
            return torch.ops.mkldnn._linear_pointwise(a, b.t(), bias, "none", [], "")

        @staticmethod
        def backward(ctx, gradient):
            a, b = ctx.saved_tensors
            to_a, to_b, to_bias = ctx.needs_input_grad
            return (
                _Product.apply(gradient, b.t(), None) if to_a else None,
                _Product.apply(a.t(), gradient, None) if to_b else None,
                gradient.sum(0) if to_bias else None,
            )

    def _onednn_takes(*tensors):
        # Compilers and exporters know the plain product.
        return (
            all(
                tensor is None
                or (
                    tensor.device.type == "cpu" and tensor.dtype == torch.float32 and tensor.numel()
                )
                for tensor in tensors
            )
            and torch.backends.mkldnn.is_available()
            and not torch.compiler.is_compiling()
            and not torch.jit.is_tracing()
        )

else:
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

    def _onednn_takes(*tensors):
        return False
