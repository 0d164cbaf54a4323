"""Questions, passages and answers to windows and labels, and the characters they stand for."""

import os
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_bert_zoo.data.squad import read_squad
from keras_bert_zoo.evaluation.answer_spans import best_answers
from keras_bert_zoo.preprocessing import BertQuestionAnswererPreprocessor, BertTokenizer

PAD, UNK, CLS, SEP, MASK = range(5)
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES += [
    "who",
    "caf",
    "##es",
    "ann",
    "lee",
    "by",
    ".",
    "高",
    "塔",
    "a",
    "b",
    "c",
    "d",
    "1990",
    "##s",
]
TOKENIZER = BertTokenizer(PIECES, lowercase=True)


def numpy(tensors):
    return {name: keras.ops.convert_to_numpy(x) for name, x in tensors.items()}


def labelled(questions, contexts, answers, **arguments):
    preprocessor = BertQuestionAnswererPreprocessor(TOKENIZER, **arguments)
    windows, labels, lost = preprocessor.labelled_windows(questions, contexts, answers)
    return numpy(windows), numpy(labels), lost


def labelled_texts(windows, labels, contexts):
    """What of its passage each window's labels stand for; None at `[CLS]`."""
    texts = []
    for row, (start, end) in enumerate(zip(labels["start"], labels["end"], strict=True)):
        context = contexts[windows["example_ids"][row]]
        first, last = windows["piece_starts"][row, start], windows["piece_ends"][row, end]
        texts.append(None if start == end == 0 else context[first:last])
    return texts


# === Windows ===


def test_windows_know_the_characters_of_their_pieces():
    preprocessor = BertQuestionAnswererPreprocessor(TOKENIZER, 8, stride=2)
    contexts = ["  By Ann\tLee: Cafés.", "塔高"]
    windows = numpy(preprocessor.windows(["Who", "Who"], contexts))
    assert windows["token_ids"][0].tolist() == [CLS, 5, SEP, 10, 8, 9, UNK, SEP]
    seen = {0: {}, 1: {}}
    for row, example in enumerate(windows["example_ids"]):
        for position, place in enumerate(windows["piece_places"][row]):
            start, end = (windows[f"piece_{name}"][row, position] for name in ("starts", "ends"))
            if place < 0:
                assert start == end == -1
                continue
            seen[example][place] = contexts[example][start:end]
    assert list(seen[0].values()) == ["By", "Ann", "Lee", ":", "Caf", "és", "."]
    assert list(seen[1].values()) == ["塔", "高"]


def test_windows_are_the_preprocessor_s_own_unless_asked_otherwise():
    preprocessor = BertQuestionAnswererPreprocessor(TOKENIZER, 8, stride=3, question_length=1)
    question, context = ["who who who"], ["a b c d a b c d"]
    windows = numpy(preprocessor.windows(question, context))
    assert windows["window_starts"].tolist() == [0, 3, 6]
    assert windows["token_ids"][:, :3].tolist() == [[CLS, 5, SEP]] * 3
    other = numpy(preprocessor.windows(question, context, stride=1, first_length=2))
    assert other["window_starts"].tolist() == [0, 1, 2, 3, 4, 5]
    inputs = numpy(preprocessor(question, context))
    assert sorted(inputs) == ["padding_mask", "segment_ids", "token_ids"]
    np.testing.assert_array_equal(inputs["token_ids"], windows["token_ids"])
    np.testing.assert_array_equal(
        numpy(preprocessor.windows((question, context)))["token_ids"], windows["token_ids"]
    )


def test_the_same_passage_may_have_several_questions():
    contexts = ["a b c", "d", "a b c"]
    preprocessor = BertQuestionAnswererPreprocessor(TOKENIZER, 16)
    together = numpy(preprocessor.windows(["who", "a", "b"], contexts))
    for row, (question, context) in enumerate(zip(["who", "a", "b"], contexts, strict=True)):
        alone = numpy(preprocessor.windows([question], [context]))
        for name in ("token_ids", "piece_starts", "piece_ends"):
            assert together[name][row].tolist() == alone[name][0].tolist()


# === Labels ===


def test_an_answer_is_labelled_in_each_window_that_holds_the_whole_of_it():
    context = "a b c d . 1990 ann lee"
    windows, labels, lost = labelled(
        ["who"], [context], [[("d . 1990", 6)]], sequence_length=8, stride=2
    )
    assert windows["window_starts"].tolist() == [0, 2, 4]
    assert labels["start"].tolist() == [0, 4, 0]
    assert labels["end"].tolist() == [0, 6, 0]
    assert labelled_texts(windows, labels, [context]) == [None, "d . 1990", None]
    assert lost == []


