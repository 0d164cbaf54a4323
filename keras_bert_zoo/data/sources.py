"""One way to name data of every task, and one form that all of them are read in.

`glue/NAME` and `xnli/LANGUAGE` are data sets with splits of their own: from TensorFlow Datasets, or
with `=FOLDER` behind from the official files. `squad:FILE`, `conll:FILE`, `swag:FILE` and
`codah:FILE` are files in a format. What has neither before it is a table of texts and labels.
"""

import dataclasses
import math
import os
import pathlib
from collections.abc import Sequence
from dataclasses import dataclass

from keras_bert_zoo.data.conll import read_conll
from keras_bert_zoo.data.glue import glue_task, read_glue
from keras_bert_zoo.data.multiple_choice import read_codah, read_swag
from keras_bert_zoo.data.squad import read_squad
from keras_bert_zoo.data.tables import column, read_table, text_columns
from keras_bert_zoo.data.xnli import XNLI_CLASSES, read_xnli

# What a table of texts can be for.
TABLE_TASKS = ("classification", "regression", "labels")


@dataclass(frozen=True)
class Columns:
    """What a table's columns are called; None where it has none."""

    text: str = "text"
    second: str | None = None
    label: str | None = "label"
    id: str | None = None
    # Where a row comes from, such as a document or a speaker.
    group: str | None = None
    # Which rows are for what: train, dev or test.
    split: str | None = None


@dataclass(frozen=True)
class Examples:
    """Examples of one task.

    Args:
        source: the name that they were read by.
        task: `classification`, `regression`, `labels`, `tagging`, `question_answering` or
            `multiple_choice`.
        columns: what a model's `fit` takes for `x`, a list or two of equal length: texts, pairs,
            sentences of words, questions and passages, or prompts and lists of choices.
        labels: a class's name, a number, a list of names, of tags, of answers, or a choice's
            number each; None where it is held back.
        ids: what an example is called: what the source calls it, or its row's number.
        groups, splits: columns of a table, or None.
        classes: names of the classes, where the source says them.
        glue: the task of GLUE whose measures count.
        files: what was read.
    """

    source: str
    task: str
    columns: tuple[list, ...]
    labels: list
    ids: list
    groups: list | None = None
    splits: list | None = None
    classes: tuple[str, ...] | None = None
    glue: str | None = None
    files: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def x(self):
        """What `fit`, `predict` and the like take."""
        return self.columns[0] if len(self.columns) == 1 else self.columns

    @property
    def texts(self) -> list[list[str]]:
        """The columns with one string a row."""
        return [
            [value if isinstance(value, str) else " ".join(value) for value in values]
            for values in self.columns
        ]

    def rows(self, numbers: Sequence[int]) -> "Examples":
        """Return some of the examples, in the order of their numbers."""

        def chosen(values):
            return None if values is None else [values[number] for number in numbers]

        return dataclasses.replace(
            self,
            columns=tuple(chosen(values) for values in self.columns),
            **{name: chosen(getattr(self, name)) for name in ("labels", "ids", "groups", "splits")},
        )

    def check_labelled(self) -> None:
        """Refuse examples of which some have no label.

        Raises:
            ValueError: names the first one.
        """
        if not any(label is not None for label in self.labels):
            raise ValueError(
                f"{self.source!r} has no labels. A table has them in the column `label`, or in the "
                "one that is named."
            )
        if None in self.labels:
            row = self.labels.index(None)
            raise ValueError(
                f"Row {row + 1} of {self.source!r} has no label (its id is {self.ids[row]!r})."
            )


def has_own_splits(source: str) -> bool:
    """Say whether a source is a data set, and its name leaves open which split is meant."""
    return _is_data_set(source) and ":" not in source.partition("=")[0]


def _is_data_set(source):
    first, slash, _ = source.partition("/")
    return bool(slash) and first in _DATA_SETS and not os.path.isfile(source)


