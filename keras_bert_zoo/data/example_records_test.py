"""Serialised records, read by TensorFlow's own classes."""

import numpy as np
import pytest

from keras_bert_zoo.data.example_records import serialize_examples
from keras_bert_zoo.preprocessing.lazy_tensorflow import tf

pytestmark = pytest.mark.backend_free


def test_records_are_those_of_tensorflow():
    rng = np.random.default_rng(0)
    # Lists of no, one and many integers, and lengths that need one byte, two and three.
    lengths = np.array([0, 1, 100, 127, 128, 300, 20_000])
    total = lengths.sum()
    columns = {
        "small": (rng.integers(0, 128, total), lengths),
        "pieces": (rng.integers(0, 120_000, total), lengths),
        "large": (2 ** rng.integers(0, 63, total) - rng.integers(0, 2, total), lengths),
        "é" * 100: (np.arange(len(lengths)), np.ones(len(lengths), int)),
    }
    records = serialize_examples(columns)
    assert len(records) == len(lengths)
    for row, record in enumerate(records):
        features = tf.train.Example.FromString(record).features.feature
        assert set(features) == set(columns)
        for name, (values, sizes) in columns.items():
            start = sizes[:row].sum()
            expected = values[start : start + sizes[row]].tolist()
            assert list(features[name].int64_list.value) == expected


@pytest.mark.parametrize("number", [0, 1, 127, 128, 2**14 - 1, 2**14, 2**35 - 1, 2**35, 2**63 - 1])
def test_every_size_of_integer(number):
    (record,) = serialize_examples({"n": (np.array([number]), np.array([1]))})
    features = tf.train.Example.FromString(record).features.feature
    assert list(features["n"].int64_list.value) == [number]


def test_no_rows_are_no_records():
    assert serialize_examples({"n": (np.zeros(0, int), np.zeros(0, int))}) == []
