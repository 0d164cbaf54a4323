"""Fine-tune a preset on data of any task, and save it as a preset."""

import argparse

from keras_bert_zoo.cli.inputs import load_model
from keras_bert_zoo.cli.output import positive_int, print_results, print_table, write_json
from keras_bert_zoo.cli.predict_verb import check_output, predict
from keras_bert_zoo.data.sources import Columns, read_examples

# An option's name, its place in the config, and what the parser is told of it.
_OPTIONS = {
    "--preset": (("preset",), {"help": "a preset's name, a folder, or hf://owner/name"}),
    "--task": (
        ("task",),
        {"help": "what a table is for: classification if not given, regression, or labels"},
    ),
    "--output": (("output",), {"help": "the preset's folder"}),
    "--record": (
        ("run",),
        {"metavar": "FOLDER", "help": "of the run's record; OUTPUT_run if not given"},
    ),
    "--sequence-length": (
        ("sequence_length",),
        {"type": positive_int, "help": "384 for questions, else 128, if not given"},
    ),
    "--seed": (("seed",), {"type": int, "help": "0 if not given"}),
    "--precision": (("precision",), {"help": "float32 if not given, or mixed_bfloat16"}),
    "--pooling": (
        ("pooling",),
        {"help": "what the head of a text reads: pooled if not given, mean, max or cls"},
    ),
    "--layers": (
        ("layers",),
        {"help": "of which layers: last if not given, concat_last_four, weighted_all, ..."},
    ),
    "--train": (
        ("data", "train"),
        {
            "metavar": "SOURCE",
            "help": "a .csv, .tsv, .jsonl or tfds:name:split; glue/NAME or xnli/LANGUAGE, with "
            "=FOLDER behind for files; or squad:FILE, conll:FILE, swag:FILE, codah:FILE",
        },
    ),
    "--dev": (
        ("data", "dev"),
        {
            "metavar": "SOURCE",
            "help": "what trainings are compared and stopped by; if not given, the data set's own, "
            "or a tenth of --train",
        },
    ),
    "--test": (("data", "test"), {"metavar": "SOURCE", "help": "scored once, at the end"}),
    "--text": (("data", "text"), {"help": "a table's column of texts; text if not given"}),
    "--second": (("data", "second"), {"help": "the column of second texts, for pairs"}),
    "--label": (("data", "label"), {"help": "the column of labels; label if not given"}),
    "--id": (("data", "id"), {"help": "the column of ids; the row's number if not given"}),
    "--group": (("data", "group"), {"help": "the column of sources that no split may cut"}),
    "--split": (("data", "split"), {"help": "the column that says train, dev or test"}),
    "--dev-share": (("data", "dev_share"), {"type": float, "help": "of --train; 0.1 if needed"}),
    "--test-share": (("data", "test_share"), {"type": float, "help": "of --train; 0 if not given"}),
    "--examples": (
        ("data", "examples"),
        {"type": positive_int, "help": "train on so many"},
    ),
    "--what": (
        ("training", "what"),
        {"help": "all if not given, head, top:N layers, lora:RANK, or features"},
    ),
    "--epochs": (
        ("training", "epochs"),
        {"type": positive_int, "nargs": "+", "help": "3 if not given"},
    ),
    "--batch-size": (
        ("training", "batch_size"),
        {"type": positive_int, "nargs": "+", "help": "32 if not given"},
    ),
    "--learning-rate": (
        ("training", "learning_rate"),
        {"type": float, "nargs": "+", "help": "the peak; 5e-5 if not given, and more for parts"},
    ),
    "--restarts": (
        ("training", "restarts"),
        {"type": positive_int, "help": "trainings of each setting, by other seeds; 1 if not given"},
    ),
    "--layer-decay": (("training", "layer_decay"), {"type": float, "help": "1 if not given"}),
    "--early-stopping": (
        ("training", "early_stopping"),
        {
            "type": positive_int,
            "metavar": "EPOCHS",
            "help": "stop after so many without a better dev score, and keep the best",
        },
    ),
    "--class-weights": (
        ("training", "class_weights"),
        {"help": "none if not given, or balanced"},
    ),
    "--packed": (
        ("training", "packed"),
        {
            "action": "store_true",
            "help": "several texts to a row: the same steps, less padding",
        },
    ),
}


