"""The layers against their formulas in NumPy, and at their edges."""

import math

import keras
import numpy as np
import pytest
from keras import ops

from keras_bert_zoo.layers import (
    BertEmbeddings,
    BertEncoderBlock,
    BertSelfAttention,
    MaskedLMHead,
)
from keras_bert_zoo.layers.common import activation_function

MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])


def states(seed=0, shape=(2, 5, 8), dtype="float32"):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def randomised(layer, *shapes, seed=0):
    """The layer, built, with weights large enough that every term counts."""
    layer.build(*shapes)
    rng = np.random.default_rng(seed)
    for weight in layer.weights:
        if "seed" not in weight.path:
            weight.assign(rng.normal(scale=0.5, size=weight.shape))
    return layer


def to_numpy(x):
    return ops.convert_to_numpy(ops.cast(x, "float32")).astype("float64")


def weights_of(layer):
    return [to_numpy(weight) for weight in layer.weights]


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def layer_norm(x, gamma, beta, epsilon=1e-12):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * gamma + beta


def gelu(x):
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def attention(layer, x, mask):
    """Vaswani et al. 2017, equation 1, head by head: (output, probabilities)."""
    kernel, bias = weights_of(layer.qkv)
    size = kernel.shape[0] // layer.num_heads
    contexts, probabilities = [], []
    for head in range(layer.num_heads):
        begin = head * 3 * size
        query, key, value = (
            x @ kernel[:, at : at + size] + bias[at : at + size]
            for at in (begin, begin + size, begin + 2 * size)
        )
        scores = query @ key.swapaxes(1, 2) / math.sqrt(size)
        seen = np.broadcast_to(mask[:, None, :] > 0, scores.shape)
        if layer.causal:
            seen = seen & np.tri(x.shape[1], dtype=bool)
        probabilities.append(softmax(np.where(seen, scores, -np.inf)))
        contexts.append(probabilities[-1] @ value)
    kernel, bias = weights_of(layer.output_dense)
    return np.concatenate(contexts, axis=-1) @ kernel + bias, np.stack(probabilities, axis=1)


def outputs_and_gradients(layer, x, mask, training):
    """The outputs, and the gradients of a weighted sum of them by the inputs and each weight."""
    direction = np.arange(x.shape[1] * x.shape[2], dtype="float32").reshape(1, *x.shape[1:])
    direction = ops.convert_to_tensor(direction)
    x, mask = ops.convert_to_tensor(x, layer.compute_dtype), ops.convert_to_tensor(mask)
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        def scalar(trainable, x):
            fixed = [v.value for v in layer.non_trainable_variables]
            out, _ = layer.stateless_call(trainable, fixed, x, mask, training=training)
            return ops.sum(ops.cast(out, "float32") * direction), out

        weights = [v.value for v in layer.trainable_variables]
        (by_weights, by_x), out = jax.jit(jax.grad(scalar, (0, 1), has_aux=True))(weights, x)
        return [out, by_x, *by_weights]
    if backend == "torch":
        x.requires_grad_()
        out = layer(x, mask, training=training)
        ops.sum(ops.cast(out, "float32") * direction).backward()
        return [out, x.grad, *(v.value.grad for v in layer.trainable_variables)]
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(x)
        out = layer(x, mask, training=training)
        scalar = ops.sum(ops.cast(out, "float32") * direction)
    return [out, *tape.gradient(scalar, [x, *(v.value for v in layer.trainable_variables)])]


# === Embeddings ===


def test_embeddings_are_the_normalised_sum_of_three_tables():
    layer = randomised(BertEmbeddings(10, 4, max_sequence_length=6, dropout=0.5), (None, None))
    tokens, segments = np.array([[2, 9, 5], [3, 3, 0]]), np.array([[0, 0, 1], [0, 1, 1]])
    token, segment, position = (
        to_numpy(getattr(layer, f"{name}_embedding").embeddings)
        for name in ("token", "segment", "position")
    )
    expected = layer_norm(
        token[tokens] + segment[segments] + position[:3], *weights_of(layer.layer_norm)
    )
    np.testing.assert_allclose(to_numpy(layer(tokens, segments)), expected, atol=1e-5)
    assert not np.allclose(to_numpy(layer(tokens, segments, training=True)), expected, atol=1e-2)


