"""SQuAD's scores against the rules as the papers and the official programs state them."""

import json
import os
import pathlib
import random
from itertools import groupby

import pytest

from keras_bert_zoo.data.squad import read_squad
from keras_bert_zoo.evaluation.answer_spans import AnswerSpan, PredictedAnswer
from keras_bert_zoo.evaluation.squad import (
    exact_match,
    normalize_answer,
    squad_scores,
    token_f1,
    write_squad_predictions,
)

pytestmark = pytest.mark.backend_free


@pytest.mark.parametrize(
    ("text", "normalized"),
    [
        ("The  Panthers' Defense\n", "panthers defense"),
        ("an A-a of the $1,000", "aa of 1000"),
        ("another theatre", "another theatre"),
        ("the", ""),
        ("．the。", "． 。"),
        ("不让《a》孩子！", "不让《 》孩子！"),
        ("\u00a0Straße\u3000ÉTÉ", "straße été"),
    ],
)
def test_answers_are_normalised_by_the_official_rules(text, normalized):
    assert normalize_answer(text) == normalized


def test_the_best_of_several_answers_counts():
    assert exact_match("Denver Broncos", ["Carolina", "the Denver Broncos!"]) == 1
    assert exact_match("Broncos", ["Denver Broncos"]) == 0
    # Two of three words found, two of two right: 2 * 1 * (2/3) / (5/3).
    assert token_f1("red boat", ["ship", "red red boat"]) == pytest.approx(0.8)
    assert token_f1("red red red", ["red boat"]) == pytest.approx(0.4)
    assert token_f1("x", ["red boat"]) == 0


def test_two_texts_without_words_agree_by_the_second_rules_alone():
    assert token_f1("the", ["a."]) == 1
    assert token_f1("the", ["a."], empty_agree=False) == 0
    assert token_f1("the", ["boat"]) == token_f1("boat", ["the"]) == 0
    assert exact_match("the", ["a."]) == 1


def table(*answers):
    """A question for each argument, its answers; None for one that is impossible."""
    return {
        "id": [str(i) for i in range(len(answers))],
        "answers": [[(text, 0) for text in texts or ()] for texts in answers],
        "is_impossible": [texts is None for texts in answers],
    }


def test_questions_with_and_without_answers_are_scored_apart():
    scores = squad_scores(
        table(["red boat"], ["sea"], None, None, ["the"]),
        {"0": "boat", "1": "", "2": "", "3": "boat", "4": ""},
    )
    # The answer "the" is none by the second rules; with an answer listed it counts among those.
    assert scores == {
        "exact": pytest.approx(40),
        "f1": pytest.approx(100 * (2 / 3 + 2) / 5),
        "total": 5,
        "HasAns_exact": pytest.approx(100 / 3),
        "HasAns_f1": pytest.approx(100 * (2 / 3 + 1) / 3),
        "HasAns_total": 3,
        "NoAns_exact": 50,
        "NoAns_f1": 50,
        "NoAns_total": 2,
    }


def test_without_impossible_questions_the_first_rules_hold():
    scores = squad_scores(table(["red boat"], ["the"]), {"0": "a red boat", "1": ""})
    assert scores == {"exact": 100, "f1": 50, "total": 2}


def test_a_threshold_takes_predictions_back():
    questions = table(["boat"], ["sea"], None)
    predictions = {"0": "boat", "1": "sea", "2": "boat"}
    odds = {"0": -2.0, "1": 3.0, "2": 1.0}
    scores = squad_scores(questions, predictions, odds, threshold=1.0)
    assert (scores["HasAns_exact"], scores["NoAns_exact"]) == (50, 0)
    scores = squad_scores(questions, predictions, odds, threshold=0.5)
    assert (scores["HasAns_exact"], scores["NoAns_exact"]) == (50, 100)
    assert (scores["best_exact"], scores["best_exact_thresh"]) == (pytest.approx(200 / 3), -2.0)


def test_the_best_threshold_is_that_of_a_search_over_all():
    rng = random.Random(0)
    for _ in range(20):
        kinds = [rng.choice([["red boat"], ["sea"], None]) for _ in range(12)] + [None]
        questions = table(*kinds)
        predictions = {i: rng.choice(["", "red boat", "sea", "boat"]) for i in questions["id"]}
        odds = {i: rng.random() for i in questions["id"]}
        scores = squad_scores(questions, predictions, odds)
        at = {
            threshold: squad_scores(questions, predictions, odds, threshold)
            for threshold in (-1.0, *odds.values())
        }
        for name in ("exact", "f1"):
            best = max(found[name] for found in at.values())
            assert scores[f"best_{name}"] == pytest.approx(best)
            threshold = scores[f"best_{name}_thresh"]
            if threshold:
                assert at[threshold][name] == pytest.approx(best)


def test_questions_of_equal_odds_pass_the_threshold_one_by_one():
    scores = squad_scores(table(["boat"], None), {"0": "boat", "1": "boat"}, {"0": 0.5, "1": 0.5})
    assert (scores["best_exact"], scores["best_exact_thresh"]) == (100, 0.5)


def test_predictions_may_come_in_the_order_of_the_questions():
    questions = table(["boat"], ["sea"], None)
    by_id = squad_scores(
        questions, {"2": "", "1": "x", "0": "boat"}, {"0": 1.0, "2": 3.0, "1": 2.0}
    )
    in_order = squad_scores(questions, ["boat", "x", ""], [1.0, 2.0, 3.0])
    assert in_order == by_id
    questions["id"] = ["0", "0", "0"]
    assert squad_scores(questions, ["boat", "x", ""], [1.0, 2.0, 3.0]) == by_id
    with pytest.raises(ValueError, match="3 questions have the id '0'"):
        squad_scores(questions, {"0": "boat"})
    with pytest.raises(ValueError, match="predictions.*Received: 2 for 3"):
        squad_scores(questions, ["boat", "x"])


