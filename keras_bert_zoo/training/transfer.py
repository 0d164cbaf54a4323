"""What of a pre-trained model is trained: all of it, its head, its top layers, or LoRA."""

import json
import math
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_bert_zoo.layers.common import check_positive_int
from keras_bert_zoo.training import distribution
from keras_bert_zoo.training.optimizer import WarmupLinearDecay
from keras_bert_zoo.whole_files import write_whole


class _Way(NamedTuple):
    """A way to train: how many parts of the encoder, from the top, and with what number."""

    # Of the number and of how many parts there are: embeddings, layers, pooler.
    parts: Any
    lowest: int | None = None


# The head, which is all that is not the encoder, is trained in each of them.
_WAYS = {
    "all": _Way(lambda number, parts: parts),
    "head": _Way(lambda number, parts: 0),
    "top": _Way(lambda number, parts: number + 1, lowest=0),
    "lora": _Way(lambda number, parts: 0, lowest=1),
}


def train_only(model: keras.Model, what: str) -> None:
    """Say what of a task's model is trained from now on; the rest stays as it is, to the bit.

    The optimiser begins anew where it had begun: moments are of what was trained. So do the
    compiled steps. A saved model keeps what is trained.

    Args:
        model: any task of this package.
        what: `"all"`; `"head"`, what the task added to the encoder; `"top:2"`, that, the pooler
            and the top two layers (`"top:0"` is head and pooler); or `"lora:8"`, the head, and
            changes of rank 8 of what makes queries, keys and values (Hu et al. 2021).
            `backbone.enable_lora` has more choices.

    Raises:
        ValueError: `what` is none of these; the model is no task; it has LoRA and something
            else is asked for; or it is distributed and was trained already.

    Example:
        >>> from keras_bert_zoo.models import BertBackbone, BertTextClassifier
        >>> backbone = BertBackbone(
        ...     vocabulary_size=100, num_layers=2, num_heads=2, hidden_dim=8, intermediate_dim=16)
        >>> classifier = BertTextClassifier(backbone, num_classes=2)
        >>> train_only(classifier, "head")
        >>> parameter_counts(classifier)
        ParameterCounts(trainable=18, total=6218)
    """
    kind, number = check_what(what)
    backbone = _backbone(model)
    parts = [backbone.embeddings, *backbone.encoder_layers, backbone.pooler]
    if kind == "top" and number > backbone.num_layers:
        raise ValueError(f"`what` is {what!r}, but the model has {backbone.num_layers} layers.")
    rank = number if kind == "lora" else None
    if backbone.lora is not None and backbone.lora["rank"] != rank:
        raise ValueError(
            f"`what` is {what!r}, but the model has LoRA of rank {backbone.lora['rank']}. "
            "`merge_lora` makes it a plain one."
        )
    if kind == "head" and len(model.weights) == len(backbone.weights):
        raise ValueError(f"`what` is 'head', but a {type(model).__name__} has none to be trained.")
    _check_may_begin_anew(model)
    # On TensorFlow Keras does nothing where it is True already, whatever the layers inside are.
    model.trainable = False
    model.trainable = True
    for part in parts[: len(parts) - _WAYS[kind].parts(number, len(parts))]:
        part.trainable = False
    if kind == "lora" and backbone.lora is None:
        backbone.enable_lora(rank)
    for layer in backbone.lora_layers():
        layer.trainable = True
    _begin_anew(model)


def merge_lora(model: keras.Model) -> None:
    """Add what LoRA learnt to the encoder's kernels, which stay still until `train_only`.

    The outputs are the same up to rounding, and every format can hold the model.

    Raises:
        ValueError: the model has no LoRA.
    """
    backbone = getattr(model, "backbone", model)
    if backbone.lora is None:
        raise ValueError("`model` has no LoRA to be merged.")
    _check_may_begin_anew(model)
    backbone.merge_lora()
    _begin_anew(model)


class ParameterCounts(NamedTuple):
    """How many numbers training changes, and how many there are."""

    trainable: int
    total: int


