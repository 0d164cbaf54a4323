"""An experiment's settings: every section, key, type and default, and how a file is read.

The file is TOML. A section is a class below and a key one of its fields; a field without a
default has to be set.
"""

import dataclasses
import os
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")

# A left-to-right model predicts every piece from those before it, and none is hidden.
LEFT_TO_RIGHT = {"mask_selection_rate": 1.0, "mask_token_rate": 0.0, "random_token_rate": 0.0}


@dataclass(frozen=True)
class Model:
    """`[model]`: the arguments of `BertBackbone`, and whether pairs are told apart."""

    num_layers: int
    num_heads: int
    hidden_dim: int
    # None is four times `hidden_dim`.
    intermediate_dim: int | None = None
    dropout: float = 0.1
    attention_dropout: float = 0.1
    hidden_activation: str = "gelu"
    max_sequence_length: int = 512
    # A left-to-right language model.
    causal: bool = False
    rematerialize: bool = False
    # False trains a `BertMaskedLM`; from texts it then gets single segments.
    next_sentence: bool = True


@dataclass(frozen=True)
class Data:
    """`[data]`: texts to be cut into pairs here; phases with `examples` need none."""

    text: tuple[str, ...] = ()
    # As `read_documents` takes them.
    format: str = "auto"
    language: str = "en"
    # What to do with bytes that are not UTF-8: "strict" refuses them, "replace" puts U+FFFD for
    # them, which the tokenizer drops.
    encoding_errors: str = "strict"
    # A vocab.txt; None trains one on the texts.
    vocabulary: str | None = None
    vocabulary_size: int = 8000
    cased: bool = False
    # How often the documents are gone through for pairs, with others each time.
    duplicates: int = 10
    # The share of these passes that make shorter pairs.
    short_share: float = 0.1


@dataclass(frozen=True)
class Masking:
    """`[masking]`: the arguments of `MaskedLMMasker`; for examples that are not masked yet."""

    mask_selection_rate: float = 0.15
    mask_selection_length: int | None = None
    mask_token_rate: float = 0.8
    random_token_rate: float = 0.1
    selection: str = "count"
    unit: str = "piece"


@dataclass(frozen=True)
class Phase:
    """`[[phases]]`: steps at one length, one phase after the other with the same optimiser."""

    # The optimiser's, on `batch_size` rows each: examples, unless they are packed.
    steps: int
    sequence_length: int
    batch_size: int
    # A folder that `prepare` filled.
    examples: str | None = None
    # As many examples to a row as it has room for, each by itself under attention: for short
    # texts, where most of a row would be padding. The scores are still those of one to a row.
    packed: bool = False


@dataclass(frozen=True)
class Optimizer:
    """`[optimizer]`: the arguments of `adamw` or `lamb`."""

    name: str = "adamw"
    # The peak, after the warm-up; then it falls to 0 at the last step.
    learning_rate: float = 1e-4
    warmup_steps: int = 0
    weight_decay: float = 0.01
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-6
    clipnorm: float | None = 1.0
    bias_correction: bool = True
    # A step's batch is computed in as many parts.
    accumulation: int = 1


@dataclass(frozen=True)
class Evaluation:
    """`[evaluation]`: scores on held-out data, at the end of each phase and in between."""

    # Steps; 0 is the phases' ends alone.
    every: int = 0
    # The share of the documents, or of each folder's shards.
    held_out: float = 0.1
    # A folder of examples to score on, in place of a share.
    examples: str | None = None
    # How often pairs or masks are drawn, for a steadier figure.
    passes: int = 5


@dataclass(frozen=True)
class Checkpoints:
    """`[checkpoints]`: what a run that was ended goes on from."""

    every: int = 1000
    keep: int = 3


@dataclass(frozen=True)
class Progress:
    """`[progress]`: what is shown and logged on the way."""

    # Steps between two lines on the screen.
    every: int = 100
    # The devices' floating-point operations a second, for the model-FLOP utilisation.
    peak_flops: float | None = None
    # Whether a new run on one device first takes a few rows through a model of their own, to see
    # that they are as they must be and that every weight learns.
    smoke_check: bool = True
    # Whether log.jsonl has the ids of each step's examples.
    example_ids: bool = True
    # Whether the run's folder `tensorboard` gets each step's losses, the learning rate and tokens
    # per second as often as the screen, and the held-out scores.
    tensorboard: bool = False


