"""Run tables 5, 6 and 8 of Devlin et al. 2018 at small scale, beside the paper's figures.

    python examples/paper_tables/run.py table_5 table_8 table_6 --text FOLDER \
        --task SST-2=GLUE/SST-2 --task MRPC=GLUE/MRPC

A table is a TOML file here; each of its rows pre-trains one of the models in
`examples/pretraining`, made smaller as `--scale` says, and fine-tunes it on each task, with each
seed. What is finished is kept in `--output`: an ended run goes on with what is missing, and rows
that are pre-trained alike, in whichever tables, are pre-trained once. README.md says what came out.
"""

import argparse
import dataclasses
import functools
import hashlib
import json
import pathlib
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops
from scipy.stats import ttest_1samp
from sklearn.metrics import accuracy_score

from keras_bert_zoo import from_preset
from keras_bert_zoo.cli.output import write_json
from keras_bert_zoo.data import read_table
from keras_bert_zoo.data.documents import find_files
from keras_bert_zoo.evaluation import glue_score, majority_accuracy
from keras_bert_zoo.layers.common import initializer
from keras_bert_zoo.preprocessing import BertPreprocessor
from keras_bert_zoo.training import WarmupLinearDecay, adamw
from keras_bert_zoo.training.config import Config, read_config
from keras_bert_zoo.training.pretraining import pretrain
from keras_bert_zoo.whole_files import write_whole

HERE = pathlib.Path(__file__).parent

# === Tasks ===

# In GLUE's layout, and in TFDS's, the first of these that a table has are its texts and labels.
TEXTS = (
    ("sentence1", "sentence2"),
    ("#1 String", "#2 String"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("premise", "hypothesis"),
    ("sentence",),
)
LABELS = (("gold_label",), ("label",), ("Quality",), ("score",), ("is_duplicate",))
FILES = (
    ("train.tsv", "dev.tsv"),
    ("train.tsv", "dev_matched.tsv"),
    ("msr_paraphrase_train.txt", "msr_paraphrase_test.txt"),
)
# Files without a line of names.
HEADERS = {"CoLA": ["source", "label", "mark", "sentence"]}
REGRESSIONS = ("STS-B",)
# Of a task that is not here, accuracy.
SCORES = {"CoLA": ("Matthews", "matthews_correlation"), "STS-B": ("Spearman", "spearman")}


class Task(NamedTuple):
    """A task's texts (one column or two) and labels, to train on and to score on."""

    name: str
    train: tuple[list[str], ...]
    labels: np.ndarray
    dev: tuple[list[str], ...]
    dev_labels: np.ndarray
    # A number, or a score for each class.
    outputs: int

    @property
    def score(self) -> tuple[str, Callable]:
        """The score's name and its function of labels and predictions."""
        if self.name not in SCORES:
            return "accuracy", accuracy_score
        title, measure = SCORES[self.name]
        return title, lambda labels, outputs: glue_score(self.name, labels, outputs)[measure]


def read_task(argument: str, examples: int) -> Task:
    """Return the task that `NAME=FOLDER` or `NAME=TRAIN,DEV` says, with so many examples at most.

    Raises:
        ValueError: the argument has another form, or its tables are missing or no task's.
    """
    name, _, source = argument.partition("=")
    folder = pathlib.Path(source)
    parts = source.split(",")
    if folder.is_dir():
        found = [f for f in FILES if all((folder / part).is_file() for part in f)]
        parts = [str(folder / part) for part in found[0]] if found else []
    if not name or len(parts) != 2:
        raise ValueError(
            f"`--task` must be NAME=FOLDER with GLUE's files, or NAME=TRAIN,DEV. "
            f"Received: {argument!r}."
        )
    (train, labels), (dev, dev_labels) = (_columns(part, HEADERS.get(name)) for part in parts)
    if name in REGRESSIONS:
        outputs = 1
        labels, dev_labels = (np.array(part, dtype="float32") for part in (labels, dev_labels))
    else:
        classes = sorted({*labels, *dev_labels})
        outputs = len(classes)
        labels, dev_labels = (np.array([classes.index(x) for x in p]) for p in (labels, dev_labels))
    order = np.random.default_rng(0).permutation(len(labels))[:examples]
    train = tuple([column[i] for i in order] for column in train)
    return Task(name, train, labels[order], dev, dev_labels, outputs)


def _columns(source, header):
    if source.startswith("tfds:"):
        table = read_table(source)
    else:
        # Of GLUE's files one has no header and one another ending than `read_table` asks for.
        lines = pathlib.Path(source).read_text(encoding="utf-8-sig").rstrip("\n").split("\n")
        rows = [line.rstrip("\r").split("\t") for line in lines]
        header = header or rows.pop(0)
        table = dict(zip(header, zip(*rows, strict=True), strict=True))
    found = [[c for c in known if set(c) <= set(table)] for known in (TEXTS, LABELS)]
    if not all(found):
        raise ValueError(f"{source!r} has no columns of a known task. It has: {list(table)}.")
    texts, (label,) = found[0][0], found[1][0]
    return tuple(list(table[name]) for name in texts), list(table[label])


# === Pre-training ===


def row_config(row: Mapping, scale: Mapping, settings: Sequence[str], seed: int) -> Config:
    """Return a row's pre-training: the paper's, made smaller.

    Raises:
        ValueError: the scale does not divide the row's sizes.
    """
    file = HERE.parent / "pretraining" / f"{row['config']}.toml"
    settings = [*row.get("settings", []), *scale["settings"], *settings, f"seed={seed}"]
    config = read_config(file, settings)
    sizes = {}
    for name, divisor in (("num_layers", scale["layers"]), ("hidden_dim", scale["widths"])):
        size = getattr(config.model, name)
        if size % divisor:
            raise ValueError(f"The scale must divide {name}, {size}, of {row['name']}: {divisor}.")
        sizes[name] = size // divisor
    return dataclasses.replace(config, model=dataclasses.replace(config.model, **sizes))


# What decides nothing about how a run comes out.
UNIMPORTANT = ("run", "checkpoints", "progress")


def key(*facts) -> str:
    """Return a name for what these facts decide."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def kept(path: pathlib.Path, make: Callable[[], dict]) -> dict:
    """Return what the file holds, made first if there is none."""
    if not path.exists():
        write_json(make(), str(path))
    return json.loads(path.read_text(encoding="utf-8"))


# === Fine-tuning ===


def first_state(backbone, states, mask):
    """The paper's: a dense tanh of `[CLS]`'s state."""
    return states["pooled_output"]


def last_state(backbone, states, mask):
    """The same of the last piece, the one that has seen all others where they look to the left."""
    last = ops.sum(mask, axis=1)[:, None, None] - 1
    return backbone.pooler(ops.take_along_axis(states["sequence_output"], last, axis=1)[:, 0])


def bilstm(backbone, states, mask):
    """The last states of two LSTMs over all pieces, one from the left and one from the right."""
    lstm = keras.layers.LSTM(backbone.hidden_dim)
    return keras.layers.Bidirectional(lstm)(states["sequence_output"], mask=ops.cast(mask, "bool"))


HEADS = {"first": first_state, "last": last_state, "bilstm": bilstm}


def make_classifier(backbone, head: str, num_outputs: int) -> keras.Model:
    """Return a model of a backbone's inputs, whose outputs are logits or a number."""
    names = ("token_ids", "segment_ids", "padding_mask")
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in names}
    features = HEADS[head](backbone, backbone(inputs), inputs["padding_mask"])
    features = keras.layers.Dropout(backbone.dropout)(features)
    outputs = keras.layers.Dense(num_outputs, kernel_initializer=initializer())(features)
    return keras.Model(inputs, outputs)


