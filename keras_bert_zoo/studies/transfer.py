"""Ways of transferring beside each other: bag of words, random encoder, frozen, LoRA, full."""

import re
from collections.abc import Callable, Mapping, Sequence

from keras_bert_zoo.evaluation import majority_accuracy
from keras_bert_zoo.studies.runs import (
    check_labels,
    examples,
    line_of,
    over_seeds,
    run_alone,
    run_here,
    run_seeds,
)

# The fewer parameters change, the larger the steps that each can take.
LEARNING_RATES = {"all": 5e-5, "top": 5e-5, "lora": 5e-4, "head": 1e-3}
WAYS = ("majority", "bag_of_words", "random:head", "head", "lora:8", "all")
_WAY = r"majority|bag_of_words|(random:)?(all|head|top:\d+|lora:[1-9]\d*)"
_NO_ENCODER = ("majority", "bag_of_words")


def transfer_study(
    preset: str,
    train: tuple,
    dev: tuple,
    ways: Sequence[str] = WAYS,
    *,
    learning_rates: Mapping[str, float] | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    sequence_length: int = 128,
    batch_size: int = 32,
    epochs: int = 3,
    separate_processes: bool = True,
    progress: Callable[[str], None] | None = None,
) -> list[dict]:
    """Return what each way of classifying texts learns, and what it takes.

    Args:
        preset: what `from_preset` takes.
        train, dev: (texts, labels), what to learn from and what to score on; texts are a list,
            or a tuple of columns of pairs.
        ways: `"majority"`, the most frequent label; `"bag_of_words"`, logistic regression on
            counts of the preset's own pieces; what `train_only` takes; or that behind
            `"random:"`, an encoder with random weights.
        learning_rates: by `"all"`, `"top"`, `"lora"` and `"head"`, the peaks; of what is not
            said those of `LEARNING_RATES`.
        seeds: a run each, for new weights, dropout and order. What has nothing random in it
            runs once.
        sequence_length, batch_size, epochs: of training.
        separate_processes: a run has a process of its own, so that memory and time are its own.
        progress: called with a line after each run.

    Returns:
        A row a way: `way`, `learning_rate`, `trainable` and `total` parameters, `runs`, the means
        `dev_accuracy`, `seconds` (of training), `peak_megabytes` (of loading and training) and
        `encoder_calls`, each with its `_deviation`, and `each_run`. What does not apply is None.

    Raises:
        ValueError: a way or an argument is none of these, or a label of `dev` is not in `train`.

    Example:
        >>> texts = ["good", "bad", "fine"], [1, 0, 1]
        >>> (row,) = transfer_study("all_minilm_l6_v2_en", texts, texts, ["majority"])
        >>> round(row["dev_accuracy"], 4)
        0.6667
    """
    wrong = [way for way in ways if not re.fullmatch(_WAY, way)]
    if wrong or not ways:
        raise ValueError(
            "`ways` must be some of 'majority', 'bag_of_words', 'all', 'head', 'top:N', 'lora:N' "
            f"and the last four behind 'random:'. Received: {wrong}."
        )
    if unknown := set(learning_rates or {}) - set(LEARNING_RATES):
        raise ValueError(
            f"`learning_rates` must be of {list(LEARNING_RATES)}. Received: {sorted(unknown)}."
        )
    rates = {**LEARNING_RATES, **(learning_rates or {})}
    train, dev = examples(*train), examples(*dev)
    check_labels(train, dev=dev)
    settings = {"sequence_length": sequence_length, "batch_size": batch_size, "epochs": epochs}
    data = {"train": train, "scored": {"dev": dev}}
    rows = []
    for way in ways:
        what = way.removeprefix("random:")
        rate = rates.get(what.partition(":")[0])
        if way in _NO_ENCODER:
            if way == "majority":
                result = _majority(train, dev)
            else:
                run = run_alone if separate_processes else run_here
                result = run(way, preset=preset, **data)
            if progress:
                progress(line_of(way, result))
            row = over_seeds([result])
        else:
            row = run_seeds(
                "train_and_score",
                seeds,
                separate_processes=separate_processes,
                progress=progress,
                title=way,
                preset=preset,
                what=what,
                load_weights=what == way,
                learning_rate=rate,
                **data,
                **settings,
            )
        rows.append({"way": way, "learning_rate": rate, **row})
    return rows


def _majority(train, dev):
    return {
        "trainable": 0,
        "total": 0,
        "encoder_calls": 0,
        "seconds": 0.0,
        "peak_megabytes": None,
        "dev_accuracy": majority_accuracy(train["labels"], dev["labels"]),
    }
