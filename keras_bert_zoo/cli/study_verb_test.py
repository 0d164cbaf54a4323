"""The verb `study`, from files to a table, JSON and a plot."""

import json

import keras
import pytest

from keras_bert_zoo.cli import main
from keras_bert_zoo.models import BertBackbone, BertTextClassifier
from keras_bert_zoo.preprocessing import BertTextClassifierPreprocessor, BertTokenizer

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "d"]


@pytest.fixture(scope="module")
def preset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study") / "preset"
    keras.utils.set_random_seed(0)
    backbone = BertBackbone(
        vocabulary_size=9, num_layers=2, num_heads=2, hidden_dim=8, intermediate_dim=16
    )
    preprocessor = BertTextClassifierPreprocessor(BertTokenizer(VOCABULARY, lowercase=True), 16)
    BertTextClassifier(
        backbone, preprocessor=preprocessor, class_names=["no", "yes"]
    ).save_to_preset(folder)
    return str(folder)


def table(path, **columns):
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return str(path)


def study(tmp_path, *arguments):
    written = tmp_path / "study.json"
    assert main(["study", *arguments, "--json", str(written)]) == 0
    return json.loads(written.read_text(encoding="utf-8"))


def test_pairs_on_the_screen_as_json_and_as_a_plot(preset, tmp_path, capsys):
    given = table(
        tmp_path / "a.jsonl", text=["a b", "a"], second=["a b", "d"], kind=["same", "other"]
    )
    plot = tmp_path / "pairs.svg"
    found = study(
        *(tmp_path, "pairs", "--preset", preset, "--input", given, "--kind", "kind"),
        *("--plot", str(plot)),
    )
    assert [row["kind"] for row in found["rows"]] == ["same", "other", "(unrelated)"]
    assert found["pairs"][0]["representation_shift"] == found["pairs"][0]["prediction_shift"] == 0
    assert found["pairs"][1]["representation_shift"] > 0
    assert (found["study"], found["settings"]["pooling"]) == ("pairs", "mean")
    assert "<svg" in plot.read_text()
    assert "prediction shift" in capsys.readouterr().out


def test_a_confusion_matrix_is_that_of_the_models_predictions(preset, tmp_path, capsys):
    given = table(tmp_path / "a.jsonl", text=["a b", "c", "d d"], label=["yes", "no", "yes"])
    found = study(
        *(tmp_path, "pictures", "--preset", preset, "--input", given),
        *("--plot", str(tmp_path / "confusion.png")),
    )
    assert found["classes"] == ["no", "yes"]
    assert [sum(row) for row in found["counts"]] == [1, 2]
    assert (tmp_path / "confusion.png").exists()
    assert "accuracy" in capsys.readouterr().out


@pytest.mark.backend_free
def test_domains_without_training(preset, tmp_path, capsys):
    source = table(tmp_path / "a.jsonl", text=["a b", "c"])
    target = table(tmp_path / "b.jsonl", text=["d d", "Oh c"])
    found = study(
        *(tmp_path, "domains", "--preset", preset, "--source", source, "--target", target),
        *("--texts-only", "--plot", str(tmp_path / "domains.png")),
    )
    assert [row["domain"] for row in found["rows"]] == ["source", "target"]
    assert found["rows"][1]["own_pieces"] == ["d", "[UNK]"]
    assert "divergence" in capsys.readouterr().out


@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pictures", "--preset", "x", "--plot", "a.png"], "either --attention or --input"),
        (["pictures", "--preset", "x", "--attention", "a"], "needs --plot"),
        (["pairs", "--preset", "nowhere"], "neither a preset's name nor a folder"),
        (["pairs", "--preset", "x", "--plot", "a.gif"], "must end in .png"),
        (["transfer", "--preset", "x", "--train", "nowhere.csv"], "no file 'nowhere.csv'"),
    ],
)
def test_wrong_input_is_one_line(arguments, message, capsys):
    assert main(["study", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("error: ") and error.count("\n") == 1


@pytest.mark.slow
def test_studies_that_train(preset, tmp_path, capsys):
    texts = [f"{'ab'[i % 2]} {'cd'[i % 3 // 2]} {'c ' * (i % 5)}" for i in range(60)]
    given = table(tmp_path / "a.jsonl", text=texts, label=["yes", "no"] * 30)
    training = ["--preset", preset, "--seeds", "0", "1", "--epochs", "1", "--batch-size", "8"]
    found = study(
        *(tmp_path, "transfer", "--train", given, *training, "--rows", "40"),
        *("--ways", "majority", "all", "--plot", str(tmp_path / "transfer.png")),
    )
    assert [row["runs"] for row in found["rows"]] == [1, 2]
    assert "dev examples are in train too" in capsys.readouterr().out
    found = study(
        *(tmp_path, "lengths", "--train", given, *training, "--lengths", "4", "8"),
        *("--strategies", "fixed", "packed_rows", "--plot", str(tmp_path / "lengths.png")),
    )
    assert len(found["rows"]) == 2 * 2
    assert found["rows"][0]["encoder_calls"] == 48 // 8
    assert found["rows"][0]["cut_texts"] > found["rows"][-1]["cut_texts"]
    found = study(
        *(tmp_path, "domains", "--source", given, "--target", given, *training, "--what", "head"),
        *("--plot", str(tmp_path / "domains.png")),
    )
    assert found["rows"][0]["divergence"] < 0.01
    assert [row["scored_on"] for row in found["rows"]] == [12, 60]
