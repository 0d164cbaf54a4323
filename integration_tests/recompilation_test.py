"""A model is compiled for each shape of batch once, and for no other reason."""

import keras
import numpy as np
import pytest

from keras_bert_zoo.models import BertBackbone, BertTextClassifier
from keras_bert_zoo.preprocessing import BertTextClassifierPreprocessor, BertTokenizer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"]


class Compilations:
    """Counts the programs that the backend makes: JAX's by its own account, TensorFlow's traces."""

    def __init__(self, model):
        self.model, self.count = model, 0
        if keras.backend.backend() == "jax":
            import jax

            jax.monitoring.register_event_duration_secs_listener(self.note)

    def note(self, event, duration, **facts):
        """Count an event of JAX's if it is a compilation."""
        self.count += event == "/jax/core/compile/backend_compile_duration"

    def so_far(self):
        """Return how many there were."""
        if keras.backend.backend() == "jax":
            return self.count
        return self.model.traces


class CountedClassifier(BertTextClassifier):
    """Counts its training step's traces: Python runs it only while a program is made."""

    traces = 0

    def train_step(self, *args):
        """Train as ever."""
        self.traces += 1
        return super().train_step(*args)


def classifier():
    """Return a small model that takes up to 32 pieces."""
    tokenizer = BertTokenizer(PIECES, lowercase=True)
    preprocessor = BertTextClassifierPreprocessor(tokenizer, sequence_length=32)
    backbone = BertBackbone(
        vocabulary_size=7, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16
    )
    return CountedClassifier(backbone, num_classes=2, preprocessor=preprocessor)


@pytest.mark.skipif(keras.backend.backend() == "torch", reason="PyTorch compiles nothing here")
def test_nothing_is_compiled_after_an_epoch_with_all_shapes():
    model = classifier()
    lengths = np.random.default_rng(0).integers(1, 28, size=64)
    texts = ["a " * length for length in lengths]
    compilations, after_epoch = Compilations(model), []
    note = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: after_epoch.append(compilations.so_far())
    )
    model.fit(texts, lengths % 2, batch_size=8, epochs=4, callbacks=[note], verbose=0)
    assert after_epoch[0] > 0
    assert after_epoch == [after_epoch[0]] * 4


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="JAX compiles for each shape")
def test_numbers_of_texts_share_programs():
    model = classifier()
    texts = ["a b " * (i % 3) for i in range(32)]
    expected = np.asarray(model(model.preprocessor(texts)))
    compilations = Compilations(model)
    for count in range(1, 33):
        predicted = model.predict(texts[:count], batch_size=32, verbose=0)
        np.testing.assert_allclose(predicted, expected[:count], atol=1e-6)
    # Of 1, 2, 4, 8, 16 and 32 rows.
    assert compilations.so_far() == 6
