"""One shard: its rows, its masks and its counts."""

import numpy as np
import pytest

from keras_bert_zoo.data.documents import Document
from keras_bert_zoo.data.shards import ExampleMaker
from keras_bert_zoo.preprocessing import BertTokenizer
from keras_bert_zoo.preprocessing.lazy_tensorflow import tf

pytestmark = pytest.mark.backend_free

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
CLS, SEP, MASK = 2, 3, 4


def make(documents, number=0, **settings):
    defaults = {
        "objective": "next_sentence",
        "sequence_length": 12,
        "short_share": 0.0,
        "balanced": True,
        "duplicates": 1,
        "seed": 0,
        "shards": 8,
        "language": "en",
        "masking": None,
    }
    maker = ExampleMaker(BertTokenizer(PIECES, lowercase=True), {**defaults, **settings})
    shard = maker.shard(number, [Document("\n".join(lines), True) for lines in documents])
    # What was gone through before is not counted again.
    next(iter(shard), None)
    rows = []
    for record in shard:
        features = tf.train.Example.FromString(record).features.feature
        rows.append({name: list(f.int64_list.value) for name, f in features.items()})
    return rows, shard.statistics


def letters(row):
    return " ".join(PIECES[piece] for piece in row["token_ids"])


def test_single_segments_and_their_counts():
    # Eight pieces, of them one unknown; a document twice; one with nothing in it.
    documents = [["a b c", "d e f", "zz g"], ["h"], ["h"], ["\x01"]]
    rows, statistics = make(documents, objective="single", sequence_length=6)
    assert sorted(map(letters, rows)) == [
        "[CLS] a b c d [SEP]",
        "[CLS] e f [UNK] g [SEP]",
        "[CLS] h [SEP]",
        "[CLS] h [SEP]",
    ]
    assert {tuple(sorted(row)) for row in rows} == {("example_id", "token_ids")}
    assert statistics == {
        "documents": 3,
        "duplicate documents": 1,
        "sentences": 5,
        "pieces": 10,
        "unknown pieces": 1,
        "examples": 4,
        "truncated examples": 0,
        "pieces cut off": 0,
        "lengths": [0, 0, 0, 2, 0, 0, 2],
    }


def test_pairs_and_their_counts():
    rows, statistics = make([["a b c d e f g h a b"], ["h g f e d c b a h g"]])
    assert [row["next_sentence"] for row in rows] == [[1], [1]]
    # Room for nine of twenty pieces: the second span is the longer one where both are equal.
    assert [row["first_length"] for row in rows] == [[7], [7]]
    assert [row["token_ids"][k] for row in rows for k in (0, 6, 11)] == [CLS, SEP, SEP] * 2
    assert [len(row["token_ids"]) for row in rows] == [12, 12]
    assert statistics["truncated examples"] == 2
    assert statistics["pieces cut off"] == 22
    assert statistics["labels"] == [0, 2]
    assert statistics["labels of full"] == [0, 2]
    assert statistics["labels of short"] == [0, 0]
    assert statistics["lengths"] == [0] * 12 + [2]


def test_labels_are_counted_by_length():
    documents = [["a b c", "d e", "f g h a", "b c"], ["h g f", "e d c b a"]]
    rows, statistics = make(documents, duplicates=20, short_share=0.5)
    for name, is_full in (("full", True), ("short", False)):
        labels = [r["next_sentence"][0] for r in rows if (len(r["token_ids"]) == 12) == is_full]
        assert labels
        assert statistics[f"labels of {name}"] == [labels.count(0), labels.count(1)]


def test_segment_0_ends_after_its_mark():
    rows, _ = make([["a", "b c"], ["d", "e f"]], sequence_length=16, duplicates=20)
    assert {tuple(row["next_sentence"]) for row in rows} == {(0,), (1,)}
    for row in rows:
        (end,) = row["first_length"]
        assert row["token_ids"][end - 1] == SEP
        assert row["token_ids"].count(SEP) == 2


@pytest.mark.parametrize("objective", ["next_sentence", "sentence_order", "single"])
def test_the_order_of_documents_does_not_matter(objective):
    documents = [[f"{a} {b}", "c d e", b] for a in "abcdefgh" for b in "abcdefgh"]
    masking = {"mask_selection_rate": 0.3}
    settings = {"objective": objective, "masking": masking, "duplicates": 2}
    assert make(documents, **settings) == make(documents[::-1], **settings)
    assert make(documents, **settings)[0] != make(documents, seed=1, **settings)[0]


def test_ids_are_of_one_example_alone():
    documents = [["a b", "c", "d"], ["e", "f g"]]
    ids = [
        row["example_id"][0]
        for number in (0, 1, 2000)
        for row in make(documents, number, duplicates=5)[0]
    ]
    assert len(set(ids)) == len(ids)
    assert min(ids) >= 0
    assert max(ids) < 2**63


def test_masks_hide_ordinary_pieces_and_keep_what_stood_there():
    rng = np.random.default_rng(0)
    documents = [[" ".join(rng.choice(list("abcdefgh"), 12)) for _ in range(30)] for _ in range(20)]
    plain, _ = make(documents, sequence_length=64, duplicates=4)
    masked, statistics = make(documents, sequence_length=64, duplicates=4, masking={})
    kinds = {"mask": 0, "same": 0, "random": 0}
    chosen = 0
    for row, before in zip(masked, plain, strict=True):
        restored = list(row["token_ids"])
        # The authors' count: 15% of the row, marks included.
        assert len(row["mask_positions"]) == max(1, round(0.15 * len(restored)))
        assert row["mask_positions"] == sorted(set(row["mask_positions"]))
        for position, piece in zip(row["mask_positions"], row["mask_ids"], strict=True):
            stands = restored[position]
            kinds["mask" if stands == MASK else "same" if stands == piece else "random"] += 1
            restored[position] = piece
        assert restored == before["token_ids"]
        chosen += len(row["mask_positions"])
    assert statistics["masked"] == {"chosen": chosen, **kinds}
    assert sum(statistics["predictions"]) == len(masked)
    assert sum(k * n for k, n in enumerate(statistics["predictions"])) == chosen
    # A random piece is one of eight, so an eighth of them stays the same.
    for kind, share in (("mask", 0.8), ("same", 0.1 + 0.1 / 8), ("random", 0.1 * 7 / 8)):
        assert abs(kinds[kind] / chosen - share) < 4 * np.sqrt(share * (1 - share) / chosen)


def test_a_shard_of_one_document_has_no_random_next_sentence():
    with pytest.raises(ValueError, match="Shard 7 has one document.*fewer `shards`"):
        make([["a", "b"], ["\x01"]], number=7)
    with pytest.raises(ValueError, match="Shard 0 has one document.*give more text"):
        make([["a", "b"], ["\x01"]], shards=1)


def test_a_shard_without_documents_has_no_examples():
    rows, statistics = make([])
    assert rows == []
    assert statistics["documents"] == statistics["examples"] == 0
    assert len(statistics["lengths"]) == 13
