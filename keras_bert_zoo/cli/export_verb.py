"""Write a model to be served: a SavedModel, an ONNX or a LiteRT file."""

import argparse
import logging

from keras_bert_zoo.cli.output import print_results, write_json
from keras_bert_zoo.models.export import FORMATS, QUANTIZATIONS, SAVED_MODEL
from keras_bert_zoo.presets import TASKS, from_preset, source_task


def add_arguments(parser) -> None:
    """Add the model, where to write it, and as what."""
    add = parser.add_argument
    add("source", help="what `from_preset` takes: a preset's name, a folder, hf://owner/name")
    add("output", help="the folder to write, or a file ending in .onnx or .tflite")
    add("--format", default=SAVED_MODEL, choices=FORMATS, help="what to write")
    add("--quantize", choices=QUANTIZATIONS, help="keep large matrices so, in ONNX and LiteRT")
    add("--pairs", action=argparse.BooleanOptionalAction, help="a SavedModel takes pairs of texts")
    add("--task", choices=list(TASKS), help="None is what the source has heads of")


def run(arguments) -> None:
    """Load, report what was loaded, write."""
    logging.getLogger("keras_bert_zoo").setLevel(logging.INFO)
    task = arguments.task or source_task(arguments.source)
    # Files of ids are of float32, whatever the model was trained in.
    dtype = None if arguments.format == SAVED_MODEL else "float32"
    model = from_preset(arguments.source, task, dtype=dtype)
    model.export(
        arguments.output, arguments.format, pairs=arguments.pairs, quantize=arguments.quantize
    )
    results = {"task": task, "format": arguments.format, "output": arguments.output}
    print_results(results, "exported")
    write_json(results, arguments.json)
