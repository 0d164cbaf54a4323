"""The authors' TF1 checkpoints: read as they compute, and written as they read."""

import json
import logging
import os
import pathlib
import shutil

import keras
import numpy as np
import pytest

import keras_bert_zoo as zoo
from keras_bert_zoo.checkpoints import google
from keras_bert_zoo.cli import main

tf = pytest.importorskip("tensorflow")

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
CONFIG = {
    "attention_probs_dropout_prob": 0.2,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.3,
    "hidden_size": 8,
    "initializer_range": 0.02,
    "intermediate_size": 12,
    "max_position_embeddings": 10,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "type_vocab_size": 3,
    "vocab_size": len(PIECES),
}
OPTIMIZER_SLOTS = ("adam_m", "adam_v")


def shapes(head_scope="cls/predictions", num_outputs=None):
    """Return the tensors' names and shapes, as modeling.py and their programs make them."""
    width, wide = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    norm = {"gamma": (width,), "beta": (width,)}
    scopes = {
        "bert/embeddings": {
            "word_embeddings": (CONFIG["vocab_size"], width),
            "token_type_embeddings": (CONFIG["type_vocab_size"], width),
            "position_embeddings": (CONFIG["max_position_embeddings"], width),
        },
        "bert/embeddings/LayerNorm": norm,
        "bert/pooler/dense": {"kernel": (width, width), "bias": (width,)},
    }
    for i in range(CONFIG["num_hidden_layers"]):
        layer = f"bert/encoder/layer_{i}"
        for part in ("self/query", "self/key", "self/value", "output/dense"):
            scopes[f"{layer}/attention/{part}"] = {"kernel": (width, width), "bias": (width,)}
        scopes[f"{layer}/attention/output/LayerNorm"] = norm
        scopes[f"{layer}/intermediate/dense"] = {"kernel": (width, wide), "bias": (wide,)}
        scopes[f"{layer}/output/dense"] = {"kernel": (wide, width), "bias": (width,)}
        scopes[f"{layer}/output/LayerNorm"] = norm
    if head_scope == "cls/predictions":
        scopes |= {
            "cls/predictions": {"output_bias": (CONFIG["vocab_size"],)},
            "cls/predictions/transform/dense": {"kernel": (width, width), "bias": (width,)},
            "cls/predictions/transform/LayerNorm": norm,
            "cls/seq_relationship": {"output_weights": (2, width), "output_bias": (2,)},
        }
    else:
        scopes[head_scope] = {"output_weights": (num_outputs, width), "output_bias": (num_outputs,)}
    return {
        f"{scope}/{name}".removeprefix("/"): shape
        for scope in scopes
        for name, shape in scopes[scope].items()
    }


def save(prefix, tensors):
    names = list(tensors)
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[tensors[name] for name in names],
    )


def read(prefix):
    reader = tf.train.load_checkpoint(str(prefix))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def make(folder, *head):
    """Write a checkpoint with random weights and the optimiser's slots; return the weights."""
    rng = np.random.default_rng(0)
    tensors = {
        name: rng.normal(0.0, 0.3, shape).astype("float32") for name, shape in shapes(*head).items()
    }
    slots = {f"{name}/{slot}": tensors[name] for name in tensors for slot in OPTIMIZER_SLOTS}
    folder.mkdir(parents=True, exist_ok=True)
    save(folder / "bert_model.ckpt", tensors | slots | {"global_step": np.int64(7)})
    (folder / "bert_config.json").write_text(json.dumps(CONFIG))
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    return tensors


def change_config(folder, **settings):
    path = folder / "bert_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


def model_inputs():
    rng = np.random.default_rng(0)
    return {
        "token_ids": rng.integers(0, len(PIECES), (3, 9)),
        "segment_ids": rng.integers(0, 3, (3, 9)),
        "padding_mask": np.array([[1] * 9, [1] * 5 + [0] * 4, [1] * 2 + [0] * 7]),
    }


def numpy(x):
    return keras.ops.convert_to_numpy(x)


