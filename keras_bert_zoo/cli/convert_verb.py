"""Convert a checkpoint to another format."""

import logging

from keras_bert_zoo.cli.output import print_results, write_json
from keras_bert_zoo.presets import TASKS, from_preset, source_task

# A format's name, and what writes a model in it.
FORMATS = {
    "zoo": lambda model, folder: model.save_to_preset(folder),
    "transformers": lambda model, folder: model.export_to_transformers(folder),
    "tf1": lambda model, folder: model.export_to_tf1(folder),
    "keras_hub": lambda model, folder: model.export_to_keras_hub(folder),
}


def add_arguments(parser) -> None:
    """Add the checkpoint, where to write it, and as what."""
    add = parser.add_argument
    add("source", help="what `from_preset` takes: a preset's name, a folder, hf://owner/name")
    add("output", help="the folder to write; new, empty, or one of the same format")
    add("--to", required=True, choices=list(FORMATS), help="what to write; to serve it: `export`")
    add("--task", choices=list(TASKS), help="None is what the source has heads of")


def run(arguments) -> None:
    """Load, report what was loaded, write."""
    logging.getLogger("keras_bert_zoo").setLevel(logging.INFO)
    task = arguments.task or source_task(arguments.source)
    model = from_preset(arguments.source, task)
    FORMATS[arguments.to](model, arguments.output)
    results = {
        "task": task,
        "parameters": model.count_params(),
        "format": arguments.to,
        "folder": arguments.output,
    }
    print_results(results, "converted")
    write_json(results, arguments.json)
