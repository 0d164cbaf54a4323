"""The cost of a step against the parameters of a real model."""

import pytest

from keras_bert_zoo.models import BertBackbone, BertPretrainer
from keras_bert_zoo.training import step_flops


def small_backbone():
    return BertBackbone(
        vocabulary_size=50, num_layers=3, num_heads=2, hidden_dim=8, intermediate_dim=20
    )


def matrix_parameters(*layers):
    weights = [weight for layer in layers for weight in layer.weights]
    return sum(weight.shape[0] * weight.shape[1] for weight in weights if len(weight.shape) == 2)


def test_each_matrix_costs_six_operations_a_parameter_where_it_is_used():
    backbone = small_backbone()
    model = BertPretrainer(backbone)
    batch, length, predictions = 4, 16, 3
    *whole, last = backbone.encoder_layers
    last_qkv = matrix_parameters(last.attention.qkv)
    last_others = matrix_parameters(last) - last_qkv
    read = 1 + predictions
    attention_products, queries = 2, length * len(whole) + read
    expected = batch * (
        6 * length * (matrix_parameters(*whole) + last_qkv)
        + 6 * read * last_others
        + 3 * queries * attention_products * 2 * length * 8
        + 6 * matrix_parameters(backbone.pooler, model.next_sentence_head)
        + 6 * predictions * matrix_parameters(model.masked_lm_head.dense)
        + 6 * predictions * matrix_parameters(backbone.token_embedding)
    )
    assert step_flops(backbone, batch, length, predictions) == expected


def test_what_is_computed_again_does_not_count():
    backbone = small_backbone()
    once = step_flops(backbone, 2, 8)
    backbone.rematerialize = True
    assert step_flops(backbone, 2, 8) == once


@pytest.mark.parametrize("name", ["batch", "length", "predictions"])
@pytest.mark.parametrize("value", [-1, 2.5])
def test_wrong_sizes_are_named(name, value):
    sizes = {"batch": 2, "length": 8, "predictions": 1, name: value}
    with pytest.raises(ValueError, match=name):
        step_flops(small_backbone(), **sizes)
