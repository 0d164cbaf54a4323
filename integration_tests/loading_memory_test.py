"""What loading a checkpoint of BASE's size takes of memory, in a process of its own."""

import json
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest
from safetensors.numpy import save_file

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


def test_loading_holds_one_copy_of_the_weights_and_one_tensor(tmp_path):
    write_checkpoint(tmp_path / "small", 100, 1, 8, 2, 16)
    write_checkpoint(tmp_path / "base", 30522, 12, 768, 12, 3072)
    size = (tmp_path / "base" / "model.safetensors").stat().st_size
    assert size > 109_482_240 * 4
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "small"), str(tmp_path / "base")],
        env={
            **os.environ,
            "KERAS_BACKEND": keras.backend.backend(),
            "TF_CPP_MIN_LOG_LEVEL": "3",
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= 1.3 * size, f"{int(done.stdout) / size:.2f} times the file"
