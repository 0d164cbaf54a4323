"""Texts to a folder of examples, in this process."""

import gzip
import hashlib
import json
import sys

import numpy as np
import pytest

from keras_bert_zoo.data import prepare
from keras_bert_zoo.data.example_files import iterate_examples
from keras_bert_zoo.data.example_folder import ExampleFolder
from keras_bert_zoo.data.prepare import prepare_examples
from keras_bert_zoo.preprocessing import BertTokenizer

pytest.importorskip("apache_beam", reason="apache-beam is not installed")
pytestmark = pytest.mark.backend_free

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "!", *"abcdefgh"]
SINGLE = {"objective": "single", "sequence_length": 16, "shards": 1}


@pytest.fixture(scope="module")
def tokenizer():
    return BertTokenizer(PIECES, lowercase=True)


def write(folder, name, content):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def write_corpus(folder, count=40):
    rng = np.random.default_rng(0)
    for i in range(count):
        sentences = [" ".join(rng.choice(list("abcdefgh"), 6)) for _ in range(12)]
        write(folder, f"{i:03}.txt", " ".join(f"{s.capitalize()}!" for s in sentences))
    return str(folder)


def rows(folder):
    """Return the pieces of all examples."""
    return sorted(
        " ".join(PIECES[piece] for piece in example["token_ids"])
        for example in iterate_examples(folder)
    )


