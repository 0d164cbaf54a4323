"""XNLI's official files, those of one language each, and TensorFlow Datasets'."""

import os

import pytest

from keras_bert_zoo.data.xnli import XNLI_CLASSES, XNLI_LANGUAGES, read_xnli

pytestmark = pytest.mark.backend_free

DATA = os.environ.get("KERAS_BERT_ZOO_DATA")
real_data = pytest.mark.skipif(DATA is None, reason="KERAS_BERT_ZOO_DATA is not set")

HEAD = "language\tgold_label\tsentence1_binary_parse\tsentence1\tsentence2\tpromptID\n"


def test_the_official_files_hold_all_languages(tmp_path):
    rows = [
        'de\tneutral\t\tEr sagte: "Ja.\tJa\t1\n',
        "zh\tentailment\t\t他说\t说\t1\n",
        "de\tcontradiction\t\ta\tb\t2\n",
    ]
    (tmp_path / "xnli.test.tsv").write_text("".join([HEAD, *rows]), encoding="utf-8")
    assert read_xnli("de", "test", tmp_path) == {
        "id": [0, 1],
        "text": ['Er sagte: "Ja.', "a"],
        "second": ["Ja", "b"],
        "label": ["neutral", "contradiction"],
    }
    with pytest.raises(ValueError, match="no examples in 'fr'"):
        read_xnli("fr", "test", tmp_path)


@pytest.mark.parametrize("folder", ["", "multinli"])
def test_the_translated_training_set_is_read(tmp_path, folder):
    (tmp_path / folder).mkdir(exist_ok=True)
    path = tmp_path / folder / "multinli.train.zh.tsv"
    path.write_text("premise\thypo\tlabel\n一\t二\tcontradictory\n", encoding="utf-8")
    table = read_xnli("zh", "train", tmp_path)
    assert (table["text"], table["second"], table["label"]) == (["一"], ["二"], ["contradiction"])


@pytest.mark.parametrize(
    ("language", "split", "message"),
    [
        ("xx", "dev", "no language 'xx'.*ar, bg"),
        ("en", "validation", "splits train, dev and test.*'validation'"),
        ("en", "test", "none of the files xnli.test.tsv.*test-en.tsv"),
        ("en", "dev", "Example 1 of .*dev-en.tsv.*'maybe'"),
    ],
)
def test_what_is_not_xnli_is_named(tmp_path, language, split, message):
    (tmp_path / "dev-en.tsv").write_text("a\tb\tneutral\r\na\tb\tmaybe\r\n")
    with pytest.raises(ValueError, match=message):
        read_xnli(language, split, tmp_path)


def test_tfds_has_dev_and_test(tmp_path, monkeypatch):
    tfds = pytest.importorskip("tensorflow_datasets", reason="tensorflow-datasets is missing")
    from tensorflow_datasets.text import xnli

    assert xnli._LANGUAGES == XNLI_LANGUAGES
    folder = tmp_path / "XNLI-1.0"
    folder.mkdir()
    head = "language\tgold_label\tsentence1\tsentence2\tpairID\n"
    rows = "".join(f"{name}\tneutral\t{name} 1\t{name} 2\t7\n" for name in XNLI_LANGUAGES)
    for split in ("dev", "test"):
        (folder / f"xnli.{split}.tsv").write_text(head + rows)
    monkeypatch.setattr(
        tfds.download.DownloadManager, "download_and_extract", lambda *_: str(tmp_path)
    )
    where = tmp_path / "prepared"
    builder = xnli.Xnli(data_dir=where)
    builder.download_and_prepare()
    load = tfds.load
    monkeypatch.setattr(tfds, "load", lambda name, **kw: load(name, data_dir=where, **kw))
    expected = {"id": [0], "text": ["sw 1"], "second": ["sw 2"], "label": ["neutral"]}
    assert read_xnli("sw", "dev") == expected
    assert builder.info.features["label"].names == list(XNLI_CLASSES)
    with pytest.raises(ValueError, match="no train; give the official `folder`"):
        read_xnli("sw", "train")


@real_data
@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_real_dev_sets_are_balanced(language):
    table = read_xnli(language, "dev", os.path.join(DATA, "xnli"))
    assert [table["label"].count(name) for name in XNLI_CLASSES] == [830] * 3
    assert not any(text.endswith("\r") for name in ("second", "label") for text in table[name])
