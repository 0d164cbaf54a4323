"""The command line, from files to files."""

import csv
import hashlib
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from keras_bert_zoo import from_preset
from keras_bert_zoo.cli import main
from keras_bert_zoo.data import read_table
from keras_bert_zoo.models import WordFeatures

CONFIG = """
run = "to be set"
[model]
num_layers = 1
num_heads = 2
hidden_dim = 16
[data]
vocabulary_size = 80
duplicates = 2
[[phases]]
steps = 10
sequence_length = 32
batch_size = 8
[evaluation]
held_out = 0.34
[progress]
every = 5
smoke_check = false
"""

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
    (folder / "run.toml").write_text(CONFIG)
    run = [f"run={folder / 'run'}", f"data.text=[{str(folder / 'corpus')!r}]"]
    options = [option for setting in run for option in ("--set", setting)]
    code = main(
        ["pretrain", str(folder / "run.toml"), *options]
        + ["--json", str(folder / "pretraining.json")]
    )
    assert code == 0
    return folder


def test_pretrain_scores_and_saves(pretrained):
    results = json.loads((pretrained / "pretraining.json").read_text())
    assert results["held-out documents"] == 2
    assert 0 < results["held-out masked-LM loss (nats)"] < 10
    assert 0 <= results["held-out next-sentence accuracy"] <= 1
    assert (
        (pretrained / "run" / "preset" / "vocab.txt")
        .read_text()
        .startswith("[PAD]\n[UNK]\n[CLS]\n")
    )


def test_pretrain_keeps_a_record_and_a_log(pretrained):
    record = json.loads((pretrained / "run" / "record.json").read_text())
    results = json.loads((pretrained / "pretraining.json").read_text())
    assert (record["status"], record["results"]) == ("finished", results)
    files = {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (pretrained / "corpus").iterdir()
    }
    assert record["data"] == files
    preset = pretrained / "run" / "preset"
    for name, part in (("vocab.txt", "vocabulary"), ("model.weights.h5", "weights")):
        sha256 = hashlib.sha256((preset / name).read_bytes()).hexdigest()
        assert record[part]["sha256"] == sha256
    log = (pretrained / "run" / "log.jsonl").read_text()
    lines = [json.loads(line) for line in log.splitlines()]
    assert [line["step"] for line in lines] == [*range(1, 11), 10]
    assert lines[-1]["held_out"]["pseudo_perplexity"] == pytest.approx(
        np.exp(results["held-out masked-LM loss (nats)"])
    )


def test_a_finished_run_is_not_trained_again_and_takes_no_other_settings(pretrained, capsys):
    log = (pretrained / "run" / "log.jsonl").read_bytes()
    options = ["--set", f"run={pretrained / 'run'}"]
    options += ["--set", f"data.text=[{str(pretrained / 'corpus')!r}]"]
    config = str(pretrained / "run.toml")
    assert main(["pretrain", config, *options]) == 0
    assert "from the checkpoint of step 10 to step 10" in capsys.readouterr().out
    assert (pretrained / "run" / "log.jsonl").read_bytes() == log
    assert main(["pretrain", config, *options, "--set", "seed=7"]) == 2
    error = capsys.readouterr().err
    assert "seed (0 there, 7 now)" in error and error.count("\n") == 1


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_batch(pretrained, tmp_path, capsys):
    options = ["--set", f"run={tmp_path / 'run'}", "--set", "optimizer.learning_rate=1e38"]
    options += ["--set", f"data.text=[{str(pretrained / 'corpus')!r}]"]
    options += ["--set", "optimizer.warmup_steps=0", "--set", "checkpoints.every=1"]
    assert main(["pretrain", str(pretrained / "run.toml"), *options]) == 2
    error = capsys.readouterr().err
    match = re.fullmatch(r"error: The loss of step (\d+) is (nan|inf); its batch .*\n", error)
    assert match, error
    step = int(match[1])
    batch = np.load(tmp_path / "run" / f"not_finite_step_{step}.npz")
    assert batch["0/inputs/token_ids"].shape == (8, 32)
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert record["status"] == "failed" and f"step {step}" in record["error"]
    # The last checkpoint is one with a finite loss.
    checkpoints = sorted(path.name for path in (tmp_path / "run" / "checkpoints").glob("*.json"))
    assert checkpoints[-1] == f"step_{step - 1:08d}.json"


