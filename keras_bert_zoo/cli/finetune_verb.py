"""Fine-tune a preset on a table of texts and labels, and save it as a preset."""

import time

import keras
import numpy as np

from keras_bert_zoo.cli.output import positive_int, print_results, write_json
from keras_bert_zoo.data.tables import column, read_table, text_columns
from keras_bert_zoo.evaluation import majority_accuracy
from keras_bert_zoo.models.preset_folder import check_free
from keras_bert_zoo.presets import from_preset
from keras_bert_zoo.training import adamw


def add_arguments(parser) -> None:
    """Add the preset, the tables and the training settings."""
    add = parser.add_argument
    add("--preset", required=True, help="a preset's name, a folder, or hf://owner/name")
    add("--train", required=True, help=".csv, .tsv, .jsonl, or tfds:name:split")
    add("--dev", help="a table to score on; if not given, a tenth of --train is kept for it")
    add("--text", default="text", help="the column of texts")
    add("--second", help="the column of second texts, for pairs")
    add("--label", default="label", help="the column of labels")
    add("--regression", action="store_true", help="the labels are numbers to be predicted")
    add("--output", required=True, help="the preset's folder")
    add("--sequence-length", type=positive_int, default=128)
    add("--epochs", type=positive_int, default=3)
    add("--batch-size", type=positive_int, default=32)
    add("--learning-rate", type=float, default=5e-5, help="the peak, after the warm-up")
    add("--seed", type=int, default=0)


def run(arguments) -> None:
    """Read, train, score, save."""
    check_free(arguments.output)
    keras.utils.set_random_seed(arguments.seed)
    texts, labels = _examples(arguments.train, arguments)
    if arguments.dev:
        dev_texts, dev_labels = _examples(arguments.dev, arguments)
    else:
        order = np.random.default_rng(arguments.seed).permutation(len(labels))
        cut = len(labels) - len(labels) // 10
        (texts, labels), (dev_texts, dev_labels) = (
            (tuple([c[i] for i in part] for c in texts), [labels[i] for i in part])
            for part in (order[:cut], order[cut:])
        )
        if not dev_labels:
            raise ValueError(f"{arguments.train!r} is too small to keep a tenth of it; give --dev.")

    names = None
    if arguments.regression:
        train_y, dev_y = (_numbers(part) for part in (labels, dev_labels))
        head = {"num_classes": 1}
    else:
        names = sorted(set(labels))
        if len(names) < 2:
            raise ValueError(f"{arguments.train!r} has one label only, {names[0]!r}.")
        train_y, dev_y = (_class_ids(part, names) for part in (labels, dev_labels))
        head = {"class_names": names}
    classifier = from_preset(
        arguments.preset,
        "text_classifier",
        sequence_length=arguments.sequence_length,
        **head,
    )
    classifier.compile(optimizer=adamw(arguments.learning_rate))
    print(
        f"Fine-tuning {classifier.count_params():,} parameters on {keras.backend.backend()}: "
        f"{len(labels):,} examples, {len(dev_labels):,} to score on."
    )
    start = time.perf_counter()
    classifier.fit(
        texts,
        train_y,
        batch_size=arguments.batch_size,
        epochs=arguments.epochs,
        validation_data=(dev_texts, dev_y),
        seed=arguments.seed,
    )
    seconds = time.perf_counter() - start
    scores = classifier.evaluate(dev_texts, dev_y, return_dict=True, verbose=0)
    results = {
        "backend": keras.backend.backend(),
        "preset": arguments.preset,
        "training examples": len(labels),
        "dev examples": len(dev_labels),
        "seconds": seconds,
        **{f"dev {name}": float(value) for name, value in scores.items()},
    }
    if names:
        results["dev accuracy of the majority class"] = majority_accuracy(labels, dev_labels)
    print_results(results, "fine-tuning")
    write_json(results, arguments.json)
    classifier.save_to_preset(arguments.output)
    print(f"Saved to {arguments.output}")


def _examples(source, arguments):
    table = read_table(source)
    texts = text_columns(table, arguments.text, arguments.second, source)
    labels = column(table, arguments.label, source)
    if None in labels:
        raise ValueError(
            f"Row {labels.index(None) + 1} of {source!r} has no label in {arguments.label!r}."
        )
    # A label is a name, whatever kind of table it comes from.
    return texts, labels if arguments.regression else [str(label) for label in labels]


def _class_ids(labels, names):
    unknown = sorted(set(labels) - set(names))
    if unknown:
        raise ValueError(f"The dev table has labels that the training table lacks: {unknown}.")
    return np.array([names.index(label) for label in labels])


def _numbers(labels):
    try:
        return np.array([float(label) for label in labels], dtype="float32")
    except (TypeError, ValueError) as error:
        raise ValueError(f"With --regression the labels must be numbers: {error}.") from error