def content(folder):
    """Return all that a folder holds, by file."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# === Formats ===


@pytest.mark.parametrize(
    ("name", "text", "arguments"),
    [
        ("a.txt", "A b! C d!", {}),
        ("a.txt", "A b!\nC d!\n\n", {"format": "sentences"}),
        ("a.jsonl", '{"text": "A b! C d!"}\n', {}),
        ("a.jsonl", '{"body": "A b! C d!"}\n', {"text_column": "body"}),
        ("a.jsonl.gz", gzip.compress(b'{"text": "A b! C d!"}\n', mtime=0), {}),
        ("AA/wiki_00", '<doc id="1" title="T">\nT\n\nA b! C d!\n</doc>\n', {}),
        ("AA/wiki_00", '{"id": "1", "title": "T", "text": "A b! C d!"}\n', {}),
        ("a.txt", " = T = \n \n A b! C d! \n = = S = = \n", {}),
    ],
)
def test_every_format_gives_the_same_examples(tmp_path, tokenizer, name, text, arguments):
    write(tmp_path / "texts", name, text)
    manifest = prepare_examples(
        [str(tmp_path / "texts")], tmp_path / "out", tokenizer, **SINGLE, **arguments
    )
    assert rows(tmp_path / "out") == ["[CLS] a b ! c d ! [SEP]"]
    counts = manifest["counts"]
    assert (counts["documents"], counts["sentences"], counts["pieces"]) == (1, 2, 6)


def test_a_tfds_data_set_is_read_by_name(tmp_path, tokenizer, monkeypatch):
    tfds = pytest.importorskip("tensorflow_datasets", reason="tensorflow-datasets is missing")

    class ZooTexts(tfds.core.GeneratorBasedBuilder):
        """Two texts."""

        VERSION = tfds.core.Version("1.0.0")
        url_infos = None  # nothing is downloaded

        def _info(self):
            return self.dataset_info_from_configs(
                features=tfds.features.FeaturesDict(
                    {
                        "body": tfds.features.Text(),
                        "n": np.int64,
                        "nested": {"body": tfds.features.Text()},
                        "list": tfds.features.Sequence(tfds.features.Text()),
                    }
                )
            )

        def _split_generators(self, manager):
            return {"train": self._generate_examples()}

        def _generate_examples(self):
            for n, body in enumerate(["A b! C d!", "E f!"]):
                yield n, {"body": body, "n": n, "nested": {"body": body}, "list": [body]}

    ZooTexts(data_dir=tmp_path / "data").download_and_prepare()
    load = tfds.load
    monkeypatch.setattr(
        tfds, "load", lambda name, **kw: load(name, data_dir=tmp_path / "data", **kw)
    )
    source = ["tfds:zoo_texts:train"]
    manifest = prepare_examples(source, tmp_path / "out", tokenizer, text_column="body", **SINGLE)
    assert rows(tmp_path / "out") == ["[CLS] a b ! c d ! [SEP]", "[CLS] e f ! [SEP]"]
    assert manifest["inputs"][0]["path"] == "tfds:zoo_texts:train"
    with pytest.raises(ValueError, match=r"no column 'n' of texts.*\['body'\]"):
        prepare_examples(source, tmp_path / "other", tokenizer, text_column="n", **SINGLE)


def test_a_file_by_two_paths_is_read_once(tmp_path, tokenizer, monkeypatch):
    path = write(tmp_path, "a.txt", "A b!")
    monkeypatch.chdir(tmp_path)
    source = ["a.txt", path, str(tmp_path / "*.txt")]
    manifest = prepare_examples(source, tmp_path / "out", tokenizer, **SINGLE)
    assert [item["path"] for item in manifest["inputs"]] == ["a.txt"]
    assert manifest["counts"]["documents"] == 1


def test_a_large_file_is_read_in_parts(tmp_path, tokenizer, monkeypatch):
    lines = "".join(f'{{"text": "{"abcdefgh"[k % 8]} {k % 3}!"}}\n' for k in range(100))
    path = write(tmp_path, "a.jsonl", lines)
    whole = prepare_examples([path], tmp_path / "whole", tokenizer, **SINGLE)
    monkeypatch.setattr(prepare, "_PART_BYTES", 50)
    assert prepare_examples([path], tmp_path / "parts", tokenizer, **SINGLE) == whole
    assert content(tmp_path / "parts") == content(tmp_path / "whole")


# === Determinism and restarting ===


def test_the_order_and_the_number_of_files_do_not_matter(tmp_path, tokenizer):
    write_corpus(tmp_path / "texts")
    texts = [path.read_text() for path in sorted((tmp_path / "texts").iterdir())]
    lines = [json.dumps({"text": text}) for text in texts[::-1]]
    one = write(tmp_path, "one.jsonl", "\n".join(lines[:30]))
    two = write(tmp_path, "two.jsonl", "\n".join(lines[30:]))
    settings = {"sequence_length": 32, "shards": 4, "masking": {}, "duplicates": 2}
    a = prepare_examples([str(tmp_path / "texts")], tmp_path / "a", tokenizer, **settings)
    b = prepare_examples([two, one, one], tmp_path / "b", tokenizer, **settings)
    assert a["counts"] == b["counts"]
    records = [
        {name: data for name, data in content(folder).items() if name.endswith(".tfrecord")}
        for folder in (tmp_path / "a", tmp_path / "b")
    ]
    assert len(records[0]) == 4
    assert records[0] == records[1]


def written_when(folder):
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


def test_a_run_goes_on_with_what_is_missing(tmp_path, tokenizer):
    texts = write_corpus(tmp_path / "texts")
    out = tmp_path / "out"
    settings = {"sequence_length": 32, "shards": 4}
    manifest = prepare_examples([texts], out, tokenizer, **settings)
    whole = content(out)
    for name in ("manifest.json", "statistics-00002-of-00004.json"):
        (out / name).unlink()
    (out / "examples-00002-of-00004.tfrecord").write_bytes(b"half")
    (out / "examples-00002-of-00004.tfrecord.unfinished-1234").write_bytes(b"half")
    before = written_when(out)
    assert prepare_examples([texts], out, tokenizer, **settings) == manifest
    assert content(out) == whole
    after = written_when(out)
    again = {name for name in before if after.get(name) != before[name]}
    assert again == {
        "examples-00002-of-00004.tfrecord",
        "examples-00002-of-00004.tfrecord.unfinished-1234",
        "lengths.png",
    }
    # Complete, it is left alone.
    assert prepare_examples([texts], out, tokenizer, **settings) == manifest
    assert written_when(out) == after


@pytest.mark.parametrize(
    "lost", ["examples-00001-of-00004.tfrecord", "statistics-00003-of-00004.json", "manifest.json"]
)
def test_a_file_that_was_lost_is_made_again(tmp_path, tokenizer, lost):
    texts = write_corpus(tmp_path / "texts")
    settings = {"sequence_length": 32, "shards": 4, "masking": {}}
    manifest = prepare_examples([texts], tmp_path / "out", tokenizer, **settings)
    whole = content(tmp_path / "out")
    (tmp_path / "out" / lost).unlink()
    assert prepare_examples([texts], tmp_path / "out", tokenizer, **settings) == manifest
    assert content(tmp_path / "out") == whole


def test_a_refused_run_leaves_a_live_runs_files_alone(tmp_path, tokenizer):
    texts = write_corpus(tmp_path / "texts")
    out = tmp_path / "out"
    settings = {"sequence_length": 32, "shards": 2}
    prepare_examples([texts], out, tokenizer, **settings)
    (out / "manifest.json").unlink()
    # As a run that still goes on would name it.
    live = ExampleFolder(out).unfinished("examples-00001-of-00002.tfrecord")
    with open(live, "wb") as file:
        file.write(b"half")
    before = content(out)
    with pytest.raises(ValueError, match="seed"):
        prepare_examples([texts], out, tokenizer, **settings, seed=1)
    with pytest.raises(ValueError, match="not UTF-8"):
        prepare_examples([texts, write(tmp_path, "a.txt", b"\xe9")], out, tokenizer, **settings)
    assert content(out) == before


def test_an_output_that_is_a_file_is_refused(tmp_path, tokenizer):
    text = write(tmp_path, "a.txt", "a. b.")
    with pytest.raises(ValueError, match="must be a folder.*a.txt"):
        prepare_examples([text], text, tokenizer, **SINGLE)
    assert list(content(tmp_path)) == ["a.txt"]


def test_other_settings_inputs_or_vocabulary_are_refused(tmp_path, tokenizer):
    texts = write_corpus(tmp_path / "texts")
    out = tmp_path / "out"
    settings = {"sequence_length": 32, "shards": 2}
    prepare_examples([texts], out, tokenizer, **settings)
    whole = content(out)

    def refused(match, tokenizer=tokenizer, **changed):
        with pytest.raises(ValueError, match=match):
            prepare_examples([texts], out, tokenizer, **{**settings, **changed})
        assert content(out) == whole

    refused(r"seed \(0 there, 1 now\)", seed=1)
    refused(r"shards \(2 there, 4 now\)", shards=4)
    refused(r"masking \(None there", masking={})
    refused("vocabulary_sha256", BertTokenizer([*PIECES, "i"], lowercase=True))
    refused(r"lowercase \(True there, False now\)", BertTokenizer(PIECES, lowercase=False))
    write(tmp_path / "texts", "003.txt", "A b! C!")
    refused(r"inputs \([^,]*003\.txt\)")


def test_a_folder_with_something_else_is_left_alone(tmp_path, tokenizer):
    texts = write_corpus(tmp_path / "texts", 3)
    write(tmp_path / "out", "thesis.tex", "a")
    with pytest.raises(ValueError, match=r"thesis\.tex"):
        prepare_examples([texts], tmp_path / "out", tokenizer)
    assert list(content(tmp_path / "out")) == ["thesis.tex"]


# === The manifest ===


def test_the_manifest_says_what_was_made_from_what(tmp_path, tokenizer):
    texts = write_corpus(tmp_path / "texts")
    out = tmp_path / "out"
    masking = {"mask_selection_rate": 0.2}
    manifest = prepare_examples([texts], out, tokenizer, sequence_length=32, masking=masking)
    assert manifest == json.loads((out / "manifest.json").read_text())
    assert len(manifest["inputs"]) == 40
    first = manifest["inputs"][0]
    data = (tmp_path / "texts" / "000.txt").read_bytes()
    assert first["path"].endswith("000.txt")
    assert (first["bytes"], first["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
    vocabulary = hashlib.sha256((out / "vocab.txt").read_bytes()).hexdigest()
    assert manifest["settings"]["vocabulary_sha256"] == vocabulary
    assert (out / "vocab.txt").read_text() == "\n".join(PIECES) + "\n"
    assert manifest["settings"]["tokenizer"]["lowercase"] is True
    counts = manifest["counts"]
    assert (counts["documents"], counts["sentences"], counts["pieces"]) == (40, 480, 3360)
    examples = list(iterate_examples(out))
    assert counts["examples"] == sum(manifest["examples_by_shard"]) == len(examples)
    lengths = np.bincount([len(e["token_ids"]) for e in examples], minlength=33)
    assert counts["lengths"] == lengths.tolist()
    labels = np.bincount([int(e["next_sentence"][0]) for e in examples], minlength=2)
    assert counts["labels"] == labels.tolist()
    chosen = sum(len(e["mask_positions"]) for e in examples)
    assert manifest["rates"]["chosen"] == chosen / sum(len(e["token_ids"]) for e in examples)
    assert sum(manifest["rates"][kind] for kind in ("mask", "random", "same")) == pytest.approx(1)
    assert (out / "lengths.png").read_bytes().startswith(b"\x89PNG")
    assert not [name for name in content(out) if "unfinished" in name]


# === Shards ===


def test_the_number_of_shards_suits_the_documents(tmp_path, tokenizer):
    shards = {}
    for count in (2, 40, 400):
        texts = write_corpus(tmp_path / f"{count}", count)
        manifest = prepare_examples(
            [texts], tmp_path / f"out-{count}", tokenizer, sequence_length=32
        )
        shards[count] = manifest["settings"]["shards"]
        assert len(manifest["examples_by_shard"]) == shards[count]
    assert shards[2] == 1
    assert 1 < shards[40] < 16
    assert shards[400] == 16


def test_too_many_shards_are_refused_before_anything_is_made(tmp_path, tokenizer, monkeypatch):
    texts = write_corpus(tmp_path / "texts", 12)
    monkeypatch.setattr(prepare, "_make_shards", None)
    with pytest.raises(
        ValueError, match="of 12 documents in 24 shards.*`shards` could be"
    ) as error:
        prepare_examples([texts], tmp_path / "out", tokenizer, shards=24)
    assert not (tmp_path / "out").exists()
    monkeypatch.undo()
    fewer = int(str(error.value).rstrip(".").rsplit(" ", 1)[-1])
    manifest = prepare_examples([texts], tmp_path / "out", tokenizer, shards=fewer)
    assert manifest["settings"]["shards"] == fewer
    # Without random next sentences a shard may be empty.
    manifest = prepare_examples(
        [texts], tmp_path / "order", tokenizer, objective="sentence_order", shards=24
    )
    assert 0 in manifest["examples_by_shard"]
    assert sum(manifest["examples_by_shard"]) == len(list(iterate_examples(tmp_path / "order")))


# === Errors ===


@pytest.mark.parametrize(
    ("files", "arguments", "message"),
    [
        ({"a.txt": "a. b."}, {}, "at least 2 documents.*There are 1"),
        ({"a.txt": " \n"}, {"objective": "single"}, "at least 1 documents.*There are 0"),
        ({"a.jsonl": '{"text": "a."}\n{"text"\n'}, {}, r"Line 2 of '.*a\.jsonl' is not JSON"),
        ({"a.txt": b"a.\n\xe9"}, {}, r"Line 2 of '.*a\.txt' is not UTF-8"),
        ({"a.png": ""}, {}, "There is no text file in the folder '.*texts'"),
        (
            {"a.jsonl.gz": gzip.compress(b'{"text": "a."}\n' * 50, mtime=0)[:-12]},
            {},
            r"a\.jsonl\.gz' is no whole \.gz file",
        ),
        ({"a.txt.bz2": "a. b."}, {}, r"a\.txt\.bz2' is no whole \.bz2 file"),
        ({"a.txt": "a."}, {"sequence_length": 4}, "at least 5"),
        ({"a.txt": "a."}, {"objective": "both"}, "'both'"),
        ({"a.txt": "a."}, {"shards": 0}, "`shards`.*0"),
        ({"a.txt": "a."}, {"workers": 0}, "`workers`.*0"),
        ({"a.txt": "a."}, {"language": "klingon"}, "`language`.*'klingon'"),
        ({"a.txt": "a."}, {"beam_options": ["--regoin=x", "--streaming"]}, "know: --regoin=x$"),
        ({"a.txt": "a."}, {"masking": {"mask_selection_rate": 2.0}}, "mask_selection_rate"),
        ({"a.txt": "a."}, {"workers": 2, "runner": "FlinkRunner"}, "`workers`.*FlinkRunner"),
    ],
)
def test_what_gives_no_examples_leaves_nothing_behind(
    tmp_path, tokenizer, files, arguments, message
):
    for name, text in files.items():
        write(tmp_path / "texts", name, text)
    with pytest.raises(ValueError, match=message):
        prepare_examples([str(tmp_path / "texts")], tmp_path / "out", tokenizer, **arguments)
    assert not (tmp_path / "out").exists()


def test_missing_inputs_are_named(tmp_path, tokenizer):
    with pytest.raises(ValueError, match=r"none\.txt"):
        prepare_examples([str(tmp_path / "none.txt")], tmp_path / "out", tokenizer)
    with pytest.raises(ValueError, match="tfds:name:split"):
        prepare_examples(["tfds:train"], tmp_path / "out", tokenizer)


def test_bytes_that_are_not_utf_8_can_be_dropped(tmp_path, tokenizer):
    path = write(tmp_path, "a.txt", b"A b\xe9! C!")
    prepare_examples([path], tmp_path / "out", tokenizer, encoding_errors="replace", **SINGLE)
    assert rows(tmp_path / "out") == ["[CLS] a b ! c ! [SEP]"]


def test_without_beam_the_error_says_how_to_install_it(tmp_path, tokenizer, monkeypatch):
    path = write(tmp_path, "a.txt", "a. b.")
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    with pytest.raises(ValueError, match=r'pip install "keras_bert_zoo\[prepare\]"'):
        prepare_examples([path], tmp_path / "out", tokenizer, **SINGLE)
