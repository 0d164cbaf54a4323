"""KerasHub's presets: `config.json`, `model.weights.h5`, `task.json`, `assets/tokenizer`.

Folders are read as they stand, a tensor at a time. KerasHub itself is imported to write one and
to look a name up.
"""

import contextlib
import json
import os
import pathlib
import warnings
from collections.abc import Iterator

import keras
import numpy as np

from keras_bert_zoo.checkpoints.rules import (
    Rule,
    Tensors,
    check_all_written,
    check_expressible,
    masked_lm_choices,
    merge_heads,
    same,
    split_heads,
    their_tensors,
)
from keras_bert_zoo.models.whole_folder import check_free, written_whole
from keras_bert_zoo.preprocessing import BertTokenizer
from keras_bert_zoo.version import __version__

# === Configuration ===

# Arguments that the two encoders share by name.
_ARCHITECTURE = (
    "vocabulary_size",
    "num_layers",
    "num_heads",
    "hidden_dim",
    "intermediate_dim",
    "dropout",
    "max_sequence_length",
    "num_segments",
)
# What their code has no choice of: the encoder's activation and epsilon, the masked-LM head's
# as arguments of our model, and the characters of the longest word.
_ENCODER = ("gelu_tanh", 1e-12)
MASKED_LM_HEAD = {"head_activation": "gelu", "head_layer_norm_epsilon": 1e-5}
_MAX_WORD_LENGTH = 100
# A preset's files beside its weights and `config.json`; none need be there.
SMALL_FILES = (
    "task.json",
    "preprocessor.json",
    "tokenizer.json",
    "assets/tokenizer/vocabulary.txt",
)
# The names under which the library has registered its classes.
_REGISTERED = ("keras_hub>", "keras_nlp>")


def is_preset(folder: pathlib.Path) -> bool:
    """Say whether the folder's `config.json` is one of KerasHub's."""
    try:
        return _class_name(_json(folder / "config.json")) is not None
    except ValueError:
        return False


def read_config(folder: pathlib.Path) -> dict:
    """Return the folder's `config.json`, and its `task.json` as `task`.

    Raises:
        ValueError: it is no BERT.
    """
    config = _json(folder / "config.json")
    if _class_name(config) != "BertBackbone":
        raise ValueError(f"{str(folder)!r} holds no BERT but a {_class_name(config)}.")
    return {**config, "task": _json(folder / "task.json")}


def backbone_arguments(config: dict) -> dict:
    """Return the arguments of our `BertBackbone` that one of theirs stands for."""
    theirs = config["config"]
    activation, epsilon = _ENCODER
    return {
        **{name: theirs[name] for name in _ARCHITECTURE},
        "attention_dropout": theirs["dropout"],
        "hidden_activation": activation,
        "layer_norm_epsilon": epsilon,
    }


def stated_class(folder: pathlib.Path) -> str | None:
    """Return the name of our class that the preset's task is of, or None."""
    name = _class_name(_json(folder / "task.json"))
    return name if name in _WRITABLE else None


def sequence_length(folder: pathlib.Path, max_sequence_length: int) -> int:
    """Return the most pieces of a text that the preset is used with."""
    settings = _json(folder / "preprocessor.json").get("config", {})
    return min(settings.get("sequence_length") or max_sequence_length, max_sequence_length)


def read_tokenizer(folder: pathlib.Path, **switches) -> BertTokenizer:
    """Return the folder's tokenizer, with `switches` in place of what its file says.

    Raises:
        ValueError: there is none, or it cuts text in another way than by WordPiece.
    """
    tokenizer = _json(folder / "tokenizer.json")
    settings = tokenizer.get("config", {})
    expected = {"suffix_indicator": "##", "oov_token": "[UNK]", "split": True}
    odd = {
        key: settings[key] for key in expected if settings.get(key, expected[key]) != expected[key]
    }
    if _class_name(tokenizer) != "BertTokenizer" or odd:
        raise ValueError(
            f"The tokenizer in {str(folder)!r} must be a BertTokenizer with {expected}. Received: "
            f"{_class_name(tokenizer)} with {odd}."
        )
    arguments = {
        "lowercase": settings["lowercase"],
        "strip_accents": settings.get("strip_accents", False),
        "split_on_cjk": settings.get("split_on_cjk", True),
        "special_tokens_in_strings": settings.get("special_tokens_in_strings", False),
        "max_word_length": _MAX_WORD_LENGTH,
    }
    return BertTokenizer(
        folder / "assets" / "tokenizer" / "vocabulary.txt", **{**arguments, **switches}
    )


