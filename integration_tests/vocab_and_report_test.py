"""The verbs `vocab` and `report`, from files to files."""

import gzip
import json
import os
import pathlib
import subprocess
import sys

import pytest

from keras_bert_zoo.cli import main
from keras_bert_zoo.models import BertBackbone, BertTextEmbedder
from keras_bert_zoo.preprocessing import BertPreprocessor, BertTokenizer

pytestmark = pytest.mark.backend_free

TEXTS = ["The sun, the rain and the snow.", "THE SNOW MELTS", "", "a [MASK] of snow"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def data_folder():
    folder = os.environ.get("KERAS_BERT_ZOO_DATA")
    if not folder:
        pytest.skip("the data are missing: KERAS_BERT_ZOO_DATA is not set")
    return pathlib.Path(folder)


def write_lines(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def write_rows(path, **columns):
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return write_lines(path, map(json.dumps, rows))


def read_json(path):
    return json.loads(path.read_text(encoding="utf-8"))


# === vocab ===


def vocab(tmp_path, *arguments):
    output = tmp_path / "new" / "vocab.txt"
    assert main(["vocab", *arguments, "--output", str(output)]) == 0
    assert [path.name for path in output.parent.iterdir()] == ["vocab.txt"]
    return output.read_text(encoding="utf-8").splitlines()


def test_a_vocabulary_is_trained_and_its_texts_are_known(tmp_path, capsys):
    text = write_lines(tmp_path / "a.txt", TEXTS)
    entries = vocab(
        tmp_path, "--text", text, "--size", "60", "--json", str(tmp_path / "vocabulary.json")
    )
    assert entries[:5] == SPECIAL and "snow" in entries
    tokenizer = BertTokenizer(str(tmp_path / "new" / "vocab.txt"), lowercase=True)
    assert tokenizer.unk_token_id not in tokenizer(TEXTS).flat_values.numpy()
    results = read_json(tmp_path / "vocabulary.json")
    assert results["texts"] == 3
    assert results["characters"] == sum(len(text) + 1 for text in TEXTS)
    # 9 words, 3, and 6 with the brackets.
    assert (results["words"], results["unknown share of the words"]) == (9 + 3 + 6, 0)
    assert results["vocabulary size"] == len(entries) < 60
    assert "fewer entries than --size 60" in capsys.readouterr().out


def test_every_source_gives_the_same_vocabulary(tmp_path):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    lines = write_lines(corpus / "a.txt", TEXTS)
    (tmp_path / "tables").mkdir()
    table = write_rows(tmp_path / "tables" / "a.jsonl", review=TEXTS)
    compressed = str(tmp_path / "a.txt.gz")
    pathlib.Path(compressed).write_bytes(gzip.compress(pathlib.Path(lines).read_bytes()))
    sources = [
        ("--text", lines),
        ("--text", str(corpus)),
        ("--input", table, "--text-column", "review"),
        ("--text", table, "--text-column", "review"),
        ("--text", compressed, "--encoding-errors", "replace"),
        ("--text", str(corpus / "*.txt"), lines),
    ]
    assert len({tuple(vocab(tmp_path, *source, "--size", "43")) for source in sources}) == 1


def test_the_released_layout_casing_and_limits(tmp_path):
    text = write_lines(tmp_path / "a.txt", ["Été Été xylo"] * 2)
    entries = vocab(
        *(tmp_path, "--text", text, "--cased", "--num-unused", "99", "--size", "200"),
        *("--limit-alphabet", "2", "--max-piece-length", "2"),
    )
    assert entries[99:104] == ["[unused99]", *SPECIAL[1:]]
    assert entries[104:] == ["t", "É"]
    entries = vocab(tmp_path, "--text", text, "--no-strip-accents", "--size", "200")
    assert "été" in entries


def test_two_processes_write_the_same_file(tmp_path):
    text = write_lines(
        tmp_path / "a.txt", [f"{a}{b}{c}" for a in "abcd" for b in "efgh" for c in "ijk"]
    )
    files = []
    for run in range(2):
        output = tmp_path / f"{run}.txt"
        subprocess.run(
            [sys.executable, "-m", "keras_bert_zoo", "vocab", "--text", text]
            + ["--size", "33", "--output", str(output)],
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
            check=True,
            capture_output=True,
        )
        files.append(output.read_bytes())
    assert files[0] == files[1]
    assert files[0].count(b"\n") == 33


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "either --text or --input"),
        (["--text", "nowhere"], "no file or folder 'nowhere'"),
        (["--text", "{a.txt}", "--size", "9"], "`size` must be at least"),
        (["--text", "{a.txt}", "--max-piece-length", "1"], "`max_piece_length`"),
        (["--text", "{latin.txt}"], "Line 2 of"),
        (["--text", "{broken.jsonl}"], "Line 2 of"),
        (["--text", "{empty.txt}"], "empty.txt"),
        (["--text", "{cut.txt.gz}", "--encoding-errors", "replace"], "cut.txt.gz' is no whole .gz"),
        (["--input", "{null.jsonl}"], "`texts[1]` must be a string"),
        (["--input", "{null.jsonl}", "--text-column", "review"], "no column 'review'"),
    ],
)
def test_wrong_input_is_one_line_and_leaves_nothing(arguments, message, tmp_path, capsys):
    write_lines(tmp_path / "a.txt", ["a b c d e"])
    (tmp_path / "latin.txt").write_bytes("a\ncafé\n".encode("latin-1"))
    write_lines(tmp_path / "empty.txt", ["", " "])
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(b"a b c d e\n" * 50)[:-12])
    write_lines(tmp_path / "broken.jsonl", ['{"text": "a"}', '{"text"'])
    write_rows(tmp_path / "null.jsonl", text=["a", None])
    before = sorted(tmp_path.iterdir())
    arguments = [
        str(tmp_path / argument[1:-1]) if argument.startswith("{") else argument
        for argument in arguments
    ]
    assert main(["vocab", *arguments, "--output", str(tmp_path / "vocab.txt")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("error: ") and error.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


def test_bytes_that_are_no_text_are_dropped_on_request(tmp_path):
    path = tmp_path / "latin.txt"
    path.write_bytes(b"caf\xe9 x")
    entries = vocab(tmp_path, "--text", str(path), "--encoding-errors", "replace", "--size", "20")
    assert entries[5:] == ["a", "c", "f", "x", "##a", "##c", "##f"]


def test_only_a_vocabulary_that_stands_alone_is_replaced(tmp_path, capsys):
    text = write_lines(tmp_path / "a.txt", TEXTS)
    output = tmp_path / "vocab.txt"
    write_lines(output, [*SPECIAL, "old"])
    arguments = ["vocab", "--text", text, "--size", "60", "--output"]
    assert main([*arguments, str(output)]) == 0
    assert "old" not in output.read_text(encoding="utf-8").splitlines()
    kept = pathlib.Path(text).read_bytes()
    assert main([*arguments, text]) == 2
    assert "must be new or a vocabulary" in capsys.readouterr().err
    assert pathlib.Path(text).read_bytes() == kept
    preset = write_preset(tmp_path / "preset")
    assert main([*arguments, f"{preset}/vocab.txt"]) == 2
    assert "must not lie in a preset" in capsys.readouterr().err


# === report ===


def write_preset(folder):
    tokenizer = BertTokenizer([*SPECIAL, "a", "b", "T"], lowercase=False)
    backbone = BertBackbone(
        vocabulary_size=8, num_layers=1, num_heads=1, hidden_dim=4, intermediate_dim=4
    )
    BertTextEmbedder(backbone, BertPreprocessor(tokenizer, 16)).save_to_preset(folder)
    return str(folder)


def report(tmp_path, *arguments):
    written = tmp_path / "report.json"
    assert main(["report", *arguments, "--json", str(written)]) == 0
    return read_json(written)


def test_a_report_on_the_screen_as_json_and_as_a_plot(tmp_path, capsys):
    table = write_rows(tmp_path / "a.jsonl", review=["a b a b", "b", "tea a"])
    vocabulary = write_lines(tmp_path / "vocab.txt", [*SPECIAL, "a", "b"])
    result = report(
        *(tmp_path, "--input", table, "--text", "review", "--vocabulary", vocabulary),
        *("--sequence-length", "5", "--batch-size", "2", "--plot", str(tmp_path / "a" / "r.png")),
    )
    assert (result["texts"], result["pieces"]["total"]) == (3, 7)
    assert result["cut"][0] == {"sequence_length": 5, "texts": 1 / 3, "pieces": 1 / 7}
    # Rows of 5, 3 and 4 in batches of two.
    assert result["padding"]["batch"]["positions"] == 2 * 5 + 4
    assert result["unknown"]["words"] == [{"word": "tea", "count": 1}]
    assert (tmp_path / "a" / "r.png").read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    for shown in ("share of texts cut", "bucket_batches", "packed_rows", "tea"):
        assert shown in printed


def test_a_preset_tells_the_tokenizer_without_its_weights(tmp_path):
    preset = write_preset(tmp_path / "preset")
    (tmp_path / "preset" / "model.weights.h5").unlink()
    table = write_rows(tmp_path / "a.jsonl", text=["T", "t"], other=["a b", ""])
    result = report(tmp_path, "--input", table, "--second", "other", "--preset", preset)
    assert result["sequence_length"] == 128
    # [CLS] T [SEP] a b [SEP], and [CLS] [UNK] [SEP] [SEP].
    assert result["effective_length"]["total"] == 6 + 4
    assert result["unknown"] == {
        "pieces": 1 / 4,
        "texts": 1 / 2,
        "words": [{"word": "t", "count": 1}],
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "either --preset or --vocabulary"),
        (["--preset", "x", "--vocabulary", "y"], "either --preset or --vocabulary"),
        (["--preset", "x", "--cased"], "--cased goes with --vocabulary"),
        (["--vocabulary", "x", "--plot", "r.gif"], "must end in .png"),
        (["--vocabulary", "nowhere.txt"], "nowhere.txt"),
        (["--preset", "nowhere"], "neither a preset's name nor a folder"),
        (["--vocabulary", "x", "--text", "review"], "no column 'review'"),
    ],
)
def test_wrong_report_input_is_one_line(arguments, message, tmp_path, capsys):
    table = write_rows(tmp_path / "a.jsonl", text=["a"])
    assert main(["report", "--input", table, *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("error: ") and error.count("\n") == 1


def test_a_vocabulary_of_real_text_knows_it(tmp_path):
    table = str(data_folder() / "glue" / "SST-2" / "train.tsv")
    vocabulary = str(tmp_path / "new" / "vocab.txt")
    entries = vocab(tmp_path, "--input", table, "--text-column", "sentence", "--size", "8000")
    assert len(entries) == 8000
    result = report(tmp_path, "--input", table, "--text", "sentence", "--vocabulary", vocabulary)
    assert result["texts"] == 67349
    assert result["unknown"] == {"pieces": 0, "texts": 0, "words": []}
    padding = {name: figures["padding"] for name, figures in result["padding"].items()}
    assert padding["fixed"] > padding["bucket"] > padding["bucket_batches"]
    assert padding["bucket_batches"] > padding["packed_rows"]