@dataclass(frozen=True)
class Config:
    """The whole file: what stands above the first section, and the sections."""

    # The run's folder: what is made goes there, and a run that was ended goes on from there.
    run: str
    model: Model
    phases: tuple[Phase, ...]
    seed: int = 0
    precision: str = "float32"
    # A strategy of `training.distribute`; None is one device.
    devices: str | None = None
    data: Data = field(default_factory=Data)
    masking: Masking = field(default_factory=Masking)
    optimizer: Optimizer = field(default_factory=Optimizer)
    evaluation: Evaluation = field(default_factory=Evaluation)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    progress: Progress = field(default_factory=Progress)

    @property
    def steps(self) -> int:
        """The optimiser's steps of all phases."""
        return sum(phase.steps for phase in self.phases)


def read_config(path: str | os.PathLike, settings: Sequence[str] = ()) -> Config:
    """Return the settings in a TOML file.

    Args:
        path: the file.
        settings: `section.key=value` each, in place of what the file says. A value is written
            as in TOML, or is a bare word; `phases.0.steps=10` sets a key of the first phase.

    Raises:
        ValueError: there is no such file, it is no TOML, or a key is unknown, missing or out of
            its range.
        TypeError: a value has the wrong type.
    """
    content = read_toml(path)
    for setting in settings:
        apply_setting(content, setting)
    return make_config(content)


def read_toml(path: str | os.PathLike) -> dict[str, Any]:
    """Return what a TOML file says.

    Raises:
        ValueError: there is no such file, or it is no TOML.

    Example:
        >>> read_toml("none.toml")
        Traceback (most recent call last):
        ValueError: There is no file 'none.toml'.
    """
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise ValueError(f"There is no file {os.fspath(path)!r}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{os.fspath(path)!r} is no TOML: {error}.") from error


def make_config(content: Mapping) -> Config:
    """Return the settings of nested dictionaries, checked.

    Raises:
        ValueError, TypeError: as `read_config` says.

    Example:
        >>> config = make_config({
        ...     "run": "my_run", "data": {"text": ["my_texts"]},
        ...     "model": {"num_layers": 2, "num_heads": 2, "hidden_dim": 128},
        ...     "phases": [{"steps": 1000, "sequence_length": 128, "batch_size": 32}]})
        >>> config.optimizer.learning_rate, config.steps
        (0.0001, 1000)
    """
    config = read_section(Config, content, "")
    for name, value, known in (
        ("precision", config.precision, PRECISIONS),
        ("optimizer.name", config.optimizer.name, ("adamw", "lamb")),
        ("data.encoding_errors", config.data.encoding_errors, ("strict", "replace")),
    ):
        if value not in known:
            raise ValueError(f"`{name}` must be one of {list(known)}. Received: {value!r}.")
    if config.seed < 0:
        raise ValueError(f"`seed` must be at least 0. Received: {config.seed}.")
    check_at_least(0, "optimizer", config.optimizer, "warmup_steps")
    check_at_least(0, "evaluation", config.evaluation, "every")
    check_at_least(1, "optimizer", config.optimizer, "accumulation")
    check_at_least(1, "evaluation", config.evaluation, "passes")
    check_at_least(1, "checkpoints", config.checkpoints, "every", "keep")
    check_at_least(1, "progress", config.progress, "every")
    check_at_least(1, "data", config.data, "duplicates", "vocabulary_size")
    if not config.phases:
        raise ValueError("`phases` must hold at least one. Received: none.")
    for number, phase in enumerate(config.phases):
        check_at_least(1, f"phases.{number}", phase, "steps", "batch_size")
        if bool(config.data.text) == bool(phase.examples):
            raise ValueError(
                f"Phase {number} must have either `examples` of its own or `data.text`. Received: "
                f"{phase.examples!r} and {list(config.data.text)}."
            )
        if phase.batch_size % config.optimizer.accumulation:
            raise ValueError(
                f"`optimizer.accumulation` must divide `phases.{number}.batch_size`, "
                f"{phase.batch_size}. Received: {config.optimizer.accumulation}."
            )
        if phase.sequence_length > config.model.max_sequence_length:
            raise ValueError(
                f"`phases.{number}.sequence_length` must be at most `model.max_sequence_length`, "
                f"{config.model.max_sequence_length}. Received: {phase.sequence_length}."
            )
    if config.evaluation.examples and config.data.text:
        raise ValueError("`evaluation.examples` is for phases with `examples`, not `data.text`.")
    if config.optimizer.warmup_steps >= config.steps:
        raise ValueError(
            f"`optimizer.warmup_steps` must be below the steps of all phases, {config.steps}. "
            f"Received: {config.optimizer.warmup_steps}."
        )
    if config.model.causal:
        if config.model.next_sentence or config.masking != Masking():
            raise ValueError(
                "`model.causal` is left-to-right language modelling: it needs "
                "`model.next_sentence = false` and takes no `masking`."
            )
        config = dataclasses.replace(config, masking=Masking(**LEFT_TO_RIGHT))
    return config


