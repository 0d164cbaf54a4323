"""Models on texts: `fit`, `evaluate` and `predict` of strings."""

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
    BertTokenClassifier,
    text_model,
)
from keras_bert_zoo.models.models_test import (
    LABELS,
    TEXTS,
    VOCABULARY,
    inputs,
    randomised,
    small_backbone,
    text_classifier,
    to_numpy,
    tokenizer,
    with_constant_output,
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


def test_predictions_follow_what_the_preprocessor_is_set_to():
    classifier = randomised(text_classifier())
    texts = (["a b c d e f g h i j k l m n o"], ["h g f e d c b a"])
    before = classifier.predict(texts, verbose=0)
    classifier.preprocessor.truncation = "only_first"
    expected = classifier.predict(classifier.preprocessor(*texts), verbose=0)
    np.testing.assert_allclose(classifier.predict(texts, verbose=0), expected, atol=1e-6)
    assert np.abs(expected - before).max() > 1e-4


def test_a_batch_size_may_be_numpy_s_and_steps_are_for_data_sets():
    classifier = text_classifier()
    assert classifier.predict(TEXTS[:5], batch_size=np.int64(4), verbose=0).shape == (5, 2)
    with pytest.raises(ValueError, match="texts in memory as a whole. Received: steps=1"):
        classifier.predict(TEXTS, steps=1)


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