def embedder_arguments(folder: pathlib.Path) -> dict:
    """Return `pooling` and `normalize` as the preset of an embedder states them, else {}."""
    task = _json(folder / "task.json")
    if _class_name(task) != "BertTextEmbedder":
        return {}
    settings = task["config"]
    return {"pooling": settings["pooling_mode"], "normalize": settings["normalize"]}


def _json(path):
    """Return the object in a JSON file, {} where there is no file."""
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{str(path)!r} is not JSON: {error}.") from error
    return content if isinstance(content, dict) else {}


def _class_name(config):
    """Return the name of the KerasHub class that a configuration is of, or None."""
    registered = config.get("registered_name") or ""
    if not registered.startswith(_REGISTERED):
        return None
    return registered.partition(">")[2]


# === Weights ===

# A tensor's name is its file's and its place in it.
_MODEL, _TASK = "model.weights.h5", "task.weights.h5"


def _variables(ours: str, theirs: str, *names: str) -> list[Rule]:
    return [same(f"{ours}/{name}", f"{theirs}/vars/{i}") for i, name in enumerate(names)]


def _dense(ours: str, theirs: str) -> list[Rule]:
    return _variables(ours, theirs, "kernel", "bias")


def _layer_norm(ours: str, theirs: str) -> list[Rule]:
    return _variables(ours, theirs, "gamma", "beta")


def _query_key_value(ours: str, theirs: str, num_heads: int) -> list[Rule]:
    # Theirs have an axis of the heads and one of what a head sees.
    def read(*tensors):
        return merge_heads([x.reshape(*x.shape[:-2], -1) for x in tensors], num_heads)

    def write(value):
        parts = split_heads(value, num_heads)
        return tuple(part.reshape(*part.shape[:-1], num_heads, -1) for part in parts)

    parts = [f"{theirs}/{part}_dense" for part in ("query", "key", "value")]
    return [
        Rule(f"{ours}/{name}", tuple(f"{part}/vars/{i}" for part in parts), read, write)
        for i, name in enumerate(("kernel", "bias"))
    ]


def _attention_output(ours: str, theirs: str, num_heads: int) -> list[Rule]:
    kernel, bias = _dense(ours, theirs)
    kernel = kernel._replace(
        read=lambda tensor: tensor.reshape(-1, tensor.shape[-1]),
        write=lambda value: (value.reshape(num_heads, -1, value.shape[-1]),),
    )
    return [kernel, bias]


def backbone_rules(num_layers: int, num_heads: int) -> list[Rule]:
    """Return the table of the encoder's variables and the tensors they are made of."""
    layers = f"{_MODEL}/layers"
    rules = [
        *_variables("embeddings/token_embedding", f"{layers}/reversible_embedding", "embeddings"),
        *_variables("embeddings/segment_embedding", f"{layers}/embedding", "embeddings"),
        *_variables("embeddings/position_embedding", f"{layers}/position_embedding", "embeddings"),
        *_layer_norm("embeddings/layer_norm", f"{layers}/layer_normalization"),
    ]
    for i in range(num_layers):
        ours = f"encoder_layer_{i}"
        theirs = f"{layers}/transformer_encoder" + (f"_{i}" if i else "")
        attention = f"{theirs}/_self_attention_layer"
        rules += [
            *_query_key_value(f"{ours}/attention/qkv", attention, num_heads),
            *_attention_output(f"{ours}/attention/output", f"{attention}/output_dense", num_heads),
            *_layer_norm(f"{ours}/attention_layer_norm", f"{theirs}/_self_attention_layer_norm"),
            *_dense(f"{ours}/intermediate", f"{theirs}/_feedforward_intermediate_dense"),
            *_dense(f"{ours}/output", f"{theirs}/_feedforward_output_dense"),
            *_layer_norm(f"{ours}/output_layer_norm", f"{theirs}/_feedforward_layer_norm"),
        ]
    return rules


POOLER_RULES = _dense("pooler", f"{_MODEL}/layers/dense")

_MASKED_LM = f"{_TASK}/layers/masked_lm_head"
HEAD_RULES = {
    "masked_lm_head": [
        *_dense("masked_lm_head/dense", f"{_MASKED_LM}/_intermediate_dense"),
        *_layer_norm("masked_lm_head/layer_norm", f"{_MASKED_LM}/_intermediate_layer_norm"),
        *_variables("masked_lm_head", _MASKED_LM, "bias"),
    ],
    "classifier_head": _dense("classifier_head", f"{_TASK}/layers/dense"),
}


# === Reading ===


