"""Studies against figures counted by hand, with tiny models and with runs whose results are set."""

import json

import keras
import numpy as np
import pytest

from keras_bert_zoo.models import BertBackbone, BertTextClassifier
from keras_bert_zoo.preprocessing import BertTextClassifierPreprocessor, BertTokenizer
from keras_bert_zoo.studies import (
    attention_map,
    compare_texts,
    confusion_matrix,
    domains_study,
    lengths_study,
    pair_shifts,
    plot_attention,
    plot_confusion,
    plot_rows,
    runs,
    shifts_by_kind,
    transfer_study,
)
from keras_bert_zoo.studies.minimal_pairs import PAIRS, UNRELATED

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "d"]
TRAIN = ["a c", "b c c", "a", "b d c", "a d c d c", "b"], ["yes", "no"] * 3
DEV = ["a c c", "b", "b c"], ["yes", "no", "yes"]


def model():
    keras.utils.set_random_seed(0)
    backbone = BertBackbone(
        vocabulary_size=9,
        num_layers=2,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=16,
        max_sequence_length=16,
    )
    preprocessor = BertTextClassifierPreprocessor(BertTokenizer(VOCABULARY, lowercase=True), 16)
    return BertTextClassifier(backbone, preprocessor=preprocessor, class_names=["no", "yes"])


@pytest.fixture(scope="module")
def preset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("studies") / "preset"
    model().save_to_preset(folder)
    return str(folder)


@pytest.fixture
def asked(monkeypatch):
    """Let runs give set results, and return what they were asked for."""
    asked = []

    def run(**arguments):
        asked.append(arguments)
        scores = {f"{name}_accuracy": arguments["seed"] / 10 for name in arguments["scored"]}
        return {"trainable": 5, "total": 9, "seconds": 1.0, "peak_megabytes": None, **scores}

    monkeypatch.setitem(runs.RUNS, "train_and_score", run)
    return asked


# === Transfer ===


def test_every_way_is_a_row_and_every_run_is_in_it(asked, preset):
    lines = []
    rows = transfer_study(
        preset,
        TRAIN,
        DEV,
        ["majority", "bag_of_words", "random:head", "lora:2"],
        learning_rates={"lora": 0.5},
        seeds=[1, 4],
        separate_processes=False,
        progress=lines.append,
    )
    ways = {row["way"]: row for row in rows}
    # Three of each label are trained on; the first one counts.
    assert ways["majority"]["dev_accuracy"] == 2 / 3
    # Of a, b, c and d, and the intercept; "b c" is taken for the "no" that b means in training.
    assert (ways["bag_of_words"]["trainable"], ways["bag_of_words"]["runs"]) == (5, 1)
    assert ways["bag_of_words"]["dev_accuracy"] == 2 / 3
    assert ways["bag_of_words"]["dev_accuracy_deviation"] is None
    for way in ("random:head", "lora:2"):
        assert ways[way]["runs"] == 2
        assert ways[way]["dev_accuracy"] == pytest.approx(0.25)
        # The deviation of a sample: (0.15**2 + 0.15**2) / (2 - 1), and its root.
        assert ways[way]["dev_accuracy_deviation"] == pytest.approx(0.045**0.5)
        assert [run["seed"] for run in ways[way]["each_run"]] == [1, 4]
    given = [(run["what"], run["load_weights"], run["learning_rate"]) for run in asked[::2]]
    assert given == [("head", False, 1e-3), ("lora:2", True, 0.5)]
    assert len(lines) == 6
    json.dumps(rows)


@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ways": ["top"]}, "`ways` must be"),
        ({"ways": ["lora:0"]}, "`ways` must be"),
        ({"learning_rates": {"heads": 1}}, "`learning_rates` must be"),
        ({"seeds": [1, 1]}, "`seeds` must be different"),
        ({"dev": (["a"], ["maybe"])}, "dev examples have labels that training lacks: .'maybe'"),
        ({"dev": (["a"], [])}, "equally many"),
        ({"train": (["a"], ["yes"])}, "one label only, 'yes'"),
    ],
)
def test_what_can_not_be_run_is_refused_before_any_run(change, message, asked):
    arguments = {"train": TRAIN, "dev": DEV, "ways": ["all"], "separate_processes": False}
    with pytest.raises(ValueError, match=message):
        transfer_study("nowhere", **{**arguments, **change})
    assert not asked


def test_a_run_says_what_it_trained_and_in_how_many_batches(preset):
    result = runs.train_and_score(
        preset,
        runs.examples(*TRAIN),
        {"dev": runs.examples(*DEV)},
        what="head",
        strategy="packed_rows",
        sequence_length=8,
        batch_size=1,
        epochs=2,
    )
    # Texts of 4, 5, 3, 5, 7 and 3 with their marks, at most two a row: 7; 5 and 3; 5 and 3; 4.
    assert result["encoder_calls"] == 2 * 4
    assert (result["trainable"], result["total"]) == (18, model().count_params())
    assert result["seconds"] > 0
    assert result["dev_accuracy"] in (0, 1 / 3, 2 / 3, 1)


