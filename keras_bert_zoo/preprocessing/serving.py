"""A model's graph in the formats that are served: SavedModel, ONNX, LiteRT."""

import os
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from keras_bert_zoo.preprocessing.lazy_tensorflow import tf

# Smaller matrices stay as they are, as in LiteRT: there is nothing to gain.
_LEAST_INT8 = 1024


def graph_of(function: Callable, dtype: str, shapes: Mapping[str, Sequence]):
    """Return a `tf.function` of named tensors.

    Args:
        function: from tensors, in the order of `shapes`, to a dictionary of tensors.
        dtype: the tensors' dtype.
        shapes: the tensors' shapes by their names.
    """
    signature = [tf.TensorSpec(shape, dtype, name=name) for name, shape in shapes.items()]
    return tf.function(function, input_signature=signature)


def output_names(graph) -> list[str]:
    """Return the names of what a graph gives."""
    return list(graph.get_concrete_function().structured_outputs)


def save_saved_model(folder: str | os.PathLike, graph, variables: Sequence) -> None:
    """Write a SavedModel; of strings, a process that loads it needs tensorflow_text too.

    Args:
        folder: where to write.
        graph: what `graph_of` returned.
        variables: the `tf.Variable`s that it reads.
    """
    module = tf.Module()
    module.weights = list(variables)
    module.serve = graph
    tf.saved_model.save(module, os.fspath(folder), signatures={"serving_default": graph})


def onnx_file(graph, axes: Mapping[str, Sequence[str]], int8: bool) -> bytes:
    """Return an ONNX file.

    Args:
        graph: what `graph_of` returned.
        axes: what the inputs' axes are called.
        int8: keep large matrices as `int8_columns` gives them.
    """
    import onnx
    import tf2onnx

    model, _ = tf2onnx.convert.from_function(
        graph, graph.input_signature, opset=18, custom_op_handlers={"Erfc": (_write_erfc, [])}
    )
    for value in model.graph.input:
        for dimension, name in zip(value.type.tensor_type.shape.dim, axes[value.name], strict=True):
            dimension.dim_param = name
    if int8:
        _keep_int8(model.graph)
    # What the converter does not know it hands on.
    onnx.checker.check_model(model)
    return model.SerializeToString()


def litert_file(graph, variables: Sequence, int8: bool) -> bytes:
    """Return a LiteRT file that needs no operations but LiteRT's own.

    Args:
        graph: what `graph_of` returned.
        variables: the `tf.Variable`s that it reads.
        int8: quantize as LiteRT does where it has no sample of inputs: the weights before, what
            they are multiplied with as it comes.
    """
    module = tf.Module()
    module.weights = list(variables)
    converter = tf.lite.TFLiteConverter.from_concrete_functions(
        [graph.get_concrete_function()], module
    )
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
    converter.optimizations = [tf.lite.Optimize.DEFAULT] if int8 else []
    return converter.convert()


def int8_columns(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a matrix as integers from -127 to 127, and what each column is to be multiplied by.

    Example:
        >>> import numpy as np
        >>> integers, scales = int8_columns(np.array([[1.0, -254.0], [127.0, 3.0]]))
        >>> integers.tolist(), scales.tolist()
        ([[1, -127], [127, 2]], [1.0, 2.0])
    """
    scales = np.abs(matrix).max(axis=0) / 127
    scales = np.where(scales > 0, scales, 1).astype("float32")
    return np.round(matrix / scales).astype("int8"), scales


def _write_erfc(graph, node, name, arguments):
    """Write what TensorFlow's exact GELU is made of, which ONNX has not."""
    shape, dtype = graph.get_shape(node.output[0]), graph.get_dtype(node.output[0])
    graph.remove_node(node.name)
    erf = graph.make_node("Erf", node.input, shapes=[shape], dtypes=[dtype]).output[0]
    one = graph.make_const(f"{name}/one", np.float32(1)).output[0]
    graph.make_node(
        "Sub", [one, erf], name=name, outputs=node.output, shapes=[shape], dtypes=[dtype]
    )


def _keep_int8(graph):
    """Put integers and scales in the place of the matrices that are multiplied or looked up."""
    from onnx import numpy_helper

    matrices = {
        tensor.name: tensor
        for tensor in graph.initializer
        if len(tensor.dims) == 2 and np.prod(tensor.dims) >= _LEAST_INT8
    }
    nodes, kept = [], set()
    for node in graph.node:
        name = next((name for name in node.input if name in matrices), None)
        if name is None or node.op_type not in ("MatMul", "Gather"):
            nodes.append(node)
            continue
        kept.add(name)
        integers, scales = f"{name}/int8", f"{name}/scales"
        if node.op_type == "MatMul":
            floats = f"{node.name}/matrix"
            # Not -1: of axis 1 ONNX Runtime makes one product with integers.
            nodes += [_dequantize(integers, scales, floats, axis=1), node]
            node.input[list(node.input).index(name)] = floats
        else:
            # Only the rows that were looked up become floats.
            floats, rows = node.output[0], f"{node.output[0]}/int8"
            nodes += [node, _dequantize(rows, scales, floats, axis=-1)]
            node.input[0], node.output[0] = integers, rows
    for name in kept:
        integers, scales = int8_columns(numpy_helper.to_array(matrices[name]))
        graph.initializer.append(numpy_helper.from_array(integers, f"{name}/int8"))
        graph.initializer.append(numpy_helper.from_array(scales, f"{name}/scales"))
        graph.initializer.remove(matrices[name])
    del graph.node[:]
    graph.node.extend(nodes)


def _dequantize(integers, scales, floats, axis):
    from onnx import helper

    inputs = [integers, scales]
    return helper.make_node("DequantizeLinear", inputs, [floats], name=floats, axis=axis)