def transformers_outputs(tensors, inputs, model_class, **settings):
    """Return what transformers computes with the tensors under its own names."""
    torch = pytest.importorskip("torch", reason="transformers runs on PyTorch only")
    transformers = pytest.importorskip("transformers")
    state = {}
    for name, tensor in tensors.items():
        matrix = name.endswith("kernel")
        for theirs, here in (
            ("layer_", "layer/"),
            ("/kernel", "/weight"),
            ("/gamma", "/weight"),
            ("/beta", "/bias"),
            ("_embeddings", "_embeddings/weight"),
            ("output_weights", "weight"),
            ("predictions/output_bias", "predictions/bias"),
            ("output_bias", "bias"),
        ):
            name = name.replace(theirs, here)
        if name in ("weight", "bias"):
            name = f"classifier/{name}"
        name = name.replace("cls/squad", "qa_outputs")
        state[name.replace("/", ".")] = torch.tensor(tensor.T if matrix else tensor)
    # The authors' gelu is the tanh form.
    config = transformers.BertConfig(**{**CONFIG, "hidden_act": "gelu_new"}, **settings)
    model = getattr(transformers, model_class)(config).eval()
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert all("pooler" in name for name in unexpected)
    assert all("decoder" in name or "position_ids" in name for name in missing)
    with torch.no_grad():
        return model(
            input_ids=torch.tensor(inputs["token_ids"]),
            token_type_ids=torch.tensor(inputs["segment_ids"]),
            attention_mask=torch.tensor(inputs["padding_mask"]),
        )


def tiny_backbone(**arguments):
    arguments = {"hidden_activation": "gelu_tanh", **arguments}
    return zoo.models.BertBackbone(len(PIECES), 1, 2, 8, 12, max_sequence_length=10, **arguments)


def weights_of(prefix):
    return {
        name: tensor
        for name, tensor in read(prefix).items()
        if not name.endswith(OPTIMIZER_SLOTS) and name != "global_step"
    }


def assert_same_tensors(written, expected):
    assert set(written) == set(expected)
    for name, tensor in expected.items():
        np.testing.assert_array_equal(written[name], tensor)


# === Reading ===


def test_outputs_are_those_of_the_same_tensors_in_transformers(tmp_path):
    tensors = make(tmp_path)
    pretrainer = zoo.from_preset(tmp_path, "pretrainer")
    backbone = pretrainer.backbone
    assert (backbone.dropout, backbone.attention_dropout) == (0.3, 0.2)
    assert (backbone.hidden_activation, backbone.layer_norm_epsilon) == ("gelu_tanh", 1e-12)
    expected = transformers_outputs(tensors, model_inputs(), "BertForPreTraining")
    positions = np.array([[1, 4], [0, 3], [1, 0]])
    found = pretrainer({**model_inputs(), "mask_positions": positions})
    scores = expected.prediction_logits.numpy()[np.arange(3)[:, None], positions]
    np.testing.assert_allclose(numpy(found["masked_lm"]), scores, atol=1e-5)
    next_sentence = expected.seq_relationship_logits.numpy()
    np.testing.assert_allclose(numpy(found["next_sentence"]), next_sentence, atol=1e-5)


def test_a_run_classifier_checkpoint_brings_its_classes_and_comes_out_the_same(tmp_path):
    tensors = make(tmp_path / "in", "", 3)
    classifier = zoo.from_preset(tmp_path / "in", "text_classifier")
    expected = transformers_outputs(
        tensors, model_inputs(), "BertForSequenceClassification", num_labels=3
    )
    np.testing.assert_allclose(
        numpy(classifier(model_inputs())), expected.logits.numpy(), atol=1e-5
    )
    classifier.export_to_tf1(tmp_path / "out")
    assert_same_tensors(read(tmp_path / "out" / "bert_model.ckpt"), tensors)
    with pytest.warns(UserWarning, match="no classifier_head"):
        zoo.from_preset(tmp_path / "in", "text_classifier", num_classes=2)