def finetune(preset: str, row: Mapping, task: Task, settings: Mapping, seed: int) -> dict:
    """Return the dev score, in percent, after the last epoch."""
    keras.utils.set_random_seed(seed)
    backbone = from_preset(preset, load_weights=row.get("pretrained", True))
    preprocessor = BertPreprocessor(backbone.preprocessor.tokenizer, settings["sequence_length"])
    classifier = make_classifier(backbone, row.get("head", "first"), task.outputs)
    batch_size, epochs = settings["batch_size"], settings["epochs"]
    steps = -(-len(task.labels) // batch_size) * epochs
    schedule = WarmupLinearDecay(settings["learning_rate"], total_steps=steps)
    is_class = task.outputs > 1
    classifier.compile(
        optimizer=adamw(schedule),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True) if is_class else "mse",
    )
    classifier.fit(
        preprocessor.dataset(
            task.train,
            task.labels,
            batch_size=batch_size,
            shuffle=True,
            seed=seed,
            epochs=epochs,
        ),
        shuffle=False,
        verbose=0,
    )
    outputs = classifier.predict(preprocessor.dataset(task.dev, batch_size=128), verbose=0)
    predictions = outputs.argmax(-1) if is_class else outputs[:, 0]
    name, score = task.score
    return {
        "backend": keras.backend.backend(),
        "score": name,
        "value": 100 * float(score(task.dev_labels, predictions)),
    }


# === A table ===


