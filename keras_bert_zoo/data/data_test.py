"""Documents, next-sentence pairs and tables."""

import json

import numpy as np
import pytest

from keras_bert_zoo.data import next_sentence_examples, read_documents, read_table
from keras_bert_zoo.data.pretraining import pretraining_examples, split_documents
from keras_bert_zoo.data.tables import column
from keras_bert_zoo.preprocessing import BertTokenizer

pytestmark = pytest.mark.backend_free

# === Next-sentence pairs ===


def numbered_documents(count, sentences, pieces=1, seed=0):
    """Documents whose pieces are all different: document * 10**6 + place."""
    rng = np.random.default_rng(seed)
    documents = []
    for d in range(count):
        place, document = 0, []
        for _ in range(sentences):
            size = int(rng.integers(1, pieces + 1))
            document.append([d * 10**6 + place + k for k in range(size)])
            place += size
        documents.append(document)
    return documents


def is_contiguous(span):
    return span == list(range(span[0], span[0] + len(span)))


def test_half_of_the_pairs_are_random():
    documents = numbered_documents(20, 2000)
    last = {document[-1][0] for document in documents}
    pairs = next_sentence_examples(documents, 20)
    # A sentence left over at a document's end has nothing that follows it.
    free = [pair.is_random for pair in pairs if not last & set(pair.first)]
    assert len(free) > 3000
    assert abs(np.mean(free) - 0.5) < 4 * 0.5 / np.sqrt(len(free))


@pytest.mark.parametrize("sequence_length", [5, 12, 64])
def test_every_pair_fits_and_has_two_sides(sequence_length):
    documents = numbered_documents(5, 100, pieces=30)
    pairs = next_sentence_examples(documents, sequence_length, duplicates=2)
    sizes = [len(pair.first) + len(pair.second) for pair in pairs]
    assert max(sizes) == sequence_length - 3
    assert all(pair.first and pair.second for pair in pairs)


def test_spans_are_contiguous_and_come_from_the_right_document():
    pairs = next_sentence_examples(numbered_documents(5, 100, pieces=30), 64)
    assert {pair.is_random for pair in pairs} == {0, 1}
    for first, second, is_random in pairs:
        assert is_contiguous(first)
        assert is_contiguous(second)
        assert (first[0] // 10**6 != second[0] // 10**6) == bool(is_random)
        if not is_random:
            assert second[0] > first[-1]


def test_what_follows_follows_at_once():
    # Sentences of one piece never make a pair too long, so that nothing is cut.
    for first, second, is_random in next_sentence_examples(numbered_documents(4, 300), 16):
        assert is_random or second[0] == first[-1] + 1


def test_sentences_that_a_random_span_displaced_are_put_back():
    documents = numbered_documents(4, 300)
    used = set()
    for first, second, is_random in next_sentence_examples(documents, 16):
        used.update(first if is_random else first + second)
    assert used == {piece for document in documents for (piece,) in document}


def test_a_share_of_the_pairs_is_short():
    documents = numbered_documents(10, 2000)
    full = 32 - 3
    last = {document[-1][0] for document in documents}

    def sizes(share):
        pairs = next_sentence_examples(documents, 32, short_share=share)
        return [
            len(first) + len(second)
            for first, second, is_random in pairs
            # A span near a document's end may be short for want of sentences.
            if not is_random and not last & set(second)
        ]

    assert set(sizes(0.0)) == {full}
    short = np.array(sizes(0.5)) < full
    # A target is drawn from 2 to 29, all alike, so one of 28 short ones is full all the same.
    expected = 0.5 * 27 / 28
    assert abs(short.mean() - expected) < 4 * np.sqrt(expected * (1 - expected) / len(short))


def test_the_seed_sets_the_pairs_and_duplicates_differ():
    documents = numbered_documents(4, 50)
    once = next_sentence_examples(documents, 16, seed=3)
    assert once == next_sentence_examples(documents, 16, seed=3)
    assert once != next_sentence_examples(documents, 16, seed=4)
    twice = next_sentence_examples(documents, 16, seed=3, duplicates=2)
    distinct = {(tuple(p.first), tuple(p.second)) for p in twice}
    assert len(distinct) > 1.5 * len(once)


@pytest.mark.parametrize(
    ("documents", "sequence_length", "message"),
    [
        ([], 16, "Received: 0"),
        ([[[7], [8]]], 16, "Received: 1"),
        ([[[7], [8]], [], [[]]], 16, "Received: 1"),
        ([[[7]], [[8]]], 4, "Received: 4"),
    ],
)
def test_what_makes_no_pairs_is_refused(documents, sequence_length, message):
    with pytest.raises(ValueError, match=message):
        next_sentence_examples(documents, sequence_length)


def test_documents_of_strings_become_training_pairs():
    tokenizer = BertTokenizer(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "d"], lowercase=True
    )
    documents = [["a b", "b a", "a"], ["c d", "d", "c c"]]
    (first, second), is_random = pretraining_examples(documents, tokenizer, 16, duplicates=20)
    assert len(first) == len(second) == len(is_random)
    letters = [{5, 6}, {7, 8}]
    for a, b, label in zip(first, second, is_random, strict=True):
        sides = [next(i for i, part in enumerate(letters) if set(x) <= part) for x in (a, b)]
        assert (sides[0] != sides[1]) == bool(label)


def test_documents_are_held_out_whole_and_by_seed():
    documents = [[str(i)] for i in range(20)]
    train, held_out = split_documents(documents, 0.2, seed=1)
    assert (len(train), len(held_out)) == (16, 4)
    assert sorted(train + held_out) == sorted(documents)
    assert split_documents(documents, 0.2, seed=1) == (train, held_out)
    assert split_documents(documents, 0.2, seed=2) != (train, held_out)
    assert len(split_documents(documents, 0.01)[1]) == 2


@pytest.mark.parametrize(("count", "share"), [(3, 0.5), (10, 0.0), (10, 1.0), (10, 0.95)])
def test_a_share_that_leaves_a_side_too_small_is_refused(count, share):
    with pytest.raises(ValueError, match=f"{share} of {count} documents"):
        split_documents(list(range(count)), share)


# === Documents ===


def written(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_the_authors_format_is_a_sentence_a_line(tmp_path, line_end):
    text = "One.\n  Two. Three. \n\n\n \nFour.\n\n".replace("\n", line_end)
    path = written(tmp_path, "corpus.txt", text)
    assert read_documents([path], language=None) == [["One.", "Two. Three."], ["Four."]]


def test_a_file_of_prose_is_one_document_of_sentences(tmp_path):
    text = "Dr. Hill left the house. Why did\nshe go? Nobody knew."
    written(tmp_path, "b.txt", "Another one.")
    written(tmp_path, "a.txt", text)
    written(tmp_path, "notes.md", "No text.")
    assert read_documents([tmp_path]) == [
        ["Dr. Hill left the house.", "Why did she go?", "Nobody knew."],
        ["Another one."],
    ]


def test_a_file_that_is_not_utf_8_is_refused_by_name(tmp_path):
    path = written(tmp_path, "latin.txt", "Café.".encode("latin-1"))
    with pytest.raises(ValueError, match=r"latin\.txt.*not UTF-8"):
        read_documents([path])


def test_missing_and_empty_files_are_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match=r"none\.txt"):
        read_documents([tmp_path / "none.txt"])
    with pytest.raises(ValueError, match=r"empty\.txt"):
        read_documents([written(tmp_path, "empty.txt", " \n\n")])


# === Tables ===


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
