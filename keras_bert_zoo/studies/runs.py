"""The runs that studies are made of: train, score, and say what it took; and all seeds together."""

import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence

import keras
import numpy as np

from keras_bert_zoo.preprocessing import (
    BertTextClassifierPreprocessor,
    bucket_batches,
    pack_rows,
)
from keras_bert_zoo.presets import from_preset, load_tokenizer
from keras_bert_zoo.training import adamw, parameter_counts, train_only

# The buckets of `data.text_report.STRATEGIES` that are not the preprocessor's own.
_BUCKETS = {"fixed": lambda length: [], "batch": lambda length: list(range(3, length))}
# Texts that are laid into rows together, as in `data.text_report`.
_PACKING_WINDOW = 1024
# What is the same in all runs of a row.
_CONSTANT = ("trainable", "total")


def examples(texts, labels: Sequence) -> dict[str, list]:
    """Return texts, or a tuple of columns of them, and their labels, as data that JSON can hold.

    Raises:
        ValueError: the columns and the labels are not equally long, or there are none.
    """
    columns = [list(column) for column in (texts if isinstance(texts, tuple) else (texts,))]
    sizes = {len(column) for column in [*columns, labels]}
    if len(sizes) > 1 or sizes == {0}:
        raise ValueError(
            "Texts and labels must be equally many, and some. Received: "
            f"{[len(column) for column in columns]} texts and {len(labels)} labels."
        )
    return {"texts": columns, "labels": [str(label) for label in labels]}


def check_labels(train: Mapping, **scored: Mapping) -> None:
    """Refuse one class alone, and classes that can't be predicted because none was trained on."""
    known = set(train["labels"])
    if len(known) < 2:
        raise ValueError(f"The training examples have one label only, {min(known)!r}.")
    for name, part in scored.items():
        unknown = sorted(set(part["labels"]) - known)
        if unknown:
            raise ValueError(f"The {name} examples have labels that training lacks: {unknown}.")


def train_and_score(
    preset: str,
    train: Mapping,
    scored: Mapping[str, Mapping],
    *,
    what: str = "all",
    load_weights: bool = True,
    strategy: str = "bucket",
    sequence_length: int = 128,
    batch_size: int = 32,
    epochs: int = 3,
    learning_rate: float = 5e-5,
    seed: int = 0,
) -> dict:
    """Train a classifier and return its scores, what is trained in it and what it took.

    Args:
        preset: what `from_preset` takes.
        train: what `examples` returns.
        scored: by name what to score on, in the same form.
        what: what `train_only` takes.
        load_weights: False begins with random weights.
        strategy: how batches are padded, of `data.text_report.STRATEGIES`; with `"packed_rows"`
            the rows of a batch hold several texts each.
        sequence_length, batch_size, epochs, learning_rate: of training.
        seed: of new weights, dropout and the order of the texts.

    Returns:
        `trainable` and `total` parameters; `encoder_calls`, the batches of all epochs; `seconds`
        of training, compilation included; `peak_megabytes` of the process while it loads and
        trains, above what it held (an accelerator's own memory is not in it), None where that
        can't be known; and an accuracy for each name of `scored`, as `dev_accuracy`.
    """
    names = sorted(set(train["labels"]))
    tokenizer = load_tokenizer(preset)
    # TensorFlow comes in with it, which is no part of what training takes.
    tokenizer([""])
    keras.utils.set_random_seed(seed)
    held = memory_now()
    with warnings.catch_warnings():
        # A head that is new goes without saying.
        warnings.filterwarnings("ignore", "The checkpoint .* has no classifier_head:")
        model = from_preset(
            preset,
            "text_classifier",
            load_weights=load_weights,
            num_classes=len(names),
            class_names=names,
            activation=None,
        )
    train_only(model, what)
    model.compile(optimizer=adamw(learning_rate))
    buckets = _BUCKETS.get(strategy, lambda length: None)(sequence_length)
    preprocessor = BertTextClassifierPreprocessor(tokenizer, sequence_length, buckets)
    batches = preprocessor.dataset(
        tuple(train["texts"]),
        np.array([names.index(label) for label in train["labels"]]),
        batch_size=batch_size,
        shuffle=True,
        seed=seed,
        epochs=epochs,
    )
    if strategy == "bucket_batches":
        batches = bucket_batches(batches, sequence_length, batch_size, count=True)
    elif strategy == "packed_rows":
        # No more than an epoch, so that no row holds a text twice.
        window = min(_PACKING_WINDOW, len(train["labels"]))
        batches = pack_rows(batches, sequence_length, batch_size, window=window, count=True)
    start = time.perf_counter()
    model.fit(batches, verbose=0)
    seconds = time.perf_counter() - start
    results = {
        **parameter_counts(model)._asdict(),
        "encoder_calls": int(batches.cardinality()),
        "seconds": seconds,
        "peak_megabytes": peak_megabytes(held),
    }
    for name, part in scored.items():
        texts = preprocessor.dataset(tuple(part["texts"]), batch_size=batch_size)
        predicted = np.argmax(model.predict(texts, verbose=0), axis=1)
        results[f"{name}_accuracy"] = _accuracy([names[i] for i in predicted], part["labels"])
    return results


