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
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_bert_zoo.data.sources import Examples
from keras_bert_zoo.data.splits import leakage_lines
from keras_bert_zoo.evaluation.baselines import majority_accuracy
from keras_bert_zoo.models import preset_folder, whole_folder
from keras_bert_zoo.models.features import fit_head
from keras_bert_zoo.presets import find_card, from_preset
from keras_bert_zoo.training.finetuning_config import Config
from keras_bert_zoo.training.finetuning_data import (
    check_data,
    data_facts,
    example_weights,
    leaks,
    read_splits,
)
from keras_bert_zoo.training.finetuning_tasks import TASKS, scores_of, wrong_ids
from keras_bert_zoo.training.optimizer import WarmupLinearDecay, adamw
from keras_bert_zoo.training.record import versions, vocabulary_facts, write_json
from keras_bert_zoo.training.smoke_check import SMOKE_ROWS, describe, smoke_check
from keras_bert_zoo.training.transfer import (
    GradualUnfreezing,
    layer_learning_rates,
    parameter_counts,
    train_only,
)

FORMAT = "keras_bert_zoo fine-tuning"

_OVERFIT_EPOCHS = 100


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
        **(
            {"pooling": model.pooling, "layers": model.layer_way}
            if hasattr(model, "pooling")
            else {}
        ),
    }


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
        **config.head,
    )
    if task.model == "text_classifier":
        model.preprocessor.columns = len(train.columns)
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
        check_data(config, parts)
        record |= {"task": parts["train"].task, "data": data_facts(parts)}
        record["data"] |= {"split_rule": rule, "leakage": leaks(parts)}
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
        check_data(config, parts)
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
        "sample_weight": example_weights(training, train),
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
