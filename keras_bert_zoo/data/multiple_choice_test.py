"""SWAG's and CODAH's files, and what is wrong in others."""

import json
import os
import pathlib

import pytest

from keras_bert_zoo.data.multiple_choice import read_codah, read_swag

pytestmark = pytest.mark.backend_free

DATA = os.environ.get("KERAS_BERT_ZOO_DATA")
real_data = pytest.mark.skipif(DATA is None, reason="KERAS_BERT_ZOO_DATA is not set")

ROW = {"sent1": "It rains.", "sent2": "He", "ending0": "sings.", "ending1": "runs, fast."}
EXPECTED = (["It rains."], [["He sings.", "He runs, fast."]])


def test_swag_is_read_from_csv_and_jsonl(tmp_path):
    (tmp_path / "swag.jsonl").write_text(json.dumps({**ROW, "label": 1}) + "\n")
    head = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,label\n"
    line = '0,v,1,It rains. He,It rains.,He,gold,sings.,"runs, fast.",1\n'
    (tmp_path / "swag.csv").write_text(head + line)
    for name in ("swag.jsonl", "swag.csv"):
        assert read_swag(tmp_path / name) == (EXPECTED, [1])


def test_swag_without_labels_has_none(tmp_path):
    (tmp_path / "test.jsonl").write_text(json.dumps(ROW))
    assert read_swag(tmp_path / "test.jsonl") == (EXPECTED, None)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({**ROW, "label": 2}, "Row 1 of .* a label below 2. Received: 2"),
        ({**ROW, "label": "x"}, "Row 1 of .*'x'"),
        ({"sent1": "a", "sent2": "b"}, "no column 'ending0'"),
        ({"sent2": "b", "ending0": "c"}, "no column 'sent1'"),
    ],
)
def test_what_is_not_swag_is_named(tmp_path, row, message):
    (tmp_path / "swag.jsonl").write_text(json.dumps(row))
    with pytest.raises(ValueError, match=message):
        read_swag(tmp_path / "swag.jsonl")


def test_codah_keeps_its_quotes(tmp_path):
    (tmp_path / "codah.tsv").write_text('p\tHe said\t"no".\tit\'s "late\tyes\t1\r\n')
    assert read_codah(tmp_path / "codah.tsv") == (
        (["He said"], [['"no".', "it's \"late", "yes"]]),
        [1],
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("p\ta\tb\tc\t0\np\ta\tb\n", "Line 2 of .* 3 fields"),
        ("p\ta\tb\tc\t2\n", "Line 1 of .* below 2. Received: '2'"),
        ("p\ta\tb\tc\t-1\n", "Received: '-1'"),
        ("\n", "has no examples"),
    ],
)
def test_what_is_not_codah_is_named(tmp_path, content, message):
    (tmp_path / "codah.tsv").write_text(content)
    with pytest.raises(ValueError, match=message):
        read_codah(tmp_path / "codah.tsv")


def test_missing_files_are_named(tmp_path):
    for read in (read_swag, read_codah):
        with pytest.raises(ValueError, match="There is no file .*nowhere"):
            read(tmp_path / "nowhere.csv")


@real_data
def test_real_files_have_their_examples():
    folder = pathlib.Path(DATA) / "multiple_choice"
    (prompts, choices), labels = read_codah(folder / "codah" / "full_data.tsv")
    assert len(prompts) == len(choices) == len(labels) == 2776
    assert {len(row) for row in choices} == {4}
    assert [labels.count(i) for i in range(4)] == [689, 684, 697, 706]
    (prompts, choices), labels = read_swag(folder / "swag_sample.jsonl")
    assert (len(prompts), {len(row) for row in choices}, labels[:3]) == (10, {4}, [0, 3, 1])
    assert choices[0][1] == "A drum line has heard approaching them."
