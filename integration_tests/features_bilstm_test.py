"""Table 7's six ways under a BiLSTM, with a budget of seconds."""

import importlib.util
import json
import pathlib

import keras
import numpy as np
import pytest

from keras_bert_zoo.models import BertBackbone
from keras_bert_zoo.preprocessing import BertPreprocessor, BertTokenizer

PATH = pathlib.Path(__file__).parent.parent / "examples" / "features_bilstm" / "run.py"
spec = importlib.util.spec_from_file_location("features_bilstm_run", PATH)
example = importlib.util.module_from_spec(spec)
spec.loader.exec_module(example)

NAMES, WORDS = ["anna", "niels"], ["sees", "the", "sun"]


@pytest.mark.slow
def test_the_six_ways_learn_what_names_are(tmp_path, capsys):
    tokenizer = BertTokenizer(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *NAMES, *WORDS], lowercase=True
    )
    keras.utils.set_random_seed(0)
    backbone = BertBackbone(
        vocabulary_size=10,
        num_layers=4,
        num_heads=2,
        hidden_dim=16,
        intermediate_dim=32,
        preprocessor=BertPreprocessor(tokenizer, 16),
    )
    backbone.save_to_preset(tmp_path / "preset")
    rng = np.random.default_rng(0)
    for part in ("train", "dev"):
        rows = [rng.choice([*NAMES, *WORDS], rng.integers(1, 6)) for _ in range(40)]
        text = ["\n".join(f"{w} {'B-PER' if w in NAMES else 'O'}" for w in row) for row in rows]
        (tmp_path / f"{part}.conll").write_text("\n\n".join(text) + "\n")
    arguments = [
        *("--preset", str(tmp_path / "preset"), "--output", str(tmp_path / "out")),
        *("--train", str(tmp_path / "train.conll"), "--dev", str(tmp_path / "dev.conll")),
        *("--units", "8", "--lstm-layers", "1", "--epochs", "15", "--learning-rate", "0.02"),
        *("--dropout", "0.1", "--seeds", "0", "--sequence-length", "16"),
    ]
    example.main(arguments)
    printed = capsys.readouterr().out
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [run["layers"] for run in results["runs"]] == list(example.PAPER)
    for run in results["runs"]:
        assert run["dev"]["f1"] > 0.9
        assert run["layers"].replace("_", " ") in printed
    assert "96.1" in printed
