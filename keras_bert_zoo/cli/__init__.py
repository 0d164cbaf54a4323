"""The command line: each verb is a thin file over the other rooms."""

import argparse
import importlib
import logging
import sys
import warnings
from collections.abc import Sequence

# A verb's module has a docstring, `add_arguments(parser)` and `run(arguments)`.
VERBS = (
    "list",
    "convert",
    "export",
    "report",
    "vocab",
    "prepare",
    "pretrain",
    "finetune",
    "evaluate",
    "predict",
    "features",
    "study",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; return 0, or 2 with one line on standard error where the input is wrong."""
    parsed = make_parser().parse_args(arguments)
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    warnings.showwarning = _show_warning
    try:
        parsed.run(parsed)
    except (ValueError, TypeError, OSError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line, a sub-parser a verb."""
    parser = argparse.ArgumentParser("python -m keras_bert_zoo", description="BERT on Keras 3.")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="verb")
    for verb in VERBS:
        module = importlib.import_module(f"keras_bert_zoo.cli.{verb}_verb")
        summary = module.__doc__.strip().splitlines()[0]
        verb_parser = verbs.add_parser(
            verb,
            help=summary,
            description=summary,
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
        verb_parser.add_argument("--json", metavar="FILE", help="write the results there as JSON")
        module.add_arguments(verb_parser)
        verb_parser.set_defaults(run=module.run)
    return parser


def _show_warning(message, category, filename, line_number, file=None, line=None):
    print(f"warning: {message}", file=sys.stderr)
