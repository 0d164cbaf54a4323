"""The authors' TF1 checkpoints: `bert_config.json`, `vocab.txt`, `bert_model.ckpt.*`.

TensorFlow alone reads and writes their files, so it is imported with the first one.
"""

import contextlib
import json
import logging
import os
import pathlib
import re
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
    transposed,
)
from keras_bert_zoo.layers.common import INITIALIZER_RANGE
from keras_bert_zoo.models.whole_folder import check_free, written_whole
from keras_bert_zoo.preprocessing import BertTokenizer
from keras_bert_zoo.preprocessing.lazy_tensorflow import tf

logger = logging.getLogger("keras_bert_zoo")

CONFIG_FILE = "bert_config.json"
_PREFIX = "bert_model.ckpt"
_WRITTEN_FILES = {
    CONFIG_FILE,
    "vocab.txt",
    f"{_PREFIX}.index",
    f"{_PREFIX}.data-00000-of-00001",
}

# === Configuration ===

# Our argument <-> their key, and the value their code takes where the key is absent.
_ARCHITECTURE = {
    "vocabulary_size": ("vocab_size", None),
    "num_layers": ("num_hidden_layers", 12),
    "num_heads": ("num_attention_heads", 12),
    "hidden_dim": ("hidden_size", 768),
    "intermediate_dim": ("intermediate_size", 3072),
    "max_sequence_length": ("max_position_embeddings", 512),
    "num_segments": ("type_vocab_size", 16),
    "hidden_activation": ("hidden_act", "gelu"),
    "dropout": ("hidden_dropout_prob", 0.1),
    "attention_dropout": ("attention_probs_dropout_prob", 0.1),
}
# Their `gelu` is the tanh approximation, and the weights were trained with it. Hugging Face's
# conversions of the same weights say "gelu" too, and run the exact form there.
_ACTIVATIONS = {"gelu": "gelu_tanh", "relu": "relu", "tanh": "tanh"}
# Arguments of our masked-LM model: its head is as the encoder says.
MASKED_LM_HEAD = {}
# What their code has no choice of.
_EPSILON = 1e-12
_MAX_WORD_LENGTH = 200


def is_checkpoint(folder: pathlib.Path) -> bool:
    """Say whether the folder has the authors' configuration, and no other."""
    return (folder / CONFIG_FILE).exists() and not (folder / "config.json").exists()


def read_config(folder: pathlib.Path) -> dict:
    """Return the folder's `bert_config.json`.

    Raises:
        ValueError: it is not JSON or has no `vocab_size`, or the model it describes is not BERT.
    """
    path = folder / CONFIG_FILE
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{str(path)!r} is not JSON: {error}.") from error
    if not isinstance(config, dict) or "vocab_size" not in config:
        raise ValueError(f"{str(path)!r} has no vocab_size: it describes no BERT.")
    if config.get("directionality", "bidi") != "bidi":
        raise ValueError(
            f"{str(path)!r} has directionality={config['directionality']!r}. Supported: 'bidi'."
        )
    return config


def backbone_arguments(config: dict) -> dict:
    """Return the arguments of `BertBackbone` that a `bert_config.json` stands for.

    Raises:
        ValueError: the activation is not supported.

    Example:
        >>> backbone_arguments({"vocab_size": 100})["hidden_activation"]
        'gelu_tanh'
    """
    arguments = {ours: config.get(key, default) for ours, (key, default) in _ARCHITECTURE.items()}
    activation = arguments["hidden_activation"]
    if activation not in _ACTIVATIONS:
        raise ValueError(
            f"The checkpoint has hidden_act={activation!r}. Supported: {sorted(_ACTIVATIONS)}."
        )
    arguments["hidden_activation"] = _ACTIVATIONS[activation]
    return {**arguments, "layer_norm_epsilon": _EPSILON}


def stated_class(folder: pathlib.Path) -> None:
    """Return None: their checkpoints say what they are by their tensors alone."""
    return None


def sequence_length(folder: pathlib.Path, max_sequence_length: int) -> int:
    """Return `max_sequence_length`: their checkpoints say nothing of the length of texts."""
    return max_sequence_length


def read_tokenizer(folder: pathlib.Path, **switches) -> BertTokenizer:
    """Return the folder's tokenizer, with `switches` in place of what is known of it.

    No file states the casing, which their programs take as a flag. A vocabulary with capital
    letters is cased: a lower-casing tokenizer could never use them. `[CLS]` and the Chinese
    vocabulary's `<S>` are no words.

    Raises:
        ValueError: there is no `vocab.txt`.
    """
    path = folder / "vocab.txt"
    if not path.exists():
        raise ValueError(f"{str(folder)!r} has no vocab.txt.")
    arguments = {"max_word_length": _MAX_WORD_LENGTH, **switches}
    if arguments.get("lowercase") is None:
        pieces = BertTokenizer(path, lowercase=False).vocabulary
        arguments["lowercase"] = _is_uncased(pieces)
    return BertTokenizer(path, **arguments)


def _is_uncased(pieces):
    return all(piece == piece.lower() for piece in pieces if not piece.startswith(("[", "<")))


