"""Scores and answers of each task, by hand."""

import pytest

from keras_bert_zoo.data.sources import Examples
from keras_bert_zoo.training.finetuning_tasks import TASKS, scores_of, wrong_ids

pytestmark = pytest.mark.backend_free


def examples(task, labels, **arguments):
    ids = [f"id{i}" for i in range(len(labels))]
    return Examples("here", task, (["a"] * len(labels),), labels, ids, **arguments)


def predictions(task, answers):
    return [{TASKS[task].answer: answer} for answer in answers]


@pytest.mark.parametrize(
    "task, labels, answers, scores, wrong",
    [
        # F1 of a is 1/2, of b 2/3, of c, which is only ever predicted, 0.
        (
            "classification",
            ["a", "a", "b", "b"],
            ["a", "c", "b", "a"],
            {"accuracy": 0.5, "macro_f1": (2 / 4 + 2 / 3 + 0) / 3},
            ["id1", "id3"],
        ),
        # The variance of the labels is 5, half of the standard deviation 1.118.
        (
            "regression",
            [0.0, 2.0, 4.0, 6.0],
            [0.0, 2.0, 4.0, 4.0],
            {"r2": 1 - 1 / 5, "pearson": 14 / (20 * 11) ** 0.5, "mean_squared_error": 1.0},
            ["id3"],
        ),
        (
            "labels",
            [["x", "y"], [], ["y"]],
            [["y", "x"], ["x"], []],
            {"micro_f1": 2 * 2 / (3 + 3), "exact_match": 1 / 3},
            ["id1", "id2"],
        ),
        (
            "multiple_choice",
            [1, 0],
            [1, 1],
            {"accuracy": 0.5},
            ["id1"],
        ),
        # Tags that mark no spans are scored as words.
        (
            "tagging",
            [["NOUN", "VERB"], ["NOUN"]],
            [["NOUN", "NOUN"], ["NOUN"]],
            {"accuracy": 2 / 3, "macro_f1": (2 * 2 / 5 + 0) / 2},
            ["id0"],
        ),
        (
            "question_answering",
            [[("a boat", 0), ("ship", 4)], [("red", 2)]],
            ["The ship", "red car"],
            {"f1": 100 * (1 + 2 / 3) / 2, "exact": 50.0},
            ["id1"],
        ),
    ],
)
def test_scores_and_errors(task, labels, answers, scores, wrong):
    found = scores_of(examples(task, labels), predictions(task, answers))
    assert found == pytest.approx(scores)
    assert next(iter(found)) == next(iter(scores))
    assert wrong_ids(examples(task, labels), predictions(task, answers)) == wrong


def test_spans_are_scored_where_tags_mark_some():
    labels = [["B-PER", "I-PER", "O", "B-LOC"]]
    found = scores_of(
        examples("tagging", labels), predictions("tagging", [["B-PER", "I-PER", "O", "O"]])
    )
    assert found == pytest.approx({"f1": 2 / 3, "precision": 1.0, "recall": 0.5, "accuracy": 0.75})


def test_glue_scores_are_glues_and_their_mean_comes_first():
    labels = ["equivalent", "equivalent", "equivalent", "not_equivalent"]
    answers = ["equivalent", "equivalent", "not_equivalent", "not_equivalent"]
    found = scores_of(
        examples("classification", labels, glue="MRPC"), predictions("classification", answers)
    )
    assert found == pytest.approx({"score": 0.775, "f1": 0.8, "accuracy": 0.75})
    assert next(iter(found)) == "score"


def test_the_threshold_of_no_answer_is_the_one_that_scores_best():
    labels = [[("red", 0)], [], [("blue", 3)], []]
    rows = [
        {"answer": text, "start": 1, "end": 2, "score": 1.0, "odds": odds}
        for text, odds in (("red", -3.0), ("car", 2.0), ("blue", 1.0), ("sky", 4.0))
    ]
    tuned, attributes = TASKS["question_answering"].tune(labels, rows)
    assert attributes == {"no_answer_threshold": 1.0}
    assert [row["answer"] for row in tuned] == ["red", "", "blue", ""]
    assert scores_of(examples("question_answering", labels), tuned)["f1"] == 100
    answerable = TASKS["question_answering"].tune(labels[:1], rows[:1])
    assert answerable == (rows[:1], {})


def test_a_label_held_back_is_no_score():
    with pytest.raises(ValueError, match="Row 2 of 'here' has no label"):
        scores_of(examples("classification", ["a", None]), predictions("classification", "ab"))


def test_heads_follow_the_training_labels():
    head = TASKS["labels"].head(examples("labels", [["y"], [], ["x", "y"]]))
    assert head == {"class_names": ["x", "y"], "num_classes": 2, "activation": "sigmoid"}
    head = TASKS["classification"].head(examples("classification", ["b"], classes=("c", "b")))
    assert head["class_names"] == ["c", "b"]
    with pytest.raises(ValueError, match="one label only, 'b'"):
        TASKS["classification"].head(examples("classification", ["b", "b"]))