def add_arguments(parser) -> None:
    """Add the file, the options that stand in for its settings, and the check on a few."""
    add = parser.add_argument
    add("config", nargs="?", help="a TOML file; examples/finetuning has some to begin with")
    for option, (_, how) in _OPTIONS.items():
        # What is not given is the file's to say.
        add(option, default=argparse.SUPPRESS, **how)
    add(
        "--regression",
        dest="task",
        action="store_const",
        const="regression",
        default=argparse.SUPPRESS,
        help="--task regression",
    )
    add(
        "--gradual-unfreezing",
        action="store_true",
        default=argparse.SUPPRESS,
        help="train the head, then a layer more each epoch",
    )
    add(
        "--paper-grid",
        action="store_true",
        help="batches of 16 and 32; rates of 5e-5, 4e-5, 3e-5 and 2e-5; 2, 3 and 4 epochs",
    )
    add(
        "--overfit",
        type=positive_int,
        metavar="N",
        help="only see whether the first N examples can be learnt; save nothing",
    )
    add("--predict", metavar="SOURCE", help="predict this too, with what was trained")
    add(
        "--predictions",
        metavar="FILE",
        help="where to: a .csv, .tsv or .jsonl; OUTPUT_predictions.csv if not given",
    )
    add(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="a setting in place of the file's; may be given often",
    )


def run(arguments) -> None:
    """Train, print the scores, say where the model is."""
    from keras_bert_zoo.training.finetuning import finetune, overfit
    from keras_bert_zoo.training.finetuning_config import PAPER_GRID, read_config

    config = read_config(arguments.config, arguments.set, **_given(arguments, PAPER_GRID))
    if arguments.overfit:
        if arguments.predict or arguments.predictions:
            raise ValueError("--overfit leaves no model that could predict. Leave out --predict.")
        results = overfit(config, arguments.overfit)
        print_results(results, "learnt")
        write_json(results, arguments.json)
        return
    new = _read_new(arguments, config)
    results = finetune(config)
    runs = results["runs"]
    flat = {name: value for name, value in results.items() if not isinstance(value, list)}
    if len(runs) > 1:
        names = ("batch_size", "learning_rate", "epochs", "seed")
        print_table(
            [{**{n: row[n] for n in names}, "epoch": row["epoch"], **row["dev"]} for row in runs],
            "every training, on dev",
        )
        # All measures are in the JSON; runs are chosen by the first.
        measure = next(iter(runs[0]["dev"]))
        of_measure = {f"dev {measure}, {name}" for name in ("mean", "standard deviation")}
        print_table(
            [
                {name: x for name, x in row.items() if name[:4] != "dev " or name in of_measure}
                for row in results["settings"]
            ],
            "every setting",
        )
    print_results(flat, "fine-tuning")
    write_json(results, arguments.json)
    folder, output = config.folders
    print(f"Saved to {output}; the record is {folder}/record.json")
    if new is not None:
        path = arguments.predictions or f"{output}_predictions.csv"
        model, _ = load_model(str(output), None)
        predict(model, new, max(config.training.batch_size), path)
        print(f"The predictions are {path}")


def _read_new(arguments, config):
    """Return what is to be predicted in the end: before any training, lest it be in vain."""
    if arguments.predict is None:
        if arguments.predictions:
            raise ValueError("--predictions says where --predict goes. Give --predict too.")
        return None
    path = arguments.predictions or f"{config.folders[1]}_predictions.csv"
    check_output("--predictions", path, arguments.predict)
    data = config.data
    columns = Columns(data.text, data.second, label=None, id=data.id)
    return read_examples(arguments.predict, "test", config.task, columns)


def _given(arguments, grid):
    """Return the settings that were given as options, in the config's sections."""
    options = vars(arguments)
    content = {"training": dict(grid)} if arguments.paper_grid else {}
    places = {option: place for option, (place, _) in _OPTIONS.items()}
    places["--gradual-unfreezing"] = ("training", "gradual_unfreezing")
    for option, (*sections, key) in places.items():
        name = option.removeprefix("--").replace("-", "_")
        if name in options:
            part = content.setdefault(sections[0], {}) if sections else content
            part[key] = options[name]
    return content