def parameter_counts(model: keras.Model) -> ParameterCounts:
    """Return how many parameters are trained and how many there are, a tied one counted once."""
    return ParameterCounts(
        *(
            sum(math.prod(weight.shape) for weight in weights)
            for weights in (model.trainable_weights, model.weights)
        )
    )


# === Learning rates ===


def layer_learning_rates(model: keras.Model, decay: float = 0.95) -> dict[str, float]:
    """Return shares of the learning rate that fall from layer to layer, for `adamw` or `lamb`.

    The head, the pooler and the top layer have all of it, each layer below `decay` times that of
    the one above, the embeddings the least (Sun et al. 2019, section 5.3.3).

    Args:
        model: any model of this package.
        decay: over 0 and at most 1.

    Example:
        >>> from keras_bert_zoo.models import BertBackbone
        >>> from keras_bert_zoo.training import adamw
        >>> backbone = BertBackbone(
        ...     vocabulary_size=100, num_layers=2, num_heads=2, hidden_dim=8, intermediate_dim=16)
        >>> rates = layer_learning_rates(backbone, 0.5)
        >>> rates
        {'embeddings': 0.25, 'encoder_layer_0': 0.5, 'encoder_layer_1': 1.0}
        >>> optimizer = adamw(5e-5, layer_rates=rates)
    """
    if not 0 < decay <= 1:
        raise ValueError(f"`decay` must be over 0 and at most 1. Received: {decay!r}.")
    backbone = getattr(model, "backbone", model)
    parts = [backbone.embeddings, *backbone.encoder_layers]
    return {part.path: decay ** (len(parts) - 1 - i) for i, part in enumerate(parts)}


class GradualUnfreezing(keras.callbacks.Callback):
    """Trains more of a model from epoch to epoch (Howard and Ruder 2018, section 3.3).

    Each stage begins with new moments, as a `fit` of its own with a new optimiser would; the
    learning rate goes on in its schedule.

    Args:
        stages: what `train_only` takes, one an epoch; the last one stays. None is the head, then
            one layer more in each epoch, then all.

    Raises:
        ValueError: at the start of `fit`, where a stage is nothing that `train_only` takes, or
            the learning rate is a schedule other than `WarmupLinearDecay`.

    Example:
        >>> from keras_bert_zoo.training import GradualUnfreezing
        >>> callback = GradualUnfreezing(["head", "top:2", "all"])
    """

    def __init__(self, stages: Sequence[str] | None = None):
        super().__init__()
        if isinstance(stages, str):
            raise ValueError(f"`stages` must be a list, one stage an epoch. Received: {stages!r}.")
        self.stages = None if stages is None else list(stages)
        for stage in self.stages or []:
            check_what(stage)
        self._stage = None

    def on_train_begin(self, logs=None):
        """Find the stages out, and refuse an optimiser that could not go on."""
        layers = _backbone(self.model).num_layers
        self._stages = self.stages or ["head", *(f"top:{n}" for n in range(1, layers + 1)), "all"]
        self._stage = None
        rate = _inner(self.model.optimizer)._learning_rate
        if not isinstance(rate, WarmupLinearDecay | keras.Variable):
            raise ValueError(
                "With `GradualUnfreezing` the learning rate must be a number or a "
                f"`WarmupLinearDecay`. Received: {rate!r}."
            )

    def on_epoch_begin(self, epoch, logs=None):
        """Go on to the epoch's stage."""
        stage = self._stages[min(epoch, len(self._stages) - 1)]
        if stage == self._stage:
            return
        self._stage = stage
        old = _inner(self.model.optimizer)
        steps = int(keras.ops.convert_to_numpy(old.iterations))
        train_only(self.model, stage)
        optimizer = self.model.optimizer
        if isinstance(old._learning_rate, WarmupLinearDecay) and _inner(optimizer) is not old:
            old._learning_rate.count_from(steps)
            _inner(optimizer)._learning_rate = old._learning_rate
        # On JAX a step takes the optimiser's variables from it.
        optimizer.build(self.model.trainable_variables)
        self.model.make_train_function()


# === LoRA's weights alone ===


