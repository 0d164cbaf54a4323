"""Models as files to serve: a SavedModel of strings, ONNX and LiteRT files of ids.

TensorFlow makes all three. A model on another backend, or in another dtype than float32 where
ids go in, is exported by a process of its own, which loads it from a preset.
"""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import keras

from keras_bert_zoo.models import preset_folder, whole_folder
from keras_bert_zoo.preprocessing import serving
from keras_bert_zoo.version import __version__
from keras_bert_zoo.whole_files import write_whole

SAVED_MODEL = "tf_saved_model"
# The files of ids, and their names in a folder.
FILES = {"onnx": "model.onnx", "litert": "model.tflite"}
FORMATS = (SAVED_MODEL, *FILES)
QUANTIZATIONS = ("int8",)

_FOLDER = "keras_bert_zoo export"
_DESCRIPTION = "export.json"


def write(
    model: keras.Model,
    filepath: str | os.PathLike,
    format: str,
    pairs: bool | None,
    quantize: str | None,
) -> None:
    """Write `model` as `filepath`, whole or not at all; `TextModel.export` says what.

    Raises:
        ValueError: an argument does not go with the format; or `filepath` holds something else.
        ImportError: the format needs a package that is not installed.
    """
    _check_arguments(format, pairs, quantize)
    path = pathlib.Path(filepath).resolve()
    is_file = format in FILES and path.suffix == pathlib.Path(FILES[format]).suffix
    if not is_file:
        whole_folder.check_free(path, _is_export, "what `export` wrote")
    is_float32 = model.dtype_policy.name == "float32"
    if keras.backend.backend() != "tensorflow" or not (is_float32 or format == SAVED_MODEL):
        _export_elsewhere(model, path, format, pairs, quantize)
    elif is_file:
        write_whole(path, _file_of_ids(model, _graph_of_ids(model), format, quantize))
    else:
        with whole_folder.written_whole(path) as building:
            if format == SAVED_MODEL:
                _write_saved_model(model, building, pairs)
            else:
                _write_folder_of_ids(model, building, format, quantize)


def _check_arguments(format, pairs, quantize):
    if quantize is not None and quantize not in QUANTIZATIONS:
        raise ValueError(
            f"`quantize` must be None or one of {QUANTIZATIONS}. Received: {quantize!r}."
        )
    if quantize is not None and format == SAVED_MODEL:
        raise ValueError(f"`quantize` is for ONNX and LiteRT files. Received: format={format!r}.")
    if pairs is not None and format in FILES:
        raise ValueError(
            f"`pairs` is for a SavedModel of strings; in {format} files `segment_ids` say which "
            f"text a piece is of. Received: pairs={pairs}."
        )
    if format == "onnx" and importlib.util.find_spec("tf2onnx") is None:
        raise ImportError('ONNX files need tf2onnx: `pip install "keras_bert_zoo[onnx]"`.')


def _is_export(folder):
    if (folder / "saved_model.pb").exists():
        return True
    try:
        text = (folder / _DESCRIPTION).read_text(encoding="utf-8")
        return json.loads(text).get("format") == _FOLDER
    except (OSError, ValueError):
        return False


def _export_elsewhere(model, path, format, pairs, quantize):
    """Export in a process that runs TensorFlow, on the processor."""
    with tempfile.TemporaryDirectory() as folder:
        preset = os.path.join(folder, "preset")
        preset_folder.write(model, preset)
        command = [sys.executable, "-m", "keras_bert_zoo", "export", preset, str(path)]
        command += ["--format", format]
        command += ["--quantize", quantize] if quantize else []
        command += [] if pairs is None else ["--pairs" if pairs else "--no-pairs"]
        done = subprocess.run(
            command,
            env={**os.environ, "KERAS_BACKEND": "tensorflow", "CUDA_VISIBLE_DEVICES": "-1"},
            capture_output=True,
            text=True,
        )
    if done.returncode == 2:
        raise ValueError(done.stderr.rpartition("error: ")[2].strip())
    if done.returncode:
        raise RuntimeError(f"The exporting process failed: {done.stderr[-2000:]}")


def _write_saved_model(model, folder, pairs):
    if model.preprocessor is None:
        graph = _graph_of_ids(model)
    else:
        shapes, function = model.serving_strings(pairs)
        graph = serving.graph_of(function, "string", shapes)
    serving.save_saved_model(folder, graph, _variables(model))


def _write_folder_of_ids(model, folder, format, quantize):
    """Write the file, the tokenizer's files, and what the inputs and outputs are."""
    graph = _graph_of_ids(model)
    (folder / FILES[format]).write_bytes(_file_of_ids(model, graph, format, quantize))
    description = {
        "format": _FOLDER,
        "version": __version__,
        "model": type(model).__name__,
        "quantize": quantize,
        "inputs": _axes(model),
        "outputs": serving.output_names(graph),
        "max_sequence_length": model.input_rules().max_length,
        "class_names": getattr(model, "class_names", None),
    }
    text = json.dumps(description, indent=1, ensure_ascii=False) + "\n"
    (folder / _DESCRIPTION).write_text(text, encoding="utf-8")
    if model.preprocessor is not None:
        # The formats know the models, and not the other way about.
        from keras_bert_zoo.checkpoints.huggingface_export import write_tokenizer

        write_tokenizer(model, folder)


def _file_of_ids(model, graph, format, quantize):
    int8 = quantize == "int8"
    if format == "onnx":
        return serving.onnx_file(graph, _axes(model), int8)
    return serving.litert_file(graph, _variables(model), int8)


def _graph_of_ids(model):
    """Return the graph from ids to named numbers; names of classes are left out."""
    shapes = _shapes(model)

    def serve(*ids):
        inputs = dict(zip(shapes, ids, strict=True))
        outputs = model.serving_outputs(model(inputs, training=False))
        return {name: x for name, x in outputs.items() if x.dtype != "string"}

    return serving.graph_of(serve, "int32", shapes)


def _shapes(model):
    """Return the shapes of the inputs that have to be given, by their names."""
    needed = model.input_rules().names
    return {name: x.shape for name, x in model.input.items() if name in needed}


def _axes(model):
    """Return what the axes of these inputs are called."""

    def last(name):
        return name if name == "mask_positions" else "length"

    return {
        name: ["batch", "choices", last(name)] if len(shape) == 3 else ["batch", last(name)]
        for name, shape in _shapes(model).items()
    }


def _variables(model):
    return [variable.value for variable in model.variables]
