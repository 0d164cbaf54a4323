"""The examples of a fine-tuning: read, split, checked, and what a record says of them."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping

import numpy as np

from keras_bert_zoo.data.sources import Columns, Examples, has_own_splits, read_examples
from keras_bert_zoo.data.splits import given_splits, leakage, random_splits
from keras_bert_zoo.training.finetuning_config import Config, Training
from keras_bert_zoo.training.finetuning_tasks import TASKS


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
        if len(examples.columns) != len(train.columns):
            raise ValueError(
                f"{examples.source!r} has {len(examples.columns)} columns of texts, but the "
                f"training examples have {len(train.columns)}. On the command line --second names "
                "the second."
            )
    return {name: parts[name] for name in ("train", "dev", "test") if name in parts}, rule


def check_data(config: Config, parts: Mapping[str, Examples]) -> None:
    """Refuse what can't be learnt from these examples, before anything is loaded.

    Raises:
        ValueError: there is nothing to tell apart; an example to be scored has a label that no
            training example has, named by its id; or a setting is not for the task.
    """
    train = parts["train"]
    if TASKS[train.task].model != "text_classifier":
        of_texts = {f"`{name}` {value!r}": "" for name, value in config.head.items()}
        if config.training.what == "features":
            of_texts["`training.what` 'features'"] = ": 'head' trains as few weights"
        for setting, hint in of_texts.items():
            raise ValueError(
                f"{setting} is for the classes, numbers or labels of texts, and not for "
                f"{train.task!r}{hint}."
            )
    example_weights(config.training, train)
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


def leaks(parts: Mapping[str, Examples]) -> list[dict]:
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
            # The training examples are the rest.
            **({"ids": examples.ids} if name in ("dev", "test") else {}),
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


def example_weights(training: Training, train: Examples) -> np.ndarray | None:
    """Return a weight an example under which all classes weigh the same, or None.

    Raises:
        ValueError: they are asked for, and the task has no classes.
    """
    if training.class_weights == "none":
        return None
    if train.task != "classification":
        raise ValueError(f"`training.class_weights` is for classes, not for {train.task!r}.")
    names, numbers, counts = np.unique(train.labels, return_inverse=True, return_counts=True)
    return (len(numbers) / (len(names) * counts))[numbers].astype("float32")
