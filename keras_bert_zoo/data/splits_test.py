"""Splits that keep groups whole, and the leakage that others have."""

import os
from collections import Counter

import pytest

from keras_bert_zoo.data.glue import read_glue
from keras_bert_zoo.data.splits import given_splits, leakage, leakage_lines, random_splits

pytestmark = pytest.mark.backend_free

DATA = os.environ.get("KERAS_BERT_ZOO_DATA")
real_data = pytest.mark.skipif(DATA is None, reason="KERAS_BERT_ZOO_DATA is not set")


def test_every_row_is_in_one_split_and_the_shares_are_met():
    shares = {"train": 0.8, "dev": 0.1, "test": 0.1}
    splits = random_splits(1000, shares, seed=1)
    assert {name: len(rows) for name, rows in splits.items()} == {
        "train": 800,
        "dev": 100,
        "test": 100,
    }
    assert sorted(row for rows in splits.values() for row in rows) == list(range(1000))
    assert splits == random_splits(1000, shares, seed=1)
    assert splits != random_splits(1000, shares, seed=2)


@pytest.mark.parametrize("seed", range(5))
def test_no_group_falls_in_two_splits(seed):
    groups = [i * i % 37 for i in range(500)]
    splits = random_splits(500, {"train": 0.7, "dev": 0.2, "test": 0.1}, seed, groups)
    of = {name: {groups[row] for row in rows} for name, rows in splits.items()}
    assert not (of["train"] & of["dev"] or of["train"] & of["test"] or of["dev"] & of["test"])
    # No further from its share than half of the largest group.
    half = max(Counter(groups).values()) / 2
    assert abs(len(splits["dev"]) - 100) <= half and abs(len(splits["test"]) - 50) <= half


def test_groups_larger_than_a_share_still_make_every_split():
    groups = ["a"] * 30 + ["b"] * 30 + ["c"] * 30
    splits = random_splits(90, {"train": 0.8, "dev": 0.1, "test": 0.1}, groups=groups)
    assert {len(rows) for rows in splits.values()} == {30}


@pytest.mark.parametrize(
    ("count", "shares", "groups", "message"),
    [
        (10, {"train": 0.8, "dev": 0.3}, None, "together 1"),
        (10, {"train": 1.0, "dev": 0.0}, None, "positive"),
        (10, {"train": 0.5, "dev": 0.5}, ["a"] * 9, "9 for 10 rows"),
        (10, {"train": 0.5, "dev": 0.5}, ["a"] * 10, "1 rows or groups can't make the 2 splits"),
    ],
)
def test_splits_that_can_not_be_made_are_refused(count, shares, groups, message):
    with pytest.raises(ValueError, match=message):
        random_splits(count, shares, groups=groups)


def test_every_split_has_its_share_of_each_class_and_training_every_class():
    classes = ["a"] * 100 + ["b"] * 20 + [f"rare {i}" for i in range(10)]
    rows = random_splits(130, {"train": 0.8, "dev": 0.1, "test": 0.1}, seed=3, classes=classes)
    assert sorted(row for split in rows.values() for row in split) == list(range(130))
    counts = {name: Counter(classes[row] for row in rows[name]) for name in rows}
    for name in ("dev", "test"):
        assert abs(counts[name]["a"] - 10) <= 1 and abs(counts[name]["b"] - 2) <= 1
    assert set(counts["train"]) == set(classes)


def test_few_rows_of_classes_make_every_split_if_they_can():
    rows = random_splits(3, {"train": 0.9, "dev": 0.1}, classes=["a", "b", "b"])
    assert [len(rows["train"]), len(rows["dev"])] == [2, 1] and rows["dev"] != [0]
    with pytest.raises(ValueError, match="2 rows of 2 classes leave nothing for the split 'dev'"):
        random_splits(2, {"train": 0.6, "dev": 0.4}, classes=["a", "b"])


def test_given_splits_go_by_their_names():
    assert given_splits(["test", "train", "valid", "dev", "train"]) == {
        "test": [0],
        "train": [1, 4],
        "dev": [2, 3],
    }
    with pytest.raises(ValueError, match="Row 2 .*'Train'"):
        given_splits(["train", "Train"])
    with pytest.raises(ValueError, match="No row .*'train'.*'dev'"):
        given_splits(["dev"])


def test_texts_are_the_same_whatever_their_case_and_punctuation():
    train = ["It's  raining.", "cafe\u0301", "\u0915\u0940", ":)"]
    dev = ["it's raining", "CAFÉ!", "\u0915\u093e", ":("]
    (entry,) = leakage({"train": [train], "dev": [dev]})
    # Neither a Hindi vowel sign nor the mark of a text of marks alone is left out.
    assert entry["count"] == 2 and entry["total"] == 4
    assert entry["examples"] == [(0, 0, "it's raining"), (1, 1, "CAFÉ!")]


def test_pairs_groups_and_every_two_splits_are_compared():
    splits = {
        "train": (["a", "b"], ["c", "d"]),
        "dev": (["C", "b", "x"], ["A", "y", "z"]),
        "test": (["x"], ["z"]),
    }
    groups = {"train": [1, 2], "dev": [2, 3, 2], "test": [3]}
    found = leakage(splits, groups, examples=1)
    counts = {(*entry["splits"], entry["kind"]): entry["count"] for entry in found}
    assert counts == {
        ("train", "dev", "example"): 1,
        ("train", "dev", "text"): 1,
        ("train", "dev", "group"): 2,
        ("train", "test", "example"): 0,
        ("train", "test", "text"): 0,
        ("train", "test", "group"): 0,
        ("dev", "test", "example"): 1,
        ("dev", "test", "text"): 0,
        ("dev", "test", "group"): 1,
    }
    assert leakage_lines(found)[:4] == [
        "warning: 1 of 3 dev examples are in train too: row 0 (train 0) 'C | A'",
        "warning: 1 of 3 dev examples share one text of the pair with train: row 1 (train 1) 'b'",
        "warning: 2 of 3 dev examples come from a group that is in train: row 0 (train 1) '2'",
        "0 of 1 test examples are in train too",
    ]


@real_data
def test_wnlis_dev_set_shares_its_sentences_with_the_training_set():
    splits = {}
    for split in ("train", "dev"):
        table = read_glue("wnli", split, os.path.join(DATA, "glue"))
        splits[split] = (table["text"], table["second"])
    pairs, texts = leakage(splits)
    # "Hypotheses are sometimes shared between training and development examples" (TFDS on WNLI).
    known = {*splits["train"][0], *splits["train"][1]}
    shared = sum(not known.isdisjoint(pair) for pair in zip(*splits["dev"], strict=True))
    assert (pairs["count"], texts["count"], texts["total"]) == (0, shared, 71)
    assert shared > 0