def test_a_run_whose_weights_have_diverged_is_stopped_at_its_scores(pretrained, tmp_path, capsys):
    options = ["--set", f"run={tmp_path / 'run'}", "--set", "optimizer.learning_rate=1e38"]
    options += ["--set", f"data.text=[{str(pretrained / 'corpus')!r}]"]
    options += ["--set", "phases.0.steps=1"]
    assert main(["pretrain", str(pretrained / "run.toml"), *options]) == 2
    assert "diverged: after step 1 the held-out" in capsys.readouterr().err
    assert not (tmp_path / "run" / "preset").exists()


def test_finetune_evaluate_and_predict(pretrained, tmp_path, capsys):
    write_reviews(tmp_path / "train.csv", 60)
    write_reviews(tmp_path / "new.csv", 5)
    classifier, output = str(tmp_path / "classifier"), tmp_path / "results.json"
    code = main(
        ["finetune", "--preset", str(pretrained / "run" / "preset"), "--output", classifier]
        + ["--train", str(tmp_path / "train.csv"), "--json", str(output)]
        + ["--epochs", "2", "--batch-size", "8", "--learning-rate", "1e-3"]
        + ["--predict", str(tmp_path / "new.csv")]
    )
    assert code == 0
    said = capsys.readouterr().out
    # They are ten texts, over and over.
    assert "6 of 6 dev examples are in train too" in said and "Smoke check: 8 rows" in said
    results = json.loads(output.read_text())
    assert (results["training examples"], results["dev examples"]) == (54, 6)
    record = json.loads((tmp_path / "classifier_run" / "record.json").read_text())
    assert record["status"] == "finished" and len(record["runs"]) == 1
    assert record["results"]["dev accuracy"] == results["dev accuracy"]
    wrong = record["wrong"]["dev"]
    assert len(wrong) == round(6 * (1 - results["dev accuracy"]))
    vocabulary = (tmp_path / "classifier" / "vocab.txt").read_bytes()
    assert record["model"]["vocabulary"]["sha256"] == hashlib.sha256(vocabulary).hexdigest()

    new = ["--preset", classifier, "--input", str(tmp_path / "new.csv")]
    assert main(["predict", *new, "--output", str(tmp_path / "predictions.jsonl")]) == 0
    rows = [json.loads(line) for line in (tmp_path / "predictions.jsonl").read_text().splitlines()]
    assert len(rows) == 5
    assert {row["label"] for row in rows} <= {"n", "y"}
    assert all(0.5 <= row["probability"] <= 1 for row in rows)
    assert rows[0]["text"] in capsys.readouterr().out
    # The same as fine-tuning has written at its end.
    written = read_table(f"{classifier}_predictions.csv")
    assert written["label"] == [row["label"] for row in rows]

    assert main(["evaluate", *new, "--json", str(output)]) == 0
    scores = json.loads(output.read_text())
    labels = ["n", "y", "n", "y", "n"]
    wrong = [i for i, row in enumerate(rows) if row["label"] != labels[i]]
    assert scores["wrong"] == wrong
    assert scores["accuracy"] == pytest.approx(1 - len(wrong) / 5)


def write_wnli(folder):
    """Write GLUE's smallest task in its official files, the test set with all of its rows."""
    folder.mkdir()
    for split, count in (("train", 40), ("dev", 10), ("test", 146)):
        head = ["index", "sentence1", "sentence2", *([] if split == "test" else ["label"])]
        rows = (
            [str(i), f"the {WORDS[i % 10]} and the fog.", f"{WORDS[i // 4 % 10]} fog.", str(i % 2)]
            for i in range(count)
        )
        lines = ["\t".join(row[: len(head)]) for row in (head, *rows)]
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n")


