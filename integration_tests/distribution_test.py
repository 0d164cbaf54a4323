"""A training run on several devices or processes is the run on one."""

import functools
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile

import keras
import numpy as np
import pytest

import keras_bert_zoo as zoo

BACKEND = keras.backend.backend()

SETUP = """
import json, os, pathlib, sys
devices, output = int(sys.argv[1]), sys.argv[2]
if os.environ["KERAS_BACKEND"] == "tensorflow":
    import tensorflow as tf
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * devices)
import keras, numpy as np
import keras_bert_zoo as zoo
from keras_bert_zoo.training import checkpoints, distribution

def backbone(dropout):
    return zoo.models.BertBackbone(
        vocabulary_size=50, num_layers=2, num_heads=2, hidden_dim=32, intermediate_dim=64,
        max_sequence_length=32, dropout=dropout, attention_dropout=dropout)

def report(results):
    process = distribution.distribution().process if distribution.distribution() else 0
    with open(f"{output}.{process}", "w") as file:
        json.dump(results, file, default=lambda x: np.asarray(x).tolist())
"""

TRAIN = """
strategy, steps, own_shards = sys.argv[3], int(sys.argv[4]), sys.argv[5] == "True"
parts = None
if strategy != "one":
    parts = distribution.distribute(strategy, reads_own_shard=own_shards)
import tensorflow as tf

model = zoo.models.BertPretrainer(backbone(0.0))
rng = np.random.default_rng(0)
for weight in model.trainable_variables:
    weight.assign(rng.normal(0, 0.05, weight.shape) + (weight.name == "gamma"))
schedule = zoo.training.WarmupLinearDecay(1e-3, total_steps=50)
model.compile(optimizer=zoo.training.adamw(schedule))

# The last batch is smaller, where all see all of it.
rows = 64 * steps - (0 if own_shards else 3)
real = (np.arange(32) < rng.integers(8, 33, (rows, 1))).astype(int)
x = {
    "token_ids": rng.integers(5, 50, (rows, 32)) * real,
    "segment_ids": (np.arange(32) >= 6) * real,
    "padding_mask": real,
    "mask_positions": np.sort(rng.integers(0, 8, (rows, 5)), axis=1),
}
y = {"masked_lm": rng.integers(5, 12, (rows, 5)), "next_sentence": rng.integers(0, 2, rows)}
# The second half of each batch has few masked pieces.
masked = rng.integers(0, 6, rows) // np.where(np.arange(rows) % 64 < 32, 1, 4)
weights = {
    "masked_lm": (np.arange(5) < masked[:, None]).astype("float32"),
    "next_sentence": np.ones(rows, "float32"),
}
data = tf.data.Dataset.from_tensor_slices((x, y, weights))
shard, shards = distribution.data_shard()
if own_shards:
    data = data.batch(64 // shards).shard(shards, shard)
else:
    data = data.batch(64)
# An epoch a step, so that the history has each step's own loss.
results = {"losses": model.fit(data, epochs=steps, steps_per_epoch=1, verbose=0).history["loss"]}
if not own_shards:
    results["scores"] = model.evaluate(
        x, y, sample_weight=weights, batch_size=64, return_dict=True, verbose=0)
if parts is None or parts.processes == 1:
    some = {name: values[:70] for name, values in x.items()}
    results["predictions"] = model.predict(some, batch_size=33, verbose=0)
if strategy == "data+model":
    results["layouts"] = {
        name: list(weight.value.sharding.spec) for name, weight in {
            "qkv": model.backbone.encoder_layers[0].attention.qkv.kernel,
            "moment": next(v for v in model.optimizer.variables
                           if "qkv_kernel" in v.path and "momentum" in v.path),
        }.items()}
kept = pathlib.Path(f"{output}.checkpoints")
checkpoints.save(kept, steps, model, {}, keep=1)
if parts is None or parts.processes == 1:
    for weight in model.trainable_variables:
        weight.assign(0 * weight)
    checkpoints.restore(model, checkpoints.newest(kept))
model.save_to_preset(f"{output}.preset")
report(results)
"""

