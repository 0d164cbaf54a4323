"""The best spans against a search over all of them, written out in plain Python."""

import numpy as np
import pytest

from keras_bert_zoo.evaluation.answer_spans import best_answers

pytestmark = pytest.mark.backend_free


def windows_of(sizes, stride, question=2):
    """The windows of passages of that many one-letter pieces, `x y z`, eight to a window."""
    rows = {
        name: []
        for name in ("example_ids", "piece_places", "piece_starts", "piece_ends", "max_context")
    }
    for number, size in enumerate(sizes):
        begins = [0]
        while begins[-1] + 8 < size:
            begins.append(begins[-1] + stride)
        spans = [(begin, min(8, size - begin)) for begin in begins]

        def context(span, place):
            begin, length = span
            if not begin <= place < begin + length:
                return -1.0
            return min(place - begin, begin + length - 1 - place) + 0.01 * length

        for row, (begin, length) in enumerate(spans):
            places = np.full(question + 2 + 8 + 1, -1)
            places[question + 2 : question + 2 + length] = range(begin, begin + length)
            best = [
                int(p >= 0 and row == int(np.argmax([context(s, p) for s in spans])))
                for p in places
            ]
            rows["example_ids"].append(number)
            rows["piece_places"].append(places)
            rows["piece_starts"].append(np.where(places >= 0, 2 * places, -1))
            rows["piece_ends"].append(np.where(places >= 0, 2 * places + 1, -1))
            rows["max_context"].append(best)
    return {name: np.array(values) for name, values in rows.items()}


def random_case(seed, letters="abcdefgh"):
    rng = np.random.default_rng(seed)
    sizes = [5, 0, 20, 1, 12]
    windows = windows_of(sizes, stride=3)
    shape = windows["piece_places"].shape
    contexts = [" ".join(rng.choice(list(letters), size)) for size in sizes]
    start, end = rng.normal(scale=3, size=(2, *shape)).astype("float32")
    return start, end, windows, contexts


def all_spans(start, end, windows, contexts, number, longest, max_context):
    """Every (score, start, end) of a passage."""
    spans = []
    for row in np.flatnonzero(windows["example_ids"] == number):
        inside = [p for p, place in enumerate(windows["piece_places"][row]) if place >= 0]
        for first in inside:
            if max_context and not windows["max_context"][row, first]:
                continue
            for last in inside:
                if first <= last < first + longest:
                    score = float(start[row, first]) + float(end[row, last])
                    characters = (
                        windows["piece_starts"][row, first],
                        windows["piece_ends"][row, last],
                    )
                    spans.append((score, *map(int, characters)))
    rows = windows["example_ids"] == number
    return spans, float((start[rows, 0] + end[rows, 0]).min())


@pytest.mark.parametrize("max_context", [True, False])
@pytest.mark.parametrize("longest", [1, 3, 30])
@pytest.mark.parametrize("threshold", [None, 0.0])
def test_answers_are_the_best_of_all_spans(max_context, longest, threshold):
    for seed in range(5):
        case = random_case(seed)
        contexts = case[-1]
        answers = best_answers(
            *case,
            max_answer_length=longest,
            n_best=5,
            max_context=max_context,
            no_answer_threshold=threshold,
        )
        assert len(answers) == len(contexts)
        for number, (answer, context) in enumerate(zip(answers, contexts, strict=True)):
            assert answer.text == context[answer.start : answer.end]
            spans, null = all_spans(*case, number, longest, max_context)
            if not spans:
                assert (answer.text, answer.start, answer.end, answer.score) == ("", 0, 0, 1.0)
                continue
            total = sum(np.exp(score) for score, *_ in spans)
            total += np.exp(null) if threshold is not None else 0
            best, *place = max(spans)
            assert answer.null_odds == pytest.approx(null - best, abs=1e-5)
            if threshold is not None and null - best > threshold:
                assert answer[:3] == ("", 0, 0)
                assert answer.score == pytest.approx(np.exp(null) / total, rel=1e-4)
            else:
                assert [answer.start, answer.end] == place
                assert answer.score == pytest.approx(np.exp(best) / total, rel=1e-4)
            texts = {}
            for score, first, last in spans:
                text = context[first:last]
                texts[text] = max(score, texts.get(text, -np.inf))
            if threshold is not None:
                texts[""] = null
            expected = sorted(texts.items(), key=lambda item: -item[1])[:5]
            assert [span.text for span in answer.n_best] == [text for text, _ in expected]
            scores = [np.exp(score) / total for _, score in expected]
            assert [span.score for span in answer.n_best] == pytest.approx(scores, rel=1e-4)


def test_question_marks_and_padding_never_win():
    start, end, windows, contexts = random_case(0)
    outside = windows["piece_places"] < 0
    outside[:, 0] = False
    expected = best_answers(start, end, windows, contexts, n_best=3)
    start[outside] = end[outside] = 100
    assert best_answers(start, end, windows, contexts, n_best=3) == expected


def test_of_equal_spans_the_first_in_the_passage_is_given():
    windows = windows_of([4], stride=3)
    flat = np.zeros(windows["piece_places"].shape, "float32")
    (answer,) = best_answers(flat, flat, windows, ["a b c d"], n_best=10)
    assert answer.n_best[0][:3] == answer[:3] == ("a", 0, 1)
    assert answer.score == pytest.approx(1 / 10)
    assert sum(span.score for span in answer.n_best) == pytest.approx(1)


def test_no_answer_takes_the_lowest_score_of_all_windows():
    windows = windows_of([12], stride=3)
    start = np.zeros(windows["piece_places"].shape, "float32")
    start[:, 0] = [9, 2, 5][: len(start)]
    (answer,) = best_answers(start, np.zeros_like(start), windows, ["a b c d e f g h i j k l"])
    assert len(start) == 3
    assert answer.null_odds == 2
    assert answer.text == "a"


def test_no_answer_is_given_above_the_threshold_only():
    windows = windows_of([3], stride=3)
    start = np.zeros(windows["piece_places"].shape, "float32")
    start[:, 0] = 1.5
    case = (start, np.zeros_like(start), windows, ["a b c"])
    assert best_answers(*case, no_answer_threshold=1.5)[0].text == "a"
    assert best_answers(*case, no_answer_threshold=1.4)[0].text == ""
    assert best_answers(*case)[0].text == "a"
