"""Tables of texts and labels."""

import json

import pytest

from keras_bert_zoo.data import read_table
from keras_bert_zoo.data.tables import column, read_tsv

pytestmark = pytest.mark.backend_free


def written(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    ("name", "content", "table"),
    [
        (
            "quoted.csv",
            'text,label\n"a, ""b""\nc",1\nplain,0\n',
            {"text": ['a, "b"\nc', "plain"], "label": ["1", "0"]},
        ),
        (
            "plain.tsv",
            'text\tlabel\n"unbalanced\t1\na, b\t0\n',
            {"text": ['"unbalanced', "a, b"], "label": ["1", "0"]},
        ),
        (
            "objects.jsonl",
            '{"text": "caf\\u00e9", "label": 1}\n\n{"label": 0.5, "text": ""}\n',
            {"text": ["café", ""], "label": [1, 0.5]},
        ),
        ("semicolons.csv", 'text;label\n"a; b, c";1,5\n', {"text": ["a; b, c"], "label": ["1,5"]}),
        ("tabs.csv", "text\tlabel\na, b\t1\n", {"text": ["a, b"], "label": ["1"]}),
        ("comma.csv", "text;x,label\na;b,1\n", {"text;x": ["a;b"], "label": ["1"]}),
        ("bom.csv", "\ufefftext,label\na,1\n", {"text": ["a"], "label": ["1"]}),
        ("bom.tsv", "\ufefftext\tlabel\na\t1\n", {"text": ["a"], "label": ["1"]}),
        ("bom.jsonl", '\ufeff{"text": "a"}\n', {"text": ["a"]}),
        ("crlf.csv", "text,label\r\na,1\r\nb,0\r\n", {"text": ["a", "b"], "label": ["1", "0"]}),
        ("crlf.tsv", "text\tlabel\r\na\t1\r\nb\t0", {"text": ["a", "b"], "label": ["1", "0"]}),
        ("crlf.jsonl", '{"text": "a"}\r\n{"text": "b"}\r\n', {"text": ["a", "b"]}),
    ],
)
def test_tables_are_read(tmp_path, name, content, table):
    assert read_table(str(written(tmp_path, name, content))) == table


def test_columns_can_be_named_where_a_file_does_not(tmp_path):
    path = written(tmp_path, "ag_news.csv", '"3","Wall St.","Short, ""sellers"" are back."\n')
    names = ("label", "title", "text")
    expected = {"label": ["3"], "title": ["Wall St."], "text": ['Short, "sellers" are back.']}
    assert read_table(str(path), names) == expected
    with pytest.raises(ValueError, match=r"Row 1 of .* 3 fields, not the 2 of .*'title'"):
        read_table(str(path), names[:2])
    with pytest.raises(ValueError, match=r"`names` are for a \.csv or \.tsv"):
        read_table("a.jsonl", names)


def test_a_carriage_return_within_a_tsv_field_ends_no_line(tmp_path):
    path = written(tmp_path, "a.tsv", "text\tlabel\r\na\rb\t1\r\n")
    assert read_table(str(path)) == {"text": ["a\rb"], "label": ["1"]}


def test_lines_broken_in_two_can_be_left_out_and_are_counted(tmp_path):
    path = written(tmp_path, "pairs.txt", "a\tb\n1\t2\nbroken\n in two\t3\t4\n5\t6\n")
    with pytest.warns(UserWarning, match="2 lines of .*pairs.txt.* 2 fields .*line 3"):
        assert read_tsv(path, drop_ragged=True) == {"a": ["1", "5"], "b": ["2", "6"]}
    with pytest.raises(ValueError, match="Row 3 "):
        read_tsv(path)


def test_a_field_of_a_long_document_is_read(tmp_path):
    path = written(tmp_path, "long.csv", "text,label\n" + "a" * 200_000 + ",1\n")
    assert len(read_table(str(path))["text"][0]) == 200_000


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("ragged.csv", "text,label\na,1\nb,0,1\n", "3 .*3 fields.*2"),
        ("ragged.tsv", "text\tlabel\na\t1\nb\n", "3 .*1 fields.*2"),
        ("ragged.jsonl", '{"text": "a"}\n{"label": 1}\n', "Line 2"),
        ("unclosed.csv", 'text,label\n"a,1\n', "unclosed"),
        ("twice.tsv", "text\ttext\na\tb\n", "text"),
        ("broken.jsonl", '{"text": "a"}\n\n{"text"\n', "Line 3"),
        ("list.jsonl", "[1, 2]\n", "Line 1"),
        ("empty.csv", "", "empty"),
        ("header.csv", "text,label\n", "no rows"),
        ("empty.tsv", "", "empty"),
        ("empty.jsonl", "\n", "empty"),
        ("latin.csv", "text\ncafé\n".encode("latin-1"), "not UTF-8"),
        ("table.xlsx", "", r"\.csv"),
    ],
)
def test_broken_tables_are_refused(tmp_path, name, content, message):
    path = written(tmp_path, name, content)
    with pytest.raises(ValueError, match=message) as error:
        read_table(str(path))
    assert name in str(error.value)


def test_a_missing_table_is_named():
    with pytest.raises(ValueError, match=r"none\.csv"):
        read_table("none.csv")


def test_a_missing_column_is_named_beside_those_there_are():
    table = {"sentence": ["a"], "label": ["1"]}
    assert column(table, "label", "train.csv") == ["1"]
    with pytest.raises(ValueError, match=r"train\.csv.*'text'.*'sentence', 'label'"):
        column(table, "text", "train.csv")


def test_jsonl_keeps_line_separators_inside_a_text(tmp_path):
    text = "a\u2028b\u0085c"
    content = json.dumps({"text": text}, ensure_ascii=False) + "\n"
    assert read_table(str(written(tmp_path, "a.jsonl", content))) == {"text": [text]}
