"""Names and folders to models, and what is said where that fails."""

import json

import keras
import numpy as np
import pytest

import keras_bert_zoo as zoo
from keras_bert_zoo import presets

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film", "##s"]
TEXTS = ["good film", "bad films", "film", "good good"]


def tiny_backbone(**arguments):
    return zoo.models.BertBackbone(
        vocabulary_size=len(PIECES),
        num_layers=2,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=16,
        max_sequence_length=32,
        **arguments,
    )


def tiny_classifier(**arguments):
    tokenizer = zoo.preprocessing.BertTokenizer(
        PIECES, lowercase=True, strip_accents=False, split_on_cjk=False
    )
    preprocessor = zoo.preprocessing.BertTextClassifierPreprocessor(tokenizer, 16)
    arguments = {"num_classes": 2, **arguments}
    return zoo.models.BertTextClassifier(tiny_backbone(), preprocessor=preprocessor, **arguments)


def test_a_preset_predicts_the_same_and_keeps_its_preprocessing(tmp_path):
    classifier = tiny_classifier(class_names=["no", "yes"])
    classifier.fit(TEXTS, np.array([1, 0, 1, 1]), epochs=2, verbose=0)
    classifier.save_to_preset(tmp_path / "preset")
    assert sorted(p.name for p in (tmp_path / "preset").iterdir()) == [
        "config.json",
        "model.weights.h5",
        "vocab.txt",
    ]
    loaded = zoo.from_preset(tmp_path / "preset", "text_classifier")
    np.testing.assert_array_equal(loaded.predict(TEXTS), classifier.predict(TEXTS))
    tokenizer = loaded.preprocessor.tokenizer
    assert (tokenizer.strip_accents, tokenizer.split_on_cjk) == (False, False)
    assert loaded.preprocessor.sequence_length == 16
    assert loaded.class_names == ["no", "yes"]
    assert int(loaded.optimizer.iterations) == 2
    for ours, theirs in zip(
        classifier.optimizer.variables, loaded.optimizer.variables, strict=True
    ):
        np.testing.assert_array_equal(
            keras.ops.convert_to_numpy(ours), keras.ops.convert_to_numpy(theirs)
        )


def test_a_preset_gives_its_encoder_to_other_tasks(tmp_path):
    classifier = tiny_classifier()
    classifier.save_to_preset(tmp_path / "preset")
    backbone = zoo.from_preset(tmp_path / "preset")
    embedder = zoo.from_preset(tmp_path / "preset", "text_embedder", pooling="cls")
    inputs = classifier.preprocessor(TEXTS)
    states = keras.ops.convert_to_numpy(classifier.backbone(inputs)["sequence_output"])
    found = keras.ops.convert_to_numpy(backbone(inputs)["sequence_output"])
    np.testing.assert_array_equal(found, states)
    np.testing.assert_allclose(embedder.encode(TEXTS), states[:, 0], atol=1e-6)


def test_a_pretrainers_heads_go_to_its_single_tasks(tmp_path):
    pretrainer = zoo.models.BertPretrainer(tiny_backbone())
    pretrainer.save_to_preset(tmp_path / "preset")
    masked_lm = zoo.from_preset(tmp_path / "preset", "masked_lm")
    for ours, theirs in zip(
        pretrainer.masked_lm_head.get_weights(), masked_lm.masked_lm_head.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


def test_another_number_of_classes_gives_a_new_head_and_says_so(tmp_path):
    tiny_classifier(class_names=["no", "yes"]).save_to_preset(tmp_path / "preset")
    with pytest.warns(UserWarning, match="no classifier_head"):
        classifier = zoo.from_preset(tmp_path / "preset", "text_classifier", num_classes=3)
    assert (classifier.num_classes, classifier.class_names) == (3, None)


def test_dtype_is_the_one_asked_for(tmp_path):
    tiny_classifier().save_to_preset(tmp_path / "preset")
    classifier = zoo.from_preset(tmp_path / "preset", "text_classifier", dtype="mixed_bfloat16")
    assert classifier.backbone.dtype_policy.name == "mixed_bfloat16"
    assert np.isfinite(classifier.predict(TEXTS)).all()


def test_weights_that_are_damaged_or_gone_are_refused(tmp_path):
    tiny_classifier().save_to_preset(tmp_path / "a")
    file = tmp_path / "a" / "model.weights.h5"
    for content in (file.read_bytes()[:-1000], b""):
        file.write_bytes(content)
        with pytest.raises(ValueError, match="weights of the preset '.*a' are damaged, cut short"):
            zoo.from_preset(tmp_path / "a", "text_classifier")
    file.unlink()
    with pytest.raises(ValueError, match="or missing"):
        zoo.from_preset(tmp_path / "a", "text_classifier")


def test_a_later_format_is_refused(tmp_path):
    tiny_classifier().save_to_preset(tmp_path / "preset")
    path = tmp_path / "preset" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 2}))
    with pytest.raises(ValueError, match="format version 2"):
        zoo.from_preset(tmp_path / "preset", "text_classifier")


def test_every_card_makes_a_model_of_its_size():
    # The two smallest and the two that are named after their size in the paper.
    for name in ("bert_tiny_en_uncased", "bert_mini_en_uncased", "bert_base_en_uncased"):
        card = presets.find_card(name)
        assert zoo.from_preset(name, load_weights=False).count_params() == card["parameters"]


