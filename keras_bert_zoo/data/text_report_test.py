"""What texts become, against figures counted by hand."""

import itertools
import json

import keras
import numpy as np
import pytest

from keras_bert_zoo.data.text_report import count_packed_rows, plot_report, text_report
from keras_bert_zoo.preprocessing import (
    BertPreprocessor,
    BertTokenizer,
    bucket_batches,
    pack_rows,
)

pytestmark = pytest.mark.backend_free

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##b", "c", "d"]


def preprocessor(sequence_length=8, **arguments):
    tokenizer = BertTokenizer(VOCABULARY, lowercase=True)
    return BertPreprocessor(tokenizer, sequence_length, **arguments)


# Pieces: 1, 4, 0, 9, 2; two of them unknown.
TEXTS = ["a", "ab Été b", " ", "a a a a a a a a a", "Éte a"]


def test_pieces_ids_and_cuts():
    report = text_report(TEXTS, preprocessor(), lengths=[4, 16])
    assert (report["texts"], report["empty_texts"]) == (5, 1)
    pieces = report["pieces"]
    assert (pieces["total"], pieces["min"], pieces["max"]) == (16, 0, 9)
    assert (pieces["median"], pieces["mean"]) == (2.0, 3.2)
    # Between the two highest of five, 4 and 9, lies 90% at 3.6 of 4 steps.
    assert pieces["p90"] == pytest.approx(4 + 0.6 * 5)
    # [UNK], a, b and ##b.
    assert report["ids"] == {"distinct": 4, "share": 0.4}
    # Rows at 8: 3, 6, 2, 8 (cut from 11), 4.
    effective = report["effective_length"]
    assert (effective["total"], effective["min"], effective["max"]) == (23, 2, 8)
    assert report["cut"] == [
        {"sequence_length": 4, "texts": 2 / 5, "pieces": (2 + 7) / 16},
        {"sequence_length": 8, "texts": 1 / 5, "pieces": 3 / 16},
        {"sequence_length": 16, "texts": 0.0, "pieces": 0.0},
    ]


def test_unknown_words_stand_as_in_the_text():
    unknown = text_report([*TEXTS, "(Été"], preprocessor())["unknown"]
    assert unknown["pieces"] == 4 / 18
    assert unknown["texts"] == 3 / 6
    assert unknown["words"] == [
        {"word": "Été", "count": 2},
        {"word": "Éte", "count": 1},
        {"word": "(", "count": 1},
    ]
    assert len(text_report(TEXTS, preprocessor(), num_unknown_words=1)["unknown"]["words"]) == 1


def test_padding_by_strategy():
    # Rows of 3, 6, 2, 8 and 4.
    report = text_report(TEXTS, preprocessor(buckets=[4]), batch_size=2)
    assert report["buckets"] == [4, 8]
    positions = {name: figures["positions"] for name, figures in report["padding"].items()}
    assert positions == {
        "fixed": 5 * 8,
        "batch": 2 * 6 + 2 * 8 + 1 * 4,
        "bucket": 2 * 8 + 2 * 8 + 1 * 4,
        "bucket_batches": 3 * 4 + 2 * 8,
        # Two texts a row is the default for so short a row: 8; 6 and 2; 4 and 3.
        "packed_rows": 3 * 8,
    }
    assert report["padding"]["batch"]["padding"] == pytest.approx(1 - 23 / 32)
    assert report["padding"]["batch"]["work"] == 32 / 40


def test_texts_that_share_rows():
    # 8 alone; 6 and 2; 4 and 3.
    packed = text_report(TEXTS, preprocessor(), max_examples=2)["padding"]["packed_rows"]
    assert packed["positions"] == 3 * 8
    assert packed["padding"] == pytest.approx(1 / 24)
    # 3 and 2 of the first three, with 6 beside neither; then 8 and 4.
    apart = text_report(TEXTS, preprocessor(), max_examples=2, packing_window=3)
    assert apart["padding"]["packed_rows"]["positions"] == (2 + 2) * 8


def test_packing_is_best_fit_decreasing():
    def one_after_another(lengths, capacity, most):
        rows = []
        for length in sorted(lengths, reverse=True):
            open_rows = [r for r in rows if sum(r) + length <= capacity and len(r) < most]
            if open_rows:
                max(open_rows, key=sum).append(length)
            else:
                rows.append([length])
        return len(rows)

    for lengths in itertools.product([1, 2, 3, 5, 7], repeat=5):
        # So few texts never fill two rows alike but for their number of texts.
        assert count_packed_rows(lengths, 9, 9) == one_after_another(lengths, 9, 9)
    assert count_packed_rows([2] * 7, 9, 3) == 3


def test_a_pair_is_one_row_with_three_marks():
    first, second = ["a b", "a"], ["c", "a b c d"]
    report = text_report((first, iter(second)), preprocessor(6))
    assert report["texts"] == 2
    assert (report["pieces"]["min"], report["pieces"]["max"]) == (3, 5)
    assert report["cut"][0] == {"sequence_length": 6, "texts": 1 / 2, "pieces": 2 / 8}
    assert report["effective_length"]["total"] == 12


