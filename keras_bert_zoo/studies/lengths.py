"""Maximum length by padding strategy: the score, what is cut, what is padding, what it takes."""

from collections.abc import Callable, Sequence

import numpy as np

from keras_bert_zoo.data.text_report import STRATEGIES, text_report
from keras_bert_zoo.preprocessing import BertTextClassifierPreprocessor
from keras_bert_zoo.presets import load_tokenizer
from keras_bert_zoo.studies.runs import check_labels, examples, run_seeds


def lengths_study(
    preset: str,
    train: tuple,
    dev: tuple,
    lengths: Sequence[int] = (32, 64, 128),
    strategies: Sequence[str] = ("fixed", "bucket", "bucket_batches", "packed_rows"),
    *,
    what: str = "all",
    learning_rate: float = 5e-5,
    seeds: Sequence[int] = (0, 1, 2),
    batch_size: int = 32,
    epochs: int = 3,
    separate_processes: bool = True,
    progress: Callable[[str], None] | None = None,
) -> list[dict]:
    """Return what each maximum length and padding strategy gives, and what it takes.

    Args:
        preset, train, dev, seeds, epochs, separate_processes, progress: as in `transfer_study`.
        lengths: most pieces of a row.
        strategies: of `data.text_report.STRATEGIES`.
        what: what `train_only` takes.
        learning_rate: the peak.
        batch_size: texts a batch; where texts share rows, about as many in fewer rows.

    Returns:
        A row for each length and strategy: both; the `batch_size` in rows; of the training texts
        `cut_texts`, the share that is cut, and `cut_pieces`, the share of their pieces that is
        lost; `padding`, the share of the positions; `runs`, the means `encoder_calls` (batches of
        all epochs), `dev_accuracy`, `seconds` and `peak_megabytes`, each with its
        `_deviation`; and `each_run`.

    Raises:
        ValueError: a strategy is not known, or a label of `dev` is not in `train`.

    Example:
        >>> texts = ["good", "bad"], [1, 0]
        >>> lengths_study("all_minilm_l6_v2_en", texts, texts, strategies=["loose"])
        Traceback (most recent call last):
        ValueError: `strategies` must be of ['fixed', 'batch', 'bucket', 'bucket_batches', \
'packed_rows']. Received: ['loose'].
    """
    if unknown := [name for name in strategies if name not in STRATEGIES]:
        raise ValueError(f"`strategies` must be of {list(STRATEGIES)}. Received: {unknown}.")
    train, dev = examples(*train), examples(*dev)
    check_labels(train, dev=dev)
    tokenizer = load_tokenizer(preset)
    # As they come in training, not as a table has sorted them.
    order = np.random.default_rng(0).permutation(len(train["labels"]))
    mixed = tuple([column[i] for i in order] for column in train["texts"])
    rows = []
    for length in lengths:
        preprocessor = BertTextClassifierPreprocessor(tokenizer, length)
        report = text_report(mixed, preprocessor, batch_size, lengths=[length])
        (cut,) = report["cut"]
        for strategy in strategies:
            padding = report["padding"][strategy]
            batch_rows = batch_size
            if strategy == "packed_rows":
                texts_a_row = report["texts"] / (padding["positions"] / length)
                batch_rows = max(1, round(batch_size / texts_a_row))
            row = run_seeds(
                "train_and_score",
                seeds,
                separate_processes=separate_processes,
                progress=progress,
                title=f"{length}, {strategy}",
                preset=preset,
                train=train,
                scored={"dev": dev},
                what=what,
                strategy=strategy,
                sequence_length=length,
                batch_size=batch_rows,
                epochs=epochs,
                learning_rate=learning_rate,
            )
            rows.append(
                {
                    "sequence_length": length,
                    "strategy": strategy,
                    "batch_size": batch_rows,
                    "cut_texts": cut["texts"],
                    "cut_pieces": cut["pieces"],
                    "padding": padding["padding"],
                    **row,
                }
            )
    return rows
