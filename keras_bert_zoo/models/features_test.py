"""Features are the encoder's own states, computed once; a head on them is the task's own."""

import json

import keras
import numpy as np
import pytest
from keras import ops

from keras_bert_zoo import from_preset
from keras_bert_zoo.layers.layer_mix import LAYER_WAYS, LayerMix, layer_numbers
from keras_bert_zoo.models import (
    BertBackbone,
    BertTextClassifier,
    BertTextEmbedder,
    cached_word_features,
    features,
    fit_head,
)
from keras_bert_zoo.preprocessing import (
    BertPreprocessor,
    BertTextClassifierPreprocessor,
    BertTokenizer,
)

# Many small programs to compile: on the backend that begins the fastest.
once = pytest.mark.slow if keras.backend.backend() != "torch" else lambda test: test

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefg", "##x"]


def to_numpy(x):
    return ops.convert_to_numpy(x)


def new_backbone(num_layers):
    keras.utils.set_random_seed(0)
    model = BertBackbone(
        vocabulary_size=len(VOCABULARY),
        num_layers=num_layers,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=16,
        max_sequence_length=8,
        preprocessor=BertPreprocessor(BertTokenizer(VOCABULARY, lowercase=True), 8, buckets=[8]),
    )
    rng = np.random.default_rng(0)
    for weight in model.trainable_variables:
        weight.assign(rng.normal(scale=0.5, size=weight.shape))
    return model


@pytest.fixture(scope="module")
def backbone():
    return new_backbone(4)


@pytest.fixture(scope="module")
def inputs(backbone):
    return backbone.preprocessor(["a b cx", "d", "e f g a"])


@pytest.fixture(scope="module")
def states(backbone, inputs):
    return np.stack([to_numpy(x) for x in backbone.hidden_states(inputs)])


# === One vector a text ===


@pytest.mark.parametrize(
    ("layers", "numbers", "width"),
    [
        ("embeddings", [0], 8),
        ("second_to_last", [11], 8),
        ("last", [12], 8),
        ("weighted_last_four", [9, 10, 11, 12], 8),
        ("concat_last_four", [9, 10, 11, 12], 32),
        ("weighted_all", list(range(1, 13)), 8),
    ],
)
def test_the_ways_of_table_7(layers, numbers, width):
    assert layer_numbers(layers, 12) == numbers
    mixed = LayerMix(layers).compute_output_shape((None, None, len(numbers), 8))
    assert mixed == (None, None, width)


@once
@pytest.mark.parametrize("layers", [way for way in LAYER_WAYS if way != "last"])
def test_the_layers_of_an_embedder_are_the_encoder_s_states(backbone, inputs, states, layers):
    embedder = BertTextEmbedder(backbone, pooling="cls", layers=layers)
    found = [states[number][:, 0] for number in layer_numbers(layers, 4)]
    if LAYER_WAYS[layers].is_sum:
        shares = np.arange(len(found), dtype="float32")
        mix = next(w for w in embedder.weights if w.path.endswith("layer_mix/mix"))
        scale = next(w for w in embedder.weights if w.path.endswith("layer_mix/scale"))
        mix.assign(shares)
        scale.assign(3.0)
        shares = np.exp(shares) / np.exp(shares).sum()
        expected = 3 * sum(share * state for share, state in zip(shares, found, strict=True))
    else:
        expected = np.concatenate(found, axis=-1)
    np.testing.assert_allclose(to_numpy(embedder(inputs)), expected, atol=1e-4)


@once
def test_pooled_is_what_the_pooler_makes(backbone, inputs, tmp_path):
    embedder = BertTextEmbedder(backbone, pooling="pooled")
    expected = to_numpy(backbone(inputs)["pooled_output"])
    np.testing.assert_allclose(to_numpy(embedder(inputs)), expected, atol=1e-5)
    assert any("pooler" in weight.path for weight in embedder.trainable_variables)


@once
def test_an_embedder_of_several_layers_comes_back(backbone, inputs, tmp_path):
    embedder = BertTextEmbedder(backbone, pooling="mean", layers="weighted_last_four")
    for weight in embedder.weights:
        if "layer_mix" in weight.path:
            weight.assign(np.random.default_rng(0).normal(size=weight.shape))
    embedder.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(to_numpy(loaded(inputs)), to_numpy(embedder(inputs)))
    with pytest.raises(ValueError, match="layers is 'weighted_last_four'"):
        embedder.export_to_transformers(tmp_path / "out")


@once
def test_ways_that_there_are_not_are_named(backbone):
    with pytest.raises(ValueError, match="layers.*first"):
        BertTextEmbedder(backbone, layers="first")
    with pytest.raises(ValueError, match="pooled'` reads the last layer"):
        BertTextEmbedder(backbone, pooling="pooled", layers="embeddings")
    with pytest.raises(ValueError, match="2 layers"):
        layer_numbers("concat_last_four", 2)


@once
@pytest.mark.parametrize(
    ("pooling", "layers"), [("mean", "last"), ("max", "concat_last_four"), ("cls", "weighted_all")]
)
def test_a_classifier_s_head_reads_what_an_embedder_gives(backbone, inputs, pooling, layers):
    classifier = BertTextClassifier(backbone, num_classes=3, pooling=pooling, layers=layers)
    embedder = BertTextEmbedder(backbone, pooling=pooling, layers=layers)
    expected = classifier.classifier_head(embedder(inputs))
    np.testing.assert_allclose(to_numpy(classifier(inputs)), to_numpy(expected), atol=1e-5)
    assert not any("pooler" in weight.path for weight in classifier.trainable_variables)


