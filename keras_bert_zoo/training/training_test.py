"""The optimisers and their schedule against their formulas."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_bert_zoo.layers import BertEncoderBlock, MaskedLMHead
from keras_bert_zoo.training import WarmupLinearDecay, adamw, lamb

NOT_DECAYED = ("bias", "gamma", "beta")
WEIGHTS = np.array([1.0, -2.0, 0.5])
GRADIENTS = [np.array(g) for g in ([0.6, -0.5, 0.3], [0.1, 0.2, -0.7], [0.4, 0.4, 0.4])]


def running_means(gradients):
    """Yield Adam's running means of the gradient and its square, and how far each has come."""
    mean = square = 0
    for step, gradient in enumerate(gradients, 1):
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        yield mean, square, 1 - 0.9**step, 1 - 0.999**step


def adamw_formula(weights, gradients, rate, bias_correction=True):
    """AdamW, one weight vector: the authors' `AdamWeightDecayOptimizer`, or with the correction.

    The correction is a factor on the rate, as at the end of section 2 of Kingma and Ba 2015.
    """
    for mean, square, of_mean, of_square in running_means(gradients):
        correction = np.sqrt(of_square) / of_mean if bias_correction else 1
        update = correction * mean / (np.sqrt(square) + 1e-6)
        weights = weights - rate * (update + 0.01 * weights)
    return weights


def lamb_formula(weights, gradients, rate, bias_correction=True, scaled=True):
    """LAMB (You et al. 2020, algorithm 2, with phi the identity), one weight vector.

    Where it is not `scaled`, as a bias, it is not decayed either.
    """
    for mean, square, of_mean, of_square in running_means(gradients):
        if bias_correction:
            mean, square = mean / of_mean, square / of_square
        update = mean / (np.sqrt(square) + 1e-6)
        if scaled:
            update = update + 0.01 * weights
            update = update * np.linalg.norm(weights) / np.linalg.norm(update)
        weights = weights - rate * update
    return weights


FORMULAS = {adamw: adamw_formula, lamb: lamb_formula}


def constant(rate):
    """Return a schedule with the same rate at every step."""
    return keras.optimizers.schedules.PiecewiseConstantDecay([1], [rate, rate])


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


@pytest.mark.parametrize("make", [adamw, lamb])
def test_a_layer_s_share_of_the_rate_is_that_of_its_decay_too(make):
    rates = {"layer_1": 0.5, "layer_1/attention": 0.25}
    optimizer = saved_and_loaded(make(constant(0.1), clipnorm=None, layer_rates=rates))
    shares = {"layer_1/output": 0.5, "layer_1/attention": 0.25, "layer_10/output": 1}
    variables = []
    for path in shares:
        outer, inner = path.split("/")
        with keras.name_scope(outer), keras.name_scope(inner):
            variables.append(variable(WEIGHTS))
    for gradient in GRADIENTS:
        apply(optimizer, [gradient] * len(variables), variables)
    for found, share in zip(variables, shares.values(), strict=True):
        expected = FORMULAS[make](WEIGHTS, GRADIENTS, 0.1 * share)
        np.testing.assert_allclose(ops.convert_to_numpy(found), expected, rtol=1e-5)


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
    assert config["bias_correction"] and config["gradient_accumulation_steps"] is None
    assert config["weight_decay"] == 0.01
    assert (config["beta_1"], config["beta_2"], config["epsilon"]) == (0.9, 0.999, 1e-6)
    assert config["global_clipnorm"] == 1.0
    schedule = optimizer._learning_rate
    assert schedule.get_config() == {"peak": 5e-5, "warmup": 0.1, "total_steps": None}


@pytest.mark.parametrize("through", [lambda optimizer: optimizer, saved_and_loaded])
@pytest.mark.parametrize("bias_correction", [True, False])
@pytest.mark.parametrize("make", FORMULAS)
def test_steps_follow_the_formula(make, bias_correction, through):
    optimizer = through(make(0.1, bias_correction=bias_correction))
    kernel = variable(WEIGHTS)
    for gradient in GRADIENTS:
        apply(optimizer, [gradient], [kernel])
    expected = FORMULAS[make](WEIGHTS, GRADIENTS, 0.1, bias_correction)
    np.testing.assert_allclose(ops.convert_to_numpy(kernel), expected, rtol=2e-4)


def test_lamb_neither_decays_nor_scales_a_bias():
    optimizer, bias = lamb(0.1), variable(WEIGHTS, "bias")
    for gradient in GRADIENTS:
        apply(optimizer, [gradient], [bias])
    expected = lamb_formula(WEIGHTS, GRADIENTS, 0.1, scaled=False)
    np.testing.assert_allclose(ops.convert_to_numpy(bias), expected, rtol=2e-4)


def test_lamb_moves_a_weight_that_is_zero():
    optimizer, kernel = lamb(0.1), variable([0.0, 0.0])
    apply(optimizer, [[0.3, -0.4]], [kernel])
    np.testing.assert_allclose(ops.convert_to_numpy(kernel), [-0.1, 0.1], rtol=2e-4)


