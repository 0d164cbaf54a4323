"""List the presets."""

from keras_bert_zoo.cli.output import positive_int, print_table, write_json
from keras_bert_zoo.presets import list_presets


def add_arguments(parser) -> None:
    """Add the filters."""
    parser.add_argument("--language", help="only this language: en, de, zh, multilingual, ...")
    parser.add_argument("--casing", help="only this casing: cased or uncased")
    parser.add_argument(
        "--max-parameters", type=positive_int, metavar="N", help="only of at most N parameters"
    )
    parser.add_argument(
        "--task", help="only with the weights of this task: text_embedder, question_answerer, ..."
    )


def run(arguments) -> None:
    """Print one line a preset."""
    filters = {
        name: getattr(arguments, name)
        for name in ("language", "casing", "max_parameters", "task")
        if getattr(arguments, name) is not None
    }
    cards = list_presets(**filters)
    if not cards:
        raise ValueError(f"No preset fits all of {filters}.")
    rows = [
        {
            "name": card["name"],
            "layers": card["architecture"]["num_layers"],
            "width": card["architecture"]["hidden_dim"],
            "parameters": card["parameters"],
            "language": card["language"],
            "casing": card["casing"],
            "licence": card.get("licence", "not checked"),
        }
        for card in cards
    ]
    print_table(rows)
    write_json(cards, arguments.json)
