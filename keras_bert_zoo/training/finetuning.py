"""Fine-tuning: read, split, look for leaks, check, train each setting, choose on dev, test once.

The run's folder holds `record.json`: what the run was made of, every training in it, and what came
out. It is written after each training, and also when one fails.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import math
import os
import pathlib
import platform
import sys
import time
import tomllib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_bert_zoo.data.sources import Columns, Examples, has_own_splits, read_examples
from keras_bert_zoo.data.splits import given_splits, leakage, leakage_lines, random_splits
from keras_bert_zoo.evaluation.baselines import majority_accuracy
from keras_bert_zoo.models import preset_folder, whole_folder
from keras_bert_zoo.models.features import fit_head
from keras_bert_zoo.presets import find_card, from_preset
from keras_bert_zoo.training.config import (
    PRECISIONS,
    apply_setting,
    check_at_least,
    read_section,
)
from keras_bert_zoo.training.finetuning_tasks import (
    TASKS,
    scores_of,
    wrong_ids,
)
from keras_bert_zoo.training.optimizer import WarmupLinearDecay, adamw
from keras_bert_zoo.training.record import versions, vocabulary_facts, write_json
from keras_bert_zoo.training.smoke_check import SMOKE_ROWS, describe, smoke_check
from keras_bert_zoo.training.transfer import (
    GradualUnfreezing,
    check_what,
    layer_learning_rates,
    parameter_counts,
    train_only,
)

FORMAT = "keras_bert_zoo fine-tuning"

# Devlin et al. 2018, appendix A.3.
PAPER_GRID = {
    "batch_size": (16, 32),
    "learning_rate": (5e-5, 4e-5, 3e-5, 2e-5),
    "epochs": (2, 3, 4),
}

# What begins from nothing alone takes larger steps than a pre-trained encoder.
_LEARNING_RATES = {"all": 5e-5, "top": 5e-5, "lora": 5e-4, "head": 1e-3, "features": 1e-3}

_OVERFIT_EPOCHS = 100


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
    training: Training = field(default_factory=Training)

    @property
    def folders(self) -> tuple[pathlib.Path, pathlib.Path]:
        """The run's folder and the model's."""
        run = pathlib.Path(self.run or f"{self.output.rstrip('/')}_run")
        return run, pathlib.Path(self.output) if self.output else run / "preset"


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
    content = {}
    if path is not None:
        try:
            content = tomllib.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ValueError(f"There is no file {os.fspath(path)!r}.") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{os.fspath(path)!r} is no TOML: {error}.") from error
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


# === Data ===


def read_splits(config: Config) -> tuple[dict[str, Examples], str]:
    """Return the examples of `train`, `dev` and, where there is one, `test`; and what parts them.

    Raises:
        ValueError: a source can't be read, or an example has no label.
    """
    data = config.data
    columns = Columns(**{key.name: getattr(data, key.name) for key in dataclasses.fields(Columns)})

    def read(source, split):
        examples = read_examples(source, split, config.task, columns)
        examples.check_labelled()
        return examples

    train = read(data.train, "train")
    parts, rule = {}, "given"
    if train.splits is not None:
        rows = given_splits(train.splits)
        parts = {name: train.rows(rows[name]) for name in rows}
        rule = f"the column {data.split!r}"
    has_own_dev = has_own_splits(data.train) and data.dev_share is None
    own_dev = data.train if has_own_dev else None
    for name, source in (("dev", data.dev or own_dev), ("test", data.test)):
        if source is not None:
            parts[name] = read(source, name)
    shares = {"dev": data.dev_share or 0.1, "test": data.test_share}
    shares = {name: share for name, share in shares.items() if share and name not in parts}
    rest = parts.get("train", train)
    if shares:
        shares_of_all = {"train": 1 - sum(shares.values()), **shares}
        classes = rest.labels if rest.task == "classification" else None
        rows = random_splits(len(rest), shares_of_all, config.seed, rest.groups, classes)
        parts |= {name: rest.rows(rows[name]) for name in rows}
        rule += f"; {shares} of the training examples, by the seed"
        rule += " and in groups" if rest.groups is not None else ""
    parts.setdefault("train", train)
    if data.examples is not None and data.examples < len(parts["train"]):
        order = np.random.default_rng(config.seed).permutation(len(parts["train"]))
        parts["train"] = parts["train"].rows(sorted(order[: data.examples].tolist()))
        rule += f"; {data.examples} training examples, by the seed"
    for examples in parts.values():
        if examples.task != train.task:
            raise ValueError(
                f"{examples.source!r} is for {examples.task!r}, but the training examples are for "
                f"{train.task!r}."
            )
    return {name: parts[name] for name in ("train", "dev", "test") if name in parts}, rule


def _check_data(config, parts):
    """Refuse what can't be learnt from these examples, before anything is loaded."""
    train, what = parts["train"], config.training.what
    if what == "features" and TASKS[train.task].model != "text_classifier":
        raise ValueError(
            f"`training.what` 'features' is for the classes, numbers or labels of texts, and not "
            f"for {train.task!r}: 'head' trains as few weights."
        )
    _example_weights(config.training, train)
    TASKS[train.task].head(train)
    if train.task not in ("classification", "labels"):
        return
    known = set(train.classes or _names(train, train.labels))
    for name, examples in parts.items():
        for row, label in zip(examples.ids, examples.labels, strict=True):
            unknown = sorted(_names(train, [label]) - known)
            if unknown:
                raise ValueError(
                    f"The {name} example {row!r} of {examples.source!r} has the label "
                    f"{unknown[0]!r}, which no training example has. They have: {sorted(known)}."
                )


