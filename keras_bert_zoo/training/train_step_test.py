"""Whole training steps: mixed precision, accumulated gradients."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_bert_zoo.models import BertBackbone, BertPretrainer, BertTextClassifier
from keras_bert_zoo.training import WarmupLinearDecay, adamw, lamb


def backbone(dtype=None, dropout=0.0):
    return BertBackbone(
        vocabulary_size=50,
        num_layers=2,
        num_heads=2,
        hidden_dim=16,
        intermediate_dim=32,
        dropout=dropout,
        attention_dropout=dropout,
        dtype=dtype,
    )


def inputs(rows, length=10):
    rng = np.random.default_rng(0)
    return {
        "token_ids": rng.integers(0, 50, (rows, length)),
        "segment_ids": rng.integers(0, 2, (rows, length)),
        "padding_mask": np.ones((rows, length), "int32"),
    }


def constant(rate):
    """Return a schedule with the same rate at every step."""
    return keras.optimizers.schedules.PiecewiseConstantDecay([1], [rate, rate])


def weights_of(model):
    return [ops.convert_to_numpy(weight).copy() for weight in model.trainable_variables]


def float_dtypes(variables):
    dtypes = {keras.backend.standardize_dtype(variable.dtype) for variable in variables}
    return {dtype for dtype in dtypes if "float" in dtype}


# LAMB's steps are shares of a weight's length, so its rate is higher.
@pytest.mark.parametrize(
    ("policy", "make", "rate"),
    [
        ("mixed_bfloat16", lamb, 1e-1),
        ("mixed_float16", adamw, 1e-2),
        pytest.param("mixed_bfloat16", adamw, 1e-2, marks=pytest.mark.slow),
        pytest.param("mixed_float16", lamb, 1e-1, marks=pytest.mark.slow),
    ],
)
def test_mixed_precision_trains_with_weights_and_moments_in_float32(policy, make, rate):
    keras.utils.set_random_seed(0)
    model = BertPretrainer(backbone(policy, dropout=0.1))
    model.compile(optimizer=make(constant(rate), gradient_accumulation_steps=2))
    batch = {**inputs(16), "mask_positions": np.tile([1, 4, 7], (16, 1))}
    labels = {
        "masked_lm": np.take_along_axis(batch["token_ids"], batch["mask_positions"], 1),
        "next_sentence": np.arange(16) % 2,
    }
    losses = model.fit(batch, labels, batch_size=8, epochs=15, verbose=0).history["loss"]
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0] - 0.3
    assert float_dtypes(model.trainable_variables) == {"float32"}
    assert float_dtypes(model.optimizer.variables) == {"float32"}
    # A batch that overflows in float16, as one may at the first scale, is left out.
    assert 13 <= int(model.optimizer.iterations) <= 15


def test_an_overflow_in_float16_halves_the_scale_and_changes_nothing_else():
    model = BertTextClassifier(backbone("mixed_float16"), 2)
    batch, labels = inputs(4), np.array([0, 1, 0, 1])
    optimizer = adamw(constant(1e-2))
    scaled = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=2.0**15)
    # A mean over the entries grows with the weights, unlike the default loss.
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=scaled, loss=loss)
    model.train_on_batch(batch, labels)
    before = weights_of(model)
    # The scaled loss is over 65504, the largest float16.
    model.train_on_batch(batch, labels, sample_weight=np.full(4, 1e4))
    assert float(scaled.dynamic_scale) == 2.0**14
    assert int(optimizer.iterations) == 1
    for weight, start in zip(weights_of(model), before, strict=True):
        np.testing.assert_array_equal(weight, start)
    model.train_on_batch(batch, labels)
    assert int(optimizer.iterations) == 2


@pytest.mark.parametrize(
    ("make", "rate"), [(adamw, 1e-2), pytest.param(lamb, 1e-1, marks=pytest.mark.slow)]
)
def test_accumulated_batches_of_a_size_train_as_the_large_batch(make, rate):
    batch, labels = inputs(12), np.arange(12) % 2
    trained = []
    for steps in (1, 3):
        keras.utils.set_random_seed(0)
        model = BertTextClassifier(backbone(), 2)
        model.compile(optimizer=make(constant(rate), gradient_accumulation_steps=steps))
        start = weights_of(model)
        model.fit(batch, labels, batch_size=12 // steps, epochs=3, shuffle=False, verbose=0)
        assert int(model.optimizer.iterations) == 3
        trained.append(weights_of(model))
    pairs = zip(trained[0], start, strict=True)
    assert np.median([np.abs(weight - before).max() for weight, before in pairs]) > 1e-2
    for weight, accumulated in zip(*trained, strict=True):
        # Adam divides by a gradient's size, so a nearly zero gradient's rounding shows.
        np.testing.assert_allclose(accumulated, weight, atol=2e-4)


def test_a_saved_model_goes_on_in_the_middle_of_an_accumulation(tmp_path):
    batch, labels = inputs(8), np.arange(8) % 2
    keras.utils.set_random_seed(0)
    model = BertTextClassifier(backbone(), 2)
    schedule = WarmupLinearDecay(1e-2, warmup=0.0, total_steps=4)
    model.compile(optimizer=adamw(schedule, bias_correction=False, gradient_accumulation_steps=2))
    for _ in range(3):
        model.train_on_batch(batch, labels)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for each in (model, loaded):
        each.train_on_batch(batch, labels)
    assert int(loaded.optimizer.iterations) == 2
    for weight, expected in zip(weights_of(loaded), weights_of(model), strict=True):
        np.testing.assert_allclose(weight, expected, atol=1e-6)