def test_what_can_not_be_scored_is_said():
    with pytest.raises(ValueError, match="no questions"):
        squad_scores(table(), {})
    with pytest.raises(ValueError, match="1 of 2 questions have no gold answers.*'1'"):
        squad_scores({**table(["boat"], None), "is_impossible": [False, False]}, {})
    with pytest.raises(ValueError, match="threshold.*null_odds"):
        squad_scores(table(["boat"]), {"0": ""}, threshold=0.0)
    with pytest.raises(ValueError, match="null_odds.*Missing: '1'"):
        squad_scores(table(["boat"], None), {"0": "", "1": ""}, {"0": 0.0})
    with pytest.warns(UserWarning, match="1 of 2 questions have no prediction.*'1'"):
        scores = squad_scores(table(["boat"], None), {"0": "boat"})
    assert scores["exact"] == 50


def test_files_by_ids_need_ids_of_their_own(tmp_path):
    with pytest.raises(ValueError, match="2 questions have the id 'x'"):
        write_squad_predictions(tmp_path / "new", ["x", "x"], [None, None])
    assert list(tmp_path.iterdir()) == []


def test_the_three_files_are_the_official_ones(tmp_path):
    spans = [AnswerSpan("塔", 3, 4, 0.75), AnswerSpan("", 0, 0, 0.25)]
    answers = [
        PredictedAnswer(*spans[0], -1.5, spans),
        PredictedAnswer("", 0, 0, 1.0, 2.0, spans[1:]),
    ]
    write_squad_predictions(tmp_path / "new", ["x", "y"], answers)
    read = {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in (tmp_path / "new").iterdir()
    }
    assert read == {
        "predictions": {"x": "塔", "y": ""},
        "null_odds": {"x": -1.5, "y": 2.0},
        "nbest_predictions": {
            "x": [
                {"text": "塔", "probability": 0.75, "start": 3, "end": 4},
                {"text": "", "probability": 0.25, "start": 0, "end": 0},
            ],
            "y": [{"text": "", "probability": 0.25, "start": 0, "end": 0}],
        },
    }


# === On real questions ===


def rule_words(text):
    """The words that count, by the rules' own steps, a character at a time."""
    kept = [c for c in text.lower() if not ("!" <= c <= "~" and not c.isalnum())]
    runs = ["".join(run) for _, run in groupby(kept, str.isalnum)]
    return "".join(" " if run in ("a", "an", "the") else run for run in runs).split()


def rule_f1(found, expected, empty_agree):
    if not found or not expected:
        return float(empty_agree and found == expected)
    rest, common = list(expected), 0
    for word in found:
        if word in rest:
            rest.remove(word)
            common += 1
    return 2 * common / (len(found) + len(expected))


def rule_scores(questions, predictions, second):
    """Exact match and F1 in percent, and each question's."""
    exact, f1 = [], []
    for i, answers in zip(questions["id"], questions["answers"], strict=True):
        found = rule_words(predictions[i])
        golds = [rule_words(text) for text, _ in answers]
        golds = ([gold for gold in golds if gold] if second else golds) or [[]]
        exact.append(float(found in golds))
        f1.append(max(rule_f1(found, gold, second) for gold in golds))
    return tuple(100 * sum(scores) / len(scores) for scores in (exact, f1))


def disturbed(rng, text, context):
    """A prediction that is right, nearly right or wrong."""
    words, at = context.split(), rng.randrange(len(context))
    return rng.choice(
        [
            lambda: text,
            lambda: f"The {text}",
            lambda: f"{text.upper()}.",
            lambda: f"，{text}」 an",
            lambda: text.replace(" ", "  the ") + "!",
            lambda: " ".join(reversed(text.split())),
            lambda: f"{text} {rng.choice(words)}",
            lambda: text[: len(text) // 2],
            lambda: context[at : at + rng.randrange(1, 20)],
            lambda: rng.choice(["", " ", "the", "A.", "。", "-"]),
        ]
    )()


@pytest.mark.parametrize("name", ["xquad.en", "xquad.zh", "squad_v2_sample"])
def test_two_thousand_predictions_are_scored_by_the_rules(name):
    folder = os.environ.get("KERAS_BERT_ZOO_DATA")
    if folder is None:
        pytest.skip("the data are missing: KERAS_BERT_ZOO_DATA is not set")
    questions = read_squad(str(pathlib.Path(folder) / "squad" / f"{name}.json"))
    second = name == "squad_v2_sample"
    rng = random.Random(name)
    # Several answers, some of them of nothing that counts.
    for answers in questions["answers"]:
        if answers and rng.random() < 0.3:
            answers.append((rng.choice(["the", ".", "A b"]), 0))
    scored = 0
    while scored < 2000:
        predictions = {
            i: disturbed(rng, answers[0][0] if answers else "", context)
            for i, answers, context in zip(
                questions["id"], questions["answers"], questions["context"], strict=True
            )
        }
        scores = squad_scores(questions, predictions)
        expected = rule_scores(questions, predictions, second)
        assert (scores["exact"], scores["f1"]) == pytest.approx(expected, abs=1e-9)
        assert ("NoAns_exact" in scores) == second
        scored += len(predictions)
    assert second or 20 < scores["exact"] < scores["f1"] < 80
