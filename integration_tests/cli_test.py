"""The command line, from files to files."""

import csv
import json
import os
import subprocess
import sys

import pytest

from keras_bert_zoo.cli import main

WORDS = ["sun", "rain", "wind", "snow", "ice", "fog", "dew", "hail", "mist", "storm"]


def write_corpus(folder):
    """Write six documents in which a sentence is about its document's own word."""
    folder.mkdir()
    for i, word in enumerate(WORDS[:6]):
        lines = [f"the {word} and the {other} meet." for other in WORDS for _ in range(2)]
        (folder / f"{i}.txt").write_text("\n".join(lines), encoding="utf-8")


def write_reviews(path, count):
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        for i in range(count):
            good = i % 2
            writer.writerow([f"the sun, {'meet' if good else 'fog'} {WORDS[i % 10]}", "ny"[good]])


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    write_corpus(folder / "corpus")
    code = main(
        ["pretrain", "--text", str(folder / "corpus"), "--output", str(folder / "preset")]
        + ["--json", str(folder / "pretraining.json"), "--vocabulary-size", "80"]
        + ["--num-layers", "1", "--hidden-dim", "16", "--num-heads", "2", "--passes", "2"]
        + ["--sequence-length", "32", "--held-out", "0.34", "--batch-size", "8"]
    )
    assert code == 0
    return folder


def test_pretrain_scores_and_saves(pretrained):
    results = json.loads((pretrained / "pretraining.json").read_text())
    assert results["held-out documents"] == 2
    assert 0 < results["held-out masked-LM loss (nats)"] < 10
    assert 0 <= results["held-out next-sentence accuracy"] <= 1
    assert (pretrained / "preset" / "vocab.txt").read_text().startswith("[PAD]\n[UNK]\n[CLS]\n")


def test_finetune_then_predict(pretrained, tmp_path, capsys):
    write_reviews(tmp_path / "train.csv", 60)
    code = main(
        ["finetune", "--preset", str(pretrained / "preset"), "--train", str(tmp_path / "train.csv")]
        + ["--output", str(tmp_path / "classifier"), "--json", str(tmp_path / "results.json")]
        + ["--epochs", "2", "--batch-size", "8", "--learning-rate", "1e-3"]
    )
    assert code == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert (results["training examples"], results["dev examples"]) == (54, 6)
    write_reviews(tmp_path / "new.csv", 5)
    code = main(
        ["predict", "--preset", str(tmp_path / "classifier"), "--input", str(tmp_path / "new.csv")]
        + ["--output", str(tmp_path / "predictions.jsonl")]
    )
    assert code == 0
    rows = [json.loads(line) for line in (tmp_path / "predictions.jsonl").read_text().splitlines()]
    assert len(rows) == 5
    assert {row["label"] for row in rows} <= {"n", "y"}
    assert all(0.5 <= row["probability"] <= 1 for row in rows)
    assert rows[0]["text"] in capsys.readouterr().out


def test_list_prints_every_preset_once(capsys, tmp_path):
    assert main(["list", "--language", "zh", "--json", str(tmp_path / "cards.json")]) == 0
    assert capsys.readouterr().out.count("bert_base_zh") == 1
    assert [card["name"] for card in json.loads((tmp_path / "cards.json").read_text())] == [
        "bert_base_zh"
    ]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["predict", "--preset", "nothing", "--sentences", "a"], "neither a preset's name"),
        (["predict", "--preset", "x"], "either --input or --sentences"),
        (
            ["finetune", "--preset", "bert_tiny_en_uncased", "--train", "no.csv", "--output", "o"],
            "There is no file 'no.csv'",
        ),
        (["pretrain", "--text", "nowhere", "--output", "o"], "no file or folder 'nowhere'"),
    ],
)
def test_wrong_input_is_one_line_and_2(arguments, message, capsys):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("error: ") and error.count("\n") == 1


def test_a_missing_column_is_named(tmp_path, capsys):
    write_reviews(tmp_path / "train.csv", 20)
    code = main(
        ["finetune", "--preset", "x", "--train", str(tmp_path / "train.csv"), "--text", "review"]
        + ["--output", "o"]
    )
    assert code == 2
    assert "no column 'review'. It has: ['text', 'label']" in capsys.readouterr().err


def test_the_module_runs_as_a_command():
    done = subprocess.run(
        [sys.executable, "-m", "keras_bert_zoo", "--help"],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    for verb in ("list", "report", "vocab", "prepare", "pretrain", "finetune", "predict"):
        assert verb in done.stdout


def test_an_occupied_output_is_refused_before_any_training(tmp_path, capsys):
    write_reviews(tmp_path / "train.csv", 20)
    arguments = ["--train", str(tmp_path / "train.csv"), "--output", str(tmp_path)]
    assert main(["finetune", "--preset", "nothing", *arguments]) == 2
    assert "must be new, empty or a preset" in capsys.readouterr().err


def test_a_missing_label_is_refused_with_its_row(tmp_path, capsys):
    rows = [{"text": "a", "label": "y"}, {"text": "b", "label": None}]
    path = tmp_path / "train.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert main(["finetune", "--preset", "x", "--train", str(path), "--output", "o"]) == 2
    assert "Row 2 of" in capsys.readouterr().err
