"""The switch, the layout of the weights, and a global batch cut into parts."""

import inspect
import re

import keras
import numpy as np
import pytest

from keras_bert_zoo import models
from keras_bert_zoo.training import distribution
from keras_bert_zoo.training.global_batch import Distribution, part_of
from keras_bert_zoo.training.jax_engine import LAYOUT

BACKEND = keras.backend.backend()
TASKS = [
    name
    for name in models.__all__
    if inspect.isclass(getattr(models, name))
    and issubclass(getattr(models, name), keras.Model)
    and name != "BertBackbone"
]


def backbone():
    return models.BertBackbone(
        vocabulary_size=51,
        num_layers=2,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=16,
        max_sequence_length=16,
        dropout=0.0,
        attention_dropout=0.0,
    )


def task(name):
    constructor = getattr(models, name)
    labels = (
        {"num_classes": 3} if "num_classes" in inspect.signature(constructor).parameters else {}
    )
    return constructor(backbone(), **labels)


def rules_of(path):
    return [axes for rule, axes in LAYOUT.items() if re.fullmatch(rule, path)]


@pytest.fixture
def shared_out(monkeypatch):
    """Let a test say how a global batch is shared out, without the engines."""

    def share_out(**parts):
        one = {"replicas": 1, "shards": 1, "shard": 0, "processes": 1, "process": 0}
        value = Distribution(**{**one, "reads_own_shard": False, **parts})
        monkeypatch.setattr(distribution, "_distribution", value)
        return value

    return share_out


# === The switch ===


def test_a_strategy_that_the_backend_has_not_is_refused():
    with pytest.raises(ValueError, match=f"`strategy` must be None or .* {BACKEND}.*'pipeline'"):
        distribution.distribute("pipeline")
    missing = {"jax": "mirrored", "tensorflow": "data+model", "torch": "data+model"}[BACKEND]
    with pytest.raises(ValueError, match=re.escape(repr(missing))):
        distribution.distribute(missing)
    assert distribution.distribution() is None


@pytest.mark.skipif(BACKEND != "torch", reason="of PyTorch alone")
def test_without_torchrun_its_command_is_shown():
    with pytest.raises(ValueError, match=r"torchrun --nproc-per-node.*RANK, WORLD_SIZE"):
        distribution.distribute("data")


@pytest.mark.skipif(BACKEND != "jax", reason="of JAX alone")
def test_devices_that_do_not_divide_are_refused():
    devices = len(keras.distribution.list_devices())
    with pytest.raises(ValueError, match=f"`model_devices` .* {devices}. Received: {devices + 1}"):
        distribution.distribute("data+model", model_devices=devices + 1)
    assert keras.distribution.distribution() is None


def test_one_process_reads_and_prints_everything(shared_out):
    assert distribution.data_shard() == (0, 1)
    assert distribution.is_first_process()
    shared_out(replicas=8, shards=2, shard=1, processes=2, process=1)
    assert distribution.data_shard() == (1, 2)
    assert distribution.verbose("auto") == 0


def test_only_the_first_process_saves(shared_out, tmp_path):
    model = task("BertMaskedLM")
    shared_out(processes=2, process=1)
    model.save_to_preset(tmp_path / "preset")
    assert not (tmp_path / "preset").exists()


# === The layout ===


@pytest.mark.parametrize("name", TASKS)
def test_every_weight_has_one_layout_of_its_rank(name):
    for weight in task(name).weights:
        if weight.name == "seed_generator_state":
            continue
        (axes,) = rules_of(weight.path)
        assert len(axes) == len(weight.shape), weight.path


def test_heads_and_units_are_split_and_one_sum_ends_each_half():
    (qkv,) = rules_of("encoder_layer_0/attention/qkv/kernel")
    (attention_output,) = rules_of("encoder_layer_0/attention/output/kernel")
    (intermediate,) = rules_of("encoder_layer_11/intermediate/kernel")
    (output,) = rules_of("encoder_layer_11/output/kernel")
    assert qkv == intermediate == (None, "model")
    assert attention_output == output == ("model", None)