# === Weights ===


def _dense(ours: str, theirs: str) -> list[Rule]:
    return [same(f"{ours}/kernel", f"{theirs}/kernel"), same(f"{ours}/bias", f"{theirs}/bias")]


def _output_layer(ours: str, theirs: str) -> list[Rule]:
    return [
        transposed(f"{ours}/kernel", f"{theirs}output_weights"),
        same(f"{ours}/bias", f"{theirs}output_bias"),
    ]


def _layer_norm(ours: str, theirs: str) -> list[Rule]:
    return [same(f"{ours}/gamma", f"{theirs}/gamma"), same(f"{ours}/beta", f"{theirs}/beta")]


def _query_key_value(ours: str, theirs: str, num_heads: int) -> list[Rule]:
    return [
        Rule(
            f"{ours}/{name}",
            tuple(f"{theirs}/{part}/{name}" for part in ("query", "key", "value")),
            lambda *tensors: merge_heads(tensors, num_heads),
            lambda value: tuple(split_heads(value, num_heads)),
        )
        for name in ("kernel", "bias")
    ]


def backbone_rules(num_layers: int, num_heads: int) -> list[Rule]:
    """Return the table of the encoder's variables and the tensors they are made of."""
    rules = [
        same(f"embeddings/{ours}/embeddings", f"bert/embeddings/{theirs}")
        for ours, theirs in (
            ("token_embedding", "word_embeddings"),
            ("segment_embedding", "token_type_embeddings"),
            ("position_embedding", "position_embeddings"),
        )
    ]
    rules += _layer_norm("embeddings/layer_norm", "bert/embeddings/LayerNorm")
    for i in range(num_layers):
        ours, theirs = f"encoder_layer_{i}", f"bert/encoder/layer_{i}"
        rules += [
            *_query_key_value(f"{ours}/attention/qkv", f"{theirs}/attention/self", num_heads),
            *_dense(f"{ours}/attention/output", f"{theirs}/attention/output/dense"),
            *_layer_norm(f"{ours}/attention_layer_norm", f"{theirs}/attention/output/LayerNorm"),
            *_dense(f"{ours}/intermediate", f"{theirs}/intermediate/dense"),
            *_dense(f"{ours}/output", f"{theirs}/output/dense"),
            *_layer_norm(f"{ours}/output_layer_norm", f"{theirs}/output/LayerNorm"),
        ]
    return rules


POOLER_RULES = _dense("pooler", "bert/pooler/dense")

HEAD_RULES = {
    "masked_lm_head": [
        *_dense("masked_lm_head/dense", "cls/predictions/transform/dense"),
        *_layer_norm("masked_lm_head/layer_norm", "cls/predictions/transform/LayerNorm"),
        same("masked_lm_head/bias", "cls/predictions/output_bias"),
    ],
    "next_sentence_head": _output_layer("next_sentence_head", "cls/seq_relationship/"),
    "classifier_head": _output_layer("classifier_head", ""),
    "qa_outputs": _output_layer("qa_outputs", "cls/squad/"),
}


# === Reading ===

_OPTIMIZER = re.compile(r"global_step|beta[12]_power|.*/(adam_[mv]|Adam(_1)?|LAMB(_1)?)")


@contextlib.contextmanager
def open_tensors(folder: pathlib.Path) -> Iterator[Tensors]:
    """Open the folder's weights, the optimiser's slots left out and counted in the log.

    Raises:
        ValueError: the folder has no checkpoint, or several and no word on which is meant;
            or its files are damaged.
    """
    prefix = _prefix(folder)
    with _reading(prefix):
        reader = tf.train.load_checkpoint(str(prefix))
        stored = list(reader.get_variable_to_shape_map())

    def get(name):
        with _reading(prefix):
            return reader.get_tensor(name)

    tensors = Tensors((name for name in stored if not _OPTIMIZER.fullmatch(name)), get)
    if len(tensors) < len(stored):
        num_skipped = len(stored) - len(tensors)
        logger.info("%s: skipped %d tensors of the optimiser.", folder, num_skipped)
    yield tensors


@contextlib.contextmanager
def _reading(prefix):
    try:
        yield
    # TensorFlow does not translate all that its reader raises.
    except (tf.errors.OpError, IndexError, RuntimeError) as error:
        raise ValueError(
            f"The checkpoint {str(prefix)!r} is damaged or cut short: {error}"
        ) from error


def _prefix(folder):
    """Return the path of the checkpoint without `.index`."""
    found = sorted(path.with_suffix("") for path in folder.glob("*.index"))
    state = tf.train.get_checkpoint_state(str(folder))
    # The file `checkpoint` may name a path of the machine it was written on.
    latest = folder / pathlib.PurePath(state.model_checkpoint_path).name if state else None
    for preferred in (latest, folder / _PREFIX, *(found if len(found) == 1 else ())):
        if preferred in found:
            return preferred
    if not found:
        raise ValueError(f"{str(folder)!r} has no weights: no file {_PREFIX}.index.")
    raise ValueError(
        f"{str(folder)!r} has the checkpoints {[path.name for path in found]}, and no file "
        "`checkpoint` that says which is meant. Leave one of them there."
    )