DROPOUT = """
distribution.distribute("data")
outputs = []

class Watched(zoo.models.BertTextClassifier):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        if training:
            outputs.append(keras.ops.convert_to_numpy(y_pred))
        return super().compute_loss(x, y, y_pred, sample_weight, training)

keras.utils.set_random_seed(0)
model = Watched(backbone(0.5), num_classes=2)
model.compile(run_eagerly=True)
# A row a replica, all the same.
ids = np.full((2, 9), 7)
x = {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": 0 * ids + 1}
model.fit(x, np.zeros(2, int), epochs=2, verbose=0)
seeds = [v for v in model.variables if v.name == "seed_generator_state"]
copies = [v.value.values if devices > 1 else [v.value] for v in seeds]
report({"outputs": outputs, "seeds": [[np.asarray(c) for c in copy] for copy in copies]})
"""

# What Keras leaves undone for several replicas of TensorFlow.
OPTIMIZERS = """
import tensorflow as tf
rng = np.random.default_rng(0)
ids = rng.integers(5, 50, (64, 9))
x = {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": 0 * ids + 1}
y = rng.integers(0, 2, 64)
# Only rows of the second replica overflow.
weights = np.where(np.arange(64) % 16 < 12, 0, 1000).astype("float32")

def train(strategy, case):
    distribution.distribute(strategy)
    dtype = "mixed_float16" if case == "loss scale" else "float32"
    encoder = zoo.models.BertBackbone(
        vocabulary_size=50, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16,
        max_sequence_length=16, dropout=0.0, attention_dropout=0.0, dtype=dtype)
    model = zoo.models.BertTextClassifier(encoder, num_classes=2)
    values = np.random.default_rng(1)
    for weight in model.trainable_variables:
        weight.assign(values.normal(0, 0.05, weight.shape) + (weight.name == "gamma"))
    optimizer = zoo.training.adamw(
        zoo.training.WarmupLinearDecay(1e-2, total_steps=8),
        gradient_accumulation_steps=2 if case == "accumulation" else None)
    if case == "loss scale":
        optimizer = keras.optimizers.LossScaleOptimizer(
            optimizer, initial_scale=2.0**26, dynamic_growth_steps=2)
    # Compiled once more, as a user may.
    for _ in range(2):
        model.compile(optimizer=optimizer)
    columns = (x, y, weights) if case == "loss scale" else (x, y)
    losses = model.fit(
        tf.data.Dataset.from_tensor_slices(columns).batch(16), epochs=8, steps_per_epoch=1,
        verbose=0, class_weight={0: 3.0, 1: 0.5} if case == "class weight" else None,
    ).history["loss"]
    scale = model.optimizer.dynamic_scale.numpy() if case == "loss scale" else 0
    return [*losses, *(w.numpy().sum() for w in model.trainable_variables), scale]

cases = ["accumulation", "loss scale", "class weight"]
report({case: [train(strategy, case) for strategy in (None, "data")] for case in cases})
"""

PRETRAIN = """
from keras_bert_zoo.data.prepare import prepare_examples
from keras_bert_zoo.training.config import make_config
from keras_bert_zoo.training.pretraining import pretrain
run, folder, source, strategy = pathlib.Path(sys.argv[3]), *sys.argv[4:]
texts, vocabulary, examples = (f"{folder}/{n}" for n in ("texts.txt", "vocab.txt", "examples"))
if source == "examples" and not os.path.exists(examples):
    tokenizer = zoo.preprocessing.BertTokenizer(vocabulary, lowercase=True)
    prepare_examples(
        [texts], examples, tokenizer, format="sentences", sequence_length=24, shards=3)
phase = {"steps": 4, "sequence_length": 24, "batch_size": 16}
config = {
    "run": str(run), "devices": None if strategy == "one" else strategy,
    "model": {"num_layers": 2, "num_heads": 2, "hidden_dim": 8,
              "dropout": 0.0, "attention_dropout": 0.0},
    "optimizer": {"learning_rate": 1e-2, "accumulation": 2},
    "evaluation": {"held_out": 0.34, "passes": 1},
    "checkpoints": {"every": 3}, "progress": {"every": 1},
}
if source == "texts":
    config["data"] = {"text": [texts], "format": "sentences", "vocabulary": vocabulary}
    config["phases"] = [{**phase, "sequence_length": 16}, phase]
else:
    config["phases"] = [{**phase, "examples": examples}] * 2

def interrupt(line):
    if line.startswith("step 5/"):
        raise KeyboardInterrupt

# Of several processes the others would wait.
if os.environ["KERAS_BACKEND"] != "torch":
    try:
        pretrain(make_config(config), say=interrupt)
    except KeyboardInterrupt:
        pass
pretrain(make_config(config), say=lambda line: None)
report({})
"""


