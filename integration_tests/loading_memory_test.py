"""Loading large checkpoints, in processes of their own: what memory it takes, and many devices."""

import json
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest
from safetensors.numpy import save_file

import keras_bert_zoo as zoo
from keras_bert_zoo.checkpoints.huggingface import POOLER_RULES, backbone_rules

pytestmark = pytest.mark.slow

if not pathlib.Path("/proc/self/clear_refs").exists():
    pytest.skip(
        "the peak of a process's memory is read from Linux's /proc", allow_module_level=True
    )

# The high-water mark starts anew once everything that any load needs has been imported.
PROGRAM = """
import pathlib
import re
import sys
import keras_bert_zoo as zoo

def kilobytes(name):
    return int(re.search(name + r":\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1])

zoo.from_preset(sys.argv[1])
before = kilobytes("VmRSS")
pathlib.Path("/proc/self/clear_refs").write_text("5")
backbone = zoo.from_preset(sys.argv[2])
print((kilobytes("VmHWM") - before) * 1024)
"""


def write_checkpoint(folder, vocabulary_size, layers, width, heads, intermediate):
    """Write random weights as transformers names and lays them out."""
    folder.mkdir()
    config = {
        "model_type": "bert",
        "vocab_size": vocabulary_size,
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": heads,
        "intermediate_size": intermediate,
    }
    (folder / "config.json").write_text(json.dumps(config))
    tables = {"word": vocabulary_size, "position": 512, "token_type": 2}

    def shape(name):
        if name.endswith("embeddings.weight"):
            return tables[name.split(".")[1].removesuffix("_embeddings")], width
        outputs = intermediate if ".intermediate." in name else width
        if "LayerNorm" in name or name.endswith("bias"):
            return (outputs,)
        is_second = name.endswith("output.dense.weight") and ".attention." not in name
        return outputs, intermediate if is_second else width

    rules = [*backbone_rules(layers, heads), *POOLER_RULES]
    rng = np.random.default_rng(0)
    tensors = {
        name: rng.random(shape(name), dtype="float32") for rule in rules for name in rule.theirs
    }
    save_file(tensors, folder / "model.safetensors")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    write_checkpoint(folder / "small", 100, 1, 8, 2, 16)
    write_checkpoint(folder / "base", 30522, 12, 768, 12, 3072)
    return folder


def test_loading_holds_one_copy_of_the_weights_and_one_tensor(checkpoints):
    check_peak(checkpoints, "model.safetensors")


def test_loading_an_own_preset_holds_one_copy_of_the_weights_and_one_tensor(checkpoints, tmp_path):
    for name in ("small", "base"):
        zoo.from_preset(checkpoints / name).save_to_preset(tmp_path / name)
    check_peak(tmp_path, "model.weights.h5")


def check_peak(folder, weights):
    """Load a BASE, once all that loading needs is loaded itself."""
    size = (folder / "base" / weights).stat().st_size
    assert size > 109_482_240 * 4
    peak = int(run(PROGRAM, folder / "small", folder / "base"))
    assert peak <= 1.3 * size, f"{peak / size:.2f} times the file"


# Keras makes a variable of 250 MB, over all devices, where its parts are to be.
SPLIT = """
import sys
import jax
jax.config.update("jax_num_cpu_devices", 2)
import keras_bert_zoo as zoo
import numpy as np
from safetensors.numpy import load_file

zoo.training.distribute("data+model", model_devices=2)
backbone = zoo.from_preset(sys.argv[1])
tensors = load_file(sys.argv[1] + "/model.safetensors")
table = tensors["embeddings.word_embeddings.weight"]
assert np.array_equal(np.asarray(backbone.token_embedding.embeddings), table)
kernel = backbone.encoder_layers[0].intermediate_dense.kernel
assert len({str(shard.index) for shard in kernel.value.addressable_shards}) == 2
assert np.array_equal(np.asarray(kernel), tensors["encoder.layer.0.intermediate.dense.weight"].T)
"""


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="only JAX splits a model")
def test_a_model_split_over_devices_is_loaded(tmp_path):
    write_checkpoint(tmp_path / "wide", 40_000, 1, 1024, 2, 64)
    run(SPLIT, tmp_path / "wide")


def run(program, *arguments):
    """Run a program on this backend and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env={
            **os.environ,
            "KERAS_BACKEND": keras.backend.backend(),
            "TF_CPP_MIN_LOG_LEVEL": "3",
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