def bag_of_words(preset: str, train: Mapping, scored: Mapping[str, Mapping]) -> dict:
    """Return what logistic regression on counts of the pieces gives, as `train_and_score` does.

    The pieces are those of the preset's tokenizer, of the whole texts; a pair's are counted
    together. Nothing in it is random.

    Raises:
        ValueError: scikit-learn is not installed.
    """
    try:
        from scipy.sparse import csr_matrix
        from sklearn.linear_model import LogisticRegression
    except ImportError as error:
        raise ValueError(
            "A bag of words needs the packages scikit-learn and scipy, and one is not installed: "
            'pip install "keras_bert_zoo[evaluation]".'
        ) from error
    tokenizer = load_tokenizer(preset)
    tokenizer([""])
    held = memory_now()
    start = time.perf_counter()

    def counts(part):
        size = len(part["labels"])
        texts = [tokenizer(column) for column in part["texts"]]
        rows = [np.repeat(np.arange(size), ids.row_lengths().numpy()) for ids in texts]
        ids = np.concatenate([ids.flat_values.numpy() for ids in texts])
        places = (np.concatenate(rows), ids)
        return csr_matrix((np.ones(len(ids)), places), (size, tokenizer.vocabulary_size))

    known = counts(train)
    seen = np.unique(known.indices)
    model = LogisticRegression(max_iter=1000).fit(known[:, seen], train["labels"])
    parameters = model.coef_.size + model.intercept_.size
    results = {
        "trainable": parameters,
        "total": parameters,
        "encoder_calls": 0,
        "seconds": time.perf_counter() - start,
        "peak_megabytes": peak_megabytes(held),
    }
    for name, part in scored.items():
        predicted = model.predict(counts(part)[:, seen])
        results[f"{name}_accuracy"] = _accuracy(predicted, part["labels"])
    return results


def _accuracy(predicted, labels):
    return sum(one == other for one, other in zip(predicted, labels, strict=True)) / len(labels)


# === Memory ===


def memory_now() -> int | None:
    """Return the process's memory in bytes, and let its peak begin anew; None if not on Linux."""
    try:
        held = _memory("VmRSS")
        pathlib.Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    return held


def peak_megabytes(held: int | None) -> float | None:
    """Return how much more than `held`, what `memory_now` returned, there was at the peak."""
    return None if held is None else (_memory("VmHWM") - held) / 2**20


def _memory(name):
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(rf"{name}:\s+(\d+) kB", status)[1]) * 1024


# === Processes ===

RUNS = {"train_and_score": train_and_score, "bag_of_words": bag_of_words}
_CHILD = "from keras_bert_zoo.studies.runs import _answer; _answer()"