def run(program, *arguments, devices=1, processes=1):
    """Run a program in processes told of each other in their engine's way; what each reports."""
    with tempfile.TemporaryDirectory() as folder:
        script, output = pathlib.Path(folder, "program.py"), pathlib.Path(folder, "results")
        script.write_text(SETUP + program)
        command = [str(script), str(devices), str(output), *map(str, arguments)]
        started = [
            subprocess.Popen(
                [sys.executable, "-W", "ignore", *before, *command],
                env={**os.environ, **environment(devices), **extra},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for before, extra in launches(processes)
        ]
        try:
            printed = [process.communicate(timeout=1800)[0] for process in started]
        finally:
            # One that waits for another, which has failed, would wait on.
            for process in started:
                process.kill()
        for process, text in zip(started, printed, strict=True):
            assert process.returncode == 0, text[-3000:]
        reports = [json.loads(pathlib.Path(f"{output}.{i}").read_text()) for i in range(processes)]
        preset = f"{output}.preset"
        if os.path.exists(preset):
            reports[0]["saved"] = zoo.from_preset(preset, "pretrainer").get_weights()
        return reports


def assert_same_weights(saved, expected):
    for one, other in zip(saved, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


def environment(devices):
    return {
        "KERAS_BACKEND": BACKEND,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
        "JAX_PLATFORMS": "cpu",
        "OMP_NUM_THREADS": "1",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
    }


def launches(processes):
    """Return, a process to be started, what stands before the program and its environment."""
    if processes == 1:
        return [([], {})]
    ports = free_ports(processes)
    if BACKEND == "torch":
        # One launcher starts them all.
        options = f"--nproc-per-node={processes} --master-port={ports[0]}".split()
        return [(["-m", "torch.distributed.run", *options], {})]
    addresses = [f"localhost:{port}" for port in ports]
    if BACKEND == "tensorflow":
        return [
            ([], {"TF_CONFIG": json.dumps({"cluster": {"worker": addresses}, "task": task})})
            for task in ({"type": "worker", "index": i} for i in range(processes))
        ]
    return [
        (
            [],
            {
                "KERAS_DISTRIBUTION_JOB_ADDRESSES": addresses[0],
                "KERAS_DISTRIBUTION_NUM_PROCESSES": str(processes),
                "KERAS_DISTRIBUTION_PROCESS_ID": str(i),
            },
        )
        for i in range(processes)
    ]


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("localhost", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@functools.cache
def on_one_device(steps, own_shards):
    return run(TRAIN, "one", steps, own_shards)[0]


def assert_same_losses(losses, expected):
    assert len(losses) == len(expected)
    np.testing.assert_allclose(losses[:10], expected[:10], rtol=1e-5)
    np.testing.assert_allclose(losses, expected, rtol=1e-3)


# What one machine has: eight devices of JAX, two of TensorFlow, two processes of PyTorch.
ON_ONE_MACHINE = {
    "jax": [("data", 8, 1), ("data+model", 8, 1)],
    "tensorflow": [("data", 2, 1)],
    "torch": [("data", 1, 2)],
}[BACKEND]

# Several processes with devices of their own, as on several hosts.
ON_SEVERAL_HOSTS = {
    "jax": [("data", 4, 2), ("data+model", 4, 2)],
    "tensorflow": [("data", 1, 2)],
    "torch": [("data", 1, 2)],
}[BACKEND]


@pytest.mark.parametrize(
    ("strategy", "devices", "processes", "steps"),
    [
        pytest.param(*machine, steps, marks=[pytest.mark.slow] if steps > 10 or number else [])
        for number, machine in enumerate(ON_ONE_MACHINE)
        for steps in (10, 50)
    ],
)
def test_losses_are_those_of_one_device(strategy, devices, processes, steps):
    expected = on_one_device(steps, False)
    reports = run(TRAIN, strategy, steps, False, devices=devices, processes=processes)
    assert_same_weights(reports[0]["saved"], expected["saved"])
    for report in reports:
        assert_same_losses(report["losses"], expected["losses"])
        for name, score in expected["scores"].items():
            # The filled-up last batch counts by its filled size in a mean loss over batches.
            rtol = 1e-4 if "loss" in name else 1e-5
            np.testing.assert_allclose(report["scores"][name], score, rtol=rtol, err_msg=name)
        for name, values in report.get("predictions", {}).items():
            np.testing.assert_allclose(values, expected["predictions"][name], atol=1e-4)
        if strategy == "data+model":
            assert report["layouts"] == {"qkv": [None, "model"], "moment": [None, "model"]}


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "devices", "processes"), ON_SEVERAL_HOSTS)
@pytest.mark.parametrize("own_shards", [False, True])
def test_losses_on_several_hosts_are_those_of_one_device(strategy, devices, processes, own_shards):
    expected = on_one_device(10, own_shards)
    reports = run(TRAIN, strategy, 10, own_shards, devices=devices, processes=processes)
    assert_same_weights(reports[0]["saved"], expected["saved"])
    for report in reports:
        assert_same_losses(report["losses"], expected["losses"])


@pytest.mark.skipif(BACKEND == "jax", reason="JAX draws one mask for the global batch")
def test_each_replica_draws_dropout_of_its_own():
    devices, processes = {"tensorflow": (2, 1), "torch": (1, 2)}[BACKEND]
    reports = run(DROPOUT, devices=devices, processes=processes)
    outputs = np.array([output for report in reports for output in report["outputs"]])
    # Two steps of two replicas.
    assert outputs.shape == (4, 1, 2)
    assert len({tuple(output) for output in outputs[:, 0].tolist()}) == 4
    for copies in zip(*(report["seeds"] for report in reports), strict=True):
        states = {tuple(state) for process in copies for state in process}
        assert len(states) == 1


@pytest.mark.slow
@pytest.mark.skipif(BACKEND != "tensorflow", reason="of TensorFlow alone")
def test_replicas_accumulate_scale_the_loss_and_weigh_classes_as_one_device():
    for case, (one, replicas) in run(OPTIMIZERS, devices=2)[0].items():
        # Sums of weights of float16's gradients.
        rtol, atol = (1e-3, 1e-3) if case == "loss scale" else (1e-5, 1e-5)
        np.testing.assert_allclose(replicas, one, rtol=rtol, atol=atol, err_msg=case)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    words = ["sun", "rain", "wind", "snow", "ice", "fog", "dew", "hail"]
    documents = (
        "\n".join(f"the {first} and the {other} meet {place}." for other in words)
        for first in words
        for place in words[:3]
    )
    (folder / "texts.txt").write_text("\n\n".join(documents))
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "and", "meet", ".", *words]
    (folder / "vocab.txt").write_text("\n".join(pieces))
    return folder


