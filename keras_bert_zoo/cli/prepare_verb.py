"""Make pre-training examples from text files, JSONL, TFDS or a Wikipedia dump, at any scale."""

import argparse
import shlex

from keras_bert_zoo.cli.output import positive_int, print_results, write_json
from keras_bert_zoo.data.documents import FORMATS, LANGUAGES
from keras_bert_zoo.data.next_sentence import MARKS
from keras_bert_zoo.data.prepare import prepare_examples
from keras_bert_zoo.preprocessing import BertTokenizer
from keras_bert_zoo.presets import load_tokenizer

# What --masked-once masks by, if not told.
_MASKING = {
    "mask_selection_rate": 0.15,
    "mask_selection_length": None,
    "mask_token_rate": 0.8,
    "random_token_rate": 0.1,
    "selection": "count",
    "unit": "piece",
    "replacements": "ordinary",
}


def add_arguments(parser) -> None:
    """Add the text, the vocabulary, the rules and the workers."""
    add = parser.add_argument
    add(
        "--text",
        nargs="+",
        required=True,
        help="files, folders or patterns, local or remote (gs://...); or tfds:name:split",
    )
    add("--output", required=True, help="a new folder, or one that an ended run began")
    add("--vocabulary", help="a vocab.txt")
    add("--preset", help="a model's name or folder, instead: its vocabulary, casing and rules")
    add("--cased", action="store_true", help="keep case and accents; with --vocabulary")
    add(
        "--strip-accents",
        action=argparse.BooleanOptionalAction,
        help="whatever the case, as the vocabulary was trained; with --vocabulary",
    )
    add(
        "--format",
        choices=["auto", *FORMATS],
        default="auto",
        help="prose: a file is a document; sentences: a sentence a line, a blank line between "
        "documents, as the authors' script takes it; jsonl: an object a line; wikiextractor: "
        "<doc> blocks; wikitext: = Title = begins an article; auto: one of them but "
        "'sentences', by name and first line",
    )
    add("--text-column", default="text", help="the key of the text, in JSONL and TFDS")
    add("--language", default="en", help=f"whose rules split prose: {', '.join(LANGUAGES)}")
    add(
        "--encoding-errors",
        choices=["strict", "replace"],
        default="strict",
        help="refuse bytes that are not UTF-8, or drop them",
    )
    add("--objective", choices=list(MARKS), default="next_sentence")
    add("--sequence-length", type=positive_int, default=128)
    add("--short-share", type=float, default=0.1, help="of the passes: a shorter target")
    add(
        "--authors-labels",
        action="store_true",
        help="let a sentence that stands alone always have a random next one, as in the authors' "
        "code, so that more than half of the pairs are random",
    )
    add(
        "--dupe-factor",
        type=positive_int,
        default=1,
        help="passes over the documents, with other pairs each time",
    )
    add(
        "--masked-once",
        action="store_true",
        help="mask the examples now; otherwise training masks them, anew each epoch",
    )
    add("--shards", type=positive_int, help="files of examples; chosen by the text's size if not")
    add("--seed", type=int, default=0)
    add("--workers", type=positive_int, default=1, help="processes on this machine")
    add("--runner", default="DirectRunner", help="a Beam runner; this one runs here, in memory")
    add("--beam-options", default="", help="the runner's options, in one string")
    masking = parser.add_argument_group(
        "masking, with --masked-once", argument_default=argparse.SUPPRESS
    ).add_argument
    masking("--mask-selection-rate", type=float, help="share of a row's pieces; 0.15 if not given")
    masking("--mask-selection-length", type=positive_int, help="the most pieces of a row")
    masking("--mask-token-rate", type=float, help="of the chosen: become [MASK]; 0.8 if not given")
    masking(
        "--random-token-rate", type=float, help="of the chosen: become random; 0.1 if not given"
    )
    masking("--selection", choices=["count", "chance"], help="count if not given")
    masking("--unit", choices=["piece", "word", "span"], help="chosen together; piece if not given")
    masking(
        "--replacements",
        choices=["ordinary", "all"],
        help="what random pieces are drawn from, ordinary if not given; the authors' code draws "
        "from the whole vocabulary",
    )


def run(arguments) -> None:
    """Make the examples and print what the manifest counts."""
    manifest = prepare_examples(
        arguments.text,
        arguments.output,
        _tokenizer(arguments),
        format=arguments.format,
        text_column=arguments.text_column,
        encoding_errors=arguments.encoding_errors,
        language=arguments.language,
        objective=arguments.objective,
        sequence_length=arguments.sequence_length,
        short_share=arguments.short_share,
        balanced=not arguments.authors_labels,
        duplicates=arguments.dupe_factor,
        masking=_masking(arguments),
        shards=arguments.shards,
        seed=arguments.seed,
        workers=arguments.workers,
        runner=arguments.runner,
        beam_options=shlex.split(arguments.beam_options),
    )
    counts = manifest["counts"]
    results = {name: value for name, value in counts.items() if isinstance(value, int)}
    results["shards"] = manifest["settings"]["shards"]
    if "labels" in counts:
        results["share of label 1"] = counts["labels"][1] / max(1, sum(counts["labels"]))
    results |= {f"{name} pieces, share": r for name, r in manifest.get("rates", {}).items()}
    print_results(results, "examples")
    write_json(manifest, arguments.json)
    print(f"The examples are in {arguments.output}")


def _tokenizer(arguments):
    if (arguments.vocabulary is None) == (arguments.preset is None):
        raise ValueError("Give either --vocabulary or --preset.")
    if arguments.preset is None:
        return BertTokenizer(
            arguments.vocabulary,
            lowercase=not arguments.cased,
            strip_accents=arguments.strip_accents,
        )
    if arguments.cased or arguments.strip_accents is not None:
        raise ValueError("--cased and --strip-accents are for --vocabulary: a preset has its own.")
    return load_tokenizer(arguments.preset)


def _masking(arguments):
    """Return the arguments of the masker, or None where training is to mask."""
    given = {name: value for name, value in vars(arguments).items() if name in _MASKING}
    if not arguments.masked_once:
        if given:
            option = "--" + min(given).replace("_", "-")
            raise ValueError(
                f"{option} is for --masked-once. Without it training masks the examples, and "
                "how is chosen there."
            )
        return None
    masking = {**_MASKING, **given}
    masking["replacement_token_ids"] = "all" if masking.pop("replacements") == "all" else None
    return masking
