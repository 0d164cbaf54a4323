"""Predict with a fine-tuned preset: classes, numbers, tags, answers or choices."""

import csv
import io
import json
import os
import pathlib

from keras_bert_zoo.cli.inputs import add_input, load_model, read_input
from keras_bert_zoo.cli.output import positive_int, print_table, write_json
from keras_bert_zoo.data.sources import Examples
from keras_bert_zoo.whole_files import write_whole

_SHOWN = 20

# What a task's columns are called in the predictions, where they are not texts or pairs.
_COLUMNS = {
    "tagging": ("words",),
    "question_answering": ("question", "context"),
    "multiple_choice": ("prompt", "choices"),
}
# How a list becomes one field.
_JOINED_BY = {"words": " ", "tags": " ", "labels": ", ", "choices": " | "}


def add_arguments(parser) -> None:
    """Add the preset, the data and where to write."""
    add = parser.add_argument
    add("--preset", required=True, help="the folder `finetune` wrote, or any task's preset")
    add_input(parser)
    add("--sentences", nargs="+", help="texts to predict, instead of --input")
    add("--output", help="write the predictions there: .csv, .tsv or .jsonl")
    add(
        "--submission",
        metavar="FOLDER",
        help="write there what a leaderboard takes, GLUE's or SQuAD's",
    )
    add("--batch-size", type=positive_int, default=32)


def run(arguments) -> None:
    """Read, predict, write."""
    if (arguments.input is None) == (arguments.sentences is None):
        raise ValueError("Give either --input or --sentences.")
    check_output("--output", arguments.output, arguments.input)
    if arguments.sentences and arguments.second:
        raise ValueError("--second names a column of --input; --sentences has none.")
    model, task = load_model(arguments.preset, arguments.task)
    if arguments.sentences:
        if task in ("question_answering", "multiple_choice"):
            raise ValueError(f"--sentences is not enough for {task!r}. Give --input.")
        rows = list(range(len(arguments.sentences)))
        nothing = [None] * len(rows)
        examples = Examples("--sentences", task, (arguments.sentences,), nothing, rows)
    else:
        examples = read_input(arguments, task, "test", label=None)
    if arguments.submission and examples.glue is None and task != "question_answering":
        raise ValueError("--submission is for --input glue/NAME or squad:FILE.")
    answers, predictions = predict(model, examples, arguments.batch_size, arguments.output)
    if arguments.submission:
        _submit(arguments, model, examples, answers)
    write_json(predictions, arguments.json)


def check_output(option: str, path: str | None, source: str | None) -> None:
    """Refuse a file of predictions whose name does not say its format, or that is the source."""
    if path is None:
        return
    if pathlib.Path(path).suffix not in _WRITERS:
        raise ValueError(f"{option} must end in {', '.join(_WRITERS)}. Received: {path!r}.")
    # Behind a format's name, as in squad:FILE.
    files = (source or "", (source or "").partition(":")[2])
    if os.path.realpath(path) in map(os.path.realpath, filter(None, files)):
        raise ValueError(f"{option} must not be what is predicted itself. Received: {path!r}.")


def predict(model, examples: Examples, batch_size: int, path: str | None) -> tuple[list, list]:
    """Return the answers to examples and their rows; show the first ones, write all to `path`."""
    from keras_bert_zoo.training.finetuning_tasks import TASKS

    answers = TASKS[examples.task].predict(model, examples.x, batch_size)
    predictions = list(_rows(examples, answers))
    print_table([_flat(row) for row in predictions[:_SHOWN]])
    if len(predictions) > _SHOWN:
        print(f"... and {len(predictions) - _SHOWN:,} more")
    if path:
        text = io.StringIO(newline="")
        _WRITERS[pathlib.Path(path).suffix](text, predictions)
        write_whole(path, text.getvalue().encode())
    return answers, predictions


def _rows(examples, answers):
    is_pair = len(examples.columns) == 2
    names = _COLUMNS.get(examples.task, ("first", "second") if is_pair else ("text",))
    has_ids = examples.ids != list(range(len(examples)))
    for i, row, answer in zip(
        examples.ids, zip(*examples.columns, strict=True), answers, strict=True
    ):
        result = {"id": i} if has_ids else {}
        yield {**result, **dict(zip(names, row, strict=True)), **answer}


def _submit(arguments, model, examples, answers):
    from keras_bert_zoo.evaluation.glue import write_glue_submission
    from keras_bert_zoo.evaluation.squad import write_squad_predictions
    from keras_bert_zoo.training.finetuning_tasks import answers_of

    if examples.glue:
        given = answers_of(examples.task, answers)
        path = write_glue_submission(arguments.submission, examples.glue, examples.ids, given)
    else:
        path = arguments.submission
        answers = model.answer(*examples.columns, n_best=20, batch_size=arguments.batch_size)
        write_squad_predictions(path, examples.ids, answers)
    print(f"The submission is {path}")


def _flat(row):
    return {
        name: _JOINED_BY[name].join(value) if isinstance(value, list) else value
        for name, value in row.items()
    }


def _write_delimited(delimiter):
    def write(file, rows):
        writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(map(_flat, rows))

    return write


def _write_jsonl(file, rows):
    for row in rows:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")


_WRITERS = {".csv": _write_delimited(","), ".tsv": _write_delimited("\t"), ".jsonl": _write_jsonl}
