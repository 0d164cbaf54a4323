"""Fine-tuning runs: settings, splits, what is chosen, what is checked and what is recorded."""

import dataclasses
import json

import keras
import numpy as np
import pytest

from keras_bert_zoo import from_preset
from keras_bert_zoo.models import BertBackbone, BertTextClassifier
from keras_bert_zoo.preprocessing import BertPreprocessor, BertTokenizer
from keras_bert_zoo.training import finetuning, train_only
from keras_bert_zoo.training.finetuning import Trained, _choose, finetune, overfit, recorded
from keras_bert_zoo.training.finetuning_config import PAPER_GRID, make_config, read_config
from keras_bert_zoo.training.finetuning_data import example_weights, read_splits
from keras_bert_zoo.training.smoke_check import smoke_check

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrst"]


def backbone(**arguments):
    keras.utils.set_random_seed(0)
    return BertBackbone(len(PIECES), 2, 2, 8, 16, max_sequence_length=32, dropout=0.0, **arguments)


def config(folder, **data):
    training = data.pop("training", {})
    settings = {"preset": "none", "run": str(folder / "run"), "sequence_length": 16}
    return make_config({**settings, "data": data, "training": training})


def write_table(path, rows):
    """Write a text, a label, a group and a split a row."""
    lines = ["text\tlabel\tdoc\tpart", *("\t".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def table(path, count=40):
    letters = "abcdefghij"
    return write_table(
        path,
        [(f"{letters[i % 10]} {'kl'[i % 2]}", "ny"[i % 2], i // 4, "train") for i in range(count)],
    )


# === Settings ===


@pytest.mark.backend_free
def test_a_file_gives_way_to_options_and_those_to_set(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text(
        'preset = "p"\nrun = "r"\n[data]\ntrain = "glue/sst2"\ntext = "t"\n'
        "[training]\nepochs = [2, 3]\nwarmup = 0.2\n"
    )
    settings = read_config(path, ["training.epochs=[4]"], data={"text": "q"}, seed=3)
    assert (settings.data.train, settings.data.text, settings.seed) == ("glue/sst2", "q", 3)
    assert (settings.training.epochs, settings.training.warmup) == ((4,), 0.2)
    assert [str(folder) for folder in settings.folders] == ["r", "r/preset"]
    beside = read_config(None, preset="p", output="o/", data={"train": "a.csv"})
    assert [str(folder) for folder in beside.folders] == ["o_run", "o"]


@pytest.mark.backend_free
@pytest.mark.parametrize(
    "what, rate", [("all", 5e-5), ("top:2", 5e-5), ("head", 1e-3), ("lora:8", 5e-4)]
)
def test_the_learning_rate_suits_what_is_trained(tmp_path, what, rate):
    settings = config(tmp_path, train="a.csv", training={"what": what})
    assert settings.training.learning_rate == (rate,)
    given = config(tmp_path, train="a.csv", training={"what": what, "learning_rate": [1e-4]})
    assert given.training.learning_rate == (1e-4,)


@pytest.mark.backend_free
@pytest.mark.parametrize(
    "change, message",
    [
        ({"data": {}}, "`data.train` is missing"),
        ({"run": None}, "`run` and `output`"),
        ({"task": "parsing"}, "`task` must be one of"),
        ({"training": {"epochs": []}}, "`training.epochs` must list numbers over 0"),
        ({"training": {"what": "tail"}}, "`training.what` must be"),
        ({"training": {"warmups": 1}}, "no key `training.warmups`"),
        ({"training": {"early_stopping": 0}}, "at least 1"),
        ({"training": {"what": "head", "gradual_unfreezing": True}}, "goes with"),
        ({"training": {"what": "features", "packed": True}}, "training.packed"),
        ({"data": {"train": "a.csv", "dev_share": 1.0}}, "`data.dev_share` must be"),
        ({"data": {"train": "a.csv", "dev_share": 0.0}}, "`data.dev_share` must be"),
        (
            {"data": {"train": "a.csv", "dev_share": 0.6, "test_share": 0.6}},
            "leave something to train on. Received: 0.6 and 0.6",
        ),
        ({"training": {"what": "lora"}}, "'lora:' with a rank"),
        ({"pooling": "median"}, "`pooling` must be one of"),
        ({"layers": "first"}, "`layers` must be one of"),
        ({"preset": ""}, "`preset` is missing; on the command line --preset"),
        ({"output": "p"}, "`output` must not be the `preset`"),
    ],
)
def test_a_wrong_setting_is_named(change, message):
    content = {"preset": "p", "run": "r", "data": {"train": "a.csv"}, **change}
    with pytest.raises(ValueError, match=message):
        make_config(content)


@pytest.mark.backend_free
def test_the_papers_grid_is_the_papers():
    settings = make_config(
        {"preset": "p", "run": "r", "data": {"train": "a"}, "training": PAPER_GRID}
    ).training
    assert len(settings.batch_size) * len(settings.learning_rate) * len(settings.epochs) == 24


# === Splits ===


@pytest.mark.backend_free
def test_groups_stay_together_and_shares_are_met(tmp_path):
    train = table(tmp_path / "a.tsv")
    parts, rule = read_splits(config(tmp_path, train=train, group="doc", test_share=0.2))
    assert {name: len(part) for name, part in parts.items()} == {"train": 28, "dev": 4, "test": 8}
    groups = [set(part.groups) for part in parts.values()]
    assert not groups[0] & groups[1] and not groups[0] & groups[2] and not groups[1] & groups[2]
    assert "groups" in rule


@pytest.mark.backend_free
def test_a_column_says_the_splits_and_a_share_makes_the_one_that_it_lacks(tmp_path):
    rows = [("a", "n", 0, "train"), ("b", "n", 0, "train"), ("c", "n", 0, "test")]
    train = write_table(tmp_path / "a.tsv", rows)
    parts, rule = read_splits(config(tmp_path, train=train, split="part", dev_share=0.5))
    assert parts["test"].x == ["c"]
    assert sorted(parts["train"].x + parts["dev"].x) == ["a", "b"]
    assert "'part'" in rule


@pytest.mark.backend_free
def test_fewer_training_examples_are_the_same_by_the_seed(tmp_path):
    train = table(tmp_path / "a.tsv")
    first, second = (
        read_splits(config(tmp_path, train=train, dev=train, examples=7))[0] for _ in range(2)
    )
    assert len(first["train"]) == 7 and first["train"].ids == second["train"].ids
    assert len(first["dev"]) == 40


@pytest.mark.backend_free
def test_balanced_weights_make_classes_equal(tmp_path):
    rows = [("a", "n", 0, ""), ("b", "n", 0, ""), ("c", "n", 0, ""), ("d", "y", 0, "")]
    train = write_table(tmp_path / "a.tsv", rows)
    settings = config(tmp_path, train=train, dev=train, training={"class_weights": "balanced"})
    weights = example_weights(settings.training, read_splits(settings)[0]["train"])
    np.testing.assert_allclose(weights, [2 / 3, 2 / 3, 2 / 3, 2.0])


# === What is chosen, and what is kept ===


def trained(rate, seed, score):
    setting = {"batch_size": 8, "learning_rate": rate, "epochs": 2, "seed": seed}
    return Trained(setting, 2, {"accuracy": score}, [], 1.0, [], [], {})


@pytest.mark.backend_free
def test_the_best_mean_is_chosen_and_of_it_the_best_restart():
    runs = [trained(1e-3, 0, 0.9), trained(1e-3, 1, 0.1)]
    runs += [trained(1e-5, 0, 0.6), trained(1e-5, 1, 0.8)]
    chosen, rows = _choose(runs)
    assert chosen is runs[3]
    assert [row["dev accuracy, mean"] for row in rows] == pytest.approx([0.5, 0.7])
    deviations = [row["dev accuracy, standard deviation"] for row in rows]
    assert deviations == pytest.approx([0.8 / 2**0.5, 0.2 / 2**0.5])
    assert "dev accuracy, standard deviation" not in _choose(runs[:1])[1][0]


@pytest.mark.backend_free
def test_a_run_that_fails_leaves_its_record(tmp_path):
    settings = config(tmp_path, train="a.csv")
    path = tmp_path / "run" / "record.json"
    with pytest.raises(KeyboardInterrupt), recorded(path, settings) as record:
        record["runs"].append({"seed": 0})
        raise KeyboardInterrupt("by hand")
    kept = json.loads(path.read_text())
    assert (kept["status"], kept["error"]) == ("failed", "KeyboardInterrupt: by hand")
    assert kept["runs"] == [{"seed": 0}]


@pytest.mark.backend_free
def test_a_run_whose_data_can_not_be_read_leaves_a_record_but_no_earlier_one_s(tmp_path):
    settings = config(tmp_path, train=str(tmp_path / "none.csv"))
    path = settings.folders[0] / "record.json"
    for _ in range(2):
        with pytest.raises(ValueError, match=r"no file '.*none.csv'"):
            finetune(settings)
    assert "no file" in json.loads(path.read_text())["error"]
    with recorded(path, settings) as record:
        record["data"] = {}
    before = path.read_text()
    with pytest.raises(ValueError, match="no file"):
        finetune(settings)
    assert path.read_text() == before


@pytest.mark.backend_free
def test_what_can_not_be_learnt_is_refused_before_a_model_is_loaded(tmp_path):
    rows = [("a", "n", 0, ""), ("b", "y", 0, "")]
    train = write_table(tmp_path / "a.tsv", rows)
    dev = write_table(tmp_path / "b.tsv", [("c", "maybe", 0, "")])
    words = tmp_path / "words.conll"
    words.write_text("a O\n\nb O\n\nc O\n")
    for data, training, message in (
        ({"train": train, "dev": dev}, {}, "dev example 0 of .*b.tsv' has the label 'maybe'"),
        ({"train": dev, "dev": dev}, {}, "has one label only, 'maybe'"),
        ({"train": f"conll:{words}"}, {"what": "features"}, "'features' is for .* not for 'tagg"),
    ):
        settings = config(tmp_path, **data, training=training)
        with pytest.raises(ValueError, match=message):
            finetune(settings)
    settings = dataclasses.replace(config(tmp_path, train=f"conll:{words}"), pooling="max")
    with pytest.raises(ValueError, match="`pooling` 'max' is for .* not for 'tagging'"):
        finetune(settings)


# === The first look ===


def first_batch(labels=(0, 1, 0, 1)):
    ids = np.array([[2, 5, 6, 3], [2, 7, 8, 3], [2, 9, 3, 0], [2, 1, 3, 0]])
    inputs = {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": (ids > 0).astype(int)}
    return inputs, np.array(labels)


def classifier():
    tokenizer = BertTokenizer(PIECES, lowercase=True)
    return BertTextClassifier(backbone(), 2, preprocessor=BertPreprocessor(tokenizer, 4))


def test_the_smoke_check_counts_what_moves_and_finds_what_should():
    model = classifier()
    train_only(model, "head")
    seen = smoke_check(model, first_batch())
    assert (seen["rows"], seen["length"], seen["real_pieces"]) == (4, 4, 14 / 16)
    assert seen["unknown_pieces"] == pytest.approx(1 / 14)
    assert (seen["moved"], seen["stayed"]) == (18, model.count_params() - 18)


def test_the_smoke_check_finds_weights_that_stay():
    model = classifier()
    train_only(model, "head")
    with pytest.raises(ValueError, match="2 weights are to be trained, but did not change"):
        smoke_check(model, (*first_batch(), np.zeros(4)))


def test_the_smoke_check_finds_a_row_that_does_not_begin_as_it_must():
    inputs, labels = first_batch()
    inputs["token_ids"][1, 0] = 5
    with pytest.raises(ValueError, match="does not begin with"):
        smoke_check(classifier(), (inputs, labels))


# === Whole runs ===


@pytest.fixture(scope="module")
def preset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finetuning") / "tiny"
    tokenizer = BertTokenizer(PIECES, lowercase=True)
    backbone(preprocessor=BertPreprocessor(tokenizer, 32)).save_to_preset(str(folder))
    return str(folder)


def write_data(folder):
    """Write a source for each task; what is asked for can be learnt from a letter."""
    lines = [f"{'abc'[i % 3]} {'B-X' if i % 3 == 0 else 'O'}\nd O\n" for i in range(24)]
    (folder / "tags.conll").write_text("\n".join(lines))
    endings = ["sent1,sent2,ending0,ending1,label"]
    endings += [f"a,b,{'cd'[i % 2]},{'dc'[i % 2]},{i % 2}" for i in range(24)]
    (folder / "swag.csv").write_text("\n".join(endings))
    questions = [
        {
            "id": str(i),
            "question": "a",
            "answers": [] if i % 3 == 0 else [{"text": "b", "answer_start": 2}],
            "is_impossible": i % 3 == 0,
        }
        for i in range(24)
    ]
    articles = [
        {"title": str(i), "paragraphs": [{"context": "c b d" if i % 3 else "c d", "qas": [q]}]}
        for i, q in enumerate(questions)
    ]
    (folder / "squad.json").write_text(json.dumps({"data": articles}))
    (folder / "numbers.csv").write_text(
        "\n".join(["text,label", *(f"{'ab'[i % 2]},{i % 2}.5" for i in range(24))])
    )
    (folder / "several.csv").write_text(
        "\n".join(
            ["text,label", *(f'{"abc"[i % 3]},"{("x", "x,y", "")[i % 3]}"' for i in range(24))]
        )
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "source, task, training",
    [
        ("{}/numbers.csv", "regression", {"early_stopping": 1, "epochs": [4], "packed": True}),
        ("{}/several.csv", "labels", {"what": "lora:2", "packed": True}),
        ("conll:{}/tags.conll", None, {"what": "top:1", "layer_decay": 0.9, "packed": True}),
        ("squad:{}/squad.json", None, {"gradual_unfreezing": True}),
        ("swag:{}/swag.csv", None, {"restarts": 2}),
    ],
)
def test_every_task_is_trained_recorded_and_saved(preset, tmp_path, source, task, training):
    write_data(tmp_path)
    content = {
        "preset": preset,
        "run": str(tmp_path / "run"),
        "sequence_length": 16,
        "data": {"train": source.format(tmp_path), "dev_share": 0.25, "test_share": 0.25},
        "training": {"batch_size": [4], "epochs": [2], "learning_rate": [1e-2], **training},
    }
    if task:
        content["task"] = task
    results = finetune(make_config(content), say=lambda line: None)
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert record["status"] == "finished"
    assert len(record["runs"]) == training.get("restarts", 1)
    assert any(name.startswith("test ") for name in record["results"])
    assert record["smoke_check"]["moved"] == record["parameters"]["trainable"]
    kind = results["task"]
    model = {"tagging": "token_classifier", "multiple_choice": "multiple_choice"}
    model = model.get(kind, "question_answerer" if "question" in kind else "text_classifier")
    loaded = from_preset(tmp_path / "run" / "preset", model)
    assert loaded.count_params() == results["parameters"]


@pytest.mark.slow
def test_a_few_examples_are_learnt_or_the_run_says_that_they_were_not(
    preset, tmp_path, monkeypatch
):
    content = {
        "preset": preset,
        "run": str(tmp_path / "run"),
        "sequence_length": 16,
        "data": {"train": table(tmp_path / "a.tsv")},
        "training": {"batch_size": [4], "learning_rate": [1e-2]},
    }
    results = overfit(make_config(content), 8, say=lambda line: None)
    assert results["accuracy"] == 1 and results["epochs"] < 100
    content["training"]["learning_rate"] = [1e-9]
    monkeypatch.setattr(finetuning, "_OVERFIT_EPOCHS", 2)
    with pytest.raises(ValueError, match="of 8 examples were not learnt in 2 epochs"):
        overfit(make_config(content), 8, say=lambda line: None)
    record = json.loads((tmp_path / "run" / "overfit.json").read_text())
    assert record["status"] == "failed" and record["wrong"]["train"]
