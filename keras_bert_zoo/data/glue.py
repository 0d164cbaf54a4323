"""GLUE: a table of its tasks, a row for each column of its leaderboard, and their reader."""

import os
import pathlib
from collections.abc import Mapping
from typing import NamedTuple

from keras_bert_zoo.data.tables import column, read_table, read_tsv

_SPLITS = {
    "train": ("train.tsv", "train"),
    "dev": ("dev.tsv", "validation"),
    "test": ("test.tsv", "test"),
}
_TRAIN = _SPLITS["train"]
_NLI = ("entailment", "neutral", "contradiction")
_ENTAILED = ("entailment", "not_entailment")
_DIGITS = ("0", "1")
_PAIR = ("sentence1", "sentence2")
_PREMISE = ("premise", "hypothesis")


class GlueTask(NamedTuple):
    """A task of GLUE (Wang et al. 2019): its files, its labels and its measures.

    Args:
        name: the column's on the leaderboard; `{name}.tsv` is the file to be submitted.
        folder: of the official files.
        tfds: the configuration of the data set `glue` in TensorFlow Datasets.
        columns: of texts, in the official files.
        classes: names in the order of the class numbers; of regression none.
        metrics: what the leaderboard shows; the first is the one that the BERT paper reports.
        test_size: examples of the test set.
        label: the column of labels in the official files.
        written: how the files spell the classes; their names, where not given.
        tfds_columns: of texts, in TensorFlow Datasets; `columns`, where not given.
        splits: for each split its file, and what it is called in TensorFlow Datasets.
        headless: the columns of the train and dev files, where they don't name them.
        has_broken_lines: whether some lines of the official train file are broken in two.
    """

    name: str
    folder: str
    tfds: str
    columns: tuple[str, ...]
    classes: tuple[str, ...]
    metrics: tuple[str, ...]
    test_size: int
    label: str = "label"
    written: tuple[str, ...] = ()
    tfds_columns: tuple[str, ...] = ()
    splits: Mapping[str, tuple[str, str]] = _SPLITS
    headless: tuple[str, ...] = ()
    has_broken_lines: bool = False

    @property
    def is_regression(self) -> bool:
        """Whether the labels are numbers."""
        return not self.classes

    @property
    def is_pair(self) -> bool:
        """Whether an example is a pair of texts."""
        return len(self.columns) == 2


def _mnli(name, kind, test_size):
    return GlueTask(
        name=name,
        folder="MNLI",
        tfds="mnli",
        columns=_PAIR,
        classes=_NLI,
        metrics=("accuracy",),
        test_size=test_size,
        label="gold_label",
        tfds_columns=_PREMISE,
        splits={
            "train": _TRAIN,
            "dev": (f"dev_{kind}.tsv", f"validation_{kind}"),
            "test": (f"test_{kind}.tsv", f"test_{kind}"),
        },
    )


