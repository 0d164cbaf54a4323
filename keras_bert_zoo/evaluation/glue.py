"""GLUE's scores, its averages, and the files of its leaderboard."""

import os
import pathlib
import warnings
from collections.abc import Mapping, Sequence
from numbers import Integral, Real

import numpy as np

from keras_bert_zoo.data.glue import GLUE_TASKS, GlueTask, glue_task
from keras_bert_zoo.whole_files import write_whole


def glue_score(task: str, labels: Sequence, predictions: Sequence) -> dict[str, float]:
    """Return a task's own measures, by the packages scikit-learn and SciPy.

    Args:
        task: a name that `glue_task` knows.
        labels, predictions: an item an example: a class's name or its number, or of STS-B a
            number.

    Returns:
        `accuracy`, `f1` of class 1, `matthews_correlation`, `pearson` and `spearman`, as the
        leaderboard has them for the task, between -1 or 0 and 1; and `score`, their mean,
        which is what enters GLUE's average. A correlation with what is always the same is
        taken as 0.

    Raises:
        ValueError: the task or a class is not known, a label is held back, there are not as
            many predictions as labels, a number is not finite, or a package is missing.

    Example:
        >>> scores = glue_score("mrpc", [1, 1, 1, 0], ["equivalent", "equivalent", 0, 0])
        >>> scores["f1"], scores["accuracy"], scores["score"]
        (0.8, 0.75, 0.775)
    """
    row = glue_task(task)
    if len(labels) != len(predictions) or not len(labels):
        raise ValueError(
            f"`predictions` must hold one an example. Received: {len(predictions)} for "
            f"{len(labels)} labels."
        )
    labels, predictions = _numbers(row, labels, "labels"), _numbers(row, predictions, "predictions")
    measures = _measures()
    scores = {name: float(measures[name](labels, predictions)) for name in row.metrics}
    return {**scores, "score": float(np.mean(list(scores.values())))}


def glue_average(scores: Mapping[str, Mapping[str, float]]) -> dict:
    """Return GLUE's averages over the tasks that were scored.

    By GLUE's rule (Wang et al. 2019) a task with two measures counts with their mean, and MNLI
    once, with the mean of its matched and mismatched halves. AX counts in none.

    Args:
        scores: for each task its measures, as `glue_score` returns them; in any one unit.

    Returns:
        `mean`, by that rule over the `tasks` given, whose names stand beside it. Where no
        task that it needs is missing also `glue_score`, the mean over all nine, which on
        test sets is the leaderboard's; `glue_score_without_wnli`, over the other eight; and
        `bert_paper_average`, as in Devlin et al. 2018: without WNLI, one measure a task,
        which is F1 for QQP and MRPC and Spearman for STS-B, and both halves of MNLI.

    Raises:
        ValueError: a task is not known, a measure of one is missing, or there are none.

    Example:
        >>> average = glue_average({"RTE": {"accuracy": 0.6}, "mrpc": {"f1": 0.9, "accuracy": 0.8}})
        >>> round(average["mean"], 3), average["tasks"]
        (0.725, ['MRPC', 'RTE'])
    """
    given = {}
    for name, measures in scores.items():
        row = glue_task(name)
        missing = set(row.metrics) - set(measures)
        if missing:
            raise ValueError(f"The scores of {name!r} lack {sorted(missing)}.")
        given[row.name] = measures
    # In the order of the leaderboard.
    tasks = [task for task in GLUE_TASKS.values() if task.name in given and task.name != "AX"]
    if not tasks:
        raise ValueError("There are no scores of GLUE's tasks to average.")
    result = {"mean": _mean(tasks, given), "tasks": [task.name for task in tasks]}
    nine = [task for task in GLUE_TASKS.values() if task.name != "AX"]
    eight = [task for task in nine if task.name != "WNLI"]
    if all(task in tasks for task in nine):
        result["glue_score"] = _mean(nine, given)
    if all(task in tasks for task in eight):
        result["glue_score_without_wnli"] = _mean(eight, given)
        result["bert_paper_average"] = float(
            np.mean([given[task.name][task.metrics[0]] for task in eight])
        )
    return result


