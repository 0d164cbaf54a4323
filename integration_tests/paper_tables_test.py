"""The paper's tables at small scale: run in seconds, and what is said of the scores."""

import dataclasses
import importlib.util
import json
import pathlib
import tomllib

import keras
import pytest

ROOT = pathlib.Path(__file__).parent.parent
FOLDER = ROOT / "examples" / "paper_tables"

spec = importlib.util.spec_from_file_location("paper_tables_run", FOLDER / "run.py")
tables = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tables)

SCALE = """
layers = 12
widths = 64
settings = [
    "precision=float32",
    "phases=[{steps=3, sequence_length=16, batch_size=4}]",
    "model.max_sequence_length=32",
    "data.vocabulary_size=60",
    "optimizer.warmup_steps=1",
    "evaluation.held_out=0.34",
    "progress.smoke_check=false",
]

[finetuning]
examples = 6
epochs = 1
batch_size = 4
sequence_length = 8
learning_rate = 1e-3
"""

TABLE = """
title = "Two of table 5's rows"
note = "A note."

[[rows]]
name = "BASE"
config = "bert_base"
paper = { SST-2 = 92.7 }

[[rows]]
name = "LTR"
config = "left_to_right"
head = "last"
paper = { SST-2 = 92.1 }
"""


def write_inputs(folder):
    words = ["sun", "rain", "wind", "snow"]
    documents = ("\n".join(f"the {a} and the {b} meet." for b in words) for a in words)
    (folder / "corpus.txt").write_text("\n\n".join(documents))
    (folder / "table.toml").write_text(TABLE)
    (folder / "scale.toml").write_text(SCALE)
    task = folder / "SST-2"
    task.mkdir()
    rows = [f"the {word} comes {i}\t{i % 2}" for i, word in enumerate(words * 2)]
    for name in ("train.tsv", "dev.tsv"):
        (task / name).write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    return [
        str(folder / "table.toml"),
        *("--scale", str(folder / "scale.toml"), "--text", str(folder / "corpus.txt")),
        *("--task", f"SST-2={task}", "--output", str(folder / "results"), "--seeds", "0"),
    ]


# Four programs to compile: on the backend that begins the fastest.
@(pytest.mark.slow if keras.backend.backend() != "torch" else lambda test: test)
def test_a_table_is_run_once_and_printed_beside_the_papers(tmp_path, monkeypatch, capsys):
    arguments = [*write_inputs(tmp_path), "--set", "data.format=sentences"]
    tables.main(arguments)
    assert "== Two of table 5's rows: LTR, seed 0" in capsys.readouterr().out
    results = tmp_path / "results"
    found = json.loads((results / "table.json").read_text())
    assert [row["row"] for row in found["rows"]] == ["BASE", "LTR"]
    scores = found["rows"][0]["scores"]
    assert list(scores) == ["LM perplexity", "LM accuracy", "NSP accuracy", "SST-2"]
    assert 0 <= scores["SST-2"]["mean"] <= 100 and scores["SST-2"]["standard deviation"] is None
    # Eight rows, four of each class; a seed alone tells nothing.
    assert scores["SST-2"]["mean"] % 12.5 == 0
    assert found["differences"][0]["paper"] == pytest.approx(92.1 - 92.7)
    text = (results / "table.md").read_text()
    assert "1 layers of 12" in text and "50.0%" in text and "92.7" in text and "A note." in text
    assert len(list((results / "pretraining").glob("*.json"))) == 2

    def refuse(*arguments):
        raise AssertionError("What is finished must not be run again.")

    monkeypatch.setattr(tables, "pretrain", refuse)
    monkeypatch.setattr(tables, "finetune", refuse)
    tables.main(arguments)
    assert (results / "table.md").read_text() == text


def read(name):
    return tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))


@pytest.mark.backend_free
def test_the_three_tables_need_thirteen_pretrainings_at_the_default_scale():
    rows = [row for number in (5, 6, 8) for row in read(f"table_{number}")["rows"]]
    settings = ["data.text=['texts']"]
    configs = [tables.row_config(row, read("small"), settings, seed=0) for row in rows]
    assert len({dataclasses.replace(config, run="") for config in configs}) == 13
    for config in configs:
        assert config.model.hidden_dim % config.model.num_heads == 0


@pytest.mark.backend_free
def test_a_scale_that_divides_no_size_is_refused():
    row = {"name": "BASE", "config": "bert_base"}
    scale = {**read("small"), "layers": 5}
    with pytest.raises(ValueError, match="divide num_layers, 12, of BASE: 5"):
        tables.row_config(row, scale, ["data.text=['texts']"], seed=0)


