"""Tables of texts and labels: CSV, TSV, JSONL, and TFDS by name."""

import csv
import itertools
import json
import os
import pathlib
import sys
import warnings
from collections.abc import Sequence


def read_table(source: str, names: Sequence[str] | None = None) -> dict[str, list]:
    """Return a table's columns by name.

    Args:
        source: a UTF-8 file that ends in `.csv` (quoted as in RFC 4180; parted by semicolons or
            tabs where its first line has no comma), `.tsv` (no quoting, as GLUE's files),
            `.jsonl` (an object a line); or `tfds:name/config:split`, such as
            `tfds:glue/sst2:train`, of TensorFlow Datasets. CSV and TSV begin with a line of
            column names.
        names: the columns of a CSV or TSV file that begins with no such line, as AG News's.

    Returns:
        Lists of equal length; strings from CSV and TSV, strings and numbers from the rest.

    Raises:
        ValueError: the file is missing, its kind is not known, or a line has another number
            of fields than the first; the message names the line.
    """
    path = pathlib.Path(source)
    if names is not None and path.suffix not in (".csv", ".tsv"):
        raise ValueError(f"`names` are for a .csv or .tsv file. Received: {source!r}.")
    if source.startswith("tfds:"):
        return _read_tfds(source)
    if path.suffix not in _READERS:
        raise ValueError(
            f"A table must end in {', '.join(_READERS)}, or be tfds:name:split. "
            f"Received: {source!r}."
        )
    return _read_file(source, _READERS[path.suffix], names)


def read_tsv(
    path: str | os.PathLike, names: Sequence[str] | None = None, drop_ragged: bool = False
) -> dict[str, list[str]]:
    """Return the columns of a TSV file, whatever its name ends in.

    Args:
        path, names: as in `read_table`.
        drop_ragged: leave out the lines with too few or too many fields, and warn of them.
    """
    return _read_file(os.fspath(path), _read_tsv, names, drop_ragged)


def column(table: dict[str, list], name: str, source: str) -> list:
    """Return one column, or a ValueError that says which there are."""
    if name not in table:
        raise ValueError(f"The table {source!r} has no column {name!r}. It has: {list(table)}.")
    return table[name]


def text_columns(table: dict[str, list], first: str, second: str | None, source: str) -> tuple:
    """Return the column of texts, or both columns of pairs; `second` is None for single texts."""
    return tuple(column(table, name, source) for name in (first, second) if name is not None)


def _read_file(source, reader, *arguments):
    if not os.path.isfile(source):
        raise ValueError(f"There is no file {source!r}.")
    # A carriage return within a line ends it in CSV alone, where it can be quoted.
    newline = "" if reader is _read_csv else "\n"
    with open(source, encoding="utf-8-sig", newline=newline) as lines:
        try:
            table = reader(lines, source, *arguments)
        except UnicodeDecodeError as error:
            raise ValueError(f"The table {source!r} is not UTF-8: {error}.") from error
        except csv.Error as error:
            raise ValueError(f"The table {source!r} is not CSV: {error}.") from error
    if not any(table.values()):
        raise ValueError(f"The table {source!r} has no rows.")
    return table


def _read_csv(lines, source, names):
    # The default limit of 128 KiB a field is less than a long document.
    csv.field_size_limit(sys.maxsize)
    head = next(lines, "")
    # Where a comma stands in numbers, spreadsheets part fields by semicolons.
    is_other = names is None and "," not in head
    delimiter = next((mark for mark in ";\t" if is_other and mark in head), ",")
    rows = csv.reader(itertools.chain([head], lines), delimiter=delimiter, strict=True)
    return _columns(rows, source, names)


def _read_tsv(lines, source, names, drop_ragged=False):
    rows = (line.rstrip("\r\n").split("\t") for line in lines)
    return _columns(rows, source, names, drop_ragged)


def _read_jsonl(lines, source, _):
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"Line {number} of {source!r} is not JSON: {error}.") from error
        if not isinstance(row, dict) or (rows and row.keys() != rows[0].keys()):
            raise ValueError(
                f"Line {number} of {source!r} must be an object with the first line's keys."
            )
        rows.append(row)
    if not rows:
        raise ValueError(f"The table {source!r} is empty.")
    return {name: [row[name] for row in rows] for name in rows[0]}


def _columns(rows, source, names, drop_ragged=False):
    first = 1
    if names is None:
        names, first = next(rows, None), 2
    if not names:
        raise ValueError(f"The table {source!r} is empty.")
    if len(set(names)) < len(names):
        raise ValueError(f"Two columns of {source!r} have the same name: {names}.")
    body, ragged = [], []
    for number, row in enumerate(rows, first):
        # A blank line, unless it can be an empty text.
        if not row or (row == [""] and len(names) > 1):
            continue
        if len(row) == len(names):
            body.append(row)
        elif drop_ragged:
            ragged.append(number)
        else:
            raise ValueError(
                f"Row {number} of {source!r} has {len(row)} fields, not the {len(names)} of the "
                f"columns {list(names)}."
            )
    if ragged:
        warnings.warn(
            f"{len(ragged)} lines of {source!r} have not the {len(names)} fields of its columns "
            f"and are left out, the first line {ragged[0]}.",
            stacklevel=2,
        )
    return {name: [row[i] for row in body] for i, name in enumerate(names)}


def load_tfds(source: str) -> tuple:
    """Return the data set called `tfds:name:split`, its facts, and the TFDS module.

    Raises:
        ValueError: the name has another form, or the package is not installed.
    """
    name, _, split = source.removeprefix("tfds:").rpartition(":")
    if not name:
        raise ValueError(f"A TFDS table is tfds:name:split. Received: {source!r}.")
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise ValueError(
            f"{source!r} needs the package tensorflow-datasets, which is not installed."
        ) from error
    dataset, info = tfds.load(name, split=split, with_info=True)
    return dataset, info, tfds


def _read_tfds(source):
    dataset, info, tfds = load_tfds(source)
    table = {name: [] for name in dataset.element_spec}
    for row in tfds.as_numpy(dataset):
        for name, value in row.items():
            table[name].append(value.decode() if isinstance(value, bytes) else value.item())
    for name, feature in info.features.items():
        # Class numbers as the names they stand for; -1 is TFDS's "not given".
        if isinstance(feature, tfds.features.ClassLabel):
            table[name] = [feature.int2str(i) if i >= 0 else None for i in table[name]]
    return table


_READERS = {".csv": _read_csv, ".tsv": _read_tsv, ".jsonl": _read_jsonl}