def write_glue_submission(
    folder: str | os.PathLike, task: str, ids: Sequence[int], predictions: Sequence
) -> pathlib.Path:
    """Write what GLUE's leaderboard takes for one task, such as `MNLI-m.tsv`.

    A submission is a zip archive of the files of all tasks.

    Args:
        folder: is made if need be.
        task: a name that `glue_task` knows.
        ids: the test set's, as `read_glue` returns them; the file is in their order.
        predictions: for each a class's name or number; of STS-B a number, which is brought
            between 0 and 5.

    Returns:
        The file's path. It has the columns `index` and `prediction`.

    Raises:
        ValueError: some example of the test set has no prediction or has two, or a class is
            not known.

    Example:
        >>> import tempfile
        >>> predictions = ["not_entailment"] * 146
        >>> path = write_glue_submission(tempfile.mkdtemp(), "wnli", range(146), predictions)
        >>> path.name, path.read_text()[:20]
        ('WNLI.tsv', 'index\\tprediction\\n0\\t0')
    """
    row = glue_task(task)
    if len(ids) != len(predictions) or sorted(ids) != list(range(row.test_size)):
        raise ValueError(
            f"The leaderboard takes one prediction for each of {row.name}'s test examples 0 to "
            f"{row.test_size - 1}. Received: {len(predictions)} predictions for {len(ids)} ids, "
            f"{len(set(ids))} of them different."
        )
    numbers = _numbers(row, predictions, "predictions")
    if row.is_regression:
        written = [f"{number:.3f}" for number in numbers.clip(0, 5)]
    else:
        written = [(row.written or row.classes)[number] for number in numbers]
    lines = [f"{i}\t{text}\n" for i, text in sorted(zip(ids, written, strict=True))]
    path = pathlib.Path(folder) / f"{row.name}.tsv"
    write_whole(path, "".join(["index\tprediction\n", *lines]).encode())
    return path


def _mean(tasks, given):
    """Return GLUE's macro-average: measures, then what shares a folder, then those."""
    folders = {}
    for task in tasks:
        score = np.mean([given[task.name][name] for name in task.metrics])
        folders.setdefault(task.folder, []).append(score)
    return float(np.mean([np.mean(values) for values in folders.values()]))


def _numbers(task: GlueTask, values, argument):
    """Return class numbers, or the numbers of STS-B, whichever way they were given."""
    numbers = []
    for index, value in enumerate(values):
        if task.is_regression:
            is_known = isinstance(value, Real) and np.isfinite(value)
        elif isinstance(value, str):
            is_known = value in task.classes
            value = task.classes.index(value) if is_known else value
        else:
            is_known = isinstance(value, Integral) and 0 <= value < len(task.classes)
        if not is_known:
            expected = "a finite number" if task.is_regression else f"one of {list(task.classes)}"
            raise ValueError(
                f"`{argument}[{index}]` of {task.name} must be {expected}"
                f"{'' if task.is_regression else ', or its number'}. Received: {value!r}."
            )
        numbers.append(value)
    return np.array(numbers)


def _measures():
    try:
        from scipy import stats
        from sklearn import metrics
    except ImportError as error:
        raise ValueError(
            "GLUE's scores need the packages scikit-learn and scipy, and one is not installed: "
            'pip install "keras_bert_zoo[evaluation]".'
        ) from error

    def correlation(function):
        def of(labels, predictions):
            # SciPy has none where nothing varies; 0 says what such a model has learnt.
            if np.ptp(labels) == 0 or np.ptp(predictions) == 0:
                return 0.0
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", stats.NearConstantInputWarning)
                return function(labels, predictions)[0]

        return of

    return {
        "accuracy": metrics.accuracy_score,
        "f1": lambda labels, predictions: metrics.f1_score(labels, predictions, zero_division=0),
        "matthews_correlation": metrics.matthews_corrcoef,
        "pearson": correlation(stats.pearsonr),
        "spearman": correlation(stats.spearmanr),
    }