def test_a_head_on_cached_features_is_trained_and_its_predictions_submitted(
    pretrained, tmp_path, capsys
):
    write_wnli(tmp_path / "WNLI")
    source, classifier = f"glue/wnli={tmp_path}", str(tmp_path / "classifier")
    encoder = str(pretrained / "run" / "preset")
    options = ["--what", "features", "--epochs", "2", "--sequence-length", "32"]
    options += ["--pooling", "mean", "--layers", "second_to_last"]
    arguments = ["--preset", encoder, "--train", source, "--output", classifier]
    assert main(["finetune", *arguments, *options]) == 0
    record = json.loads((tmp_path / "classifier_run" / "record.json").read_text())
    assert record["trained"] == "features" and record["encoder_is_trained"] is False
    assert record["parameters"]["trainable"] < record["parameters"]["total"]
    trained = from_preset(classifier, "text_classifier")
    head = {"pooling": trained.pooling, "layers": trained.layer_way}
    assert head == {"pooling": "mean", "layers": "second_to_last"}
    assert record["model"].items() >= head.items()
    weights = trained.backbone.encoder_layers[0].weights
    before = from_preset(encoder).encoder_layers[0].weights
    for weight, expected in zip(weights, before, strict=True):
        np.testing.assert_array_equal(weight.numpy(), expected.numpy())

    arguments = ["--preset", classifier, "--input", source]
    places = ["--submission", str(tmp_path / "glue"), "--output", str(tmp_path / "all.tsv")]
    assert main(["predict", *arguments, *places]) == 0
    predictions = read_table(str(tmp_path / "all.tsv"))
    assert predictions["second"][4] == "rain fog." and len(predictions["label"]) == 146
    head, *lines = (tmp_path / "glue" / "WNLI.tsv").read_text().splitlines()
    assert head == "index\tprediction"
    digits = {"not_entailment": "0", "entailment": "1"}
    assert lines == [f"{i}\t{digits[label]}" for i, label in enumerate(predictions["label"])]

    # It knows that it was trained on pairs.
    served = trained.serving_strings(None)[0]
    assert list(served) == ["first", "second"]
    write_reviews(tmp_path / "new.csv", 5)
    mixed = ["--preset", encoder, "--train", source, "--test", str(tmp_path / "new.csv")]
    assert main(["finetune", *mixed, "--output", str(tmp_path / "mixed")]) == 2
    assert "has 1 columns of texts, but the training examples have 2" in capsys.readouterr().err
    assert main(["predict", "--preset", classifier, "--input", str(tmp_path / "new.csv")]) == 2
    error = "error: The model was trained on pairs, a tuple (first, second). Received: single"
    assert error in capsys.readouterr().err


def test_answers_are_submitted_in_the_three_files_of_squad(pretrained, tmp_path):
    model = from_preset(str(pretrained / "run" / "preset"), "question_answerer")
    model.save_to_preset(tmp_path / "answerer")
    questions = [{"id": f"q{i}", "question": f"{WORDS[i]}?", "answers": []} for i in range(3)]
    paragraph = {"context": "the sun and the rain meet.", "qas": questions}
    file = tmp_path / "test.json"
    file.write_text(json.dumps({"data": [{"title": "", "paragraphs": [paragraph]}]}))
    arguments = ["--preset", str(tmp_path / "answerer"), "--input", f"squad:{file}"]
    assert main(["predict", *arguments, "--submission", str(tmp_path / "squad")]) == 0
    texts, odds, spans = (
        json.loads((tmp_path / "squad" / f"{name}.json").read_text())
        for name in ("predictions", "null_odds", "nbest_predictions")
    )
    answers = model.answer([q["question"] for q in questions], [paragraph["context"]] * 3)
    assert texts == {q["id"]: answer.text for q, answer in zip(questions, answers, strict=True)}
    assert list(odds) == list(spans) == list(texts)
    assert all(1 < len(best) <= 20 for best in spans.values())


def test_a_submission_of_a_table_is_refused(pretrained, tmp_path, capsys):
    write_reviews(tmp_path / "new.csv", 3)
    classifier = from_preset(str(pretrained / "run" / "preset"), "text_classifier", num_classes=2)
    classifier.save_to_preset(tmp_path / "classifier")
    arguments = ["--preset", str(tmp_path / "classifier"), "--input", str(tmp_path / "new.csv")]
    assert main(["predict", *arguments, "--submission", str(tmp_path / "no")]) == 2
    assert "--submission is for --input glue/NAME or squad:FILE" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()


def test_the_states_of_words_are_the_encoders_at_their_first_pieces(pretrained, tmp_path):
    sentences = [["the", "sun", "meet"], ["fog"]]
    lines = ("".join(f"{word}\tO\n" for word in words) for words in sentences)
    (tmp_path / "words.conll").write_text("\n".join(lines))
    preset, folder = str(pretrained / "run" / "preset"), tmp_path / "words"
    arguments = ["--preset", preset, "--input", f"conll:{tmp_path / 'words.conll'}"]
    assert main(["features", *arguments, "--words", "--output", str(folder)]) == 0
    features = WordFeatures(folder)
    assert features.manifest["words"] == 4 and features.manifest["layers"] == [0, 1]
    encoder = from_preset(preset)
    tokenizer = encoder.preprocessor.tokenizer
    for number, words in enumerate(sentences):
        pieces = tokenizer(words).to_list()
        ids = [tokenizer.cls_token_id, *sum(pieces, []), tokenizer.sep_token_id]
        inputs = {"token_ids": np.array([ids], "int32")}
        inputs |= {"segment_ids": 0 * inputs["token_ids"]}
        inputs |= {"padding_mask": 0 * inputs["token_ids"] + 1}
        states = encoder.predict(inputs, verbose=0)["sequence_output"][0]
        firsts = np.cumsum([1, *map(len, pieces)])[:-1]
        found = features.batch([number], "last")[0, :, 0]
        np.testing.assert_allclose(found, states[firsts], atol=2e-3)


