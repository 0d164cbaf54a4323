"""Results as a table on the screen and as JSON in a file."""

import argparse
import json
import os
from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from keras_bert_zoo.whole_files import write_whole


def print_table(rows: Sequence[Mapping], title: str | None = None) -> None:
    """Print dictionaries with the same keys as a table."""
    table = Table(title=title, box=box.SIMPLE, title_justify="left")
    for name in rows[0]:
        number = all(isinstance(row[name], int | float) for row in rows)
        table.add_column(name, justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_text(value) for value in row.values()))
    Console(width=None if os.isatty(1) else 100).print(table)


def print_results(results: Mapping, title: str) -> None:
    """Print names and values as a table."""
    print_table([{"": name, title: _text(value)} for name, value in results.items()])


def write_json(results, path: str | None) -> None:
    """Write results to a file, whole or not at all; nothing where `path` is None."""
    if path is None:
        return
    text = json.dumps(results, indent=2, ensure_ascii=False)
    write_whole(path, f"{text}\n".encode())


def positive_int(text: str) -> int:
    """Return an option's value, an integer of at least 1."""
    if not (text.isascii() and text.isdigit() and int(text) >= 1):
        raise argparse.ArgumentTypeError(f"must be an integer of at least 1, not {text!r}")
    return int(text)


def _text(value):
    if isinstance(value, float):
        return f"{value:.4f}" if 1e-3 <= abs(value) < 1e6 or value == 0 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
