"""Every notebook, run in a kernel as a user runs it, with a few words for data."""

import ast
import csv
import json
import pathlib
import textwrap
from typing import NamedTuple

import keras
import nbformat
import numpy as np
import pytest
from jupyter_client import AsyncKernelManager
from nbclient import NotebookClient

from keras_bert_zoo.models import BertBackbone
from keras_bert_zoo.preprocessing import BertPreprocessor, BertTokenizer

FOLDER = pathlib.Path(__file__).parent.parent / "examples" / "notebooks"

GOOD, BAD, NAMES = ["fine", "warm"], ["dull", "cold"], ["anna", "niels"]
OTHERS = ["the", "film", "sees", "sun", "rain", "wind", "who", "."]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *GOOD, *BAD, *NAMES, *OTHERS]


class Case(NamedTuple):
    """A notebook's settings in the test, `FOLDER` being its inputs', and how it is checked.

    `check` runs after its last cell. What it prints the notebook must have printed before.
    """

    settings: dict
    plots: int
    check: str


CASES = {
    "glue": Case(
        {
            "DATA": "FOLDER",
            "PRESET": "FOLDER/preset",
            "EXAMPLES": 96,
            "EPOCHS": 8,
            "BATCH_SIZE": 16,
            "LEARNING_RATE": 0.01,
        },
        plots=2,
        check="""
            names = [saved.class_names[i] for i in again.argmax(axis=1)]
            share = np.mean([name == label for name, label in zip(names, dev["label"])])
            assert share > 0.9 and np.abs(again - logits).max() < 1e-5
            print(f"accuracy: {share:.4f}")
            print(f"{round((1 - share) * 24)} of 24 are wrong")
            print("positive, taken for negative at ")
        """,
    ),
    "squad": Case(
        {
            "TRAIN": "FOLDER/squad_train.json",
            "DEV": "FOLDER/squad_dev.json",
            "PRESET": "FOLDER/preset",
            "EXAMPLES": 96,
            "EPOCHS": 8,
            "LEARNING_RATE": 0.01,
            "SEQUENCE_LENGTH": 16,
        },
        plots=2,
        check="""
            share = np.mean([a.text == t[0].text for a, t in zip(again, dev["answers"])])
            assert share > 0.9 and abs(shares["start"].sum() - 1) < 1e-5
            print(f"exact {100 * share:.1f}")
            print("24 of 24 answers are their passage's context[start:end]")
            print("The saved model gives 24 of 24 answers alike")
        """,
    ),
    "tagging": Case(
        {
            "TRAIN": "FOLDER/train.conll",
            "DEV": "FOLDER/dev.conll",
            "PRESET": "FOLDER/preset",
            "EXAMPLES": 96,
            "EPOCHS": 8,
            "BATCH_SIZE": 16,
            "LEARNING_RATE": 0.01,
        },
        plots=2,
        check="""
            pairs = [p for rows in zip(dev_tags, again) for p in zip(*rows)]
            right, given, there = (
                sum(pair[0] != "O" and pair[1] != "O" for pair in pairs),
                sum(pair[1] != "O" for pair in pairs),
                sum(pair[0] != "O" for pair in pairs),
            )
            assert right > 0.9 * there
            print(f"F1 {2 * right / (given + there):.4f} on {there} spans")
            print("of 24 sentences have a wrong tag")
            print("given B-PER")
            print("The saved model gives the same tags: True")
        """,
    ),
    "features": Case(
        {
            "TRAIN": "FOLDER/train.csv",
            "DEV": "FOLDER/dev.csv",
            "TEXT": "text",
            "PRESET": "FOLDER/preset",
            "EXAMPLES": 96,
            "EPOCHS": 10,
        },
        plots=2,
        check="""
            # A word decides, and the mean of the embeddings, new ones here, has it.
            assert scores["embeddings", "mean"] > 0.8
            names = [classes[i] for i in classifier.predict(dev_texts, verbose=0).argmax(axis=1)]
            share = np.mean([name == label for name, label in zip(names, dev_labels)])
            print(f"accuracy on dev after 10 epochs: {share:.4f}")
            print("96 texts, 24 of dev")
        """,
    ),
    "pretraining": Case(
        {
            "TEXT": "FOLDER/texts",
            "CONFIG": str(FOLDER.parent / "pretraining" / "laptop.toml"),
            "STEPS": 30,
            "VOCABULARY_SIZE": 80,
            "SETTINGS": [
                "model.num_layers=1",
                "model.hidden_dim=16",
                "phases.0.sequence_length=32",
                "phases.0.batch_size=16",
                "data.duplicates=2",
                "evaluation.held_out=0.34",
                "evaluation.every=10",
                "evaluation.passes=1",
            ],
        },
        plots=2,
        check="""
            record = json.loads((pathlib.Path(RUN) / "record.json").read_text())
            assert record["results"] == results and record["status"] == "finished"
            losses = [line["masked_lm_loss"] for line in steps]
            assert len(losses) == 30 and np.mean(losses[-5:]) < np.mean(losses[:5])
            assert [line["step"] for line in scored] == [10, 20, 30]
            loss = scored[-1]["held_out"]["masked_lm_loss"]
            print(f"held-out masked-LM loss (nats): {loss:.4f}")
            print(f"{len(vocabulary):,} entries")
            for row, column in np.argwhere(real):
                print(f"  {vocabulary[hidden[row, column]]}: ")
        """,
    ),
    "backends": Case(
        {"PRESET": "FOLDER/preset", "TEXTS": ["the fine film .", "anna sees the sun", ""]},
        plots=1,
        check="""
            files = [np.load(f"{OUTPUT}/{name}.npy") for name in ("tensorflow", "jax", "torch")]
            assert files[0].shape == (3, 16) and len(differences) == 3
            assert all(0 < values.max() < 1e-5 for values in differences.values())
            largest = np.abs(files[0] - files[2]).max()
            print(f"tensorflow and torch: largest difference {largest:.1e}")
        """,
    ),
}


