"""Tagging: a loss and a tag for every word, in the user's own names."""

import json

import keras
import numpy as np
import pytest

from keras_bert_zoo import from_preset
from keras_bert_zoo.models import BertBackbone, BertTextClassifier, BertTokenClassifier
from keras_bert_zoo.models.token_classifier import WordAccuracy
from keras_bert_zoo.preprocessing import (
    BertTextClassifierPreprocessor,
    BertTokenClassifierPreprocessor,
    BertTokenizer,
    pack_rows,
)
from keras_bert_zoo.training import adamw

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklm", "ni", "##els"]
NAMES = ["O", "B-PER", "I-PER"]
# The third sentence is longer than a row of eight; the second has no words.
WORDS = [["a", "niels", "b"], [], ["c", "niels", "d", "e", "niels", "f", "g", "h", "i"], ["niels"]]
TAGS = [["O", "B-PER", "I-PER"], [], ["O"] * 9, ["B-PER"]]
# What is fastest for so small a model.
JIT = keras.backend.backend() == "jax"
NUMBERS = [[NAMES.index(tag) for tag in row] for row in TAGS]


def backbone():
    return BertBackbone(
        len(PIECES), 1, 2, 8, 16, max_sequence_length=16, dropout=0.0, attention_dropout=0.0
    )


def randomised(model):
    rng = np.random.default_rng(0)
    for weight in model.trainable_variables:
        if len(weight.shape) > 1:
            weight.assign(rng.normal(size=weight.shape))
    return model


def make_tagger():
    preprocessor = BertTokenClassifierPreprocessor(
        BertTokenizer(PIECES, lowercase=True), sequence_length=8, buckets=[]
    )
    return BertTokenClassifier(backbone(), preprocessor=preprocessor, class_names=NAMES)


@pytest.fixture(scope="module")
def tagger():
    """A tagger that learns nothing."""
    model = randomised(make_tagger())
    model.compile(optimizer=keras.optimizers.SGD(0.0), jit_compile=JIT)
    return model


def cross_entropy(logits, labels):
    logits = np.concatenate(logits).astype("float64")
    labels = np.concatenate(labels).astype(int)
    log_shares = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return -log_shares[np.arange(len(labels)), labels]


def test_the_head_is_a_dense_layer_on_each_state(tagger):
    kernel, bias = (keras.ops.convert_to_numpy(w) for w in tagger.classifier_head.weights)
    inputs = tagger.preprocessor(WORDS)
    states = keras.ops.convert_to_numpy(tagger.backbone(inputs)["sequence_output"])
    outputs = keras.ops.convert_to_numpy(tagger(inputs))
    np.testing.assert_allclose(outputs, states @ kernel + bias, atol=1e-5)
    assert tagger.count_params() == tagger.backbone.count_params() + 8 * 3 + 3


@pytest.mark.parametrize("batch_size", [1, 32])
def test_scores_of_words_are_those_of_their_first_pieces(tagger, batch_size):
    predicted = tagger.predict(WORDS, batch_size=batch_size, verbose=0)
    assert [scores.shape for scores in predicted] == [(len(row), 3) for row in WORDS]
    windows = tagger.preprocessor.windows(WORDS)
    outputs = keras.ops.convert_to_numpy(tagger(tagger.preprocessor(WORDS)))
    windows = {name: keras.ops.convert_to_numpy(x) for name, x in windows.items()}
    tagged = np.argwhere(windows["is_tagged"])
    assert len(tagged) == sum(map(len, WORDS))
    for row, position in tagged:
        sentence, word = windows["example_ids"][row], windows["word_ids"][row, position]
        np.testing.assert_allclose(predicted[sentence][word], outputs[row, position], atol=1e-5)


