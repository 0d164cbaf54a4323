"""CoNLL files, as the two corpora write them, and what is wrong in others."""

import os
import pathlib

import pytest

from keras_bert_zoo.data.conll import io_to_bio, read_conll, tag_names

pytestmark = pytest.mark.backend_free

DATA = os.environ.get("KERAS_BERT_ZOO_DATA")
real_data = pytest.mark.skipif(DATA is None, reason="KERAS_BERT_ZOO_DATA is not set")


def written(folder, content):
    path = folder / "tags.conll"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    "content",
    [
        "Niels\tB-PER\nlaughs\tO\n\nHello\tO\n",
        "Niels B-PER\nlaughs O\n\n\nHello O",
        "\ufeff-DOCSTART- O\r\n\r\nNiels B-PER\r\nlaughs O\r\n \t\r\nHello O\r\n",
    ],
    ids=["tabs", "spaces", "documents, CRLF and BOM"],
)
def test_words_and_tags_are_read(tmp_path, content):
    expected = [["Niels", "laughs"], ["Hello"]], [["B-PER", "O"], ["O"]]
    assert read_conll(written(tmp_path, content)) == expected


def test_further_columns_may_stand_between(tmp_path):
    path = written(tmp_path, "EU NNP B-NP B-ORG\nrejects VBZ B-VP O\n")
    assert read_conll(path) == ([["EU", "rejects"]], [["B-ORG", "O"]])
    assert read_conll(path, tag_column=1) == ([["EU", "rejects"]], [["NNP", "VBZ"]])


def test_a_word_keeps_its_odd_spaces(tmp_path):
    path = written(tmp_path, "a\u00a0b\tO\nc\u2028d\tO\ne f\tO\n")
    assert read_conll(path)[0] == [["a\u00a0b", "c\u2028d", "e f"]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a O\nb\n", "Line 2 of .* at least 2 columns.*'b'"),
        ("\n\n", "has no words"),
        (b"\xff O\n", "is not UTF-8"),
    ],
)
def test_what_is_no_conll_file_is_refused(tmp_path, content, message):
    with pytest.raises(ValueError, match=message):
        read_conll(written(tmp_path, content))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match="There is no file .*nowhere"):
        read_conll(tmp_path / "nowhere")


def test_io_becomes_bio_and_bio_stays():
    io = [["I-A", "I-A", "O", "I-A", "I-B", "I-B"], [], ["O"]]
    bio = [["B-A", "I-A", "O", "B-A", "B-B", "I-B"], [], ["O"]]
    assert io_to_bio(io) == bio
    assert io_to_bio(bio) == bio
    assert io_to_bio([["B-A", "B-A"]]) == [["B-A", "B-A"]]


@real_data
@pytest.mark.parametrize(
    ("name", "sentences", "words", "names"),
    [
        ("wnut17/CONLL-format/data/train/wnut17train.conll", 3394, 62730, 13),
        ("wnut17/CONLL-format/data/dev/emerging.dev.conll", 1009, 15733, 13),
        ("wnut17/CONLL-format/data/test/emerging.test.annotated", 1287, 23394, 13),
        # Of its 1,841 blank lines 145 stand behind a -DOCSTART-.
        ("wikigold/CONLL-format/data/wikigold.conll.txt", 1696, 39007, 5),
    ],
)
def test_real_files_have_their_sentences_and_words(name, sentences, words, names):
    rows, tags = read_conll(pathlib.Path(DATA) / "ner" / name)
    assert len(rows) == len(tags) == sentences
    assert sum(map(len, rows)) == sum(map(len, tags)) == words
    assert len(tag_names(tags)) == names
