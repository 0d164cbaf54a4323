"""The models: what they compute, what they refuse, how they train, and how they are saved."""

import pathlib
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from keras_bert_zoo import from_preset
from keras_bert_zoo.models import (
    BertBackbone,
    BertMaskedLM,
    BertNextSentence,
    BertPretrainer,
    BertTextClassifier,
    BertTextEmbedder,
    BertTokenClassifier,
    text_model,
)
from keras_bert_zoo.preprocessing import (
    BertMaskedLMPreprocessor,
    BertPretrainerPreprocessor,
    BertTextClassifierPreprocessor,
    BertTextEmbedderPreprocessor,
    BertTokenClassifierPreprocessor,
    BertTokenizer,
)
from keras_bert_zoo.training import WarmupLinearDecay, adamw

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmno"]
TEXTS = ["a b", "c", "d e f g", "a a", "h i j k l m", "b", "n o", "c c"]
LABELS = np.array([0, 1, 1, 0, 1, 0, 0, 1])
REFUSED = (ValueError, tf.errors.InvalidArgumentError)


def small_backbone(**arguments):
    return BertBackbone(
        **{
            "vocabulary_size": 20,
            "num_layers": 2,
            "num_heads": 2,
            "hidden_dim": 8,
            "intermediate_dim": 16,
            "max_sequence_length": 16,
            **arguments,
        }
    )


def tokenizer(**switches):
    return BertTokenizer(VOCABULARY, lowercase=True, **switches)


def text_classifier(num_classes=2, buckets=None):
    preprocessor = BertTextClassifierPreprocessor(tokenizer(), 16, buckets)
    return BertTextClassifier(small_backbone(num_layers=1), num_classes, preprocessor)


def inputs(rows=4, length=6, seed=0):
    rng = np.random.default_rng(seed)
    mask = (np.arange(length) < rng.integers(3, length + 1, (rows, 1))).astype("int32")
    return {
        "token_ids": rng.integers(5, 20, (rows, length)).astype("int32") * mask,
        "segment_ids": rng.integers(0, 2, (rows, length)).astype("int32") * mask,
        "padding_mask": mask,
    }


def masked_inputs(rows=4, length=6, seed=0):
    positions = np.random.default_rng(seed).integers(0, length, (rows, 2)).astype("int32")
    return {**inputs(rows, length, seed), "mask_positions": positions}


def randomised(model):
    """The model, with weights large enough that its outputs differ from text to text."""
    rng = np.random.default_rng(0)
    for weight in model.trainable_variables:
        weight.assign(rng.normal(scale=0.5, size=weight.shape))
    return model


def to_numpy(x):
    return ops.convert_to_numpy(x)


def weights(model):
    return [to_numpy(weight) for weight in model.weights]


def assert_all_equal(first, second):
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)


def with_constant_output(classifier, logits):
    """The classifier, giving the same logits for every example."""
    classifier.classifier_head.kernel.assign(ops.zeros(classifier.classifier_head.kernel.shape))
    classifier.classifier_head.bias.assign(logits)
    return classifier


def cross_entropy(logits, labels):
    """The negative log-likelihood of each label."""
    logits = np.asarray(logits, "float64")
    logits = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return -np.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]


# === Sizes ===


@pytest.mark.parametrize(
    ("size", "parameters"),
    [((12, 12, 768, 3072), 109_482_240), ((24, 16, 1024, 4096), 335_141_888)],
    ids=["base", "large"],
)
def test_the_paper_s_sizes_have_the_authors_number_of_parameters(size, parameters):
    # In this scope the variables have their shapes and no values yet, which spares the memory.
    with keras.StatelessScope(initialize_variables=False):
        backbone = BertBackbone(30522, *size)
        assert backbone.count_params() == parameters
    keras.backend.clear_session()


def test_a_head_adds_its_own_parameters_only():
    backbone = small_backbone()
    encoder = backbone.count_params()
    # Dense and LayerNorm of width 8, and a bias an entry; the table is the encoder's.
    masked_lm = 8 * 8 + 8 + 16 + 20
    assert BertMaskedLM(backbone).count_params() == encoder + masked_lm
    assert BertNextSentence(backbone).count_params() == encoder + 8 * 2 + 2
    assert BertPretrainer(backbone).count_params() == encoder + masked_lm + 8 * 2 + 2
    assert BertTextClassifier(backbone, 3).count_params() == encoder + 8 * 3 + 3
    assert BertTextEmbedder(backbone).count_params() == encoder


# === What the encoder computes ===