def test_chunks_are_put_together(monkeypatch):
    whole = text_report(TEXTS, preprocessor())
    monkeypatch.setitem(text_report.__globals__, "_TEXTS_AT_ONCE", 2)
    assert text_report(iter(TEXTS), preprocessor()) == whole


def test_the_effective_length_is_that_of_the_preprocessors_rows():
    first, second = ["a b c " * n for n in range(9)], ["d " * n for n in range(9)]
    for texts in ((first,), (first, second)):
        rows = keras.ops.convert_to_numpy(preprocessor(12)(*texts)["padding_mask"])
        report = text_report(texts, preprocessor(12))
        assert report["effective_length"]["total"] == int(rows.sum())
        assert report["padding"]["bucket"]["positions"] == rows.shape[0] * rows.shape[1]


@pytest.mark.parametrize("longest", [2, 40])
@pytest.mark.parametrize("max_examples", [2, None])
def test_the_strategies_are_what_the_data_sets_do(longest, max_examples):
    # Texts of 0 and 1 pieces fill rows up to their most examples, not to their length.
    texts = ["a " * n for n in np.random.default_rng(0).integers(0, longest, 100)]
    report = text_report(
        texts, preprocessor(32), batch_size=8, max_examples=max_examples, packing_window=30
    )
    given = preprocessor(32).dataset(texts, batch_size=8)
    datasets = {
        "bucket": given,
        "bucket_batches": bucket_batches(given, 32, 8),
        "packed_rows": pack_rows(given, 32, 8, max_examples, window=30),
    }
    for name, dataset in datasets.items():
        batches = [batch[0] if isinstance(batch, tuple) else batch for batch in dataset]
        positions = sum(int(np.prod(batch["token_ids"].shape)) for batch in batches)
        real = sum(int(np.sum(batch["padding_mask"])) for batch in batches)
        assert report["padding"][name]["positions"] == positions
        assert report["padding"][name]["padding"] == pytest.approx(1 - real / positions)


def test_the_histogram_has_every_row_once():
    histogram = text_report(["a " * n for n in range(200)], preprocessor(16))["histogram"]
    assert sum(histogram["counts"]) + histogram["longer"] == 200
    assert len(histogram["edges"]) == len(histogram["counts"]) + 1
    # Rows of 2 to 3 marks and pieces in bins of 4: 2 and 3, then four a bin.
    assert histogram["counts"][:2] == [2, 4]


def test_a_report_is_json_and_a_plot(tmp_path):
    report = text_report([*TEXTS, "a " * 900], preprocessor())
    assert json.loads(json.dumps(report)) == report
    for name, magic in (("a/r.png", b"\x89PNG"), ("r.svg", b"<?xml"), ("r.pdf", b"%PDF")):
        plot_report(report, tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(magic)
    with pytest.raises(ValueError, match=r"\.png, \.svg, \.pdf\. Received: .*r\.jpeg"):
        plot_report(report, tmp_path / "r.jpeg")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "r.pdf", "r.svg"]


def test_a_plot_that_fails_leaves_nothing(tmp_path):
    report = text_report(TEXTS, preprocessor())
    (tmp_path / "r.png").mkdir()
    with pytest.raises(OSError):
        plot_report(report, tmp_path / "r.png")
    assert [path.name for path in tmp_path.iterdir()] == ["r.png"]


@pytest.mark.parametrize("texts", [[" "], [""] * 3])
def test_texts_without_a_piece_are_counted(texts):
    report = text_report(texts, preprocessor())
    assert report["empty_texts"] == report["texts"] == len(texts)
    assert report["cut"][0]["pieces"] == report["unknown"]["pieces"] == 0


@pytest.mark.parametrize(
    ("texts", "arguments", "error", "message"),
    [
        ([], {}, ValueError, "no texts"),
        ("abc", {}, TypeError, "`texts` must be a list"),
        (["a", None], {}, TypeError, r"`texts\[1\]`.*None"),
        ((["a"], [3]), {}, TypeError, r"`texts\[1\]\[0\]`.*3"),
        ((["a", "b"], ["a"]), {}, ValueError, r"`texts\[1\]` ends after 1"),
        (["a"], {"batch_size": 0}, ValueError, "`batch_size`.*0"),
        (["a"], {"packing_window": 0}, ValueError, "`packing_window`.*0"),
        (["a"], {"max_examples": 0}, ValueError, "`max_examples`.*0"),
        (["a"], {"lengths": [1]}, ValueError, "2 marks.*1"),
    ],
)
def test_wrong_arguments_are_refused(texts, arguments, error, message):
    with pytest.raises(error, match=message):
        text_report(texts, preprocessor(), **arguments)