def test_each_word_has_a_tag(tagger):
    scores = tagger.predict(WORDS, verbose=0)
    tags = [[NAMES[i] for i in row.argmax(axis=-1)] for row in scores]
    assert len({tag for row in tags for tag in row}) > 1
    assert tagger.predict_tags(WORDS) == tags
    assert tagger.predict_tags([" ".join(row) for row in WORDS]) == tags


def test_the_loss_and_the_accuracy_are_means_over_all_words(tagger):
    scores = tagger.predict(WORDS, verbose=0)
    losses = cross_entropy(scores, NUMBERS)
    right = np.concatenate(scores).argmax(-1) == np.concatenate(NUMBERS)
    for measured in (
        tagger.evaluate(WORDS, TAGS, verbose=0, return_dict=True),
        tagger.evaluate([" ".join(row) for row in WORDS], NUMBERS, verbose=0, return_dict=True),
    ):
        assert measured["loss"] == pytest.approx(losses.mean(), rel=1e-5)
        assert measured["accuracy"] == pytest.approx(right.mean(), rel=1e-5)


def test_a_word_counts_the_same_in_batches_of_any_length():
    accuracy = WordAccuracy()
    right, wrong = np.array([[[0.0, 1.0]]]), np.array([[[1.0, 0.0]]])
    for length, words, logits in ((2, 1, right), (10, 5, wrong)):
        weights = np.arange(length)[None] < words
        logits = np.repeat(logits, length, axis=1)
        accuracy.update_state(np.ones((1, length), int), logits, weights)
    assert float(accuracy.result()) == pytest.approx(1 / 6)


@pytest.mark.slow
def test_packed_rows_have_the_loss_of_rows_of_their_own(tagger):
    batches = tagger.preprocessor.dataset(WORDS, NUMBERS)
    packed = pack_rows(batches, sequence_length=16, max_examples=4, count=True)
    expected = tagger.evaluate(WORDS, TAGS, verbose=0, return_dict=True)
    measured = tagger.evaluate(packed, verbose=0, return_dict=True)
    assert measured == pytest.approx(expected, rel=1e-5)


def test_a_sentences_weight_is_that_of_its_words(tagger):
    weights = np.array([1.0, 1.0, 0.25, 2.0])
    losses = cross_entropy(tagger.predict(WORDS, verbose=0), NUMBERS)
    expected = np.average(losses, weights=np.repeat(weights, [len(row) for row in WORDS]))
    measured = tagger.evaluate(WORDS, TAGS, sample_weight=weights, verbose=0, return_dict=True)
    assert measured["loss"] == pytest.approx(expected, rel=1e-5)


def test_validation_takes_the_last_sentences(tagger):
    losses = cross_entropy(tagger.predict(WORDS, verbose=0), NUMBERS)
    history = tagger.fit(WORDS, TAGS, validation_split=0.25, verbose=0).history
    assert history["loss"][0] == pytest.approx(losses[:-1].mean(), rel=1e-5)
    assert history["val_loss"][0] == pytest.approx(losses[-1], rel=1e-5)


@pytest.mark.slow
def test_a_tagger_learns():
    model = make_tagger()
    model.compile(optimizer=adamw(0.05), jit_compile=JIT)
    losses = model.fit(WORDS, TAGS, epochs=20, verbose=0).history["loss"]
    assert losses[-1] < losses[0] / 5
    assert model.predict_tags(WORDS) == TAGS


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([["O"] * 3, [], ["O"] * 9, ["B-LOC"]], r"`y\[3\]\[0\]`.*'B-LOC'"),
        ([[0] * 3, [], [0] * 9, [3]], r"`y\[3\]\[0\]` must be a number below 3.*Received: 3"),
        ([[0] * 3, [], [0] * 9, [-100]], r"Received: -100"),
        ([[0] * 3, [], [0] * 8, [0]], r"`y\[2\]`.*8 labels for 9 words"),
    ],
)
def test_labels_that_do_not_fit_are_named(tagger, y, message):
    with pytest.raises(ValueError, match=message):
        tagger.fit(WORDS, y, verbose=0)