@once
def test_a_classifier_of_other_states_comes_back(backbone, inputs, tmp_path):
    arguments = {"num_classes": 3, "pooling": "mean", "layers": "weighted_all"}
    preprocessor = BertTextClassifierPreprocessor(backbone.preprocessor.tokenizer, 8)
    classifier = BertTextClassifier(backbone, preprocessor=preprocessor, **arguments)
    classifier.layer_mix.mix.assign([0.0, 1.0, 2.0, 3.0])
    classifier.save_to_preset(tmp_path / "new")
    expected = to_numpy(classifier(inputs))
    for change in ({}, {"sequence_length": 7}, {"dropout": 0.0}):
        loaded = from_preset(str(tmp_path / "new"), "text_classifier", **change)
        np.testing.assert_allclose(to_numpy(loaded(inputs)), expected, atol=1e-6)
    # What one task's texts were says nothing of another's.
    classifier.preprocessor.columns = 2
    classifier.save_to_preset(tmp_path / "new")
    for change, columns in (({"sequence_length": 7}, 2), ({"num_classes": 4}, None)):
        loaded = from_preset(str(tmp_path / "new"), "text_classifier", **change)
        assert loaded.preprocessor.columns == columns
    # What read other states has nothing to say of these.
    with pytest.warns(UserWarning, match="classifier_head"):
        from_preset(str(tmp_path / "new"), "text_classifier", pooling="max")
    with pytest.raises(ValueError, match="pooling is 'mean'"):
        classifier.export_to_transformers(tmp_path / "out")


# === States of words ===

SENTENCES = [["a", "bx", "c"], ["d"], [], ["e", "f", "gx", "ax", "bx", "c", "d"]]


@once
def test_words_have_the_states_of_their_first_pieces(backbone, tmp_path):
    cached = cached_word_features(backbone, SENTENCES, tmp_path / "new", dtype="float32")
    assert cached.word_counts.tolist() == [3, 1, 0, 7]
    row = backbone.preprocessor(["a bx c"])
    assert to_numpy(row["token_ids"])[0, :6].tolist() == [2, 5, 6, 12, 7, 3]
    states = [to_numpy(x)[0] for x in backbone.hidden_states(row)]
    batch = cached.batch([1, 0, 2], "concat_last_four")
    assert batch.shape == (3, 3, 4, 8)
    for place, number in enumerate([1, 2, 3, 4]):
        np.testing.assert_allclose(batch[1, :, place], states[number][[1, 2, 4]], atol=1e-5)
    assert not batch[0, 1:].any() and not batch[2].any()
    # The long sentence has more than one window, and every word a state.
    assert np.abs(cached.batch([3], "embeddings")[0, :, 0]).min(axis=0).max() > 0
    assert all(np.abs(word).max() > 0 for word in cached.batch([3], "last")[0, :, 0])


@once
def test_states_are_computed_once(backbone, tmp_path, monkeypatch):
    written = []
    write = features._write
    monkeypatch.setattr(features, "_write", lambda *a: written.append(1) or write(*a))
    for sentences in (SENTENCES, SENTENCES, SENTENCES[:2]):
        cached = cached_word_features(backbone, sentences, tmp_path / "new", layers=[4])
    assert len(written) == 2
    assert json.loads((tmp_path / "new" / "features.json").read_text())["words"] == 4
    with pytest.raises(ValueError, match=r"states \[0\] were not kept"):
        cached.batch([0], "embeddings")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="something else"):
        cached_word_features(backbone, SENTENCES, tmp_path / "mine")
    with pytest.raises(ValueError, match="0 to 4"):
        cached_word_features(backbone, SENTENCES, tmp_path / "other", layers=[5])


# === A head ===


TEXTS = ["a b c d e", "g", "f g x", "d c b a"]


@once
@pytest.mark.parametrize("pooling", ["pooled", "mean"])
def test_a_head_on_features_is_the_classifier_s_own(pooling):
    encoder = new_backbone(1)
    classifier = BertTextClassifier(encoder, num_classes=2, dropout=0.0, pooling=pooling)
    batch = {name: to_numpy(x) for name, x in encoder.preprocessor(TEXTS).items()}
    labels = np.array([1, 1, 1, 0])
    before = [to_numpy(weight).copy() for weight in encoder.weights]
    validation = {"validation_data": (batch, labels), "verbose": 0}
    losses = fit_head(classifier, batch, labels, learning_rate=0.1, epochs=10, **validation)
    losses = losses.history["val_loss"]
    assert losses[-1] < losses[0]
    assert classifier.evaluate(batch, labels, verbose=0)[0] == pytest.approx(losses[-1], abs=1e-5)
    for weight, start in zip(encoder.weights, before, strict=True):
        np.testing.assert_array_equal(to_numpy(weight), start)
    with pytest.raises(ValueError, match="number of classes"):
        fit_head(classifier, batch, labels + 1)


@once
def test_learnt_sums_of_layers_are_no_features():
    classifier = BertTextClassifier(
        new_backbone(1), num_classes=2, pooling="mean", layers="weighted_all"
    )
    with pytest.raises(ValueError, match="'weighted_all', whose weights are learnt"):
        fit_head(classifier, TEXTS, [1, 1, 1, 0])
