"""A pre-training run in a folder of its own, which the same call goes on with after any end.

The folder holds `config.json` (the settings), `record.json` (what the run was made of, and
what came out), `log.jsonl` (each step's losses and examples, each evaluation), `checkpoints/`,
`tensorboard/` if it is asked for, and at last `preset/`, the model.
"""

import contextlib
import dataclasses
import json
import math
import os
import pathlib
import platform
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_bert_zoo.evaluation import unigram_entropy
from keras_bert_zoo.models import BertBackbone, BertMaskedLM, BertPretrainer
from keras_bert_zoo.preprocessing import BertMaskedLMPreprocessor, BertPretrainerPreprocessor
from keras_bert_zoo.preprocessing.dataset import watched
from keras_bert_zoo.training import checkpoints, distribution
from keras_bert_zoo.training.config import Config
from keras_bert_zoo.training.flops import step_flops
from keras_bert_zoo.training.optimizer import WarmupLinearDecay, adamw, lamb
from keras_bert_zoo.training.phase_data import Source, open_source, sha256
from keras_bert_zoo.training.record import versions, vocabulary_facts, write_json
from keras_bert_zoo.training.smoke_check import SMOKE_ROWS, describe, smoke_check

# What a run may be gone on with in another way. On other devices it is the same run, but no
# longer bit for bit.
_MAY_CHANGE = ("run", "checkpoints", "devices", "progress")
# When rows count as learnt, in nats, and how many steps there are for it.
_OVERFIT_LOSS, _OVERFIT_STEPS = 0.1, 1000
# Steps of a schedule whose rate stays the same to all digits; an int32.
_WITHOUT_DECAY = 10**9


