"""An exported model where it is served: TensorFlow and tf-text, and nothing of this package."""

import json
import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_bert_zoo.models import BertBackbone, BertTextClassifier
from keras_bert_zoo.preprocessing import BertTextClassifierPreprocessor, BertTokenizer

VOCABULARY = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "fine",
    "film",
    "caf",
    "##es",
    "我",
    "!",
]
FIRST = ["Fine film!", "Cafés", "我们", "", "film " * 40]
SECOND = ["film", "fine fine", "", "Fine?", "!"]

SERVE = """
import json, sys
import tensorflow as tf, tensorflow_text
model = tf.saved_model.load(sys.argv[1])
outputs = model.serve(*(tf.constant(texts) for texts in json.loads(sys.argv[2])))
print(json.dumps({name: x.numpy().tolist() for name, x in outputs.items() if x.dtype != tf.string}))
print(json.dumps([x.decode() for x in outputs["labels"].numpy()] if "labels" in outputs else []))
print(sorted(m for m in sys.modules if m.startswith("keras_bert_zoo")))
"""


def classifier(**arguments):
    keras.utils.set_random_seed(1)
    backbone = BertBackbone(
        vocabulary_size=len(VOCABULARY),
        num_layers=2,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=16,
        max_sequence_length=32,
    )
    tokenizer = BertTokenizer(VOCABULARY, lowercase=True)
    preprocessor = BertTextClassifierPreprocessor(tokenizer, sequence_length=32)
    model = BertTextClassifier(backbone, preprocessor=preprocessor, **arguments)
    rng = np.random.default_rng(0)
    for weight in model.trainable_variables:
        weight.assign(rng.normal(scale=0.3, size=weight.shape))
    return model


@pytest.fixture(scope="module")
def fine_tuned():
    model = classifier(class_names=["bad", "so-so", "good"])
    model.compile(optimizer=keras.optimizers.Adam(3e-3), jit_compile=False)
    losses = model.fit(FIRST, [0, 1, 2, 0, 1], epochs=10, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    return model


def served(folder, *columns):
    done = subprocess.run(
        [sys.executable, "-c", SERVE, str(folder), json.dumps(columns)],
        capture_output=True,
        text=True,
        cwd=folder.parent,
    )
    assert done.returncode == 0, done.stderr
    outputs, labels, modules = done.stdout.splitlines()[-3:]
    assert modules == "[]"
    return json.loads(outputs), json.loads(labels)


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


tensorflow_only = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="a SavedModel is made on TensorFlow"
)


@tensorflow_only
@pytest.mark.parametrize("columns", [(FIRST,), (FIRST, SECOND)])
def test_a_saved_model_gives_probabilities_and_labels_of_strings(tmp_path, fine_tuned, columns):
    expected = softmax(fine_tuned.predict(columns if len(columns) > 1 else columns[0], verbose=0))
    fine_tuned.export(tmp_path / "served", pairs=len(columns) > 1)
    outputs, labels = served(tmp_path / "served", *columns)
    np.testing.assert_allclose(outputs["probabilities"], expected, atol=1e-6)
    assert labels == [["bad", "so-so", "good"][i] for i in expected.argmax(-1)]


@tensorflow_only
def test_a_regressor_serves_a_number(tmp_path):
    model = classifier(num_classes=1)
    model.export(tmp_path / "served")
    outputs, labels = served(tmp_path / "served", FIRST)
    np.testing.assert_allclose(outputs["value"], model.predict(FIRST, verbose=0)[:, 0], atol=1e-6)
    assert labels == []


@tensorflow_only
def test_an_export_replaces_an_export_and_nothing_else(tmp_path):
    model = classifier(num_classes=2)
    model.export(tmp_path / "served")
    model.export(tmp_path / "served")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(ValueError, match="must be new, empty or what `export` wrote"):
        model.export(tmp_path / "mine")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    assert (tmp_path / "mine" / "notes.txt").read_text() == "keep"
