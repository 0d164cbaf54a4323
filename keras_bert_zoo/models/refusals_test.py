"""What the models refuse, and in which words."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_bert_zoo.models import (
    BertBackbone,
    BertMaskedLM,
    BertTextClassifier,
    BertTextEmbedder,
)
from keras_bert_zoo.models.models_test import (
    REFUSED,
    TEXTS,
    VOCABULARY,
    assert_all_equal,
    inputs,
    masked_inputs,
    small_backbone,
    text_classifier,
    weights,
)
from keras_bert_zoo.preprocessing import (
    BertTextClassifierPreprocessor,
    BertTokenizer,
)


class Batches(keras.utils.PyDataset):
    def __init__(self, batches):
        super().__init__()
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        return self.batches[index]


def tf_dataset(batches):
    first = batches[0]
    dataset = tf.data.Dataset.from_tensors(first)
    for batch in batches[1:]:
        dataset = dataset.concatenate(tf.data.Dataset.from_tensors(batch))
    return dataset


LABELS_OF_MASKS = np.full((4, 2), 7)
WAYS = {
    "call": lambda model, bad: model(bad),
    "fit": lambda model, bad: model.fit(bad, LABELS_OF_MASKS, verbose=0),
    "evaluate": lambda model, bad: model.evaluate(bad, LABELS_OF_MASKS, verbose=0),
    "predict": lambda model, bad: model.predict(bad, verbose=0),
    "data": lambda model, bad: model.fit(tf_dataset([(bad, LABELS_OF_MASKS)]), verbose=0),
    "generator": lambda model, bad: model.fit(iter([(bad, LABELS_OF_MASKS)]), verbose=0),
    "pydataset": lambda model, bad: model.fit(Batches([(bad, LABELS_OF_MASKS)]), verbose=0),
}
STREAMS = {"data": tf_dataset, "generator": iter, "pydataset": Batches}


@pytest.fixture(scope="module")
def masked_lm():
    model = BertMaskedLM(small_backbone(max_sequence_length=8))
    model.compile(optimizer=keras.optimizers.SGD(0.1))
    return model


def changed(name, value):
    batch = masked_inputs()
    batch[name][2, 1] = value
    return batch


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("name", "batch", "numbers"),
    [
        ("token_ids", changed("token_ids", 20), "20.*20"),
        ("token_ids", changed("token_ids", -1), "20.*-1"),
        ("segment_ids", changed("segment_ids", 2), "2.*2"),
        ("mask_positions", changed("mask_positions", 6), "6.*6|6 6"),
        ("mask_positions", changed("mask_positions", -1), "-1"),
        ("max_sequence_length", masked_inputs(length=9), "8.*9|9.*8"),
    ],
    ids=["token", "negative token", "segment", "position", "negative position", "length"],
)
def test_what_is_outside_its_table_is_refused_before_the_weights(
    masked_lm, way, name, batch, numbers
):
    before = weights(masked_lm)
    with pytest.raises(REFUSED) as error:
        WAYS[way](masked_lm, batch)
    message = str(error.value)
    assert name in message
    assert re.search(f"(?s){numbers}", message), message
    assert_all_equal(weights(masked_lm), before)


@pytest.mark.parametrize("stream", STREAMS)
def test_a_model_is_whole_after_a_refusal_in_the_middle_of_a_fit(masked_lm, stream):
    good = (masked_inputs(), LABELS_OF_MASKS)
    bad = (changed("token_ids", 20), LABELS_OF_MASKS)
    before = weights(masked_lm)
    with pytest.raises(REFUSED, match="token_ids"):
        masked_lm.fit(STREAMS[stream]([good, good, bad]), shuffle=False, verbose=0)
    after = weights(masked_lm)
    assert all(np.isfinite(w).all() for w in after)
    assert any((a != b).any() for a, b in zip(after, before, strict=True))
    assert masked_lm.predict(good[0], verbose=0).shape == (4, 2, 20)
    history = masked_lm.fit(*good, verbose=0).history
    assert np.isfinite(history["loss"]).all()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fault", ["missing", "extra"])
def test_missing_and_unknown_inputs_are_named(masked_lm, way, fault):
    batch = masked_inputs()
    if fault == "missing":
        del batch["segment_ids"]
    else:
        batch["position_ids"] = batch["token_ids"]
    before = weights(masked_lm)
    with pytest.raises(REFUSED, match="(?s)segment_ids" if fault == "missing" else "position_ids"):
        WAYS[way](masked_lm, batch)
    assert_all_equal(weights(masked_lm), before)


def test_texts_without_a_preprocessor_are_refused():
    with pytest.raises(ValueError, match="dictionary"):
        BertTextClassifier(small_backbone(), 2)(["a text"])


def test_a_backbone_has_the_name_it_is_given():
    assert small_backbone(name="encoder").name == "encoder"
    assert small_backbone().name.startswith("bert_backbone")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hidden_dim": 30, "num_heads": 4}, "hidden_dim=30.*num_heads=4"),
        ({"num_layers": 0}, "num_layers.*0"),
        ({"vocabulary_size": -5}, "vocabulary_size.*-5"),
        ({"hidden_activation": "swoosh"}, "hidden_activation.*swoosh"),
        ({"dropout": 1.5}, r"dropout.*1\.5"),
        ({"attention_dropout": 1.5}, r"attention_dropout.*1\.5"),
        ({"hidden_dropout_prob": 0.1}, "hidden_dropout_prob"),
    ],
)
def test_wrong_backbone_arguments_are_named(arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        small_backbone(**arguments)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda b: BertTextClassifier(b), "num_classes"),
        (lambda b: BertTextClassifier(b, 0), "num_classes.*0"),
        (lambda b: BertTextClassifier(b, 2, activation="tanh"), "activation.*softmax.*tanh"),
        (lambda b: BertTextClassifier(b, 1, activation="softmax"), "softmax.*num_classes=1"),
        (lambda b: BertTextClassifier(b, 3, class_names=["a", "b"]), "class_names.*3.*2"),
        (lambda b: BertTextClassifier(b, 2, labels=3), "labels"),
        (lambda b: BertMaskedLM(b, tied=True), "tied"),
        (lambda b: BertTextEmbedder(b, pooling="median"), "pooling.*median"),
    ],
)
def test_wrong_task_arguments_are_named(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make(small_backbone())


@pytest.mark.parametrize(
    "sequence_length, vocabulary_size, message",
    [
        (600, 20, "sequence_length is 600, but the backbone's max_sequence_length is 512"),
        (16, 19, "vocabulary_size is 20, but the backbone's vocabulary_size is 19"),
    ],
)
def test_a_preprocessor_that_the_backbone_has_no_tables_for_is_refused(
    sequence_length, vocabulary_size, message
):
    tokenizer = BertTokenizer(VOCABULARY, lowercase=True)
    preprocessor = BertTextClassifierPreprocessor(tokenizer, sequence_length)
    with pytest.raises(ValueError, match=message):
        BertTextClassifier(BertBackbone(vocabulary_size, 1, 1, 4, 4), 2, preprocessor)


@pytest.mark.parametrize("method", ["train_on_batch", "test_on_batch", "predict_on_batch"])
def test_batch_methods_refuse_ids_outside_the_table(method):
    classifier = text_classifier()
    wrong = inputs(rows=2)
    wrong["token_ids"][0, 1] = 20
    labels = [] if method == "predict_on_batch" else [np.array([0, 1])]
    with pytest.raises(ValueError, match="`token_ids` must be at least 0 and below 20"):
        getattr(classifier, method)(wrong, *labels)
    assert np.isfinite(classifier.predict(TEXTS, verbose=0)).all()


@pytest.mark.parametrize("label", [-1, 2])
def test_a_label_that_is_no_class_is_refused(label):
    labels = [0, 1, label, 0, 1, 0, 1, 0]
    with pytest.raises(ValueError, match=f"below 2, the number of classes. Received: {label}"):
        text_classifier().fit(TEXTS, labels, verbose=0)


def test_nothing_and_unreadable_inputs_are_named():
    classifier = text_classifier()
    with pytest.raises(ValueError, match="`x` holds no texts"):
        classifier.predict([])
    with pytest.raises(ValueError, match="`batch_size` must be an integer of at least 1"):
        classifier.predict(TEXTS, batch_size=0)
    classifier.preprocessor = None
    with pytest.raises(ValueError, match="has no preprocessor"):
        classifier.predict(TEXTS)


def test_a_pair_needs_two_segments():
    tokenizer = BertTokenizer(VOCABULARY, lowercase=True)
    preprocessor = BertTextClassifierPreprocessor(tokenizer, 16)
    classifier = BertTextClassifier(small_backbone(num_segments=1), 2, preprocessor)
    with pytest.raises(ValueError, match="`num_segments` is 1"):
        classifier.predict((TEXTS, TEXTS))