def test_a_length_over_the_position_table_is_refused_with_both_numbers():
    layer = BertEmbeddings(10, 4, max_sequence_length=6)
    assert layer(np.ones((1, 6), int), np.zeros((1, 6), int)).shape == (1, 6, 4)
    with pytest.raises(ValueError, match="(?s)7.*6"):
        layer(np.ones((1, 7), int), np.zeros((1, 7), int))


# === Self-attention ===


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("num_heads", [1, 4])
def test_attention_follows_the_formula(causal, num_heads):
    layer = randomised(BertSelfAttention(8, num_heads, causal=causal), (None, None, 8))
    expected, probabilities = attention(layer, states().astype("float64"), MASK)
    np.testing.assert_allclose(to_numpy(layer(states(), MASK)), expected, atol=1e-5)
    scores = to_numpy(layer.attention_scores(states(), MASK))
    np.testing.assert_allclose(scores, probabilities, atol=1e-6)
    assert (scores[1, :, :, 3:] == 0).all()


@pytest.mark.parametrize("causal", [False, True])
def test_without_dropout_training_is_inference(causal):
    layer = randomised(BertSelfAttention(8, 2, 0.0, causal), (None, None, 8))
    np.testing.assert_array_equal(
        to_numpy(layer(states(), MASK, training=True)), to_numpy(layer(states(), MASK))
    )


def test_dropout_acts_in_training_alone_and_keeps_the_mean():
    keras.utils.set_random_seed(0)
    layer = randomised(BertSelfAttention(8, 2, 0.25), (None, None, 8))
    x, mask = np.repeat(states()[1:], 4000, axis=0), np.repeat(MASK[1:], 4000, axis=0)
    expected, _ = attention(layer, states()[1:].astype("float64"), MASK[1:])
    outputs = to_numpy(layer(x, mask, training=True))
    spread = outputs.std(axis=0)
    assert (spread > 0.01).all()
    assert (np.abs(outputs.mean(axis=0) - expected[0]) < 5 * spread / math.sqrt(4000)).all()
    np.testing.assert_allclose(to_numpy(layer(x[:1], mask[:1])), expected, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 1e-9])
def test_states_at_some_positions_are_those_among_all(causal, dropout):
    layer = randomised(
        BertEncoderBlock(8, 2, 16, dropout=0.0, attention_dropout=dropout, causal=causal),
        (2, 5, 8),
    )
    positions = np.array([[4, 0], [1, 1]])
    pairs = np.broadcast_to(MASK[:, None, :], (2, 5, 5))
    for mask in (MASK, pairs):
        whole = to_numpy(layer(states(), mask, training=True))
        some = to_numpy(layer(states(), mask, ops.convert_to_tensor(positions), training=True))
        expected = np.take_along_axis(whole, positions[:, :, None], axis=1)
        np.testing.assert_allclose(some, expected, atol=1e-6)


@pytest.mark.parametrize("training", [False, True])
def test_hidden_keys_have_no_influence_at_all(training):
    changed = states()
    changed[1, 3:] = [[1e3] * 8, [-50.0] * 8]
    outputs = []
    for x in (states(), changed):
        keras.utils.set_random_seed(0)
        layer = randomised(BertSelfAttention(8, 2, 0.5), (None, None, 8))
        outputs.append(to_numpy(layer(x, MASK, training=training)))
    np.testing.assert_array_equal(outputs[0][0], outputs[1][0])
    np.testing.assert_array_equal(outputs[0][1, :3], outputs[1][1, :3])