def test_labels_beside_ids_are_checked(tagger):
    inputs = {n: keras.ops.convert_to_numpy(x) for n, x in tagger.preprocessor(WORDS).items()}
    y = np.zeros(inputs["token_ids"].shape, int)
    y[1, 0] = -100
    with pytest.raises(ValueError, match="`sample_weight` 0 where a piece has no label"):
        tagger.fit(inputs, y, verbose=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "num_classes"),
        ({"num_classes": 0}, "num_classes.*0"),
        ({"num_classes": 3, "class_names": ["O", "A"]}, "class_names.*3"),
        ({"class_names": ["O", "O"]}, "class_names.*2 different"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        BertTokenClassifier(backbone(), **arguments)


def test_nothing_to_tag_is_refused(tagger):
    with pytest.raises(ValueError, match="`x` holds no texts"):
        tagger.predict_tags([])


# === Saving ===


def test_a_saved_tagger_gives_the_same_tags(tagger, tmp_path):
    tags = tagger.predict_tags(WORDS)
    tagger.save_to_preset(tmp_path / "preset")
    tagger.save(tmp_path / "model.keras")
    for loaded in (
        from_preset(str(tmp_path / "preset"), task="token_classifier"),
        keras.saving.load_model(tmp_path / "model.keras"),
    ):
        assert loaded.class_names == NAMES
        assert loaded.preprocessor.get_config() == tagger.preprocessor.get_config()
        assert loaded.predict_tags(WORDS) == tags


def test_a_head_for_texts_is_not_taken_for_one_of_words(tmp_path):
    preprocessor = BertTextClassifierPreprocessor(BertTokenizer(PIECES, lowercase=True), 16)
    BertTextClassifier(backbone(), 3, preprocessor).save_to_preset(tmp_path / "preset")
    with pytest.warns(UserWarning, match="no classifier_head"):
        model = from_preset(str(tmp_path / "preset"), task="token_classifier", num_classes=3)
    assert type(model.preprocessor) is BertTokenClassifierPreprocessor


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a SavedModel is TensorFlow's")
def test_a_served_tagger_takes_texts(tagger, tmp_path):
    import tensorflow as tf

    tagger.export(tmp_path / "served")
    served = tf.saved_model.load(tmp_path / "served")
    outputs = served.serve(tf.constant([" ".join(row) for row in WORDS]))
    labels = [[tag.decode() for tag in row if tag] for row in outputs["labels"].numpy()]
    assert labels == tagger.predict_tags(WORDS)
    probabilities = outputs["probabilities"].numpy()
    for row, scores in zip(probabilities, tagger.predict(WORDS, verbose=0), strict=True):
        shares = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        np.testing.assert_allclose(row[: len(scores)], shares, atol=1e-5)
        assert not row[len(scores) :].any()


# === Checkpoints ===


def test_a_checkpoint_of_transformers_tags_as_it_does_there(tmp_path):
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
        id2label=dict(enumerate(NAMES)),
    )
    torch.manual_seed(0)
    theirs = transformers.BertForTokenClassification(config).eval()
    torch.nn.init.normal_(theirs.classifier.bias)
    theirs.save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == [
        "BertForTokenClassification"
    ]
    model = from_preset(str(tmp_path), task="token_classifier", sequence_length=8)
    assert model.class_names == NAMES
    inputs = {n: keras.ops.convert_to_numpy(x) for n, x in model.preprocessor(WORDS).items()}
    with torch.no_grad():
        expected = theirs(
            input_ids=torch.tensor(inputs["token_ids"]),
            token_type_ids=torch.tensor(inputs["segment_ids"]),
            attention_mask=torch.tensor(inputs["padding_mask"]),
        ).logits.numpy()
    found = keras.ops.convert_to_numpy(model(inputs))
    real = inputs["padding_mask"] == 1
    np.testing.assert_allclose(found[real], expected[real], atol=1e-5)
