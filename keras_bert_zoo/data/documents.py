"""Raw text as documents, each a list of sentences."""

import os
import pathlib
import re
from collections.abc import Iterable


def read_documents(
    paths: Iterable[str | os.PathLike], language: str | None = "en"
) -> list[list[str]]:
    """Return the documents of text files, each a list of its sentences.

    Args:
        paths: UTF-8 text files. A folder stands for all its `.txt` files.
        language: the language whose rules split a text into sentences; a file is then one
            document. None for the authors' format: a sentence a line, and a blank line
            between two documents.

    Raises:
        ValueError: a path does not exist or is not UTF-8, or there is no text at all.
    """
    documents = []
    for path in _files(paths):
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"The text file {str(path)!r} is not UTF-8: {error}.") from error
        if language is None:
            documents += [block.split("\n") for block in re.split(r"\n\s*\n", text)]
        else:
            documents.append(split_sentences(text, language))
    documents = [[s for line in document if (s := line.strip())] for document in documents]
    documents = [document for document in documents if document]
    if not documents:
        raise ValueError(f"There is no text in {[str(path) for path in paths]}.")
    return documents


def split_sentences(text: str, language: str = "en") -> list[str]:
    """Return the sentences of a text, white space at their ends and inside them made single.

    Example:
        >>> split_sentences("Dr. Hill left. Why?")
        ['Dr. Hill left.', 'Why?']
    """
    import sentencex

    return [" ".join(s.split()) for s in sentencex.segment(language, text) if s.strip()]


def _files(paths):
    for path in map(pathlib.Path, paths):
        if path.is_dir():
            yield from sorted(path.glob("*.txt"))
        elif path.is_file():
            yield path
        else:
            raise ValueError(f"There is no file or folder {str(path)!r}.")
