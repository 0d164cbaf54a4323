"""GLUE's scores against their definitions, and its averages against published ones."""

import math
import sys

import numpy as np
import pytest

from keras_bert_zoo.evaluation.glue import glue_average, glue_score, write_glue_submission

pytestmark = pytest.mark.backend_free

COLUMNS = ["CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI-m", "MNLI-mm", "QNLI", "RTE", "WNLI"]
# Of GLUE's leaderboard, test sets: F1/accuracy of MRPC and QQP, Pearson/Spearman of STS-B. The
# first row is Devlin et al.'s; the others stand in the read-me of the authors' code.
PUBLISHED = {
    80.5: "60.5 94.9 89.3/85.4 87.6/86.5 72.1/89.3 86.7 85.9 92.7 70.1 65.1",
    73.5: "38.0 89.6 86.6/81.6 80.4/78.4 69.6/87.9 80.0 79.1 87.7 62.2 62.3",
    71.2: "27.8 89.7 83.4/76.2 78.8/77.0 68.1/87.0 77.6 77.0 86.4 61.8 62.3",
    65.8: "0.0 85.9 81.1/71.8 75.4/73.3 66.4/86.2 74.8 74.3 84.1 57.9 62.3",
}
SHOWN = {
    "CoLA": ("matthews_correlation",),
    "STS-B": ("pearson", "spearman"),
    **dict.fromkeys(("MRPC", "QQP"), ("f1", "accuracy")),
}


def leaderboard(row):
    return {
        task: dict(zip(SHOWN.get(task, ("accuracy",)), map(float, cell.split("/")), strict=True))
        for task, cell in zip(COLUMNS, row.split(), strict=True)
    }


def test_a_confusion_table_gives_the_scores_of_its_definitions():
    # 5 right of class 1, 2 missed, 1 invented, 4 right of class 0.
    labels = [1] * 5 + [1] * 2 + [0] * 1 + [0] * 4
    predictions = [1] * 5 + [0] * 2 + [1] * 1 + [0] * 4
    assert glue_score("SST-2", labels, predictions) == {
        "accuracy": pytest.approx(9 / 12),
        "score": pytest.approx(9 / 12),
    }
    assert glue_score("QQP", labels, predictions) == {
        "f1": pytest.approx(10 / 13),
        "accuracy": pytest.approx(9 / 12),
        "score": pytest.approx((10 / 13 + 9 / 12) / 2),
    }
    correlation = (5 * 4 - 1 * 2) / math.sqrt(6 * 7 * 5 * 6)
    assert glue_score("CoLA", labels, predictions)["score"] == pytest.approx(correlation)


def test_correlations_are_those_of_their_definitions():
    scores = glue_score("stsb", [0.0, 1.0, 2.0, 5.0], [1.0, 2.0, 4.0, 3.0])
    # Means 2 and 2.5; sums of products 5, of squares 14 and 5. Ranks 1 2 3 4 and 1 2 4 3.
    assert scores["pearson"] == pytest.approx(5 / math.sqrt(14 * 5))
    assert scores["spearman"] == pytest.approx(1 - 6 * 2 / (4 * 15))
    assert scores["score"] == pytest.approx((scores["pearson"] + scores["spearman"]) / 2)


def test_classes_may_be_names_or_numbers_of_any_kind():
    labels = ["entailment", "neutral", "contradiction"]
    assert glue_score("mnli", labels, np.array([0, 1, 1]))["accuracy"] == pytest.approx(2 / 3)
    # What is named first is class 0, in WNLI not_entailment.
    assert glue_score("wnli", ["not_entailment"], [0])["score"] == 1.0


def test_a_model_that_always_says_the_same_scores_no_correlation(recwarn):
    assert glue_score("CoLA", [0, 1, 1], [1, 1, 1])["score"] == 0.0
    assert glue_score("STS-B", [0.0, 1.0, 2.0], [2.5, 2.5, 2.5])["score"] == 0.0
    assert glue_score("MRPC", [1, 1, 0], [0, 0, 0])["f1"] == 0.0
    assert not recwarn.list


