"""Question answering: what is computed, learnt from texts, answered and saved."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from keras_bert_zoo import from_preset
from keras_bert_zoo.models import BertBackbone, BertQuestionAnswerer
from keras_bert_zoo.preprocessing import (
    BertPreprocessor,
    BertQuestionAnswererPreprocessor,
    BertTokenizer,
)
from keras_bert_zoo.training import adamw

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmno", "塔", "who"]
QUESTIONS = ["a", "b", "who", "a b", "c"]
CONTEXTS = ["a b c d e f g h i j k l m n o a b c", "Ünknown, 塔 c", "", "d. e f", "a b\tc"]
ANSWERS = [[("h i", 14)], [("塔", 9)], [], [("e", 3), ("f", 5)], [("b\tc", 2)]]


def question_answerer(**arguments):
    backbone = BertBackbone(
        len(PIECES), 1, 2, 8, 16, dropout=0.0, attention_dropout=0.0, max_sequence_length=16
    )
    tokenizer = BertTokenizer(PIECES, lowercase=True)
    preprocessor = BertQuestionAnswererPreprocessor(tokenizer, 12, stride=4)
    return BertQuestionAnswerer(backbone, preprocessor, **arguments)


def randomised(model):
    """The model, with weights large enough that its outputs differ from row to row."""
    rng = np.random.default_rng(0)
    for weight in model.trainable_variables:
        weight.assign(rng.normal(scale=0.5, size=weight.shape))
    return model


def numpy(tensors):
    return {name: ops.convert_to_numpy(x) for name, x in tensors.items()}


@pytest.fixture(scope="module")
def fixed():
    """An answerer that learns nothing, and the windows of its questions with their labels."""
    model = randomised(question_answerer())
    model.compile(optimizer=keras.optimizers.SGD(0.0), jit_compile=False)
    windows, labels, _ = model.preprocessor.labelled_windows(QUESTIONS, CONTEXTS, ANSWERS)
    windows, labels = numpy(windows), numpy(labels)
    inputs = {name: windows[name] for name in ("token_ids", "segment_ids", "padding_mask")}
    return model, windows, inputs, labels


def cross_entropies(model, inputs, labels):
    """The mean of each row's two, over its real pieces alone."""
    outputs = numpy(model(inputs))
    losses = []
    for row, real in enumerate(inputs["padding_mask"] == 1):
        both = []
        for name in ("start", "end"):
            logits = outputs[name][row].astype("float64")
            both.append(np.log(np.exp(logits[real]).sum()) - logits[labels[name][row]])
        losses.append(np.mean(both))
    return np.array(losses)


# === What is computed ===


def test_the_head_is_a_dense_layer_on_the_states(fixed):
    model, _, inputs, _ = fixed
    states = ops.convert_to_numpy(model.backbone(inputs)["sequence_output"])
    kernel, bias = (ops.convert_to_numpy(weight) for weight in model.qa_outputs.weights)
    outputs = numpy(model(inputs))
    real = inputs["padding_mask"] == 1
    assert kernel.shape == (8, 2)
    for i, name in enumerate(("start", "end")):
        expected = states @ kernel[:, i] + bias[i]
        np.testing.assert_allclose(outputs[name][real], expected[real], atol=1e-5)
        assert (outputs[name][~real] < -1e8).all()
    assert model.count_params() == model.backbone.count_params() + 8 * 2 + 2


def test_the_loss_is_the_mean_of_both_cross_entropies(fixed):
    model, windows, inputs, labels = fixed
    losses = cross_entropies(model, inputs, labels)
    outputs = numpy(model(inputs))
    measured = model.evaluate(inputs, labels, verbose=0, return_dict=True)
    assert measured["loss"] == pytest.approx(losses.mean(), rel=1e-5)
    for name in ("start", "end"):
        right = (outputs[name].argmax(axis=1) == labels[name]).mean()
        assert measured[f"{name}_accuracy"] == pytest.approx(right)


