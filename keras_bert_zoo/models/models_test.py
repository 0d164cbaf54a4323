"""What the models compute: sizes, hidden states, poolings and losses."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from keras_bert_zoo.models import (
    BertBackbone,
    BertMaskedLM,
    BertNextSentence,
    BertPretrainer,
    BertTextClassifier,
    BertTextEmbedder,
)
from keras_bert_zoo.preprocessing import (
    BertTextClassifierPreprocessor,
    BertTokenizer,
)

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
