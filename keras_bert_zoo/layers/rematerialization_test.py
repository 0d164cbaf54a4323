"""What is computed again is what was computed, and was not kept."""

import keras
import numpy as np
import pytest

from keras_bert_zoo.layers import BertEncoderBlock
from keras_bert_zoo.models import BertBackbone, BertTextClassifier

LENGTH, WIDTH, LAYERS = 16, 32, 2


def blocks(rematerialize, dropout=0.1, dtype=None):
    return [
        BertEncoderBlock(
            WIDTH,
            2,
            4 * WIDTH,
            dropout=dropout,
            attention_dropout=dropout,
            rematerialize=rematerialize,
            dtype=dtype,
        )
        for _ in range(LAYERS)
    ]


def trained(rematerialize, dropout=0.1, dtype=None):
    """Return the losses and the weights of a stack that `fit` has trained on noise."""
    keras.utils.set_random_seed(0)
    states = keras.Input((LENGTH, WIDTH))
    mask = keras.Input((LENGTH,), dtype="int32")
    x = states
    for block in blocks(rematerialize, dropout, dtype):
        x = block(x, mask)
    model = keras.Model([states, mask], keras.layers.Dense(1)(x[:, 0]))
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
    rng = np.random.default_rng(0)
    data = rng.normal(size=(24, LENGTH, WIDTH)), rng.integers(0, 2, (24, LENGTH))
    labels = rng.normal(size=24)
    # PyTorch's dropout draws from the global generator.
    keras.utils.set_random_seed(1)
    history = model.fit(data, labels, batch_size=8, epochs=2, shuffle=False, verbose=0)
    return history.history["loss"], model.get_weights()


@pytest.mark.parametrize(
    ("dropout", "dtype", "tolerance"),
    [(0.0, None, 1e-6), (0.1, None, 1e-6), (0.1, "mixed_bfloat16", 1e-2)],
)
def test_training_is_the_same_to_the_dropout_masks(dropout, dtype, tolerance):
    losses, weights = trained(False, dropout, dtype)
    again_losses, again_weights = trained(True, dropout, dtype)
    np.testing.assert_allclose(again_losses, losses, rtol=tolerance)
    for weight, again in zip(weights, again_weights, strict=True):
        np.testing.assert_allclose(again, weight, atol=tolerance)


def test_dropout_was_in_force():
    assert abs(trained(True, 0.1)[0][1] - trained(True, 0.0)[0][1]) > 1e-3


# What of a layer's activations is kept for the gradients, by each backend's own account.


def kept_by_jax(stack, x, mask):
    """Count the bytes that the function which computes the gradients holds."""
    import jax

    fixed = [[variable.value for variable in block.non_trainable_variables] for block in stack]

    def run(x, weights):
        for block, values, others in zip(stack, weights, fixed, strict=True):
            x, _ = block.stateless_call(values, others, x, mask, training=True)
        return x

    weights = [[variable.value for variable in block.trainable_variables] for block in stack]
    gradients = jax.eval_shape(lambda *inputs: jax.vjp(run, *inputs)[1], x, weights)
    weight_bytes = sum(weight.nbytes for weight in jax.tree.leaves(weights))
    return (
        sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(gradients)) - weight_bytes
    )


def kept_by_torch(stack, x, mask):
    """Count the bytes of the tensors that autograd saves, each once."""
    import torch

    saved = {}

    def pack(tensor):
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    weights = {variable.value.data_ptr() for block in stack for variable in block.variables}
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        for block in stack:
            x = block(x, mask, training=True)
            saved[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
    return sum(size for pointer, size in saved.items() if pointer not in weights)


@pytest.mark.parametrize("kept", [kept_by_jax, kept_by_torch])
def test_of_each_layer_only_the_input_is_kept(kept):
    if not kept.__name__.endswith(keras.backend.backend()):
        pytest.skip("another backend's account")
    x = keras.ops.ones((8, LENGTH, WIDTH))
    mask = keras.ops.ones((8, LENGTH), dtype="int32")
    layer_input = 8 * LENGTH * WIDTH * 4
    sizes = []
    for rematerialize in (False, True):
        stack = blocks(rematerialize)
        for block in stack:
            block.build(x.shape)
        sizes.append(kept(stack, x, mask))
    assert sizes[0] > 10 * LAYERS * layer_input
    # And the masks and seeds, which are small.
    assert sizes[1] < 1.1 * (LAYERS + 1) * layer_input


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow's graph")
def test_the_graph_of_the_gradients_runs_each_layer_again():
    import tensorflow as tf

    x, mask = tf.ones((8, LENGTH, WIDTH)), tf.ones((8, LENGTH), "int32")
    runs = []
    for rematerialize in (False, True):
        stack = blocks(rematerialize)
        for block in stack:
            block.build(x.shape)

        @tf.function
        def gradients(x, stack=stack):
            with tf.GradientTape() as tape:
                for block in stack:
                    x = block(x, mask, training=True)
                loss = tf.reduce_sum(x)
            return tape.gradient(loss, stack[0].attention.qkv.kernel.value)

        operations = [
            operation.type
            for operation in gradients.get_concrete_function(x).graph.get_operations()
        ]
        runs.append(operations.count("Softmax"))
    assert runs == [LAYERS, 2 * LAYERS]


def small_backbone(**options):
    return BertBackbone(
        vocabulary_size=20,
        num_layers=2,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=16,
        **options,
    )


def test_a_backbone_keeps_the_choice_and_may_change_it():
    backbone = BertBackbone.from_config(small_backbone(rematerialize=True).get_config())
    assert backbone.rematerialize
    assert all(layer.rematerialize for layer in backbone.encoder_layers)
    backbone.rematerialize = False
    assert backbone.get_config()["rematerialize"] is False
    assert not any(layer.rematerialize for layer in backbone.encoder_layers)


def test_a_frozen_backbone_s_layers_stay_as_they_are():
    backbone = small_backbone(rematerialize=True)
    classifier = BertTextClassifier(backbone, 2)
    backbone.encoder_layers[0].trainable = False
    frozen, free = (layer.intermediate_dense.kernel for layer in backbone.encoder_layers)
    before = [keras.ops.convert_to_numpy(kernel).copy() for kernel in (frozen, free)]
    ids = np.ones((4, 6), "int32")
    inputs = {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": ids}
    classifier.fit(inputs, np.array([0, 1, 0, 1]), epochs=2, verbose=0)
    after = [keras.ops.convert_to_numpy(kernel) for kernel in (frozen, free)]
    np.testing.assert_array_equal(after[0], before[0])
    assert not np.array_equal(after[1], before[1])
