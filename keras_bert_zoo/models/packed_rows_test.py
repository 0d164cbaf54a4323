"""Examples that share a row get what each of them gets in a row of its own."""

import keras
import numpy as np
import pytest

from keras_bert_zoo.models import (
    BertBackbone,
    BertMaskedLM,
    BertPretrainer,
    BertTextClassifier,
    BertTextEmbedder,
)

LENGTHS = (5, 7, 3)
STARTS = (0, 5, 12)
ROOM = 18


def backbone(**arguments):
    keras.utils.set_random_seed(0)
    model = BertBackbone(
        vocabulary_size=50,
        num_layers=2,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=16,
        max_sequence_length=20,
        **arguments,
    )
    rng = np.random.default_rng(0)
    for weight in model.trainable_variables:
        weight.assign(rng.normal(scale=0.4, size=weight.shape))
    return model


def examples():
    rng = np.random.default_rng(1)
    return [
        {
            "token_ids": rng.integers(5, 50, (1, length)),
            "segment_ids": np.sort(rng.integers(0, 2, (1, length))),
            "padding_mask": np.ones((1, length), int),
            "mask_positions": np.array([[1, length - 1]]),
        }
        for length in LENGTHS
    ]


def packed_row():
    row = {}
    for name in ("token_ids", "segment_ids", "padding_mask"):
        values = np.concatenate([example[name] for example in examples()], axis=1)
        row[name] = np.pad(values, [(0, 0), (0, ROOM - values.shape[1])])
    positions = [e["mask_positions"] + s for e, s in zip(examples(), STARTS, strict=True)]
    row["mask_positions"] = np.concatenate(positions, axis=1)
    # One more than there are examples: what fills it up begins at 0.
    row["example_starts"] = np.array([[*STARTS, 0]])
    return row


def padded_rows():
    longest = max(LENGTHS)
    return {
        name: np.concatenate(
            [np.pad(e[name], [(0, 0), (0, longest - e[name].shape[1])]) for e in examples()]
        )
        for name in ("token_ids", "segment_ids", "padding_mask")
    }


def run(model, inputs):
    names = set(model.input)
    outputs = model({name: x for name, x in inputs.items() if name in names})
    return keras.tree.map_structure(keras.ops.convert_to_numpy, outputs)


def assert_close(packed, single):
    np.testing.assert_allclose(packed, single, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("arguments", [{}, {"causal": True}])
def test_states_are_those_of_rows_of_their_own(arguments):
    model = backbone(**arguments)
    packed = run(model, packed_row())
    assert packed["pooled_output"].shape == (1, 4, 8)
    for i, (example, start) in enumerate(zip(examples(), STARTS, strict=True)):
        single = run(model, example)
        end = start + LENGTHS[i]
        assert_close(packed["sequence_output"][:, start:end], single["sequence_output"])
        assert_close(packed["pooled_output"][:, i], single["pooled_output"])


def test_layer_states_and_attention_stay_inside_an_example():
    model = backbone()
    row = {name: x for name, x in packed_row().items() if name != "mask_positions"}
    last = keras.ops.convert_to_numpy(model.hidden_states(row)[-1])
    assert_close(last, run(model, row)["sequence_output"])
    for scores in model.attention_scores(row):
        scores = keras.ops.convert_to_numpy(scores)
        inside = np.zeros((ROOM, ROOM), bool)
        for start, length in zip(STARTS, LENGTHS, strict=True):
            inside[start : start + length, start : start + length] = True
        real = sum(LENGTHS)
        assert not scores[:, :, :real][..., ~inside[:real]].any()


@pytest.mark.parametrize("pooling", ["mean", "max", "cls"])
def test_vectors_are_those_of_rows_of_their_own(pooling):
    model = BertTextEmbedder(backbone(), pooling=pooling)
    packed = run(model, packed_row())
    for i, example in enumerate(examples()):
        assert_close(packed[:, i], run(model, example))


def test_pretraining_logits_are_those_of_rows_of_their_own():
    model = BertPretrainer(backbone())
    packed = run(model, packed_row())
    for i, example in enumerate(examples()):
        single = run(model, example)
        assert_close(packed["masked_lm"][:, 2 * i : 2 * i + 2], single["masked_lm"])
        assert_close(packed["next_sentence"][:, i], single["next_sentence"])


@pytest.mark.parametrize("pooling", ["pooled", "mean"])
def test_a_step_on_a_packed_row_is_a_step_on_its_examples(pooling):
    encoder = backbone(dropout=0.0, attention_dropout=0.0)
    classifier = BertTextClassifier(encoder, num_classes=3, pooling=pooling)
    start = classifier.get_weights()

    def weights_after(inputs, y, sample_weight):
        classifier.set_weights(start)
        classifier.compile(optimizer=keras.optimizers.SGD(0.1))
        names = [*classifier.input]
        inputs = {name: inputs[name] for name in names if name in inputs}
        classifier.fit(inputs, y, sample_weight=sample_weight, verbose=0, shuffle=False)
        return classifier.get_weights()

    packed = weights_after(packed_row(), np.array([[0, 1, 2, 0]]), np.array([[1.0, 1, 1, 0]]))
    single = weights_after(padded_rows(), np.array([0, 1, 2]), None)
    for one, other in zip(packed, single, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 2, 4])
@pytest.mark.parametrize("activation", [None, "sigmoid"])
def test_one_output_has_the_loss_of_rows_of_their_own(activation, rows):
    model = BertTextClassifier(backbone(), num_classes=1, activation=activation)
    y = np.array([0.0, 1.0, 1.0], "float32")
    padded = padded_rows()
    row = {name: np.repeat(x, rows, axis=0) for name, x in packed_row().items()}
    del row["mask_positions"]
    packed_y = np.repeat([[*y, 0.0]], rows, axis=0)
    weights = np.repeat([[1.0, 1.0, 1.0, 0.0]], rows, axis=0)
    options = {"batch_size": rows, "verbose": 0, "return_dict": True}
    packed = model.evaluate(row, packed_y, sample_weight=weights, **options)
    single = model.evaluate(padded, y, batch_size=3, verbose=0, return_dict=True)
    assert packed == pytest.approx(single, rel=1e-5)


def test_one_model_takes_packed_rows_and_others_in_turn():
    model = BertMaskedLM(backbone())
    plain = examples()[0]
    labels = np.array([[7, 8]])
    losses = [model.evaluate(plain, labels, verbose=0)]
    row = packed_row()
    model.evaluate(row, np.array([[7, 8, 9, 10, 11, 12]]), verbose=0)
    losses.append(model.evaluate(plain, labels, verbose=0))
    assert losses[0] == losses[1]


@pytest.mark.parametrize("starts", [[[0, ROOM]], [[-1, 5]], [0, 5]])
def test_starts_outside_the_row_are_refused(starts):
    row = {name: x for name, x in packed_row().items() if name != "mask_positions"}
    with pytest.raises(ValueError, match="`example_starts` must"):
        backbone()({**row, "example_starts": np.array(starts)})
