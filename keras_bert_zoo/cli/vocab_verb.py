"""Train a WordPiece vocabulary on texts."""

import argparse
import pathlib
from collections import Counter

from keras_bert_zoo.cli.output import positive_int, print_results, write_json
from keras_bert_zoo.data.documents import (
    decoded_lines,
    detect_format,
    find_files,
    iterate_documents,
    open_text,
)
from keras_bert_zoo.data.tables import column, read_table
from keras_bert_zoo.data.vocabulary import count_words, vocabulary_of_counts, word_coverage
from keras_bert_zoo.models.preset_folder import is_preset
from keras_bert_zoo.preprocessing.vocabulary import read_vocabulary, vocabulary_file
from keras_bert_zoo.whole_files import write_whole


def add_arguments(parser) -> None:
    """Add the texts, the vocabulary's size and how it is trained."""
    add = parser.add_argument
    add(
        "--text",
        nargs="+",
        help="text or JSONL files, Wikipedia extracts, folders of them, or patterns",
    )
    add("--input", help="a table, instead: .csv, .tsv, .jsonl, or tfds:name:split")
    add("--text-column", default="text", help="the column of texts, in tables and JSONL")
    add(
        "--encoding-errors",
        choices=["strict", "replace"],
        default="strict",
        help="refuse bytes that are not UTF-8, or drop them",
    )
    add("--output", required=True, help="the vocabulary's file: new, or an older vocabulary")
    add("--size", type=positive_int, default=30522, help="entries, the special ones included")
    add("--cased", action="store_true", help="keep case and accents")
    add(
        "--strip-accents",
        action=argparse.BooleanOptionalAction,
        help="whatever the case; the tokenizer must be told as well",
    )
    add("--min-frequency", type=positive_int, default=2, help="of pieces that are joined")
    add(
        "--limit-alphabet",
        type=positive_int,
        help="characters to keep, the most frequent ones; a word with another one is [UNK]",
    )
    add("--max-piece-length", type=positive_int, default=64, help="characters of a piece")
    add(
        "--num-unused",
        type=int,
        default=0,
        help="entries [unused1], ... to keep free; from 99 on, [UNK], [CLS], [SEP] and [MASK] "
        "have the ids 100 to 103, as in the released vocabularies",
    )


def run(arguments) -> None:
    """Count, train, print, write."""
    if (arguments.text is None) == (arguments.input is None):
        raise ValueError("Give either --text or --input.")
    output = pathlib.Path(arguments.output)
    _check_free(output)
    sizes = Counter()
    counts = count_words(
        _sized(_texts(arguments), sizes),
        lowercase=not arguments.cased,
        strip_accents=arguments.strip_accents,
    )
    if not counts:
        raise ValueError(f"There is no text in {arguments.input or arguments.text}.")
    vocabulary = vocabulary_of_counts(
        counts,
        arguments.size,
        min_frequency=arguments.min_frequency,
        limit_alphabet=arguments.limit_alphabet,
        max_piece_length=arguments.max_piece_length,
        num_unused=arguments.num_unused,
    )
    coverage = word_coverage(counts, vocabulary)
    write_whole(output, vocabulary_file(vocabulary))
    results = {
        "texts": sizes["texts"],
        "characters": sizes["characters"],
        "words": counts.total(),
        "distinct words": len(counts),
        "distinct characters": len(set().union(*counts)),
        "vocabulary size": len(vocabulary),
        "unknown share of the words": coverage["unknown_share"],
        "pieces per word": coverage["pieces_per_word"],
    }
    print_results(results, "vocabulary")
    if len(vocabulary) < arguments.size:
        print(
            f"No other pieces meet --min-frequency {arguments.min_frequency} times, so there are "
            f"fewer entries than --size {arguments.size}."
        )
    write_json(results, arguments.json)
    print(f"Saved to {output}")


def _texts(arguments):
    if arguments.input:
        yield from column(read_table(arguments.input), arguments.text_column, arguments.input)
        return
    for path in map(str, find_files(arguments.text)):
        with open_text(path) as stream:
            format = detect_format(path, stream)
            stream.seek(0)
            if format == "prose":
                # No word goes over a line's end, and a file may be big.
                lines = decoded_lines(stream, arguments.encoding_errors)
                yield from (text for _, text in lines)
            else:
                documents = iterate_documents(
                    stream,
                    format,
                    text_column=arguments.text_column,
                    encoding_errors=arguments.encoding_errors,
                )
                yield from (document.text for document in documents)


def _sized(texts, sizes):
    """Give the texts on, and add up how many and how long they are."""
    for text in texts:
        yield text
        sizes["texts"] += bool(text.strip())
        sizes["characters"] += len(text)


def _check_free(path):
    """Refuse to write in the place of anything but a vocabulary that stands by itself."""
    if is_preset(path.parent):
        raise ValueError(
            "--output must not lie in a preset, whose weights go with its own vocabulary. "
            f"Received: {str(path)!r}."
        )
    if path.exists():
        try:
            read_vocabulary(path)
        except (ValueError, OSError) as error:
            raise ValueError(
                f"--output must be new or a vocabulary. Received: {str(path)!r}, which holds "
                "something else."
            ) from error