GLUE_TASKS = {
    task.name: task
    for task in (
        GlueTask(
            name="CoLA",
            folder="CoLA",
            tfds="cola",
            columns=("sentence",),
            classes=("unacceptable", "acceptable"),
            metrics=("matthews_correlation",),
            test_size=1063,
            written=_DIGITS,
            headless=("source", "label", "original_label", "sentence"),
        ),
        GlueTask(
            name="SST-2",
            folder="SST-2",
            tfds="sst2",
            columns=("sentence",),
            classes=("negative", "positive"),
            metrics=("accuracy",),
            test_size=1821,
            written=_DIGITS,
        ),
        GlueTask(
            name="MRPC",
            folder="MRPC",
            tfds="mrpc",
            columns=("#1 String", "#2 String"),
            classes=("not_equivalent", "equivalent"),
            metrics=("f1", "accuracy"),
            test_size=1725,
            label="Quality",
            written=_DIGITS,
            tfds_columns=_PAIR,
        ),
        GlueTask(
            name="STS-B",
            folder="STS-B",
            tfds="stsb",
            columns=_PAIR,
            classes=(),
            metrics=("spearman", "pearson"),
            test_size=1379,
            label="score",
        ),
        GlueTask(
            name="QQP",
            folder="QQP",
            tfds="qqp",
            columns=("question1", "question2"),
            classes=("not_duplicate", "duplicate"),
            metrics=("f1", "accuracy"),
            test_size=390_965,
            label="is_duplicate",
            written=_DIGITS,
            has_broken_lines=True,
        ),
        _mnli("MNLI-m", "matched", test_size=9796),
        _mnli("MNLI-mm", "mismatched", test_size=9847),
        GlueTask(
            name="QNLI",
            folder="QNLI",
            tfds="qnli",
            columns=("question", "sentence"),
            classes=_ENTAILED,
            metrics=("accuracy",),
            test_size=5463,
        ),
        GlueTask(
            name="RTE",
            folder="RTE",
            tfds="rte",
            columns=_PAIR,
            classes=_ENTAILED,
            metrics=("accuracy",),
            test_size=3000,
        ),
        GlueTask(
            name="WNLI",
            folder="WNLI",
            tfds="wnli",
            columns=_PAIR,
            classes=("not_entailment", "entailment"),
            metrics=("accuracy",),
            test_size=146,
            written=_DIGITS,
        ),
        # The diagnostics are no task of the nine: what was trained on MNLI answers them.
        GlueTask(
            name="AX",
            folder="diagnostic",
            tfds="ax",
            columns=_PAIR,
            classes=_NLI,
            metrics=("matthews_correlation",),
            test_size=1104,
            tfds_columns=_PREMISE,
            splits={"test": ("diagnostic.tsv", "test")},
        ),
    )
}
# The names of TensorFlow Datasets, and the leaderboard's. `mnli` alone is the matched half.
_BY_NAME = {
    **{task.tfds: task for task in reversed(GLUE_TASKS.values())},
    **{name.lower().replace("-", ""): task for name, task in GLUE_TASKS.items()},
    "mnlimatched": GLUE_TASKS["MNLI-m"],
    "mnlimismatched": GLUE_TASKS["MNLI-mm"],
}


def glue_task(name: str) -> GlueTask:
    """Return the task of a name: the leaderboard's, or that of TensorFlow Datasets.

    Case, hyphens and underscores don't count, and a `glue/` before the name neither. `mnli`
    is `MNLI-m`: the training set of both, and the matched dev and test sets.

    Raises:
        ValueError: there is no such task.

    Example:
        >>> glue_task("glue/sst2").name, glue_task("sts-b").metrics
        ('SST-2', ('spearman', 'pearson'))
    """
    short = name.lower().removeprefix("glue/").replace("-", "").replace("_", "")
    if short not in _BY_NAME:
        raise ValueError(f"GLUE has no task {name!r}. It has: {', '.join(GLUE_TASKS)}.")
    return _BY_NAME[short]


def read_glue(task: str, split: str, folder: str | os.PathLike | None = None) -> dict[str, list]:
    """Return the examples of a split of a GLUE task, as columns.

    Args:
        task: a name that `glue_task` knows, such as `"glue/sst2"` or `"SST-2"`.
        split: `"train"`, `"dev"` or `"test"`. The diagnostics `AX` have `"test"` alone.
        folder: the official files, as `CoLA/train.tsv`, or the folder of the one task. Where
            not given the data set is read from TensorFlow Datasets.

    Returns:
        Lists of equal length in the official order: `id`, the number that the official file
        or TensorFlow Datasets gives an example; `text`; of pairs `second`; and `label`, names
        of classes, of STS-B numbers from 0 to 5, and None where it is held back.

        MRPC is read from GLUE's files or from Microsoft's two, whose test set has its labels.
        A list `dev_ids.tsv` or `mrpc_dev_ids.tsv` beside these parts them as GLUE does;
        without one, train is all of Microsoft's training set and there is no dev. Lines of
        QQP's training set that are broken in two are left out with a warning.

    Raises:
        ValueError: the task, the split or a file is missing, or a file has not the official
            layout.

    Example:
        >>> import tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "dev.tsv").write_text("sentence\\tlabel\\na fine film\\t1\\n")
        >>> read_glue("SST-2", "dev", folder)
        {'id': [0], 'text': ['a fine film'], 'label': ['positive']}
    """
    row = glue_task(task)
    if split not in row.splits:
        raise ValueError(f"{row.name} has no split {split!r}. It has: {list(row.splits)}.")
    columns = _read_tfds(row, split) if folder is None else _read_official(row, split, folder)
    names = ("id", "text", "second", "label") if row.is_pair else ("id", "text", "label")
    return dict(zip(names, columns, strict=True))