@pytest.mark.parametrize(
    "source, message",
    [
        ("bert_base_en_uncasd", "Did you mean 'bert_base_en_uncased'"),
        ("no/such/folder", "neither a preset's name nor a folder"),
        ("hf://owner/name@", "no revision after its @"),
    ],
)
def test_an_unknown_source_is_refused(source, message):
    with pytest.raises(ValueError, match=message):
        zoo.from_preset(source)


def test_unknown_tasks_and_arguments_are_refused(tmp_path):
    with pytest.raises(ValueError, match="`task` must be one of"):
        zoo.from_preset("bert_tiny_en_uncased", "translator")
    tiny_classifier().save_to_preset(tmp_path / "preset")
    with pytest.raises(ValueError, match="no further arguments.*num_classes"):
        zoo.from_preset(tmp_path / "preset", num_classes=2)
    with pytest.raises(TypeError, match="number_of_classes"):
        zoo.from_preset(tmp_path / "preset", "text_classifier", number_of_classes=2)


def test_a_folder_without_a_config_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no config.json"):
        zoo.from_preset(tmp_path)


def test_a_missing_vocabulary_is_not_taken_for_damaged_weights(tmp_path):
    tiny_classifier().save_to_preset(tmp_path / "a")
    (tmp_path / "a" / "vocab.txt").unlink()
    with pytest.raises((OSError, ValueError), match="vocab.txt"):
        zoo.from_preset(tmp_path / "a", "text_classifier")


def test_a_compiled_backbone_stays_so_in_a_task(tmp_path):
    classifier = tiny_classifier()
    classifier.backbone.compile("sgd", "mse")
    classifier.save_to_preset(tmp_path / "a")
    again = zoo.from_preset(tmp_path / "a", "text_classifier")
    assert isinstance(again.backbone.optimizer, keras.optimizers.SGD)
    before, after = (model.predict(TEXTS, verbose=0) for model in (classifier, again))
    np.testing.assert_array_equal(after, before)


def test_a_backbone_may_have_the_name_of_an_input(tmp_path):
    backbone = tiny_backbone(name="output_positions")
    zoo.models.BertTextClassifier(backbone, num_classes=2).save_to_preset(tmp_path / "a")
    again = zoo.from_preset(tmp_path / "a", "text_classifier").backbone
    assert again.name == "output_positions"
    for before, after in zip(backbone.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(after, before)


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
def test_a_quantised_model_is_not_saved(tmp_path):
    classifier = tiny_classifier()
    classifier.quantize("int8")
    with pytest.raises(ValueError, match="has been quantised to int8, which a preset does not"):
        classifier.save_to_preset(tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_a_changed_file_is_refused(tmp_path, monkeypatch):
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"other weights")
    card = {
        "name": "card",
        "sources": [{"kind": "huggingface", "repo": "a/b"}],
        "sha256": {"model.safetensors": "0" * 64},
    }
    monkeypatch.setattr(presets, "from_hugging_face", lambda *arguments: tmp_path)
    with pytest.raises(ValueError, match="its sha256 is .*, expected 0000"):
        presets.resolve_card(card)


def test_a_backbone_keeps_its_vocabulary_for_the_next_task(tmp_path):
    tiny_classifier().save_to_preset(tmp_path / "classifier")
    backbone = zoo.from_preset(tmp_path / "classifier")
    states = backbone.predict(TEXTS, batch_size=2, verbose=0)["sequence_output"]
    assert states.shape == (4, 16, 8)
    backbone.save_to_preset(tmp_path / "backbone")
    with pytest.warns(UserWarning, match="no classifier_head"):
        again = zoo.from_preset(tmp_path / "backbone", "text_classifier", num_classes=3)
    assert again.predict(TEXTS, verbose=0).shape == (4, 3)


def test_a_presets_masking_stays_when_another_length_is_asked_for(tmp_path):
    tokenizer = zoo.preprocessing.BertTokenizer(PIECES, lowercase=True)
    preprocessor = zoo.preprocessing.BertMaskedLMPreprocessor(
        tokenizer, 16, mask_selection_rate=0.3, seed=5
    )
    zoo.models.BertMaskedLM(tiny_backbone(), preprocessor).save_to_preset(tmp_path / "preset")
    loaded = zoo.from_preset(tmp_path / "preset", "masked_lm", sequence_length=12)
    masker = loaded.preprocessor.masker
    assert (masker.mask_selection_rate, masker.seed) == (0.3, 5)
    assert loaded.preprocessor.sequence_length == 12


def test_more_pieces_than_the_model_has_positions_are_refused(tmp_path):
    tiny_classifier().save_to_preset(tmp_path / "preset")
    with pytest.raises(ValueError, match="sequence_length is 100.*max_sequence_length is 32"):
        zoo.from_preset(tmp_path / "preset", "text_classifier", sequence_length=100)


def test_a_presets_tokenizer_comes_without_its_model(tmp_path):
    classifier = tiny_classifier()
    classifier.save_to_preset(tmp_path / "preset")
    (tmp_path / "preset" / "model.weights.h5").unlink()
    tokenizer = zoo.load_tokenizer(tmp_path / "preset")
    assert tokenizer.get_config() == classifier.preprocessor.tokenizer.get_config()


def test_a_preset_without_a_vocabulary_has_no_tokenizer(tmp_path):
    tiny_backbone().save_to_preset(tmp_path / "preset")
    with pytest.raises(ValueError, match="has no vocabulary"):
        zoo.load_tokenizer(tmp_path / "preset")
