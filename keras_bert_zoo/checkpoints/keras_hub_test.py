"""KerasHub's presets: what it writes is read, and what is written it reads."""

import json

import keras
import numpy as np
import pytest

import keras_bert_zoo as zoo
from keras_bert_zoo import presets
from keras_bert_zoo.checkpoints import keras_hub as keras_hub_presets
from keras_bert_zoo.cli import main

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
SIZES = {
    "vocabulary_size": len(PIECES),
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 8,
    "intermediate_dim": 12,
    "max_sequence_length": 10,
    "num_segments": 3,
    "dropout": 0.2,
}


@pytest.fixture(scope="module")
def keras_hub():
    return pytest.importorskip("keras_hub")


def randomize(model):
    rng = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(rng.normal(0.0, 0.3, weight.shape))


def their_tokenizer(keras_hub):
    return keras_hub.models.BertTokenizer(PIECES, lowercase=True, strip_accents=False)


@pytest.fixture(scope="module")
def their_classifier(keras_hub, tmp_path_factory):
    """Return a classifier of KerasHub and the folder that it saved it in."""
    preprocessor = keras_hub.models.BertTextClassifierPreprocessor(
        their_tokenizer(keras_hub), sequence_length=9
    )
    classifier = keras_hub.models.BertTextClassifier(
        keras_hub.models.BertBackbone(**SIZES),
        num_classes=3,
        activation="softmax",
        dropout=0.4,
        preprocessor=preprocessor,
    )
    randomize(classifier)
    folder = tmp_path_factory.mktemp("theirs")
    classifier.save_to_preset(folder)
    return classifier, folder


def our_backbone(**arguments):
    settings = {"hidden_activation": "gelu_tanh", "attention_dropout": 0.2, **arguments}
    return zoo.models.BertBackbone(**SIZES, **settings)


def model_inputs():
    rng = np.random.default_rng(0)
    return {
        "token_ids": rng.integers(0, len(PIECES), (3, 9)),
        "segment_ids": rng.integers(0, 3, (3, 9)),
        "padding_mask": np.array([[1] * 9, [1] * 5 + [0] * 4, [1] * 2 + [0] * 7]),
    }


def numpy(x):
    return keras.ops.convert_to_numpy(x)


def assert_same_outputs(ours, theirs):
    inputs = model_inputs()
    ours, theirs = ours(inputs), theirs(inputs)
    if isinstance(ours, dict):
        real = inputs["padding_mask"] == 1
        states = [numpy(outputs["sequence_output"])[real] for outputs in (ours, theirs)]
        np.testing.assert_allclose(*states, atol=1e-5)
        ours, theirs = ours["pooled_output"], theirs["pooled_output"]
    np.testing.assert_allclose(numpy(ours), numpy(theirs), atol=1e-5)


# === Folders ===


def test_a_classifier_of_theirs_is_read_with_its_head_and_its_switches(their_classifier):
    theirs, folder = their_classifier
    ours = zoo.from_preset(folder, "text_classifier")
    assert_same_outputs(ours, theirs)
    assert (ours.num_classes, ours.activation, ours.dropout) == (3, "softmax", 0.4)
    assert (ours.backbone.dropout, ours.backbone.attention_dropout) == (0.2, 0.2)
    assert ours.preprocessor.sequence_length == 9
    tokenizer = zoo.load_tokenizer(folder)
    assert tokenizer.vocabulary == PIECES
    assert (tokenizer.lowercase, tokenizer.strip_accents) == (True, False)


def test_another_number_of_classes_gives_a_new_head_and_says_so(their_classifier):
    with pytest.warns(UserWarning, match="no classifier_head"):
        classifier = zoo.from_preset(their_classifier[1], "text_classifier", num_classes=2)
    assert classifier.activation is None