def test_a_run_squad_checkpoint_brings_its_scores_and_comes_out_the_same(tmp_path):
    tensors = make(tmp_path / "in", "cls/squad", 2)
    answerer = zoo.from_preset(tmp_path / "in", "question_answerer")
    expected = transformers_outputs(tensors, model_inputs(), "BertForQuestionAnswering")
    found = answerer(model_inputs())
    real = model_inputs()["padding_mask"] == 1
    for name in ("start", "end"):
        logits = expected[f"{name}_logits"].numpy()
        np.testing.assert_allclose(numpy(found[name])[real], logits[real], atol=1e-5)
    answerer.export_to_tf1(tmp_path / "out")
    assert_same_tensors(read(tmp_path / "out" / "bert_model.ckpt"), tensors)


@pytest.mark.parametrize(
    "extra, lowercase", [([], True), (["Zug"], False), (["##A"], False), (["<S>", "<T>"], True)]
)
@pytest.mark.backend_free
def test_casing_follows_the_vocabulary(tmp_path, extra, lowercase):
    (tmp_path / "bert_config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "vocab.txt").write_text("\n".join([*PIECES, *extra]) + "\n", encoding="utf-8")
    tokenizer = zoo.load_tokenizer(tmp_path)
    assert tokenizer.lowercase is lowercase
    assert (tokenizer.max_word_length, tokenizer.split_on_cjk) == (200, True)


@pytest.mark.backend_free
def test_the_checkpoint_that_is_meant_is_found(tmp_path):
    def bias(folder):
        with google.open_tensors(folder) as tensors:
            return float(tensors["output_bias"][0])

    with pytest.raises(ValueError, match="no weights: no file bert_model.ckpt.index"):
        bias(tmp_path)
    for step in (0, 500, 1000):
        save(tmp_path / f"model.ckpt-{step}", {"output_bias": np.float32([step])})
        if not step:
            assert bias(tmp_path) == 0
    with pytest.raises(ValueError, match=r"model.ckpt-0.*model.ckpt-1000.*which is meant"):
        bias(tmp_path)
    (tmp_path / "checkpoint").write_text(
        'model_checkpoint_path: "/elsewhere/model.ckpt-500"\n'
        'all_model_checkpoint_paths: "/elsewhere/model.ckpt-0"\n'
    )
    assert bias(tmp_path) == 500


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"hidden_act": "linear"}, "hidden_act='linear'"),
        ({"directionality": "left"}, "directionality='left'"),
        ({"num_hidden_layers": 3}, "lacks 16 tensors"),
        ({"intermediate_size": 20}, r"shape \(8, 12\); expected \(8, 20\)"),
    ],
)
def test_what_is_not_in_the_checkpoint_is_said(tmp_path, settings, message):
    make(tmp_path)
    change_config(tmp_path, **settings)
    with pytest.raises(ValueError, match=message):
        zoo.from_preset(tmp_path)


@pytest.mark.parametrize(
    "name, damage",
    [
        ("data-00000-of-00001", lambda content: content[:1000]),
        ("data-00000-of-00001", lambda content: content[:-1] + b"!"),
        ("index", lambda content: content[:50]),
    ],
)
@pytest.mark.backend_free
def test_a_damaged_file_is_refused(tmp_path, name, damage):
    save(tmp_path / "bert_model.ckpt", {"a": np.ones(999, "float32"), "b": np.ones(9, "float32")})
    file = tmp_path / f"bert_model.ckpt.{name}"
    file.write_bytes(damage(file.read_bytes()))
    with (
        pytest.raises(ValueError, match="bert_model.ckpt' is damaged or cut short"),
        google.open_tensors(tmp_path) as tensors,
    ):
        for tensor in tensors:
            tensors[tensor]


# === Writing ===


def test_in_and_out_every_tensor_but_the_optimisers_is_equal(tmp_path, caplog):
    tensors = make(tmp_path / "in")
    caplog.set_level(logging.INFO, "keras_bert_zoo")
    assert main(["convert", str(tmp_path / "in"), str(tmp_path / "out"), "--to", "tf1"]) == 0
    assert f"skipped {2 * len(tensors) + 1} tensors of the optimiser" in caplog.text
    assert f"loaded {len(tensors)} tensors" in caplog.text
    assert_same_tensors(read(tmp_path / "out" / "bert_model.ckpt"), tensors)
    assert json.loads((tmp_path / "out" / "bert_config.json").read_text()) == CONFIG
    vocabulary = (tmp_path / "out" / "vocab.txt").read_text(encoding="utf-8")
    assert vocabulary.split("\n") == [*PIECES, ""]


