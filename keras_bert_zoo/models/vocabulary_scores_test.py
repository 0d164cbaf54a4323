"""Loss and accuracy over a vocabulary are those of their definitions."""

import keras
import numpy as np
import pytest

from keras_bert_zoo.models.vocabulary_scores import VocabularyAccuracy, VocabularyCrossentropy


def scores(spread=1.0):
    rng = np.random.default_rng(0)
    logits = spread * rng.normal(size=(3, 4, 50)).astype("float32")
    return logits, rng.integers(0, 50, (3, 4)), rng.random((3, 4)).astype("float32")


@pytest.mark.parametrize("spread", [1.0, 1000.0])
def test_the_loss_is_the_cross_entropy(spread):
    logits, labels, weights = scores(spread)
    exact = logits.astype("float64")
    highest = exact.max(-1, keepdims=True)
    log_sums = np.log(np.exp(exact - highest).sum(-1)) + highest[..., 0]
    losses = log_sums - np.take_along_axis(exact, labels[..., None], -1)[..., 0]
    loss = VocabularyCrossentropy(reduction="mean_with_sample_weight")
    np.testing.assert_allclose(
        float(loss(labels, logits, weights)), np.average(losses, weights=weights), rtol=1e-5
    )


def test_the_gradient_is_shares_less_the_label():
    logits, labels, weights = scores()
    exact = np.exp(logits.astype("float64"))
    expected = exact / exact.sum(-1, keepdims=True) - np.eye(50)[labels]
    expected *= weights[..., None] / weights.sum()
    # The gradient of the bias that a layer of nothing else adds to the logits.
    inputs = keras.Input((4, 50))
    bias = keras.layers.EinsumDense("abc,cd->abd", (4, 50), bias_axes="bd", name="bias")
    model = keras.Model(inputs, bias(inputs))
    bias.kernel.assign(np.eye(50))
    loss = VocabularyCrossentropy(reduction="mean_with_sample_weight")
    model.compile(optimizer=keras.optimizers.SGD(1.0), loss=loss)
    model.train_on_batch(logits, labels, weights)
    moved = -keras.ops.convert_to_numpy(bias.bias)
    np.testing.assert_allclose(moved, expected.sum(0), atol=1e-6)


def test_accuracy_counts_the_first_of_the_best():
    logits = np.array([[0.0, 2.0, 1.0], [3.0, 0.0, -1.0], [0.0, -1.0, -2.0]])
    accuracy = VocabularyAccuracy()
    accuracy.update_state([1, 1, 0], logits, [1.0, 1.0, 2.0])
    assert float(accuracy.result()) == 0.75


def test_both_come_back_from_their_configs():
    for thing in (VocabularyAccuracy(), VocabularyCrossentropy()):
        again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(thing))
        assert type(again) is type(thing)
        assert again.name == thing.name
