"""What one backend saves or computes, the others load and compute too."""

import importlib.util
import json
import os
import subprocess
import sys

import numpy as np
import pytest

BACKENDS = ["tensorflow", "jax", "torch"]
missing = [name for name in BACKENDS if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.backend_free,
    pytest.mark.skipif(bool(missing), reason=f"not installed: {missing}"),
]

SETUP = """
import json, sys
import keras, numpy as np
import keras_bert_zoo as zoo

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnop"]
TEXTS = ["a b c", "d e f g h", "i", "j k l m n o p a b c", ""]

def backbone(dropout):
    return zoo.models.BertBackbone(
        vocabulary_size=len(PIECES), num_layers=2, num_heads=2, hidden_dim=32,
        intermediate_dim=64, max_sequence_length=32, dropout=dropout, attention_dropout=dropout)
"""

SAVE = """
keras.utils.set_random_seed(1)
tokenizer = zoo.preprocessing.BertTokenizer(PIECES, lowercase=True)
classifier = zoo.models.BertTextClassifier(
    backbone(0.1), num_classes=3,
    preprocessor=zoo.preprocessing.BertTextClassifierPreprocessor(tokenizer, 16))
classifier.fit(TEXTS, np.array([0, 1, 2, 0, 1]), epochs=3, batch_size=2, verbose=0)
classifier.save_to_preset(sys.argv[1])
np.save(sys.argv[2], classifier.predict(TEXTS, verbose=0))
"""

LOAD = """
for folder in sys.argv[1:]:
    classifier = zoo.from_preset(folder, "text_classifier")
    assert int(classifier.optimizer.iterations) == 9
    predictions = classifier.predict(TEXTS, verbose=0)
    np.testing.assert_allclose(predictions, np.load(f"{folder}.npy"), atol=1e-5, rtol=0)
"""

TRAIN = """
pretrainer = zoo.models.BertPretrainer(backbone(0.0))
rng = np.random.default_rng(0)
for weight in pretrainer.trainable_variables:
    weight.assign(rng.normal(0, 0.05, weight.shape) + (weight.name == "gamma"))
schedule = zoo.training.WarmupLinearDecay(1e-3, total_steps=100)
pretrainer.compile(optimizer=zoo.training.adamw(schedule))
losses = []
for _ in range(100):
    ids = rng.integers(5, len(PIECES), (8, 24))
    real = np.arange(24)[None] < rng.integers(8, 25, (8, 1))
    batch = {
        "token_ids": ids * real,
        "segment_ids": (np.arange(24)[None] >= 6) * real,
        "padding_mask": real.astype(int),
        "mask_positions": np.sort(rng.integers(0, 8, (8, 4)), axis=1),
    }
    labels = {"masked_lm": rng.integers(5, 12, (8, 4)), "next_sentence": rng.integers(0, 2, 8)}
    weights = {"masked_lm": rng.integers(0, 2, (8, 4)).astype("float32"),
               "next_sentence": np.ones(8, "float32")}
    pretrainer.reset_metrics()
    logs = pretrainer.train_on_batch(batch, labels, weights, return_dict=True)
    losses.append(float(logs["loss"]))
print(json.dumps(losses))
"""


def run(backend, program, *arguments):
    """Run a program in a process of its own and return what it printed."""
    environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SETUP + program, *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_a_preset_saved_on_one_backend_predicts_the_same_on_the_others(tmp_path):
    for saved_on in BACKENDS:
        run(saved_on, SAVE, tmp_path / saved_on, tmp_path / f"{saved_on}.npy")
    for loaded_on in BACKENDS:
        others = [tmp_path / saved_on for saved_on in BACKENDS if saved_on != loaded_on]
        run(loaded_on, LOAD, *others)


def test_a_hundred_training_steps_have_the_same_losses():
    losses = [np.array(json.loads(run(backend, TRAIN))) for backend in BACKENDS]
    assert losses[0].shape == (100,)
    assert losses[0][-10:].mean() < losses[0][:10].mean()
    for other in losses[1:]:
        np.testing.assert_allclose(other[:10], losses[0][:10], rtol=1e-5)
        np.testing.assert_allclose(other, losses[0], rtol=1e-3)
