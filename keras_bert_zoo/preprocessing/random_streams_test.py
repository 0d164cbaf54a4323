"""Random numbers against the published generator."""

import numpy as np
import pytest
import tensorflow as tf

from keras_bert_zoo.preprocessing.random_streams import STREAMS, bits, integers, mix, uniform

pytestmark = pytest.mark.backend_free

GOLDEN = 0x9E3779B97F4A7C15


def splitmix64(state):
    """The finaliser of Steele, Lea and Flood 2014, figure 16, on unsigned 64-bit numbers."""
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) % 2**64
    return state ^ (state >> 31)


def signed(number):
    return number - 2**64 if number >= 2**63 else number


def test_the_generator_gives_the_published_numbers():
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    states = [(1234567 + k * GOLDEN) % 2**64 for k in (1, 2, 3)]
    assert [splitmix64(state) for state in states] == published
    assert [int(mix(signed(state))) % 2**64 for state in states] == published


def test_the_generator_on_many_numbers():
    numbers = [0, 1, 2**63 - 1, 2**63, 2**64 - 1, *(k * GOLDEN % 2**64 for k in range(1000))]
    mixed = mix(tf.constant([signed(n) for n in numbers], tf.int64)).numpy()
    assert [int(m) % 2**64 for m in mixed] == [splitmix64(n) for n in numbers]


def test_the_streams_of_a_key_deal_its_numbers_out_in_turn():
    key = tf.constant([1234567, -5], tf.int64)
    dealt = [bits(key, stream, [[0, 1, 2]], 63).numpy() for stream in range(STREAMS)]
    dealt = np.stack(dealt, axis=-1).reshape(2, -1)
    for row, state in enumerate([1234567, 2**64 - 5]):
        in_turn = [splitmix64((state + k * GOLDEN) % 2**64) >> 1 for k in range(1, 13)]
        assert dealt[row].tolist() == in_turn


def test_a_position_has_its_number_wherever_it_stands():
    key = tf.constant([7, 8], tf.int64)
    row = uniform(key, 1, tf.range(100)[None, :]).numpy()
    some = uniform(key, 1, [[99, 3], [50, 50]]).numpy()
    assert some.tolist() == [[row[0, 99], row[0, 3]], [row[1, 50], row[1, 50]]]


def test_uniform_numbers_are_below_one_and_even():
    numbers = uniform(tf.range(1000, dtype=tf.int64), 0, tf.range(1000)[None, :]).numpy()
    assert numbers.dtype == "float32"
    assert 0 <= numbers.min() < 1e-4 and 1 - 1e-4 < numbers.max() < 1
    cells = np.bincount((numbers.ravel() * 100).astype(int), minlength=100)
    chi_squared = ((cells - 10_000) ** 2 / 10_000).sum()
    assert abs(chi_squared - 99) < 4 * np.sqrt(2 * 99)


@pytest.mark.parametrize("limit", [1, 3, 119_547])
def test_integers_reach_both_ends_evenly(limit):
    numbers = integers(tf.range(1000, dtype=tf.int64), 2, tf.range(1000)[None, :], limit).numpy()
    assert (numbers.min(), numbers.max()) == (0, limit - 1)
    standard_error = np.sqrt((limit**2 - 1) / 12 / numbers.size)
    assert abs(numbers.mean() - (limit - 1) / 2) <= 4 * standard_error