@pytest.mark.parametrize("make", FORMULAS)
def test_each_weight_is_changed_on_its_own(make):
    optimizer = make(0.1)
    starts, gradients = (WEIGHTS, 5 * WEIGHTS), (0.1 * GRADIENTS[0], 0.2 * GRADIENTS[1])
    variables = [variable(start, f"kernel_{i}") for i, start in enumerate(starts)]
    apply(optimizer, gradients, variables)
    for weight, start, gradient in zip(variables, starts, gradients, strict=True):
        expected = FORMULAS[make](start, [gradient], 0.1)
        np.testing.assert_allclose(ops.convert_to_numpy(weight), expected, rtol=2e-4)


@pytest.mark.parametrize("make", FORMULAS)
def test_accumulated_gradients_make_one_step_of_their_mean(make):
    optimizer = make(0.1, gradient_accumulation_steps=3)
    kernel = variable(WEIGHTS)
    # The means have the norms 2.5 and 0.25; one batch alone has more than 1 in either group.
    groups = [
        [np.array(g) for g in ([6.0, 0.0, 0.0], [0.0, 4.5, 0.0], [0.0, 0.0, 0.0])],
        [np.array(g) for g in ([3.6, 0.0, 0.0], [-3.0, 0.0, 0.0], [0.0, 0.45, 0.0])],
    ]
    for batch, gradient in enumerate(groups[0] + groups[1], 1):
        before = ops.convert_to_numpy(kernel).copy()
        apply(optimizer, [gradient], [kernel])
        changed = not np.array_equal(before, ops.convert_to_numpy(kernel))
        assert changed == (batch % 3 == 0)
        assert int(optimizer.iterations) == batch // 3
    clipped = [np.array([0.8, 0.6, 0.0]), np.array([0.2, 0.15, 0.0])]
    expected = FORMULAS[make](WEIGHTS, clipped, 0.1)
    np.testing.assert_allclose(ops.convert_to_numpy(kernel), expected, rtol=2e-4)


@pytest.mark.parametrize("make", FORMULAS)
def test_the_schedule_counts_steps_not_accumulated_batches(make):
    schedule = WarmupLinearDecay(1.0, warmup=0.5, total_steps=4)
    optimizer = saved_and_loaded(make(schedule, gradient_accumulation_steps=2))
    kernel = variable(WEIGHTS)
    rates = []
    for _ in range(8):
        rates.append(float(optimizer.learning_rate))
        apply(optimizer, [GRADIENTS[0]], [kernel])
    assert rates == [0, 0, 0.5, 0.5, 1, 1, 0.5, 0.5]


@pytest.mark.parametrize("make", FORMULAS)
@pytest.mark.parametrize(
    "arguments",
    [
        {"weight_decay": -0.1},
        {"beta_1": 1.0},
        {"beta_2": None},
        {"clipnorm": -1.0},
        {"gradient_accumulation_steps": 0},
        {"gradient_accumulation_steps": 1.5},
    ],
)
def test_wrong_optimiser_arguments_are_named(make, arguments):
    (name,) = arguments
    with pytest.raises(ValueError, match=name):
        make(1e-3, **arguments)


def test_biases_alone_can_be_trained():
    optimizer, bias = adamw(0.1), variable([1.0], "bias")
    apply(optimizer, [[0.5]], [bias])
    np.testing.assert_allclose(ops.convert_to_numpy(bias), [0.9], rtol=2e-4)


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


def test_gradients_may_be_turned_over_and_shared_and_stay_as_they_were():
    optimizer = adamw(0.1)
    variables = [variable(np.ones((2, 3)), name) for name in ("kernel_a", "kernel_b")]
    values = np.array([[3.0, 0.0], [0.0, 4.0], [1.0, 2.0]], "float32")
    gradient = ops.transpose(ops.convert_to_tensor(values))
    optimizer.apply([gradient, gradient], variables)
    np.testing.assert_array_equal(ops.convert_to_numpy(gradient), values.T)
    clipped = values.T / np.sqrt(2 * np.sum(values**2))
    expected = adamw_formula(np.ones((2, 3)), [clipped], 0.1)
    for found in variables:
        np.testing.assert_allclose(ops.convert_to_numpy(found), expected, rtol=2e-4)


def test_an_infinite_gradient_shows_in_every_weight():
    optimizer = adamw(0.1)
    variables = [variable([1.0], "kernel_a"), variable([2.0], "kernel_b")]
    apply(optimizer, [[np.inf], [0.5]], variables)
    assert np.isnan([ops.convert_to_numpy(v) for v in variables]).all()


def test_weights_that_lie_in_memory_by_columns_are_trained_right():
    layer = keras.layers.Dense(2, kernel_initializer="orthogonal")
    layer.build((None, 3))
    before = ops.convert_to_numpy(layer.kernel)
    gradients = [np.array([[0.1, 0.2], [0.3, -0.1], [0.2, 0.5]]) * sign for sign in (1, -1)]
    optimizer = adamw(0.1)
    for gradient in gradients:
        apply(optimizer, [gradient], [layer.kernel])
    expected = adamw_formula(before, gradients, 0.1)
    np.testing.assert_allclose(ops.convert_to_numpy(layer.kernel), expected, rtol=1e-3)
    mean = next(v for v in optimizer.variables if "momentum" in v.path)
    expected = 0.09 * gradients[0] + 0.1 * gradients[1]
    np.testing.assert_allclose(ops.convert_to_numpy(mean), expected, rtol=1e-5)


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