def test_texts_are_scored_by_their_windows_with_their_question_s_weight(fixed):
    model, windows, inputs, labels = fixed
    losses = cross_entropies(model, inputs, labels)
    weights = np.array([1.0, 2.0, 0.5, 3.0, 1.5])
    measured = model.evaluate(
        (QUESTIONS, CONTEXTS), ANSWERS, sample_weight=weights, batch_size=8, verbose=0
    )
    expected = np.average(losses, weights=weights[windows["example_ids"]])
    assert measured[0] == pytest.approx(expected, rel=1e-5)


def test_logits_of_texts_are_those_of_their_windows_in_their_order(fixed):
    model, _, inputs, _ = fixed
    expected = numpy(model(inputs))
    logits = model.predict((QUESTIONS, CONTEXTS), batch_size=2, verbose=0)
    for name in ("start", "end"):
        np.testing.assert_allclose(logits[name], expected[name], atol=1e-5)


# === Answers ===


def test_answers_are_parts_of_their_passages(fixed):
    model, windows, inputs, _ = fixed
    logits = numpy(model(inputs))
    answers = model.answer(QUESTIONS, CONTEXTS, n_best=3, batch_size=2)
    assert len(answers) == 5
    for number, (answer, context) in enumerate(zip(answers, CONTEXTS, strict=True)):
        for span in (answer, *answer.n_best):
            assert span.text == context[span.start : span.end]
        if not context:
            assert (answer.text, answer.n_best) == ("", [])
            continue
        scores = [
            logits["start"][row, first] + logits["end"][row, last]
            for row in np.flatnonzero(windows["example_ids"] == number)
            for first in np.flatnonzero(windows["max_context"][row])
            for last in np.flatnonzero(windows["piece_places"][row] >= 0)
            if last >= first
        ]
        null = (logits["start"] + logits["end"])[windows["example_ids"] == number, 0].min()
        assert answer.null_odds == pytest.approx(null - max(scores), abs=1e-4)
        assert len(answer.n_best) == 3
        assert answer.text


def test_the_threshold_may_be_set_after_training(fixed):
    model, *_ = fixed
    odds = np.array(
        [answer.null_odds for answer in model.answer(QUESTIONS, CONTEXTS, batch_size=2)]
    )
    try:
        model.no_answer_threshold = float(np.median(odds))
        answers = model.answer(QUESTIONS, CONTEXTS, batch_size=2)
    finally:
        model.no_answer_threshold = None
    is_none = np.array([answer.text == "" for answer in answers])
    np.testing.assert_array_equal(is_none, odds > np.median(odds))


def test_an_answer_has_no_more_pieces_than_it_may(fixed):
    model, *_ = fixed
    try:
        model.max_answer_length = 1
        answers = model.answer(QUESTIONS, CONTEXTS, n_best=20, batch_size=2)
    finally:
        model.max_answer_length = 30
    assert {len(span.text) for span in answers[0].n_best} == {1}


def test_many_questions_are_answered_by_parts(fixed, monkeypatch):
    model, *_ = fixed
    whole = model.answer(QUESTIONS, np.array(CONTEXTS), batch_size=2)
    monkeypatch.setattr("keras_bert_zoo.models.question_answerer.CHUNK", 2)
    parts = model.answer(QUESTIONS, CONTEXTS, batch_size=2)
    for one, other in zip(parts, whole, strict=True):
        assert one[:3] == other[:3]
        assert one.score == pytest.approx(other.score, rel=1e-4)


def test_answers_to_no_questions_are_none(fixed):
    assert fixed[0].answer([], []) == []


