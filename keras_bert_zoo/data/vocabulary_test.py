"""Counting words and training WordPiece vocabularies on them."""

import hashlib
import os
import pathlib
import subprocess
import sys

import pytest

from keras_bert_zoo.data import vocabulary
from keras_bert_zoo.data.vocabulary import (
    count_words,
    special_entries,
    train_vocabulary,
    vocabulary_of_counts,
    word_coverage,
)
from keras_bert_zoo.preprocessing import BertTokenizer

pytestmark = pytest.mark.backend_free

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def data_folder():
    folder = os.environ.get("KERAS_BERT_ZOO_DATA")
    if not folder:
        pytest.skip("the data are missing: KERAS_BERT_ZOO_DATA is not set")
    return pathlib.Path(folder)


# === Words ===


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("Don't STOP", {}, ["don", "'", "t", "stop"]),
        ("Cafés\u00a0ΟΔΟΣ", {}, ["cafes", "οδος"]),
        ("Cafés", {"lowercase": False}, ["Cafés"]),
        ("Cafés", {"lowercase": False, "strip_accents": True}, ["Cafes"]),
        ("Cafés", {"strip_accents": False}, ["cafés"]),
        ("我喜欢BERT吗", {}, ["我", "喜", "欢", "bert", "吗"]),
        # Control characters vanish, line separators part words.
        ("a\x0bb\x00c\x85d e\u2028f\u3000g", {}, ["abcd", "e", "f", "g"]),
        ("a\ud83db", {}, ["ab"]),
        ("[MASK] [unused1] ##s", {}, ["[", "mask", "]", "[", "unused1", "]", "#", "#", "s"]),
        (" \t\r\n", {}, []),
    ],
)
def test_words_are_the_tokenizers_words(text, options, words):
    assert list(count_words([text], **options).elements()) == sorted(words, key=words.index)


def test_counts_do_not_depend_on_how_many_tokens_are_held(monkeypatch):
    texts = ["a b c, A", "c d", "b a"]
    expected = {"a": 3, "b": 2, "c": 2, ",": 1, "d": 1}
    assert count_words(iter(texts)) == expected
    monkeypatch.setattr(vocabulary, "_MAX_TOKENS_HELD", 1)
    assert count_words(iter(texts)) == expected


@pytest.mark.parametrize(
    ("texts", "message"),
    [(["a", None], r"`texts\[1\]`.*None"), (["a", 3], r"`texts\[1\]`.*3"), ("abc", "`texts`")],
)
def test_what_is_no_text_is_refused_with_its_place(texts, message):
    with pytest.raises(TypeError, match=message):
        count_words(texts)


# === Training ===


def test_pieces_that_meet_most_often_are_joined_first():
    # The example of Sennrich et al. 2016, whose first joins are es, est, lo, low. Equals go
    # by id, so (##w, ##est) is joined before (ne, ##w): ##w is of the alphabet, ne is new.
    counts = {"low": 5, "lower": 2, "newest": 6, "widest": 3}
    pieces = vocabulary_of_counts(counts, 100, min_frequency=3)
    alphabet = list("deilnorstw")
    assert pieces[:25] == SPECIAL + alphabet + [f"##{c}" for c in alphabet]
    assert pieces[25:] == [
        *("##es", "##est", "lo", "low"),
        *("ne", "##west", "newest"),
        *("wi", "##dest", "widest"),
    ]
    assert vocabulary_of_counts(counts, 28) == pieces[:28]


def test_a_character_that_always_stands_alone_has_no_inner_piece():
    pieces = train_vocabulary(["数学, b ab"], size=50)
    assert pieces == [*SPECIAL, ",", "a", "b", "学", "数", "##a", "##b"]


def test_special_tokens_in_a_text_are_not_learnt():
    texts = ["[MASK] [unused1] [PAD]"] * 50
    pieces = train_vocabulary(texts, size=500, lowercase=False)
    assert {"MASK", "PAD", "unused1", "[", "]"} < set(pieces[5:])
    assert not [piece for piece in pieces[5:] if "[" in piece and len(piece) > 1]


def test_a_vocabulary_tokenises_what_it_was_trained_on():
    texts = ["the film is fine", "The films are finer"] * 10
    pieces = train_vocabulary(texts, size=38)
    assert len(pieces) == len(set(pieces)) == 38
    tokenizer = BertTokenizer(pieces, lowercase=True)
    assert tokenizer.unk_token_id not in tokenizer("The finer film")
    assert "T" in train_vocabulary(texts, size=60, lowercase=False)


def test_words_with_rare_characters_are_left_out():
    counts = {"ab": 5, "ba": 4, "abc": 3, "d": 3}
    pieces = vocabulary_of_counts(counts, 50, limit_alphabet=2)
    assert pieces == [*SPECIAL, "a", "b", "##a", "##b", "ab", "ba"]
    # c and d are equally frequent, and c comes first.
    assert "abc" in vocabulary_of_counts(counts, 50, limit_alphabet=3)
    assert word_coverage(counts, pieces) == {"unknown_share": 6 / 15, "pieces_per_word": 1.0}


