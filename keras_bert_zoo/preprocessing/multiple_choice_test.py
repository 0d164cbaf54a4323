"""Prompts with choices: each a pair of its own, and rows of padding where choices are fewer."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_bert_zoo.preprocessing import (
    BertMultipleChoicePreprocessor,
    BertTextClassifierPreprocessor,
    BertTokenizer,
)
from keras_bert_zoo.preprocessing.multiple_choice import check_choice_dataset

pytestmark = pytest.mark.backend_free

# [PAD] stands elsewhere than at 0.
PIECES = ["[UNK]", "[CLS]", "[SEP]", "[MASK]", "[PAD]", *"abcdefgh"]
TOKENIZER = BertTokenizer(PIECES, lowercase=True)
PROMPTS = ["a b", "c", "d e f g h a b"]
CHOICES = [["c", ""], ["a b c d e f g h", "b", "h g"], ["a"]]


def numpy_inputs(*columns, **arguments):
    preprocessor = BertMultipleChoicePreprocessor(TOKENIZER, 12, **arguments)
    columns, _, _ = preprocessor.examples(columns)
    return {name: x.numpy() for name, x in preprocessor.rows(*columns).items()}


def test_each_choice_is_a_pair_with_its_prompt():
    inputs = numpy_inputs(PROMPTS, CHOICES, buckets=[])
    pairs = BertTextClassifierPreprocessor(TOKENIZER, 12, buckets=[])
    for i, row in enumerate(CHOICES):
        for j, choice in enumerate(row):
            expected = pairs.pack(tf.constant([PROMPTS[i]]), tf.constant([choice]))
            for name, values in expected.items():
                np.testing.assert_array_equal(inputs[name][i, j], values[0].numpy())
        assert (inputs["token_ids"][i, len(row) :] == TOKENIZER.pad_token_id).all()
        assert not inputs["padding_mask"][i, len(row) :].any()
        assert not inputs["segment_ids"][i, len(row) :].any()
    assert inputs["token_ids"].shape == (3, 3, 12)


def test_whatever_holds_choices_is_taken():
    choices = [["a", "b"], ["c", "d e"]]
    expected = numpy_inputs(["a", "b"], choices)
    for same in (
        np.array(choices),
        tf.constant(choices),
        tf.ragged.constant(choices),
        [tuple(row) for row in choices],
    ):
        found = numpy_inputs(tf.constant(["a", "b"]), same)
        for name in expected:
            np.testing.assert_array_equal(found[name], expected[name])


def test_batches_keep_labels_and_as_many_choices():
    preprocessor = BertMultipleChoicePreprocessor(TOKENIZER, 12)
    weights = np.array([1.0, 2.0, 3.0], "float32")
    made = list(preprocessor.dataset((PROMPTS, CHOICES), [1, 2, 0], weights, batch_size=2))
    assert [x["token_ids"].shape[:2] for x, _, _ in made] == [(2, 3), (1, 3)]
    assert [y.numpy().tolist() for _, y, _ in made] == [[1, 2], [0]]
    assert [w.numpy().tolist() for _, _, w in made] == [[1, 2], [3]]


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ((["a"], [["b", None]]), None, r"choices\[0\]\[1\]"),
        ((["a", None], [["b"], ["b"]]), None, r"prompts\[1\]"),
        ((["a"], ["b"]), None, r"choices\[0\]"),
        ((["a", "b"], [["b"]]), None, "1 for 2 prompts"),
        ((["a"], [[]]), None, r"`choices\[0\]` must hold a choice"),
        (["a"], None, r"tuple \(prompts, choices\). Received: list"),
        ((["a", "b"], [["b", "c", "d"], ["e", "f"]]), [0, 2], r"`y\[1\]`.*below 2.*Received: 2"),
        ((["a"], [["b"]]), [0.5], "`y` must be integers"),
        ((["a"], [["b"]]), [[0]], r"`y` must be integers of shape \(1,\)"),
    ],
)
def test_what_does_not_fit_is_named(x, y, message):
    with pytest.raises((TypeError, ValueError), match=message):
        BertMultipleChoicePreprocessor(TOKENIZER, 12).dataset(x, y)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"token_ids": 13}, "`token_ids` must be at least 0 and below 13"),
        ({"length": 13}, "at most `max_sequence_length`, 12"),
    ],
)
def test_batches_outside_the_tables_are_refused(changes, message):
    shape = (2, 20, changes.get("length", 4))
    inputs = {
        name: tf.fill(shape, changes.get(name, 0))
        for name in ("token_ids", "segment_ids", "padding_mask")
    }
    dataset = tf.data.Dataset.from_tensors((inputs, tf.constant([0, 1])))
    limits = {"token_ids": 13, "segment_ids": 2, "padding_mask": 2}
    checked = check_choice_dataset(dataset, set(inputs), limits, max_length=12)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        list(checked)


def test_the_config_makes_the_same_preprocessor():
    preprocessor = BertMultipleChoicePreprocessor(TOKENIZER, 12, [8], truncation="only_first")
    config = keras.saving.serialize_keras_object(preprocessor)
    again = keras.saving.deserialize_keras_object(config)
    assert again.get_config() == preprocessor.get_config()
    assert type(again) is BertMultipleChoicePreprocessor
