"""Three BERTs on chemical reactions (Schwaller et al. 2021), in PyTorch's old file format."""

import importlib.util
import pathlib
import re

import keras
import numpy as np
import pytest

import keras_bert_zoo as zoo
from keras_bert_zoo.presets import source_task

if importlib.util.find_spec("rxnfp") is None:
    pytest.skip("the package rxnfp is not installed", allow_module_level=True)
pytest.importorskip("torch", reason="the weights are a PyTorch .bin")

REACTION = (
    "Nc1cccc2cnccc12.O=C(O)c1cc([N+](=O)[O-])c(Sc2c(Cl)cncc2Cl)s1>>"
    "O=C(Nc1cccc2cnccc12)c1cc([N+](=O)[O-])c(Sc2c(Cl)cncc2Cl)s1"
)
# An atom in brackets, an element, a bond, a branch, a ring's number.
SMILES = re.compile(r"\[[^\]]+\]|Br|Cl|>>|%\d\d|[A-Za-z0-9=#$/\\().+\-:~@?*]")


def folder(name):
    package = pathlib.Path(importlib.util.find_spec("rxnfp").origin).parent
    return package / "models" / "transformers" / name


def token_ids(name):
    vocabulary = (folder(name) / "vocab.txt").read_text(encoding="utf-8").split("\n")
    pieces = SMILES.findall(REACTION)
    assert "".join(pieces) == REACTION
    return [vocabulary.index(piece) for piece in ["[CLS]", *pieces, "[SEP]"]]


def model_inputs(rows):
    rows = np.array(rows)
    return {
        "token_ids": rows,
        "segment_ids": np.zeros_like(rows),
        "padding_mask": np.ones_like(rows),
    }


def test_cls_state_is_the_published_one():
    backbone = zoo.from_preset(folder("bert_ft"))
    states = backbone(model_inputs([token_ids("bert_ft")]))["sequence_output"]
    expected = [-2.01749539, 1.76020336, -1.33235371, -1.10950196, 1.22545493]
    found = keras.ops.convert_to_numpy(states)[0, 0, :5]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_masked_lm_head_restores_pieces_masked_one_by_one():
    masked_lm = zoo.from_preset(folder("bert_pretrained"), "masked_lm")
    ids = token_ids("bert_pretrained")
    positions = np.arange(1, len(ids) - 1)
    rows = np.tile(ids, (len(positions), 1))
    rows[np.arange(len(positions)), positions] = masked_lm.preprocessor.tokenizer.mask_token_id
    inputs = {**model_inputs(rows), "mask_positions": positions[:, None]}
    guesses = masked_lm.predict(inputs, verbose=0)[:, 0].argmax(axis=-1)
    assert len(positions) == 103
    assert (guesses == np.array(ids)[positions]).sum() >= 98


@pytest.mark.parametrize(
    "name, task, count",
    [
        ("bert_ft", "backbone", 199),
        ("bert_pretrained", "pretrainer", 206),
        ("bert_ft_10k_25s", "text_classifier", 201),
    ],
)
def test_export_is_the_checkpoint_to_the_bit(tmp_path, name, task, count):
    import torch
    from safetensors.numpy import load_file

    assert source_task(folder(name)) == task
    zoo.from_preset(folder(name), task).export_to_transformers(tmp_path / "out")
    exported = load_file(tmp_path / "out" / "model.safetensors")
    original = torch.load(folder(name) / "pytorch_model.bin", map_location="cpu", weights_only=True)
    # Tied to the token table; transformers too writes it once.
    original.pop("cls.predictions.decoder.weight", None)
    assert exported.keys() == original.keys()
    assert len(exported) == count
    for tensor_name, tensor in original.items():
        np.testing.assert_array_equal(
            exported[tensor_name].view("int32"), tensor.numpy().view("int32"), err_msg=tensor_name
        )


def test_fine_tuned_classifier_predicts_at_once():
    classifier = zoo.from_preset(folder("bert_ft_10k_25s"), "text_classifier")
    assert classifier.num_classes == 50
    logits = classifier.predict(model_inputs([token_ids("bert_ft_10k_25s")]), verbose=0)
    assert logits[0].argmax() == 20
