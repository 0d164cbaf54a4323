"""Fine-tune with this package and with transformers, all else equal, and compare the dev scores.

    KERAS_BACKEND=torch python tools/compare_transformers.py --data DATA --output scores --check
    KERAS_BACKEND=torch python tools/compare_transformers.py --data DATA --output scores

Both start from all-MiniLM-L6-v2 and run on PyTorch, with the settings of `TASKS`; the answers of
both go through the same scoring. `with_transformers.py` is the other side. `DATA` holds `glue`,
`squad`, `ner/wnut17` and `multiple_choice/codah`. Keeps every score in `--output` as it comes,
goes on from there, and writes `table.md` and `table.json` beside. `--check` says whether both
sides make the same rows and labels of the same texts, and with the same head the same logits of
these, before and after a few steps of training without dropout.

Needs `pip install transformers accelerate seqeval scikit-learn`.
"""

import argparse
import functools
import importlib.metadata
import json
import math
import pathlib
import shlex
import statistics
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import keras
import numpy as np
from check_transformers import (
    copy_head,
    drop_nothing,
    examples_in_common,
    logits,
    rows_in_common,
)
from with_transformers import Finetuning

import keras_bert_zoo as zoo
from keras_bert_zoo.cli.output import write_json
from keras_bert_zoo.data.sources import Examples, read_examples
from keras_bert_zoo.data.splits import random_splits
from keras_bert_zoo.presets import find_card, resolve_card
from keras_bert_zoo.training.finetuning_tasks import TASKS as KINDS
from keras_bert_zoo.training.finetuning_tasks import scores_of
from keras_bert_zoo.whole_files import write_whole

PRESET = "all_minilm_l6_v2_en"
WARMUP = 0.1
WEIGHT_DECAY, EPSILON, CLIPNORM = 0.0, 1e-8, 1.0  # of transformers' `TrainingArguments`
# In place of a dev source: a tenth of the training contexts, with all of their questions.
HELD_OUT = "a tenth of the training contexts"
# Of a check: the examples, and how far apart logits may be, untrained, and trained as a share of
# how far they moved.
CHECKED_EXAMPLES, TOLERANCE, SHARE = 40, 1e-5, 0.02


class Task(NamedTuple):
    """A task's sources, as `read_examples` takes them, its measures and its settings."""

    train: str
    dev: dict[str, str]
    measures: tuple[str, ...]
    sequence_length: int = 128
    batch_size: int = 32
    learning_rate: float = 5e-5
    epochs: int = 2
    # Train on as many at most, always the same ones.
    examples: int | None = None
    # Why some of the two sides' rows are not the same.
    differs: str = ""
    # Begin with the head that transformers draws, in place of one drawn as the authors' is.
    their_head: bool = False


def _glue(name, *measures, dev="dev", **settings):
    sources = [f"glue/{name}:{split}={{data}}/glue" for split in ("train", dev)]
    return Task(sources[0], {f"{name} {dev}": sources[1]}, measures, **settings)


TASKS = {
    "CoLA": _glue("CoLA", "matthews_correlation"),
    "SST-2": _glue("SST-2", "accuracy", examples=10_000, epochs=1),
    # Microsoft's files, which do not say what is GLUE's dev set.
    "MRPC": _glue("MRPC", "f1", "accuracy", dev="test"),
    "STS-B": _glue("STS-B", "spearman", "pearson"),
    "RTE": _glue("RTE", "accuracy"),
    "TyDiQA": Task(
        "squad:{data}/squad/tydiqa.goldp.en.train.json",
        {"TyDiQA held out": HELD_OUT, "XQuAD English": "squad:{data}/squad/xquad.en.json"},
        ("exact", "f1"),
        sequence_length=384,
        batch_size=16,
        examples=1000,
        differs="a passage's windows are `stride` apart here and share `stride` pieces there; an "
        "answer with a blank before it begins a piece earlier there",
    ),
    "WNUT17": Task(
        "conll:{data}/ner/wnut17/CONLL-format/data/train/wnut17train.conll",
        {"WNUT17 dev": "conll:{data}/ner/wnut17/CONLL-format/data/dev/emerging.dev.conll"},
        ("f1",),
        # At 5e-5 it ends in the middle of the steepest learning, where the order decides the score.
        learning_rate=1e-4,
        epochs=3,
        differs="a word of which nothing is left is [UNK] here and nothing there",
        their_head=True,
    ),
    "CODAH": Task(
        "codah:{data}/multiple_choice/codah/fold_0/train.tsv",
        {"CODAH fold 0 dev": "codah:{data}/multiple_choice/codah/fold_0/dev.tsv"},
        ("accuracy",),
        sequence_length=64,
        batch_size=16,
        epochs=2,
    ),
}


