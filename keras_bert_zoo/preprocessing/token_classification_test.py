"""Sentences to rows: each word is tagged once, wherever its sentence is cut."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_bert_zoo.preprocessing import BertTokenClassifierPreprocessor, BertTokenizer
from keras_bert_zoo.preprocessing.token_classification import word_rows

pytestmark = pytest.mark.backend_free

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "ni", "##els", "a", "b", "!"]
PAD, UNK, CLS, SEP, MASK, HELLO, NI, ELS, A, B, MARK = range(len(PIECES))
TOKENIZER = BertTokenizer(PIECES, lowercase=True)
WORDS = {"hello": [HELLO], "Niels": [NI, ELS], "a!b": [A, MARK, B], "\u200d": [UNK], "x": [UNK]}


def numpy(tensors):
    return keras.tree.map_structure(lambda x: x.numpy(), tensors)


def windows(words, sequence_length=16, **arguments):
    preprocessor = BertTokenClassifierPreprocessor(TOKENIZER, sequence_length, **arguments)
    return numpy(preprocessor.slide(word_rows(words)))


def sentences(seed, count=20):
    rng = np.random.default_rng(seed)
    return [[str(w) for w in rng.choice(list(WORDS), rng.integers(0, 20))] for _ in range(count)]


def test_a_label_stands_on_a_words_first_piece():
    rows = windows([["hello", "niels"]], buckets=[5])
    assert rows["token_ids"].tolist() == [[CLS, HELLO, NI, ELS, SEP]]
    assert rows["word_ids"].tolist() == [[-1, 0, 1, 1, -1]]
    preprocessor = BertTokenClassifierPreprocessor(TOKENIZER, 16, buckets=[5])
    ((inputs, y, weights),) = preprocessor.dataset([["hello", "niels"]], [[3, 4]])
    assert sorted(inputs) == ["padding_mask", "segment_ids", "token_ids"]
    assert y.numpy().tolist() == [[0, 3, 4, 0, 0]]
    assert weights.numpy().tolist() == [[0, 1, 1, 0, 0]]


@pytest.mark.parametrize(
    ("sequence_length", "stride"), [(3, None), (6, None), (9, 2), (9, 7), (512, None)]
)
def test_each_word_is_tagged_once_at_its_first_piece(sequence_length, stride):
    words = sentences(seed=0)
    rows = windows(words, sequence_length, stride=stride)
    assert sorted(set(rows["example_ids"])) == list(range(len(words)))
    tagged = {}
    for row, position in np.argwhere(rows["is_tagged"]):
        key = (rows["example_ids"][row], rows["word_ids"][row, position])
        assert key not in tagged
        tagged[key] = rows["token_ids"][row, position]
    expected = {(i, j): WORDS[w][0] for i, s in enumerate(words) for j, w in enumerate(s)}
    assert tagged == expected
    for row, sentence in zip(rows["token_ids"], rows["example_ids"], strict=True):
        pieces = [piece for word in words[sentence] for piece in WORDS[word]]
        row = row[row != PAD].tolist()
        assert (row[0], row[-1]) == (CLS, SEP)
        assert row[1:-1] in [pieces[i : i + len(row) - 2] for i in range(len(pieces) + 1)]


@pytest.mark.parametrize("blank", [" ", "\t ", "\u3000", "\u00a0", "\u2028"])
def test_texts_are_split_at_white_space(blank):
    text = blank.join(["", "hello", "Niels", "a!b", ""])
    assert_same(windows([text, ""]), windows([["hello", "Niels", "a!b"], []]))


def assert_same(one, other):
    assert sorted(one) == sorted(other)
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def test_whatever_holds_words_is_taken():
    words = [["hello", "Niels"], ["x", "x"]]
    expected = windows(words)
    for same in (
        np.array(words),
        np.array(words, object),
        tf.constant(words),
        tf.ragged.constant(words),
        [np.array(row) for row in words],
        tf.constant(["hello Niels", "x x"]),
        np.array(["hello Niels", "x x"]),
        [b"hello Niels", b"x x"],
    ):
        assert_same(windows(same), expected)


@pytest.mark.parametrize("sequence_length", [6, 64])
def test_labels_and_weights_are_those_of_the_words(sequence_length):
    words = sentences(seed=1)
    labels = [[7 * i + j for j, _ in enumerate(s)] for i, s in enumerate(words)]
    sample_weight = np.arange(20) / 4
    preprocessor = BertTokenClassifierPreprocessor(TOKENIZER, sequence_length)
    found = []
    for inputs, y, weights in preprocessor.dataset(words, labels, sample_weight, batch_size=3):
        assert y.shape == weights.shape == inputs["token_ids"].shape
        counted = weights.numpy() > 0
        found += zip(y.numpy()[counted].tolist(), weights.numpy()[counted].tolist(), strict=True)
    expected = [(y, i / 4) for i, row in enumerate(labels) for y in row if i]
    assert sorted(found) == sorted(expected)


def test_a_data_set_of_texts_gives_what_lists_give():
    words = [s or ["x"] for s in sentences(seed=2, count=4)]
    labels = [[i + j for j, _ in enumerate(s)] for i, s in enumerate(words)]
    texts = [" ".join(s) for s in words]
    weights = np.array([1.0, 2.0, 0.5, 3.0], "float32")
    preprocessor = BertTokenClassifierPreprocessor(TOKENIZER, 12, buckets=[])
    (expected,) = preprocessor.dataset(words, labels, weights)
    for y in (tf.ragged.constant(labels), tf.ragged.constant(labels).to_tensor()):
        made = tf.data.Dataset.from_tensors((tf.constant(texts), y, tf.constant(weights)))
        (found,) = made.map(lambda x, y, w: preprocessor.batch((x,), y, w, example_ids=None))
        for one, other in zip(
            *map(keras.tree.flatten, (numpy(found), numpy(expected))), strict=True
        ):
            np.testing.assert_array_equal(one, other)


def test_scores_of_rows_become_scores_of_words():
    preprocessor = BertTokenClassifierPreprocessor(TOKENIZER, 6)
    words = [["hello"] * 9, [], ["Niels", "x"]]
    rows = preprocessor.slide(tf.ragged.constant(words))
    # Each piece's score is its word's number, so a word must get its own.
    scores = tf.cast(rows["word_ids"], tf.float32)[..., None] + tf.constant([0.0, 100.0])
    scores, is_word = preprocessor.of_words(scores, rows)
    assert is_word.numpy().sum(axis=1).tolist() == [9, 0, 2]
    assert scores[0, :, 0].numpy().tolist() == list(range(9))
    assert scores[2, :2].numpy().tolist() == [[0, 100], [1, 101]]
    assert not scores.numpy()[~is_word.numpy()].any()


@pytest.mark.parametrize(
    ("words", "labels", "message"),
    [
        ([["a", None]], None, r"x\[0\]\[1\]"),
        ([["a"], "b"], None, r"x\[1\]"),
        (["a", None], None, r"x\[1\]"),
        ((["a"], ["b"]), None, "tuple"),
        ([[5, 6]], None, r"x\[0\]\[0\]"),
        ([["a"], ["a", "b"]], [[0], [0]], r"`y\[1\]`.*1 labels for 2 words"),
        ([["a"]], [[0], [1]], "2 rows for 1 sentences"),
    ],
)
def test_what_is_no_sentence_or_has_other_labels_is_named(words, labels, message):
    preprocessor = BertTokenClassifierPreprocessor(TOKENIZER, 16)
    with pytest.raises((TypeError, ValueError), match=message):
        preprocessor.dataset(words, labels)


def test_too_few_labels_in_a_data_set_are_refused():
    preprocessor = BertTokenClassifierPreprocessor(TOKENIZER, 16)
    with pytest.raises(tf.errors.InvalidArgumentError, match="a label a word"):
        preprocessor.batch((tf.constant(["a b"]),), tf.constant([[1]]), example_ids=None)


def test_a_stride_of_nothing_is_refused():
    with pytest.raises(ValueError, match="`stride`"):
        BertTokenClassifierPreprocessor(TOKENIZER, 16, stride=0)


def test_the_config_makes_the_same_preprocessor():
    preprocessor = BertTokenClassifierPreprocessor(TOKENIZER, 16, buckets=[8], stride=3)
    config = keras.saving.serialize_keras_object(preprocessor)
    again = keras.saving.deserialize_keras_object(config)
    assert again.get_config() == preprocessor.get_config()
    assert (again.sequence_length, again.buckets, again.stride) == (16, [8], 3)
