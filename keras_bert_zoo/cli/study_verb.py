"""Study a preset and texts: transfer, lengths, pairs, domains, pictures; table, JSON and plot."""

import argparse

import keras
import numpy as np

from keras_bert_zoo.cli.output import positive_int, print_table, write_json
from keras_bert_zoo.data.splits import leakage, leakage_lines, random_splits
from keras_bert_zoo.data.tables import column, read_table, text_columns
from keras_bert_zoo.data.text_report import STRATEGIES, check_plot_path
from keras_bert_zoo.models import BertTextEmbedder
from keras_bert_zoo.models.text_vectors import POOLINGS
from keras_bert_zoo.presets import from_preset, load_tokenizer, source_task
from keras_bert_zoo.studies import (
    attention_map,
    compare_texts,
    confusion_matrix,
    domains_study,
    lengths_study,
    pair_shifts,
    plot_attention,
    plot_confusion,
    plot_rows,
    shifts_by_kind,
    transfer_study,
)
from keras_bert_zoo.studies.minimal_pairs import PAIRS
from keras_bert_zoo.studies.transfer import LEARNING_RATES, WAYS

# More pairs than these are in the JSON file alone.
_PAIRS_SHOWN = 40


def add_arguments(parser) -> None:
    """Add the studies, each with its own arguments."""
    studies = parser.add_subparsers(dest="study", required=True, metavar="study")
    for name, (add, run) in _STUDIES.items():
        summary = run.__doc__.splitlines()[0]
        study = studies.add_parser(
            name,
            help=summary,
            description=summary,
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
        study.add_argument("--preset", required=True, help="a name, a folder, or hf://owner/name")
        # Left out where it is not given, so as not to undo a --json before the study's name.
        study.add_argument("--json", metavar="FILE", default=argparse.SUPPRESS)
        study.add_argument("--plot", metavar="FILE", help="draw there: .png, .svg or .pdf")
        add(study)


def run(arguments) -> None:
    """Do the study, write, print."""
    if arguments.plot:
        check_plot_path(arguments.plot)
    results = _STUDIES[arguments.study][1](arguments)
    left_out = ("run", "verb", "study", "json", "plot")
    settings = {name: value for name, value in vars(arguments).items() if name not in left_out}
    write_json(
        {
            "study": arguments.study,
            "backend": keras.backend.backend(),
            "settings": settings,
            **results,
        },
        arguments.json,
    )


# === Arguments ===


def _add_columns(add):
    add("--text", default="text", help="the column of texts")
    add("--second", help="the column of second texts, for pairs")
    add("--label", default="label", help="the column of labels")


def _add_training(add):
    _add_columns(add)
    add("--rows", type=positive_int, metavar="N", help="at most N rows of a table, at random")
    add("--batch-size", type=positive_int, default=32)
    add("--epochs", type=positive_int, default=3)
    add("--seeds", type=int, nargs="+", default=[0, 1, 2], help="a run each")


def _add_length(add):
    add("--sequence-length", type=positive_int, default=128)


def _add_train_and_dev(add):
    add("--train", required=True, help="a table: .csv, .tsv, .jsonl, or tfds:name:split")
    add("--dev", help="a table to score on; if not given, a fifth of --train is kept for it")
    _add_training(add)


def _add_way(add):
    add("--what", default="all", help="what is trained: all, head, top:2, lora:8")
    add("--learning-rate", type=float, default=5e-5, help="the peak, after the warm-up")


def _add_transfer(parser):
    add = parser.add_argument
    _add_train_and_dev(add)
    _add_length(add)
    add(
        "--ways",
        nargs="+",
        default=list(WAYS),
        help="majority, bag_of_words, all, head, top:2, lora:8; random:head has random weights",
    )
    add(
        "--learning-rates",
        nargs="+",
        type=_rate,
        default=list(LEARNING_RATES.items()),
        metavar="KIND=RATE",
        help="of all, top, lora and head",
    )


def _add_lengths(parser):
    add = parser.add_argument
    _add_train_and_dev(add)
    _add_way(add)
    add("--lengths", type=positive_int, nargs="+", default=[32, 64, 128])
    add(
        "--strategies",
        nargs="+",
        choices=list(STRATEGIES),
        default=[name for name in STRATEGIES if name != "batch"],
    )


def _add_pairs(parser):
    add = parser.add_argument
    add("--input", help="a table of pairs; if not given, some that come with the package")
    add("--text", default="text", help="the column of first texts")
    add("--second", default="second", help="the column of second texts")
    add("--kind", help="the column that says what a pair differs in")
    add("--pooling", choices=POOLINGS, default="mean", help="what a text's vector is")


def _add_domains(parser):
    add = parser.add_argument
    add("--source", required=True, help="a table: .csv, .tsv, .jsonl, or tfds:name:split")
    add("--source-dev", help="to score on; if not given, a fifth of --source is kept for it")
    add("--target", required=True, help="a table of the other domain, with the same columns")
    add("--texts-only", action="store_true", help="no training, so that no labels are needed")
    _add_training(add)
    _add_length(add)
    _add_way(add)


def _add_pictures(parser):
    add = parser.add_argument
    add("--attention", nargs="+", metavar="TEXT", help="draw the attention in a text or a pair")
    add("--layer", type=int, help="with --attention: the heads of this layer, counted from 0")
    add("--head", type=int, help="with --attention: this head, counted from 0")
    add("--input", help="draw the confusion matrix of this table")
    _add_columns(add)
    add("--batch-size", type=positive_int, default=32)


def _rate(text):
    kind, _, rate = text.partition("=")
    return kind, float(rate)


# === Studies ===


def _transfer(arguments):
    """Set bag of words, a random encoder, frozen, LoRA and full training beside each other."""
    train, dev = _splits(arguments.train, arguments.dev, arguments)
    rows = transfer_study(
        arguments.preset,
        train,
        dev,
        arguments.ways,
        learning_rates=dict(arguments.learning_rates),
        sequence_length=arguments.sequence_length,
        **_training(arguments),
    )
    taken = ["dev_accuracy", "seconds", "peak_megabytes"]
    _show(rows, ["way", "trainable", "runs", *taken], f"{len(train[1]):,} examples")
    _plot(rows, "way", [*taken, "trainable"], arguments)
    return {"rows": rows}


def _lengths(arguments):
    """Set maximum lengths and padding strategies beside each other."""
    train, dev = _splits(arguments.train, arguments.dev, arguments)
    rows = lengths_study(
        arguments.preset,
        train,
        dev,
        arguments.lengths,
        arguments.strategies,
        **_way(arguments),
        **_training(arguments),
    )
    taken = ["dev_accuracy", "seconds", "peak_megabytes", "encoder_calls"]
    shares = ["cut_texts", "cut_pieces", "padding"]
    columns = ["sequence_length", "strategy", "runs", *shares, *taken]
    _show(rows, columns, f"{len(train[1]):,} examples")
    _plot(
        rows,
        lambda row: f"{row['sequence_length']} {row['strategy']}",
        [*taken, "cut_pieces", "padding"],
        arguments,
    )
    return {"rows": rows}


def _pairs(arguments):
    """Say how far representation and prediction move where texts differ in one thing."""
    first, second, kinds = _pairs_of(arguments)
    encoder, probabilities, class_names = None, None, None
    if source_task(arguments.preset) == "text_classifier":
        classifier = _classifier(arguments.preset)
        encoder, preprocessor = classifier.backbone, classifier.preprocessor
        # Each text of a pair is looked at by itself.
        preprocessor.columns = None
        class_names = classifier.class_names

        def probabilities(texts):
            return _probabilities(classifier, texts)
    else:
        embedder = from_preset(arguments.preset, "text_embedder")
        encoder, preprocessor = embedder.backbone, embedder.preprocessor
    encode = BertTextEmbedder(encoder, preprocessor, pooling=arguments.pooling).encode
    pairs = pair_shifts(first, second, encode, probabilities, class_names, kinds)
    rows = shifts_by_kind(pairs)
    _show(rows, [name for name in rows[0] if not name.endswith("_deviation")], "shifts")
    if len(pairs) <= _PAIRS_SHOWN:
        hidden = ("kind", "unrelated_shift")
        _show(pairs, [name for name in pairs[0] if name not in hidden], "pairs")
    shifts = [name for name in ("representation_shift", "prediction_shift") if name in rows[0]]
    _plot(rows, "kind", shifts, arguments)
    return {"rows": rows, "pairs": pairs}


def _domains(arguments):
    """Set a source and a target domain side by side: vocabulary, lengths, unknowns, score."""
    if arguments.texts_only:
        texts = []
        for source in (arguments.source, arguments.target):
            table = read_table(source)
            texts.append(text_columns(table, arguments.text, arguments.second, source))
        tokenizer = load_tokenizer(arguments.preset)
        rows = compare_texts(tokenizer, *texts, arguments.sequence_length)
    else:
        train, source = _splits(arguments.source, arguments.source_dev, arguments)
        target = _some(*_labelled(arguments.target, arguments), arguments.rows)
        _say_leakage(train=train, target=target)
        rows = domains_study(
            arguments.preset,
            train,
            source,
            target,
            sequence_length=arguments.sequence_length,
            **_way(arguments),
            **_training(arguments),
        )
    measures = [name for name in rows[0] if name not in ("domain", "each_run")]
    measures = [name for name in measures if not name.endswith("_deviation")]
    sides = {row["domain"]: _cells(row, measures) for row in rows}
    print_table(
        [
            {"": name.replace("_", " "), **{side: cells[name] for side, cells in sides.items()}}
            for name in measures
        ],
        "domains",
    )
    drawn = ["pieces", "cut_pieces", "unknown_pieces", "shared_pieces", "accuracy"]
    _plot(rows, "domain", [name for name in drawn if name in rows[0]], arguments)
    return {"rows": rows}


def _pictures(arguments):
    """Draw what a model's heads attend to, or which classes it confuses."""
    if (arguments.attention is None) == (arguments.input is None):
        raise ValueError("Give either --attention or --input.")
    if not arguments.plot:
        raise ValueError("A picture needs --plot.")
    if arguments.attention:
        if len(arguments.attention) > 2:
            raise ValueError("--attention takes a text or two, each in quotation marks.")
        model = from_preset(arguments.preset)
        found = attention_map(model, *arguments.attention)
        plot_attention(found, arguments.plot, arguments.layer, arguments.head)
        print(f"Drew {len(found['pieces'])} pieces to {arguments.plot}")
        return {**found, "attention": found["attention"].tolist()}
    texts, labels = _labelled(arguments.input, arguments)
    classifier = _classifier(arguments.preset)
    names = classifier.class_names or [str(i) for i in range(classifier.num_classes)]
    probabilities = _probabilities(classifier, texts, arguments.batch_size)
    predictions = [names[i] for i in probabilities.argmax(axis=1)]
    found = confusion_matrix(labels, predictions, names)
    plot_confusion(found, arguments.plot)
    _show(found["rows"], list(found["rows"][0]), f"accuracy {found['accuracy']:.4f}")
    return found


_STUDIES = {
    "transfer": (_add_transfer, _transfer),
    "lengths": (_add_lengths, _lengths),
    "pairs": (_add_pairs, _pairs),
    "domains": (_add_domains, _domains),
    "pictures": (_add_pictures, _pictures),
}


# === Data ===


def _splits(train, dev, arguments):
    """Return the examples to learn from and those to score on, and say what they share."""
    texts, labels = _labelled(train, arguments)
    if dev:
        parts = (texts, labels), _labelled(dev, arguments)
    else:
        rows = random_splits(len(labels), {"train": 0.8, "dev": 0.2})
        parts = [_chosen(texts, labels, rows[name]) for name in ("train", "dev")]
    parts = [_some(*part, arguments.rows) for part in parts]
    _say_leakage(train=parts[0], dev=parts[1])
    return parts


def _say_leakage(**parts):
    for line in leakage_lines(leakage({name: texts for name, (texts, _) in parts.items()})):
        print(line)


def _labelled(source, arguments):
    table = read_table(source)
    texts = text_columns(table, arguments.text, arguments.second, source)
    labels = column(table, arguments.label, source)
    if None in labels:
        raise ValueError(
            f"Row {labels.index(None) + 1} of {source!r} has no label in {arguments.label!r}."
        )
    return texts, [str(label) for label in labels]


def _some(texts, labels, count):
    if count is None or count >= len(labels):
        return texts, labels
    return _chosen(texts, labels, np.random.default_rng(0).permutation(len(labels))[:count])


def _chosen(texts, labels, rows):
    return tuple([column[i] for i in rows] for column in texts), [labels[i] for i in rows]


def _pairs_of(arguments):
    if arguments.input is None:
        rows = [(*pair, kind) for kind, pairs in PAIRS.items() for pair in pairs]
        return tuple(zip(*rows, strict=True))
    table = read_table(arguments.input)
    first, second = text_columns(table, arguments.text, arguments.second, arguments.input)
    kinds = None
    if arguments.kind:
        kinds = [str(kind) for kind in column(table, arguments.kind, arguments.input)]
    return first, second, kinds


def _training(arguments):
    return {
        "seeds": arguments.seeds,
        "batch_size": arguments.batch_size,
        "epochs": arguments.epochs,
        "progress": print,
    }


def _way(arguments):
    return {"what": arguments.what, "learning_rate": arguments.learning_rate}


# === Models ===


def _classifier(preset):
    if source_task(preset) != "text_classifier":
        raise ValueError(f"{preset!r} is no text classifier: `finetune` makes one of it.")
    classifier = from_preset(preset, "text_classifier")
    if classifier.num_labels is None:
        raise ValueError(f"{preset!r} gives no text one class out of several.")
    return classifier


def _probabilities(classifier, texts, batch_size=32):
    texts = texts if isinstance(texts, tuple) else (texts,)
    outputs = classifier.predict(texts, batch_size=batch_size, verbose=0)
    if classifier.activation == "softmax":
        return outputs
    powers = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


# === Output ===


def _show(rows, columns, title):
    cells = [_cells(row, columns) for row in rows]
    print_table([{name.replace("_", " "): row[name] for name in columns} for row in cells], title)


def _cells(row, columns):
    """Return a row's figures as a table shows them, a deviation behind its mean."""
    cells = {}
    for name in columns:
        value, deviation = row[name], row.get(f"{name}_deviation")
        if value is None:
            value = "-"
        elif isinstance(value, list):
            value = ", ".join(value)
        elif deviation is not None:
            value = f"{value:.4g} ± {deviation:.2g}"
        cells[name] = value
    return cells


def _plot(rows, name, measures, arguments):
    if arguments.plot:
        plot_rows(rows, name, measures, arguments.plot)