def run_here(name: str, **arguments) -> dict:
    """Do one of `RUNS` in this process."""
    return RUNS[name](**arguments)


def run_alone(name: str, **arguments) -> dict:
    """Do one of `RUNS` in a process of its own, on the same backend.

    There no earlier run has left memory or compiled programs behind.

    Raises:
        ValueError: as the run itself.
        ChildProcessError: the process was ended, as where memory is short.
    """
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = (pathlib.Path(folder, name) for name in ("asked.json", "answered.json"))
        asked.write_text(json.dumps([name, arguments]), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-c", _CHILD, asked, answered],
            env={**os.environ, "KERAS_BACKEND": keras.backend.backend()},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        if done.returncode:
            raise ChildProcessError(
                f"The process of a run ended with {done.returncode}: {done.stderr[-2000:]}"
            )
        error, result = json.loads(answered.read_text(encoding="utf-8"))
    if error:
        raise ValueError(error)
    return result


def _answer():
    asked, answered = map(pathlib.Path, sys.argv[1:])
    name, arguments = json.loads(asked.read_text(encoding="utf-8"))
    try:
        answer = None, run_here(name, **arguments)
    except (ValueError, TypeError, OSError, ImportError) as error:
        answer = str(error), None
    answered.write_text(json.dumps(answer), encoding="utf-8")


# === Seeds ===


def run_seeds(
    name: str,
    seeds: Sequence[int],
    *,
    separate_processes: bool = True,
    progress: Callable[[str], None] | None = None,
    title: str = "",
    **arguments,
) -> dict:
    """Do one of `RUNS` with each seed, and return all of them together, as `over_seeds`.

    `progress` is called with a line after each run, which begins with `title`.
    """
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"`seeds` must be different, and some. Received: {list(seeds)}.")
    run = run_alone if separate_processes else run_here
    results = []
    for seed in seeds:
        result = {"seed": seed, **run(name, seed=seed, **arguments)}
        results.append(result)
        if progress:
            progress(line_of(title, result))
    return over_seeds(results)


def line_of(title: str, result: Mapping) -> str:
    """Return a line that says how a run went.

    Example:
        >>> line_of("head", {"seed": 1, "seconds": 2.04, "dev_accuracy": 0.5})
        'head, seed 1: dev accuracy 0.5000, 2.0 s'
    """
    scores = [
        f"{name.replace('_', ' ')} {value:.4f}"
        for name, value in result.items()
        if name.endswith("_accuracy")
    ]
    seed = f", seed {result['seed']}" if "seed" in result else ""
    return f"{title}{seed}: {', '.join(scores)}, {result['seconds']:.1f} s"


def over_seeds(results: Sequence[Mapping]) -> dict:
    """Return the mean of each figure and its deviation, with all runs beside them.

    The deviation is that of a sample, and None of a single run. Parameters are as in each run.

    Example:
        >>> row = over_seeds([{"seed": 0, "seconds": 1.0}, {"seed": 1, "seconds": 3.0}])
        >>> row["runs"], row["seconds"], round(row["seconds_deviation"], 4)
        (2, 2.0, 1.4142)
        >>> row["each_run"][1]
        {'seed': 1, 'seconds': 3.0}
    """
    row = {"runs": len(results)}
    for name in results[0]:
        values = [result[name] for result in results]
        if name in _CONSTANT:
            row[name] = values[0]
        elif name != "seed":
            row |= spread(name, values)
    return {**row, "each_run": list(results)}


def spread(name: str, values: Sequence[float | None]) -> dict[str, float | None]:
    """Return the values' mean under `name` and their deviation beside it, None if one is None.

    Example:
        >>> spread("a", [1.0, 1.0]), spread("a", [2.0])
        ({'a': 1.0, 'a_deviation': 0.0}, {'a': 2.0, 'a_deviation': None})
    """
    known = None not in values
    return {
        name: statistics.fmean(values) if known else None,
        f"{name}_deviation": statistics.stdev(values) if known and len(values) > 1 else None,
    }