def test_hidden_states_end_in_the_output():
    backbone = small_backbone()
    states = backbone.hidden_states(inputs())
    assert [tuple(x.shape) for x in states] == [(4, 6, 8)] * 3
    outputs = backbone(inputs())
    np.testing.assert_array_equal(to_numpy(states[-1]), to_numpy(outputs["sequence_output"]))
    embedded = backbone.embeddings(inputs()["token_ids"], inputs()["segment_ids"])
    np.testing.assert_array_equal(to_numpy(states[0]), to_numpy(embedded))
    kernel, bias = (to_numpy(w) for w in backbone.pooler.weights)
    pooled = np.tanh(to_numpy(states[-1])[:, 0] @ kernel + bias)
    np.testing.assert_allclose(to_numpy(outputs["pooled_output"]), pooled, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_scores_are_shares_of_the_seen_keys(causal):
    batch = inputs()
    scores = [to_numpy(x) for x in small_backbone(causal=causal).attention_scores(batch)]
    assert [x.shape for x in scores] == [(4, 2, 6, 6)] * 2
    hidden = np.broadcast_to(batch["padding_mask"][:, None, None, :] == 0, (4, 2, 6, 6))
    if causal:
        hidden = hidden | ~np.tri(6, dtype=bool)
    for layer in scores:
        np.testing.assert_allclose(layer.sum(axis=-1), 1, atol=1e-5)
        assert (layer[hidden] == 0).all()
        assert (layer[~hidden] > 0).all()


def test_outputs_at_some_positions_are_those_among_all():
    backbone = randomised(small_backbone())
    whole = backbone(inputs())["sequence_output"]
    positions = np.array([[5, 0], [1, 2], [0, 0], [3, 4]])
    some = backbone({**inputs(), "output_positions": positions})
    expected = np.take_along_axis(to_numpy(whole), positions[:, :, None], axis=1)
    np.testing.assert_allclose(to_numpy(some["sequence_output"]), expected, atol=1e-6)
    pooled = to_numpy(backbone.pooler(expected))
    np.testing.assert_allclose(to_numpy(some["pooled_output"]), pooled, atol=1e-6)
    with pytest.raises(ValueError, match="`output_positions` must be at least 0 and below 6"):
        backbone({**inputs(), "output_positions": positions + 1})


def test_ids_under_padding_change_nothing():
    batch = inputs()
    real = batch["padding_mask"] == 1
    changed = {
        "token_ids": np.where(real, batch["token_ids"], 19),
        "segment_ids": np.where(real, batch["segment_ids"], 1),
        "padding_mask": batch["padding_mask"],
    }
    assert (changed["token_ids"] != batch["token_ids"]).any()
    backbone = small_backbone()
    before, after = backbone(batch), backbone(changed)
    for name, chosen in (("sequence_output", real), ("pooled_output", slice(None))):
        np.testing.assert_array_equal(
            to_numpy(before[name])[chosen], to_numpy(after[name])[chosen], err_msg=name
        )


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_poolings_follow_their_formulas(pooling, normalize):
    batch = inputs()
    batch["padding_mask"][3] = 0
    backbone = small_backbone()
    states = to_numpy(backbone(batch)["sequence_output"]).astype("float64")
    real = [row[mask == 1] for row, mask in zip(states, batch["padding_mask"], strict=True)]
    expected = {
        "mean": [x.mean(axis=0) if len(x) else np.zeros(8) for x in real],
        "max": [x.max(axis=0) if len(x) else np.zeros(8) for x in real],
        "cls": states[:, 0],
    }[pooling]
    expected = np.array(expected)
    if normalize:
        lengths = np.linalg.norm(expected, axis=1, keepdims=True)
        expected = expected / np.where(lengths > 0, lengths, 1)
    embedder = BertTextEmbedder(backbone, pooling=pooling, normalize=normalize)
    np.testing.assert_allclose(to_numpy(embedder(batch)), expected, atol=1e-5)


# === Losses ===


@pytest.mark.parametrize(
    ("arguments", "logits", "label", "loss"),
    [
        ({"num_classes": 2, "activation": "softmax"}, np.log([0.99991, 0.00009]), 0, 0.00009),
        ({"num_classes": 2, "activation": "softmax"}, np.log([0.99991, 0.00009]), 1, 9.315701),
        ({"num_classes": 2}, np.log([0.25, 0.75]), 0, np.log(4)),
        ({"num_classes": 3}, [5.0, 5.0, 5.0], 2, np.log(3)),
        ({"num_classes": 1}, [3.0], 1.0, 4.0),
        ({"num_classes": 1, "activation": "sigmoid"}, [np.log(3)], 0, np.log(4)),
        # Probabilities 0.75 and 0.5, both labels wanted: the mean of ln(4/3) and ln(2).
        (
            {"num_classes": 2, "activation": "sigmoid"},
            [np.log(3), 0.0],
            [1, 1],
            (np.log(4 / 3) + np.log(2)) / 2,
        ),
    ],
    ids=["softmax right", "softmax wrong", "logits", "logits of 3", "number", "one", "several"],
)
def test_the_default_loss_fits_the_head(arguments, logits, label, loss):
    classifier = with_constant_output(BertTextClassifier(small_backbone(), **arguments), logits)
    measured = classifier.evaluate(inputs(), np.array([label] * 4), verbose=0, return_dict=True)
    assert measured["loss"] == pytest.approx(loss, rel=2e-3, abs=1e-7)


def test_the_masked_lm_loss_is_the_mean_over_masked_pieces():
    model = BertMaskedLM(small_backbone())
    labels = np.arange(8).reshape(4, 2) + 5
    counts = np.array([[1, 1], [1, 0], [0, 0], [1, 1]], "float32")
    losses = cross_entropy(to_numpy(model(masked_inputs())), labels)
    measured = model.evaluate(
        masked_inputs(), labels, sample_weight=counts, verbose=0, return_dict=True
    )
    assert measured["loss"] == pytest.approx((losses * counts).sum() / 5, rel=1e-5)


def test_the_pretraining_loss_is_the_sum_of_both():
    model = BertPretrainer(small_backbone())
    model.next_sentence_head.bias.assign([0.0, 2.0])
    labels = {
        "masked_lm": np.arange(8).reshape(4, 2) + 5,
        "next_sentence": np.array([0, 1, 0, 0]),
    }
    counts = {
        "masked_lm": np.array([[1, 1], [1, 0], [0, 0], [1, 1]], "float32"),
        "next_sentence": np.ones(4, "float32"),
    }
    outputs = {name: to_numpy(x) for name, x in model(masked_inputs()).items()}
    masked_lm, next_sentence = (
        (cross_entropy(outputs[name], labels[name]) * counts[name]).sum() / counts[name].sum()
        for name in ("masked_lm", "next_sentence")
    )
    measured = model.evaluate(
        masked_inputs(), labels, sample_weight=counts, verbose=0, return_dict=True
    )
    assert measured["loss"] == pytest.approx(masked_lm + next_sentence, rel=1e-5)


# === What is refused ===


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


# === Texts ===


@pytest.fixture(scope="module")
def constant_classifier():
    """A classifier of texts whose probabilities are 0.25 and 0.75, and that learns nothing."""
    classifier = with_constant_output(text_classifier(buckets=[]), np.log([0.25, 0.75]))
    classifier.compile(optimizer=keras.optimizers.SGD(0.0), jit_compile=False)
    return classifier


LOSSES = np.where(LABELS == 0, np.log(4), np.log(4 / 3))


def text_data(x, y=None):
    return tf.data.Dataset.from_tensor_slices(x if y is None else (x, y)).batch(4)


def test_texts_are_fitted_and_evaluated(constant_classifier):
    for measured in (
        constant_classifier.fit(TEXTS, LABELS, batch_size=4, verbose=0).history["loss"][0],
        constant_classifier.fit(text_data(TEXTS, LABELS), verbose=0).history["loss"][0],
        constant_classifier.evaluate(TEXTS, LABELS, batch_size=4, verbose=0)[0],
        constant_classifier.evaluate(text_data(TEXTS, LABELS), verbose=0)[0],
        constant_classifier.evaluate((TEXTS, TEXTS), list(LABELS), batch_size=4, verbose=0)[0],
        constant_classifier.evaluate(text_data((TEXTS, TEXTS), LABELS), verbose=0)[0],
    ):
        assert measured == pytest.approx(LOSSES.mean(), rel=1e-5)


def test_example_and_class_weights_count(constant_classifier):
    sample_weight = np.arange(8) / 4
    expected = np.average(LOSSES, weights=sample_weight)
    options = {"batch_size": 8, "verbose": 0}
    measured = constant_classifier.evaluate(TEXTS, LABELS, sample_weight=sample_weight, **options)
    assert measured[0] == pytest.approx(expected, rel=1e-5)
    history = constant_classifier.fit(TEXTS, LABELS, sample_weight=sample_weight, **options).history
    assert history["loss"][0] == pytest.approx(expected, rel=1e-5)
    history = constant_classifier.fit(TEXTS, LABELS, class_weight={0: 3.0, 1: 0.5}, **options)
    expected = np.average(LOSSES, weights=np.where(LABELS == 0, 3.0, 0.5))
    assert history.history["loss"][0] == pytest.approx(expected, rel=1e-5)


def test_validation_takes_the_last_examples_or_those_given(constant_classifier):
    history = constant_classifier.fit(
        TEXTS, LABELS, batch_size=4, validation_split=0.5, verbose=0
    ).history
    assert history["loss"][0] == pytest.approx(LOSSES[:4].mean(), rel=1e-5)
    assert history["val_loss"][0] == pytest.approx(LOSSES[4:].mean(), rel=1e-5)
    for validation_data in (
        (TEXTS[:4], LABELS[:4], np.array([1, 2, 3, 4])),
        text_data(TEXTS[:4], LABELS[:4]),
    ):
        history = constant_classifier.fit(
            TEXTS, LABELS, batch_size=4, validation_data=validation_data, epochs=2, verbose=0
        ).history
        weights = validation_data[2] if isinstance(validation_data, tuple) else None
        expected = np.average(LOSSES[:4], weights=weights)
        assert history["val_loss"] == pytest.approx([expected] * 2, rel=1e-5)


def test_a_pair_is_two_segments():
    classifier = randomised(text_classifier())
    firsts, seconds = ["a b", "c"], ["d", "e f"]
    expected = to_numpy(classifier(classifier.preprocessor(firsts, seconds)))
    for x in ((firsts, seconds), text_data((firsts, seconds))):
        np.testing.assert_allclose(classifier.predict(x, verbose=0), expected, atol=1e-5)
    joined = classifier(classifier.preprocessor(["a b d", "c e f"]))
    assert not np.allclose(to_numpy(joined), expected, atol=1e-2)


@pytest.mark.parametrize(
    ("x", "index"), [(["a", None], 1), ([1.5, "a"], 0), ((["a", "b"], ["c", None]), 1)]
)
def test_what_is_no_text_is_refused_with_its_place(constant_classifier, x, index):
    labels = np.array([0, 1])
    for call in (
        lambda: constant_classifier.fit(x, labels, verbose=0),
        lambda: constant_classifier.evaluate(x, labels, verbose=0),
        lambda: constant_classifier.predict(x, verbose=0),
    ):
        with pytest.raises((TypeError, ValueError), match=rf"\[{index}\]"):
            call()


@pytest.mark.parametrize(
    ("y", "message"), [([0, 1, 1], "`y`.*shape \(3,\) for 2"), (["good", "bad"], "`y`.*good")]
)
def test_labels_that_do_not_fit_are_refused(constant_classifier, y, message):
    with pytest.raises(ValueError, match=message):
        constant_classifier.fit(["a", "b"], y, verbose=0)


def test_predictions_keep_their_order_whatever_the_batch():
    classifier = randomised(text_classifier())
    expected = np.concatenate(
        [to_numpy(classifier(classifier.preprocessor([text]))) for text in TEXTS]
    )
    assert len(np.unique(expected.round(4), axis=0)) == len(TEXTS)
    for batch_size in (1, 3, 64):
        predicted = classifier.predict(TEXTS, batch_size=batch_size, verbose=0)
        np.testing.assert_allclose(predicted, expected, atol=1e-5)


@pytest.mark.parametrize("task", ["classifier", "embedder"])
def test_texts_of_like_length_are_predicted_together(task, monkeypatch):
    buckets, lengths, batches = list(range(3, 9)), [], text_model.text_dataset.batches
    model = text_classifier(buckets=buckets)
    if task == "embedder":
        preprocessor = BertTextEmbedderPreprocessor(tokenizer(), 16, buckets)
        model = BertTextEmbedder(model.backbone, preprocessor)

    def noted(*arguments, **options):
        dataset = batches(*arguments, **options)
        lengths.extend(batch[0]["token_ids"].shape[1] for batch in dataset)
        return dataset

    monkeypatch.setattr(text_model.text_dataset, "batches", noted)
    model.predict(TEXTS, batch_size=2, verbose=0)
    # The pieces of two texts each, and the two marks: 6 and 4, 2 and 2, 2 and 2, 1 and 1.
    assert lengths == [8, 4, 4, 3]


def test_blank_texts_are_predicted():
    predicted = text_classifier().predict(["", "  ", "a"], verbose=0)
    assert np.isfinite(predicted).all()
    np.testing.assert_allclose(predicted[0], predicted[1], atol=1e-6)


def test_an_embedder_encodes_texts():
    embedder = BertTextEmbedder(
        small_backbone(), BertTextEmbedderPreprocessor(tokenizer(), 16), normalize=True
    )
    vectors = embedder.encode(TEXTS, batch_size=3)
    assert vectors.shape == (8, 8)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(embedder.encode(TEXTS[2:3]), vectors[2:3], atol=1e-5)


def test_pretraining_takes_pairs_of_texts():
    preprocessor = BertPretrainerPreprocessor(tokenizer(), 16)
    model = BertPretrainer(small_backbone(num_layers=1), preprocessor)
    loss = model.evaluate((TEXTS, TEXTS[::-1]), LABELS, batch_size=8, verbose=0)[0]
    # Fresh weights give all 20 entries, and both classes, about the same probability.
    assert loss == pytest.approx(np.log(20) + np.log(2), abs=0.2)


# === Training ===


def packing_task(name):
    """Return a task without dropout, and texts and labels for it."""
    backbone = small_backbone(num_layers=1, dropout=0.0, attention_dropout=0.0)
    if name == "classifier":
        preprocessor = BertTextClassifierPreprocessor(tokenizer(), 16)
        return BertTextClassifier(backbone, 2, preprocessor), TEXTS, LABELS
    if name == "tagger":
        preprocessor = BertTokenClassifierPreprocessor(tokenizer(), 16)
        labels = [[ord(word) % 3 for word in text.split()] for text in TEXTS]
        return BertTokenClassifier(backbone, 3, preprocessor), TEXTS, labels
    preprocessor = BertMaskedLMPreprocessor(tokenizer(), 16)
    return BertMaskedLM(backbone, preprocessor), TEXTS, None


@pytest.mark.parametrize("name", ["classifier", "tagger", "masked_lm"])
def test_packed_batches_make_the_same_steps(name, monkeypatch):
    model, x, y = packing_task(name)
    first_weights, found, rows, pack = randomised(model).get_weights(), [], [], text_model.pack_rows

    def noted(*arguments, **options):
        dataset = pack(*arguments, **options)
        rows.extend(batch[0]["token_ids"].shape[0] for batch in dataset)
        return dataset

    monkeypatch.setattr(text_model, "pack_rows", noted)
    for packed in (False, True):
        model.set_weights(first_weights)
        model.compile(optimizer=keras.optimizers.SGD(0.1))
        history = model.fit(x, y, batch_size=4, epochs=2, packed=packed, verbose=0).history
        found.append(([*history["loss"], *history["accuracy"]], model.get_weights()))
    np.testing.assert_allclose(*[scores for scores, _ in found], rtol=1e-5)
    for one, other in zip(*[weights for _, weights in found], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    # Two epochs of two batches of four texts.
    assert len(rows) == 4
    assert max(rows) < 4


def test_vectors_of_labels_are_packed_though_as_long_as_a_row():
    preprocessor = BertTextClassifierPreprocessor(tokenizer(), 8)
    classifier = BertTextClassifier(
        small_backbone(num_layers=1), 8, preprocessor, activation="sigmoid"
    )
    y = np.eye(8, dtype="float32")
    history = classifier.fit(TEXTS, y, packed=True, verbose=0).history
    assert np.isfinite(history["loss"]).all()


@pytest.mark.parametrize(
    ("x", "arguments", "message"),
    [
        (inputs(8), {}, "ids, which `preprocessing.pack_rows`"),
        (TEXTS, {"class_weight": {0: 1.0, 1: 2.0}}, "`class_weight`; `sample_weight`"),
    ],
)
def test_what_can_not_be_packed_is_refused(constant_classifier, x, arguments, message):
    with pytest.raises(ValueError, match=message):
        constant_classifier.fit(x, LABELS, packed=True, verbose=0, **arguments)


def test_the_default_optimizer_is_the_fine_tuning_one():
    optimizer = text_classifier().optimizer
    schedule = optimizer._learning_rate
    assert isinstance(schedule, WarmupLinearDecay)
    assert (schedule.peak, schedule.warmup, schedule.total_steps) == (5e-5, 0.1, None)
    assert (optimizer.weight_decay, optimizer.global_clipnorm) == (0.01, 1.0)


def test_each_fit_has_a_warm_up_of_its_own():
    classifier = text_classifier(num_classes=1)
    # With a zero pooler the output is the head's bias, whose descent can be done by hand.
    classifier.backbone.pooler.kernel.assign(ops.zeros((8, 8)))
    classifier.backbone.trainable = False
    schedule = WarmupLinearDecay(0.1, warmup=0.4)
    classifier.compile(optimizer=keras.optimizers.SGD(schedule))
    bias = 0.0
    for _ in range(2):
        classifier.fit(["a"] * 5, np.full(5, 3.0), batch_size=1, epochs=1, verbose=0)
        for share in (0, 1 / 2, 1, 2 / 3, 1 / 3):
            bias -= 0.1 * share * 2 * (bias - 3.0)
        assert float(to_numpy(classifier.classifier_head.bias)[0]) == pytest.approx(bias, rel=1e-4)
    assert int(classifier.optimizer.iterations) == 10


# === Saving ===


def through_keras(model, folder):
    model.save(folder / "model.keras")
    return keras.saving.load_model(folder / "model.keras")


def through_preset(model, folder):
    model.save_to_preset(folder / "preset")
    return from_preset(str(folder / "preset"), task="text_classifier")


def trainable(model):
    return [
        [weight.path.rpartition("/")[2], tuple(weight.shape)]
        for weight in model.trainable_variables
    ]


@pytest.mark.parametrize(
    ("through", "frozen"),
    [
        (through_keras, False),
        (through_preset, True),
        pytest.param(through_keras, True, marks=pytest.mark.slow),
        pytest.param(through_preset, False, marks=pytest.mark.slow),
    ],
)
def test_a_trained_model_comes_back_whole(tmp_path, through, frozen):
    preprocessor = BertTextClassifierPreprocessor(
        tokenizer(strip_accents=False, split_on_cjk=False), 12, buckets=[12]
    )
    model = BertTextClassifier(
        small_backbone(num_layers=1, dropout=0.0, attention_dropout=0.0),
        preprocessor=preprocessor,
        class_names=["bad", "good"],
    )
    still = [model.backbone.embeddings, model.backbone.pooler] if frozen else []
    for layer in still:
        layer.trainable = False
    before = [weights(layer) for layer in still]
    model.compile(optimizer=adamw(1e-2), jit_compile=False)
    model.fit(TEXTS, LABELS, batch_size=4, verbose=0)
    for layer, values in zip(still, before, strict=True):
        assert_all_equal(weights(layer), values)
    loaded = through(model, tmp_path)

    batch = model.preprocessor(TEXTS)
    np.testing.assert_allclose(to_numpy(loaded(batch)), to_numpy(model(batch)), atol=1e-6)
    assert_all_equal(weights(loaded), weights(model))
    assert loaded.preprocessor.get_config() == model.preprocessor.get_config()
    assert loaded.preprocessor.tokenizer.get_config() == model.preprocessor.tokenizer.get_config()
    assert loaded.class_names == ["bad", "good"]

    assert trainable(loaded) == trainable(model)
    assert int(loaded.optimizer.iterations) == int(model.optimizer.iterations) == 2
    moments = [[to_numpy(v) for v in m.optimizer.variables] for m in (loaded, model)]
    assert max(np.abs(v).max() for v in moments[1][2:]) > 0
    assert_all_equal(*moments)

    # It trains on as the saved model does.
    for each in (loaded, model):
        each.fit(TEXTS, LABELS, batch_size=4, verbose=0)
    for layer, values in zip(still, before, strict=True):
        assert_all_equal(weights(layer), values)
    for one, other in zip(loaded.weights, model.weights, strict=True):
        np.testing.assert_allclose(to_numpy(one), to_numpy(other), atol=1e-6, err_msg=one.path)


@pytest.mark.parametrize(
    "make",
    [
        lambda b: b,
        BertMaskedLM,
        BertNextSentence,
        BertPretrainer,
        lambda b: BertTextEmbedder(b, pooling="max", normalize=True),
    ],
    ids=["backbone", "masked_lm", "next_sentence", "pretrainer", "embedder"],
)
def test_every_task_comes_back_from_a_keras_file(tmp_path, make):
    backbone = small_backbone(
        hidden_activation="gelu_tanh", layer_norm_epsilon=1e-5, causal=True, num_segments=3
    )
    model = make(backbone)
    loaded = through_keras(model, tmp_path)
    assert type(loaded) is type(model)
    batch = masked_inputs() if "mask_positions" in model.input else inputs()
    pairs = zip(*(keras.tree.flatten(m(batch)) for m in (loaded, model)), strict=True)
    for one, other in pairs:
        np.testing.assert_allclose(to_numpy(one), to_numpy(other), atol=1e-6)


def test_the_head_stays_tied_after_loading(tmp_path):
    loaded = through_keras(BertMaskedLM(small_backbone()), tmp_path)
    assert loaded.masked_lm_head.token_embedding is loaded.backbone.token_embedding
    assert sum(tuple(weight.shape) == (20, 8) for weight in loaded.weights) == 1


@pytest.mark.parametrize("name", ["notes.txt", "config.json"])
def test_a_folder_of_other_files_is_not_written_to(tmp_path, name):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / name).write_text('{"model_type": "bert"}')
    with pytest.raises(ValueError, match="mine"):
        text_classifier().save_to_preset(tmp_path / "mine")
    assert [path.name for path in tmp_path.rglob("*")] == ["mine", name]
    assert (tmp_path / "mine" / name).read_text() == '{"model_type": "bert"}'


def test_a_file_in_the_place_of_the_folder_is_kept(tmp_path):
    (tmp_path / "mine").write_text("a file")
    with pytest.raises(ValueError, match="mine"):
        text_classifier().save_to_preset(tmp_path / "mine")
    assert (tmp_path / "mine").read_text() == "a file"


def test_a_failed_save_leaves_nothing_and_the_old_preset_whole(tmp_path, monkeypatch):
    old, new = text_classifier(), text_classifier()

    def fail(path):
        pathlib.Path(path).write_bytes(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr(new, "save_weights", fail)
    with pytest.raises(OSError, match="no space"):
        new.save_to_preset(tmp_path / "preset")
    assert list(tmp_path.iterdir()) == []

    old.save_to_preset(tmp_path / "preset")
    with pytest.raises(OSError, match="no space"):
        new.save_to_preset(tmp_path / "preset")
    assert [path.name for path in tmp_path.iterdir()] == ["preset"]
    loaded = from_preset(str(tmp_path / "preset"), task="text_classifier")
    assert_all_equal(weights(loaded), weights(old))


def test_a_preset_is_replaced_by_a_later_one(tmp_path):
    for model in (text_classifier(), text_classifier(num_classes=5)):
        model.save_to_preset(tmp_path / "preset")
    loaded = from_preset(str(tmp_path / "preset"), task="text_classifier")
    assert loaded.num_classes == 5
    assert sorted(path.name for path in (tmp_path / "preset").iterdir()) == [
        "config.json",
        "model.weights.h5",
        "vocab.txt",
    ]


def test_masks_are_new_in_each_epoch_whatever_the_texts_come_in():
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrst"]
    tokenizer = BertTokenizer(pieces, lowercase=True)
    preprocessor = BertMaskedLMPreprocessor(tokenizer, 32)
    texts = ["a b c d e f g h i j k l m n o p q r s t"] * 4

    class Recorder(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.losses = [*getattr(self, "losses", []), logs["loss"]]

    for x in (texts, tf.data.Dataset.from_tensor_slices(texts).batch(4)):
        backbone = BertBackbone(
            len(pieces), 1, 1, 4, 4, dropout=0.0, attention_dropout=0.0, max_sequence_length=32
        )
        masked_lm = BertMaskedLM(backbone, preprocessor)
        # Nothing is learnt, so only the masks can change the loss.
        masked_lm.compile(optimizer=keras.optimizers.SGD(0.0))
        recorder = Recorder()
        masked_lm.fit(x, epochs=3, shuffle=False, verbose=0, callbacks=[recorder])
        again = Recorder()
        masked_lm.fit(x, epochs=3, shuffle=False, verbose=0, callbacks=again)
        assert len(set(recorder.losses)) == 3
        assert again.losses == recorder.losses


def test_a_pooler_that_the_task_does_not_use_is_left_alone(recwarn):
    backbone = BertBackbone(20, 1, 1, 4, 4)
    masked_lm = BertMaskedLM(backbone)
    before = [ops.convert_to_numpy(v) for v in backbone.pooler.variables]
    inputs = {
        "token_ids": np.ones((4, 3), int),
        "segment_ids": np.zeros((4, 3), int),
        "padding_mask": np.ones((4, 3), int),
        "mask_positions": np.ones((4, 1), int),
    }
    masked_lm.compile(optimizer=adamw(0.1, weight_decay=0.5))
    masked_lm.fit(inputs, np.ones((4, 1), int), sample_weight=np.ones((4, 1)), verbose=0)
    for old, new in zip(before, backbone.pooler.variables, strict=True):
        np.testing.assert_array_equal(ops.convert_to_numpy(new), old)
    assert not [w for w in recwarn if "Gradients do not exist" in str(w.message)]
    # The next task trains it all the same.
    assert BertNextSentence(backbone).backbone.pooler.trainable


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


def test_a_data_loader_is_checked_and_read_like_any_other():
    data = pytest.importorskip("torch.utils.data", reason="the DataLoader is PyTorch's")
    classifier = text_classifier()

    def examples(highest):
        inputs = {name: np.ones(3, int) for name in ("token_ids", "segment_ids", "padding_mask")}
        return [({**inputs, "token_ids": np.array([2, i % highest, 3])}, i % 2) for i in range(8)]

    loader = data.DataLoader(examples(8), batch_size=4)
    classifier.fit(loader, epochs=2, verbose=0)
    assert int(classifier.optimizer.iterations) == 4
    rows, _ = next(iter(data.DataLoader(examples(8), batch_size=8)))
    whole = {name: np.asarray(x) for name, x in rows.items()}
    np.testing.assert_allclose(
        classifier.predict(loader, verbose=0), classifier.predict(whole, verbose=0), atol=1e-6
    )
    wrong = [({**x, "token_ids": np.array([2, 20, 3])}, y) for x, y in examples(8)]
    with pytest.raises(ValueError, match="below 20"):
        classifier.fit(data.DataLoader(wrong, batch_size=4), verbose=0)


@pytest.mark.parametrize("label", [-1, 2])
def test_a_label_that_is_no_class_is_refused(label):
    labels = [0, 1, label, 0, 1, 0, 1, 0]
    with pytest.raises(ValueError, match=f"below 2, the number of classes. Received: {label}"):
        text_classifier().fit(TEXTS, labels, verbose=0)


@pytest.mark.parametrize("convert", [list, np.array, ops.convert_to_tensor, tf.constant])
def test_labels_and_weights_may_be_lists_arrays_and_tensors(convert):
    classifier = text_classifier()
    labels, weights = convert([0, 1] * 4), convert([1.0, 2.0] * 4)
    classifier.fit(TEXTS, labels, sample_weight=weights, verbose=0)
    assert int(classifier.optimizer.iterations) == 1


def test_one_hot_labels_train_with_their_own_loss():
    classifier = text_classifier()
    loss = keras.losses.CategoricalCrossentropy(from_logits=True)
    classifier.compile(loss=loss, metrics=["accuracy"])
    history = classifier.fit(TEXTS, np.eye(2)[LABELS], verbose=0).history
    assert sorted(history) == ["accuracy", "loss"]


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_scales_the_loss_if_need_be_and_keeps_the_warm_up(policy):
    tokenizer = BertTokenizer(VOCABULARY, lowercase=True)
    preprocessor = BertTextClassifierPreprocessor(tokenizer, 16)
    classifier = BertTextClassifier(small_backbone(dtype=policy), 2, preprocessor)
    rates = []

    class Recorder(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            optimizer = self.model.optimizer
            optimizer = getattr(optimizer, "inner_optimizer", optimizer)
            rates.append(float(ops.convert_to_numpy(optimizer.learning_rate)))

    classifier.fit(TEXTS, LABELS, batch_size=2, epochs=5, verbose=0, callbacks=Recorder())
    scaled = isinstance(classifier.optimizer, keras.optimizers.LossScaleOptimizer)
    assert scaled == (policy == "mixed_float16")
    assert rates[0] == 0
    assert rates[2] == max(rates) == pytest.approx(5e-5)
    assert np.isfinite(classifier.predict(TEXTS, verbose=0)).all()
    assert {v.dtype for v in classifier.trainable_variables} == {"float32"}


def test_validation_texts_come_in_batches_of_the_same_size():
    sizes = []

    class Recorder(keras.callbacks.Callback):
        def on_test_batch_end(self, batch, logs=None):
            sizes.append(batch)

    for arguments in ({}, {"validation_batch_size": 4}):
        text_classifier().fit(
            TEXTS,
            LABELS,
            batch_size=2,
            validation_data=(TEXTS, LABELS),
            verbose=0,
            callbacks=Recorder(),
            **arguments,
        )
    assert sizes == [0, 1, 2, 3, 0, 1]


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


def test_the_old_preset_stays_if_the_new_one_cannot_take_its_place(tmp_path, monkeypatch):
    text_classifier().save_to_preset(tmp_path / "preset")
    before = (tmp_path / "preset" / "config.json").read_bytes()
    rename = pathlib.Path.rename

    def fail(path, target):
        if path.name.endswith(".old") or "preset" not in pathlib.Path(target).name[:6]:
            return rename(path, target)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(pathlib.Path, "rename", fail)
        text_classifier(num_classes=3).save_to_preset(tmp_path / "preset")
    assert (tmp_path / "preset" / "config.json").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["preset"]
