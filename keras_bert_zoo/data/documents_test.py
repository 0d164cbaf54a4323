"""Text files as documents, in every format."""

import bz2
import gzip
import io
import lzma

import pytest

from keras_bert_zoo.data import read_documents
from keras_bert_zoo.data.documents import (
    BrokenLine,
    Document,
    describe,
    detect_format,
    iterate_documents,
    open_text,
)

pytestmark = pytest.mark.backend_free


def written(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def texts(content, format, **arguments):
    content = content if isinstance(content, bytes) else content.encode()
    return [d.text for d in iterate_documents(io.BytesIO(content), format, **arguments)]


# === Files ===


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_the_authors_format_is_a_sentence_a_line(tmp_path, line_end):
    text = "One.\n  Two. Three. \n\n\n \nFour.\n\n".replace("\n", line_end)
    path = written(tmp_path, "corpus.txt", text)
    expected = [["One.", "Two. Three."], ["Four."]]
    assert read_documents([path], language=None) == expected
    assert read_documents([path], format="sentences") == expected


def test_a_file_of_prose_is_one_document_of_sentences(tmp_path):
    text = "Dr. Hill left the house. Why did\nshe go? Nobody knew."
    written(tmp_path, "b.txt", "Another one.")
    written(tmp_path, "a.txt", text)
    written(tmp_path, "notes.md", "No text.")
    assert read_documents([tmp_path]) == [
        ["Dr. Hill left the house.", "Why did she go?", "Nobody knew."],
        ["Another one."],
    ]


def test_sentences_are_split_by_the_rules_of_the_language(tmp_path):
    path = written(tmp_path, "zh.txt", "我喜欢吃鱼。你呢？好！")
    assert read_documents([path], "zh") == [["我喜欢吃鱼。", "你呢？", "好！"]]


def test_a_language_without_rules_of_its_own_is_warned_of(tmp_path):
    path = written(tmp_path, "a.txt", "En. Två.")
    with pytest.warns(UserWarning, match="'sv'"):
        assert read_documents([path], "sv") == [["En.", "Två."]]


@pytest.mark.parametrize("language", ["klingon", "EN", ""])
def test_a_language_without_rules_is_refused(tmp_path, language):
    path = written(tmp_path, "a.txt", "One.")
    with pytest.raises(ValueError, match=f"`language` must be .*'en'.*Received: '{language}'"):
        read_documents([path], language)


def test_a_file_that_is_not_utf_8_is_refused_by_name_and_line(tmp_path):
    path = written(tmp_path, "latin.txt", "Tea.\nCafé.".encode("latin-1"))
    with pytest.raises(ValueError, match=r"Line 2 of .*latin\.txt.*not UTF-8"):
        read_documents([path])


def test_missing_and_empty_files_are_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match=r"none\.txt"):
        read_documents([tmp_path / "none.txt"])
    with pytest.raises(ValueError, match=r"empty\.txt"):
        read_documents([written(tmp_path, "empty.txt", " \n\n")])


def test_a_folder_without_a_text_file_is_named(tmp_path):
    written(tmp_path, "notes.md", "No text.")
    with pytest.raises(ValueError, match=f"no text file in the folder '{tmp_path}'"):
        read_documents([tmp_path])


def test_a_file_given_twice_is_read_once(tmp_path, monkeypatch):
    written(tmp_path, "a.txt", "One.")
    monkeypatch.chdir(tmp_path)
    assert read_documents(["a.txt", tmp_path / "a.txt", tmp_path, "*.txt"]) == [["One."]]


def test_a_pattern_stands_for_what_it_matches(tmp_path):
    (tmp_path / "sub").mkdir()
    written(tmp_path / "sub", "c.txt", "Three.")
    written(tmp_path, "b.txt", "Two.")
    written(tmp_path, "a.txt", "One.")
    written(tmp_path, "[a].txt", "Four.")
    assert read_documents([tmp_path / "?.txt"]) == [["One."], ["Two."]]
    assert read_documents([tmp_path / "**" / "c.txt"]) == [["Three."]]
    assert read_documents([tmp_path / "[a].txt"]) == [["Four."]]
    assert read_documents([tmp_path / "s*"]) == [["Three."]]


def test_compressed_files_are_read(tmp_path):
    written(tmp_path, "a.jsonl.gz", gzip.compress(b'{"text": "One."}\n{"text": "Two."}\n'))
    written(tmp_path, "b.txt.bz2", bz2.compress(b"Three."))
    written(tmp_path, "c.txt.xz", lzma.compress(b"Four."))
    assert read_documents([tmp_path]) == [["One."], ["Two."], ["Three."], ["Four."]]


TEXT = b"".join(b'{"text": "%d"}\n' % k for k in range(50))
# Without the time, which would be part of the tests' names.
GZIPPED = gzip.compress(TEXT, mtime=0)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl.gz", GZIPPED[:-20]),
        ("a.jsonl.gz", GZIPPED[:-8] + bytes(8)),
        ("a.jsonl.gz", GZIPPED[:20] + bytes(50)),
        ("a.jsonl.gz", TEXT),
        ("a.jsonl.bz2", bz2.compress(TEXT)[:-20]),
        ("a.jsonl.bz2", TEXT),
        ("a.jsonl.xz", lzma.compress(TEXT)[:-20]),
        ("a.jsonl.xz", TEXT),
    ],
)
def test_a_damaged_compressed_file_is_named(tmp_path, name, content):
    path = written(tmp_path, name, content)
    with pytest.raises(ValueError, match=rf"'{path}' is no whole \.\w+ file"):
        read_documents([path])


