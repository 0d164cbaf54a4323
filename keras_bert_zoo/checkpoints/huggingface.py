"""Hugging Face folders: `config.json`, safetensors weights, a WordPiece vocabulary.

The tables here are read both ways: this file loads by them, `huggingface_export` writes.
"""

import contextlib
import functools
import json
import pathlib
import pickle
import re
from collections.abc import Callable, Iterator

import keras
import numpy as np

from keras_bert_zoo.checkpoints.rules import (
    Rule,
    Tensors,
    merge_heads,
    same,
    split_heads,
    transposed,
)
from keras_bert_zoo.preprocessing import BertTokenizer

# === Configuration ===

# Our class, and theirs.
ARCHITECTURES = {
    "BertBackbone": "BertModel",
    "BertPretrainer": "BertForPreTraining",
    "BertMaskedLM": "BertForMaskedLM",
    "BertNextSentence": "BertForNextSentencePrediction",
    "BertTextClassifier": "BertForSequenceClassification",
    "BertTokenClassifier": "BertForTokenClassification",
    "BertMultipleChoice": "BertForMultipleChoice",
    "BertQuestionAnswerer": "BertForQuestionAnswering",
    "BertTextEmbedder": "BertModel",
}

# Our argument, their key, and the value their library takes where the key is absent.
BACKBONE_KEYS = {
    "vocabulary_size": ("vocab_size", 30522),
    "num_layers": ("num_hidden_layers", 12),
    "num_heads": ("num_attention_heads", 12),
    "hidden_dim": ("hidden_size", 768),
    "intermediate_dim": ("intermediate_size", 3072),
    "max_sequence_length": ("max_position_embeddings", 512),
    "num_segments": ("type_vocab_size", 2),
    "hidden_activation": ("hidden_act", "gelu"),
    "layer_norm_epsilon": ("layer_norm_eps", 1e-12),
    "dropout": ("hidden_dropout_prob", 0.1),
    "attention_dropout": ("attention_probs_dropout_prob", 0.1),
}
# Theirs and ours. Where they have several names for one, the first is written.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}
# Poolings of sentence-transformers, by the ends of their keys, and ours.
POOLINGS = {"mean_tokens": "mean", "cls_token": "cls", "max_tokens": "max"}
# Arguments of our masked-LM model: its head is as the encoder says.
MASKED_LM_HEAD = {}
# Keys that change what the model computes, with the one value this package computes.
_SUPPORTED_ONLY = {
    "is_decoder": False,
    "add_cross_attention": False,
    "position_embedding_type": "absolute",
    "pruned_heads": {},
    "quantization_config": None,
}


def read_config(folder: pathlib.Path) -> dict:
    """Return the folder's `config.json`.

    Raises:
        ValueError: it is no BERT, or a key changes the mathematics in a way that is not
            supported.
    """
    config = _json(folder / "config.json")
    model_type = config.get("model_type", "bert")
    if model_type != "bert" or "hidden_size" not in config:
        raise ValueError(
            f"{str(folder)!r} holds no BERT: its config.json says model_type={model_type!r}"
            + ("." if "hidden_size" in config else " and has no hidden_size.")
        )
    for key, supported in _SUPPORTED_ONLY.items():
        if config.get(key) and config[key] != supported:
            raise ValueError(
                f"The checkpoint in {str(folder)!r} has {key}={config[key]!r}, which this package "
                f"does not compute. Supported: {supported!r}."
            )
    return config


def backbone_arguments(config: dict) -> dict:
    """Return the arguments of `BertBackbone` that a `config.json` stands for.

    Raises:
        ValueError: the activation is not supported.

    Example:
        >>> backbone_arguments({"hidden_act": "gelu_new"})["hidden_activation"]
        'gelu_tanh'
    """
    arguments = {
        ours: value if config.get(key) is None else config[key]
        for ours, (key, value) in BACKBONE_KEYS.items()
    }
    activation = arguments["hidden_activation"]
    if activation not in ACTIVATIONS:
        raise ValueError(
            f"The checkpoint has hidden_act={activation!r}. Supported: {sorted(ACTIVATIONS)}."
        )
    return {**arguments, "hidden_activation": ACTIVATIONS[activation]}


def class_names(config: dict, num_classes: int) -> list[str] | None:
    """Return what the checkpoint calls its classes, or None where it has no names of its own."""
    stated = config.get("id2label") or {}
    numbers = [str(i) for i in range(num_classes)]
    if set(stated) != set(numbers):
        return None
    names = [stated[number] for number in numbers]
    made_up = all(re.fullmatch(r"LABEL_\d+", name) for name in names)
    return None if made_up else names


def encoder_folder(folder: pathlib.Path) -> pathlib.Path:
    """Return where the BERT is in a sentence-transformers folder; any other is its own."""
    path = _modules(folder).get("Transformer", "")
    return folder / path


