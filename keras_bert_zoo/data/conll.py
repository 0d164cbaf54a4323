"""CoNLL-format files: a word and its tag a line, a blank line between sentences."""

import os
import pathlib
from collections.abc import Iterable, Sequence

OUTSIDE = "O"


def read_conll(
    path: str | os.PathLike, word_column: int = 0, tag_column: int = -1
) -> tuple[list[list[str]], list[list[str]]]:
    """Return a file's sentences as lists of words, and their tags, one a word.

    Columns are parted by tabs, or where a line has none by spaces. Lines that begin with
    `-DOCSTART-`, between documents, are left out.

    Args:
        path: a UTF-8 file.
        word_column, tag_column: which columns hold the words and the tags.

    Raises:
        ValueError: the file is missing, is not UTF-8 or has no words; or a line has too few
            columns, which is named.

    Example:
        >>> import tempfile, os
        >>> path = os.path.join(tempfile.mkdtemp(), "tags.conll")
        >>> with open(path, "w") as file:
        ...     size = file.write("Niels B-PER\\nlaughs O\\n\\nHello O\\n")
        >>> read_conll(path)
        ([['Niels', 'laughs'], ['Hello']], [['B-PER', 'O'], ['O']])
    """
    path = pathlib.Path(path)
    if not path.is_file():
        raise ValueError(f"There is no file {str(path)!r}.")
    try:
        # Line ends only: a word may hold what str.splitlines takes for one.
        lines = path.read_bytes().decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{str(path)!r} is not UTF-8: {error}.") from error
    sentences, tags = [[]], [[]]
    for number, line in enumerate(lines, 1):
        line = line.removesuffix("\r")
        if not line.strip() or line.startswith("-DOCSTART-"):
            sentences.append([])
            tags.append([])
            continue
        columns = line.split("\t") if "\t" in line else line.split(" ")
        columns = [column for column in columns if column]
        needed = max(i + 1 if i >= 0 else -i for i in (word_column, tag_column))
        if len(columns) < max(2, needed):
            raise ValueError(
                f"Line {number} of {str(path)!r} must have at least {max(2, needed)} columns, a "
                f"word and its tag. Received: {line!r}."
            )
        sentences[-1].append(columns[word_column])
        tags[-1].append(columns[tag_column])
    sentences, tags = ([row for row in rows if row] for rows in (sentences, tags))
    if not sentences:
        raise ValueError(f"{str(path)!r} has no words.")
    return sentences, tags


def tag_names(tags: Iterable[Sequence[str]]) -> list[str]:
    """Return the tags that occur, `O` first, the rest in alphabetical order.

    Example:
        >>> tag_names([["O", "B-PER"], ["B-LOC"]])
        ['O', 'B-LOC', 'B-PER']
    """
    names = {tag for row in tags for tag in row}
    return sorted(names, key=lambda name: (name != OUTSIDE, name))


def io_to_bio(tags: Iterable[Sequence[str]]) -> list[list[str]]:
    """Return IO tags, which have no beginnings, as BIO tags.

    The first word of each run of one type becomes its `B-`. Tags that are BIO already stay.

    Example:
        >>> io_to_bio([["I-PER", "I-PER", "O", "I-LOC", "I-PER"]])
        [['B-PER', 'I-PER', 'O', 'B-LOC', 'B-PER']]
    """
    converted = []
    for row in tags:
        before = [OUTSIDE, *row]
        converted.append(
            [
                f"B-{tag[2:]}" if tag.startswith("I-") and last[2:] != tag[2:] else tag
                for last, tag in zip(before, row, strict=False)
            ]
        )
    return converted
