"""Texts to model inputs, in direct calls and in data sets."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_bert_zoo.preprocessing import (
    BertMaskedLMPreprocessor,
    BertPreprocessor,
    BertPretrainerPreprocessor,
    BertTextClassifierPreprocessor,
    BertTokenizer,
)
from keras_bert_zoo.preprocessing.dataset import batches, map_dataset
from keras_bert_zoo.preprocessing.texts import text_columns

PAD, UNK, CLS, SEP, MASK = range(5)
A, B, C, HELLO = range(5, 9)
TOKENIZER = BertTokenizer(
    ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "hello"], lowercase=True
)


def numpy(tensors):
    return keras.tree.map_structure(
        lambda x: x if x is None else keras.ops.convert_to_numpy(x), tensors
    )


def token_ids(inputs):
    return keras.ops.convert_to_numpy(inputs["token_ids"]).tolist()


@pytest.mark.parametrize(
    "texts",
    [
        ["a b", "c"],
        [b"a b", b"c"],
        np.array(["a b", "c"]),
        np.array(["a b", "c"], object),
        tf.constant(["a b", "c"]),
        [[A, B], [C]],
        tf.ragged.constant([[A, B], [C]]),
    ],
    ids=["list", "bytes", "array", "objects", "tensor", "ids", "ragged"],
)
def test_whatever_holds_texts_is_taken(texts):
    inputs = BertPreprocessor(TOKENIZER, 4)(texts)
    assert token_ids(inputs) == [[CLS, A, B, SEP], [CLS, C, SEP, PAD]]
    assert all(keras.ops.is_tensor(x) for x in inputs.values())


def test_one_string_is_a_batch_of_one():
    assert token_ids(BertPreprocessor(TOKENIZER, 4)("a b")) == [[CLS, A, B, SEP]]


@pytest.mark.parametrize("blank", ["", "  \t", "\u3000"])
def test_an_empty_or_blank_text_is_an_example(blank):
    preprocessor = BertPreprocessor(TOKENIZER, 5)
    assert token_ids(preprocessor([blank])) == [[CLS, SEP, PAD, PAD, PAD]]
    assert token_ids(preprocessor(["a"], [blank])) == [[CLS, A, SEP, SEP, PAD]]


def test_a_pair_is_two_segments_however_it_is_given():
    preprocessor = BertPreprocessor(TOKENIZER, 8)
    for inputs in (
        preprocessor(["a b"], ["c"]),
        preprocessor((["a b"], ["c"])),
        preprocessor(("a b", "c")),
        preprocessor("a b", "c"),
        preprocessor([[A, B]], tf.ragged.constant([[C]], row_splits_dtype=tf.int32)),
    ):
        assert token_ids(inputs) == [[CLS, A, B, SEP, C, SEP, PAD, PAD]]
        segments = keras.ops.convert_to_numpy(inputs["segment_ids"]).tolist()
        assert segments == [[0, 0, 0, 0, 1, 1, 0, 0]]


def test_every_further_text_is_a_segment_more():
    preprocessor = BertPreprocessor(TOKENIZER, 8, buckets=[])
    for inputs in (preprocessor("a", "b", "c"), preprocessor(("a", "b", "c"))):
        assert token_ids(inputs) == [[CLS, A, SEP, B, SEP, C, SEP, PAD]]
        segments = keras.ops.convert_to_numpy(inputs["segment_ids"]).tolist()
        assert segments == [[0, 0, 0, 1, 1, 2, 2, 0]]
    with pytest.raises(TypeError, match=r"x\[1\].*None"):
        preprocessor("a", None, "c")


def test_the_truncation_is_the_one_asked_for():
    pair = ("a a a a", "b b b b")
    rows = {
        truncation: token_ids(BertPreprocessor(TOKENIZER, 9, truncation=truncation)(pair))[0]
        for truncation in ("longest_first", "only_first", "only_second")
    }
    assert rows == {
        "longest_first": [CLS, A, A, A, SEP, B, B, B, SEP],
        "only_first": [CLS, A, A, SEP, B, B, B, B, SEP],
        "only_second": [CLS, A, A, A, A, SEP, B, B, SEP],
    }
    with pytest.raises(ValueError, match="truncation"):
        BertPreprocessor(TOKENIZER, 9, truncation="longest")


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["a", None], r"\[1\]"),
        (["a", "b", 3], r"\[2\]"),
        ([float("nan"), "a"], r"\[0\]"),
        ((["a", "b"], ["c", None]), r"\[1\]\[1\]"),
        (np.array(["a", None], object), r"\[1\]"),
    ],
    ids=["none", "number", "nan", "pair", "array"],
)
def test_what_is_no_text_is_refused_with_its_index(texts, message):
    with pytest.raises(TypeError, match=message):
        BertPreprocessor(TOKENIZER, 8)(texts)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ((["a", "b"], ["c"]), "2 and 1"),
        ((["a"], ["b"], ["c", "d"]), "1 and 1 and 2"),
        ((), r"\(\)"),
    ],
)
def test_columns_that_do_not_fit_are_refused(texts, message):
    with pytest.raises(ValueError, match=message):
        text_columns(texts)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([["a"], ["b"]], r"x\[0\].*tuple of two columns"),
        ([("a", "b")], r"x\[0\].*tuple of two columns"),
        ([[A], None], r"x\[1\].*None"),
        ([[A], [1.0]], r"x\[1\].*1.0"),
        ([[A], [[B]]], r"x\[1\]"),
    ],
    ids=["rows of texts", "tuples of texts", "none", "float", "nested"],
)
def test_what_is_no_list_of_ids_is_refused_with_its_index(ids, message):
    with pytest.raises(TypeError, match=message):
        text_columns(ids)


def test_an_empty_list_of_ids_is_an_example():
    inputs = BertPreprocessor(TOKENIZER, 4)([[A, B], []])
    assert token_ids(inputs) == [[CLS, A, B, SEP], [CLS, SEP, PAD, PAD]]


@pytest.mark.parametrize("sequence_length", [2, 0, -1, 8.0, None])
def test_a_wrong_sequence_length_is_named(sequence_length):
    with pytest.raises(ValueError, match="sequence_length"):
        BertPreprocessor(TOKENIZER, sequence_length)


def test_a_graph_gives_what_an_eager_call_gives():
    preprocessor = BertPreprocessor(TOKENIZER, 8)
    eager = numpy(preprocessor(["a b", "c"], ["c", ""]))
    graph = tf.function(preprocessor)(tf.constant(["a b", "c"]), tf.constant(["c", ""]))
    for name, value in eager.items():
        np.testing.assert_array_equal(value, graph[name], err_msg=name)


def test_a_preprocessor_is_saved_with_its_switches():
    tokenizer = BertTokenizer(
        TOKENIZER.vocabulary, lowercase=True, strip_accents=False, split_on_cjk=False
    )
    for preprocessor in (
        BertTextClassifierPreprocessor(tokenizer, 10, [5], "only_first", columns=2),
        BertMaskedLMPreprocessor(tokenizer, 10, [5], "only_first", seed=3, mask_selection_rate=0.3),
    ):
        config = keras.saving.serialize_keras_object(preprocessor)
        loaded = keras.saving.deserialize_keras_object(config)
        assert type(loaded) is type(preprocessor)
        assert loaded.get_config() == preprocessor.get_config()
        assert (loaded.sequence_length, loaded.buckets) == (10, [5])
        assert loaded.truncation == "only_first"
        assert loaded.tokenizer.strip_accents is False
        assert loaded.tokenizer.split_on_cjk is False


# === Masked texts ===


def test_hello_alone_gets_one_masked_piece():
    inputs, labels, weights = numpy(BertMaskedLMPreprocessor(TOKENIZER, 16).masked_example("hello"))
    assert inputs["mask_positions"][weights > 0].tolist() == [1]
    assert labels[weights > 0].tolist() == [HELLO]


@pytest.mark.parametrize("text", ["", "   ", "我", "unknown"])
def test_a_direct_call_refuses_a_text_without_a_piece_to_mask(text):
    preprocessor = BertMaskedLMPreprocessor(TOKENIZER, 16)
    for call in (preprocessor, preprocessor.masked_example):
        with pytest.raises(ValueError, match="index 1"):
            call(["a", text])


def test_a_data_set_gives_a_text_without_a_piece_to_mask_no_weight():
    preprocessor = BertMaskedLMPreprocessor(TOKENIZER, 16)
    texts = ["a", "", "unknown"]
    from_list = next(iter(batches(preprocessor, text_columns(texts), batch_size=3)))
    from_data = next(iter(map_dataset(preprocessor, tf.data.Dataset.from_tensors(texts))[0]))
    for _, _, weights in (from_list, from_data):
        assert weights.numpy().sum(axis=1).tolist() == [1, 0, 0]


def test_an_example_s_weight_scales_its_masks():
    preprocessor = BertMaskedLMPreprocessor(TOKENIZER, 16)
    weights = np.array([2.0, 0.5])
    _, _, scaled = next(
        iter(batches(preprocessor, text_columns(["a", "b c"]), None, weights, batch_size=2))
    )
    assert scaled.numpy().max(axis=1).tolist() == [2.0, 0.5]


def test_pretraining_labels_and_weights_carry_the_outputs_names():
    preprocessor = BertPretrainerPreprocessor(TOKENIZER, 16)
    columns = text_columns((["a", "b"], ["c", "c"]))
    _, labels, weights = next(
        iter(batches(preprocessor, columns, np.array([0, 1]), np.array([1.0, 3.0]), batch_size=2))
    )
    assert labels["next_sentence"].numpy().tolist() == [0, 1]
    assert weights["next_sentence"].numpy().tolist() == [1.0, 3.0]
    assert weights["masked_lm"].numpy().max(axis=1).tolist() == [1.0, 3.0]


# === Data sets ===


def epochs_of(preprocessor, texts, **arguments):
    """Each example's masked row by its first piece's label, epoch by epoch."""
    rows = []
    for inputs, labels, weights in batches(preprocessor, text_columns(texts), **arguments):
        for parts in zip(
            inputs["token_ids"].numpy(),
            inputs["mask_positions"].numpy(),
            labels.numpy(),
            weights.numpy(),
            strict=True,
        ):
            tokens, *masks = (part.tolist() for part in parts)
            real = masks[2].count(1)
            rows.append((tokens, *(part[-real:] for part in masks[:2])))
    return [rows[i : i + len(texts)] for i in range(0, len(rows), len(texts))]


def test_masks_are_the_same_each_run_and_new_each_epoch():
    preprocessor = BertMaskedLMPreprocessor(TOKENIZER, 32, buckets=[])
    texts = ["a b c " * n for n in range(2, 10)]
    arguments = {"batch_size": 3, "shuffle": True, "seed": 7}
    first = epochs_of(preprocessor, texts, epochs=3, **arguments)
    assert first == epochs_of(preprocessor, texts, epochs=3, **arguments)
    assert sorted(first[0]) != sorted(first[1]) != sorted(first[2])
    resumed = epochs_of(preprocessor, texts, epochs=3, initial_epoch=2, **arguments)
    assert resumed == first[2:]


def test_masks_do_not_hang_on_the_order_or_the_batch_size():
    preprocessor = BertMaskedLMPreprocessor(TOKENIZER, 32, buckets=[])
    texts = ["a b c " * n for n in range(2, 10)]
    (ordered,) = epochs_of(preprocessor, texts, batch_size=8)
    (shuffled,) = epochs_of(preprocessor, texts, batch_size=3, shuffle=True, seed=1)
    assert shuffled != ordered
    assert sorted(shuffled) == sorted(ordered)


def test_every_epoch_has_every_example_once_in_a_new_order():
    preprocessor = BertPreprocessor(TOKENIZER, 8)
    dataset = batches(
        preprocessor,
        text_columns(["a"] * 10),
        np.arange(10),
        batch_size=4,
        shuffle=True,
        epochs=2,
    )
    assert int(dataset.cardinality()) == 6
    labels = [y.numpy().tolist() for _, y, _ in dataset]
    assert [len(part) for part in labels] == [4, 4, 2] * 2
    first, second = sum(labels[:3], []), sum(labels[3:], [])
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second != list(range(10))


def test_batches_are_padded_to_their_own_bucket():
    preprocessor = BertPreprocessor(TOKENIZER, 24, buckets=[4, 8])
    texts = ["a", "b", "a b c", "a", "a " * 50, "a"]
    lengths = [
        x["token_ids"].shape[1]
        for x, _, _ in batches(preprocessor, text_columns(texts), batch_size=2)
    ]
    assert lengths == [4, 8, 24]


@pytest.mark.parametrize(
    ("elements", "segments", "labels"),
    [
        ((["a", "b"],), [0, 0], None),
        ((["a", "b"], [3, 4]), [0, 0], [3, 4]),
        ((["a", "b"], ["c", "c"]), [0, 1], None),
        (((["a", "b"], ["c", "c"]), [3, 4]), [0, 1], [3, 4]),
        ((["a", "b"], ["c", "c"], ["b", "b"]), [0, 1, 2], None),
    ],
    ids=["texts", "labelled", "pairs", "labelled pairs", "triples"],
)
def test_a_data_set_of_texts_is_understood(elements, segments, labels):
    elements = elements[0] if len(elements) == 1 else elements
    dataset = tf.data.Dataset.from_tensor_slices(elements).batch(2)
    inputs, y, _ = next(iter(map_dataset(BertPreprocessor(TOKENIZER, 8), dataset)[0]))
    assert sorted(set(inputs["segment_ids"].numpy().ravel().tolist())) == sorted(set(segments))
    assert labels == (None if y is None else y.numpy().tolist())


def test_a_data_set_that_is_not_batched_is_refused():
    dataset = tf.data.Dataset.from_tensor_slices((["a", "b"], [0, 1]))
    with pytest.raises(ValueError, match="batched"):
        map_dataset(BertPreprocessor(TOKENIZER, 8), dataset)


@pytest.mark.parametrize("name", ["y", "sample_weight"])
def test_labels_for_other_rows_are_refused(name):
    preprocessor = BertPreprocessor(TOKENIZER, 8)
    with pytest.raises(ValueError, match=rf"`{name}`.*\(3,\) for 2 examples"):
        preprocessor.dataset(["a", "b"], **{"y": [0, 1], name: [0, 1, 0]})


def test_a_data_set_has_the_elements_that_keras_knows():
    preprocessor = BertPreprocessor(TOKENIZER, 8)
    texts = ["a", "b", "c"]
    (inputs,) = preprocessor.dataset(texts)
    assert inputs["token_ids"].numpy()[:, 1].tolist() == [A, B, C]
    ((_, y, sample_weight),) = preprocessor.dataset(texts, {"kind": [3, 4, 5]}, [1.0, 0.5, 0.0])
    assert y["kind"].numpy().tolist() == [3, 4, 5]
    assert sample_weight.numpy().tolist() == [1.0, 0.5, 0.0]


def test_a_data_set_is_shuffled_anew_each_epoch():
    preprocessor = BertPreprocessor(TOKENIZER, 8)
    dataset = preprocessor.dataset(
        ["a"] * 10, list(range(10)), batch_size=10, shuffle=True, epochs=2, seed=3
    )
    first, second = (y.numpy().tolist() for _, y in dataset)
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second