# === Data ===


def read(task: Task, data: str, examples: int | None) -> tuple[Examples, dict[str, Examples]]:
    """Return the training examples and those to be scored, of each `examples` at most."""
    train, dev = read_examples(task.train.format(data=data)), {}
    for name, source in task.dev.items():
        if source == HELD_OUT:
            shares = {"train": 0.9, "dev": 0.1}
            rows = random_splits(len(train), shares, groups=train.groups)
            train, dev[name] = (train.rows(rows[split]) for split in shares)
        else:
            dev[name] = read_examples(source.format(data=data))
    most = min(task.examples or len(train), examples or len(train))
    return _some(train, most), {name: _some(part, examples) for name, part in dev.items()}


def _some(examples, count):
    order = np.random.default_rng(0).permutation(len(examples))
    return examples.rows(sorted(order[:count].tolist()))


# === Training ===


class ZooFinetuning:
    """What `with_transformers.Finetuning` is, with this package."""

    def __init__(self, train: Examples, settings: Mapping, seed: int):
        self.kind, self.train, self.settings, self.seed = KINDS[train.task], train, settings, seed
        self.shuffle = True
        keras.utils.set_random_seed(seed)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The checkpoint .* has no ")
            self.model = zoo.from_preset(
                PRESET,
                self.kind.model,
                sequence_length=settings["sequence_length"],
                **self.kind.head(train),
            )
        self.model.compile(
            optimizer=zoo.training.adamw(
                zoo.training.WarmupLinearDecay(settings["learning_rate"], settings["warmup"]),
                weight_decay=WEIGHT_DECAY,
                epsilon=EPSILON,
                clipnorm=CLIPNORM,
            )
        )

    @property
    def targets(self):
        """The training labels as `fit` takes them, tags as numbers."""
        targets = self.kind.targets(self.train.labels, self.model)
        return self.model.label_ids(targets) if self.train.task == "tagging" else targets

    def fit(self) -> None:
        """Train."""
        self.model.fit(
            self.train.x,
            self.targets,
            batch_size=self.settings["batch_size"],
            epochs=self.settings["epochs"],
            shuffle=self.shuffle,
            seed=self.seed,
            verbose=0,
        )

    def predict(self, examples: Examples) -> list[dict]:
        """Return an answer an example."""
        return self.kind.predict(self.model, examples.x, self.settings["batch_size"])


def transformers_finetuning(train: Examples, settings: Mapping, seed: int) -> Finetuning:
    """Return the other side of the same."""
    folder = str(resolve_card(find_card(PRESET)))
    names = KINDS[train.task].head(train).get("class_names")
    numbers = {name: number for number, name in enumerate(names or [])}
    targets = {
        "classification": lambda labels: np.array([numbers[label] for label in labels]),
        "regression": np.array,
        "tagging": lambda labels: [[numbers[tag] for tag in row] for row in labels],
    }
    targets = targets.get(train.task, list)(train.labels)
    return Finetuning(folder, train, names, targets, settings, seed)


PACKAGES = {"zoo": ZooFinetuning, "transformers": transformers_finetuning}


