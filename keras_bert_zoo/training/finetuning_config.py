"""The settings of a fine-tuning, read from a TOML file, and checked."""

import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from keras_bert_zoo.data.sources import Columns
from keras_bert_zoo.layers.layer_mix import LAYER_WAYS
from keras_bert_zoo.models.text_vectors import POOLINGS
from keras_bert_zoo.training.config import (
    PRECISIONS,
    apply_setting,
    check_at_least,
    read_section,
    read_toml,
)
from keras_bert_zoo.training.finetuning_tasks import TASKS
from keras_bert_zoo.training.transfer import check_what

# Devlin et al. 2018, appendix A.3.
PAPER_GRID = {
    "batch_size": (16, 32),
    "learning_rate": (5e-5, 4e-5, 3e-5, 2e-5),
    "epochs": (2, 3, 4),
}

# What begins from nothing alone takes larger steps than a pre-trained encoder.
_LEARNING_RATES = {"all": 5e-5, "top": 5e-5, "lora": 5e-4, "head": 1e-3, "features": 1e-3}


@dataclass(frozen=True)
class Data(Columns):
    """`[data]`: sources, as `read_examples` takes them, a table's columns, and how rows part."""

    train: str = ""
    # None is what a data set with splits has, and otherwise a share of `train`.
    dev: str | None = None
    # Scored once, by the model that was chosen.
    test: str | None = None
    # Shares of `train`, a group's rows together; a given `dev` or `test` needs none.
    dev_share: float | None = None
    test_share: float = 0.0
    # Train on as many examples at most, drawn by the seed.
    examples: int | None = None


@dataclass(frozen=True)
class Training:
    """`[training]`: of lists every combination is trained, each `restarts` times."""

    # What `train_only` takes, or "features": the head, on features that are computed once.
    what: str = "all"
    batch_size: tuple[int, ...] = (32,)
    # Peaks; none is what suits `what`.
    learning_rate: tuple[float, ...] = ()
    epochs: tuple[int, ...] = (3,)
    # Of each combination, with other seeds for the head, the order and the dropout.
    restarts: int = 1
    warmup: float = 0.1
    weight_decay: float = 0.01
    # Each layer's rate as a share of the one above.
    layer_decay: float = 1.0
    gradual_unfreezing: bool = False
    # End a training after as many epochs without a better dev score, and keep the best epoch.
    # None keeps the last epoch.
    early_stopping: int | None = None
    # "balanced" lets each class weigh the same, however rare.
    class_weights: str = "none"
    # Several texts to a row of `sequence_length`: the same steps, faster where texts are short.
    packed: bool = False


@dataclass(frozen=True)
class Config:
    """The whole file: what stands above the first section, and the sections."""

    preset: str = ""
    data: Data = field(default_factory=Data)
    # The folder of the run's record, and of the model where `output` is None.
    run: str | None = None
    # The folder of the model, a preset; the run's folder is then beside it.
    output: str | None = None
    # A name in `TASKS`, for tables; other data say it themselves.
    task: str | None = None
    # None is what suits the task.
    sequence_length: int | None = None
    seed: int = 0
    precision: str = "float32"
    # What the head of a text reads, as `BertTextClassifier` takes them; None is the preset's, or
    # the pooled output.
    pooling: str | None = None
    layers: str | None = None
    training: Training = field(default_factory=Training)

    @property
    def folders(self) -> tuple[pathlib.Path, pathlib.Path]:
        """The run's folder and the model's."""
        run = pathlib.Path(self.run or f"{self.output.rstrip('/')}_run")
        return run, pathlib.Path(self.output) if self.output else run / "preset"

    @property
    def head(self) -> dict[str, str]:
        """What was said of the model's head."""
        asked = {"pooling": self.pooling, "layers": self.layers}
        return {name: value for name, value in asked.items() if value is not None}