def read_examples(
    source: str, split: str = "train", task: str | None = None, columns: Columns | None = None
) -> Examples:
    """Return the examples that a source names.

    Args:
        source: a table, as `read_table` takes it, with the columns that `columns` names;
            `glue/NAME` or `xnli/LANGUAGE`, as in `glue/sst2`, `glue/SST-2=FOLDER` and
            `xnli/zh:test=FOLDER`; `squad:FILE.json` or `squad:tfds:name:split`; `conll:FILE`;
            `swag:TABLE`; or `codah:FILE`.
        split: which one of a data set that has splits and whose name has none behind a colon.
        task: what a table is for, one of `TABLE_TASKS`, or None, which is the first. The other
            sources say it themselves.
        columns: of a table.

    Raises:
        ValueError: the source can't be read, or its task is another.

    Example:
        >>> import tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "films.csv"
        >>> _ = path.write_text("text,label\\na fine film,good\\n")
        >>> examples = read_examples(str(path))
        >>> examples.task, examples.columns, examples.labels, examples.ids
        ('classification', (['a fine film'],), ['good'], [0])
    """
    file_format, colon, place = source.partition(":")
    if _is_data_set(source):
        first, _, rest = source.partition("/")
        name, _, folder = rest.partition("=")
        name, _, own_split = name.partition(":")
        read = _DATA_SETS[first](name, own_split or split, folder or None)
        examples = Examples(source, **read)
    elif colon and file_format in _FORMATS:
        read = _FORMATS[file_format](place)
        read.setdefault("ids", list(range(len(read["labels"]))))
        files = (place,) if os.path.isfile(place) else ()
        examples = Examples(source, files=files, **read)
    else:
        return _table(source, task or TABLE_TASKS[0], columns or Columns())
    if task not in (None, examples.task):
        raise ValueError(f"`task` is {task!r}, but {source!r} is for {examples.task!r}.")
    return examples


def _table(source, task, names):
    if task not in TABLE_TASKS:
        formats = ", ".join(f"{name}:" for name in _FORMATS)
        raise ValueError(
            f"A table of texts is for one of {list(TABLE_TASKS)}, not for {task!r}. Files of other "
            f"tasks have their format before them, one of {formats}. Received: {source!r}."
        )
    table = read_table(source)
    texts = text_columns(table, names.text, names.second, source)
    given = {
        name: column(table, getattr(names, name), source)
        for name in ("id", "group", "split")
        if getattr(names, name) is not None
    }
    count = len(texts[0])
    # Texts alone are a table too, if no column of labels was asked for.
    if names.label in (None, Columns.label) and names.label not in table:
        labels = [None] * count
    else:
        labels = column(table, names.label, source)
    return Examples(
        source,
        task,
        texts,
        [_label(task, label, row, source) for row, label in enumerate(labels, 1)],
        given.get("id", list(range(count))),
        given.get("group"),
        given.get("split"),
        files=(source,) if os.path.isfile(source) else (),
    )


def _label(task, label, row, source):
    if label is None:
        return None
    if task == "classification":
        # A name, whatever kind of table it comes from; an empty field of a CSV has none.
        return str(label) if str(label).strip() else None
    if task == "labels":
        names = label.split(",") if isinstance(label, str) else label
        return [str(name).strip() for name in names if str(name).strip()]
    if isinstance(label, str) and not label.strip():
        return None
    try:
        number = float(label)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(
            f"Row {row} of {source!r} must have a number for its label. Received: {label!r}."
        )
    return number


# === Data sets with splits of their own ===


def _glue(name, split, folder):
    task = glue_task(name)
    table = read_glue(name, split, folder)
    return {
        **_of_table(table),
        "task": "regression" if task.is_regression else "classification",
        "classes": task.classes or None,
        "glue": task.name,
        "files": _files(folder, task.folder),
    }


def _xnli(language, split, folder):
    table = read_xnli(language, split, folder)
    return {
        **_of_table(table),
        "task": "classification",
        "classes": XNLI_CLASSES,
        "files": _files(folder, "."),
    }


def _of_table(table):
    columns = tuple(table[name] for name in ("text", "second") if name in table)
    return {"columns": columns, "labels": table["label"], "ids": table["id"]}


def _files(folder, inner):
    """Return the files in a data set's folder, or in the one inside it that has its name."""
    if folder is None:
        return ()
    folder = pathlib.Path(folder)
    folder = folder / inner if (folder / inner).is_dir() else folder
    return tuple(sorted(str(path) for path in folder.iterdir() if path.is_file()))


_DATA_SETS = {"glue": _glue, "xnli": _xnli}


# === Files in a format ===


def _squad(place):
    table = read_squad(place)
    rows = zip(table["answers"], table["is_impossible"], strict=True)
    # The questions on one article stay together.
    titles = zip(table["title"], table["context"], strict=True)
    return {
        "task": "question_answering",
        "columns": (table["question"], table["context"]),
        "labels": [answers if answers or impossible else None for answers, impossible in rows],
        "ids": table["id"],
        "groups": [title or context for title, context in titles],
    }


def _conll(place):
    sentences, tags = read_conll(place)
    return {"task": "tagging", "columns": (sentences,), "labels": tags}


def _choices(read):
    def examples(place):
        columns, labels = read(place)
        labels = [None] * len(columns[0]) if labels is None else labels
        return {"task": "multiple_choice", "columns": columns, "labels": labels}

    return examples


_FORMATS = {
    "squad": _squad,
    "conll": _conll,
    "swag": _choices(read_swag),
    "codah": _choices(read_codah),
}
