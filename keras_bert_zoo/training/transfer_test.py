"""What is trained changes, the rest stays to the bit, and a saved model knows which is which."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_bert_zoo.layers.lora import LoraDense
from keras_bert_zoo.models import BertBackbone, BertMaskedLM, BertTextClassifier, BertTextEmbedder
from keras_bert_zoo.models.saving_test import through_keras, through_preset
from keras_bert_zoo.training import (
    GradualUnfreezing,
    WarmupLinearDecay,
    adamw,
    load_lora_weights,
    merge_lora,
    parameter_counts,
    save_lora_weights,
    train_only,
)


def backbone(num_layers=2, dropout=0.0):
    keras.utils.set_random_seed(0)
    return BertBackbone(
        vocabulary_size=20,
        num_layers=num_layers,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=16,
        max_sequence_length=8,
        dropout=dropout,
        attention_dropout=0.0,
    )


def classifier(num_layers=2):
    return BertTextClassifier(backbone(num_layers), num_classes=2)


def batch(rows=4):
    ids = np.random.default_rng(0).integers(5, 20, (rows, 6))
    return {
        "token_ids": ids,
        "segment_ids": np.zeros_like(ids),
        "padding_mask": np.ones_like(ids),
    }


LABELS = np.array([0, 1, 1, 0])


def to_numpy(x):
    return ops.convert_to_numpy(x)


def values(model):
    return {weight.path: to_numpy(weight).copy() for weight in model.weights}


def changed(model, before):
    return {path for path, now in values(model).items() if (now != before[path]).any()}


def trainable(model):
    return [weight.path for weight in model.trainable_variables]


def parts(paths):
    return {path.split("/")[0] for path in paths}


@pytest.fixture(scope="module")
def untrained():
    return classifier()


# === What is trained ===

LAYERS = {"encoder_layer_0", "encoder_layer_1"}
HEAD = {"classifier_head"}


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("all", {"embeddings", *LAYERS, "pooler"} | HEAD),
        ("head", HEAD),
        ("top:0", {"pooler"} | HEAD),
        ("top:1", {"encoder_layer_1", "pooler"} | HEAD),
        ("top:2", {*LAYERS, "pooler"} | HEAD),
    ],
)
def test_each_way_trains_whole_parts(what, expected):
    model = classifier()
    train_only(model, "head")
    train_only(model, what)
    paths = trainable(model)
    assert parts(paths) == expected
    assert len(paths) == sum(path.split("/")[0] in expected for path in values(model))


def test_parameters_are_counted():
    # Per layer: 3 * 8 columns of queries, keys and values from 8; A (8, 2) and B (2, 24).
    embeddings, layer, head = (20 + 8 + 2 + 2) * 8, 4 * 72 + 2 * 16 + 8 * 16 + 16 + 16 * 8 + 8, 18
    pooler = 72
    model = classifier()
    total = embeddings + 2 * layer + pooler + head
    assert parameter_counts(model) == (total, total)
    train_only(model, "top:1")
    assert parameter_counts(model) == (layer + pooler + head, total)
    train_only(model, "lora:2")
    assert parameter_counts(model) == (2 * 2 * (8 + 24) + head, total + 2 * 2 * (8 + 24))


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("body", "'body'"),
        ("top", "'top'"),
        ("top:x", "'top:x'"),
        ("head:1", "'head:1'"),
        ("top:3", "2 layers"),
        ("lora:0", "rank"),
        (2, "Received: 2"),
    ],
)
def test_what_can_not_be_trained_is_said(untrained, what, said):
    with pytest.raises(ValueError, match=said):
        train_only(untrained, what)


def test_models_without_a_head_are_refused():
    encoder = backbone()
    with pytest.raises(ValueError, match="BertBackbone"):
        train_only(encoder, "head")
    with pytest.raises(ValueError, match="BertTextEmbedder"):
        train_only(BertTextEmbedder(encoder), "head")


def test_a_tied_table_stays_frozen_after_loading(tmp_path):
    model = BertMaskedLM(backbone(num_layers=1))
    train_only(model, "head")
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert parts(trainable(model)) == {"masked_lm_head"}
    assert trainable(loaded) == trainable(model)


# === Trained, saved, loaded ===


@pytest.mark.parametrize(
    ("what", "through"),
    [
        ("lora:2", through_preset),
        pytest.param("lora:2", through_keras, marks=pytest.mark.slow),
        pytest.param("top:0", through_keras, marks=pytest.mark.slow),
        pytest.param("head", through_preset, marks=pytest.mark.slow),
    ],
)
def test_what_is_trained_comes_back_and_the_rest_never_moves(tmp_path, what, through):
    model = classifier(num_layers=1)
    rates = {"encoder_layer_0": 0.5}
    model.compile(optimizer=adamw(WarmupLinearDecay(1e-2, total_steps=9), layer_rates=rates))
    train_only(model, what)
    before = values(model)
    for _ in range(2):
        model.train_on_batch(batch(), LABELS)
    assert changed(model, before) == set(trainable(model))
    loaded = through(model, tmp_path)

    np.testing.assert_array_equal(to_numpy(loaded(batch())), to_numpy(model(batch())))
    assert trainable(loaded) == trainable(model)
    assert loaded.backbone.lora == model.backbone.lora
    assert int(loaded.optimizer.iterations) == 2
    for one, other in zip(loaded.optimizer.variables, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(to_numpy(one), to_numpy(other))

    # Both train on alike, compiled anew too, and what is frozen stays.
    for each in (loaded, model):
        each.train_on_batch(batch(), LABELS)
    after = values(model)
    for path, now in values(loaded).items():
        np.testing.assert_allclose(now, after[path], atol=1e-6, err_msg=path)
    loaded.compile(optimizer=adamw(1e-2))
    assert trainable(loaded) == trainable(model)
    for found in (model, loaded):
        assert changed(found, before) == set(trainable(model))


# === LoRA ===


def test_lora_beside_dropout_comes_back(tmp_path):
    model = BertTextClassifier(backbone(1, dropout=0.1), num_classes=2)
    train_only(model, "lora:2")
    loaded = through_preset(model, tmp_path)
    np.testing.assert_array_equal(to_numpy(loaded(batch())), to_numpy(model(batch())))


def test_lora_adds_a_product_of_low_rank():
    rng = np.random.default_rng(0)
    kernel, a, b, x = (
        rng.normal(size=s).astype("float32") for s in ((4, 3), (4, 2), (2, 3), (5, 4))
    )
    bias = rng.normal(size=3).astype("float32")
    dense = LoraDense(3, activation="relu")
    dense.build((None, 4))
    dense.set_weights([kernel, bias])
    dense.enable_lora(2, lora_alpha=3)
    # B is 0 at first.
    np.testing.assert_allclose(to_numpy(dense(x)), np.maximum(x @ kernel + bias, 0), atol=1e-5)
    for factor, value in zip(dense.factors(), (a, b), strict=True):
        factor.assign(value)
    expected = np.maximum(x @ (kernel + 3 / 2 * a @ b) + bias, 0)
    np.testing.assert_allclose(to_numpy(dense(x)), expected, atol=1e-5)
    dense.merge_lora()
    np.testing.assert_allclose(to_numpy(dense(x)), expected, atol=1e-5)
    assert [variable.name for variable in dense.trainable_variables] == ["kernel", "bias"]


def test_setting_trainable_leaves_the_kernel_of_lora_frozen():
    encoder = backbone(num_layers=1)
    encoder.enable_lora(2, ["output", "intermediate"])
    names = {path.rpartition("/")[2] for path in trainable(encoder)}
    assert names == {"lora_kernel_a", "lora_kernel_b"}
    assert len(trainable(encoder)) == 6
    for layer in encoder.lora_layers():
        layer.trainable = False
        assert not layer.trainable_variables
        layer.trainable = True
        assert len(layer.trainable_variables) == 2


def test_lora_is_merged_and_its_weights_alone_are_saved(tmp_path):
    model = classifier()
    plain = values(model)
    train_only(model, "lora:2")
    with pytest.raises(ValueError, match="rank 2"):
        train_only(model, "all")
    rng = np.random.default_rng(0)
    for weight in model.trainable_variables:
        weight.assign(rng.normal(size=weight.shape))
    outputs = to_numpy(model(batch()))
    path = tmp_path / "small.safetensors"
    save_lora_weights(model, path)

    other = classifier()
    load_lora_weights(other, path)
    np.testing.assert_array_equal(to_numpy(other(batch())), outputs)
    assert trainable(other) == trainable(model)
    wide = BertTextClassifier(backbone(), num_classes=3)
    with pytest.raises(ValueError, match="another model.*classifier_head"):
        load_lora_weights(wide, path)
    assert wide.backbone.lora is None

    merge_lora(model)
    np.testing.assert_allclose(to_numpy(model(batch())), outputs, atol=1e-5)
    assert values(model).keys() == plain.keys()
    assert parts(trainable(model)) == HEAD
    with pytest.raises(ValueError, match="no LoRA"):
        merge_lora(model)


# === From epoch to epoch ===


def test_gradual_unfreezing_takes_effect_in_compiled_steps():
    model = classifier(num_layers=1)
    model.compile(optimizer=adamw(WarmupLinearDecay(1e-2, warmup=0.5)))
    epochs, rates = [], []

    class Watch(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            epochs.append(values(self.model))

        def on_train_batch_begin(self, step, logs=None):
            # On JAX the variables have no values in an epoch.
            if not step:
                rates.append(float(to_numpy(self.model.optimizer.learning_rate)))

    callbacks = [GradualUnfreezing(["head", "all"]), Watch()]
    model.fit(batch(), LABELS, batch_size=2, epochs=3, callbacks=callbacks, verbose=0)
    first, second = epochs[1], epochs[2]
    moved = [
        {p for p in a if (a[p] != b[p]).any()} for a, b in ((epochs[0], first), (first, second))
    ]
    assert parts(moved[0]) == HEAD
    assert moved[1] == set(trainable(model)) == set(first)
    # Six steps of one schedule: a climb over three, then the fall.
    np.testing.assert_allclose(rates, [0, 2e-2 / 3, 2e-2 / 3], rtol=1e-5)
    # The moments are of the last two epochs, and so is their correction.
    assert int(model.optimizer.iterations) == 4


def test_gradual_unfreezing_refuses_what_it_can_not_go_on_with(untrained):
    with pytest.raises(ValueError, match="body"):
        GradualUnfreezing(["body"])
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([1], [1.0, 1.0])
    untrained.compile(optimizer=adamw(schedule))
    callback = GradualUnfreezing()
    callback.set_model(untrained)
    with pytest.raises(ValueError, match="PiecewiseConstantDecay"):
        callback.on_train_begin()