@contextlib.contextmanager
def open_tensors(folder: pathlib.Path) -> Iterator[Tensors]:
    """Open the folder's weights, whole or in shards, and its task's.

    Raises:
        ValueError: the folder has no weights, or a file is damaged.
    """
    import h5py

    shards = sorted(folder.glob("model*.weights.h5"))
    if not shards:
        raise ValueError(f"{str(folder)!r} has no weights: no {_MODEL}.")
    datasets = {}
    with contextlib.ExitStack() as stack:

        def open_file(name, path):
            def add(place, item):
                if isinstance(item, h5py.Dataset) and not place.startswith("optimizer/"):
                    datasets[f"{name}/{place}"] = item

            with _reading(path):
                stack.enter_context(h5py.File(path)).visititems(add)

        for path in shards:
            open_file(_MODEL, path)
        if (folder / _TASK).exists():
            open_file(_TASK, folder / _TASK)

        def get(name):
            dataset = datasets[name]
            with _reading(dataset.file.filename):
                # What HDF5 has no type for is kept as bytes, and its type beside it.
                kind = dataset.attrs.get("dtype")
                return dataset[()] if kind is None else dataset[()].view(_dtype(kind))

        yield Tensors(datasets, get)


def _dtype(name):
    import ml_dtypes

    return getattr(ml_dtypes, name)


@contextlib.contextmanager
def _reading(path):
    try:
        yield
    # What HDF5 says of a damaged file depends on where it is damaged.
    except (OSError, RuntimeError, KeyError) as error:
        raise ValueError(f"{str(path)!r} is damaged or cut short: {error}.") from error


def has_part(config: dict, tensors: Tensors, model, part: str, rules: list[Rule]) -> bool:
    """Say whether the preset has a part of the model, as the model computes it."""
    if any(name not in tensors for rule in rules for name in rule.theirs):
        return False
    if part == "masked_lm_head":
        head = model.masked_lm_head
        ours = dict(
            zip(MASKED_LM_HEAD, (head.hidden_activation, head.layer_norm_epsilon), strict=True)
        )
        if ours != MASKED_LM_HEAD:
            warnings.warn(
                f"KerasHub's masked-LM head is left out: it runs with {MASKED_LM_HEAD}, this "
                f"model's with {ours}.",
                stacklevel=5,
            )
            return False
    if part == "classifier_head":
        return _num_classes(config, type(model)) == model.classifier_head.bias.shape[0]
    return True


def _num_classes(config, model_class):
    """Return the classes of the preset's classifier, where the model scores texts too."""
    is_classifier = _class_name(config["task"]) in ("BertTextClassifier", "BertClassifier")
    if model_class.__name__ != "BertTextClassifier" or not is_classifier:
        return None
    return config["task"]["config"]["num_classes"]


def classifier_arguments(config: dict, tensors: Tensors, model_class: type, given: dict) -> dict:
    """Return what a preset's classifier says of the arguments of `model_class`.

    `given` are the user's; where they ask for another number of classes the preset's head is
    of no use, and nothing is said.

    Raises:
        ValueError: neither the preset nor the user says how many classes there are.
    """
    names = given.get("class_names")
    wanted = given.get("num_classes", len(names) if names else None)
    own = _num_classes(config, model_class)
    if wanted is None and own is None:
        raise ValueError("`num_classes` is needed: the preset has no classifier of its own.")
    if own is None or wanted not in (None, own):
        return {}
    settings = config["task"]["config"]
    activation = settings.get("activation")
    return {
        "num_classes": own,
        "activation": None if activation == "linear" else activation,
        "dropout": settings["dropout"],
    }


# === Writing ===

_LIBRARY = "KerasHub"
# The models that it has; each is called the same there.
_WRITABLE = ("BertBackbone", "BertMaskedLM", "BertTextClassifier", "BertTextEmbedder")
# What a folder says of who wrote it, so that the next export may take its place.
_WRITER_KEY = "keras_bert_zoo_version"


def write(model: keras.Model, folder: str | os.PathLike) -> None:
    """Write `model` into `folder` as a KerasHub preset, whole or not at all.

    Class names have no place there. KerasHub's own tokenizer cuts some texts otherwise.

    Raises:
        ValueError: KerasHub can't compute what the model does; or `folder` holds something
            else than such an export.
        ImportError: KerasHub is not installed.
    """
    import h5py

    folder = check_free(folder, _is_written, "a folder that `export_to_keras_hub` wrote")
    backbone = getattr(model, "backbone", model)
    check_expressible(_LIBRARY, _choices(model, backbone))
    rules = [*backbone_rules(backbone.num_layers, backbone.num_heads), *POOLER_RULES]
    for head in getattr(model, "heads", ()):
        rules += HEAD_RULES[head]
    check_all_written(_LIBRARY, model, rules)
    weights = {weight.path: weight for weight in model.weights}
    with written_whole(folder) as building:
        _save_their_model(model, backbone, building)
        with contextlib.ExitStack() as stack:
            files = {
                name: stack.enter_context(h5py.File(building / name, "r+"))
                for name in (_MODEL, _TASK)
                if (building / name).exists()
            }
            for name, tensor in their_tensors(weights, rules):
                file, _, place = name.partition("/")
                # Not by index: HDF5 would stretch a tensor of another shape.
                files[file][place].write_direct(np.ascontiguousarray(tensor, "float32"))
        path = building / "metadata.json"
        metadata = {**json.loads(path.read_text()), _WRITER_KEY: __version__}
        path.write_text(json.dumps(metadata, indent=4))
    tokenizer = getattr(model.preprocessor, "tokenizer", None)
    if tokenizer is not None and tokenizer.max_word_length != _MAX_WORD_LENGTH:
        warnings.warn(
            f"KerasHub's tokenizer reads words of up to {_MAX_WORD_LENGTH} bytes, this model's "
            f"up to {tokenizer.max_word_length} characters: longer ones become other pieces there.",
            stacklevel=3,
        )


