"""What the mixin under every model does to Keras's own training."""

import keras
import numpy as np
import pytest

from keras_bert_zoo.models import BertBackbone, BertTextClassifier
from keras_bert_zoo.training import WarmupLinearDecay, adamw


def inputs(rows):
    rng = np.random.default_rng(0)
    ids = rng.integers(5, 50, (rows, 8))
    return {
        "token_ids": ids,
        "segment_ids": np.zeros_like(ids),
        "padding_mask": np.ones_like(ids),
    }


def classifier(dropout):
    keras.utils.set_random_seed(0)
    backbone = BertBackbone(
        vocabulary_size=50,
        num_layers=1,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=16,
        max_sequence_length=8,
        dropout=dropout,
        attention_dropout=0.0,
    )
    model = BertTextClassifier(backbone, num_classes=3)
    # The weights stay, so only dropout can tell one step from another.
    model.compile(optimizer=keras.optimizers.SGD(0.0))
    return model


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_training_drops_and_evaluation_does_not(dropout):
    x, y = inputs(4), np.array([0, 1, 2, 0])
    model = classifier(dropout)
    trained = model.fit(x, y, epochs=3, shuffle=False, verbose=0).history["loss"]
    evaluated = [model.evaluate(x, y, verbose=0, return_dict=True)["loss"] for _ in range(2)]
    assert evaluated[0] == evaluated[1]
    assert len(set(trained)) == (3 if dropout else 1)
    on_batch = {float(model.train_on_batch(x, y, return_dict=True)["loss"]) for _ in range(3)}
    assert len(on_batch) == (3 if dropout else 1)


@pytest.mark.parametrize("per_step", [None, 2])
def test_a_fits_schedule_counts_the_optimisers_steps(per_step):
    model = classifier(0.0)
    schedule = WarmupLinearDecay(1.0, warmup=0.0)
    model.compile(optimizer=adamw(schedule, gradient_accumulation_steps=per_step))
    for _ in range(2):
        model.fit(inputs(4), np.array([0, 1, 2, 0]), batch_size=1, epochs=2, verbose=0)
        done = int(model.optimizer._iterations.numpy()) // (per_step or 1)
        # At its end a fit's rate is 0; a step before that it is one step's share of the peak.
        assert float(schedule(done)) == 0
        np.testing.assert_allclose(float(schedule(done - 1)), 1 / (8 // (per_step or 1)), rtol=1e-5)