def embedder_arguments(folder: pathlib.Path) -> dict:
    """Return `pooling` and `normalize` as a sentence-transformers folder states them, else {}.

    Raises:
        ValueError: the folder has a module or a pooling that is not supported.
    """
    modules = _modules(folder)
    if not modules:
        return {}
    unknown = sorted(set(modules) - {"Transformer", "Pooling", "Normalize"})
    if unknown:
        raise ValueError(
            f"The checkpoint in {str(folder)!r} has the modules {unknown}, which this package "
            "does not compute."
        )
    arguments = {"normalize": "Normalize" in modules}
    if "Pooling" in modules:
        arguments["pooling"] = _pooling(folder, _json(folder / modules["Pooling"] / "config.json"))
    return arguments


def _modules(folder):
    """Return the paths of a sentence-transformers folder's modules by their kinds."""
    modules = _json(folder / "modules.json") or []
    return {module["type"].rsplit(".", 1)[-1]: module["path"] for module in modules}


def _pooling(folder, settings):
    # Since their version 6 by name, before that by a switch for each.
    named = settings.get("pooling_mode", [])
    chosen = [named] if isinstance(named, str) else list(named)
    chosen += [
        POOLINGS.get(key.removeprefix("pooling_mode_"), key)
        for key, value in settings.items()
        if key.startswith("pooling_mode_") and value is True
    ]
    if len(chosen) != 1 or chosen[0] not in POOLINGS.values():
        raise ValueError(
            f"The checkpoint in {str(folder)!r} pools by {chosen}. Supported: one of "
            f"{sorted(POOLINGS.values())}."
        )
    return chosen[0]


def sequence_length(folder: pathlib.Path, max_sequence_length: int) -> int:
    """Return the most pieces of a text that the checkpoint is used with."""
    stated = (
        _json(folder / "sentence_bert_config.json").get("max_seq_length"),
        _json(folder / "tokenizer_config.json").get("model_max_length"),
    )
    # Where nothing was stated, their tokenizers write a number like 1e30.
    return int(min(length for length in (*stated, max_sequence_length) if length))


def stated_class(folder: pathlib.Path) -> str | None:
    """Return the name of our class that the checkpoint says it is of, or None.

    Example:
        >>> stated_class(pathlib.Path("nowhere")) is None
        True
    """
    if _modules(folder):
        return "BertTextEmbedder"
    named = (_json(folder / "config.json").get("architectures") or [None])[0]
    return next((ours for ours, theirs in ARCHITECTURES.items() if theirs == named), None)


# === Tokenizer ===


def read_tokenizer(folder: pathlib.Path, **switches) -> BertTokenizer:
    """Return the folder's tokenizer, with `switches` in place of what its files say.

    `tokenizer.json` is what transformers itself runs, so it comes first; then `vocab.txt`
    with `tokenizer_config.json`. Where no file states the casing, a vocabulary with capital
    letters is taken as cased: a lower-casing tokenizer could never use them.

    Raises:
        ValueError: there is no WordPiece vocabulary in the folder.
    """
    fast = _json(folder / "tokenizer.json")
    settings = _json(folder / "tokenizer_config.json")
    arguments = {
        "lowercase": settings.get("do_lower_case"),
        "strip_accents": settings.get("strip_accents"),
        "split_on_cjk": settings.get("tokenize_chinese_chars", True),
        "special_tokens_in_strings": settings.get("split_special_tokens") is False,
        "max_word_length": 100,
    }
    model = fast.get("model", {})
    if model.get("type", "WordPiece") == "WordPiece" and "vocab" in model:
        pieces = model["vocab"]
        arguments["vocabulary"] = sorted(pieces, key=pieces.get)
        arguments["max_word_length"] = model.get("max_input_chars_per_word", 100)
        normalizer = fast.get("normalizer") or {}
        if normalizer.get("type") == "BertNormalizer":
            arguments["lowercase"] = normalizer["lowercase"]
            arguments["strip_accents"] = normalizer["strip_accents"]
            arguments["split_on_cjk"] = normalizer["handle_chinese_chars"]
    elif (folder / "vocab.txt").exists():
        arguments["vocabulary"] = folder / "vocab.txt"
    else:
        raise ValueError(
            f"{str(folder)!r} has no WordPiece vocabulary: neither vocab.txt nor a tokenizer.json "
            "with one."
        )
    arguments.update(switches)
    if arguments["lowercase"] is None:
        tokenizer = BertTokenizer(**{**arguments, "lowercase": False})
        arguments["lowercase"] = not any(
            piece != piece.lower() for piece in tokenizer.vocabulary if not piece.startswith("[")
        )
    return BertTokenizer(**arguments)


# === Weights ===


