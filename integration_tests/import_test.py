"""Importing the package: how long it takes beside Keras, and what it leaves alone."""

import os
import statistics
import subprocess
import sys

import keras
import pytest

BACKEND = keras.backend.backend()


def python(program):
    environment = {**os.environ, "KERAS_BACKEND": BACKEND, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_import_takes_at_most_a_fifth_longer_than_that_of_keras():
    program = "import time; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"
    ratios = []
    for _ in range(5):
        ours, theirs = (float(python(program.format(n))) for n in ("keras_bert_zoo", "keras"))
        ratios.append(ours / theirs)
    assert statistics.median(ratios) <= 1.2, ratios


def test_import_and_ids_leave_what_they_do_not_need_alone():
    left_alone = ["apache_beam", "keras_hub", "tokenizers"]
    if BACKEND != "tensorflow":
        left_alone.append("tensorflow")
    program = f"""
import sys
import keras_bert_zoo as zoo
assert not [name for name in {left_alone} if name in sys.modules]
backbone = zoo.from_preset("bert_tiny_en_uncased", load_weights=False)
backbone({{"token_ids": [[2, 3]], "segment_ids": [[0, 0]], "padding_mask": [[1, 1]]}})
assert not [name for name in {left_alone} if name in sys.modules]
"""
    python(program)


def test_import_leaves_the_backend_to_be_configured():
    # Each of these fails once the backend has begun to run.
    program = {
        "tensorflow": "import tensorflow as tf\ntf.config.set_logical_device_configuration("
        "tf.config.list_physical_devices('CPU')[0], [tf.config.LogicalDeviceConfiguration()] * 2)",
        "jax": "import jax\njax.config.update('jax_num_cpu_devices', 2)",
        "torch": "import torch\ntorch.set_num_interop_threads(2)",
    }[BACKEND]
    python(f"import keras_bert_zoo\n{program}")
