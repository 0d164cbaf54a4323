"""Text files as documents: which formats there are, and how a stream of each is read.

A document is a `Document`: its text, and whether each of its lines is a sentence already.
A stream is read line by line and let go of, so a file need not fit in memory; only a file
of prose is one document and is read whole.
"""

import bz2
import contextlib
import glob
import gzip
import json
import lzma
import os
import pathlib
import re
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, NamedTuple

# sentencex splits every text at the full stops of all scripts, and has abbreviations and other
# rules of its own for these; for Chinese it needs none. It takes any other name for English.
LANGUAGES = (
    *("am", "ar", "bg", "bn", "ca", "da", "de", "el", "en", "es", "fi", "fr", "gu", "hi", "hy"),
    *("it", "ja", "kk", "kn", "ml", "mr", "my", "nl", "pa", "pl", "pt", "ru", "sk", "ta", "te"),
    *("uk", "zh"),
)

# What a folder of texts is searched for.
_TEXT_FILE = re.compile(r"(?i)(.*\.(txt|jsonl?|ndjson)|wiki_\d+)(\.(gz|bz2|xz))?")
_JSONL_FILE = re.compile(r"(?i).*\.(jsonl?|ndjson)(\.(gz|bz2|xz))?")
_DECOMPRESS = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
# Read as text they would give nonsense, and no error where bytes may be replaced.
_UNREADABLE = (".zst", ".zip", ".7z", ".lz4", ".deflate")
# `= Title =` begins an article, `= = Section = =` a part of it.
_WIKITEXT_HEADING = re.compile(r"\s*(=(?: =)*) (?!=)(.*\S) \1\s*")
# WikiText writes 1,000 as 1 @,@ 000, and hyphens and points likewise.
_WIKITEXT_JOINT = re.compile(r" @([-,.])@ ")
# JSON can write half of a pair, which is no character and has no UTF-8.
_HALF_PAIR = re.compile("[\ud800-\udfff]")


class Document(NamedTuple):
    """A text, and whether it holds a sentence a line rather than prose."""

    text: str
    has_sentence_lines: bool = False


class BrokenLine(ValueError):
    """What is wrong with the line that begins at `offset` bytes."""

    def __init__(self, offset: int, problem: str):
        super().__init__(problem)
        self.offset = offset


def read_documents(
    paths: Iterable[str | os.PathLike], language: str | None = "en", *, format: str = "auto"
) -> list[list[str]]:
    """Return the documents of text files, each a list of its sentences.

    Args:
        paths: UTF-8 text files, as they are or as .gz, .bz2 or .xz. A folder stands for all
            the text files in it, a pattern such as `"texts/*.txt"` for what it matches.
        language: the language whose rules split prose into sentences; None is short for
            `format="sentences"`.
        format: one of `FORMATS`, or `"auto"` to go by a file's name and first line:
            `"prose"`, a file is one document; `"sentences"`, the authors' format of a
            sentence a line and a blank line between two documents; `"jsonl"`, an object a
            line with the document under `"text"`; `"wikiextractor"`, blocks from `<doc ...>` to
            `</doc>`; `"wikitext"`, an article from each `= Title =` on.

    Raises:
        ValueError: a path does not exist, a compressed file is damaged, a line is broken or
            is not UTF-8 (file and line are named), or there is no text at all.
    """
    format = "sentences" if language is None else format
    documents = []
    for path in find_files(paths):
        with open_text(str(path)) as stream:
            kind = detect_format(str(path), stream) if format == "auto" else format
            stream.seek(0)
            documents += [sentences(d, language) for d in iterate_documents(stream, kind)]
    documents = [document for document in documents if document]
    if not documents:
        raise ValueError(f"There is no text in {[str(path) for path in paths]}.")
    return documents


def sentences(document: Document, language: str | None = "en") -> list[str]:
    """Return a document's sentences, those that are not blank."""
    if document.has_sentence_lines:
        return [s for line in document.text.split("\n") if (s := line.strip())]
    return split_sentences(document.text, language)


def split_sentences(text: str, language: str = "en") -> list[str]:
    """Return the sentences of a text, white space at their ends and inside them made single.

    Raises:
        ValueError: the language is no code of one.

    Example:
        >>> split_sentences("Dr. Hill left. Why?")
        ['Dr. Hill left.', 'Why?']
    """
    import sentencex

    check_language(language)
    return [" ".join(s.split()) for s in sentencex.segment(language, text) if s.strip()]