def read_config(path: str | os.PathLike | None, settings: Sequence[str] = (), **given) -> Config:
    """Return the settings in a TOML file.

    Args:
        path: the file, or None for defaults alone.
        settings: `section.key=value` each, in place of what the file says.
        **given: sections and keys that stand in for the file's too.

    Raises:
        ValueError: there is no such file, it is no TOML, or a key is unknown, missing or out of
            its range.
        TypeError: a value has the wrong type.
    """
    content = {} if path is None else read_toml(path)
    for key, value in given.items():
        content[key] = {**content.get(key, {}), **value} if isinstance(value, dict) else value
    for setting in settings:
        apply_setting(content, setting)
    return make_config(content)


def make_config(content: Mapping) -> Config:
    """Return the settings of nested dictionaries, checked.

    Raises:
        ValueError, TypeError: as `read_config` says.

    Example:
        >>> config = make_config(
        ...     {"preset": "bert_tiny_en_uncased", "run": "sst2", "data": {"train": "glue/sst2"}})
        >>> config.training.epochs, str(config.folders[1])
        ((3,), 'sst2/preset')
    """
    config = read_section(Config, content, "")
    data, training = config.data, config.training
    for name, value in (("preset", config.preset), ("data.train", data.train)):
        if not value:
            option = f"--{name.removeprefix('data.')}"
            raise ValueError(f"The setting `{name}` is missing; on the command line {option}.")
    if config.run is None and config.output is None:
        raise ValueError(
            "One of the settings `run` and `output` must be there; on the command line --output."
        )
    if os.path.realpath(config.preset) == os.path.realpath(config.folders[1]):
        raise ValueError(f"`output` must not be the `preset` itself. Received: {config.preset!r}.")
    for name, value, known in (
        ("task", config.task, (None, *TASKS)),
        ("precision", config.precision, PRECISIONS),
        ("pooling", config.pooling, (None, *POOLINGS)),
        ("layers", config.layers, (None, *LAYER_WAYS)),
        ("training.class_weights", training.class_weights, ("none", "balanced")),
    ):
        if value not in known:
            raise ValueError(f"`{name}` must be one of {list(known)}. Received: {value!r}.")
    check_at_least(1, "training", training, "restarts")
    for section, settings, name in (
        ("training", training, "early_stopping"),
        ("data", data, "examples"),
    ):
        if getattr(settings, name) is not None:
            check_at_least(1, section, settings, name)
    if training.what.partition(":")[0] not in _LEARNING_RATES:
        raise ValueError(
            "`training.what` must be 'all', 'head', 'top:' with a number, 'lora:' with a rank, or "
            f"'features'. Received: {training.what!r}."
        )
    if training.what != "features":
        check_what(training.what)
    for name, values in (
        ("batch_size", training.batch_size),
        ("epochs", training.epochs),
        ("learning_rate", training.learning_rate or (1.0,)),
    ):
        if not values or min(values) <= 0:
            raise ValueError(f"`training.{name}` must list numbers over 0. Received: {values}.")
    if data.dev_share is not None and not 0 < data.dev_share < 1:
        raise ValueError(
            f"`data.dev_share` must be over 0 and below 1. Received: {data.dev_share}."
        )
    if not 0 <= data.test_share < 1:
        raise ValueError(
            f"`data.test_share` must be at least 0 and below 1. Received: {data.test_share}."
        )
    if (data.dev_share or 0) + data.test_share >= 1:
        raise ValueError(
            "`data.dev_share` and `data.test_share` must leave something to train on. "
            f"Received: {data.dev_share} and {data.test_share}."
        )
    if training.gradual_unfreezing and training.what != "all":
        raise ValueError("`training.gradual_unfreezing` goes with `training.what` 'all'.")
    if training.packed and training.what == "features":
        raise ValueError("`training.packed` is for encoders that train, not for 'features'.")
    if not training.learning_rate:
        rate = _LEARNING_RATES[training.what.partition(":")[0]]
        training = dataclasses.replace(training, learning_rate=(rate,))
        config = dataclasses.replace(config, training=training)
    return config
