"""Multiple choice: a score a choice, and none for what only fills an example up."""

import keras
import numpy as np
import pytest

from keras_bert_zoo import from_preset
from keras_bert_zoo.models import BertBackbone, BertMultipleChoice, BertTextClassifier
from keras_bert_zoo.preprocessing import BertMultipleChoicePreprocessor, BertTokenizer
from keras_bert_zoo.training import adamw

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmno"]
PROMPTS = ["a b", "c", "d e f g", "a a"]
CHOICES = [["h", "i j"], ["k", "l", "m n o"], ["b"], ["a", "b", "c"]]
LABELS = [1, 2, 0, 1]
# What is fastest for so small a model.
JIT = keras.backend.backend() == "jax"


def backbone(**arguments):
    return BertBackbone(
        len(PIECES),
        1,
        2,
        8,
        16,
        max_sequence_length=16,
        dropout=0.0,
        attention_dropout=0.0,
        **arguments,
    )


def make_model():
    preprocessor = BertMultipleChoicePreprocessor(
        BertTokenizer(PIECES, lowercase=True), sequence_length=12, buckets=[]
    )
    return BertMultipleChoice(backbone(), preprocessor)


@pytest.fixture(scope="module")
def model():
    """A model that learns nothing, with weights large enough to tell choices apart."""
    model = make_model()
    rng = np.random.default_rng(0)
    for weight in model.trainable_variables:
        if len(weight.shape) > 1:
            weight.assign(rng.normal(size=weight.shape))
    model.compile(optimizer=keras.optimizers.SGD(0.0), jit_compile=JIT)
    return model


def to_numpy(x):
    return keras.ops.convert_to_numpy(x)


def inputs(model):
    return {name: to_numpy(x) for name, x in model.preprocessor(PROMPTS, CHOICES).items()}


def expected_logits(model):
    """Each choice scored as a row of its own."""
    rows = {name: x.reshape(-1, x.shape[-1]) for name, x in inputs(model).items()}
    pooled = to_numpy(model.backbone(rows)["pooled_output"])
    kernel, bias = (to_numpy(w) for w in model.classifier_head.weights)
    return (pooled @ kernel + bias).reshape(4, 3)


def is_choice():
    return np.arange(3) < np.array([[len(row)] for row in CHOICES])


def test_a_choices_score_is_its_own(model):
    expected = expected_logits(model)
    for found in (
        model.predict((PROMPTS, CHOICES), batch_size=2, verbose=0),
        to_numpy(model(inputs(model))),
    ):
        np.testing.assert_allclose(found[is_choice()], expected[is_choice()], atol=1e-4)
        assert (found[~is_choice()] == -1e9).all()
    assert model.count_params() == model.backbone.count_params() + 8 + 1


def test_the_likeliest_choice_is_chosen(model):
    chosen = model.choose(PROMPTS, CHOICES)
    for row, scores, texts in zip(chosen, expected_logits(model), CHOICES, strict=True):
        shares = np.exp(scores[: len(texts)]) / np.exp(scores[: len(texts)]).sum()
        assert row.index == shares.argmax()
        assert row.text == texts[row.index]
        assert row.probability == pytest.approx(shares.max(), rel=1e-4)
    assert chosen[2][:2] == (0, "b")
    assert chosen[2].probability == pytest.approx(1)


def test_the_loss_is_over_the_choices_there_are(model):
    logits = np.where(is_choice(), expected_logits(model), -np.inf).astype("float64")
    log_shares = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    losses = -log_shares[np.arange(4), LABELS]
    weights = np.array([1.0, 2.0, 0.5, 1.5])
    right = logits.argmax(-1) == LABELS
    for x, sample_weight in (((PROMPTS, CHOICES), weights), (inputs(model), None)):
        measured = model.evaluate(
            x, np.array(LABELS), sample_weight=sample_weight, verbose=0, return_dict=True
        )
        loss, accuracy = (np.average(v, weights=sample_weight) for v in (losses, right))
        assert measured["loss"] == pytest.approx(loss, rel=1e-4)
        assert measured["accuracy"] == pytest.approx(accuracy)