def around(word, rng):
    """Return two to six words, this one among them."""
    words = rng.choice(OTHERS[:6], rng.integers(1, 6)).tolist()
    words.insert(rng.integers(len(words) + 1), str(word))
    return words


def write_reviews(folder, split, count, rng):
    """Write texts that one word makes good or bad, as GLUE has them and as a table."""
    rows = [(" ".join(around(rng.choice([BAD, GOOD][i % 2]), rng)), i % 2) for i in range(count)]
    if split == "dev":
        rows[0] = rows[0][0], 1
    lines = "".join(f"{text}\t{label}\n" for text, label in rows)
    (folder / "SST-2").mkdir(exist_ok=True)
    (folder / "SST-2" / f"{split}.tsv").write_text(f"sentence\tlabel\n{lines}")
    with open(folder / f"{split}.csv", "w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])


def write_names(folder, split, count, rng):
    """Write sentences with a name, which is a span to be tagged and the answer to a question."""
    names = [str(rng.choice(NAMES)) for _ in range(count)]
    sentences = [around(name, rng) for name in names]
    if split == "dev":
        names[0] = next(word for word in sentences[0] if word != names[0])
    tagged, paragraphs = [], []
    for i, (name, words) in enumerate(zip(names, sentences, strict=True)):
        tagged.append("\n".join(f"{word} {'B-PER' if word == name else 'O'}" for word in words))
        context = " ".join(words)
        answers = [{"text": name, "answer_start": context.index(name)}]
        question = {"id": f"{split} {i}", "question": "who", "answers": answers}
        paragraphs.append({"context": context, "qas": [question]})
    (folder / f"{split}.conll").write_text("\n\n".join(tagged))
    squad = {"data": [{"title": "words", "paragraphs": paragraphs}]}
    (folder / f"squad_{split}.json").write_text(json.dumps(squad))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A folder with a preset of two layers, texts, and tasks that one word decides.

    The first example of each dev set has a wrong label, so that there is a mistake to show.
    """
    folder = tmp_path_factory.mktemp("notebooks")
    keras.utils.set_random_seed(0)
    backbone = BertBackbone(
        vocabulary_size=len(PIECES),
        num_layers=2,
        num_heads=2,
        hidden_dim=16,
        intermediate_dim=32,
        max_sequence_length=32,
        dropout=0.0,
        attention_dropout=0.0,
        preprocessor=BertPreprocessor(BertTokenizer(PIECES, lowercase=True), 16),
    )
    backbone.save_to_preset(folder / "preset")
    rng = np.random.default_rng(0)
    for split, count in (("train", 96), ("dev", 24)):
        write_reviews(folder, split, count, rng)
        write_names(folder, split, count, rng)
    (folder / "texts").mkdir()
    for i, word in enumerate([*GOOD, *BAD, *NAMES]):
        lines = [f"the {word} {a} and the {word} {b} meet." for a in OTHERS[1:6] for b in NAMES]
        (folder / "texts" / f"{i}.txt").write_text("\n".join(lines))
    return folder


def with_settings(notebook, settings, folder):
    """Put a cell behind the one tagged `parameters` that sets some of its names again."""
    (place,) = (
        i for i, cell in enumerate(notebook.cells) if "parameters" in cell.metadata.get("tags", ())
    )
    known = {
        node.id
        for node in ast.walk(ast.parse(notebook.cells[place].source))
        if isinstance(node, ast.Name)
    }
    assert set(settings) <= known
    lines = "\n".join(f"{name} = {value!r}" for name, value in settings.items())
    cell = nbformat.v4.new_code_cell(lines.replace("FOLDER", str(folder)))
    notebook.cells.insert(place + 1, cell)


def printed(cells):
    """Return what cells have printed."""
    outputs = (output for cell in cells for output in cell.get("outputs", ()))
    return "".join(output.text for output in outputs if output.get("name") == "stdout")


def marks(name):
    """Leave the quickest one, on the backend that begins the fastest, for every run."""
    if (name, keras.backend.backend()) == ("squad", "torch"):
        return []
    return [pytest.mark.slow, *([pytest.mark.backend_free] if name == "backends" else [])]


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in CASES])
def test_a_notebook_runs_and_what_it_prints_is_so(name, inputs, tmp_path, monkeypatch):
    case = CASES[name]
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    with_settings(notebook, case.settings, inputs)
    notebook.cells.append(nbformat.v4.new_code_cell(textwrap.dedent(case.check)))
    # Not by ports, which may be taken by other tests meanwhile; the sockets are in this folder.
    monkeypatch.chdir(tmp_path)
    kernel = AsyncKernelManager(transport="ipc")
    NotebookClient(notebook, km=kernel, startup_timeout=120, timeout=900).execute()
    shown = printed(notebook.cells[:-1])
    expected = printed(notebook.cells[-1:]).splitlines()
    assert expected
    for line in expected:
        assert line in shown, f"{line!r} is not in:\n{shown}"
    outputs = (output for cell in notebook.cells for output in cell.get("outputs", ()))
    assert sum("image/png" in output.get("data", ()) for output in outputs) == case.plots


@pytest.mark.backend_free
def test_every_notebook_is_tested_and_committed_without_outputs():
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(CASES)
    for name in CASES:
        notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
        nbformat.validate(notebook)
        for cell in notebook.cells:
            assert not cell.get("outputs") and cell.get("execution_count") is None