def test_pieces_are_as_long_as_allowed():
    counts = {"abcdefgh": 9, "x" * 150: 9}
    for longest in (2, 3, 5):
        pieces = vocabulary_of_counts(counts, 500, max_piece_length=longest)[5:]
        assert max(len(piece.removeprefix("##")) for piece in pieces) == longest
    widest = vocabulary_of_counts({"𐐷" * 150: 2}, 500)
    assert max(map(len, widest)) > 30
    BertTokenizer(widest, lowercase=False)("𐐷")


def test_a_word_that_the_tokenizer_takes_for_unknown_is_not_trained_on():
    assert vocabulary_of_counts({"a" * 201: 5, "b": 1}, 50) == [*SPECIAL, "b"]
    assert "##aa" in vocabulary_of_counts({"a" * 200: 5, "b": 1}, 50)


# === Special entries ===


def test_unused_entries_stand_as_in_the_released_vocabularies():
    entries = special_entries(101)
    assert entries[:3] == ["[PAD]", "[unused1]", "[unused2]"]
    assert entries[99:] == [
        *("[unused99]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
        *("[unused100]", "[unused101]"),
    ]
    assert train_vocabulary(["a"], size=107, num_unused=101) == [*entries, "a"]


@pytest.mark.parametrize(
    ("name", "num_unused"), [("cased", 101), ("chinese", 99), ("multilingual-cased", 99)]
)
def test_the_released_vocabularies_begin_so(name, num_unused):
    path = data_folder() / "vocab" / f"bert-base-{name}-vocab.txt"
    entries = special_entries(num_unused)
    assert path.read_text(encoding="utf-8").split("\n")[: len(entries)] == entries


# === The same in every run ===

PROGRAM = """
import collections, hashlib, random
from keras_bert_zoo.data.vocabulary import vocabulary_of_counts
random = random.Random(0)
words = ("".join(random.choices("abcdefghijk", k=random.randint(1, 9))) for _ in range(9000))
counts = collections.Counter(words)
for size in (60, 300, 2000, 9000):
    print(hashlib.sha256("\\n".join(vocabulary_of_counts(counts, size)).encode()).hexdigest())
"""


def test_every_process_trains_the_same_vocabulary():
    # Random words, in which most counts are small and equal to many others.
    outputs = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in "012"
    }
    assert len(outputs) == 1
    assert len(set(outputs.pop().split())) == 4


def test_one_process_trains_the_same_vocabulary_again():
    counts = {f"{a}{b}{c}": 2 for a in "abcdef" for b in "ghijkl" for c in "mnopqr"}
    runs = {tuple(vocabulary_of_counts(counts, 70)) for _ in range(5)}
    assert len(runs) == 1


# === Real text ===


@pytest.mark.parametrize("lowercase", [True, False])
def test_no_word_of_real_text_in_many_languages_is_unknown(lowercase):
    files = sorted((data_folder() / "tokenizer_text").rglob("*.t*"))
    assert files
    texts = [line for path in files for line in path.read_text("utf-8", "replace").split("\n")]
    pieces = train_vocabulary(texts, size=20000, lowercase=lowercase)
    tokenizer = BertTokenizer(pieces, lowercase=lowercase, max_word_length=10**6)
    ids = tokenizer(texts)
    unknown = {
        text
        for text, row in zip(texts, ids.to_list(), strict=True)
        if tokenizer.unk_token_id in row
    }
    assert not [text for text in unknown if max(map(len, text.split())) <= 200]


def test_a_size_that_the_text_can_fill_is_met():
    path = data_folder() / "glue" / "SST-2" / "train.tsv"
    with open(path, encoding="utf-8") as lines:
        counts = count_words(lines)
    digests = set()
    for size in (200, 1000, 8000):
        pieces = vocabulary_of_counts(counts, size)
        assert len(pieces) == size
        digests.add(hashlib.sha256("\n".join(pieces).encode()).hexdigest())
        assert pieces == vocabulary_of_counts(counts, size)
    assert len(digests) == 3


# === Refusals ===


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 5}, "at least 7: 5 special entries and an alphabet of 2 .*Received: 5"),
        ({"size": 0}, "`size`.*Received: 0"),
        ({"size": 10, "num_unused": 4}, "at least 11: 9 special entries"),
        ({"size": 10, "num_unused": -1}, "`num_unused`.*-1"),
        ({"size": 10, "min_frequency": 0}, "`min_frequency`.*0"),
        ({"size": 10, "limit_alphabet": 0}, "`limit_alphabet`.*0"),
        ({"size": 10, "max_piece_length": 1}, "from 2 to 64.*1"),
        ({"size": 10, "max_piece_length": 65}, "from 2 to 64.*65"),
    ],
)
def test_options_outside_their_range_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        train_vocabulary(["a b"], **arguments)


@pytest.mark.parametrize("texts", [[], ["", " \x00"], ["a" * 201]])
def test_texts_without_a_word_are_refused(texts):
    with pytest.raises(ValueError, match="no word"):
        train_vocabulary(texts, 50)


def test_counts_that_the_trainer_could_not_add_up_are_refused():
    with pytest.raises(ValueError, match="'a' 2,147,483,648 times"):
        vocabulary_of_counts({"a": 2**31}, 50)