def _read_tfds(task, split):
    source = f"tfds:glue/{task.tfds}:{task.splits[split][1]}"
    table = read_table(source)
    ids, *texts, labels = (
        column(table, name, source)
        for name in ("idx", *(task.tfds_columns or task.columns), "label")
    )
    if task.is_regression:
        # TFDS's number for what is held back.
        labels = [None if label < 0 else label for label in labels]
    unknown = set(labels) - {*task.classes, None}
    if unknown and not task.is_regression:
        raise ValueError(f"{source!r} has labels that {task.name} has not: {sorted(unknown)}.")
    # TFDS keeps its examples shuffled; a submission goes by the official order.
    order = sorted(range(len(ids)), key=ids.__getitem__)
    return [[values[i] for i in order] for values in (ids, *texts, labels)]


def _read_official(task, split, folder):
    given = pathlib.Path(folder)
    folder = given / task.folder if (given / task.folder).is_dir() else given
    file = task.splits[split][0]
    path, microsoft = folder / file, folder / _MICROSOFT[split]
    if task.name == "MRPC" and not path.is_file() and microsoft.is_file():
        path = microsoft
        table = _read_microsoft(path, split)
    elif not path.is_file():
        raise ValueError(
            f"{str(given)!r} has neither {task.folder}/{file} of {task.name} nor {file}."
        )
    else:
        table = read_tsv(
            path,
            names=task.headless if task.headless and split != "test" else None,
            drop_ragged=task.has_broken_lines and split == "train",
        )
    texts = [column(table, name, str(path)) for name in task.columns]
    count = len(texts[0])
    index = next((table[name] for name in ("index", "id") if name in table), range(count))
    try:
        ids = [int(i) for i in index]
    except ValueError as error:
        raise ValueError(
            f"The first column of {str(path)!r} must hold numbers: {error}."
        ) from error
    if task.label not in table and split != "test":
        raise ValueError(f"{str(path)!r} has no column {task.label!r}. It has: {list(table)}.")
    labels = [
        _label(task, value, f"Row {number} of {str(path)!r}")
        for number, value in enumerate(table.get(task.label, ()), 1)
    ]
    return ids, *texts, labels or [None] * count


def _label(task, value, place):
    if task.is_regression:
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if 0 <= number <= 5:
            return number
        raise ValueError(f"{place} must have a score from 0 to 5. Received: {value!r}.")
    written = task.written or task.classes
    if value not in written:
        raise ValueError(f"{place} must have a label of {list(written)}. Received: {value!r}.")
    return task.classes[written.index(value)]


_MICROSOFT = {
    "train": "msr_paraphrase_train.txt",
    "dev": "msr_paraphrase_train.txt",
    "test": "msr_paraphrase_test.txt",
}


def _read_microsoft(path, split):
    table = read_tsv(path)
    if split == "test":
        return table
    lists = [path.with_name(name) for name in ("dev_ids.tsv", "mrpc_dev_ids.tsv")]
    lists = [name for name in lists if name.is_file()]
    if not lists:
        if split == "train":
            return table
        raise ValueError(
            f"Which pairs of {str(path)!r} are GLUE's dev set says a file dev_ids.tsv or "
            "mrpc_dev_ids.tsv, which is not there. Read train, and split it, or read test."
        )
    pair = ("#1 ID", "#2 ID")
    dev = set(zip(*read_tsv(lists[0], names=pair).values(), strict=True))
    ids = zip(*(column(table, name, str(path)) for name in pair), strict=True)
    chosen = [(row in dev) == (split == "dev") for row in ids]
    return {
        name: [value for value, is_in in zip(values, chosen, strict=True) if is_in]
        for name, values in table.items()
    }
