"""Report what a table's texts become: pieces, cuts, unknown words, padding by strategy."""

from keras_bert_zoo.cli.output import positive_int, print_results, print_table, write_json
from keras_bert_zoo.data.tables import read_table, text_columns
from keras_bert_zoo.data.text_report import (
    STRATEGIES,
    check_plot_path,
    plot_report,
    text_report,
)
from keras_bert_zoo.preprocessing import BertPreprocessor, BertTokenizer
from keras_bert_zoo.presets import load_tokenizer


def add_arguments(parser) -> None:
    """Add the table, the tokenizer and the sizes."""
    add = parser.add_argument
    add("--input", required=True, help="a table: .csv, .tsv, .jsonl, or tfds:name:split")
    add("--text", default="text", help="the column of texts")
    add("--second", help="the column of second texts, for pairs")
    add("--preset", help="whose tokenizer: a preset's name, a folder, or hf://owner/name")
    add("--vocabulary", help="a vocab.txt, instead of --preset")
    add("--cased", action="store_true", help="with --vocabulary: keep case and accents")
    add("--sequence-length", type=positive_int, default=128)
    add("--batch-size", type=positive_int, default=32)
    add("--plot", metavar="FILE", help="draw lengths and padding there: .png, .svg or .pdf")


def run(arguments) -> None:
    """Read, count, print, write."""
    if (arguments.preset is None) == (arguments.vocabulary is None):
        raise ValueError("Give either --preset or --vocabulary.")
    if arguments.preset and arguments.cased:
        raise ValueError("--cased goes with --vocabulary; a preset has its own casing.")
    if arguments.plot:
        check_plot_path(arguments.plot)
    table = read_table(arguments.input)
    texts = text_columns(table, arguments.text, arguments.second, arguments.input)
    report = text_report(texts, _preprocessor(arguments), arguments.batch_size)
    _print(report, arguments.input)
    write_json(report, arguments.json)
    if arguments.plot:
        plot_report(report, arguments.plot)


def _preprocessor(arguments):
    if arguments.vocabulary:
        tokenizer = BertTokenizer(arguments.vocabulary, lowercase=not arguments.cased)
    else:
        tokenizer = load_tokenizer(arguments.preset)
    return BertPreprocessor(tokenizer, arguments.sequence_length)


def _print(report, source):
    unknown = report["unknown"]
    print_results(
        {
            "texts": report["texts"],
            "empty texts": report["empty_texts"],
            "distinct ids": report["ids"]["distinct"],
            "share of the vocabulary": report["ids"]["share"],
            "unknown share of the pieces": unknown["pieces"],
            "share of the texts with an unknown word": unknown["texts"],
        },
        source,
    )
    pieces, effective = report["pieces"], report["effective_length"]
    print_table(
        [
            {
                "lengths": name,
                "pieces": pieces[name],
                f"effective length at {report['sequence_length']}": effective[name],
            }
            for name in pieces
        ]
    )
    print_table(
        [
            {
                "sequence length": row["sequence_length"],
                "share of texts cut": row["texts"],
                "share of pieces lost": row["pieces"],
            }
            for row in report["cut"]
        ],
        "cuts",
    )
    print_table(
        [
            {"strategy": name, **figures, "what is padded": STRATEGIES[name]}
            for name, figures in report["padding"].items()
        ],
        f"padding in batches of {report['batch_size']}",
    )
    if unknown["words"]:
        print_table(unknown["words"], "unknown words")