def check_language(language: str) -> None:
    """Refuse what is no language's code, and warn of a language without rules of its own."""
    if language in LANGUAGES:
        return
    if not re.fullmatch("[a-z]{2,3}", language):
        raise ValueError(
            f"`language` must be a code such as one of {list(LANGUAGES)}. Received: {language!r}."
        )
    warnings.warn(
        f"There are no rules of its own for the language {language!r}: it is split by those of "
        f"English. There are rules for {', '.join(LANGUAGES)}.",
        stacklevel=2,
    )


# === Files ===


def find_files(paths: Iterable[str | os.PathLike]) -> Iterator[pathlib.Path]:
    """Return the files of local paths in the order of their names, each file once.

    Args:
        paths: files, folders, which stand for the text files below them, or patterns.

    Raises:
        ValueError: a path does not exist, or there is no text file below it.
    """
    seen = set()
    for name in map(os.fspath, paths):
        files = list(_files(name))
        if not files:
            what = "text file in the folder" if os.path.isdir(name) else "file or folder"
            raise ValueError(f"There is no {what} {name!r}.")
        for file in files:
            identity = file.resolve()
            if identity not in seen:
                seen.add(identity)
                yield file


def _files(name):
    places = [name] if os.path.exists(name) else sorted(glob.glob(name, recursive=True))
    for path in map(pathlib.Path, places):
        if path.is_dir():
            yield from sorted(p for p in path.rglob("*") if p.is_file() and is_text_file(p.name))
        elif path.is_file():
            yield path


def is_text_file(name: str) -> bool:
    """Say whether a file of that name in a folder of texts is one of them.

    Example:
        >>> [name for name in ("a.txt", "wiki_07.bz2", "README", "a.png") if is_text_file(name)]
        ['a.txt', 'wiki_07.bz2']
    """
    return _TEXT_FILE.fullmatch(name) is not None


def is_compressed(path: str) -> bool:
    """Say whether a file of that name is read through a decompressor.

    Example:
        >>> [name for name in ("a.txt", "a.txt.gz", "a.jsonl.BZ2") if is_compressed(name)]
        ['a.txt.gz', 'a.jsonl.BZ2']
    """
    return os.path.splitext(path)[1].lower() in _DECOMPRESS


def _open_local(path):
    return open(path, "rb")


@contextlib.contextmanager
def open_text(path: str, open_file: Callable[[str], BinaryIO] = _open_local) -> Iterator[BinaryIO]:
    """Open a file of text to read its bytes, decompressed where its name says so.

    Args:
        path: the file.
        open_file: opens the file as it is.

    Raises:
        ValueError: the kind of compression cannot be read, the file is damaged or cut short,
            or a `BrokenLine` came up while the file was open; it names the file, and the line.
    """
    suffix = os.path.splitext(path)[1].lower()
    if suffix in _UNREADABLE:
        raise ValueError(
            f"{path!r} must be text, as it is or as one of {list(_DECOMPRESS)}. "
            f"Received: {suffix!r}."
        )
    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(open_file(path))
        if is_compressed(path):
            stream = stack.enter_context(_DECOMPRESS[suffix](stream))
        try:
            yield stream
        except BrokenLine as error:
            stream.seek(0)
            raise ValueError(describe(error, path, stream)) from error
        except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
            # Damage has no number, as an error of the operating system has.
            if getattr(error, "errno", None) is not None or not is_compressed(path):
                raise
            raise ValueError(f"{path!r} is no whole {suffix} file: {error}.") from error


def detect_format(name: str, stream: BinaryIO) -> str:
    """Return a file's format by its name, or else by its first line that is not blank."""
    if _JSONL_FILE.fullmatch(name):
        return "jsonl"
    for line in iter(stream.readline, b""):
        line = line.decode("utf-8-sig", "replace").strip()
        if line.startswith("<doc "):
            return "wikiextractor"
        if line.startswith('{"'):
            return "jsonl"
        if line:
            return "wikitext" if _is_title(_WIKITEXT_HEADING.fullmatch(line)) else "prose"
    return "prose"


