"""Pre-train a BERT as a config file says, and go on where a run was ended."""

from keras_bert_zoo.cli.output import positive_int, print_results, write_json


def add_arguments(parser) -> None:
    """Add the file and the settings that stand in for some of its own."""
    parser.add_argument("config", help="a TOML file; examples/pretraining has some to begin with")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="a setting in place of the file's, as in phases.0.steps=1000; may be given often",
    )
    parser.add_argument(
        "--overfit",
        type=positive_int,
        metavar="N",
        help="only see whether N rows can be learnt; save nothing",
    )


def run(arguments) -> None:
    """Train, print the scores on what was held out, say where the model is."""
    from keras_bert_zoo.training.config import read_config
    from keras_bert_zoo.training.pretraining import overfit, pretrain

    config = read_config(arguments.config, arguments.set)
    if arguments.overfit:
        results = overfit(config, arguments.overfit)
        print_results(results, "learnt")
        write_json(results, arguments.json)
        return
    results = pretrain(config)
    # Of several processes the first one has them.
    if results:
        print_results(results, "pre-training")
        write_json(results, arguments.json)
        print(f"Saved to {config.run}/preset")