def _dense(ours: str, theirs: str) -> list[Rule]:
    return [
        transposed(f"{ours}/kernel", f"{theirs}.weight"),
        same(f"{ours}/bias", f"{theirs}.bias"),
    ]


def _layer_norm(ours: str, theirs: str) -> list[Rule]:
    return [
        same(f"{ours}/gamma", f"{theirs}.weight"),
        same(f"{ours}/beta", f"{theirs}.bias"),
    ]


def _query_key_value(ours: str, theirs: str, num_heads: int) -> list[Rule]:
    def read(*tensors):
        return merge_heads([tensor.T for tensor in tensors], num_heads)

    def write(value):
        return tuple(part.T for part in split_heads(value, num_heads))

    parts = [f"{theirs}.{part}" for part in ("query", "key", "value")]
    return [
        Rule(f"{ours}/kernel", tuple(f"{part}.weight" for part in parts), read, write),
        Rule(f"{ours}/bias", tuple(f"{part}.bias" for part in parts), read, write),
    ]


def backbone_rules(num_layers: int, num_heads: int) -> list[Rule]:
    """Return the table of the encoder's variables and the tensors they are made of."""
    rules = [
        same(f"embeddings/{ours}/embeddings", f"embeddings.{theirs}.weight")
        for ours, theirs in (
            ("token_embedding", "word_embeddings"),
            ("segment_embedding", "token_type_embeddings"),
            ("position_embedding", "position_embeddings"),
        )
    ]
    rules += _layer_norm("embeddings/layer_norm", "embeddings.LayerNorm")
    for i in range(num_layers):
        ours, theirs = f"encoder_layer_{i}", f"encoder.layer.{i}"
        rules += [
            *_query_key_value(f"{ours}/attention/qkv", f"{theirs}.attention.self", num_heads),
            *_dense(f"{ours}/attention/output", f"{theirs}.attention.output.dense"),
            *_layer_norm(f"{ours}/attention_layer_norm", f"{theirs}.attention.output.LayerNorm"),
            *_dense(f"{ours}/intermediate", f"{theirs}.intermediate.dense"),
            *_dense(f"{ours}/output", f"{theirs}.output.dense"),
            *_layer_norm(f"{ours}/output_layer_norm", f"{theirs}.output.LayerNorm"),
        ]
    return rules


POOLER_RULES = _dense("pooler", "pooler.dense")

# A task's heads, by the names of its attributes.
HEAD_RULES = {
    "masked_lm_head": [
        *_dense("masked_lm_head/dense", "cls.predictions.transform.dense"),
        *_layer_norm("masked_lm_head/layer_norm", "cls.predictions.transform.LayerNorm"),
        same("masked_lm_head/bias", "cls.predictions.bias"),
    ],
    "next_sentence_head": _dense("next_sentence_head", "cls.seq_relationship"),
    "classifier_head": _dense("classifier_head", "classifier"),
    "qa_outputs": _dense("qa_outputs", "qa_outputs"),
}

# Buffers, and copies of tensors that stand elsewhere under their own name.
_NOT_WEIGHTS = re.compile(r"embeddings\.position_ids|cls\.predictions\.decoder\.weight")
_DECODER_BIAS = "cls.predictions.decoder.bias"
_OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


def standard_name(name: str) -> str:
    """Return a tensor's name without the `bert.` prefix and with LayerNorm's newer names.

    Example:
        >>> standard_name("bert.embeddings.LayerNorm.gamma")
        'embeddings.LayerNorm.weight'
    """
    name = name.removeprefix("bert.")
    for old, new in _OLD_NAMES.items():
        name = name.replace(old, new)
    return name


class _Tensors(Tensors):
    """A folder's tensors by standard name in float32; its weights alone are gone through."""

    def __init__(self, readers: dict[str, Callable[[], np.ndarray]]):
        readers = {standard_name(name): read for name, read in readers.items()}
        # The masked-LM bias has two names, and this is the one that transformers computes with.
        if _DECODER_BIAS in readers:
            readers["cls.predictions.bias"] = readers.pop(_DECODER_BIAS)
        super().__init__(readers, lambda name: readers[name]().astype("float32", copy=False))

    def __iter__(self) -> Iterator[str]:
        return (name for name in super().__iter__() if not _NOT_WEIGHTS.fullmatch(name))


@contextlib.contextmanager
def open_tensors(folder: pathlib.Path) -> Iterator[Tensors]:
    """Open the folder's weights: safetensors, or else a PyTorch `.bin`, whole or in shards.

    A `.bin` is a pickle. It is read by PyTorch's restricted reader, which makes tensors
    and nothing else.

    Raises:
        ValueError: the folder has no weights this can read; the message says what to do.
    """
    for whole, open_file in _OPENERS.items():
        index = folder / f"{whole}.index.json"
        names = sorted(set(_json(index).get("weight_map", {whole: whole}).values()))
        if not index.exists() and not (folder / whole).exists():
            continue
        readers = {}
        for name in names:
            if not (folder / name).exists():
                raise ValueError(f"{str(folder)!r} lacks the file {name!r} that its index names.")
            readers.update(open_file(folder / name))
        yield _Tensors(readers)
        return
    raise ValueError(
        f"{str(folder)!r} has no weights: none of {', '.join(_OPENERS)}, whole or in shards."
    )