def test_causal_attention_does_not_look_ahead():
    layer = randomised(BertSelfAttention(8, 2, causal=True), (None, None, 8))
    changed = states()
    changed[:, 2:] += 1
    before, after = to_numpy(layer(states(), MASK)), to_numpy(layer(changed, MASK))
    np.testing.assert_array_equal(before[:, :2], after[:, :2])
    assert (np.abs(before[:, 2] - after[:, 2]).max(axis=-1) > 0.01).all()


# === Encoder layer ===


def test_an_encoder_layer_follows_the_paper():
    layer = randomised(BertEncoderBlock(8, 2, 16), (None, None, 8))
    x = states().astype("float64")
    attended, _ = attention(layer.attention, x, MASK)
    x = layer_norm(x + attended, *weights_of(layer.attention_layer_norm))
    (inner_kernel, inner_bias), (outer_kernel, outer_bias) = (
        weights_of(part) for part in (layer.intermediate_dense, layer.output_dense)
    )
    transformed = gelu(x @ inner_kernel + inner_bias) @ outer_kernel + outer_bias
    expected = layer_norm(x + transformed, *weights_of(layer.output_layer_norm))
    np.testing.assert_allclose(to_numpy(layer(states(), MASK)), expected, atol=2e-5)


@pytest.mark.parametrize(
    ("dtype", "causal", "training"),
    [
        ("float32", False, False),
        ("float32", True, False),
        ("float32", False, True),
        ("float16", False, False),
        ("float16", False, True),
        ("bfloat16", False, False),
        ("bfloat16", False, True),
        ("mixed_float16", True, False),
        ("mixed_float16", False, True),
        ("mixed_bfloat16", True, False),
        ("mixed_bfloat16", False, True),
    ],
)
def test_a_row_of_padding_has_finite_outputs_and_gradients(dtype, causal, training):
    layer = BertEncoderBlock(8, 2, 16, causal=causal, dtype=dtype)
    layer.build((None, None, 8), (None, None))
    mask = np.array([[1, 1, 1, 0, 0], [0, 0, 0, 0, 0]])
    parts = outputs_and_gradients(layer, states(), mask, training)
    assert len(parts) == 2 + len(layer.trainable_variables)
    assert all(np.isfinite(to_numpy(part)).all() for part in parts)


# === Masked-LM head ===


def test_the_head_scores_with_the_tied_table():
    table = keras.layers.Embedding(10, 8)
    head = randomised(MaskedLMHead(table), (None, None, 8))
    positions = np.array([[4, 0], [1, 1]])
    embeddings = to_numpy(table.embeddings)
    kernel, bias = weights_of(head.dense)
    masked = np.take_along_axis(states().astype("float64"), positions[:, :, None], axis=1)
    masked = layer_norm(gelu(masked @ kernel + bias), *weights_of(head.layer_norm))
    expected = masked @ embeddings.T + to_numpy(head.bias)
    np.testing.assert_allclose(to_numpy(head(states(), positions)), expected, atol=2e-5)


def test_the_table_is_the_very_variable():
    table = keras.layers.Embedding(10, 8)
    head = MaskedLMHead(table)
    before = to_numpy(head(states(), np.array([[1], [2]])))
    assert sum(v is table.embeddings for v in head.trainable_variables) == 1
    assert sum(tuple(v.shape) == (10, 8) for v in head.variables) == 1
    table.embeddings.assign(ops.zeros((10, 8)))
    assert np.abs(before).max() > 0
    assert (to_numpy(head(states(), np.array([[1], [2]]))) == 0).all()


def test_only_the_masked_positions_count():
    head = randomised(MaskedLMHead(keras.layers.Embedding(10, 8)), (None, None, 8))
    changed = states()
    changed[:, [0, 2, 4]] = 7
    positions = np.array([[1, 3], [1, 3]])
    np.testing.assert_array_equal(
        to_numpy(head(states(), positions)), to_numpy(head(changed, positions))
    )