def test_compression_that_is_not_known_is_refused(tmp_path):
    path = written(tmp_path, "a.jsonl.zst", "One.")
    with pytest.raises(ValueError, match=r"one of \['.gz', '.bz2', '.xz'\]. Received: '.zst'"):
        read_documents([path])


def test_an_error_of_the_system_stays_what_it_is(tmp_path):
    def denied(path):
        raise PermissionError(13, "Permission denied", path)

    with pytest.raises(PermissionError), open_text("a.txt.gz", denied):
        pass


@pytest.mark.parametrize(
    ("name", "content", "format"),
    [
        ("a.txt", "\n One.", "prose"),
        ("a.jsonl", "", "jsonl"),
        ("wiki_00.JSON.gz", "", "jsonl"),
        ("wiki_00", '{"id": "1", "text": "One."}\n', "jsonl"),
        ("wiki_00", '<doc id="1" url="u" title="T">\n', "wikiextractor"),
        ("wiki.valid.tokens", " \n = Title = \n", "wikitext"),
        ("a.txt", "= = Section = =\n", "prose"),
    ],
)
def test_the_format_is_told_by_name_and_first_line(name, content, format):
    assert detect_format(name, io.BytesIO(content.encode())) == format


# === Formats ===


def test_jsonl_has_an_object_a_line():
    content = '\ufeff{"text": "One.\\nTwo."}\n\n{"id": 3, "text": " "}\r\n{"text": "Three\u2028."}'
    assert texts(content, "jsonl") == ["One.\nTwo.", "Three\u2028."]
    assert texts('{"body": "One."}', "jsonl", text_column="body") == ["One."]


def test_half_of_a_surrogate_pair_is_no_character():
    assert texts(r'{"text": "a\ud800 \udc00b \ud83d\ude00"}', "jsonl") == [
        "a\ufffd \ufffdb \U0001f600"
    ]


def test_parts_of_jsonl_have_each_line_once():
    lines = [f'{{"text": "{"é" * (k % 7)}{k}"}}\n'.encode() for k in range(50)]
    content = b"".join(lines)
    whole = texts(content, "jsonl")
    for size in (1, 7, 20, 64, 1000, len(content), len(content) + 1):
        parts = [
            texts(content, "jsonl", start=start, stop=start + size)
            for start in range(0, len(content), size)
        ]
        assert [text for part in parts for text in part] == whole


def test_wikiextractor_blocks_are_documents_without_their_title():
    content = (
        '<doc id="1" url="u" title="Lobster">\nLobster\n\nA lobster.\nIt is blue.\n</doc>\n'
        '\n<doc id="2" url="u" title="Empty">\nEmpty\n\n</doc>\n'
        '<doc id="3" url="u" title="Crab">\nCrab\n\nA crab.\n</doc>\n'
    )
    found = texts(content, "wikiextractor")
    assert [text.split("\n") for text in found] == [
        ["", "A lobster.", "It is blue.", ""],
        ["", "A crab.", ""],
    ]


def test_wikitext_articles_begin_with_a_title():
    content = (
        " \n = Lobster = \n \n A lobster weighs 1 @,@ 000 g . \n \n = = Life = = \n"
        " It is blue @-@ green . \n = = = Diet = = = \n It eats 2 = 2 . \n = Crab = \n A crab . \n"
    )
    found = texts(content, "wikitext")
    assert [" ".join(text.split()) for text in found] == [
        "A lobster weighs 1,000 g . It is blue-green . It eats 2 = 2 .",
        "A crab .",
    ]


def test_sentence_lines_are_kept_apart():
    found = list(iterate_documents(io.BytesIO(b"A. B.\n C. \n\nD."), "sentences"))
    assert found == [Document("A. B.\nC.", True), Document("D.", True)]


@pytest.mark.parametrize(
    ("format", "content", "line", "message"),
    [
        ("jsonl", '{"text": "a"}\n{"text"\n', 2, "is not JSON"),
        ("jsonl", "\n[1]\n", 2, "must be an object.*list"),
        ("jsonl", '{"title": "a", "body": "b"}\n', 1, r"'text'.*\['title', 'body'\]"),
        ("jsonl", '{"text": "a"}\n\n{"text": null}\n', 3, "'text'"),
        ("wikiextractor", "<doc id>\nA\n<doc id>\nB\n</doc>\n", 1, "interrupts"),
        ("wikiextractor", "<doc id>\nA\n</doc>\nloose\n", 4, "outside"),
        ("wikiextractor", "\n<doc id>\nA\n", 2, "has no </doc>"),
        ("wikitext", b"= A =\nb\n\xff\n", 3, "not UTF-8"),
        ("sentences", b"a\r\n\r\n\xe9\n", 3, "not UTF-8"),
        ("prose", b"a\n\xe9\n", 2, "not UTF-8"),
    ],
)
def test_a_broken_line_is_named(format, content, line, message):
    with pytest.raises(BrokenLine, match=message) as error:
        texts(content, format)
    content = content if isinstance(content, bytes) else content.encode()
    assert describe(error.value, "a.txt", io.BytesIO(content)).startswith(f"Line {line} of 'a.txt'")


def test_bytes_that_are_not_utf_8_can_be_let_go():
    assert texts(b"caf\xe9.", "prose", encoding_errors="replace") == ["caf\ufffd."]


def test_an_unknown_format_is_refused():
    with pytest.raises(ValueError, match="'prose'.*Received: 'pdf'"):
        texts("a", "pdf")