# Processes of PyTorch read examples of their own, in other batches than one process has.
@pytest.mark.slow
@pytest.mark.parametrize("source", ["texts"] if BACKEND == "torch" else ["texts", "examples"])
def test_an_interrupted_pretraining_run_is_that_of_one_device(texts, tmp_path, source):
    run(PRETRAIN, tmp_path / "one", texts, source, "one")
    expected = read_run(tmp_path / "one")
    for strategy, devices, processes in ON_ONE_MACHINE:
        folder = tmp_path / strategy
        run(PRETRAIN, folder, texts, source, strategy, devices=devices, processes=processes)
        lines, record = read_run(folder)
        assert len(lines) == len(expected[0])
        for line, other in zip(lines, expected[0], strict=True):
            assert line.get("example_ids") == other.get("example_ids")
            scores, other = line.get("held_out", line), other.get("held_out", other)
            for name in set(other) - {"example_ids"}:
                np.testing.assert_allclose(scores[name], other[name], rtol=1e-4, err_msg=name)
        assert record["status"] == "finished"
        assert record["begun_at_steps"] == ([0] if BACKEND == "torch" else [0, 3])
        for name in ("data", "vocabulary", "parameters"):
            assert record[name] == expected[1][name]
        assert_same_weights(*(load(path / "preset") for path in (folder, tmp_path / "one")))


def load(preset):
    return zoo.from_preset(str(preset), "pretrainer").get_weights()


def read_run(folder):
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return lines, json.loads((folder / "record.json").read_text())