# === Activations ===


@pytest.mark.parametrize(
    ("name", "at_one", "at_minus_two"),
    [
        # x * Phi(x); Hendrycks and Gimpel 2016, and their tanh form.
        ("gelu", 0.8413447461, -0.0455002639),
        ("gelu_tanh", 0.8411919906, -0.0454023059),
        ("relu", 1.0, 0.0),
        ("silu", 0.7310585786, -0.2384058440),
        ("tanh", 0.7615941560, -0.9640275801),
    ],
)
def test_activations_have_their_published_values(name, at_one, at_minus_two):
    values = to_numpy(activation_function(name)(ops.convert_to_tensor([1.0, -2.0])))
    np.testing.assert_allclose(values, [at_one, at_minus_two], atol=2e-7)


# === Arguments ===


@pytest.mark.parametrize(
    ("layer", "arguments", "message"),
    [
        (BertSelfAttention, (30, 4), "hidden_dim=30.*num_heads=4"),
        (BertEncoderBlock, (30, 4, 8), "hidden_dim=30.*num_heads=4"),
        (BertSelfAttention, (8, 0), "num_heads.*0"),
        (BertSelfAttention, (8.0, 2), r"hidden_dim.*8\.0"),
        (BertSelfAttention, (8, 2, 1.5), r"attention_dropout.*1\.5"),
        (BertSelfAttention, (8, 2, -0.1), r"attention_dropout.*-0\.1"),
        (BertEncoderBlock, (8, 2, 16, "gelu", 1.5), r"dropout.*1\.5"),
        (BertEncoderBlock, (8, 2, 16, "swoosh"), "hidden_activation.*gelu_tanh.*swoosh"),
        (BertEncoderBlock, (8, 2, 0), "intermediate_dim.*0"),
        (BertEmbeddings, (0, 8), "vocabulary_size.*0"),
        (BertEmbeddings, (10, 8, 0), "max_sequence_length.*0"),
        (BertEmbeddings, (10, 8, 8, True), "num_segments.*True"),
        (BertEmbeddings, (10, 8, 8, 2, 1.0), r"dropout.*1\.0"),
    ],
)
def test_wrong_arguments_are_named(layer, arguments, message):
    with pytest.raises(ValueError, match=message):
        layer(*arguments)


@pytest.mark.parametrize(
    ("layer", "arguments"),
    [
        (BertEmbeddings, (10, 8)),
        (BertSelfAttention, (8, 2)),
        (BertEncoderBlock, (8, 2, 16)),
        (MaskedLMHead, (keras.layers.Embedding(10, 8),)),
    ],
)
def test_unknown_arguments_are_named(layer, arguments):
    with pytest.raises(ValueError, match="activation_dropout"):
        layer(*arguments, activation_dropout=0.1)


@pytest.mark.parametrize(
    ("layer", "arguments"),
    [
        (
            BertEmbeddings,
            {
                "vocabulary_size": 10,
                "hidden_dim": 8,
                "max_sequence_length": 6,
                "num_segments": 3,
                "dropout": 0.2,
                "layer_norm_epsilon": 1e-5,
                "dtype": "mixed_bfloat16",
            },
        ),
        (
            BertEncoderBlock,
            {
                "hidden_dim": 8,
                "num_heads": 4,
                "intermediate_dim": 6,
                "hidden_activation": "relu",
                "dropout": 0.2,
                "attention_dropout": 0.3,
                "layer_norm_epsilon": 1e-5,
                "causal": True,
                "dtype": "mixed_bfloat16",
            },
        ),
    ],
)
def test_layers_are_saved_with_their_arguments(layer, arguments):
    original = layer(**arguments)
    loaded = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(original))
    assert loaded.get_config() == original.get_config()
    for name, value in arguments.items():
        if name != "dtype":
            assert loaded.get_config()[name] == value
    assert loaded.dtype_policy.name == "mixed_bfloat16"