@pytest.mark.parametrize(
    ("context", "answer", "start", "decoded"),
    [
        ("By Ann Lee.", "Ann Lee", 3, "Ann Lee"),
        # The smallest span of whole pieces: the answer begins or ends inside one.
        ("a 1990s b", "1990", 2, "1990"),
        ("a 1990 b", "90", 4, "1990"),
        ("Cafés", "afés", 1, "Cafés"),
        ("Cafés", "Café", 0, "Cafés"),
        # Blanks and what the tokenizer drops have no pieces.
        ("By Ann  Lee .", "Ann  ", 3, "Ann"),
        ("By\u00a0Ann\u200b Lee", "\u00a0Ann\u200b", 2, "Ann"),
        # Unknown characters are one piece a word.
        ("a ☃☃ b", "☃☃", 2, "☃☃"),
        ("a ☃☃ b", "☃", 3, "☃☃"),
        ("在塔，高", "塔", 1, "塔"),
        ("高高塔", "高", 1, "高"),
        ("a a a", "a", 2, "a"),
        ("Cafe\u0301s b", "Cafe\u0301s", 0, "Cafe\u0301s"),
    ],
)
def test_answers_are_labelled_by_the_pieces_that_have_their_characters(
    context, answer, start, decoded
):
    windows, labels, lost = labelled(["who"], [context], [[(answer, start)]])
    assert labelled_texts(windows, labels, [context]) == [decoded]
    assert lost == []
    first = windows["piece_starts"][0, labels["start"][0]]
    assert context[first:].startswith(decoded)
    assert first <= start + len(answer) - len(answer.lstrip())


def test_no_answer_is_labelled_at_the_first_mark():
    windows, labels, lost = labelled(["who"] * 2, ["a b", ""], [[], []], sequence_length=16)
    assert labels["start"].tolist() == labels["end"].tolist() == [0, 0]
    assert windows["token_ids"][:, 0].tolist() == [CLS, CLS]
    assert lost == []


def test_answers_in_no_window_are_counted_and_left_out():
    contexts = ["a b c d a b c d", "a b", "a \u200b b"]
    answers = [[("a b c d a b c d", 0)], [("b", 2)], [("\u200b", 2)]]
    _, labels, lost = labelled(["who"] * 3, contexts, answers, sequence_length=8, stride=2)
    # One is longer than a window, and of one the tokenizer leaves nothing.
    assert lost == [0, 2]
    assert labels["start"].tolist() == [0, 0, 0, 4, 0]
    preprocessor = BertQuestionAnswererPreprocessor(TOKENIZER, 8, stride=2)
    with pytest.warns(UserWarning, match="2 of 3 answers are in no window.*index 0"):
        (questions, passages), y, weights = preprocessor.examples(
            (["who"] * 3, contexts), answers, np.array([1.0, 2.0, 3.0])
        )
    assert (questions.to_list(), passages.to_list()) == ([[5]], [[14, 15]])
    assert ({k: v.tolist() for k, v in y.items()}, weights.tolist()) == (
        {"start": [4], "end": [4]},
        [2.0],
    )
    with pytest.raises(ValueError, match="No window holds the answer of any of the 1 questions"):
        preprocessor.examples((["who"], contexts[:1]), answers[:1])


def test_the_first_of_several_answers_is_learnt():
    windows, labels, _ = labelled(["who"], ["a b"], [[("b", 2), ("a", 0)]])
    assert labelled_texts(windows, labels, ["a b"]) == ["b"]


# === Batches ===


def test_a_data_set_has_a_row_a_window():
    preprocessor = BertQuestionAnswererPreprocessor(TOKENIZER, 8, stride=2)
    questions, contexts = ["who", "by by"], ["a b c d a b", "a ."]
    answers = [[("d", 6)], []]
    windows, labels, _ = preprocessor.labelled_windows(questions, contexts, answers)
    windows, labels = numpy(windows), numpy(labels)
    batches = list(
        preprocessor.dataset((questions, contexts), answers, np.array([0.5, 2.0]), batch_size=3)
    )
    inputs = {
        name: np.concatenate([inputs[name].numpy() for inputs, *_ in batches])
        for name in ("token_ids", "segment_ids", "padding_mask")
    }
    for name, rows in inputs.items():
        np.testing.assert_array_equal(rows, windows[name])
    for name in ("start", "end"):
        rows = np.concatenate([y[name].numpy() for _, y, _ in batches])
        np.testing.assert_array_equal(rows, labels[name])
    weights = np.concatenate([weight.numpy() for *_, weight in batches])
    np.testing.assert_array_equal(weights, np.array([0.5, 2.0])[windows["example_ids"]])


def test_many_questions_are_cut_by_parts(monkeypatch):
    preprocessor = BertQuestionAnswererPreprocessor(TOKENIZER, 8, stride=2)
    x = (["who"] * 5, ["a b c d a b", "a .", "a b c d", "b", "c a b c d a"])
    answers = [[("d", 6)], [], [("b", 2)], [("b", 0)], [("d", 8)]]
    whole = preprocessor.examples(x, answers)
    monkeypatch.setattr("keras_bert_zoo.preprocessing.question_answering.CHUNK", 2)
    parts = preprocessor.examples(x, answers)
    assert [c.to_list() for c in parts[0]] == [c.to_list() for c in whole[0]]
    assert {k: v.tolist() for k, v in parts[1].items()} == {
        k: v.tolist() for k, v in whole[1].items()
    }