@pytest.mark.slow
def test_the_ways_learn_what_they_can_in_processes_of_their_own(preset):
    texts = ["a c", "b c c", "a", "b d c", "a d c", "b"] * 20
    part = texts, ["yes", "no"] * 60
    ways = ["bag_of_words", "random:head", "head", "lora:2", "all"]
    rates = dict.fromkeys(["head", "lora", "all"], 1e-2)
    rows = transfer_study(
        preset, part, part, ways, learning_rates=rates, seeds=[3], batch_size=8, epochs=4
    )
    rows = {row["way"]: row for row in rows}
    assert rows["bag_of_words"]["dev_accuracy"] == rows["all"]["dev_accuracy"] == 1
    assert rows["all"]["trainable"] == rows["all"]["total"]
    # Queries, keys and values of two layers: factors of 8 x 2 and 2 x 24.
    assert rows["lora:2"]["trainable"] == 18 + 2 * (16 + 48)
    assert rows["head"]["trainable"] == rows["random:head"]["trainable"] == 18
    assert rows["all"]["encoder_calls"] == 4 * 15
    assert all(row["peak_megabytes"] > 0 for row in rows.values())
    with pytest.raises(ValueError, match="the model has 2 layers"):
        transfer_study(preset, part, part, ["top:3"])


# === Lengths ===


def test_cuts_padding_and_rows_of_every_length_and_strategy(asked, preset):
    train = ["a", "a b c d", "b", "a b", "b b b b", "c"], ["yes", "no"] * 3
    rows = lengths_study(
        preset,
        train,
        DEV,
        [5, 8],
        ["fixed", "batch", "packed_rows"],
        seeds=[2],
        batch_size=6,
        separate_processes=False,
    )
    # Rows, with two marks, of 3, 6, 3, 4, 6 and 3; at 5 two of them lose one of 13 pieces each.
    by = {(row["sequence_length"], row["strategy"]): row for row in rows}
    assert list(by) == [(n, name) for n in (5, 8) for name in ("fixed", "batch", "packed_rows")]
    assert {row["cut_texts"] for row in rows[:3]} == {2 / 6}
    assert {row["cut_pieces"] for row in rows[:3]} == {2 / 13}
    assert {row["cut_texts"] for row in rows[3:]} == {0}
    assert by[5, "fixed"]["padding"] == pytest.approx(1 - 23 / 30)
    assert by[8, "batch"]["padding"] == pytest.approx(1 - 25 / 36)
    # 8 has room for two texts: 6; 6; 4 and 3; 3 and 3. Six texts are in four rows.
    assert by[8, "packed_rows"]["padding"] == pytest.approx(1 - 25 / 32)
    assert [row["batch_size"] for row in rows[3:]] == [6, 6, 4]
    assert [run["strategy"] for run in asked[:3]] == ["fixed", "batch", "packed_rows"]
    assert [run["sequence_length"] for run in asked] == [5, 5, 5, 8, 8, 8]


# === Pairs ===


@pytest.mark.backend_free
def test_a_text_has_no_shift_against_itself_and_others_have_their_angles():
    vectors = {"east": [2.0, 0.0], "north": [0.0, 0.1], "west": [-1.0, 0.0]}
    chances = {"east": [1.0, 0.0], "north": [0.25, 0.75], "west": [0.5, 0.5]}
    rows = pair_shifts(
        ["east", "east", "east"],
        ["east", "north", "west"],
        lambda texts: [vectors[text] for text in texts],
        lambda texts: [chances[text] for text in texts],
        ["yes", "no"],
        ["same", "other", "other"],
    )
    assert [row["representation_shift"] for row in rows] == pytest.approx([0, 1, 2])
    assert rows[0]["representation_shift"] == rows[0]["prediction_shift"] == 0
    assert [row["prediction_shift"] for row in rows] == [0, 0.75, 0.5]
    assert [row["second_class"] for row in rows] == ["yes", "no", "yes"]
    same, other, unrelated = shifts_by_kind(rows)
    assert same["representation_shift_deviation"] is None
    assert (other["pairs"], other["representation_shift"], other["flipped"]) == (2, 1.5, 0.5)
    assert other["prediction_shift_deviation"] == pytest.approx((2 * 0.125**2) ** 0.5)
    # All first texts are the same one.
    assert (unrelated["kind"], unrelated["representation_shift"]) == (UNRELATED, 0)
    assert unrelated["flipped"] is None


@pytest.mark.backend_free
def test_pairs_that_come_with_the_package_differ():
    pairs = [pair for pairs in PAIRS.values() for pair in pairs]
    assert len(set(pairs)) == len(pairs) and all(one != other for one, other in pairs)
    with pytest.raises(ValueError, match="1 first texts, 0 second"):
        pair_shifts(["a"], [], lambda texts: np.ones((len(texts), 1)))


# === Domains ===