# === Streams ===


def iterate_documents(
    stream: BinaryIO,
    format: str,
    *,
    text_column: str = "text",
    encoding_errors: str = "strict",
    start: int = 0,
    stop: int | None = None,
) -> Iterator[Document]:
    """Return the documents of a stream that stands at its beginning, those that are not blank.

    Args:
        stream: bytes, UTF-8.
        format: one of `FORMATS`.
        text_column: the key of the text, for `jsonl`.
        encoding_errors: what to do with bytes that are not UTF-8, as `bytes.decode` takes it.
        start, stop: read the lines that begin from `start` up to `stop`; for `jsonl`.

    Raises:
        BrokenLine: a line is not UTF-8 or not what the format asks for.
    """
    if format not in FORMATS:
        raise ValueError(f"`format` must be one of {list(FORMATS)}. Received: {format!r}.")
    lines = decoded_lines(stream, encoding_errors, start, stop)
    for document in FORMATS[format](lines, text_column):
        if document.text.strip():
            yield document


def describe(error: BrokenLine, name: str, stream: BinaryIO) -> str:
    """Return what is wrong with a file, and on which line; `stream` stands at its beginning."""
    number, left = 1, error.offset
    while left > 0 and (block := stream.read(min(left, 2**20))):
        number += block.count(b"\n")
        left -= len(block)
    return f"Line {number} of {name!r} {error}"


def decoded_lines(
    stream: BinaryIO, encoding_errors: str = "strict", start: int = 0, stop: int | None = None
) -> Iterator[tuple[int, str]]:
    """Return (offset, text) of each line, as `iterate_documents` says."""
    offset = start
    if start:
        # A line belongs to the part that it begins in.
        stream.seek(start - 1)
        offset += len(stream.readline()) - 1
    while stop is None or offset < stop:
        line = stream.readline()
        if not line:
            return
        try:
            text = line.decode("utf-8", encoding_errors)
        except UnicodeDecodeError as error:
            raise BrokenLine(offset, f"is not UTF-8: {error}.") from error
        yield offset, text.removeprefix("\ufeff") if offset == 0 else text
        offset += len(line)


def _prose(lines, text_column):
    yield Document("".join(text for _, text in lines).replace("\r\n", "\n"))


def _sentence_lines(lines, text_column):
    document = []
    for _, text in lines:
        if text.strip():
            document.append(text.strip())
        elif document:
            yield Document("\n".join(document), True)
            document = []
    yield Document("\n".join(document), True)


def _jsonl(lines, text_column):
    for offset, line in lines:
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise BrokenLine(offset, f"is not JSON: {error}.") from error
        if not isinstance(row, dict) or not isinstance(row.get(text_column), str):
            has = list(row) if isinstance(row, dict) else type(row).__name__
            raise BrokenLine(
                offset, f"must be an object with a string under {text_column!r}. It has: {has}."
            )
        yield Document(_HALF_PAIR.sub("\ufffd", row[text_column]))


def _wikiextractor(lines, text_column):
    opened = document = None
    for offset, line in lines:
        if line.startswith("<doc "):
            if document is not None:
                raise BrokenLine(opened, "begins a <doc> that the next one interrupts.")
            opened, document = offset, []
        elif document is not None and line.rstrip() == "</doc>":
            # The first line is the title: no sentence.
            yield Document("".join(document[1:]))
            document = None
        elif document is not None:
            document.append(line)
        elif line.strip():
            raise BrokenLine(offset, "stands outside a <doc>.")
    if document is not None:
        raise BrokenLine(opened, "begins a <doc> that has no </doc>.")


def _wikitext(lines, text_column):
    article = []
    for _, line in lines:
        heading = _WIKITEXT_HEADING.fullmatch(line)
        if heading is None:
            article.append(_WIKITEXT_JOINT.sub(r"\1", line.strip()))
        elif _is_title(heading):
            yield Document("\n\n".join(article))
            article = []
    yield Document("\n\n".join(article))


def _is_title(heading):
    return heading is not None and heading[1] == "="


FORMATS = {
    "prose": _prose,
    "sentences": _sentence_lines,
    "jsonl": _jsonl,
    "wikiextractor": _wikiextractor,
    "wikitext": _wikitext,
}