class Experiment(NamedTuple):
    """What is the same for all rows: texts by hash, tasks, scale, settings, the results' folder."""

    texts: dict[str, str]
    tasks: list[Task]
    scale: dict
    settings: list[str]
    output: pathlib.Path

    def run(self, row: Mapping, seed: int) -> dict[str, float]:
        """Return a row's scores with a seed, those that are there already and the others."""
        config = row_config(row, self.scale, self.settings, seed)
        facts = dataclasses.asdict(config)
        name = key({k: v for k, v in facts.items() if k not in UNIMPORTANT}, self.texts)
        folder = self.output / "pretraining" / name
        config = dataclasses.replace(config, run=str(folder))
        results = kept(folder.with_suffix(".json"), lambda: pretrain(config))
        scores = {}
        if row.get("pretrained", True):
            scores["LM perplexity"] = results["held-out pseudo-perplexity"]
            scores["LM accuracy"] = 100 * results["held-out masked-LM accuracy"]
            if config.model.next_sentence:
                scores["NSP accuracy"] = 100 * results["held-out next-sentence accuracy"]
        settings = self.scale["finetuning"]
        for task in self.tasks:
            how = [row.get("head"), row.get("pretrained"), settings, _content(task)]
            file = self.output / "finetuning" / f"{name}_{task.name}_{key(*how)}.json"
            preset = str(folder / "preset")
            make = functools.partial(finetune, preset, row, task, settings, seed)
            scores[task.name] = kept(file, make)["value"]
        return scores


def _content(task):
    return [[*task.train, task.labels.tolist()], [*task.dev, task.dev_labels.tolist()]]


def summarize(table: Mapping, scores: Mapping[str, Sequence[Mapping]], tasks) -> dict[str, Any]:
    """Return means and standard deviations, and the rows' differences from the first row.

    Args:
        table: a table's file.
        scores: each row's scores, a dictionary a seed, in the same order of seeds.
        tasks: the names of the tasks.
    """
    rows, differences = [], []
    first = table["rows"][0]
    for row in table["rows"]:
        seeds, paper = scores[row["name"]], row.get("paper", {})
        columns = {name: [each[name] for each in seeds] for name in seeds[0]}
        means = {
            name: {"mean": float(np.mean(x)), "standard deviation": _deviation(x)}
            for name, x in columns.items()
        }
        rows.append({"row": row["name"], "scores": means, "paper": paper, "seeds": seeds})
        compared = [name for name in columns if name in tasks or name in paper]
        for name in [] if row is first else compared:
            base = [each[name] for each in scores[first["name"]]]
            papers = paper[name] - first["paper"][name] if name in paper else None
            differences.append(
                {
                    "row": row["name"],
                    "score": name,
                    **_difference(np.subtract(columns[name], base).tolist()),
                    "paper": papers,
                }
            )
    return {"rows": rows, "differences": differences}


def _deviation(values):
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def _difference(values):
    """Return the mean over seeds, and the probability of such a mean where there is nothing."""
    deviation = _deviation(values)
    p = ttest_1samp(values, 0).pvalue if deviation else None
    return {
        "mean": float(np.mean(values)),
        "standard deviation": deviation,
        "p": None if p is None else float(p),
    }


def verdict(difference: Mapping) -> str:
    """Say in words whether a difference can be told from nothing, and whether the paper has it."""
    p, papers = difference["p"], difference["paper"]
    if p is None:
        return "too few seeds to say"
    if not p < 0.05:  # or NaN, where the scores are all the same
        return "not told from chance"
    if not papers:
        return "clear"
    same = (difference["mean"] > 0) == (papers > 0)
    return "clear, as in the paper" if same else "clear, the other way than in the paper"


# === What is printed ===