@pytest.mark.slow
def test_a_model_learns_to_choose():
    model = make_model()
    model.compile(optimizer=adamw(0.05), jit_compile=JIT)
    history = model.fit((PROMPTS, CHOICES), LABELS, epochs=12, validation_split=0.25, verbose=0)
    assert history.history["loss"][-1] < history.history["loss"][0] / 5
    assert [row.index for row in model.choose(PROMPTS[:3], CHOICES[:3])] == LABELS[:3]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: {**x, "token_ids": x["token_ids"] + 20}, "`token_ids`.*below 20"),
        (lambda x: {**x, "segment_ids": x["segment_ids"] + 2}, "`segment_ids`.*below 2"),
        (lambda x: {n: v[:, 0] for n, v in x.items()}, r"\(batch, choices, length\).*\(4, 12\)"),
        (lambda x: {n: np.tile(v, 2) for n, v in x.items()}, "24 positions.*16"),
        (lambda x: {"token_ids": x["token_ids"]}, "segment_ids"),
    ],
    ids=["token", "segment", "no choices", "length", "missing"],
)
def test_inputs_outside_the_tables_are_refused(model, change, message):
    wrong = change(inputs(model))
    for call in (model, lambda x: model.fit(x, np.array(LABELS), verbose=0)):
        with pytest.raises(ValueError, match=message):
            call(wrong)


@pytest.mark.parametrize("as_texts", [True, False])
def test_a_label_that_is_no_choice_is_refused(model, as_texts):
    x = (PROMPTS, CHOICES) if as_texts else inputs(model)
    with pytest.raises(ValueError, match="below 3, the number of .*choices. Received: 3"):
        model.fit(x, np.array([0, 3, 0, 0]), verbose=0)


def test_a_data_set_of_texts_is_refused(model):
    import tensorflow as tf

    with pytest.raises(ValueError, match="tuple of lists"):
        model.predict(tf.data.Dataset.from_tensors((["a"], [["b"]])))


def test_one_segment_is_too_few():
    preprocessor = BertMultipleChoicePreprocessor(BertTokenizer(PIECES, lowercase=True), 12)
    with pytest.raises(ValueError, match="`num_segments` is 1"):
        BertMultipleChoice(backbone(num_segments=1), preprocessor)


# === Saving ===


def test_a_saved_model_scores_the_same(model, tmp_path):
    logits = to_numpy(model(inputs(model)))
    model.save_to_preset(tmp_path / "preset")
    model.save(tmp_path / "model.keras")
    for loaded in (
        from_preset(str(tmp_path / "preset"), task="multiple_choice"),
        keras.saving.load_model(tmp_path / "model.keras"),
    ):
        assert loaded.preprocessor.get_config() == model.preprocessor.get_config()
        np.testing.assert_allclose(to_numpy(loaded(inputs(loaded))), logits, atol=1e-5)


def test_a_head_for_texts_is_not_taken_for_one_of_choices(tmp_path):
    BertTextClassifier(backbone(), 1).save_to_preset(tmp_path / "preset")
    with pytest.warns(UserWarning, match="no classifier_head"):
        from_preset(str(tmp_path / "preset"), task="multiple_choice")


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a SavedModel is TensorFlow's")
def test_a_served_model_takes_prompts_and_choices(model, tmp_path):
    import tensorflow as tf

    model.export(tmp_path / "served")
    served = tf.saved_model.load(tmp_path / "served")
    choices = [["a", "b"], ["c", "d e"]]
    outputs = served.serve(tf.constant(["a", "b c"]), tf.constant(choices))
    logits = model.predict((["a", "b c"], choices), verbose=0)
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    np.testing.assert_allclose(outputs["probabilities"].numpy(), shares, atol=1e-5)
    assert outputs["indices"].numpy().tolist() == logits.argmax(-1).tolist()


# === Checkpoints ===


def test_a_checkpoint_of_transformers_chooses_as_it_does_there(model, tmp_path):
    torch = pytest.importorskip("torch", reason="transformers runs on PyTorch only")
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=len(PIECES),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
        initializer_range=0.5,
    )
    torch.manual_seed(0)
    theirs = transformers.BertForMultipleChoice(config).eval()
    theirs.save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    loaded = from_preset(str(tmp_path), task="multiple_choice", sequence_length=12)
    x = inputs(model)
    with torch.no_grad():
        expected = theirs(
            input_ids=torch.tensor(x["token_ids"]),
            token_type_ids=torch.tensor(x["segment_ids"]),
            attention_mask=torch.tensor(x["padding_mask"]),
        ).logits.numpy()
    # What fills up has a score there.
    found = to_numpy(loaded(x))
    np.testing.assert_allclose(found[is_choice()], expected[is_choice()], atol=1e-5)
