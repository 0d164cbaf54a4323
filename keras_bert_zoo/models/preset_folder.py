"""A model in a folder of its own: `config.json`, `model.weights.h5`, `vocab.txt`.

`config.json` holds the model as Keras serialises it, compile settings and frozen layers
included. The vocabulary stands in `vocab.txt`, a piece a line, the
weights and the optimiser's state in Keras's own weights file, so every backend reads them.
"""

import functools
import json
import os
import pathlib

import keras

from keras_bert_zoo.models import whole_folder
from keras_bert_zoo.models.first_values import build_with_values
from keras_bert_zoo.models.whole_folder import written_whole

FORMAT = "keras_bert_zoo preset"
VERSION = 1
_BACKBONE = "keras_bert_zoo>BertBackbone"


def is_preset(folder: str | os.PathLike) -> bool:
    """Say whether `folder` holds a preset that `write` made."""
    try:
        return _read_config(pathlib.Path(folder))["format"] == FORMAT
    except (OSError, ValueError, KeyError, TypeError):
        return False


def write(model: keras.Model, folder: str | os.PathLike) -> None:
    """Write `model` into `folder`, whole or not at all, in place of a preset that stood there.

    Raises:
        ValueError: `folder` exists and holds something else, or the model is quantised.
    """
    for layer in model._flatten_layers():
        if getattr(layer, "quantization_mode", None):
            raise ValueError(
                f"The layer {layer.path!r} has been quantised to {layer.quantization_mode}, which "
                "a preset does not keep. Save the model before `quantize`; `export` has `quantize`."
            )
    with written_whole(check_free(folder)) as building:
        config = {
            "format": FORMAT,
            "version": VERSION,
            "model": keras.saving.serialize_keras_object(model),
        }
        tokenizer = _tokenizer_config(config["model"])
        if tokenizer is not None:
            model.preprocessor.tokenizer.save_vocabulary(building / "vocab.txt")
            tokenizer["vocabulary"] = "vocab.txt"
        text = json.dumps(config, indent=1, ensure_ascii=False) + "\n"
        (building / "config.json").write_text(text, encoding="utf-8")
        model.save_weights(building / "model.weights.h5")


def check_free(folder: str | os.PathLike) -> pathlib.Path:
    """Return the resolved folder if `write` may write there.

    Raises:
        ValueError: it exists and holds something else than a preset.
    """
    return whole_folder.check_free(folder, is_preset, "a preset of this package")


def class_name(folder: str | os.PathLike) -> str:
    """Return the name of the class of the model in `folder`."""
    return _checked_config(pathlib.Path(folder))["model"]["class_name"]


def read_tokenizer(folder: str | os.PathLike):
    """Return the tokenizer of the preset in `folder`, or None where it has none."""
    folder = pathlib.Path(folder)
    config = _checked_config(folder)
    _locate_vocabulary(config, folder)
    preprocessor = config["model"]["config"].get("preprocessor")
    return preprocessor and keras.saving.deserialize_keras_object(
        preprocessor["config"]["tokenizer"]
    )


def read(folder: str | os.PathLike, load_weights: bool = True, dtype=None) -> keras.Model:
    """Return the model that `write` put into `folder`, in another dtype if one is given.

    Raises:
        ValueError: the folder was written by a later version of the format, or its weights
            are damaged or missing.
    """
    folder = pathlib.Path(folder)
    config = _checked_config(folder)
    _locate_vocabulary(config, folder)
    if dtype is not None:
        arguments = config["model"]["config"]
        policy = keras.dtype_policies.serialize(keras.dtype_policies.get(dtype))
        arguments.get("backbone", {"config": arguments})["config"]["dtype"] = policy
    if not load_weights:
        return keras.saving.deserialize_keras_object(config["model"])
    model, loaded = _with_backbone(config["model"], folder)
    # The heads', and what the optimiser keeps.
    _load_weights(model, folder, loaded)
    return model


def _with_backbone(model_config, folder):
    """Return a model whose backbone has its weights, and the layers that have theirs.

    The backbone is nearly all of a model, and here it is not made at random before it is read.
    """
    make = functools.partial(keras.saving.deserialize_keras_object, model_config)
    arguments = model_config["config"]
    is_task = "backbone" in arguments
    backbone_config = arguments["backbone"] if is_task else model_config
    # A class of another's may have variables that cannot be made so; and the file of a task that
    # reads several layers has these in the backbone's place.
    is_layer = arguments.get("layers", "last") == "last"
    if backbone_config["registered_name"] != _BACKBONE or not is_layer:
        return make(), []
    compiled = backbone_config.pop("compile_config", None)

    def fill(backbone):
        if not is_task:
            _load_weights(backbone, folder)
            return
        # In a task's file the backbone stands as a layer of it. Its name may be an input's.
        inputs = {
            name: keras.Input(batch_shape=tensor.shape, dtype=tensor.dtype)
            for name, tensor in backbone.input.items()
        }
        _load_weights(keras.Model(list(inputs.values()), backbone(inputs)), folder)

    backbone = build_with_values(
        functools.partial(keras.saving.deserialize_keras_object, backbone_config), fill
    )
    if compiled:
        backbone.compile_from_config(compiled)
    layers = backbone._flatten_layers(include_self=is_task)
    if not is_task:
        return backbone, layers
    arguments["backbone"] = backbone
    return make(), layers


def _load_weights(model, folder, layers_to_skip=None):
    try:
        model.load_weights(folder / "model.weights.h5", objects_to_skip=layers_to_skip)
    # What HDF5 says of a damaged file depends on where it is damaged.
    except (OSError, RuntimeError, KeyError) as error:
        raise ValueError(
            f"The weights of the preset {str(folder)!r} are damaged, cut short or missing: {error}."
        ) from error


def _checked_config(folder):
    config = _read_config(folder)
    if config.get("version") != VERSION:
        raise ValueError(
            f"The preset {str(folder)!r} has format version {config.get('version')!r}; this "
            f"version of keras_bert_zoo reads version {VERSION}."
        )
    return config


def _locate_vocabulary(config, folder):
    tokenizer = _tokenizer_config(config["model"])
    if tokenizer is not None:
        tokenizer["vocabulary"] = str(folder / tokenizer["vocabulary"])


def _read_config(folder):
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))


def _tokenizer_config(model_config):
    """Return the tokenizer's part of a serialised model, to be changed in place, or None."""
    preprocessor = model_config["config"].get("preprocessor")
    return preprocessor and preprocessor["config"]["tokenizer"]["config"]