# === Parts of a batch ===


def dataset(rows, batch_size):
    import tensorflow as tf

    x = {
        "token_ids": np.arange(rows * 3).reshape(rows, 3),
        "padding_mask": np.ones((rows, 3), int),
    }
    return tf.data.Dataset.from_tensor_slices((x, np.arange(rows))).batch(batch_size)


@pytest.mark.parametrize(("rows", "filled"), [(8, 8), (9, 12), (11, 12), (1, 4)])
def test_the_parts_together_are_the_batch_and_its_filling(shared_out, rows, filled):
    parts = []
    for shard in range(2):
        shares = shared_out(replicas=4, shards=2, shard=shard)
        parts += list(part_of(dataset(rows, 16), shares, 2, shard))
    labels = np.concatenate([y.numpy() for _, y in parts])
    ids = np.concatenate([x["token_ids"].numpy() for x, _ in parts])
    assert [len(y) for _, y in parts] == [filled // 2] * 2
    np.testing.assert_array_equal(labels[:rows], np.arange(rows))
    np.testing.assert_array_equal(ids[:rows].ravel(), np.arange(rows * 3))
    assert not any(x["padding_mask"].numpy()[y.numpy() >= rows].any() for x, y in parts)
    assert not ids[rows:].any()


def test_a_shard_of_its_own_is_only_filled_up(shared_out):
    shares = shared_out(replicas=4, shards=2, shard=1, reads_own_shard=True)
    ((x, y),) = part_of(dataset(3, 16), shares, 2, 1)
    assert y.numpy().tolist() == [0, 1, 2, 0]
    assert x["padding_mask"].numpy().any(axis=1).tolist() == [True, True, True, False]


def test_a_process_that_feeds_several_hosts_cuts_its_own_shard_for_them(shared_out):
    # A TPU pod's, on TensorFlow.
    shares = shared_out(replicas=4, reads_own_shard=True)
    labels = [
        y.numpy().tolist() for i in range(2) for _, y in part_of(dataset(6, 16), shares, 2, i)
    ]
    assert labels == [[0, 1, 2, 3], [4, 5, 0, 0]]


@pytest.mark.parametrize("reduction", ["sum", "sum_over_batch_size", "mean_with_sample_weight"])
def test_filling_counts_in_no_loss_and_no_metric(shared_out, reduction):
    model = task("BertMaskedLM")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)
    accuracy = keras.metrics.SparseCategoricalAccuracy
    model.compile(loss=loss, metrics=[accuracy("plain")], weighted_metrics=[accuracy("weighted")])
    shared_out()
    rng = np.random.default_rng(0)
    x = {
        "token_ids": rng.integers(5, 51, (3, 6)),
        "segment_ids": np.zeros((3, 6), int),
        "padding_mask": np.ones((3, 6), int),
        "mask_positions": rng.integers(0, 6, (3, 2)),
    }
    y, weights = rng.integers(0, 51, (3, 2)), np.array([[1.0, 0.5], [1, 0], [0.25, 1]], "float32")

    def results(filling):
        def fill(values):
            return np.pad(values, [(0, filling), (0, 0)])

        inputs = {name: fill(values) for name, values in x.items()}
        outputs = model(inputs)
        tensors = [keras.ops.convert_to_tensor(fill(v)) for v in (y, weights)]
        model.reset_metrics()
        loss = model.compute_loss(inputs, tensors[0], outputs, tensors[1])
        metrics = model.compute_metrics(inputs, tensors[0], outputs, tensors[1])
        values = (loss, metrics["plain"], metrics["weighted"])
        return [float(keras.ops.convert_to_numpy(value)) for value in values]

    np.testing.assert_allclose(results(5), results(0), rtol=1e-6)