def test_what_is_learnt_is_answered_and_kept(tmp_path):
    rng = np.random.default_rng(0)
    contexts = [" ".join(rng.permutation([*"abcdefg", "塔"])) for _ in range(64)]
    answers = [[("塔", context.index("塔"))] for context in contexts]
    questions = ["who"] * 64
    keras.utils.set_random_seed(0)
    model = question_answerer(max_answer_length=3)
    model.compile(optimizer=adamw(3e-2), jit_compile=False)
    losses = model.fit((questions, contexts), answers, batch_size=8, epochs=4, verbose=0)
    losses = losses.history["loss"]
    assert losses[-1] < 0.5 * losses[0]
    found = [answer.text for answer in model.answer(questions, contexts)]
    # By chance it would be one in eight at most.
    assert found.count("塔") > 48

    model.no_answer_threshold = 5.0
    model.save_to_preset(tmp_path / "answerer")
    loaded = from_preset(str(tmp_path / "answerer"), task="question_answerer")
    assert (loaded.max_answer_length, loaded.no_answer_threshold) == (3, 5.0)
    assert loaded.preprocessor.get_config() == model.preprocessor.get_config()
    expected = model.answer(questions, contexts)
    for one, other in zip(loaded.answer(questions, contexts), expected, strict=True):
        assert one[:3] == other[:3]
        assert one.score == pytest.approx(other.score, rel=1e-4)


def test_a_backbone_s_preset_makes_windows_of_384_pieces(tmp_path):
    tokenizer = BertTokenizer(PIECES, lowercase=True)
    backbone = BertBackbone(len(PIECES), 1, 1, 4, 4, preprocessor=BertPreprocessor(tokenizer))
    backbone.save_to_preset(tmp_path / "encoder")
    with pytest.warns(UserWarning, match="no qa_outputs"):
        model = from_preset(str(tmp_path / "encoder"), task="question_answerer")
    assert model.preprocessor.sequence_length == 384


@pytest.mark.slow
@pytest.mark.parametrize("threshold", [None, 0.5])
def test_what_is_served_is_what_is_answered(tmp_path, fixed, threshold):
    model, *_ = fixed
    model.no_answer_threshold = threshold
    try:
        model.export(tmp_path / "served")
        answers = model.answer(QUESTIONS, CONTEXTS, batch_size=2)
    finally:
        model.no_answer_threshold = None
    loaded = tf.saved_model.load(tmp_path / "served")
    served = loaded.serve(tf.constant(QUESTIONS), tf.constant(CONTEXTS))
    served = {name: value.numpy() for name, value in served.items()}
    assert [text.decode() for text in served["text"]] == [answer.text for answer in answers]
    for name in ("start", "end"):
        assert served[name].tolist() == [getattr(answer, name) for answer in answers]
    for name in ("score", "null_odds"):
        expected = [getattr(answer, name) for answer in answers]
        np.testing.assert_allclose(served[name], expected, rtol=1e-4)


# === What is refused ===


def test_what_is_no_question_and_passage_is_refused(fixed):
    model, _, inputs, labels = fixed
    with pytest.raises(TypeError, match=r"\[1\]"):
        model.answer(["who", None], ["a", "b"])
    with pytest.raises(ValueError, match="equally long"):
        model.answer(["who"], ["a", "b"])
    with pytest.raises(ValueError, match="n_best.*0"):
        model.answer(["who"], ["a"], n_best=0)
    with pytest.raises(ValueError, match=r"\(questions, contexts\)"):
        model.fit(QUESTIONS, ANSWERS, verbose=0)
    with pytest.raises(ValueError, match="holds no texts"):
        model.fit(([], []), [], verbose=0)
    dataset = tf.data.Dataset.from_tensor_slices((QUESTIONS, CONTEXTS)).batch(2)
    with pytest.raises(ValueError, match="a passage has several windows"):
        model.predict(dataset, verbose=0)
    wrong = {**labels, "end": np.where(labels["end"] == 0, 12, labels["end"])}
    with pytest.raises(ValueError, match=r"y\['end'\].*below 12, the rows' length. Received: 12"):
        model.fit(inputs, wrong, verbose=0)
    with pytest.raises(ValueError, match="max_answer_length.*0"):
        question_answerer(max_answer_length=0)
    bare = BertQuestionAnswerer(model.backbone)
    with pytest.raises(ValueError, match="preprocessor"):
        bare.answer(["who"], ["a"])
