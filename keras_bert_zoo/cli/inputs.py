"""What the verbs that use a trained model share: its task, and the examples it is given."""

import pathlib

from keras_bert_zoo.data.sources import Columns, Examples, read_examples
from keras_bert_zoo.models import preset_folder
from keras_bert_zoo.presets import from_preset, source_task


def add_input(parser, required: bool = False) -> None:
    """Add the source and what its columns are called."""
    add = parser.add_argument
    add(
        "--input",
        required=required,
        metavar="SOURCE",
        help="what `finetune --train` takes: a table, glue/NAME, squad:FILE, conll:FILE, ...",
    )
    add("--text", default="text", help="a table's column of texts")
    add("--second", help="the column of second texts, for pairs")
    add("--id", help="the column of ids; None is the row's number")
    add("--task", help="classification, tagging, ...; None is what the preset was made for")


def load_model(preset: str, task: str | None):
    """Return a model and the name of its task in `TASKS`."""
    from keras_bert_zoo.training.finetuning_tasks import TASKS, task_of

    if task is not None and task not in TASKS:
        raise ValueError(f"--task must be one of {list(TASKS)}. Received: {task!r}.")
    made_for = source_task(preset)
    wanted = TASKS[task].model if task else made_for
    is_ours = preset_folder.is_preset(pathlib.Path(preset))
    if is_ours and wanted != made_for:
        raise ValueError(f"{preset!r} is a {made_for} and not for --task {task}.")
    model = from_preset(preset, wanted)
    own = task_of(model)
    if task not in (None, own):
        raise ValueError(f"{preset!r} is for {own!r} and not for --task {task}.")
    return model, own


def read_input(arguments, task: str, split: str, label: str | None) -> Examples:
    """Return the examples of --input, for a task that a table can't say itself."""
    columns = Columns(arguments.text, arguments.second, label, arguments.id)
    return read_examples(arguments.input, split, task, columns)
