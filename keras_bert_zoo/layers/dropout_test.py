"""Dropout by eight bits drops at its rate, keeps the mean and repeats with its seed."""

import keras
import numpy as np
import pytest

from keras_bert_zoo.layers.dropout import BertDropout, draws_bytes


def dropped(rate, calls, shape=(50, 21, 37), dtype="float32"):
    """Return what `calls` of a layer make of ones."""
    layer = BertDropout(rate, seed=1, dtype=dtype)
    ones = keras.ops.ones(shape, dtype)
    outputs = [layer(ones, training=True) for _ in range(calls)]
    return np.stack([keras.ops.convert_to_numpy(keras.ops.cast(x, "float32")) for x in outputs])


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.998])
def test_an_entry_goes_at_the_rate_and_the_mean_stays(rate):
    outputs = dropped(rate, calls=40)
    # A call's own rate is off by up to 1/256, evenly either way.
    error = np.sqrt((rate * (1 - rate) / outputs.size) + (1 / 256) ** 2 / 4 / len(outputs))
    assert abs((outputs == 0).mean() - rate) < 4 * error + (rate > 0.99) * 1 / 256
    if rate < 0.9:
        assert abs(outputs.mean() - 1) < 0.01


def test_what_stays_is_scaled_alike():
    (output,) = dropped(0.1, calls=1)
    kept = output[output != 0]
    assert kept.min() == kept.max()
    assert 1 / 0.91 < kept[0] < 1 / 0.89


def test_neighbours_go_independently():
    gone = dropped(0.25, calls=20, shape=(100, 64)).reshape(-1, 64) == 0
    together = np.mean(gone[:, :, None] & gone[:, None, :], axis=0)
    off_diagonal = together[~np.eye(64, dtype=bool)]
    # 2,000 rows: a pair's share has a standard error of 0.0054.
    np.testing.assert_allclose(off_diagonal, 0.0625, atol=0.03)


def test_the_same_seed_drops_the_same_entries_and_the_next_call_others():
    if not draws_bytes(keras.ops.ones(())):
        pytest.skip("off a processor PyTorch draws from one generator of its own")
    first, again = dropped(0.5, calls=2), dropped(0.5, calls=2)
    np.testing.assert_array_equal(first, again)
    assert np.mean(first[0] == first[1]) < 0.6


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="PyTorch has a global generator")
def test_without_a_seed_the_global_one_counts():
    layer, outputs = BertDropout(0.5), []
    for _ in range(2):
        keras.utils.set_random_seed(7)
        outputs.append(keras.ops.convert_to_numpy(layer(keras.ops.ones((5, 9)), training=True)))
    np.testing.assert_array_equal(*outputs)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_outputs_are_of_the_inputs_dtype(dtype):
    layer = BertDropout(0.5, dtype=dtype)
    output = layer(keras.ops.ones((2, 3), dtype), training=True)
    assert keras.backend.standardize_dtype(output.dtype) == dtype


def test_nothing_goes_outside_training():
    ones = keras.ops.ones((2, 3))
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(BertDropout(0.5)(ones)), 1)
