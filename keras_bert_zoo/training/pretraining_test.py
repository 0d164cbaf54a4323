"""A run: it goes on after an interruption as if there had been none, and keeps a record."""

import json
import re

import keras
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.util import tensor_util

from keras_bert_zoo.models import BertMaskedLM, BertPretrainer
from keras_bert_zoo.presets import from_preset
from keras_bert_zoo.training import pretraining
from keras_bert_zoo.training.config import make_config
from keras_bert_zoo.training.phase_data import open_source
from keras_bert_zoo.training.pretraining import make_optimizer, overfit, pretrain

WORDS = ["sun", "rain", "wind", "snow", "ice", "fog"]


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "texts.txt"
    documents = (
        "\n".join(f"the {word} and the {other} meet." for other in WORDS for _ in range(3))
        for word in WORDS
    )
    path.write_text("\n\n".join(documents))
    return path


def config(texts, run, model=None, **sections):
    content = {
        "run": str(run),
        "model": {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, **(model or {})},
        "data": {"text": [str(texts)], "format": "sentences", "vocabulary_size": 60},
        "phases": [{"steps": 8, "sequence_length": 16, "batch_size": 8}],
        "optimizer": {"learning_rate": 1e-3},
        "evaluation": {"held_out": 0.34, "passes": 1},
        "checkpoints": {"every": 3},
        "progress": {"every": 1, "smoke_check": False},
    }
    return make_config({**content, **sections})


def interrupted_at(step):
    def say(line):
        if line.startswith(f"step {step}/"):
            raise KeyboardInterrupt

    return say


@pytest.mark.slow
def test_an_interrupted_run_goes_on_as_the_undisturbed_one(texts, tmp_path):
    # All that a checkpoint may have to hold: sums of gradients, a loss scale.
    sections = {
        "optimizer": {"name": "lamb", "learning_rate": 1e-2, "accumulation": 2},
        "precision": "mixed_float16",
    }
    looked = config(texts, tmp_path / "one", progress={"every": 1}, **sections)
    expected = pretrain(looked, say=lambda line: None)
    settings = config(texts, tmp_path / "two", **sections)
    with pytest.raises(KeyboardInterrupt):
        pretrain(settings, say=interrupted_at(5))
    record = json.loads((tmp_path / "two" / "record.json").read_text())
    assert (record["status"], record["error"]) == ("failed", "KeyboardInterrupt: ")
    lines = []
    results = pretrain(settings, say=lines.append)
    assert "from the checkpoint of step 3 to step 8" in lines[0]
    logs = [(tmp_path / run / "log.jsonl").read_bytes() for run in ("one", "two")]
    assert logs[0] == logs[1]
    assert {**results, "seconds": 0} == {**expected, "seconds": 0}


def events_of(run):
    """What TensorBoard is given: each name's (step, value) pairs, in the order of the files."""
    found = {}
    for path in sorted((run / "tensorboard").iterdir()):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                pair = event.step, float(tensor_util.make_ndarray(value.tensor))
                found.setdefault(value.tag, []).append(pair)
    return found


def test_a_run_of_packed_rows_goes_on_and_tensorboard_has_each_step_once(texts, tmp_path):
    run = tmp_path / "run"
    settings = config(
        texts,
        run,
        phases=[{"steps": 8, "sequence_length": 24, "batch_size": 4, "packed": True}],
        progress={"every": 2, "tensorboard": True, "peak_flops": 1e9, "smoke_check": False},
        optimizer={"learning_rate": 1e-3, "warmup_steps": 4},
    )
    with pytest.raises(KeyboardInterrupt):
        pretrain(settings, say=interrupted_at(6))
    assert [step for step, _ in events_of(run)["train/loss"]] == [1, 2, 3, 4, 5, 6]
    # There is a checkpoint of step 3, but step 6 was not over: what came after it is done again.
    lines = []
    pretrain(settings, say=lines.append)
    assert "from the checkpoint of step 3 to step 8" in lines[0]

    logged = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    ids = [line["example_ids"] for line in logged if "loss" in line]
    data = open_source(settings).phase(0)
    assert ids == [part.numpy().tolist() for _, part in data.batches_after(0, 8)]
    shown = "; ".join(line for line in lines if line.startswith("step 6/8"))
    assert 50 < int(re.search(r"tokens/s, (\d+)% of the positions, MFU", shown)[1]) <= 100

    events = events_of(run)
    losses = [(line["step"], np.float32(line["loss"])) for line in logged if "loss" in line]
    assert events["train/loss"] == losses
    scores = logged[-1]["held_out"]
    assert {name: pairs for name, pairs in events.items() if name.startswith("held_out")} == {
        f"held_out/{name}": [(8, np.float32(score))] for name, score in scores.items()
    }
    rates = [(2, 5e-4), (4, 1e-3), (6, 5e-4), (8, 0)]
    np.testing.assert_allclose(events["train/learning_rate"], rates, atol=1e-9)
    assert [step for step, _ in events["train/tokens_per_second"]] == [2, 4, 6, 8]