@pytest.mark.backend_free
def test_two_domains_side_by_side():
    tokenizer = BertTokenizer(VOCABULARY, lowercase=True)
    source, target = compare_texts(tokenizer, ["a a a", "b"], ["b c", "b Oh", "", "c c b a"], 5)
    assert (source["texts"], source["pieces"]) == (2, 2)
    assert (target["texts"], target["pieces"]) == (4, 2)
    assert (source["distinct_pieces"], target["distinct_pieces"]) == (2, 4)
    assert (source["shared_pieces"], target["shared_pieces"]) == (1, 2 / 4)
    # Of b c b [UNK] c c b a.
    assert (source["covered_pieces"], target["covered_pieces"]) == (1, 4 / 8)
    assert (target["cut_texts"], target["cut_pieces"]) == (1 / 4, 1 / 8)
    assert (target["unknown_texts"], target["unknown_pieces"]) == (1 / 4, 1 / 8)
    assert (target["own_pieces"], target["unknown_words"]) == (["c", "[UNK]"], ["Oh"])
    # Entropy of the mean of (3/4, 1/4, 0, 0) and (1/8, 3/8, 3/8, 1/8), less the mean entropy.
    shares = np.array([[6, 2, 0, 0], [1, 3, 3, 1]]) / 8

    def entropy(p):
        return -sum(x * np.log2(x) for x in p if x)

    expected = entropy(shares.mean(axis=0)) - np.mean([entropy(p) for p in shares])
    assert source["divergence"] == target["divergence"] == pytest.approx(expected)
    same = compare_texts(tokenizer, ["a b"], ["b", "a"])
    assert same[0]["divergence"] == 0 and same[0]["own_pieces"] == []


def test_both_domains_are_scored_by_what_the_source_taught(asked, preset):
    target = ["c", "d"], ["no", "no"]
    source_row, target_row = domains_study(
        preset, TRAIN, DEV, target, seeds=[0, 2], separate_processes=False
    )
    assert asked[0]["scored"]["target"]["labels"] == ["no", "no"]
    assert (source_row["texts"], source_row["scored_on"]) == (6, 3)
    assert (source_row["majority_accuracy"], target_row["majority_accuracy"]) == (2 / 3, 0)
    assert (target_row["accuracy"], target_row["runs"]) == (0.1, 2)
    assert target_row["each_run"][1] == {"seed": 2, "accuracy": 0.2}


# === Pictures ===


def test_attention_is_that_of_the_pieces_and_sums_to_one(tmp_path):
    classifier = model()
    found = attention_map(classifier, "a b", "c")
    assert found["pieces"] == ["[CLS]", "a", "b", "[SEP]", "c", "[SEP]"]
    assert found["attention"].shape == (2, 2, 6, 6)
    np.testing.assert_allclose(found["attention"].sum(axis=-1), 1, atol=1e-5)
    # The row alone, without padding.
    ids = {
        "token_ids": [[2, 5, 6, 3, 7, 3]],
        "segment_ids": [[0, 0, 0, 0, 1, 1]],
        "padding_mask": [[1] * 6],
    }
    expected = [keras.ops.convert_to_numpy(x) for x in classifier.backbone.attention_scores(ids)]
    np.testing.assert_allclose(found["attention"][:, None], expected, atol=1e-6)
    plot_attention(found, tmp_path / "all.png")
    plot_attention(found, tmp_path / "heads.svg", layer=1)
    assert (tmp_path / "all.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "heads.svg").stat().st_size > 1000
    with pytest.raises(ValueError, match="`head` must be from 0 to 1. Received: 2"):
        plot_attention(found, tmp_path / "none.png", head=2)
    assert not (tmp_path / "none.png").exists()


@pytest.mark.backend_free
def test_confusions_are_counted(tmp_path):
    labels, predictions = list("aaabbc"), list("aabbca")
    found = confusion_matrix(labels, predictions, list("abcd"))
    assert found["counts"] == [[2, 1, 0, 0], [0, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
    assert found["accuracy"] == 3 / 6
    assert found["rows"][0] == {
        **{"class": "a", "examples": 3, "predicted": 3},
        **{"precision": 2 / 3, "recall": 2 / 3, "f1": 2 / 3},
    }
    assert found["rows"][1]["precision"] == found["rows"][1]["recall"] == 1 / 2
    assert found["rows"][3]["f1"] == 0
    plot_confusion(found, tmp_path / "confusion.png")
    assert (tmp_path / "confusion.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="lack ..c.."):
        confusion_matrix(labels, predictions, ["a", "b"])


@pytest.mark.backend_free
def test_rows_are_drawn_with_what_they_lack_left_out(tmp_path):
    rows = [{"way": "one", "a": 1.0, "a_deviation": 0.5, "b": None}, {"way": "two", "a": 2, "b": 3}]
    plot_rows(rows, "way", ["a", "b"], tmp_path / "rows.svg")
    drawn = (tmp_path / "rows.svg").read_text()
    assert "<svg" in drawn
    with pytest.raises(ValueError, match="must end in .png"):
        plot_rows(rows, "way", ["a"], tmp_path / "rows.gif")
