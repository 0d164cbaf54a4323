"""Checkpoints in one format written in another, from the command line."""

import json

import numpy as np
import pytest

import keras_bert_zoo as zoo
from keras_bert_zoo import presets
from keras_bert_zoo.cli import main

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]


def make(class_name, preprocessor="TextClassifier", **arguments):
    backbone = zoo.models.BertBackbone(
        vocabulary_size=len(PIECES),
        num_layers=1,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=16,
        max_sequence_length=32,
    )
    tokenizer = zoo.preprocessing.BertTokenizer(PIECES, lowercase=True)
    preprocessor = getattr(zoo.preprocessing, f"Bert{preprocessor}Preprocessor")(tokenizer, 16)
    return getattr(zoo.models, class_name)(backbone, preprocessor=preprocessor, **arguments)


def test_a_classifier_goes_to_transformers_and_back(tmp_path, caplog):
    classifier = make("BertTextClassifier", class_names=["no", "yes", "maybe"])
    classifier.save_to_preset(tmp_path / "ours")
    convert = ["convert", str(tmp_path / "ours"), str(tmp_path / "theirs"), "--to", "transformers"]
    assert main([*convert, "--json", str(tmp_path / "results.json")]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["task"] == "text_classifier"
    assert results["parameters"] == classifier.count_params()

    back = ["convert", str(tmp_path / "theirs"), str(tmp_path / "back"), "--to", "zoo"]
    assert main(back) == 0
    # One LayerNorm and three tables, a layer, the pooler and the head.
    report = f"loaded {5 + 16 + 2 + 2} tensors; new: nothing; left over: nothing."
    assert report in caplog.text
    loaded = zoo.from_preset(tmp_path / "back", "text_classifier")
    assert loaded.class_names == ["no", "yes", "maybe"]
    for ours, theirs in zip(loaded.get_weights(), classifier.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    "class_name, kind, task",
    [
        ("BertPretrainer", "Pretrainer", "pretrainer"),
        ("BertMaskedLM", "MaskedLM", "masked_lm"),
        ("BertNextSentence", "NextSentence", "next_sentence"),
        ("BertTextEmbedder", "TextEmbedder", "text_embedder"),
    ],
)
def test_the_task_is_the_one_that_the_source_has_heads_of(tmp_path, class_name, kind, task):
    model = make(class_name, kind)
    model.export_to_transformers(tmp_path / "theirs")
    assert presets.source_task(tmp_path / "theirs") == task
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    del config["architectures"]
    (tmp_path / "theirs" / "config.json").write_text(json.dumps(config))
    assert presets.source_task(tmp_path / "theirs") == task


def test_a_checkpoint_without_heads_is_a_backbone(tmp_path):
    make("BertTextClassifier", num_classes=2).backbone.export_to_transformers(tmp_path / "theirs")
    assert presets.source_task(tmp_path / "theirs") == "backbone"


def test_what_stands_there_is_not_written_over(tmp_path, capsys):
    make("BertTextEmbedder", "TextEmbedder").save_to_preset(tmp_path / "ours")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("mine")
    convert = ["convert", str(tmp_path / "ours"), str(tmp_path / "notes"), "--to", "transformers"]
    assert main(convert) == 2
    assert "must be new, empty or a folder that" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "notes").iterdir()] == ["a.txt"]