def to_markdown(table: Mapping, summary: Mapping, scale: str) -> str:
    """Return a table, its scale and its differences as text that is Markdown."""
    rows = summary["rows"]
    names = list(dict.fromkeys(name for row in rows for name in (*row["scores"], *row["paper"])))
    measured = {name for row in rows for name in row["scores"]}
    published = {name for row in rows for name in row["paper"]}
    lines = []
    for row in rows:
        line = {"": row["row"]}
        for name in names:
            if name in measured:
                line[name] = _plus_minus(row["scores"].get(name))
            if name in published:
                line[f"paper's {name}"] = row["paper"].get(name, "")
        lines.append(line)
    compared = [
        {
            f"against {rows[0]['row']}": each["row"],
            "score": each["score"],
            "here": _plus_minus(each, "+"),
            "p": "" if each["p"] is None else f"{each['p']:.2f}",
            "paper": "" if each["paper"] is None else f"{each['paper']:+.2f}",
            "": verdict(each),
        }
        for each in summary["differences"]
    ]
    parts = [f"## {table['title']}", scale, _grid(lines), table.get("note", "").strip()]
    if compared:
        parts += [
            _grid(compared),
            "p: a paired t-test over the seeds; 1 in 20 is below 0.05 by luck.",
        ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _plus_minus(score, sign=""):
    if score is None:
        return ""
    deviation = score["standard deviation"]
    return f"{score['mean']:{sign}.1f}" + ("" if deviation is None else f" ± {deviation:.1f}")


def _grid(rows):
    cells = [list(rows[0]), *([str(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    cells.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |"
        for row in cells
    )


def describe(experiment: Experiment, config: Config, seeds: Sequence[int]) -> str:
    """Return the scale in words; `config` is the first row's."""
    scale, tuning = experiment.scale, experiment.scale["finetuning"]
    phases = ", ".join(
        f"{p.steps:,} steps of {p.batch_size} x {p.sequence_length} pieces" for p in config.phases
    )
    size = sum(pathlib.Path(path).stat().st_size for path in experiment.texts) / 1e6
    words = [
        f"Scale: the paper's layers / {scale['layers']} and widths / {scale['widths']}: the first "
        f"row has {config.model.num_layers} layers of {config.model.hidden_dim}. Pre-trained for "
        f"{phases} on {size:.1f} MB of text (the paper: 1,000,000 steps of 256 x 128 to 512 on "
        f"3,300 M words).",
    ]
    for task in experiment.tasks:
        baseline = ""
        if task.outputs > 1:
            share = majority_accuracy(task.labels.tolist(), task.dev_labels.tolist())
            baseline = f"; the larger class is {share:.1%} of them"
        words.append(
            f"{task.name}: {task.score[0]}, {len(task.labels):,} examples for {tuning['epochs']} "
            f"epochs, scored on {len(task.dev_labels):,}{baseline}."
        )
    words.append(
        f"Mean ± standard deviation over seeds {', '.join(map(str, seeds))}; a seed has its own "
        "held-out documents, vocabulary, weights and order, the same for all rows."
    )
    return " ".join(words)


def run_table(experiment: Experiment, file: pathlib.Path, seeds: Sequence[int]) -> str:
    """Run a table seed by seed, write what there is after each, and return the whole as text."""
    table = tomllib.loads(file.read_text(encoding="utf-8"))
    tasks = [task.name for task in experiment.tasks]
    scores = {row["name"]: [] for row in table["rows"]}
    for seed in seeds:
        for row in table["rows"]:
            print(f"== {table['title']}: {row['name']}, seed {seed}", flush=True)
            scores[row["name"]].append(experiment.run(row, seed))
        summary = summarize(table, scores, tasks)
        first = row_config(table["rows"][0], experiment.scale, experiment.settings, seed)
        done = seeds[: seeds.index(seed) + 1]
        scale = describe(experiment, first, done)
        facts = {"table": table["title"], "scale": scale, "backend": keras.backend.backend()}
        facts |= {"settings": dataclasses.asdict(first), "seeds": done, **summary}
        text = to_markdown(table, summary, scale)
        write_whole(experiment.output / f"{file.stem}.md", text.encode())
        write_json(facts, str(experiment.output / f"{file.stem}.json"))
    return text


def main(arguments: Sequence[str] | None = None) -> None:
    """Run tables, print them, write each as Markdown and JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("tables", nargs="+", help="table_5, table_6, table_8, or a file like theirs")
    add("--text", nargs="+", help="texts, as `[data]` of a config; the Python language reference")
    add("--task", action="append", default=[], help="NAME=FOLDER (GLUE's) or NAME=TRAIN,DEV")
    add("--scale", default=str(HERE / "small.toml"), help="a file like small.toml")
    add("--set", action="append", default=[], help="a setting of all rows, as `pretrain` takes it")
    add("--seeds", type=int, nargs="+", default=[0, 1, 2])
    add("--output", default="paper_tables", help="the folder of results")
    options = parser.parse_args(arguments)

    output, text = pathlib.Path(options.output), options.text
    if not text:
        text = [str(output / "language_reference")]
        script = HERE.parent / "quickstart" / "language_reference.py"
        subprocess.run([sys.executable, str(script), *text], check=True)
    scale = tomllib.loads(pathlib.Path(options.scale).read_text(encoding="utf-8"))
    hashes = {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in find_files(text)}
    tasks = [read_task(task, scale["finetuning"]["examples"]) for task in options.task]
    settings = [f"data.text={json.dumps(text, ensure_ascii=False)}", *options.set]
    experiment = Experiment(hashes, tasks, scale, settings, output)
    for name in options.tables:
        file = pathlib.Path(name) if name.endswith(".toml") else HERE / f"{name}.toml"
        print(run_table(experiment, file, options.seeds))


if __name__ == "__main__":
    main()
