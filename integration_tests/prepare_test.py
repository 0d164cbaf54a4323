"""From text to examples to a model, as a user runs it: several workers, and a run cut short."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from keras_bert_zoo.cli import main
from keras_bert_zoo.data.example_files import iterate_examples
from keras_bert_zoo.models import BertBackbone, BertTextEmbedder
from keras_bert_zoo.preprocessing import BertPreprocessor, BertTokenizer

pytest.importorskip("apache_beam", reason="apache-beam is not installed")

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "the", "and", "meet"]
WORDS = ["sun", "rain", "wind", "snow", "ice", "fog", "dew", "hail", "mist", "storm"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prepare")
    (folder / "vocab.txt").write_text("\n".join([*PIECES, *WORDS]) + "\n")
    rng = np.random.default_rng(0)
    lines = []
    for i in range(300):
        text = " ".join(
            f"The {WORDS[i % 10]} and the {word} meet." for word in rng.choice(WORDS, 20)
        )
        lines.append(json.dumps({"text": text}))
    (folder / "corpus.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def arguments(folder, output, *more):
    return [
        *("prepare", "--text", str(folder / "corpus.jsonl"), "--output", str(folder / output)),
        *("--vocabulary", str(folder / "vocab.txt"), "--sequence-length", "32"),
        *("--shards", "8", "--masked-once", "--dupe-factor", "20", *more),
    ]


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def prepared(folder):
    assert main([*arguments(folder, "prepared"), "--json", str(folder / "counts.json")]) == 0
    return folder / "prepared"


@pytest.mark.backend_free
def test_the_manifest_is_given_as_json_too(folder, prepared):
    manifest = json.loads((folder / "counts.json").read_text())
    assert manifest == json.loads((prepared / "manifest.json").read_text())
    assert manifest["counts"]["documents"] == 300
    assert manifest["counts"]["sentences"] == 6000


@pytest.mark.backend_free
@pytest.mark.parametrize("workers", ["2", pytest.param("4", marks=pytest.mark.slow)])
def test_several_workers_make_the_same_folder(folder, prepared, workers):
    options = arguments(folder, f"by-{workers}", "--workers", workers)
    command = [sys.executable, "-m", "keras_bert_zoo", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert content(folder / f"by-{workers}") == content(prepared)


@pytest.mark.backend_free
def test_a_run_that_was_killed_goes_on(folder, prepared):
    output = folder / "killed"
    command = [sys.executable, "-m", "keras_bert_zoo", *arguments(folder, "killed")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not list(output.glob("statistics-*.json")):
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = len(list(output.glob("statistics-*-of-00008.json")))
    assert 1 <= done < 8
    assert main(arguments(folder, "killed")) == 0
    assert content(output) == content(prepared)


@pytest.mark.backend_free
def test_errors_are_one_line(folder, prepared, capsys):
    before = content(prepared)
    assert main(arguments(folder, "prepared", "--seed", "7")) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "seed (0 there, 7 now)" in error
    assert content(prepared) == before
    (folder / "broken.jsonl").write_text('{"text": "a."}\n{"text"\n')
    command = arguments(folder, "broken")
    command[2] = str(folder / "broken.jsonl")
    assert main(command) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: Line 2 of ")
    assert error.count("\n") == 1
    assert not (folder / "broken").exists()


@pytest.mark.backend_free
def test_options_of_masking_need_masked_once(folder, capsys):
    command = arguments(folder, "unmasked", "--unit", "word", "--mask-selection-rate", "0.4")
    command.remove("--masked-once")
    assert main(command) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: --mask-selection-rate is for --masked-once")
    assert "training" in error and error.count("\n") == 1
    assert not (folder / "unmasked").exists()


@pytest.mark.backend_free
def test_options_of_masking_are_taken(folder):
    options = ("--unit", "word", "--mask-selection-rate", "0.4", "--dupe-factor", "1")
    assert main(arguments(folder, "words", *options)) == 0
    manifest = json.loads((folder / "words" / "manifest.json").read_text())
    assert manifest["settings"]["masking"] == {
        "mask_selection_rate": 0.4,
        "mask_selection_length": None,
        "mask_token_rate": 0.8,
        "random_token_rate": 0.1,
        "selection": "count",
        "unit": "word",
        "replacement_token_ids": None,
    }


@pytest.mark.backend_free
def test_a_preset_brings_its_vocabulary_and_rules(folder, prepared):
    preset = folder / "preset"
    tokenizer = BertTokenizer(
        str(folder / "vocab.txt"), lowercase=False, strip_accents=True, max_word_length=100
    )
    backbone = BertBackbone(
        vocabulary_size=19, num_layers=1, num_heads=1, hidden_dim=2, intermediate_dim=2
    )
    BertTextEmbedder(backbone, BertPreprocessor(tokenizer)).save_to_preset(preset)
    command = arguments(folder, "by-preset", "--preset", str(preset), "--dupe-factor", "1")
    place = command.index("--vocabulary")
    del command[place : place + 2]
    assert main(command) == 0
    settings = json.loads((folder / "by-preset" / "manifest.json").read_text())["settings"]
    names = ("lowercase", "strip_accents", "max_word_length")
    assert [settings["tokenizer"][name] for name in names] == [False, True, 100]
    there = json.loads((prepared / "manifest.json").read_text())["settings"]
    assert settings["vocabulary_sha256"] == there["vocabulary_sha256"]


@pytest.mark.backend_free
def test_accents_are_kept_where_the_vocabulary_has_them(folder):
    assert main(arguments(folder, "accents", "--no-strip-accents", "--dupe-factor", "1")) == 0
    settings = json.loads((folder / "accents" / "manifest.json").read_text())["settings"]
    tokenizer = settings["tokenizer"]
    assert (tokenizer["lowercase"], tokenizer["strip_accents"]) == (True, False)


@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("removed", "more", "message"),
    [
        (2, (), "either --vocabulary or --preset"),
        (0, ("--preset", "bert_tiny_en_uncased"), "either --vocabulary or --preset"),
        (2, ("--preset", "bert_tiny_en_uncased", "--cased"), "are for --vocabulary"),
        (2, ("--preset", "bert_tiny_en_uncased", "--no-strip-accents"), "are for --vocabulary"),
        (2, ("--preset", "nowhere"), "'nowhere'"),
        (0, ("--language", "klingon"), "'klingon'"),
        (0, ("--beam-options=--regoin=x",), "--regoin=x"),
    ],
)
def test_wrong_options_are_one_line(folder, capsys, removed, more, message):
    command = arguments(folder, "wrong", *more)
    place = command.index("--vocabulary")
    del command[place : place + removed]
    assert main(command) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("error: ") and error.count("\n") == 1
    assert not (folder / "wrong").exists()


@pytest.mark.backend_free
def test_a_workers_error_is_one_line(folder, capsys):
    # Control characters are text to the reader, and no piece to the tokenizer.
    (folder / "empty.jsonl").write_text('{"text": "The sun."}\n{"text": "\\u0001"}\n')
    for workers in ("1", "2"):
        command = arguments(folder, f"empty-{workers}", "--workers", workers, "--shards", "1")
        command[2] = str(folder / "empty.jsonl")
        assert main(command) == 2
        error = capsys.readouterr().err
        assert "Shard 0 has one document" in error
        assert error.count("\n") == 1


def test_a_model_is_pretrained_on_the_examples(folder):
    assert main(arguments(folder, "examples", "--dupe-factor", "1")) == 0
    examples = folder / "examples"
    config = folder / "pretrain.toml"
    for name, held_out in {
        "share": "held_out = 0.25",
        "folder": f"examples = '{examples}'",
    }.items():
        config.write_text(
            f"run = '{folder / name}'\n"
            "[model]\nnum_layers = 1\nhidden_dim = 16\nnum_heads = 2\n"
            "[[phases]]\nsteps = 4\nsequence_length = 32\nbatch_size = 32\n"
            f"examples = '{examples}'\n[evaluation]\npasses = 1\n{held_out}\n"
        )
        assert main(["pretrain", str(config), "--json", str(folder / f"{name}.json")]) == 0
        results = json.loads((folder / f"{name}.json").read_text())
        assert 0 < results["held-out masked-LM loss (nats)"] < 10
        assert 0 <= results["held-out next-sentence accuracy"] <= 1
        # The held-out text is what was written, without masks: the, and, meet, a point, words.
        assert results["unigram entropy of the held-out text (nats)"] < np.log(4 + len(WORDS))
        vocabulary = folder / name / "preset" / "vocab.txt"
        assert vocabulary.read_text() == (folder / "vocab.txt").read_text()


@pytest.mark.backend_free
def test_real_text_gives_balanced_labels_and_the_papers_rates(tmp_path):
    data = os.environ.get("KERAS_BERT_ZOO_DATA")
    if not data:
        pytest.skip("the data are missing: KERAS_BERT_ZOO_DATA is not set")
    data = pathlib.Path(data)
    code = main(
        ["prepare", "--text", str(data / "pretraining"), "--output", str(tmp_path / "examples")]
        + ["--vocabulary", str(data / "vocab" / "bert-base-uncased-vocab.txt")]
        + ["--encoding-errors", "replace", "--masked-once", "--dupe-factor", "2"]
    )
    assert code == 0
    manifest = json.loads((tmp_path / "examples" / "manifest.json").read_text())
    counts, rates = manifest["counts"], manifest["rates"]
    # 65 addresses to Congress, 59 inaugural ones, 60 articles and the authors' sample.
    assert counts["documents"] == 185
    labels = counts["labels"]
    assert abs(labels[1] / sum(labels) - 0.5) < 4 * 0.5 / np.sqrt(sum(labels))
    assert rates["chosen"] == pytest.approx(0.15, abs=0.003)
    for kind, share in (("mask", 0.8), ("random", 0.1), ("same", 0.1)):
        error = np.sqrt(share * (1 - share) / counts["masked"]["chosen"])
        assert abs(rates[kind] - share) < 4 * error
    ids = [int(example["example_id"][0]) for example in iterate_examples(tmp_path / "examples")]
    assert len(set(ids)) == len(ids) == counts["examples"]