def save_lora_weights(model: keras.Model, path: str | os.PathLike) -> None:
    """Write LoRA's factors, and a task's head, into a small safetensors file.

    Raises:
        ValueError: the model has no LoRA.
    """
    from safetensors.numpy import save

    backbone = getattr(model, "backbone", model)
    if backbone.lora is None:
        raise ValueError("`model` has no LoRA: `train_only(model, 'lora:8')` gives it some.")
    weights = {
        name: np.ascontiguousarray(keras.ops.convert_to_numpy(weight.value))
        for name, weight in _lora_and_head(model).items()
    }
    metadata = {"lora": json.dumps(backbone.lora), "class": type(model).__name__}
    write_whole(path, save(weights, metadata))


def load_lora_weights(model: keras.Model, path: str | os.PathLike) -> None:
    """Give a model the factors, and the head, that `save_lora_weights` wrote.

    The model must have the encoder that they were trained with; LoRA is enabled in it if it
    has none. What is trained is then as after `train_only(model, "lora:...")`.

    Raises:
        ValueError: the file is none of these, or was made from another model.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "np") as file:
            lora = json.loads((file.metadata() or {})["lora"])
            saved = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise ValueError(f"{str(path)!r} holds no LoRA weights of this package.") from error
    backbone = getattr(model, "backbone", model)
    if backbone.lora not in (None, lora):
        raise ValueError(f"{str(path)!r} has LoRA {lora}, but the model has {backbone.lora}.")
    expected = {name: tuple(weight.shape) for name, weight in _lora_and_head(model).items()}
    expected |= backbone.lora_shapes(lora["rank"], lora["target_layer_names"])
    different = {(name, array.shape) for name, array in saved.items()} ^ set(expected.items())
    if different:
        raise ValueError(
            f"{str(path)!r} was made from another model. The first that differs: {min(different)}."
        )
    if backbone.lora is None:
        _check_may_begin_anew(model)
        backbone.enable_lora(**lora)
        _begin_anew(model)
    for name, weight in _lora_and_head(model).items():
        weight.assign(saved[name])


def _lora_and_head(model):
    backbone = getattr(model, "backbone", model)
    encoder = {id(weight) for weight in backbone.weights}
    factors = {id(weight) for layer in backbone.lora_layers() for weight in layer.factors()}
    return {
        weight.path: weight
        for weight in model.weights
        if id(weight) not in encoder or id(weight) in factors
    }


# === Helpers ===


def check_what(what: str) -> tuple[str, int | None]:
    """Return the kind of what is to be trained, and its number if it has one.

    Raises:
        ValueError: it is nothing that `train_only` takes.
    """
    kind, colon, number = what.partition(":") if isinstance(what, str) else ("", "", "")
    way = _WAYS.get(kind)
    takes_number = way is not None and way.lowest is not None
    is_number = number.isascii() and number.isdigit()
    if way is None or bool(colon) != takes_number or (takes_number and not is_number):
        raise ValueError(
            "`what` must be 'all', 'head', 'top:' with a number of layers or 'lora:' with a rank. "
            f"Received: {what!r}."
        )
    if takes_number and int(number) < way.lowest:
        check_positive_int(rank=int(number))
    return kind, int(number) if takes_number else None


def _backbone(model):
    if not hasattr(model, "backbone"):
        raise ValueError(
            f"`model` must be a task, with an encoder and a head. Received: {type(model).__name__}."
        )
    return model.backbone


def _inner(optimizer):
    # Under float16 Keras wraps the optimiser in one that scales the loss.
    return getattr(optimizer, "inner_optimizer", optimizer)


def _has_begun(model):
    return getattr(getattr(model, "optimizer", None), "built", False)


def _check_may_begin_anew(model):
    if _has_begun(model) and distribution.distribution() is not None:
        raise ValueError(
            "A distributed model's optimiser can't begin anew. Say what is trained before `fit`."
        )


def _begin_anew(model):
    """Let the optimiser and the compiled steps follow what is trainable now.

    A compiled step has the old set in it, and on JAX would even run with the new one's values in
    the old one's places.
    """
    for name in ("train_function", "test_function", "predict_function"):
        setattr(model, name, None)
    if _has_begun(model):
        optimizer = model.optimizer
        model.optimizer = type(optimizer).from_config(optimizer.get_config())