def run(package: str, train: Examples, dev: Mapping, task: Task, settings: Mapping, seed: int):
    """Fine-tune once; return the scores in percent."""
    finetuning = PACKAGES[package](train, settings, seed)
    if task.their_head and package == "zoo":
        copy_head(finetuning, transformers_finetuning(train, settings, seed))
    finetuning.fit()
    answers = {name: finetuning.predict(part) for name, part in dev.items()}
    # SQuAD's are in percent already.
    unit = 1 if train.task == "question_answering" else 100
    scores = {}
    for name, part in dev.items():
        found = scores_of(part, answers[name])
        scores |= {f"{name}: {measure}": unit * found[measure] for measure in task.measures}
    return {"scores": scores}


def kept(path: pathlib.Path, settings: Mapping, make) -> dict:
    """Return what the file holds, made first if there is none.

    Raises:
        ValueError: it was made with other settings.
    """
    if not path.exists():
        write_json({"settings": settings, **make()}, str(path))
    result = json.loads(path.read_text(encoding="utf-8"))
    if result["settings"] != settings:
        raise ValueError(
            f"{str(path)!r} was made with {result['settings']}, not with {settings}. Give another "
            "`--output`."
        )
    return result


# === Check ===


def check(train: Examples, dev: Mapping[str, Examples], task: Task, settings: Mapping) -> bool:
    """Print in what both sides differ, untrained and after a few steps, and whether they may."""
    # transformers' loss of answers counts padding among what could be one; a row alone has none.
    batch_size = 1 if train.task == "question_answering" else 4
    settings = {**settings, "batch_size": batch_size, "epochs": 1, "warmup": 0.5}
    ours, theirs = (make(train, settings, seed=0) for make in PACKAGES.values())
    copy_head(ours, theirs)
    targets = ours.targets, theirs.targets
    is_right = True
    for name, part in {"training": train, **dev}.items():
        counts = rows_in_common(ours, theirs, part, targets if part is train else (None, None))
        few = part.rows(range(0, len(part), -(-len(part) // CHECKED_EXAMPLES)))
        values = logits(ours, theirs, few)
        apart = float(np.abs(values[0] - values[1]).max())
        is_same = not counts["ours alone"] and not counts["theirs alone"]
        reason = "" if is_same else f" ({task.differs})"
        print(f"{name}: rows of {_words(counts)}{reason}; logits within {apart:.1e}", flush=True)
        is_right &= apart <= TOLERANCE and bool(is_same or task.differs)

    some = slice(CHECKED_EXAMPLES)
    few, targets = train.rows(range(len(train))[some]), [side[some] for side in targets]
    chosen = examples_in_common(ours, theirs, few, targets)
    # An even number of steps, for both packages round the warm-up otherwise.
    chosen = chosen[: len(chosen) // 8 * 8]
    ours.train = theirs.train = few = few.rows(chosen)
    theirs.targets = [targets[1][number] for number in chosen]
    before = logits(ours, theirs, few)[0]
    drop_nothing(ours, theirs)
    ours.fit()
    theirs.fit()
    after = logits(ours, theirs, few)
    apart, moved = (float(np.abs(after[0] - x).max()) for x in (after[1], before))
    steps = len(chosen) // batch_size
    print(f"after {steps} steps without dropout: logits moved by {moved:.1e}, within {apart:.1e}")
    return is_right and apart <= SHARE * moved


# === Table ===


def compare(ours: Sequence[float], theirs: Sequence[float]) -> dict:
    """Return means, standard deviations, and whether they differ by two pooled standard errors.

    Example:
        >>> found = compare([80.0, 82.0], [80.0, 80.0])
        >>> found["difference"], found["two standard errors"], found["verdict"]
        (1.0, 2.0, 'within')
    """
    found = {}
    for name, values in (("ours", ours), ("theirs", theirs)):
        deviation = statistics.stdev(values) if len(values) > 1 else None
        found[name] = {"mean": statistics.mean(values), "standard deviation": deviation}
    difference = found["ours"]["mean"] - found["theirs"]["mean"]
    found |= {"difference": difference, "two standard errors": None, "verdict": "too few seeds"}
    if len(ours) > 1:
        # Of the difference of two means of as many seeds.
        limit = 2 * math.sqrt((statistics.variance(ours) + statistics.variance(theirs)) / len(ours))
        better = "ours better" if difference > 0 else "theirs better"
        found["two standard errors"] = limit
        found["verdict"] = "within" if abs(difference) <= limit else better
    return found


def table(results: Mapping[str, Mapping[str, Sequence[Mapping]]]) -> list[dict]:
    """Return a row for each measure of each task of what `run` returned."""
    rows = []
    for task, sides in results.items():
        for measure in sides["zoo"][0]["scores"]:
            scores = [[result["scores"][measure] for result in side] for side in sides.values()]
            rows.append({"task": task, "measure": measure, **compare(*scores)})
    return rows


HEADER = "task, measure, ours, transformers, difference, 2 SE, verdict"


def to_markdown(rows: Sequence[Mapping], settings: Mapping[str, Mapping], seeds: int) -> str:
    """Return the table, its settings and its command."""
    lines = [HEADER.split(", "), ["---"] * len(HEADER.split(", "))]
    for row in rows:
        means = [
            f"{side['mean']:.2f} ± {_figure(side['standard deviation'])}"
            for side in (row["ours"], row["theirs"])
        ]
        differences = f"{row['difference']:+.2f}", _figure(row["two standard errors"])
        lines.append([row["task"], row["measure"], *means, *differences, row["verdict"]])
    grid = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    facts = "\n".join(f"- {task}: {_words(values)}" for task, values in settings.items())
    names = ("keras", "torch", "transformers", "accelerate")
    return f"""{grid}

Percent, mean ± standard deviation of {seeds} seeds; ours less transformers'; two pooled standard
errors.

{facts}
- all: {PRESET}; AdamW without weight decay, linear decay, gradients clipped at {CLIPNORM}
- {_words({name: importlib.metadata.version(name) for name in names})}

    KERAS_BACKEND=torch python {shlex.join(sys.argv)}
"""


def _figure(value):
    return "?" if value is None else f"{value:.2f}"


def _words(facts):
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in facts.items())


def main() -> None:
    """Check, or run what is missing and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="the folder with glue, squad and so on")
    parser.add_argument("--output", type=pathlib.Path, required=True, help="folder of the scores")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--examples", type=int, help="of training and of each dev set, at most")
    parser.add_argument("--epochs", type=int, help="of all tasks, in place of their own")
    parser.add_argument("--check", action="store_true", help="compare inputs and logits alone")
    arguments = parser.parse_args()
    if keras.backend.backend() != "torch":
        parser.error("both sides run on PyTorch: set KERAS_BACKEND=torch")
    settings, results, is_right = {}, {}, True
    for name in arguments.tasks:
        task = TASKS[name]
        train, dev = read(task, arguments.data, arguments.examples)
        settings[name] = {
            "sequence_length": task.sequence_length,
            "batch_size": task.batch_size,
            "learning_rate": task.learning_rate,
            "epochs": arguments.epochs or task.epochs,
            "warmup": WARMUP,
            **({"head": "transformers' on both sides"} if task.their_head else {}),
            "training examples": len(train),
            **{f"{name} examples": len(part) for name, part in dev.items()},
        }
        print(f"== {name}: {_words(settings[name])}", flush=True)
        if arguments.check:
            is_right &= check(train, dev, task, settings[name])
            continue
        results[name] = {package: [] for package in PACKAGES}
        # Seed by seed, so that what there is of an ended run can be compared.
        for seed in arguments.seeds:
            for package, done in results[name].items():
                make = functools.partial(run, package, train, dev, task, settings[name], seed)
                path = arguments.output / f"{name}_{package}_{seed}.json"
                done.append(kept(path, settings[name], make))
                scores = {name: f"{score:.2f}" for name, score in done[-1]["scores"].items()}
                print(f"{package} {seed}: {_words(scores)}", flush=True)
        rows = table(results)
        write_json({"settings": settings, "rows": rows}, str(arguments.output / "table.json"))
        text = to_markdown(rows, settings, len(arguments.seeds))
        write_whole(arguments.output / "table.md", text.encode())
    if arguments.check:
        sys.exit(0 if is_right else "The two sides differ in what they may not.")
    print(f"\n{text}")


if __name__ == "__main__":
    main()