def test_a_classifier_of_ours_is_read_by_theirs_and_back(keras_hub, their_classifier, tmp_path):
    import h5py

    _, folder = their_classifier
    ours = zoo.from_preset(folder, "text_classifier")
    ours.export_to_keras_hub(tmp_path)
    theirs = keras_hub.models.BertTextClassifier.from_preset(str(tmp_path))
    assert_same_outputs(ours, theirs)
    assert (theirs.num_classes, theirs.dropout) == (3, 0.4)
    found = theirs.preprocessor(["a bé", "c"])
    expected = ours.preprocessor(["a bé", "c"])
    width = expected["token_ids"].shape[1]
    np.testing.assert_array_equal(numpy(found["token_ids"])[:, :width], expected["token_ids"])
    backbone = keras_hub.models.BertBackbone.from_preset(str(tmp_path))
    assert_same_outputs(ours.backbone, backbone)
    names = []
    for name in ("model.weights.h5", "task.weights.h5"):
        with h5py.File(folder / name) as before, h5py.File(tmp_path / name) as after:

            def check(place, item, before=before):
                if isinstance(item, h5py.Dataset) and place.startswith("layers"):
                    names.append(place)
                    np.testing.assert_array_equal(item, before[place])

            after.visititems(check)
    # Three tables, a LayerNorm, the pooler and the head; and 16 a layer.
    assert len(names) == 3 + 2 + 2 + 2 + 2 * 16


def test_an_embedder_goes_both_ways(keras_hub, tmp_path):
    theirs = keras_hub.models.BertTextEmbedder(
        keras_hub.models.BertBackbone(**SIZES), pooling_mode="max", normalize=True
    )
    randomize(theirs)
    theirs.save_to_preset(tmp_path / "theirs")
    their_tokenizer(keras_hub).save_to_preset(tmp_path / "theirs")
    ours = zoo.from_preset(tmp_path / "theirs", "text_embedder")
    assert (ours.pooling, ours.normalize) == ("max", True)
    assert_same_outputs(ours, theirs)
    convert = ["convert", str(tmp_path / "theirs"), str(tmp_path / "ours"), "--to", "keras_hub"]
    assert main(convert) == 0
    assert_same_outputs(ours, keras_hub.models.BertTextEmbedder.from_preset(str(tmp_path / "ours")))


def test_shards_are_read(their_classifier, tmp_path):
    theirs, _ = their_classifier
    theirs.backbone.save_to_preset(tmp_path, max_shard_size=1e-6)
    assert len(list(tmp_path.glob("model_*.weights.h5"))) > 1
    assert_same_outputs(zoo.from_preset(tmp_path), theirs.backbone)


def test_weights_in_bfloat16_are_read(tmp_path):
    model = keras.Sequential([keras.layers.Dense(3, dtype="bfloat16")])
    model.build((None, 2))
    model.save_weights(tmp_path / "model.weights.h5")
    with keras_hub_presets.open_tensors(tmp_path) as tensors:
        kernel = tensors["model.weights.h5/layers/dense/vars/0"]
    expected = keras.ops.cast(model.layers[0].kernel, "float32")
    np.testing.assert_array_equal(kernel.astype("float32"), numpy(expected))


def test_a_masked_lm_goes_both_ways_with_the_settings_of_its_head(keras_hub, tmp_path):
    theirs = keras_hub.models.BertMaskedLM(keras_hub.models.BertBackbone(**SIZES))
    randomize(theirs)
    theirs.save_to_preset(tmp_path / "theirs")
    their_tokenizer(keras_hub).save_to_preset(tmp_path / "theirs")
    inputs = {**model_inputs(), "mask_positions": np.array([[1, 4], [0, 3], [1, 0]])}
    expected = numpy(theirs(inputs))
    ours = zoo.from_preset(tmp_path / "theirs", "masked_lm")
    np.testing.assert_allclose(numpy(ours(inputs)), expected, atol=1e-5)

    ours.export_to_keras_hub(tmp_path / "ours")
    again = keras_hub.models.BertMaskedLM.from_preset(str(tmp_path / "ours"))
    np.testing.assert_allclose(numpy(again(inputs)), expected, atol=1e-5)

    ours.save_to_preset(tmp_path / "preset")
    kept = zoo.from_preset(tmp_path / "preset", "masked_lm")
    np.testing.assert_allclose(numpy(kept(inputs)), expected, atol=1e-5)
    # A pretrainer's head, and that of other libraries, is as the encoder says.
    with pytest.warns(UserWarning, match="no masked_lm_head and no next_sentence_head"):
        zoo.from_preset(tmp_path / "preset", "pretrainer")
    with (
        pytest.warns(UserWarning, match="left out: it runs with .*'gelu'.* 1e-05"),
        pytest.warns(UserWarning, match="no masked_lm_head and no next_sentence_head"),
    ):
        zoo.from_preset(tmp_path / "theirs", "pretrainer")
    for export in (ours.export_to_transformers, ours.export_to_tf1):
        with pytest.raises(
            ValueError, match="head's activation is 'gelu', .*only 'gelu_tanh'.*1e-05"
        ):
            export(tmp_path / "out")