def pretrain(config: Config, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Pre-train a BERT as the settings say, from the newest whole checkpoint if there is one.

    On one device a run that was ended at any moment goes on as if it had not been: every later
    loss is the undisturbed run's to the bit, and so is `log.jsonl`, which has each step's.

    Args:
        config: the settings, as `read_config` returns them.
        say: takes the lines that are shown.

    Returns:
        The scores on held-out data and the counts, which `record.json` has too. Of several
        processes the first one gets them, the others an empty dictionary.

    Raises:
        ValueError: the data do not fit the settings; the folder is of another run; or a loss is
            not finite, and the batch is kept in the folder.
        OSError: a checkpoint could not be written.

    Example:
        >>> config = read_config("laptop.toml", ["seed=1"])  # doctest: +SKIP
        >>> results = pretrain(config)  # doctest: +SKIP
    """
    distribution.distribute(config.devices, reads_own_shard=not config.data.text)
    first = distribution.is_first_process()
    folder = pathlib.Path(config.run)
    record = _begin(folder, config, first)
    try:
        run = _Run(config, folder, record, say if first else lambda line: None)
        with contextlib.closing(run.events):
            results = run.train()
        record |= {"status": "finished", "results": results}
        return results
    except BaseException as error:
        record |= {"status": "failed", "error": f"{type(error).__name__}: {error}"}
        raise
    finally:
        if first:
            write_json(folder / "record.json", record)


def overfit(config: Config, count: int, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Train on a few rows of the first phase until they are known, to see that they can be learnt.

    Their masks stay the same. The settings' peak learning rate counts, without warm-up, decay of
    it or of the weights; one device is used, and nothing is saved.

    Args:
        config: the settings.
        count: how many rows.
        say: takes the lines that are shown.

    Returns:
        How many steps it took, and the scores on the rows.

    Raises:
        ValueError: there are fewer examples, or after 1,000 steps a loss is still above 0.1 nats.

    Example:
        >>> overfit(read_config("laptop.toml"), 8)["rows"]  # doctest: +SKIP
        8
    """
    phase = dataclasses.replace(config.phases[0], steps=_WITHOUT_DECAY, batch_size=count)
    settings = {"warmup_steps": 0, "accumulation": 1, "weight_decay": 0.0}
    optimizer = dataclasses.replace(config.optimizer, **settings)
    config = dataclasses.replace(config, phases=(phase,), optimizer=optimizer)
    source = open_source(config)
    data = source.phase(0)
    examples = data.counts["training examples"]
    if not 1 <= count <= examples:
        raise ValueError(f"There are {examples:,} training examples. Received: {count} to learn.")
    model = make_model(config, source)
    [(batch, _)] = data.batches_after(0, 1)
    batch = keras.tree.map_structure(np.asarray, batch)
    for step in range(10, _OVERFIT_STEPS + 1, 10):
        for _ in range(10):
            model.train_on_batch(*batch)
        model.reset_metrics()
        scores = _scores(model.test_on_batch(*batch, return_dict=True))
        say(f"step {step:,}, {', '.join(_words(scores))}")
        losses = [value for name, value in scores.items() if name.endswith("_loss")]
        if max(losses) < _OVERFIT_LOSS:
            return {"rows": count, "steps": step, **scores}
    raise ValueError(
        f"{count} rows were not learnt in {_OVERFIT_STEPS:,} steps: {', '.join(_words(scores))}."
    )


def make_model(config: Config, source: Source) -> keras.Model:
    """Return the model of a run, compiled, with the initial weights of the seed."""
    keras.utils.set_random_seed(config.seed)
    sizes = dataclasses.asdict(config.model)
    is_pair = sizes.pop("next_sentence")
    sizes["intermediate_dim"] = sizes["intermediate_dim"] or 4 * config.model.hidden_dim
    vocabulary_size = source.tokenizer.vocabulary_size
    backbone = BertBackbone(vocabulary_size, **sizes, dtype=config.precision)
    preprocessor_class = BertPretrainerPreprocessor if is_pair else BertMaskedLMPreprocessor
    preprocessor = preprocessor_class(
        source.tokenizer,
        max(phase.sequence_length for phase in config.phases),
        seed=config.seed,
        **dataclasses.asdict(config.masking),
    )
    model = (BertPretrainer if is_pair else BertMaskedLM)(backbone, preprocessor)
    # The loss of several batches is a mean of means; this is the mean over their masked pieces,
    # or over their examples.
    metrics = model.defaults()["weighted_metrics"]
    for task in metrics.values() if is_pair else [metrics]:
        task.append(
            keras.metrics.SparseCategoricalCrossentropy(name="crossentropy", from_logits=True)
        )
    model.compile(optimizer=make_optimizer(config), weighted_metrics=metrics)
    return model


def make_optimizer(config: Config) -> keras.optimizers.Optimizer:
    """Return the optimiser of a run, its schedule laid over the steps of all phases."""
    settings = dataclasses.asdict(config.optimizer)
    make = {"adamw": adamw, "lamb": lamb}[settings.pop("name")]
    warmup = settings.pop("warmup_steps") / config.steps
    schedule = WarmupLinearDecay(settings.pop("learning_rate"), warmup, config.steps)
    return make(schedule, gradient_accumulation_steps=settings.pop("accumulation"), **settings)


class _Run(keras.callbacks.Callback):
    """The loop: Keras's `fit`, in which an epoch is one step of the optimiser.

    So a step's metrics are its own, and its end, where Keras has put all state back into the
    variables, is where the run is logged, scored and kept.
    """

    def __init__(self, config: Config, folder: pathlib.Path, record: dict, say: Callable):
        super().__init__()
        self.config, self.folder, self.record, self.say = config, folder, record, say
        self.source = open_source(config)
        record["data"] = _same_data(record.get("data"), self.source.files)
        record["vocabulary"] = vocabulary_facts(self.source.tokenizer)
        self.pretrainer = make_model(config, self.source)
        record["parameters"] = self.pretrainer.backbone.count_params()

        checkpoint = checkpoints.newest(folder / "checkpoints")
        self.first_step = checkpoint.step if checkpoint else 0
        if checkpoint:
            checkpoints.restore(self.pretrainer, checkpoint)
        record["begun_at_steps"] = [*record.get("begun_at_steps", []), self.first_step]
        notes = {"log_bytes": 0, "event_bytes": {}, "seconds": 0.0, "examples": 0}
        notes = checkpoint.notes if checkpoint else notes
        self.log = _Log(folder / "log.jsonl", notes["log_bytes"])
        self.events = _Events(
            folder / "tensorboard", notes["event_bytes"], config.progress.tensorboard
        )
        # Of training, up to the last line on the screen.
        self.seconds = notes["seconds"]
        # That this process has seen in its phase.
        self.examples = notes["examples"]
        if distribution.is_first_process():
            write_json(folder / "record.json", record)
        self.say(
            f"Pre-training {record['parameters']:,} parameters on {keras.backend.backend()}, "
            + (f"from the checkpoint of step {self.first_step:,}" if checkpoint else "from step 0")
            + f" to step {config.steps:,}."
        )

    # === The loop ===

    def train(self) -> dict[str, Any]:
        """Go through what is left of the phases, save the model and return the results."""
        parts = self.config.optimizer.accumulation
        end = 0
        for number, phase in enumerate(self.config.phases):
            begin, end = end, end + phase.steps
            step = max(begin, self.first_step)
            last = number == len(self.config.phases) - 1
            if step >= end and not last:
                continue
            self.number, self.phase, self.phase_end = number, phase, end
            self.data = self.source.phase(number)
            counts = ", ".join(f"{count:,} {name}" for name, count in self.data.counts.items())
            self.say(
                f"Phase {number}, to step {end:,} at length {phase.sequence_length}: {counts}."
            )
            if step == end:
                continue
            if step == 0 and self.config.progress.smoke_check and not self.config.devices:
                self.smoke_check()
            if step == begin:
                self.examples = 0
            self.seen = {}
            self.begin_interval(step)
            self.fit_begin = step
            dataset = self.data.batches_after(self.examples, (end - step) * parts)
            self.pretrainer.fit(
                watched(dataset, self.note_batch),
                epochs=end,
                initial_epoch=step,
                steps_per_epoch=parts,
                verbose=0,
                callbacks=[self],
            )
        return self.finish()

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Let what PyTorch's own generators draw in a batch depend on its number alone.

        Dropout draws from them there. Keras's seeds are state, and in the checkpoint.
        """
        if keras.backend.backend() == "torch":
            import torch

            process = distribution.data_shard()[0]
            number = np.random.SeedSequence([self.config.seed, self.step, batch, process])
            torch.manual_seed(int(number.generate_state(1, np.uint64)[0]))

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Note which step begins."""
        self.step = epoch + 1

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Log a step, and score, show and keep the run where it is time to."""
        step, config = self.step, self.config
        parts = config.optimizer.accumulation
        first = (epoch - self.fit_begin) * parts
        batches = [self.seen.pop(number) for number in range(first, first + parts)]
        scores = _scores(logs)
        if not math.isfinite(logs["loss"]):
            raise ValueError(self.keep_batch(step, logs["loss"]))
        line = {"step": step, "loss": logs["loss"], **scores}
        if config.progress.example_ids:
            line["example_ids"] = [number for ids, _ in batches for number in ids]
        self.log.write(line)
        self.events.write("train", step, line)
        self.tokens += sum(real for _, real in batches)
        self.examples += sum(len(ids) for ids, _ in batches)

        ends = step == self.phase_end
        if step % config.progress.every == 0 or ends:
            self.show(step, line)
        if ends or (config.evaluation.every and step % config.evaluation.every == 0):
            self.evaluate(step)
        if step % config.checkpoints.every == 0 or step == config.steps:
            notes = {
                "log_bytes": self.log.flushed(),
                "event_bytes": self.events.flushed(),
                "seconds": self.seconds,
                "examples": self.examples,
            }
            keep = config.checkpoints.keep
            checkpoints.save(self.folder / "checkpoints", step, self.pretrainer, notes, keep)

    # === What is shown and kept on the way ===

    def smoke_check(self) -> None:
        """Look at the first rows, and at what a model like the run's learns of them."""
        [(batch, _)] = self.data.batches_after(0, 1)
        few = keras.tree.map_structure(lambda values: values[:SMOKE_ROWS], batch)
        seen = smoke_check(make_model(self.config, self.source), few)
        self.record["smoke_check"] = seen
        self.say(describe(seen))

    def note_batch(self, number: int, ids: list[int], real_pieces: int) -> None:
        """Note what a batch of this `fit` holds, which may be some steps before its own."""
        self.seen[number] = ids, real_pieces

    def begin_interval(self, step: int) -> None:
        """Begin to count what the next line on the screen is about."""
        self.interval_step, self.interval_start, self.tokens = step, time.perf_counter(), 0

    def show(self, step: int, line: dict) -> None:
        """Say how far the run is, and how fast."""
        seconds = time.perf_counter() - self.interval_start
        steps = step - self.interval_step
        words = [f"step {step:,}/{self.config.steps:,}"]
        words += _words({name: x for name, x in line.items() if isinstance(x, float)})
        speed = self.tokens / seconds
        share = self.tokens / (steps * self.phase.batch_size * self.phase.sequence_length)
        words.append(f"{speed:,.0f} real tokens/s")
        words.append(f"{share:.0%} of the positions")
        if self.config.progress.peak_flops:
            flops = steps * self.step_flops()
            words.append(f"MFU {flops / seconds / self.config.progress.peak_flops:.1%}")
        left = round(seconds / steps * (self.config.steps - step))
        words.append(f"{left // 3600}:{left // 60 % 60:02}:{left % 60:02} left")
        self.say(", ".join(words))
        if self.config.progress.tensorboard:
            rate = float(self.pretrainer.optimizer.learning_rate)
            values = {"learning_rate": rate, "tokens_per_second": speed}
            self.events.write("train", step, values)
        self.seconds += seconds
        self.begin_interval(step)

    def step_flops(self) -> int:
        """Return what a step costs, with as many predictions a row as its batches have."""
        return step_flops(
            self.pretrainer.backbone,
            self.phase.batch_size,
            self.phase.sequence_length,
            self.data.predictions,
        )

    def evaluate(self, step: int) -> None:
        """Score the model on the phase's held-out data."""
        start = time.perf_counter()
        logs = self.pretrainer.evaluate(self.data.held_out, return_dict=True, verbose=0)
        scores = _scores(logs)
        # The exponential of more is no float.
        if not scores["masked_lm_loss"] < 700:
            raise ValueError(
                f"Training has diverged: after step {step} the held-out masked-LM loss is "
                f"{scores['masked_lm_loss']}."
            )
        scores["pseudo_perplexity"] = math.exp(scores["masked_lm_loss"])
        self.log.write({"step": step, "phase": self.number, "held_out": scores})
        self.events.write("held_out", step, scores)
        self.say(f"step {step:,}, held-out: {', '.join(_words(scores))}")
        # Its time is not training's.
        self.interval_start += time.perf_counter() - start

    def keep_batch(self, step: int, loss: float) -> str:
        """Keep the batch of a step whose loss is not finite, and return the message."""
        parts = self.config.optimizer.accumulation
        arrays = {}
        for part, (batch, ids) in enumerate(self.data.batches_after(self.examples, parts)):
            names = dict(zip(("inputs", "labels", "weights"), batch, strict=True))
            for path, value in keras.tree.flatten_with_path({**names, "example_ids": ids}):
                arrays["/".join(map(str, (part, *path)))] = value.numpy()
        file = self.folder / f"not_finite_step_{step}.npz"
        np.savez(file, **arrays)
        return f"The loss of step {step} is {loss}; its batch is kept in {str(file)!r}."

    # === The end ===

    def finish(self) -> dict[str, Any]:
        """Save the model; return what the run came to, in the first process."""
        preset = self.folder / "preset"
        self.pretrainer.save_to_preset(str(preset))
        if not distribution.is_first_process():
            return {}
        results = {
            "backend": keras.backend.backend(),
            "parameters": self.record["parameters"],
            "steps": self.config.steps,
            **self.data.counts,
            "seconds": self.seconds,
        }
        for number, scores in self.log.last_scores().items():
            last = number == len(self.config.phases) - 1
            name = "held-out" if last else f"phase {number}: held-out"
            results[f"{name} masked-LM loss (nats)"] = scores["masked_lm_loss"]
            results[f"{name} pseudo-perplexity"] = scores["pseudo_perplexity"]
            results[f"{name} masked-LM accuracy"] = scores["masked_lm_accuracy"]
            if self.config.model.next_sentence:
                results[f"{name} next-sentence accuracy"] = scores["next_sentence_accuracy"]
        if self.config.model.next_sentence:
            labels = self.data.labels()
            share = float(np.mean(labels))
            results["its standard error at chance"] = float(0.5 / np.sqrt(len(labels)))
            results["share of the larger next-sentence class"] = max(share, 1 - share)
        entropy = unigram_entropy(self.data.pieces())
        results["unigram entropy of the held-out text (nats)"] = entropy
        weights = (preset / "model.weights.h5").read_bytes()
        self.record["weights"] = {"file": "preset/model.weights.h5", "sha256": sha256(weights)}
        return results


class _Log:
    """`log.jsonl`, cut back to the length that a checkpoint noted; the first process writes."""

    def __init__(self, path: pathlib.Path, length: int):
        self.path, self.file = path, None
        if not distribution.is_first_process():
            return
        self.file = open(path, "ab")  # noqa: SIM115
        if self.file.tell() < length:
            raise ValueError(
                f"{str(path)!r} must have the {length} bytes that its checkpoint tells of. "
                f"Received: {self.file.tell()}."
            )
        self.file.truncate(length)

    def write(self, line: dict) -> None:
        """Add a line, at once."""
        if self.file:
            self.file.write(json.dumps(line, allow_nan=False).encode() + b"\n")
            self.file.flush()

    def flushed(self) -> int:
        """Bring all lines onto the disk and return their length."""
        if not self.file:
            return 0
        os.fsync(self.file.fileno())
        return self.file.tell()

    def last_scores(self) -> dict[int, dict]:
        """Return each phase's last held-out scores."""
        with open(self.path, "rb") as file:
            lines = (json.loads(line) for line in file if b'"held_out"' in line)
            return {line["phase"]: line["held_out"] for line in lines}


class _Events:
    """`tensorboard/`, its files cut back as `log.jsonl` is; the first process writes."""

    def __init__(self, folder: pathlib.Path, lengths: dict[str, int], is_wanted: bool):
        self.folder, self.writer = folder, None
        if not distribution.is_first_process():
            return
        for path in folder.glob("*"):
            if path.name not in lengths:
                path.unlink()
            elif path.stat().st_size > lengths[path.name]:
                os.truncate(path, lengths[path.name])
        if is_wanted:
            from tensorboard.summary import Writer

            self.writer = Writer(str(folder))

    def write(self, kind: str, step: int, values: dict) -> None:
        """Add the numbers among a step's values."""
        if self.writer:
            for name, value in values.items():
                if isinstance(value, float):
                    self.writer.add_scalar(f"{kind}/{name}", value, step)

    def flushed(self) -> dict[str, int]:
        """Write out all that was added and return each file's length."""
        if self.writer:
            self.writer.flush()
        return {path.name: path.stat().st_size for path in self.folder.glob("*")}

    def close(self) -> None:
        """Write out all that was added, and no more from then on."""
        if self.writer:
            self.writer.close()


def _scores(logs):
    """Return Keras's metrics, of either model, under one set of names."""
    names = {
        "crossentropy": "masked_lm_loss",
        "accuracy": "masked_lm_accuracy",
        "masked_lm_crossentropy": "masked_lm_loss",
        "masked_lm_accuracy": "masked_lm_accuracy",
        "next_sentence_crossentropy": "next_sentence_loss",
        "next_sentence_accuracy": "next_sentence_accuracy",
    }
    return {names[key]: float(logs[key]) for key in sorted(names) if key in logs}


def _words(scores):
    return [f"{name.replace('_', ' ')} {value:.4f}" for name, value in scores.items()]


def _begin(folder, config, first):
    """Return the record of a new run, or of one whose folder this is."""
    settings = json.loads(json.dumps(dataclasses.asdict(config)))
    if first:
        _take_folder(folder, settings)
    record = {}
    if (folder / "record.json").exists():
        record = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    return record | {
        "format": "keras_bert_zoo run",
        "version": 1,
        "status": "running",
        "error": None,
        "settings": settings,
        "seed": config.seed,
        "initial_weights": "random, from the seed",
        "chosen_weights": "those of the last step",
        "backend": keras.backend.backend(),
        "versions": versions(),
        "platform": platform.platform(),
    }


def _take_folder(folder, settings):
    """Put the settings into a new run's folder, or refuse those of another run."""
    config_file = folder / "config.json"
    if config_file.exists():
        earlier = json.loads(config_file.read_text(encoding="utf-8"))
        differing = [
            f"{name} ({earlier.get(name)!r} there, {value!r} now)"
            for name, value in settings.items()
            if name not in _MAY_CHANGE and earlier.get(name) != value
        ]
        if differing:
            raise ValueError(
                f"The run in {str(folder)!r} has other settings: {'; '.join(differing)}. Give this "
                "one a folder of its own with `run`."
            )
    elif folder.exists() and any(not path.name.endswith(".part") for path in folder.iterdir()):
        raise ValueError(
            f"`run` must be a new or empty folder, or a run's. Received: {str(folder)!r}, which "
            "holds something else."
        )
    folder.mkdir(parents=True, exist_ok=True)
    write_json(config_file, settings)


def _same_data(earlier, files):
    """Return the hashes of the data, which must be those that the run began with."""
    if earlier is not None and earlier != files:
        names = {*earlier, *files}
        changed = sorted(name for name in names if earlier.get(name) != files.get(name))
        raise ValueError(
            f"The data must be those that the run began with. Changed since: {', '.join(changed)}."
        )
    return files