def test_a_left_to_right_model_is_trained_and_saved(texts, tmp_path):
    model = {"causal": True, "next_sentence": False}
    lines = []
    results = pretrain(config(texts, tmp_path / "run", model, progress={}), say=lines.append)
    assert any(line.startswith("Smoke check: 8 rows of 16 positions") for line in lines)
    seen = json.loads((tmp_path / "run" / "record.json").read_text())["smoke_check"]
    # Nothing has two segments, so nothing is learnt of the first's and the second's embeddings.
    assert 0 < seen["stayed"] < seen["moved"]
    assert not [name for name in results if "next-sentence" in name]
    saved = from_preset(str(tmp_path / "run" / "preset"), "masked_lm")
    assert isinstance(saved, BertMaskedLM) and saved.backbone.causal


def test_the_losses_of_held_out_data_are_means_over_masked_pieces_and_pairs(texts, tmp_path):
    settings = config(texts, tmp_path / "run", {"dropout": 0.0, "attention_dropout": 0.0})
    results = pretrain(settings, say=lambda line: None)
    saved = from_preset(str(tmp_path / "run" / "preset"), "pretrainer")
    assert isinstance(saved, BertPretrainer)

    losses = {"masked_lm": [], "next_sentence": []}
    for inputs, labels, weights in open_source(settings).phase(0).held_out:
        inputs = {name: value.numpy() for name, value in inputs.items()}
        outputs = saved.predict(inputs, verbose=0)
        for task in losses:
            logits = keras.ops.convert_to_numpy(outputs[task])
            log_sums = np.log(np.exp(logits.astype("float64")).sum(axis=-1))
            ids = labels[task].numpy()
            chosen = np.take_along_axis(logits, ids[..., None], axis=-1)[..., 0]
            losses[task] += (log_sums - chosen)[weights[task].numpy() > 0].tolist()
    loss = results["held-out masked-LM loss (nats)"]
    expected = np.mean(losses["masked_lm"])
    assert loss == pytest.approx(expected, rel=1e-5)
    assert results["held-out pseudo-perplexity"] == pytest.approx(np.exp(expected), rel=1e-5)
    # The last batch is smaller.
    assert len(losses["next_sentence"]) % 8
    *_, line = (tmp_path / "run" / "log.jsonl").read_text().splitlines()
    loss = json.loads(line)["held_out"]["next_sentence_loss"]
    assert loss == pytest.approx(np.mean(losses["next_sentence"]), rel=1e-5)


def test_the_schedule_is_laid_over_all_phases(texts):
    phase = {"sequence_length": 16, "batch_size": 8}
    phases = [{"steps": 90, **phase}, {"steps": 10, **phase}]
    optimizer = {"learning_rate": 1e-3, "warmup_steps": 20}
    made = make_optimizer(config(texts, "run", phases=phases, optimizer=optimizer))
    rates = [float(made._learning_rate(step)) for step in (0, 10, 20, 60, 100)]
    np.testing.assert_allclose(rates, [0, 5e-4, 1e-3, 5e-4, 0], atol=1e-9)


def test_a_few_rows_are_learnt_or_it_is_said_that_they_were_not(texts, tmp_path, monkeypatch):
    model = {"hidden_dim": 32, "dropout": 0.0, "attention_dropout": 0.0}
    settings = config(texts, tmp_path / "run", model, optimizer={"learning_rate": 5e-3})
    results = overfit(settings, 3, say=lambda line: None)
    assert (results["rows"], results["masked_lm_accuracy"]) == (3, 1)
    monkeypatch.setattr(pretraining, "_OVERFIT_STEPS", 10)
    lines = []
    with pytest.raises(ValueError, match="3 rows were not learnt in 10 steps: masked lm accuracy"):
        overfit(config(texts, tmp_path / "run", model), 3, say=lines.append)
    assert len(lines) == 1
    with pytest.raises(ValueError, match=r"There are \d+ training examples. Received: 9999"):
        overfit(settings, 9999)
    assert not (tmp_path / "run").exists()


def test_a_folder_of_something_else_and_changed_data_are_refused(texts, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("mine")
    with pytest.raises(ValueError, match="holds something else"):
        pretrain(config(texts, tmp_path / "full"))
    own = tmp_path / "own.txt"
    own.write_text(texts.read_text())
    with pytest.raises(KeyboardInterrupt):
        pretrain(config(own, tmp_path / "run"), say=interrupted_at(1))
    own.write_text(texts.read_text().replace("sun", "moon"))
    with pytest.raises(ValueError, match="Changed since: .*own.txt"):
        pretrain(config(own, tmp_path / "run"), say=lambda line: None)
