"""Checkpoints: all of a run's state, the newest whole one, what a full disk leaves."""

import errno
import hashlib
import json
import os

import keras
import numpy as np
import pytest

from keras_bert_zoo.models import BertBackbone, BertTextClassifier
from keras_bert_zoo.training import adamw, checkpoints, distribution


def make_model(hidden_dim=8):
    backbone = BertBackbone(
        vocabulary_size=20, num_layers=1, num_heads=1, hidden_dim=hidden_dim, intermediate_dim=8
    )
    model = BertTextClassifier(backbone, 2)
    model.compile(optimizer=adamw(1e-3, gradient_accumulation_steps=2))
    return model


def train(model, steps):
    ids = np.arange(12).reshape(2, 6)
    inputs = {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": 0 * ids + 1}
    model.fit(inputs, np.array([0, 1]), epochs=steps, verbose=0)


def state(model):
    variables = [*model.variables, *model.optimizer.variables]
    return [keras.ops.convert_to_numpy(variable.value).copy() for variable in variables]


def assert_same_state(values, expected):
    assert len(values) == len(expected)
    for value, other in zip(values, expected, strict=True):
        np.testing.assert_array_equal(value, other)


def test_all_state_is_kept_in_the_middle_of_an_accumulation_too(tmp_path):
    model = make_model()
    train(model, 3)
    checkpoints.save(tmp_path, 3, model, {"log_bytes": 5}, keep=1)
    expected = state(model)
    names = {variable.name for variable in model.variables}
    assert "seed_generator_state" in names
    other = make_model()
    found = checkpoints.newest(tmp_path)
    assert (found.step, found.notes) == (3, {"log_bytes": 5})
    checkpoints.restore(other, found)
    assert_same_state(state(other), expected)
    # Accumulated gradients are among it.
    sums = [v for v in other.optimizer.variables if "accumul" in v.path]
    assert max(float(keras.ops.max(keras.ops.abs(v))) for v in sums) > 0


def test_the_last_ones_are_kept(tmp_path):
    model = make_model()
    for step in (2, 10, 9, 11):
        checkpoints.save(tmp_path, step, model, {}, keep=2)
    names = sorted(path.name for path in tmp_path.iterdir())
    suffixes = ("json", "safetensors")
    assert names == [f"step_{step:08d}.{suffix}" for step in (10, 11) for suffix in suffixes]


def cut(path):
    path.write_bytes(path.read_bytes()[:-100])


def change_a_byte(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("suffix", "damage"),
    [
        ("safetensors", cut),
        ("safetensors", change_a_byte),
        ("safetensors", lambda path: path.unlink()),
        ("json", cut),
        ("json", lambda path: path.write_text("{}")),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(tmp_path, suffix, damage):
    model = make_model()
    for step in (1, 2):
        checkpoints.save(tmp_path, step, model, {}, keep=2)
    damage(tmp_path / f"step_00000002.{suffix}")
    with pytest.warns(UserWarning, match="step 2 in .* is damaged"):
        assert checkpoints.newest(tmp_path).step == 1


def test_a_half_written_one_is_none(tmp_path):
    assert checkpoints.newest(tmp_path / "nothing") is None
    checkpoints.save(tmp_path, 1, make_model(), {}, keep=2)
    # What a kill leaves: a part under its temporary name, values without their hash.
    (tmp_path / ".step_00000002.json.part").write_text("{")
    (tmp_path / "step_00000002.safetensors").write_bytes(b"")
    assert checkpoints.newest(tmp_path).step == 1


def test_processes_with_data_of_their_own_have_notes_of_their_own(tmp_path, monkeypatch):
    model = make_model()

    def be(shard, shards=2):
        monkeypatch.setattr(distribution, "data_shard", lambda: (shard, shards))
        monkeypatch.setattr(distribution, "is_first_process", lambda: shard == 0)

    for step in (1, 2):
        for shard in (1, 0):
            be(shard)
            checkpoints.save(tmp_path, step, model, {"examples": 10 * step + shard}, keep=1)
    assert {path.name.split(".")[0] for path in tmp_path.iterdir()} == {"step_00000002"}
    for shard in (0, 1):
        be(shard)
        assert checkpoints.newest(tmp_path).notes == {"examples": 20 + shard}
    be(2, 3)
    assert checkpoints.newest(tmp_path).notes == {"examples": 20}
    (tmp_path / "step_00000002.shard_1.json").unlink()
    with pytest.warns(UserWarning, match="damaged"):
        assert checkpoints.newest(tmp_path) is None


def test_a_full_disk_is_said_and_the_older_checkpoint_stays(tmp_path, monkeypatch):
    model = make_model()
    checkpoints.save(tmp_path, 1, model, {}, keep=1)

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="step 2 could not be written: the disk is full"):
            checkpoints.save(tmp_path, 2, model, {}, keep=1)
    assert checkpoints.newest(tmp_path).step == 1
    assert len(list(tmp_path.iterdir())) == 2


def test_another_models_checkpoint_is_refused(tmp_path):
    checkpoints.save(tmp_path, 1, make_model(), {}, keep=1)
    with pytest.raises(ValueError, match="another model"):
        checkpoints.restore(make_model(hidden_dim=4), checkpoints.newest(tmp_path))


def test_the_hash_is_the_files(tmp_path):
    checkpoints.save(tmp_path, 1, make_model(), {}, keep=1)
    facts = json.loads((tmp_path / "step_00000001.json").read_text())
    content = (tmp_path / "step_00000001.safetensors").read_bytes()
    assert facts["sha256"] == hashlib.sha256(content).hexdigest()