def test_features_are_those_of_the_embedder_with_a_record(pretrained, tmp_path):
    write_reviews(tmp_path / "new.csv", 5)
    preset, folder = str(pretrained / "run" / "preset"), tmp_path / "features"
    texts = ["--preset", preset, "--input", str(tmp_path / "new.csv"), "--output", str(folder)]
    assert main(["features", *texts, "--pooling", "cls", "--layers", "second_to_last"]) == 0
    features = np.load(folder / "features.npy")
    record = json.loads((folder / "features.json").read_text())
    assert (record["position"], record["layers"]) == ("cls", "second_to_last")
    assert record["encoder_is_trained_here"] is False and len(record["encoder_sha256"]) == 64
    embedder = from_preset(preset, "text_embedder", pooling="cls", layers="second_to_last")
    texts = read_table(str(tmp_path / "new.csv"))["text"]
    np.testing.assert_allclose(features, embedder.encode(texts), atol=1e-6)


def test_list_prints_every_preset_once(capsys, tmp_path):
    filters = ["--language", "zh", "--casing", "cased", "--max-parameters", "102267648"]
    assert main(["list", *filters, "--json", str(tmp_path / "cards.json")]) == 0
    assert capsys.readouterr().out.count("bert_base_zh") == 1
    names = [card["name"] for card in json.loads((tmp_path / "cards.json").read_text())]
    assert names == ["bge_small_zh_v1_5", "bert_base_zh"]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["predict", "--preset", "nothing", "--sentences", "a"], "neither a preset's name"),
        (["predict", "--preset", "x"], "either --input or --sentences"),
        (
            ["finetune", "--preset", "bert_tiny_en_uncased", "--train", "no.csv", "--output", "o"],
            "There is no file 'no.csv'",
        ),
        (["pretrain", "nowhere.toml"], "There is no file 'nowhere.toml'"),
    ],
)
def test_wrong_input_is_one_line_and_2(arguments, message, capsys, tmp_path, monkeypatch):
    # A run that fails leaves its record where it was to be.
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("error: ") and error.count("\n") == 1


def test_a_missing_column_is_named(tmp_path, capsys):
    write_reviews(tmp_path / "train.csv", 20)
    code = main(
        ["finetune", "--preset", "x", "--train", str(tmp_path / "train.csv"), "--text", "review"]
        + ["--output", str(tmp_path / "o")]
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
    for verb in (
        "list",
        "report",
        "vocab",
        "prepare",
        "pretrain",
        "finetune",
        "evaluate",
        "predict",
    ):
        assert verb in done.stdout


def test_what_is_to_be_predicted_is_looked_at_before_any_training(tmp_path, capsys):
    write_reviews(tmp_path / "train.csv", 20)
    arguments = ["--train", str(tmp_path / "train.csv"), "--output", str(tmp_path / "model")]
    for wrong, message in (
        (["--predict", "nothing.csv"], "There is no file 'nothing.csv'"),
        (["--predictions", "a.csv"], "Give --predict too"),
        (["--predict", "new.csv", "--predictions", "a.txt"], "must end in .csv, .tsv, .jsonl"),
        (["--overfit", "4", "--predict", "new.csv"], "Leave out --predict"),
    ):
        assert main(["finetune", "--preset", "nothing", *arguments, *wrong]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "model_run").exists()


def test_an_occupied_output_is_refused_before_any_training(tmp_path, capsys):
    write_reviews(tmp_path / "train.csv", 20)
    arguments = ["--train", str(tmp_path / "train.csv"), "--output", str(tmp_path)]
    assert main(["finetune", "--preset", "nothing", *arguments]) == 2
    assert "must be new, empty or a preset" in capsys.readouterr().err


def test_a_missing_label_is_refused_with_its_row(tmp_path, capsys):
    rows = [{"text": "a", "label": "y"}, {"text": "b", "label": None}]
    path = tmp_path / "train.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    arguments = ["--train", str(path), "--output", str(tmp_path / "o")]
    assert main(["finetune", "--preset", "x", *arguments]) == 2
    assert "Row 2 of" in capsys.readouterr().err
