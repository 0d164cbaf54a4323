"""Models of another size made from models there are: more tokens, fewer layers, other positions.

Each function returns a new model with the old one's weights, compiled with its task's defaults, and
leaves the old one as it is.
"""

import re
import warnings
from collections.abc import Callable, Sequence

import keras
import numpy as np

from keras_bert_zoo.layers.common import check_positive_int
from keras_bert_zoo.preprocessing import BertTokenizer
from keras_bert_zoo.preprocessing.vocabulary import SPECIAL_TOKENS

_TOKEN_TABLE = "embeddings/token_embedding/embeddings"
_POSITION_TABLE = "embeddings/position_embedding/embeddings"
_MASKED_LM_BIAS = "masked_lm_head/bias"


def add_tokens(model: keras.Model, tokens: Sequence[str]) -> keras.Model:
    """Return the model with more entries at the end of its vocabulary.

    A new entry's embedding, and its bias in a masked-LM head, is the mean over the pieces
    that the word was cut into before; all other rows stay.

    Args:
        model: a model with a preprocessor.
        tokens: words, and `##` continuations, that the vocabulary lacks.

    Raises:
        ValueError: the model has no preprocessor; an entry is there already; or a word can
            never occur, because the tokenizer would cut or change it.

    Example:
        >>> tokenizer = BertTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "co", "##vid"], lowercase=True)
        >>> backbone = BertBackbone(
        ...     vocabulary_size=7, num_layers=1, num_heads=2, hidden_dim=4, intermediate_dim=8,
        ...     preprocessor=BertPreprocessor(tokenizer, 16))
        >>> grown = add_tokens(backbone, ["covid"])
        >>> grown.vocabulary_size, grown.preprocessor.tokenizer("covid").numpy().tolist()
        (8, [7])
    """
    if model.preprocessor is None:
        raise ValueError("`model` must have a preprocessor: it has the vocabulary that grows.")
    old = model.preprocessor.tokenizer
    tokens = list(tokens)
    if not tokens:
        raise ValueError("`tokens` is empty.")
    new = BertTokenizer(**{**old.get_config(), "vocabulary": old.vocabulary + tokens})
    for token, ids in zip(tokens, new(tokens).to_list(), strict=True):
        is_word = not token.startswith("##") and token not in SPECIAL_TOKENS
        if is_word and ids != [new.token_to_id(token)]:
            raise ValueError(
                f"The token {token!r} can never occur: the tokenizer makes "
                f"{[new.id_to_token(i) for i in ids]} of it."
            )
    pieces = old([token.removeprefix("##") for token in tokens]).to_list()
    backbone = getattr(model, "backbone", model)
    size = max(backbone.vocabulary_size, new.vocabulary_size)

    def grown(rows):
        result = np.zeros((size, *rows.shape[1:]), rows.dtype)
        result[: len(rows)] = rows
        for i, ids in enumerate(pieces, start=old.vocabulary_size):
            result[i] = rows[ids or [old.unk_token_id]].mean(axis=0)
        return result

    return _resized(
        model,
        {"vocabulary_size": size},
        {_TOKEN_TABLE: grown, _MASKED_LM_BIAS: grown},
        tokenizer=new,
    )


def keep_layers(model: keras.Model, layers: Sequence[int]) -> keras.Model:
    """Return the model with some of its encoder layers only (Sajjad et al. 2020).

    What the layers that went had learnt is lost: the model is to be fine-tuned.

    Args:
        model: any model of this package.
        layers: the numbers of the layers that stay, from 0 up; `range(6)` keeps the first six.

    Raises:
        ValueError: the numbers are not some of the model's layers in ascending order.

    Example:
        >>> backbone = BertBackbone(
        ...     vocabulary_size=7, num_layers=4, num_heads=2, hidden_dim=4, intermediate_dim=8)
        >>> keep_layers(backbone, [0, 2]).num_layers
        2
    """
    count = getattr(model, "backbone", model).num_layers
    layers = list(layers)
    if not layers or layers != sorted(set(layers) & set(range(count))):
        raise ValueError(
            f"`layers` must be numbers from 0 to {count - 1} in ascending order. "
            f"Received: {layers!r}."
        )
    return _resized(model, {"num_layers": len(layers)}, {}, layers=layers)