@pytest.mark.skipif("KERAS_BERT_ZOO_DATA" not in os.environ, reason="KERAS_BERT_ZOO_DATA is unset")
def test_in_and_out_a_checkpoint_of_their_code_is_equal(tmp_path):
    folder = pathlib.Path(os.environ["KERAS_BERT_ZOO_DATA"]) / "tf1_checkpoint"
    zoo.from_preset(folder, "pretrainer").export_to_tf1(tmp_path)
    expected = weights_of(folder / "bert_model.ckpt")
    assert_same_tensors(read(tmp_path / "bert_model.ckpt"), expected)


def test_what_their_code_can_not_run_is_refused_with_the_reason(tmp_path):
    arguments = {"hidden_activation": "gelu", "layer_norm_epsilon": 1e-5, "causal": True}
    backbone = tiny_backbone(**arguments)
    tokenizer = zoo.preprocessing.BertTokenizer(
        PIECES, lowercase=True, strip_accents=False, split_on_cjk=False
    )
    preprocessor = zoo.preprocessing.BertTextEmbedderPreprocessor(tokenizer, 10)
    embedder = zoo.models.BertTextEmbedder(backbone, preprocessor)
    with pytest.raises(ValueError) as error:
        embedder.export_to_tf1(tmp_path / "out")
    for reason in (
        "the model is 'BertTextEmbedder'",
        "hidden_activation is 'gelu', and it has only 'gelu_tanh' or 'relu' or 'tanh'",
        "layer_norm_epsilon is 1e-05, and it has only 1e-12",
        "causal is True",
        "strip_accents is False, and it has only True",
        "split_on_cjk is False",
    ):
        assert reason in str(error.value)
    assert not list(tmp_path.iterdir())


def test_weights_that_have_no_place_are_refused(tmp_path):
    backbone = tiny_backbone()
    backbone.pooler.enable_lora(2)
    with pytest.raises(ValueError, match="no place for 2 of the model's weights"):
        backbone.export_to_tf1(tmp_path / "out")


def test_only_an_earlier_export_is_written_over(tmp_path):
    backbone = tiny_backbone()
    backbone.export_to_tf1(tmp_path / "out")
    backbone.export_to_tf1(tmp_path / "out")
    shutil.copy(tmp_path / "out" / "bert_config.json", tmp_path / "out" / "notes.json")
    with pytest.raises(ValueError, match="`folder` must be new, empty or"):
        backbone.export_to_tf1(tmp_path / "out")


def test_another_limit_of_words_is_said(tmp_path):
    tokenizer = zoo.preprocessing.BertTokenizer(PIECES, lowercase=True, max_word_length=100)
    backbone = tiny_backbone(preprocessor=zoo.preprocessing.BertPreprocessor(tokenizer, 10))
    with pytest.warns(UserWarning, match="up to 200 characters, this model's up to 100"):
        backbone.export_to_tf1(tmp_path)


@pytest.mark.slow
def test_a_model_of_base_shape_is_read_by_plain_tensorflow(tmp_path):
    backbone = zoo.models.BertBackbone(30522, 12, 12, 768, 3072, hidden_activation="gelu_tanh")
    backbone.export_to_tf1(tmp_path)
    found = read(tmp_path / "bert_model.ckpt")
    assert sum(tensor.size for tensor in found.values()) == 109_482_240
    layer = backbone.encoder_layers[11]
    np.testing.assert_array_equal(
        found["bert/encoder/layer_11/intermediate/dense/kernel"],
        numpy(layer.intermediate_dense.kernel),
    )
    # Our kernel has a head's query, key and value columns together, 64 of each.
    key = numpy(layer.attention.qkv.kernel).reshape(768, 12, 3, 64)[:, :, 1].reshape(768, 768)
    np.testing.assert_array_equal(found["bert/encoder/layer_11/attention/self/key/kernel"], key)