def _open_safetensors(path):
    """Return what reads each tensor of the file."""
    # It teaches NumPy bfloat16.
    import ml_dtypes  # noqa: F401
    from safetensors import SafetensorError, safe_open

    def read(name):
        # Opened anew: an open file's pages stay in memory, a second copy of the weights.
        with safe_open(path, framework="numpy") as file:
            return file.get_tensor(name)

    try:
        with safe_open(path, framework="numpy") as file:
            return {name: functools.partial(read, name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{str(path)!r} is damaged or cut short: {error}.") from error


def _open_pickle(path):
    """Return what reads each tensor of the file."""
    try:
        import torch
    except ImportError as error:
        raise ValueError(
            f"{str(path)!r} is a PyTorch file; reading it needs PyTorch. Install torch, or save "
            "the checkpoint as model.safetensors."
        ) from error
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise ValueError(
            f"{str(path)!r} is damaged, or holds something else than tensors, which could run "
            f"any program: {str(error).splitlines()[0]}"
        ) from error
    return {name: lambda tensor=tensor: tensor.float().numpy() for name, tensor in state.items()}


# The first of these files that a folder has is read.
_OPENERS = {"model.safetensors": _open_safetensors, "pytorch_model.bin": _open_pickle}


# Three kinds of scores have the tensor name `classifier`; the checkpoint's class tells which.
_CLASSIFIERS = ("ForSequenceClassification", "ForTokenClassification", "ForMultipleChoice")


def _has_classifier(config: dict, tensors: Tensors, model_class: type[keras.Model]) -> bool:
    """Say whether the checkpoint has a `classifier` that scores what the model's scores."""
    named = (config.get("architectures") or [""])[0]
    ours = ARCHITECTURES[model_class.__name__].removeprefix("Bert")
    is_another = named.endswith(_CLASSIFIERS) and not named.endswith(ours)
    return "classifier.weight" in tensors and not is_another


def has_part(
    config: dict, tensors: Tensors, model: keras.Model, part: str, rules: list[Rule]
) -> bool:
    """Say whether the checkpoint has a part of the model, of the size the model wants.

    Raises:
        ValueError: the masked-LM head is not tied to the token table.
    """
    if any(name not in tensors for rule in rules for name in rule.theirs):
        return False
    if part == "classifier_head":
        size = tensors["classifier.bias"].shape[0]
        return (
            _has_classifier(config, tensors, type(model))
            and size == model.classifier_head.bias.shape[0]
        )
    decoder = "cls.predictions.decoder.weight"
    if part == "masked_lm_head" and decoder in tensors:
        table = tensors["embeddings.word_embeddings.weight"]
        if not np.array_equal(tensors[decoder], table):
            raise ValueError(
                "The checkpoint's masked-LM head has a table of its own; this package ties it to "
                "the token embeddings."
            )
    return True


def classifier_arguments(
    config: dict, tensors: Tensors, model_class: type[keras.Model], given: dict
) -> dict:
    """Return what a checkpoint's own classifier says of the arguments of `model_class`.

    `given` are the user's; where they ask for another number of classes the checkpoint's
    head is of no use, and nothing is said.

    Raises:
        ValueError: neither the checkpoint nor the user says how many classes there are.
    """
    names = given.get("class_names")
    wanted = given.get("num_classes", len(names) if names else None)
    own = None
    if _has_classifier(config, tensors, model_class):
        own = tensors["classifier.bias"].shape[0]
    if wanted is None and own is None:
        raise ValueError("`num_classes` is needed: the checkpoint has no classifier of its own.")
    if own is None or wanted not in (None, own):
        return {}
    arguments = {"num_classes": own, "class_names": class_names(config, own)}
    is_multi_label = config.get("problem_type") == "multi_label_classification"
    if is_multi_label and model_class.__name__ == "BertTextClassifier":
        arguments["activation"] = "sigmoid"
    if config.get("classifier_dropout") is not None:
        arguments["dropout"] = config["classifier_dropout"]
    return arguments


def _json(path):
    """Return the object in a JSON file (a list in `modules.json`), {} where there is no file."""
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{str(path)!r} is not JSON: {error}.") from error
    if not isinstance(content, list if path.name == "modules.json" else dict):
        raise ValueError(f"{str(path)!r} must hold a JSON object. Received: {content!r}.")
    return content
