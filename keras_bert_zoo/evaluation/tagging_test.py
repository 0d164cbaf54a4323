"""Span scores against counts done by hand and by a few lines of plain Python."""

import random

import pytest

from keras_bert_zoo.evaluation.tagging import span_scores

pytestmark = pytest.mark.backend_free


def spans(tags):
    """The spans (type, first word, last word), by conlleval's rule."""
    found, start = [], None
    for i, tag in enumerate([*tags, "O"]):
        last = tags[i - 1] if i else "O"
        begins = tag[0] == "B" or (tag[0] == "I" and last[2:] != tag[2:])
        if start is not None and (begins or tag == "O"):
            found.append((tags[start][2:], start, i - 1))
            start = None
        if begins:
            start = i
    return found


def test_scores_are_those_counted_by_hand():
    expected = [["B-PER", "I-PER", "O", "B-LOC"], ["O", "B-LOC", "B-LOC"]]
    predicted = [["B-PER", "O", "O", "B-LOC"], ["O", "B-PER", "B-LOC"]]
    scores = span_scores(expected, predicted)
    # Expected 4 spans, predicted 4, right 2: the first LOC and the last.
    assert (scores["precision"], scores["recall"], scores["f1"]) == (0.5, 0.5, 0.5)
    assert scores["spans"] == 4
    assert scores["accuracy"] == pytest.approx(5 / 7)
    assert scores["types"]["LOC"] == {
        "precision": 1.0,
        "recall": pytest.approx(2 / 3),
        "f1": pytest.approx(0.8),
        "spans": 3,
    }
    assert scores["types"]["PER"] == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "spans": 1}


@pytest.mark.parametrize("names", ["OIIB", "OI"], ids=["BIO", "IO"])
def test_scores_are_conllevals_on_random_tags(names):
    draw = random.Random(0)

    def sentences():
        kinds = [n if n == "O" else f"{n}-{t}" for n in names for t in "AB"]
        return [[draw.choice(kinds) for _ in range(draw.randint(0, 9))] for _ in range(200)]

    expected = sentences()
    predicted = [[draw.choice([tag, "O", "I-A"]) for tag in row] for row in expected]
    right = given = wanted = 0
    for one, other in zip(expected, predicted, strict=True):
        right += len(set(spans(one)) & set(spans(other)))
        given += len(spans(other))
        wanted += len(spans(one))
    scores = span_scores(expected, predicted)
    assert scores["precision"] == pytest.approx(right / given)
    assert scores["recall"] == pytest.approx(right / wanted)
    assert scores["f1"] == pytest.approx(2 * right / (given + wanted))
    assert scores["spans"] == wanted


def test_nothing_to_find_is_no_error(recwarn):
    scores = span_scores([["O", "O"]], [["O", "O"]])
    assert (scores["f1"], scores["accuracy"], scores["types"]) == (0.0, 1.0, {})
    assert span_scores([["B-A"]], [["O"]])["f1"] == 0.0
    assert not recwarn.list


@pytest.mark.parametrize(
    ("predicted", "message"),
    [
        ([["O"]], "Received: 1 rows for 2 sentences"),
        ([["O", "O"], []], r"`predicted\[1\]` .* 0 tags for 1 words"),
    ],
)
def test_words_without_a_tag_are_refused(predicted, message):
    with pytest.raises(ValueError, match=message):
        span_scores([["O", "O"], ["O"]], predicted)