def read_section(kind: type, content: Mapping[str, Any], name: str) -> Any:
    """Return an object of a dataclass of settings from a dictionary; `name` is what errors call it.

    Raises:
        TypeError, ValueError: names the key that is unknown, missing or of another type.
    """
    if not isinstance(content, Mapping):
        raise TypeError(f"`{name}` must be a section. Received: {content!r}.")
    fields = {each.name: each for each in dataclasses.fields(kind)}
    kinds = typing.get_type_hints(kind)
    prefix = f"{name}." if name else ""
    for key in content:
        if key not in fields:
            raise ValueError(f"There is no key `{prefix}{key}`. Known are {', '.join(fields)}.")
    missing = [
        each.name
        for each in fields.values()
        if each.default is dataclasses.MISSING
        and each.default_factory is dataclasses.MISSING
        and each.name not in content
    ]
    if missing:
        raise ValueError(f"The key `{prefix}{missing[0]}` is missing.")
    return kind(**{key: _value(kinds[key], v, f"{prefix}{key}") for key, v in content.items()})


def _value(kind, value, name):
    if dataclasses.is_dataclass(kind):
        return read_section(kind, value, name)
    if typing.get_origin(kind) is tuple:
        if not isinstance(value, list | tuple):
            raise TypeError(f"`{name}` must be a list. Received: {value!r}.")
        part = typing.get_args(kind)[0]
        return tuple(_value(part, each, f"{name}.{i}") for i, each in enumerate(value))
    if isinstance(kind, types.UnionType):
        kind = next(part for part in typing.get_args(kind) if part is not types.NoneType)
        if value is None:
            return None
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    # A bool is an int to Python.
    if type(value) is not kind:
        words = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}
        raise TypeError(f"`{name}` must be {words[kind]}. Received: {value!r}.")
    return value


def apply_setting(content: dict[str, Any], setting: str) -> None:
    """Set one `section.key=value` in a file's content.

    Example:
        >>> content = {"phases": [{"steps": 10}]}
        >>> apply_setting(content, "phases.0.steps=20")
        >>> content
        {'phases': [{'steps': 20}]}

    Raises:
        ValueError: the setting has another form or stands nowhere.
    """
    path, equals, text = setting.partition("=")
    *sections, key = path.strip().split(".")
    if not equals or not key:
        raise ValueError(f"A setting is `section.key=value`. Received: {setting!r}.")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    for name in sections:
        if isinstance(content, list) and name.isdigit() and int(name) < len(content):
            content = content[int(name)]
        elif isinstance(content, dict):
            content = content.setdefault(name, {})
        else:
            break
    if not isinstance(content, dict):
        raise ValueError(f"There is nothing at {path!r} that could be set.")
    content[key] = value


def check_at_least(limit: float, section: str, settings: Any, *names: str) -> None:
    """Refuse settings below a limit.

    Raises:
        ValueError: names the first of them.
    """
    for name in names:
        value = getattr(settings, name)
        if value < limit:
            raise ValueError(f"`{section}.{name}` must be at least {limit}. Received: {value}.")
