"""Predict the classes of a table's texts with a fine-tuned preset."""

import csv
import json
import pathlib
import sys

import numpy as np

from keras_bert_zoo.cli.output import positive_int, print_table, write_json
from keras_bert_zoo.data.tables import read_table, text_columns
from keras_bert_zoo.presets import from_preset

_SHOWN = 20


def add_arguments(parser) -> None:
    """Add the preset, the table and where to write."""
    add = parser.add_argument
    add("--preset", required=True, help="the folder `finetune` wrote, or any text classifier")
    add("--input", help="a table: .csv, .tsv, .jsonl, or tfds:name:split")
    add("--sentences", nargs="+", help="texts to predict, instead of --input")
    add("--text", default="text", help="the column of texts")
    add("--second", help="the column of second texts, for pairs")
    add("--output", help="write the predictions there: .csv, .tsv or .jsonl")
    add("--batch-size", type=positive_int, default=32)


def run(arguments) -> None:
    """Read, predict, write."""
    if (arguments.input is None) == (arguments.sentences is None):
        raise ValueError("Give either --input or --sentences.")
    if arguments.output and pathlib.Path(arguments.output).suffix not in _WRITERS:
        raise ValueError(
            f"--output must end in {', '.join(_WRITERS)}. Received: {arguments.output!r}."
        )
    if arguments.sentences and arguments.second:
        raise ValueError("--second names a column of --input; --sentences has none.")
    if arguments.output:
        pathlib.Path(arguments.output).parent.mkdir(parents=True, exist_ok=True)
    if arguments.sentences:
        texts = (arguments.sentences,)
    else:
        table = read_table(arguments.input)
        texts = text_columns(table, arguments.text, arguments.second, arguments.input)
    classifier = from_preset(arguments.preset, "text_classifier")
    verbose = 1 if sys.stdout.isatty() else 0
    outputs = classifier.predict(texts, batch_size=arguments.batch_size, verbose=verbose)
    predictions = list(_rows(classifier, texts, outputs))
    print_table(predictions[:_SHOWN])
    if len(predictions) > _SHOWN:
        print(f"... and {len(predictions) - _SHOWN:,} more")
    if arguments.output:
        path = pathlib.Path(arguments.output)
        with open(path, "w", encoding="utf-8", newline="") as file:
            _WRITERS[path.suffix](file, predictions)
    write_json(predictions, arguments.json)


def _rows(classifier, texts, outputs):
    names = classifier.class_names or [str(i) for i in range(classifier.num_classes)]
    columns = ["text"] if len(texts) == 1 else ["first", "second"]
    for row, output in zip(zip(*texts, strict=True), outputs, strict=True):
        result = dict(zip(columns, row, strict=True))
        if classifier.activation == "sigmoid":
            result["labels"] = ", ".join(n for n, p in zip(names, output, strict=True) if p >= 0.5)
        elif classifier.num_classes == 1:
            result["value"] = float(output[0])
        else:
            shares = _softmax(output) if classifier.activation is None else output
            best = int(np.argmax(shares))
            result.update(label=names[best], probability=float(shares[best]))
        yield result


def _softmax(logits):
    shares = np.exp(logits - logits.max())
    return shares / shares.sum()


def _write_delimited(delimiter):
    def write(file, rows):
        writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)

    return write


def _write_jsonl(file, rows):
    for row in rows:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")


_WRITERS = {".csv": _write_delimited(","), ".tsv": _write_delimited("\t"), ".jsonl": _write_jsonl}