@pytest.mark.backend_free
def test_differences_are_paired_by_seed_and_put_beside_the_papers():
    table = {
        "title": "T",
        "rows": [
            {"name": "BASE", "paper": {"QNLI": 88.4}},
            {"name": "No NSP", "paper": {"QNLI": 84.9}},
        ],
    }
    scores = {
        "BASE": [{"QNLI": 60.0}, {"QNLI": 70.0}, {"QNLI": 80.0}],
        "No NSP": [{"QNLI": 58.0}, {"QNLI": 67.0}, {"QNLI": 79.0}],
    }
    summary = tables.summarize(table, scores, ["QNLI"])
    assert summary["rows"][0]["scores"]["QNLI"] == {"mean": 70.0, "standard deviation": 10.0}
    (difference,) = summary["differences"]
    # t = -2 / (1 / sqrt(3)) with two degrees of freedom; p = 1 - t / sqrt(t^2 + 2).
    assert difference["mean"] == -2.0 and difference["standard deviation"] == 1.0
    assert difference["p"] == pytest.approx(1 - 12**0.5 / 14**0.5)
    assert difference["paper"] == pytest.approx(-3.5)
    assert tables.verdict(difference) == "not told from chance"
    assert "| -2.0 ± 1.0 | 0.07 | -3.50 |" in tables.to_markdown(table, summary, "Scale.")


@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("mean", "p", "paper", "words"),
    [
        (-2.0, None, -3.5, "too few seeds to say"),
        (-2.0, 0.2, -3.5, "not told from chance"),
        (-2.0, 0.01, -3.5, "clear, as in the paper"),
        (2.0, 0.01, -3.5, "clear, the other way than in the paper"),
        (2.0, 0.01, None, "clear"),
    ],
)
def test_a_difference_is_called_what_it_is(mean, p, paper, words):
    assert tables.verdict({"mean": mean, "p": p, "paper": paper}) == words


@pytest.mark.backend_free
def test_tasks_are_read_as_their_files_are(tmp_path):
    cola = tmp_path / "CoLA"
    cola.mkdir()
    for name in ("train.tsv", "dev.tsv"):
        (cola / name).write_text('a\t1\t\tOne "sails.\na\t0\t*\tTwo sails.\n')
    task = tables.read_task(f"CoLA={cola}", 10)
    assert task.dev == (['One "sails.', "Two sails."],) and task.dev_labels.tolist() == [1, 0]
    assert (task.score[0], task.outputs) == ("Matthews", 2)

    mrpc = tmp_path / "MRPC"
    mrpc.mkdir()
    for name in ("train", "test"):
        (mrpc / f"msr_paraphrase_{name}.txt").write_text(
            "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n1\t3\t4\tOne.\tTwo.\r\n"
        )
    task = tables.read_task(f"MRPC={mrpc}", 10)
    assert task.train == (["One."], ["Two."])

    scores = tmp_path / "scores.tsv"
    scores.write_text("sentence1\tsentence2\tscore\nOne.\tTwo.\t4.5\n")
    task = tables.read_task(f"STS-B={scores},{scores}", 10)
    assert (task.score[0], task.outputs, task.labels.tolist()) == ("Spearman", 1, [4.5])

    with pytest.raises(ValueError, match="NAME=FOLDER"):
        tables.read_task(f"RTE={tmp_path}", 10)
    scores.write_text("a\tb\n1\t2\n")
    with pytest.raises(ValueError, match="no columns of a known task"):
        tables.read_task(f"RTE={scores},{scores}", 10)


@pytest.mark.parametrize("head", ["last", "bilstm"])
def test_padding_changes_no_head_that_reads_the_last_pieces(head):
    from keras_bert_zoo.models import BertBackbone

    keras.utils.set_random_seed(0)
    backbone = BertBackbone(
        vocabulary_size=20, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=8, causal=True
    )
    classifier = tables.make_classifier(backbone, head, 2)

    def logits(ids, mask):
        zeros = keras.ops.zeros_like(ids)
        return keras.ops.convert_to_numpy(
            classifier({"token_ids": ids, "segment_ids": zeros, "padding_mask": mask})
        )

    short = logits(keras.ops.array([[2, 5, 6]]), keras.ops.array([[1, 1, 1]]))
    padded = logits(keras.ops.array([[2, 5, 6, 0, 0]]), keras.ops.array([[1, 1, 1, 0, 0]]))
    assert padded == pytest.approx(short, abs=1e-5)
    changed = logits(keras.ops.array([[2, 5, 7]]), keras.ops.array([[1, 1, 1]]))
    assert abs(changed - short).max() > 1e-4