def _names(examples, labels):
    """Return the names of classes in labels, one or several each."""
    return set(labels) if examples.task == "classification" else {n for row in labels for n in row}


def _leaks(parts):
    """Return what `leakage` finds between splits, the training examples first."""
    groups = {name: examples.groups for name, examples in parts.items()}
    has_groups = all(group is not None for group in groups.values())
    texts = {name: examples.texts for name, examples in parts.items()}
    return leakage(texts, groups if has_groups else None)


def data_facts(parts: Mapping[str, Examples]) -> dict[str, dict]:
    """Return what a record says of examples: their source, number, hash and files' hashes."""
    return {
        name: {
            "source": examples.source,
            "examples": len(examples),
            # What is not for scoring is the rest.
            **({} if name == "train" else {"ids": examples.ids}),
            "sha256": _rows_hash(examples),
            "files": {path: _file_hash(path) for path in examples.files},
        }
        for name, examples in parts.items()
    }


def _rows_hash(examples):
    rows = json.dumps([examples.columns, examples.labels, examples.ids], ensure_ascii=False)
    return hashlib.sha256(rows.encode("utf-8", "surrogatepass")).hexdigest()


def _file_hash(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def model_facts(preset: str, model: keras.Model) -> dict[str, Any]:
    """Return what a record says of a model: its weights, vocabulary, length and truncation."""
    card = None if os.path.isdir(preset) else find_card(preset)
    digest = hashlib.sha256()
    for weight in sorted(model.backbone.weights, key=lambda weight: weight.path):
        digest.update(np.ascontiguousarray(keras.ops.convert_to_numpy(weight.value)).tobytes())
    preprocessor = model.preprocessor
    return {
        "preset": preset,
        "sources": card["sources"] if card else None,
        "encoder_sha256": digest.hexdigest(),
        "vocabulary": vocabulary_facts(preprocessor.tokenizer),
        "sequence_length": preprocessor.sequence_length,
        "truncation": (
            f"windows, stride {preprocessor.stride}"
            if hasattr(preprocessor, "stride")
            else preprocessor.truncation
        ),
    }


# === Training ===


class Trained(NamedTuple):
    """One training: its setting, what became of it, and the weights and answers of its epoch."""

    setting: dict
    epoch: int
    dev: dict[str, float]
    history: list[dict]
    seconds: float
    weights: list
    predictions: list[dict]
    attributes: dict

    @property
    def row(self) -> dict:
        """What a record says of it."""
        names = ("epoch", "dev", "history", "seconds")
        return {**self.setting, **{name: getattr(self, name) for name in names}}


def make_model(config: Config, train: Examples, seed: int) -> keras.Model:
    """Return a model with a new head, by the seed, and with what is trained said."""
    task = TASKS[train.task]
    keras.utils.set_random_seed(seed)
    model = from_preset(
        config.preset,
        task.model,
        dtype=None if config.precision == "float32" else config.precision,
        sequence_length=config.sequence_length or task.sequence_length,
        **task.head(train),
    )
    what = config.training.what
    train_only(model, "head" if what == "features" or config.training.gradual_unfreezing else what)
    return model


def finetune(config: Config, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Train every combination of settings as often as asked, choose on dev, score test once.

    Chosen is the combination with the best mean over its restarts of the task's first measure,
    and of it the best restart: its dev scores are a best-of, and the means stand beside.

    Args:
        config: the settings, as `read_config` returns them.
        say: takes the lines that are shown.

    Returns:
        Counts and scores, flat; `settings`, each combination's mean and standard deviation; and
        `runs`, every training. `record.json` has them too.

    Raises:
        ValueError: the data do not fit the settings, a folder holds something else, the smoke
            check found a fault, or a loss is not finite.
    """
    folder, output = config.folders
    whole_folder.check_free(folder, _is_run, "the folder of a fine-tuning run")
    preset_folder.check_free(output)
    with recorded(folder / "record.json", config) as record:
        parts, rule = read_splits(config)
        _check_data(config, parts)
        record |= {"task": parts["train"].task, "data": data_facts(parts)}
        record["data"] |= {"split_rule": rule, "leakage": _leaks(parts)}
        write_json(folder / "record.json", record)
        for line in leakage_lines(record["data"]["leakage"]):
            say(line)
        check(config, parts["train"], record, say)
        trained = []
        for setting in _settings(config):
            restarts = []
            for number in range(config.training.restarts):
                seed = config.seed + number
                each, model = _train(config, parts, {**setting, "seed": seed}, say)
                restarts = _with_weights_of(_best(restarts + [each]), restarts + [each])
                record["runs"] = [each.row for each in trained + restarts]
                write_json(folder / "record.json", record)
            trained += restarts
            chosen, rows = _choose(trained)
            trained = _with_weights_of(chosen, trained)
        _restore(model, config, chosen)
        results = _results(config, parts, model, trained, chosen)
        record["wrong"] = {"dev": wrong_ids(parts["dev"], chosen.predictions)}
        if "test" in parts:
            predictions = _predict(parts["test"], model, max(config.training.batch_size))
            record["wrong"]["test"] = wrong_ids(parts["test"], predictions)
            scores = scores_of(parts["test"], predictions)
            results |= {f"test {name}": value for name, value in scores.items()}
        majority = results.get("dev accuracy of the majority class")
        if majority is not None and chosen.dev.get("accuracy", 1.0) <= majority:
            say("warning: the accuracy on dev is no better than that of the most frequent class")
        record |= {"results": results, "chosen": {**chosen.setting, "epoch": chosen.epoch}}
        record["chosen_on"] = f"dev {next(iter(chosen.dev))}"
        model.save_to_preset(str(output))
        return {**results, "settings": rows, "runs": record["runs"]}


def overfit(config: Config, count: int, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Train on a few examples until all are answered rightly, to see that they can be learnt.

    The first setting's batch size and learning rate count, without decay or early end; nothing
    is saved but a record, `overfit.json`, in the run's folder.

    Args:
        config: the settings.
        count: of the first training examples.
        say: takes the lines that are shown.

    Returns:
        How many epochs it took, and the scores on the examples.

    Raises:
        ValueError: the examples were not learnt in 100 epochs.
    """
    folder = config.folders[0]
    whole_folder.check_free(folder, _is_run, "the folder of a fine-tuning run")
    training = dataclasses.replace(
        config.training,
        epochs=(_OVERFIT_EPOCHS,),
        early_stopping=None,
        gradual_unfreezing=False,
        weight_decay=0.0,
    )
    config = dataclasses.replace(config, training=training)
    with recorded(folder / "overfit.json", config) as record:
        parts, _ = read_splits(config)
        _check_data(config, parts)
        train = parts["train"]
        if count < 1 or count > len(train):
            raise ValueError(
                f"There are {len(train)} training examples. Received: {count} to learn."
            )
        few = train.rows(range(count))
        if train.task == "classification":
            few = dataclasses.replace(few, classes=train.classes or sorted(set(train.labels)))
        parts = {"train": few, "dev": few}
        record |= {"task": few.task, "data": data_facts(parts)}
        check(config, few, record, say)
        setting = {**next(iter(_settings(config))), "seed": config.seed}
        trained, _ = _train(config, parts, setting, say, until_learnt=True)
        wrong = wrong_ids(few, trained.predictions)
        record |= {"runs": [trained.row], "wrong": {"train": wrong}}
        if wrong:
            raise ValueError(
                f"{len(wrong)} of {count} examples were not learnt in {trained.epoch} epochs, the "
                f"first {wrong[0]!r}: {_words(trained.dev)}."
            )
        results = {"examples": count, "epochs": trained.epoch, **trained.dev}
        record["results"] = results
        return results


@contextlib.contextmanager
def recorded(path: pathlib.Path, config: Config):
    """Give a record to be filled in, which is written at the end, whatever the end is.

    The record of an earlier run stays if this one fails before it has its data.
    """
    record = {
        "format": FORMAT,
        "version": 1,
        "status": "running",
        "error": None,
        "settings": json.loads(json.dumps(dataclasses.asdict(config))),
        "seed": config.seed,
        "backend": keras.backend.backend(),
        "versions": versions(),
        "platform": platform.platform(),
        "runs": [],
    }
    try:
        yield record
        record["status"] = "finished"
    except BaseException as error:
        record |= {"status": "failed", "error": f"{type(error).__name__}: {error}"}
        raise
    finally:
        if "data" in record or not path.exists():
            write_json(path, record)


def _is_run(folder):
    for path in (folder / "record.json", folder / "overfit.json"):
        with contextlib.suppress(OSError, ValueError):
            return json.loads(path.read_text(encoding="utf-8")).get("format") == FORMAT
    return False


def check(config: Config, train: Examples, record: dict, say: Callable) -> None:
    """Load the model once to look at a batch, and say what is trained and what was seen."""
    model = make_model(config, train, config.seed)
    counts = parameter_counts(model)
    record |= {
        "model": model_facts(config.preset, model),
        "trained": config.training.what,
        "encoder_is_trained": config.training.what not in ("head", "features"),
        "parameters": {"trainable": counts.trainable, "total": counts.total},
        "optimizer": {"name": "adamw", **adamw_settings(config)},
    }
    say(
        f"Fine-tuning {counts.trainable:,} of {counts.total:,} parameters on "
        f"{keras.backend.backend()}: {len(train):,} examples."
    )
    few = train.rows(range(min(SMOKE_ROWS, len(train))))
    y = TASKS[train.task].targets(few.labels, model)
    y = model.label_ids(y) if hasattr(model, "label_ids") else y
    batch = next(iter(model.preprocessor.dataset(few.x, y, batch_size=SMOKE_ROWS)))
    seen = record["smoke_check"] = smoke_check(model, batch)
    say(describe(seen))


def make_model_quietly(config: Config, train: Examples, seed: int) -> keras.Model:
    """Return what `make_model` does; what is new in the model has been said already."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The checkpoint .* has no ")
        return make_model(config, train, seed)


def _settings(config):
    """Return every combination of what is listed."""
    training = config.training
    values = (training.batch_size, training.learning_rate, training.epochs)
    for combination in itertools.product(*values):
        yield dict(zip(("batch_size", "learning_rate", "epochs"), combination, strict=True))


def adamw_settings(config: Config) -> dict[str, Any]:
    """Return the optimiser's settings that all trainings share."""
    training = config.training
    names = ("warmup", "weight_decay", "layer_decay")
    return {name: getattr(training, name) for name in names} | {"clipnorm": 1.0}


class _Scored(keras.callbacks.Callback):
    """Scores dev after each epoch, keeps the weights that are to be kept, and ends a training."""

    def __init__(self, task_model, config, dev, batch_size, say, until_learnt):
        super().__init__()
        # Keras's own `model` is a head alone where features are computed once.
        self.task_model, self.dev, self.batch_size, self.say = task_model, dev, batch_size, say
        self.patience = config.training.early_stopping
        self.until_learnt = until_learnt
        self.history, self.best = [], None

    def on_epoch_end(self, epoch, logs=None):
        """Score, and keep the epoch if it is the best one or each one is."""
        loss = float(logs["loss"])
        if not math.isfinite(loss):
            raise ValueError(f"The loss of epoch {epoch + 1} is {loss}.")
        if hasattr(self.task_model, "no_answer_threshold"):
            self.task_model.no_answer_threshold = None
        predictions = TASKS[self.dev.task].predict(self.task_model, self.dev.x, self.batch_size)
        predictions, attributes = TASKS[self.dev.task].tune(self.dev.labels, predictions)
        scores = scores_of(self.dev, predictions)
        self.history.append({"epoch": epoch + 1, "loss": loss, "dev": scores})
        self.say(f"  epoch {epoch + 1}: loss {loss:.4f}, dev {_words(scores)}")
        measure = next(iter(scores.values()))
        if self.best is None or self.patience is None or measure > self.best["measure"]:
            self.best = {
                "measure": measure,
                "epoch": epoch + 1,
                "dev": scores,
                "predictions": predictions,
                "attributes": attributes,
                "weights": self.task_model.get_weights() if self.patience else None,
            }
        is_stale = self.patience and epoch + 1 - self.best["epoch"] >= self.patience
        is_learnt = self.until_learnt and not wrong_ids(self.dev, predictions)
        if is_stale or is_learnt:
            self.model.stop_training = True


def _train(config, parts, setting, say, until_learnt=False):
    """Train once; return what came of it, and the model as it is at the end."""
    training, train = config.training, parts["train"]
    model = make_model_quietly(config, train, setting["seed"])
    say(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in setting.items()))
    scored = _Scored(model, config, parts["dev"], setting["batch_size"], say, until_learnt)
    y = TASKS[train.task].targets(train.labels, model)
    arguments = {
        "batch_size": setting["batch_size"],
        "epochs": setting["epochs"],
        "sample_weight": _example_weights(training, train),
        "callbacks": [scored],
        "verbose": 1 if sys.stdout.isatty() else 0,
    }
    if training.gradual_unfreezing:
        arguments["callbacks"].append(GradualUnfreezing())
    start = time.perf_counter()
    if training.what == "features":
        fit_head(model, train.x, y, learning_rate=setting["learning_rate"], **arguments)
    else:
        rates = layer_learning_rates(model, training.layer_decay)
        model.compile(
            optimizer=adamw(
                WarmupLinearDecay(setting["learning_rate"], training.warmup),
                weight_decay=training.weight_decay,
                layer_rates=rates if training.layer_decay < 1 else None,
            )
        )
        model.fit(train.x, y, seed=setting["seed"], packed=training.packed, **arguments)
    seconds = time.perf_counter() - start
    best = {**scored.best, "weights": scored.best["weights"] or model.get_weights()}
    del best["measure"]
    return Trained(setting, history=scored.history, seconds=seconds, **best), model


def _example_weights(training, train):
    """Return a weight an example under which all classes weigh the same, or None."""
    if training.class_weights == "none":
        return None
    if train.task != "classification":
        raise ValueError(f"`training.class_weights` is for classes, not for {train.task!r}.")
    names, numbers, counts = np.unique(train.labels, return_inverse=True, return_counts=True)
    return (len(numbers) / (len(names) * counts))[numbers].astype("float32")


def _choose(trained):
    """Return the training that is chosen, and a row for each combination of settings."""
    groups = {}
    for each in trained:
        key = tuple((name, value) for name, value in each.setting.items() if name != "seed")
        groups.setdefault(key, []).append(each)
    measure = next(iter(trained[0].dev))
    rows = []
    for key, members in groups.items():
        row = {**dict(key), "restarts": len(members)}
        for name in trained[0].dev:
            values = [each.dev[name] for each in members]
            row[f"dev {name}, mean"] = float(np.mean(values))
            if len(values) > 1:
                row[f"dev {name}, standard deviation"] = float(np.std(values, ddof=1))
        rows.append(row)
    best = max(range(len(rows)), key=lambda i: rows[i][f"dev {measure}, mean"])
    return _best(list(groups.values())[best]), rows


def _best(trained):
    return max(trained, key=lambda each: next(iter(each.dev.values())))


def _with_weights_of(kept, trained):
    """Return trainings without the weights of any but one: a model may be large."""
    return [each if each is kept else each._replace(weights=[]) for each in trained]


def _restore(model, config, chosen):
    """Give a model of the last training the weights of the chosen one, and an optimiser anew."""
    if config.training.gradual_unfreezing:
        train_only(model, "all")
    model.set_weights(chosen.weights)
    for name, value in chosen.attributes.items():
        setattr(model, name, value)
    model.compile()


def _predict(examples, model, batch_size):
    return TASKS[examples.task].predict(model, examples.x, batch_size)


def _results(config, parts, model, trained, chosen):
    counts = parameter_counts(model)
    results = {
        "backend": keras.backend.backend(),
        "preset": config.preset,
        "task": parts["train"].task,
        "trainable parameters": counts.trainable,
        "parameters": counts.total,
        **{
            f"{'training' if name == 'train' else name} examples": len(examples)
            for name, examples in parts.items()
        },
        "trainings": len(trained),
        "seconds": sum(each.seconds for each in trained),
        **{f"dev {name}": value for name, value in chosen.dev.items()},
    }
    if len(trained) > 1:
        results["dev scores are the best of"] = len(trained)
    if parts["train"].task == "classification":
        labels = [parts[name].labels for name in ("train", "dev")]
        results["dev accuracy of the majority class"] = majority_accuracy(*labels)
    return results


def _words(scores):
    return ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in scores.items())
