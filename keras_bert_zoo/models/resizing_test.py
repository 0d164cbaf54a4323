"""Models that grow and shrink: what changes, and what stays to the bit."""

import keras
import numpy as np
import pytest

from keras_bert_zoo.models import (
    BertBackbone,
    BertMaskedLM,
    BertTextClassifier,
    add_tokens,
    keep_layers,
    resize_positions,
)
from keras_bert_zoo.preprocessing import (
    BertMaskedLMPreprocessor,
    BertTextClassifierPreprocessor,
    BertTokenizer,
)

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcd", "##c", "##d"]


def backbone(**arguments):
    return BertBackbone(
        **{
            "vocabulary_size": len(VOCABULARY),
            "num_layers": 3,
            "num_heads": 2,
            "hidden_dim": 8,
            "intermediate_dim": 16,
            "max_sequence_length": 12,
            **arguments,
        }
    )


def randomised(model):
    rng = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(rng.normal(scale=0.5, size=weight.shape))
    return model


def masked_lm(**arguments):
    tokenizer = BertTokenizer(VOCABULARY, lowercase=True)
    return randomised(
        BertMaskedLM(backbone(**arguments), BertMaskedLMPreprocessor(tokenizer, 12, seed=3))
    )


def classifier():
    tokenizer = BertTokenizer(VOCABULARY, lowercase=True)
    preprocessor = BertTextClassifierPreprocessor(tokenizer, 12)
    return randomised(BertTextClassifier(backbone(), 2, preprocessor, class_names=["n", "y"]))


def weights(model):
    return {weight.path: keras.ops.convert_to_numpy(weight.value) for weight in model.weights}


TABLE, BIAS = "embeddings/token_embedding/embeddings", "masked_lm_head/bias"
POSITIONS = "embeddings/position_embedding/embeddings"


def test_five_new_tokens_grow_the_table_and_the_bias_and_change_no_old_row():
    model = masked_lm()
    before = weights(model)
    grown = add_tokens(model, ["ac", "acd", "bd", "##a", "dd"])
    after = weights(grown)
    assert grown.backbone.vocabulary_size == grown.preprocessor.tokenizer.vocabulary_size == 16
    for path, value in before.items():
        assert len(after[path]) == len(value) + (5 if path in (TABLE, BIAS) else 0)
        np.testing.assert_array_equal(after[path][: len(value)], value, err_msg=path)
    # `acd` was a, ##c, ##d.
    pieces = [5, 9, 10]
    np.testing.assert_allclose(after[TABLE][12], before[TABLE][pieces].mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(after[BIAS][12], before[BIAS][pieces].mean(), atol=1e-6)
    assert grown.preprocessor.tokenizer(["acd b dd"]).to_list() == [[12, 6, 15]]
    assert grown.preprocessor.masker.seed == 3
    assert weights(model).keys() == before.keys() and len(weights(model)[TABLE]) == 11


def test_rows_that_no_token_had_are_taken_first():
    encoder = randomised(backbone(vocabulary_size=16))
    tokenizer = BertTokenizer(VOCABULARY, lowercase=True)
    encoder.preprocessor = BertTextClassifierPreprocessor(tokenizer, 12)
    grown = add_tokens(encoder, ["ac"])
    assert grown.vocabulary_size == 16
    np.testing.assert_array_equal(weights(grown)[TABLE][12:], weights(encoder)[TABLE][12:])


@pytest.mark.parametrize(
    "tokens, message",
    [
        (["a"], "'a' twice, as ids 5 and 11"),
        (["Ac"], r"'Ac' can never occur: the tokenizer makes \['a', '##c'\]"),
        (["a-b"], "'a-b' can never occur"),
        (["[E1]"], r"'\[E1\]' can never occur"),
    ],
)
def test_tokens_that_can_not_be_added_are_refused(tokens, message):
    with pytest.raises(ValueError, match=message):
        add_tokens(classifier(), tokens)


def test_without_a_vocabulary_no_token_is_added():
    with pytest.raises(ValueError, match="must have a preprocessor"):
        add_tokens(backbone(), ["ac"])


def test_layers_that_stay_keep_their_weights_in_their_order():
    model = classifier()
    model.backbone.encoder_layers[2].trainable = False
    before = weights(model)
    shorter = keep_layers(model, [0, 2])
    after = weights(shorter)
    assert shorter.backbone.num_layers == 2
    moved = {path.replace("encoder_layer_1", "encoder_layer_2"): path for path in after}
    assert moved.keys() == {path for path in before if "encoder_layer_1" not in path}
    for old, new in moved.items():
        np.testing.assert_array_equal(after[new], before[old], err_msg=new)
    assert [layer.trainable for layer in shorter.backbone.encoder_layers] == [True, False]
    assert shorter.class_names == ["n", "y"]


@pytest.mark.parametrize("layers", [[], [0, 3], [1, 0], [0, 0], [-1]])
def test_layers_that_are_not_there_are_refused(layers):
    with pytest.raises(ValueError, match="numbers from 0 to 2 in ascending order"):
        keep_layers(backbone(), layers)


def test_fewer_positions_are_the_first_ones():
    model = classifier()
    shorter = resize_positions(model, 8)
    np.testing.assert_array_equal(weights(shorter)[POSITIONS], weights(model)[POSITIONS][:8])
    assert shorter.preprocessor.sequence_length == shorter.backbone.max_sequence_length == 8


def test_more_positions_repeat_the_table_and_are_said_to_be_new():
    model = classifier()
    with pytest.warns(UserWarning, match="positions from 12 to 29 repeat the first"):
        longer = resize_positions(model, 30)
    table, old = weights(longer)[POSITIONS], weights(model)[POSITIONS]
    np.testing.assert_array_equal(table, np.concatenate([old, old, old[:6]]))
    assert longer.preprocessor.sequence_length == 30


@pytest.mark.slow
def test_a_resized_model_is_trained_and_saved_as_any_other(tmp_path):
    from keras_bert_zoo import from_preset

    model = classifier()
    model.fit(["a b", "c"], [0, 1], verbose=0)
    with pytest.warns(UserWarning, match="repeat the first"):
        longer = resize_positions(add_tokens(model, ["ac"]), 16)
    resized = keep_layers(longer, range(2))
    resized.fit(["a b " * 9, "ac"], [0, 1], verbose=0)
    resized.save_to_preset(tmp_path / "preset")
    loaded = from_preset(tmp_path / "preset", "text_classifier")
    np.testing.assert_array_equal(
        loaded.predict(["ac b"], verbose=0), resized.predict(["ac b"], verbose=0)
    )


def test_lora_is_refused():
    model = backbone()
    model.encoder_layers[0].intermediate_dense.enable_lora(2)
    with pytest.raises(ValueError, match="has LoRA or is quantised"):
        keep_layers(model, [0])