def small_preset(folder, **changes):
    """Write the small files of a preset, as KerasHub 0.32 does."""
    config = {"registered_name": "keras_hub>BertBackbone", "config": SIZES, **changes}
    settings = {"lowercase": False, "strip_accents": False, "split": True, "oov_token": "[UNK]"}
    tokenizer = {"registered_name": "keras_hub>BertTokenizer", "config": settings}
    (folder / "assets" / "tokenizer").mkdir(parents=True)
    (folder / "assets" / "tokenizer" / "vocabulary.txt").write_text("\n".join(PIECES))
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def test_what_is_no_bert_or_has_no_weights_is_refused(tmp_path):
    folder = small_preset(tmp_path / "a", registered_name="keras_hub>GemmaBackbone")
    with pytest.raises(ValueError, match="no BERT but a GemmaBackbone"):
        zoo.from_preset(folder)
    folder = small_preset(tmp_path / "b")
    with pytest.raises(ValueError, match=r"no weights: no model\.weights\.h5"):
        zoo.from_preset(folder)
    (folder / "model.weights.h5").write_bytes(b"\x89HDF\r\n\x1a\n and no more")
    with pytest.raises(ValueError, match=r"model\.weights\.h5' is damaged or cut short"):
        zoo.from_preset(folder)
    (folder / "tokenizer.json").write_text('{"registered_name": "keras_hub>XLMRobertaTokenizer"}')
    with pytest.raises(ValueError, match="must be a BertTokenizer .*XLMRobertaTokenizer"):
        zoo.load_tokenizer(folder)


# === Refusals on the way out ===


def test_an_encoder_that_keras_hub_lacks_is_refused_with_every_reason(tmp_path):
    backbone = our_backbone(
        hidden_activation="gelu", layer_norm_epsilon=1e-5, attention_dropout=0.1, causal=True
    )
    with pytest.raises(ValueError) as error:
        backbone.export_to_keras_hub(tmp_path / "out")
    for reason in (
        "hidden_activation is 'gelu', and it has only 'gelu_tanh'",
        "layer_norm_epsilon is 1e-05, and it has only 1e-12",
        "attention_dropout is 0.1, and it has only 0.2",
        "causal is True, and it has only False",
    ):
        assert reason in str(error.value)
    assert not list(tmp_path.iterdir())


def test_heads_and_switches_that_keras_hub_lacks_are_refused(tmp_path):
    backbone = our_backbone()
    with pytest.raises(ValueError, match="the model is 'BertNextSentence'"):
        zoo.models.BertNextSentence(backbone).export_to_keras_hub(tmp_path / "out")
    with pytest.raises(
        ValueError, match="head's activation is 'gelu_tanh', .*only 'gelu';.* 1e-12"
    ):
        zoo.models.BertMaskedLM(backbone).export_to_keras_hub(tmp_path / "out")
    tokenizer = zoo.preprocessing.BertTokenizer(PIECES, lowercase=True, split_on_cjk=False)
    backbone.preprocessor = zoo.preprocessing.BertPreprocessor(
        tokenizer, 10, truncation="only_first"
    )
    with pytest.raises(ValueError, match="split_on_cjk is False.*truncation is 'only_first'"):
        backbone.export_to_keras_hub(tmp_path / "out")