def resize_positions(model: keras.Model, max_sequence_length: int) -> keras.Model:
    """Return the model for shorter or longer rows.

    Of fewer positions the first stay. More positions repeat the table from its start
    (Beltagy et al. 2020, section 5): a beginning, and to be trained.

    Args:
        model: any model of this package.
        max_sequence_length: rows of the new position table. A preprocessor whose rows were as
            long as the table allowed makes rows as long as the new one allows.

    Raises:
        ValueError: `max_sequence_length` is not positive, or the preprocessor needs more.

    Example:
        >>> backbone = BertBackbone(
        ...     vocabulary_size=7, num_layers=1, num_heads=2, hidden_dim=4, intermediate_dim=8)
        >>> resize_positions(backbone, 128).max_sequence_length
        128
    """
    check_positive_int(max_sequence_length=max_sequence_length)
    before = getattr(model, "backbone", model).max_sequence_length
    if max_sequence_length > before:
        warnings.warn(
            f"The positions from {before} to {max_sequence_length - 1} repeat the first ones: "
            "train the model before its predictions on long texts mean anything.",
            stacklevel=2,
        )
    sequence_length = getattr(model.preprocessor, "sequence_length", None)
    if sequence_length is not None and not sequence_length < min(before, max_sequence_length):
        sequence_length = max_sequence_length
    return _resized(
        model,
        {"max_sequence_length": max_sequence_length},
        {_POSITION_TABLE: lambda rows: np.resize(rows, (max_sequence_length, rows.shape[1]))},
        sequence_length=sequence_length,
    )


def _resized(
    model: keras.Model,
    arguments: dict,
    changes: dict[str, Callable[[np.ndarray], np.ndarray]],
    *,
    layers: Sequence[int] | None = None,
    tokenizer: BertTokenizer | None = None,
    sequence_length: int | None = None,
) -> keras.Model:
    """Return a copy of the model whose backbone has other arguments, its weights changed."""
    for layer in model._flatten_layers():
        if getattr(layer, "lora_enabled", False) or getattr(layer, "quantization_mode", None):
            raise ValueError(
                f"The layer {layer.path!r} has LoRA or is quantised; resize the model before that."
            )
    config = model.get_config()
    configs = [config]
    if "backbone" in config:
        configs.append(config["backbone"]["config"])
    configs[-1].update(arguments)
    if config["preprocessor"] is not None:
        settings = config["preprocessor"]["config"]
        if tokenizer is not None:
            settings["tokenizer"] = keras.saving.serialize_keras_object(tokenizer)
        if sequence_length is not None:
            settings["sequence_length"] = sequence_length
    for part in configs:
        # The optimiser's moments are of the old weights.
        part["optimizer_built"] = False
        if layers is not None:
            part["frozen"] = _renumbered(part["frozen"], layers)
    resized = type(model).from_config(config)
    weights = {weight.path: weight for weight in model.weights}
    for weight in resized.weights:
        path = weight.path
        if layers is not None:
            path = _LAYER.sub(lambda match: f"encoder_layer_{layers[int(match[1])]}", path)
        value = keras.ops.convert_to_numpy(weights[path].value)
        weight.assign(changes.get(path, lambda value: value)(value))
    return resized


_LAYER = re.compile(r"encoder_layer_(\d+)")


def _renumbered(paths, layers):
    """Return the paths of what stays, with the numbers that the layers have then."""
    numbers = {old: new for new, old in enumerate(layers)}
    kept = []
    for path in paths:
        # A layer without weights of its own may have no path.
        match = path and _LAYER.search(path)
        if not match:
            kept.append(path)
        elif int(match[1]) in numbers:
            kept.append(_LAYER.sub(f"encoder_layer_{numbers[int(match[1])]}", path))
    return kept
