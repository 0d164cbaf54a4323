"""The training step that `fit` runs, as accelerators get it: lowered for TPU, compiled with XLA."""

import re

import keras
import numpy as np
import pytest

from keras_bert_zoo.models import BertBackbone, BertPretrainer
from keras_bert_zoo.training import adamw, lamb, step_flops

BATCH, LENGTH, PREDICTIONS = 8, 128, 20
SMALL = {
    "vocabulary_size": 3000,
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 128,
    "intermediate_dim": 512,
}
BASE = {
    "vocabulary_size": 30522,
    "num_layers": 12,
    "num_heads": 12,
    "hidden_dim": 768,
    "intermediate_dim": 3072,
}
SIZES = [pytest.param(SMALL, id="small"), pytest.param(BASE, id="base", marks=pytest.mark.slow)]

on_jax = pytest.mark.skipif(keras.backend.backend() != "jax", reason="the step of JAX")
on_tensorflow = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="the step of TensorFlow"
)


def pretraining_batch():
    """Return one batch as `fit` gets it: inputs, labels, weights."""
    rng = np.random.default_rng(0)

    def integers(below, *shape):
        return rng.integers(0, below, shape, dtype="int32")

    inputs = {
        "token_ids": integers(3000, BATCH, LENGTH),
        "segment_ids": integers(2, BATCH, LENGTH),
        "padding_mask": np.ones((BATCH, LENGTH), "int32"),
        "mask_positions": integers(LENGTH, BATCH, PREDICTIONS),
    }
    labels = {
        "masked_lm": integers(3000, BATCH, PREDICTIONS),
        "next_sentence": integers(2, BATCH),
    }
    weights = {
        "masked_lm": np.ones((BATCH, PREDICTIONS), "float32"),
        "next_sentence": np.ones(BATCH, "float32"),
    }
    return inputs, labels, weights


def jax_step(model):
    """Return the jitted step of `fit`, and the shapes of its arguments."""
    import jax

    batch = pretraining_batch()
    model.optimizer.build(model.trainable_variables)
    model._symbolic_build(data_batch=batch)
    state = [
        [variable.value for variable in variables]
        for variables in (
            model.trainable_variables,
            model.non_trainable_variables,
            model.optimizer.variables,
            model.metrics_variables,
        )
    ]
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (state, batch))
    return jax.jit(model.train_step), shapes


def host_calls(step, shapes):
    """Return what in the step, lowered for TPU, would stop for the host."""
    import jax

    module = jax.export.export(step, platforms=["tpu"])(*shapes).mlir_module()
    assert "stablehlo.dot_general" in module
    calls = re.findall(r"custom_call @(\S*callback\w*)", module)
    return calls + re.findall(r"stablehlo\.(?:send|recv|infeed|outfeed)\b", module)


@on_jax
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("size", SIZES)
def test_the_step_lowers_for_tpu_without_a_host_callback(size, dtype):
    model = BertPretrainer(BertBackbone(**size, dtype=dtype))
    assert host_calls(*jax_step(model)) == []


@on_jax
@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "optimizer"),
    [
        ({"rematerialize": True}, lambda: adamw()),
        ({"dtype": "mixed_float16"}, lambda: adamw(bias_correction=False)),
        ({"dtype": "mixed_bfloat16"}, lambda: lamb(1e-3, gradient_accumulation_steps=4)),
    ],
)
def test_other_ways_to_train_lower_for_tpu_too(options, optimizer):
    model = BertPretrainer(BertBackbone(**SMALL, **options))
    model.compile(optimizer=optimizer())
    assert host_calls(*jax_step(model)) == []


@on_jax
def test_a_step_with_a_host_callback_is_refused():
    import jax

    def step(x):
        jax.debug.callback(lambda value: None, x.sum())
        return x @ x

    with pytest.raises((ValueError, NotImplementedError)):
        host_calls(jax.jit(step), [jax.ShapeDtypeStruct((2, 2), "float32")])


@on_jax
@pytest.mark.parametrize("size", SIZES)
def test_the_compiled_step_does_little_but_the_model_s_products(size):
    model = BertPretrainer(BertBackbone(**size))
    step, shapes = jax_step(model)
    measured = step.lower(*shapes).compile().cost_analysis()["flops"]
    needed = step_flops(model.backbone, BATCH, LENGTH, PREDICTIONS)
    assert 1 <= measured / needed <= 1.10


@on_tensorflow
@pytest.mark.parametrize("rematerialize", [False, True])
def test_the_step_compiled_with_xla_trains_as_without(rematerialize):
    losses = []
    for jit_compile in (False, True):
        keras.utils.set_random_seed(0)
        size = {**SMALL, "num_layers": 1}
        backbone = BertBackbone(
            **size, dropout=0.0, attention_dropout=0.0, rematerialize=rematerialize
        )
        model = BertPretrainer(backbone)
        model.compile(optimizer=adamw(1e-3), jit_compile=jit_compile)
        inputs, labels, weights = pretraining_batch()
        batch = {"x": inputs, "y": labels, "sample_weight": weights}
        losses.append([float(model.train_on_batch(**batch)[0]) for _ in range(3)])
    assert losses[0][2] < losses[0][0]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