def test_another_limit_of_words_is_said_and_only_an_export_is_written_over(keras_hub, tmp_path):
    tokenizer = zoo.preprocessing.BertTokenizer(PIECES, lowercase=True, max_word_length=200)
    preprocessor = zoo.preprocessing.BertPreprocessor(tokenizer, 10)
    backbone = our_backbone(preprocessor=preprocessor)
    for _ in range(2):
        with pytest.warns(UserWarning, match="up to 100 bytes, this model's up to 200"):
            backbone.export_to_keras_hub(tmp_path)
    metadata = tmp_path / "metadata.json"
    metadata.write_text(metadata.read_text().replace("keras_bert_zoo_version", "somebody"))
    with pytest.raises(ValueError, match="`folder` must be new, empty or"):
        backbone.export_to_keras_hub(tmp_path)


# === Names ===


@pytest.fixture
def downloads(monkeypatch, tmp_path):
    """Put a preset in the place of Kaggle; return what is asked for."""
    kagglehub = pytest.importorskip("kagglehub")
    asked = []
    folder = small_preset(tmp_path / "kaggle")

    def model_download(handle, path=None):
        asked.append((handle, path))
        if path is not None and not (folder / path).exists():
            raise http_error(404)
        return str(folder / path if path else folder)

    monkeypatch.setattr(kagglehub, "model_download", model_download)
    return asked


def http_error(status):
    import requests
    from kagglehub.exceptions import KaggleApiHTTPError

    response = requests.Response()
    response.status_code = status
    return KaggleApiHTTPError(f"{status} Client Error.", response)


def test_a_kaggle_handle_and_names_of_theirs_are_downloaded_from_kaggle(keras_hub, downloads):
    handle = "keras/bert/keras/bert_tiny_en_uncased/3"
    backbone = zoo.from_preset(f"kaggle://{handle}", load_weights=False)
    assert backbone.num_segments == 3
    assert backbone.preprocessor.tokenizer.vocabulary == PIECES
    # The weights are not asked for; what a preset need not have is.
    assert (handle, None) not in downloads
    assert (handle, "task.json") in downloads
    downloads.clear()
    with pytest.raises(ValueError, match="no weights"):
        zoo.from_preset(f"kaggle://{handle}")
    assert downloads == [(handle, None)]
    for source in ("keras_hub://bert_tiny_en_uncased", "bert_tiny_en_uncased_sst2"):
        downloads.clear()
        zoo.load_tokenizer(source)
        theirs = keras_hub.models.BertBackbone.presets[source.removeprefix("keras_hub://")]
        assert {f"kaggle://{handle}" for handle, _ in downloads} == {theirs["kaggle_handle"]}
    with pytest.raises(ValueError, match="KerasHub has no BERT preset 'gemma'"):
        zoo.from_preset("keras_hub://gemma")


def test_a_name_that_both_have_is_ours(downloads, monkeypatch):
    asked = []
    monkeypatch.setattr(presets, "from_hugging_face", lambda repo, *_: asked.append(repo))
    presets._resolve("bert_tiny_en_uncased", presets.find_card("bert_tiny_en_uncased"), False)
    assert asked == ["google/bert_uncased_L-2_H-128_A-2"]
    assert not downloads


@pytest.mark.parametrize(
    "problem, kind, message",
    [
        (lambda: http_error(404), ValueError, "Kaggle has no model 'a/b/keras/c'"),
        (lambda: http_error(403), ValueError, "'a/b/keras/c' is gated"),
        (lambda: http_error(500), ConnectionError, "did not give 'a/b/keras/c'"),
        (lambda: OSError("no route"), ConnectionError, "not in the local cache and Kaggle could"),
        (lambda: ValueError("Invalid"), ValueError, "must be kaggle://owner/model/keras/variation"),
    ],
)
@pytest.mark.backend_free
def test_what_kaggle_does_not_give_is_one_clear_error(monkeypatch, problem, kind, message):
    kagglehub = pytest.importorskip("kagglehub")

    def model_download(*arguments):
        raise problem()

    monkeypatch.setattr(kagglehub, "model_download", model_download)
    with pytest.raises(kind, match=message):
        presets._resolve("kaggle://a/b/keras/c", None, load_weights=True)
