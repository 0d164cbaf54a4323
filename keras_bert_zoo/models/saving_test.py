"""Trained models come back whole, and nothing is lost where saving fails."""

import pathlib

import keras
import numpy as np
import pytest

from keras_bert_zoo import from_preset
from keras_bert_zoo.models import (
    BertMaskedLM,
    BertNextSentence,
    BertPretrainer,
    BertTextClassifier,
    BertTextEmbedder,
)
from keras_bert_zoo.models.models_test import (
    LABELS,
    TEXTS,
    assert_all_equal,
    inputs,
    masked_inputs,
    small_backbone,
    text_classifier,
    to_numpy,
    tokenizer,
    weights,
)
from keras_bert_zoo.preprocessing import BertTextClassifierPreprocessor
from keras_bert_zoo.training import adamw


def through_keras(model, folder):
    model.save(folder / "model.keras")
    return keras.saving.load_model(folder / "model.keras")


def through_preset(model, folder):
    model.save_to_preset(folder / "preset")
    return from_preset(str(folder / "preset"), task="text_classifier")


def trainable(model):
    return [
        [weight.path.rpartition("/")[2], tuple(weight.shape)]
        for weight in model.trainable_variables
    ]


@pytest.mark.parametrize(
    ("through", "frozen"),
    [
        (through_keras, False),
        (through_preset, True),
        pytest.param(through_keras, True, marks=pytest.mark.slow),
        pytest.param(through_preset, False, marks=pytest.mark.slow),
    ],
)
def test_a_trained_model_comes_back_whole(tmp_path, through, frozen):
    preprocessor = BertTextClassifierPreprocessor(
        tokenizer(strip_accents=False, split_on_cjk=False), 12, buckets=[12]
    )
    model = BertTextClassifier(
        small_backbone(num_layers=1, dropout=0.0, attention_dropout=0.0),
        preprocessor=preprocessor,
        class_names=["bad", "good"],
    )
    still = [model.backbone.embeddings, model.backbone.pooler] if frozen else []
    for layer in still:
        layer.trainable = False
    before = [weights(layer) for layer in still]
    model.compile(optimizer=adamw(1e-2), jit_compile=False)
    model.fit(TEXTS, LABELS, batch_size=4, verbose=0)
    for layer, values in zip(still, before, strict=True):
        assert_all_equal(weights(layer), values)
    loaded = through(model, tmp_path)

    batch = model.preprocessor(TEXTS)
    np.testing.assert_allclose(to_numpy(loaded(batch)), to_numpy(model(batch)), atol=1e-6)
    assert_all_equal(weights(loaded), weights(model))
    assert loaded.preprocessor.get_config() == model.preprocessor.get_config()
    assert loaded.preprocessor.tokenizer.get_config() == model.preprocessor.tokenizer.get_config()
    assert loaded.class_names == ["bad", "good"]

    assert trainable(loaded) == trainable(model)
    assert int(loaded.optimizer.iterations) == int(model.optimizer.iterations) == 2
    moments = [[to_numpy(v) for v in m.optimizer.variables] for m in (loaded, model)]
    assert max(np.abs(v).max() for v in moments[1][2:]) > 0
    assert_all_equal(*moments)

    # It trains on as the saved model does.
    for each in (loaded, model):
        each.fit(TEXTS, LABELS, batch_size=4, verbose=0)
    for layer, values in zip(still, before, strict=True):
        assert_all_equal(weights(layer), values)
    for one, other in zip(loaded.weights, model.weights, strict=True):
        np.testing.assert_allclose(to_numpy(one), to_numpy(other), atol=1e-6, err_msg=one.path)


@pytest.mark.parametrize(
    "make",
    [
        lambda b: b,
        BertMaskedLM,
        BertNextSentence,
        BertPretrainer,
        lambda b: BertTextEmbedder(b, pooling="max", normalize=True),
    ],
    ids=["backbone", "masked_lm", "next_sentence", "pretrainer", "embedder"],
)
def test_every_task_comes_back_from_a_keras_file(tmp_path, make):
    backbone = small_backbone(
        hidden_activation="gelu_tanh", layer_norm_epsilon=1e-5, causal=True, num_segments=3
    )
    model = make(backbone)
    loaded = through_keras(model, tmp_path)
    assert type(loaded) is type(model)
    batch = masked_inputs() if "mask_positions" in model.input else inputs()
    pairs = zip(*(keras.tree.flatten(m(batch)) for m in (loaded, model)), strict=True)
    for one, other in pairs:
        np.testing.assert_allclose(to_numpy(one), to_numpy(other), atol=1e-6)


def test_the_head_stays_tied_after_loading(tmp_path):
    loaded = through_keras(BertMaskedLM(small_backbone()), tmp_path)
    assert loaded.masked_lm_head.token_embedding is loaded.backbone.token_embedding
    assert sum(tuple(weight.shape) == (20, 8) for weight in loaded.weights) == 1


@pytest.mark.parametrize("name", ["notes.txt", "config.json"])
def test_a_folder_of_other_files_is_not_written_to(tmp_path, name):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / name).write_text('{"model_type": "bert"}')
    with pytest.raises(ValueError, match="mine"):
        text_classifier().save_to_preset(tmp_path / "mine")
    assert [path.name for path in tmp_path.rglob("*")] == ["mine", name]
    assert (tmp_path / "mine" / name).read_text() == '{"model_type": "bert"}'


def test_a_file_in_the_place_of_the_folder_is_kept(tmp_path):
    (tmp_path / "mine").write_text("a file")
    with pytest.raises(ValueError, match="mine"):
        text_classifier().save_to_preset(tmp_path / "mine")
    assert (tmp_path / "mine").read_text() == "a file"


def test_a_failed_save_leaves_nothing_and_the_old_preset_whole(tmp_path, monkeypatch):
    old, new = text_classifier(), text_classifier()

    def fail(path):
        pathlib.Path(path).write_bytes(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr(new, "save_weights", fail)
    with pytest.raises(OSError, match="no space"):
        new.save_to_preset(tmp_path / "preset")
    assert list(tmp_path.iterdir()) == []

    old.save_to_preset(tmp_path / "preset")
    with pytest.raises(OSError, match="no space"):
        new.save_to_preset(tmp_path / "preset")
    assert [path.name for path in tmp_path.iterdir()] == ["preset"]
    loaded = from_preset(str(tmp_path / "preset"), task="text_classifier")
    assert_all_equal(weights(loaded), weights(old))


def test_a_preset_is_replaced_by_a_later_one(tmp_path):
    for model in (text_classifier(), text_classifier(num_classes=5)):
        model.save_to_preset(tmp_path / "preset")
    loaded = from_preset(str(tmp_path / "preset"), task="text_classifier")
    assert loaded.num_classes == 5
    assert sorted(path.name for path in (tmp_path / "preset").iterdir()) == [
        "config.json",
        "model.weights.h5",
        "vocab.txt",
    ]


def test_the_old_preset_stays_if_the_new_one_cannot_take_its_place(tmp_path, monkeypatch):
    text_classifier().save_to_preset(tmp_path / "preset")
    before = (tmp_path / "preset" / "config.json").read_bytes()
    rename = pathlib.Path.rename

    def fail(path, target):
        if path.name.endswith(".old") or "preset" not in pathlib.Path(target).name[:6]:
            return rename(path, target)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(pathlib.Path, "rename", fail)
        text_classifier(num_classes=3).save_to_preset(tmp_path / "preset")
    assert (tmp_path / "preset" / "config.json").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["preset"]