def _choices(model, backbone):
    """Yield what of the model KerasHub may lack, how the model has it, and what it has."""
    activation, epsilon = _ENCODER
    yield "the model", type(model).__name__, _WRITABLE
    yield "hidden_activation", backbone.hidden_activation, [activation]
    yield "layer_norm_epsilon", backbone.layer_norm_epsilon, [epsilon]
    yield "attention_dropout", backbone.attention_dropout, [backbone.dropout]
    yield "causal", backbone.causal, [False]
    if type(model).__name__ == "BertTextEmbedder":
        yield "pooling", model.pooling, ["mean", "cls", "max"]
        yield "layers", model.layer_way, ["last"]
    if type(model).__name__ == "BertTextClassifier":
        yield "pooling", model.pooling, ["pooled"]
    yield from masked_lm_choices(model, *MASKED_LM_HEAD.values())
    if model.preprocessor is not None:
        tokenizer = model.preprocessor.tokenizer
        # They forget it when they save a tokenizer.
        yield "split_on_cjk", tokenizer.split_on_cjk, [True]
        yield "the vocabulary's having [MASK]", tokenizer.mask_token_id is not None, [True]
        yield "truncation", model.preprocessor.truncation, ["longest_first"]


def _save_their_model(model, backbone, folder):
    """Write their model of the same shape, which has new weights, and the tokenizer."""
    keras_hub = import_keras_hub()
    name = type(model).__name__
    arguments = {name: getattr(backbone, name) for name in _ARCHITECTURE}
    theirs = keras_hub.models.BertBackbone(**arguments, dtype="float32")
    preprocessor = model.preprocessor and _their_preprocessor(model.preprocessor, name)
    if model is not backbone:
        settings = {
            "BertTextClassifier": lambda: {
                "num_classes": model.num_classes,
                "activation": model.activation,
                "dropout": backbone.dropout if model.dropout is None else model.dropout,
            },
            "BertTextEmbedder": lambda: {
                "pooling_mode": model.pooling,
                "normalize": model.normalize,
            },
        }.get(name, dict)()
        task = getattr(keras_hub.models, name)
        theirs = task(theirs, preprocessor=preprocessor, **settings)
    elif preprocessor is not None:
        preprocessor.save_to_preset(folder)
    theirs.save_to_preset(folder)


def _their_preprocessor(preprocessor, model_name):
    keras_hub = import_keras_hub()
    switches = ("lowercase", "strip_accents", "special_tokens_in_strings")
    tokenizer = keras_hub.models.BertTokenizer(
        preprocessor.tokenizer.vocabulary,
        **{name: getattr(preprocessor.tokenizer, name) for name in switches},
    )
    if model_name == "BertBackbone":
        return tokenizer
    arguments = {"sequence_length": preprocessor.sequence_length}
    if model_name == "BertMaskedLM":
        rates = ("mask_selection_rate", "mask_token_rate", "random_token_rate")
        arguments |= {name: getattr(preprocessor.masker, name) for name in rates}
    return getattr(keras_hub.models, f"{model_name}Preprocessor")(tokenizer, **arguments)


def _is_written(folder):
    try:
        return _WRITER_KEY in _json(folder / "metadata.json")
    except ValueError:
        return False


# === Names ===


def import_keras_hub():
    """Return the module `keras_hub`.

    Raises:
        ImportError: it is not installed; the message says what to do.
    """
    try:
        import keras_hub
    except ImportError as error:
        raise ImportError(
            f"This needs KerasHub, which could not be imported: {error}. Install it with "
            "`pip install keras-hub`."
        ) from error
    return keras_hub


def kaggle_handle(name: str) -> str | None:
    """Return where KerasHub's preset of that name stands on Kaggle; None where it has none."""
    preset = import_keras_hub().models.BertBackbone.presets.get(name)
    return preset and preset["kaggle_handle"].removeprefix("kaggle://")
