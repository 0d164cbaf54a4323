"""List the presets."""

from keras_bert_zoo.cli.output import print_table, write_json
from keras_bert_zoo.presets import list_presets


def add_arguments(parser) -> None:
    """Add the filters."""
    parser.add_argument("--language", help="only this language: en, zh, multilingual")
    parser.add_argument("--casing", choices=["cased", "uncased"])


def run(arguments) -> None:
    """Print one line a preset."""
    cards = [
        card
        for card in list_presets()
        if arguments.language in (None, card["language"])
        and arguments.casing in (None, card["casing"])
    ]
    if not cards:
        raise ValueError(
            f"No preset has --language {arguments.language} and --casing {arguments.casing}."
        )
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
