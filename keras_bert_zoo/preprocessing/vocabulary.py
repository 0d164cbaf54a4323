"""A WordPiece vocabulary: one entry a line, the line number is the id."""

import os
from collections.abc import Sequence

PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL_TOKENS = (PAD, UNK, CLS, SEP, MASK)
_REQUIRED_TOKENS = (PAD, UNK, CLS, SEP)
_MAX_ENTRY_BYTES = 256  # the longest piece that tf-text's FastWordpieceTokenizer takes


def read_vocabulary(vocabulary: str | os.PathLike | Sequence[str]) -> list[str]:
    """Reads and checks a vocabulary.

    Args:
        vocabulary: the path of a text file in UTF-8 with an entry a line, or the entries
            themselves. Only the line end (LF or CRLF) is taken off a line: an entry may be a
            space of any kind.

    Returns:
        The entries; an entry's place is its id.

    Raises:
        TypeError: `vocabulary` is neither a path nor a sequence of strings.
        ValueError: an entry occurs twice or has more than 256 bytes, or `[PAD]`, `[UNK]`,
            `[CLS]` or `[SEP]` is missing, or the file is not UTF-8.
        FileNotFoundError: there is no such file.

    Example:
        >>> read_vocabulary(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "##b"])[4:]
        ['a', '##b']
    """
    if isinstance(vocabulary, (str, os.PathLike)):
        source = f"The vocabulary {os.fspath(vocabulary)!r}"
        entries = _read_lines(vocabulary)
    elif isinstance(vocabulary, Sequence) and not isinstance(vocabulary, (bytes, bytearray)):
        source = "`vocabulary`"
        entries = list(vocabulary)
    else:
        raise TypeError(
            "`vocabulary` must be the path of a file or a list of strings. "
            f"Received: {vocabulary!r} of type {type(vocabulary).__name__}."
        )
    seen = {}
    for number, entry in enumerate(entries):
        if not isinstance(entry, str):
            raise TypeError(
                f"{source} must hold strings. Received at place {number}: {entry!r} "
                f"of type {type(entry).__name__}."
            )
        _check_entry(entry, number, source)
        if entry in seen:
            raise ValueError(
                f"{source} has the entry {entry!r} twice, as ids {seen[entry]} and {number}. "
                "An entry must have one id: take one of the two out."
            )
        seen[entry] = number
    missing = [token for token in _REQUIRED_TOKENS if token not in seen]
    if missing:
        raise ValueError(
            f"{source} lacks {', '.join(missing)}. A BERT vocabulary needs the entries "
            f"{', '.join(_REQUIRED_TOKENS)}, and {MASK} for masked language modelling. "
            f"It has {len(entries)} entries, the first of them {entries[:5]}."
        )
    return entries


def vocabulary_file(vocabulary: Sequence[str]) -> bytes:
    """Gives the content of a text file in UTF-8 with an entry a line, in the order of their ids.

    Raises:
        ValueError: an entry holds a line end, which the file could not give back.
    """
    for entry in vocabulary:
        if "\n" in entry or entry.endswith("\r"):
            raise ValueError(f"The entry {entry!r} holds a line end: a file can't keep it.")
    return "".join(f"{entry}\n" for entry in vocabulary).encode()


def write_vocabulary(path: str | os.PathLike, vocabulary: Sequence[str]) -> None:
    """Writes what `vocabulary_file` gives."""
    with open(path, "wb") as file:
        file.write(vocabulary_file(vocabulary))


def _check_entry(entry: str, number: int, source: str) -> None:
    try:
        size = len(entry.removeprefix("##").encode())
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{source} has half a surrogate pair in entry {number}, {entry!r}. It is no text."
        ) from error
    if size > _MAX_ENTRY_BYTES:
        raise ValueError(
            f"{source} has an entry of {size} bytes, number {number}: {entry[:20]!r}... "
            f"A piece may have {_MAX_ENTRY_BYTES} bytes at most."
        )


def _read_lines(path: str | os.PathLike) -> list[str]:
    with open(path, "rb") as file:
        content = file.read()
    try:
        lines = content.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"The vocabulary {os.fspath(path)!r} is not UTF-8: line {line} can't be read."
        ) from error
    if lines[-1] == "":  # what follows the last line end
        lines.pop()
    return [line.removesuffix("\r") for line in lines]