def has_part(config: dict, tensors: Tensors, model, part: str, rules: list[Rule]) -> bool:
    """Say whether the checkpoint has a part of the model, of the size the model wants."""
    if any(name not in tensors for rule in rules for name in rule.theirs):
        return False
    if part == "classifier_head":
        return _num_classes(tensors, type(model)) == model.classifier_head.bias.shape[0]
    return True


def _num_classes(tensors, model_class):
    """Return the classes of a `run_classifier` checkpoint, where the model scores texts too."""
    if model_class.__name__ != "BertTextClassifier" or "output_bias" not in tensors:
        return None
    return tensors["output_bias"].shape[0]


def embedder_arguments(folder: pathlib.Path) -> dict:
    """Return nothing: their checkpoints say nothing of pooling."""
    return {}


def classifier_arguments(config: dict, tensors: Tensors, model_class: type, given: dict) -> dict:
    """Return the number of classes of a `run_classifier` checkpoint, where the user gives none.

    Raises:
        ValueError: neither the checkpoint nor the user says how many classes there are.
    """
    if given.get("num_classes") is not None or given.get("class_names") is not None:
        return {}
    num_classes = _num_classes(tensors, model_class)
    if num_classes is None:
        raise ValueError("`num_classes` is needed: the checkpoint has no classifier of its own.")
    return {"num_classes": num_classes}


# === Writing ===

_LIBRARY = "The authors' TF1 code"
# The models whose heads their programs have.
_WRITABLE = (
    "BertBackbone",
    "BertPretrainer",
    "BertMaskedLM",
    "BertNextSentence",
    "BertTextClassifier",
    "BertQuestionAnswerer",
)


def write(model: keras.Model, folder: str | os.PathLike) -> None:
    """Write `model` into `folder` as the authors' code reads it, whole or not at all.

    Their files say nothing of the casing, of class names and of row lengths.

    Raises:
        ValueError: their code can't compute what the model does; or `folder` holds
            something else than such an export.
    """
    folder = check_free(folder, _is_written, "an export in this format")
    backbone = getattr(model, "backbone", model)
    tokenizer = getattr(model.preprocessor, "tokenizer", None)
    check_expressible(_LIBRARY, _choices(model, backbone, tokenizer))
    rules = [*backbone_rules(backbone.num_layers, backbone.num_heads), *POOLER_RULES]
    for head in getattr(model, "heads", ()):
        rules += HEAD_RULES[head]
    check_all_written(_LIBRARY, model, rules)
    tensors = dict(their_tensors({weight.path: weight for weight in model.weights}, rules))
    config = {theirs: getattr(backbone, ours) for ours, (theirs, _) in _ARCHITECTURE.items()}
    names = {ours: theirs for theirs, ours in _ACTIVATIONS.items()}
    config["hidden_act"] = names[backbone.hidden_activation]
    config["initializer_range"] = INITIALIZER_RANGE
    with written_whole(folder) as building:
        text = json.dumps(config, indent=2, sort_keys=True) + "\n"
        (building / CONFIG_FILE).write_text(text, encoding="utf-8")
        if tokenizer is not None:
            tokenizer.save_vocabulary(building / "vocab.txt")
        _save(building / _PREFIX, tensors)
    if tokenizer is not None and tokenizer.max_word_length != _MAX_WORD_LENGTH:
        warnings.warn(
            f"The authors' tokenizer reads words of up to {_MAX_WORD_LENGTH} characters, this "
            f"model's up to {tokenizer.max_word_length}: longer ones become other pieces there.",
            stacklevel=3,
        )


def _choices(model, backbone, tokenizer):
    """Yield what of the model their code may lack, how the model has it, and what they have."""
    yield "the model", type(model).__name__, _WRITABLE
    # Exact GELU is none of them: their gelu is the tanh form.
    yield "hidden_activation", backbone.hidden_activation, _ACTIVATIONS.values()
    yield "layer_norm_epsilon", backbone.layer_norm_epsilon, [_EPSILON]
    yield "causal", backbone.causal, [False]
    yield from masked_lm_choices(model, backbone.hidden_activation, _EPSILON)
    yield "the classifier's activation", getattr(model, "activation", None), [None, "softmax"]
    yield "the classifier's pooling", getattr(model, "pooling", "pooled"), ["pooled"]
    if tokenizer is not None:
        yield "strip_accents", tokenizer.strip_accents, [tokenizer.lowercase]
        yield "split_on_cjk", tokenizer.split_on_cjk, [True]
        yield "special_tokens_in_strings", tokenizer.special_tokens_in_strings, [False]


def _save(prefix, tensors):
    # The operation that `tf.compat.v1.train.Saver` runs, without its graph and session.
    with tf.device("CPU"):
        tf.raw_ops.SaveV2(
            prefix=str(prefix),
            tensor_names=list(tensors),
            shape_and_slices=[""] * len(tensors),
            tensors=[np.ascontiguousarray(tensor, "float32") for tensor in tensors.values()],
        )


def _is_written(folder):
    return {path.name for path in folder.iterdir()} <= _WRITTEN_FILES
