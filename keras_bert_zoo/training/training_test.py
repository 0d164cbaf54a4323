"""The optimiser and its schedule against their formulas."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_bert_zoo.layers import BertEncoderBlock, MaskedLMHead
from keras_bert_zoo.training import WarmupLinearDecay, adamw

NOT_DECAYED = ("bias", "gamma", "beta")


def adamw_formula(weights, gradients, rate):
    """AdamW (Loshchilov and Hutter 2019, algorithm 2) with BERT's constants, one weight vector."""
    mean, square = np.zeros_like(weights), np.zeros_like(weights)
    for step, gradient in enumerate(gradients, 1):
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        unbiased_mean, unbiased_square = mean / (1 - 0.9**step), square / (1 - 0.999**step)
        weights = weights - rate * (
            unbiased_mean / (np.sqrt(unbiased_square) + 1e-6) + 0.01 * weights
        )
    return weights


def variable(values, name="kernel"):
    values = np.asarray(values, "float32")
    return keras.Variable(values, name=name)


def apply(optimizer, gradients, variables):
    optimizer.apply([ops.convert_to_tensor(g, "float32") for g in gradients], variables)


def saved_and_loaded(optimizer):
    return keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(optimizer))


@pytest.mark.parametrize(
    ("warmup", "rates"),
    [
        (0.2, [0, 0.5, 1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8, 0, 0]),
        (0.0, [1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0, 0]),
        (0.5, [0, 0.2, 0.4, 0.6, 0.8, 1, 0.8, 0.6, 0.4, 0.2, 0, 0]),
    ],
)
def test_the_rate_climbs_and_falls_in_straight_lines(warmup, rates):
    schedule = WarmupLinearDecay(3.0, warmup=warmup, total_steps=10)
    measured = [float(schedule(step)) for step in range(12)]
    np.testing.assert_allclose(measured, 3 * np.array(rates), atol=1e-6)


def test_the_paper_s_pretraining_schedule():
    schedule = WarmupLinearDecay(1e-4, warmup=0.01, total_steps=1_000_000)
    assert float(schedule(5_000)) == pytest.approx(0.5e-4)
    assert float(schedule(10_000)) == pytest.approx(1e-4)
    assert float(schedule(505_000)) == pytest.approx(0.5e-4)
    assert float(schedule(1_000_000)) == 0


def test_without_a_length_each_fit_has_a_climb_of_its_own():
    schedule = WarmupLinearDecay(1.0, warmup=0.5)
    assert float(schedule(0)) == float(schedule(10**6)) == 1
    for first_step in (0, 7):
        schedule.begin_fit(first_step, 4)
        rates = [float(schedule(first_step + step)) for step in range(5)]
        assert rates == [0, 0.5, 1, 0.5, 0]


def test_a_length_given_is_kept_over_fits():
    schedule = WarmupLinearDecay(1.0, warmup=0.5, total_steps=4)
    schedule.begin_fit(2, 100)
    assert [float(schedule(step)) for step in range(5)] == [0, 0.5, 1, 0.5, 0]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"peak": 0}, "peak"),
        ({"peak": -1.0}, "peak"),
        ({"peak": 1.0, "warmup": 1.0}, "warmup"),
        ({"peak": 1.0, "warmup": -0.1}, "warmup"),
        ({"peak": 1.0, "total_steps": 0}, "total_steps"),
    ],
)
def test_wrong_schedule_arguments_are_named(arguments, name):
    with pytest.raises(ValueError, match=name):
        WarmupLinearDecay(**arguments)


def test_the_defaults_are_the_fine_tuning_ones():
    optimizer = saved_and_loaded(adamw())
    config = optimizer.get_config()
    assert config["weight_decay"] == 0.01
    assert (config["beta_1"], config["beta_2"], config["epsilon"]) == (0.9, 0.999, 1e-6)
    assert config["global_clipnorm"] == 1.0
    schedule = optimizer._learning_rate
    assert schedule.get_config() == {"peak": 5e-5, "warmup": 0.1, "total_steps": None}


@pytest.mark.parametrize("through", [lambda optimizer: optimizer, saved_and_loaded])
def test_steps_follow_the_formula(through):
    weights = np.array([1.0, -2.0, 0.5])
    gradients = [np.array(g) for g in ([0.6, -0.5, 0.3], [0.1, 0.2, -0.7], [0.4, 0.4, 0.4])]
    optimizer, kernel = through(adamw(0.1)), variable(weights)
    for gradient in gradients:
        apply(optimizer, [gradient], [kernel])
    expected = adamw_formula(weights, gradients, 0.1)
    np.testing.assert_allclose(ops.convert_to_numpy(kernel), expected, rtol=2e-4)


def test_the_gradients_norm_over_all_weights_is_clipped_at_one():
    optimizer = adamw(0.1)
    variables = [variable([1.0], "kernel_a"), variable([2.0], "kernel_b")]
    # The first pair has the norm 50, the second 0.5: only the first is scaled, to (0.6, 0.8).
    for gradients in (([30.0], [40.0]), ([0.3], [-0.4])):
        apply(optimizer, gradients, variables)
    expected = adamw_formula(
        np.array([1.0, 2.0]), [np.array([0.6, 0.8]), np.array([0.3, -0.4])], 0.1
    )
    measured = np.concatenate([ops.convert_to_numpy(v) for v in variables])
    np.testing.assert_allclose(measured, expected, rtol=2e-4)


@pytest.mark.parametrize("through", [lambda optimizer: optimizer, saved_and_loaded])
def test_only_kernels_and_tables_decay(through):
    block = BertEncoderBlock(hidden_dim=4, num_heads=2, intermediate_dim=8)
    block.build((None, None, 4))
    head = MaskedLMHead(keras.layers.Embedding(10, 4))
    head.build((None, None, 4))
    variables = [*block.trainable_variables, *head.trainable_variables]
    for weight in variables:
        weight.assign(ops.ones(weight.shape))
    apply(through(adamw(0.1)), [np.zeros(v.shape) for v in variables], variables)
    decayed = {v.name for v in variables} - set(NOT_DECAYED)
    assert decayed == {"kernel", "embeddings"}
    for weight in variables:
        expected = 1.0 if weight.name in NOT_DECAYED else 1 - 0.1 * 0.01
        np.testing.assert_allclose(
            ops.convert_to_numpy(weight), expected, rtol=1e-7, err_msg=weight.path
        )