@pytest.mark.parametrize(
    ("task", "labels", "predictions", "message"),
    [
        ("RTE", [0, 1], [0], "1 for 2 labels"),
        ("RTE", [], [], "0 for 0 labels"),
        ("RTE", ["entailment", None], [0, 1], r"`labels\[1\]` of RTE .*entailment.*None"),
        ("RTE", [0, 1], [0, 2], r"`predictions\[1\]` .* or its number. Received: 2"),
        ("RTE", [0], ["yes"], r"`predictions\[0\]` .*'yes'"),
        ("STS-B", [0.0, 1.0], [float("nan"), 1.0], r"`predictions\[0\]` .* finite number.*nan"),
        ("SST", [0], [0], "no task 'SST'"),
    ],
)
def test_what_can_not_be_scored_is_named(task, labels, predictions, message):
    with pytest.raises(ValueError, match=message):
        glue_score(task, labels, predictions)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ValueError, match=r"scikit-learn and scipy.*keras_bert_zoo\[evaluation\]"):
        glue_score("RTE", [0], [0])


@pytest.mark.parametrize("score", PUBLISHED)
def test_the_average_is_the_leaderboards(score):
    scores = leaderboard(PUBLISHED[score])
    average = glue_average({**scores, "AX": {"matthews_correlation": 39.6}})
    assert round(average["glue_score"], 1) == score
    assert average["mean"] == average["glue_score"] and average["tasks"] == COLUMNS
    without = (9 * average["glue_score"] - scores["WNLI"]["accuracy"]) / 8
    assert average["glue_score_without_wnli"] == pytest.approx(without)


def test_the_papers_average_is_another():
    large = glue_average(leaderboard(PUBLISHED[80.5]))
    assert round(large["bert_paper_average"], 1) == 82.1
    base = leaderboard("52.1 93.5 88.9/0 0/85.8 71.2/0 84.6 83.4 90.5 66.4 0")
    del base["WNLI"]
    average = glue_average(base)
    assert round(average["bert_paper_average"], 1) == 79.6
    assert "glue_score" not in average


def test_an_average_of_some_tasks_has_no_name_of_all():
    average = glue_average(
        {"MNLI-m": {"accuracy": 0.8}, "rte": {"accuracy": 0.6}, "MNLI-mm": {"accuracy": 0.7}}
    )
    # MNLI counts once, 0.75.
    assert average == {"mean": pytest.approx(0.675), "tasks": ["MNLI-m", "MNLI-mm", "RTE"]}
    with pytest.raises(ValueError, match=r"'mrpc' lack \['accuracy'\]"):
        glue_average({"mrpc": {"f1": 0.5}})
    with pytest.raises(ValueError, match="no scores"):
        glue_average({"AX": {"matthews_correlation": 0.3}})


def test_submissions_have_the_official_names_labels_and_order(tmp_path):
    path = write_glue_submission(tmp_path / "new", "wnli", range(145, -1, -1), [1] * 145 + [0])
    assert path.name == "WNLI.tsv"
    lines = path.read_text().split("\n")
    assert lines[:3] == ["index\tprediction", "0\t0", "1\t1"] and lines[-2:] == ["145\t1", ""]

    path = write_glue_submission(tmp_path, "ax", range(1104), ["neutral"] * 1104)
    assert path.name == "AX.tsv" and path.read_text().startswith("index\tprediction\n0\tneutral\n")
    path = write_glue_submission(tmp_path, "rte", range(3000), np.zeros(3000, int))
    assert path.name == "RTE.tsv" and "\n2999\tentailment\n" in path.read_text()
    path = write_glue_submission(tmp_path, "mnli_mismatched", range(9847), [2] * 9847)
    assert path.name == "MNLI-mm.tsv" and "\n9846\tcontradiction\n" in path.read_text()


def test_scores_of_sts_b_are_brought_into_their_range(tmp_path):
    scores = np.full(1379, 2.34567, "float32")
    scores[:2] = -0.2, 5.5
    path = write_glue_submission(tmp_path, "STS-B", range(1379), scores)
    assert path.read_text().split("\n")[1:4] == ["0\t0.000", "1\t5.000", "2\t2.346"]


@pytest.mark.parametrize(
    ("ids", "predictions", "message"),
    [
        (range(145), [0] * 145, "test examples 0 to 145. Received: 145 predictions for 145 ids"),
        ([*range(145), 0], [0] * 146, "146 ids, 145 of them different"),
        (range(146), [0] * 145, "145 predictions for 146 ids"),
        (range(146), [2] * 146, r"`predictions\[0\]` of WNLI"),
    ],
)
def test_a_submission_that_the_leaderboard_would_refuse_is_not_written(
    tmp_path, ids, predictions, message
):
    with pytest.raises(ValueError, match=message):
        write_glue_submission(tmp_path, "WNLI", ids, predictions)
    assert not list(tmp_path.iterdir())
