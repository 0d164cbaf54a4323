"""Make pre-training examples from text files, JSONL, TFDS or a Wikipedia dump, at any scale."""

import shlex

from keras_bert_zoo.cli.output import positive_int, print_results, write_json
from keras_bert_zoo.data.documents import FORMATS
from keras_bert_zoo.data.next_sentence import MARKS
from keras_bert_zoo.data.prepare import prepare_examples
from keras_bert_zoo.preprocessing import BertTokenizer

_MASKING = ("mask_selection_rate", "mask_selection_length", "mask_token_rate", "random_token_rate")
_MASKING += ("selection", "unit")


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
    add("--vocabulary", required=True, help="a vocab.txt")
    add("--cased", action="store_true", help="keep case and accents")
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
    add("--language", default="en", help="whose rules split prose into sentences")
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
    add("--mask-selection-rate", type=float, default=0.15, help="share of a row's pieces")
    add("--mask-selection-length", type=positive_int, help="the most pieces of a row")
    add("--mask-token-rate", type=float, default=0.8, help="of the chosen: become [MASK]")
    add("--random-token-rate", type=float, default=0.1, help="of the chosen: become random")
    add("--selection", choices=["count", "chance"], default="count")
    add("--unit", choices=["piece", "word", "span"], default="piece", help="chosen together")
    add(
        "--replacements",
        choices=["ordinary", "all"],
        default="ordinary",
        help="what random pieces are drawn from; the authors' code draws from the whole vocabulary",
    )
    add("--shards", type=positive_int, help="files of examples; chosen by the text's size if not")
    add("--seed", type=int, default=0)
    add("--workers", type=positive_int, default=1, help="processes on this machine")
    add("--runner", default="DirectRunner", help="a Beam runner; this one runs here, in memory")
    add("--beam-options", default="", help="the runner's options, in one string")


def run(arguments) -> None:
    """Make the examples and print what the manifest counts."""
    masking = None
    if arguments.masked_once:
        masking = {name: getattr(arguments, name) for name in _MASKING}
        masking["replacement_token_ids"] = "all" if arguments.replacements == "all" else None
    manifest = prepare_examples(
        arguments.text,
        arguments.output,
        BertTokenizer(arguments.vocabulary, lowercase=not arguments.cased),
        format=arguments.format,
        text_column=arguments.text_column,
        encoding_errors=arguments.encoding_errors,
        language=arguments.language,
        objective=arguments.objective,
        sequence_length=arguments.sequence_length,
        short_share=arguments.short_share,
        balanced=not arguments.authors_labels,
        duplicates=arguments.dupe_factor,
        masking=masking,
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
