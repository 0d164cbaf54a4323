"""A pre-training run that is killed goes on as if it had not been, to the bit."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import keras
import pytest

BACKEND = keras.backend.backend()

WORDS = ["sun", "rain", "wind", "snow", "ice", "fog", "dew", "hail", "mist", "storm"]

CONFIG = """
run = {run!r}

[model]
num_layers = 1
num_heads = 2
hidden_dim = 16

[data]
text = [{corpus!r}]
format = "sentences"
vocabulary_size = 80
duplicates = 2

[[phases]]
steps = {first}
sequence_length = 16
batch_size = 8

[[phases]]
steps = {second}
sequence_length = 24
batch_size = 8
packed = true

[optimizer]
learning_rate = 1e-3
warmup_steps = 5
accumulation = 2

[evaluation]
every = 25
held_out = 0.34
passes = 1

[checkpoints]
every = 7
keep = 2
"""


def write_config(folder, name, first, second):
    corpus = folder / "corpus.txt"
    documents = (
        "\n".join(f"the {word} and the {other} meet." for other in WORDS for _ in range(2))
        for word in WORDS[:6]
    )
    corpus.write_text("\n\n".join(documents))
    run = folder / name
    config = folder / f"{name}.toml"
    config.write_text(CONFIG.format(run=str(run), corpus=str(corpus), first=first, second=second))
    return config, run


def start(config):
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "keras_bert_zoo", "pretrain", str(config)],
        env={
            **os.environ,
            "KERAS_BACKEND": BACKEND,
            "TF_CPP_MIN_LOG_LEVEL": "3",
            # So small a model has no work for more.
            "OMP_NUM_THREADS": "1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(config):
    process = start(config)
    printed = process.communicate()[0]
    assert process.returncode == 0, printed[-3000:]
    return printed


def lines_of(path):
    try:
        return path.read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def kill_at_line(config, log, line, delay):
    """Start a run and kill it a moment after its log has so many lines."""
    process = start(config)
    while lines_of(log) < line:
        assert process.poll() is None, process.communicate()[0][-3000:]
        time.sleep(0.002)
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    process.communicate()


def read_log(run):
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [line for line in lines if "loss" in line]


def assert_each_example_once_an_epoch(lines):
    """Cut a phase's ids into epochs: each has every id, and none twice."""
    ids = [i for line in lines for i in line["example_ids"]]
    size = max(ids) + 1
    assert len(ids) > size
    for first in range(0, len(ids), size):
        epoch = ids[first : first + size]
        assert len(set(epoch)) == len(epoch)


@pytest.mark.parametrize(
    ("steps", "kills"),
    [
        # Five processes: on the backend that begins the fastest.
        pytest.param(60, 2, marks=[] if BACKEND == "torch" else [pytest.mark.slow]),
        pytest.param(300, 10, marks=pytest.mark.slow),
    ],
)
def test_a_run_killed_at_random_moments_is_the_undisturbed_run(tmp_path, steps, kills):
    # The last kill is in the second phase.
    phases = [(0, steps // 4), (steps // 4, steps)]
    sizes = [end - begin for begin, end in phases]
    config, undisturbed = write_config(tmp_path, "undisturbed", *sizes)
    finish(config)
    config, killed = write_config(tmp_path, "killed", *sizes)
    rng = random.Random(0)
    for kill in range(kills):
        # A moment in each part of the run, so that all are before its end.
        line = rng.randrange(kill * steps // kills + 1, (kill + 1) * steps // kills - 1)
        kill_at_line(config, killed / "log.jsonl", line, rng.uniform(0, 0.02))
    finish(config)

    lines = read_log(undisturbed)
    assert [line["step"] for line in lines] == list(range(1, steps + 1))
    for begin, end in phases:
        assert_each_example_once_an_epoch(lines[begin:end])
    assert read_log(killed) == lines
    # Held-out scores too.
    assert (killed / "log.jsonl").read_bytes() == (undisturbed / "log.jsonl").read_bytes()
    final = [run / "checkpoints" / f"step_{steps:08d}.safetensors" for run in (undisturbed, killed)]
    assert final[0].read_bytes() == final[1].read_bytes()
    record = json.loads((killed / "record.json").read_text())
    assert record["status"] == "finished"
    begun = record["begun_at_steps"]
    assert begun[0] == 0 and len(begun) == kills + 1 and begun == sorted(begun)
    assert all(step % 7 == 0 for step in begun)
    assert not list(killed.rglob("*.part"))