@pytest.mark.parametrize("convert", [list, np.array, tf.constant])
def test_texts_come_in_any_form(convert):
    contexts = ["a 塔 b", "高"]
    windows, labels, _ = labelled(
        convert(["who", "who"]), convert(contexts), [[("塔", 2)], [("高", 0)]]
    )
    assert labelled_texts(windows, labels, contexts) == ["塔", "高"]


def test_the_config_makes_the_same_preprocessor():
    preprocessor = BertQuestionAnswererPreprocessor(TOKENIZER, 32, [16], 5, 7)
    config = preprocessor.get_config()
    again = BertQuestionAnswererPreprocessor.from_config(config)
    assert again.get_config() == config
    assert (again.sequence_length, again.buckets) == (32, [16])
    assert (again.stride, again.question_length) == (5, 7)
    default = BertQuestionAnswererPreprocessor(TOKENIZER)
    assert (default.sequence_length, default.stride, default.question_length) == (384, 128, 64)


# === What is refused ===


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([[("b", 0)]], r"answers\[0\].*'b' does not begin at character 0.*'a'"),
        ([[("b", -1)]], r"answers\[0\]"),
        ([("b", 2)], r"answers\[0\]` must be a list of \(text, start\) pairs"),
        ([[("b", "2")]], r"answers\[0\]"),
        ([["b"]], r"answers\[0\]"),
        ([None], r"answers\[0\]"),
        ([[], []], "one list a question. Received: 2 for 1"),
    ],
)
def test_answers_of_another_form_are_refused_with_their_place(answers, message):
    with pytest.raises((ValueError, TypeError), match=message):
        labelled(["who"], ["a b"], answers)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ((["who"], ["a", "b"]), "equally long"),
        (["who"], r"\(questions, contexts\). Received: string columns"),
        ((["who"], ["a", None]), r"\[1\]"),
        (([[5]], [[6]]), r"\(questions, contexts\). Received: int32 and int32 columns"),
    ],
)
def test_other_texts_are_refused(x, message):
    with pytest.raises((ValueError, TypeError), match=message):
        BertQuestionAnswererPreprocessor(TOKENIZER).windows(x)


@pytest.mark.parametrize("arguments", [{"stride": 0}, {"question_length": 1.5}])
def test_wrong_arguments_are_named(arguments):
    (name,) = arguments
    with pytest.raises(ValueError, match=name):
        BertQuestionAnswererPreprocessor(TOKENIZER, **arguments)


# === On real questions ===

# File, vocabulary, the number of its questions to try, and how many answers begin or end with
# what has no piece, or inside one.
SLOW = pytest.mark.slow
REAL = [
    ("squad_v2_sample", "uncased", None, 0),
    ("xquad.zh", "chinese", 100, 0),
    pytest.param("xquad.zh", "chinese", None, 0, marks=SLOW),
    pytest.param("xquad.zh", "multilingual-cased", None, 0, marks=SLOW),
    pytest.param("xquad.en", "cased", None, 1, marks=SLOW),
    pytest.param("tydiqa.goldp.en.train", "uncased", None, 41, marks=SLOW),
    pytest.param("tydiqa.goldp.en.dev", "uncased", None, 0, marks=SLOW),
]


@pytest.mark.backend_free
@pytest.mark.parametrize(("name", "vocabulary", "count", "inexact"), REAL)
def test_every_gold_answer_comes_back_or_is_counted(name, vocabulary, count, inexact):
    folder = os.environ.get("KERAS_BERT_ZOO_DATA")
    if folder is None:
        pytest.skip("the data are missing: KERAS_BERT_ZOO_DATA is not set")
    table = read_squad(str(pathlib.Path(folder) / "squad" / f"{name}.json"))
    table = {column: values[:count] for column, values in table.items()}
    path = pathlib.Path(folder) / "vocab" / f"bert-base-{vocabulary}-vocab.txt"
    tokenizer = BertTokenizer(path, lowercase=vocabulary in ("uncased", "chinese"))
    preprocessor = BertQuestionAnswererPreprocessor(tokenizer)
    windows, labels, lost = preprocessor.labelled_windows(
        table["question"], table["context"], table["answers"]
    )
    windows, labels = numpy(windows), numpy(labels)
    rows = np.arange(len(labels["start"]))
    logits = {key: np.zeros(windows["token_ids"].shape, "float32") for key in labels}
    for key, positions in labels.items():
        logits[key][rows, positions] = 9.0
    answers = best_answers(
        logits["start"],
        logits["end"],
        windows,
        table["context"],
        max_answer_length=384,
        no_answer_threshold=0.0,
    )
    assert lost == []
    found_inexact = 0
    for answer, golds, context in zip(answers, table["answers"], table["context"], strict=True):
        if not golds:
            assert (answer.text, answer.start, answer.end) == ("", 0, 0)
            continue
        text, start = golds[0]
        if (answer.text, answer.start) != (text, start):
            # Then it is the smallest span of whole pieces.
            found_inexact += 1
            _, starts, ends = (x.numpy() for x in tokenizer.tokenize_with_offsets(context))
            inside = (ends > start) & (starts < start + len(text))
            assert (answer.start, answer.end) == (starts[inside][0], ends[inside][-1])
    assert found_inexact == inexact
