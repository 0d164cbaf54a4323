"""Models written for transformers: the same numbers, ids, names and settings there."""

import json

import numpy as np
import pytest

import keras_bert_zoo as zoo
from keras_bert_zoo.checkpoints.huggingface_test import PIECES, UNUSUAL, make, model_inputs, numpy

torch = pytest.importorskip("torch", reason="transformers runs on PyTorch only")
transformers = pytest.importorskip("transformers")

ROWS, LENGTH = 3, 9

# Their class, our task, and our outputs under the names that theirs have.
CLASSES = [
    (
        "BertModel",
        "backbone",
        lambda y: {"last_hidden_state": y["sequence_output"], "pooler_output": y["pooled_output"]},
    ),
    (
        "BertForPreTraining",
        "pretrainer",
        lambda y: {
            "prediction_logits": y["masked_lm"],
            "seq_relationship_logits": y["next_sentence"],
        },
    ),
    ("BertForMaskedLM", "masked_lm", lambda y: {"logits": y}),
    ("BertForNextSentencePrediction", "next_sentence", lambda y: {"logits": y}),
    ("BertForSequenceClassification", "text_classifier", lambda y: {"logits": y}),
    ("BertForTokenClassification", "token_classifier", lambda y: {"logits": y}),
    (
        "BertForQuestionAnswering",
        "question_answerer",
        lambda y: {"start_logits": y["start"], "end_logits": y["end"]},
    ),
    ("BertForMultipleChoice", "multiple_choice", lambda y: {"logits": y}),
]


def their_outputs(model, inputs):
    with torch.no_grad():
        outputs = model(
            input_ids=torch.tensor(inputs["token_ids"]),
            token_type_ids=torch.tensor(inputs["segment_ids"]),
            attention_mask=torch.tensor(inputs["padding_mask"]),
        )
    return {name: tensor.numpy() for name, tensor in outputs.items()}


def load(model_class, folder):
    """Return transformers' model of an export that has all its tensors and no other."""
    loaded, info = getattr(transformers, model_class).from_pretrained(
        folder, output_loading_info=True
    )
    assert not any(info.values()), info
    return loaded.eval()


@pytest.mark.parametrize("model_class, task, outputs", CLASSES, ids=[c[0] for c in CLASSES])
def test_every_class_goes_in_and_out(tmp_path, model_class, task, outputs):
    names = {0: "good", 1: "bad", 2: "neither"}
    classes = {"id2label": names} if task.endswith("_classifier") else {}
    theirs = make(tmp_path / "theirs", model_class, **UNUSUAL, **classes)
    inputs = model_inputs(num_segments=3)
    real = inputs["padding_mask"] == 1
    if task == "multiple_choice":
        inputs = {name: rows[None] for name, rows in inputs.items()}
    expected = their_outputs(theirs, inputs)
    ours = zoo.from_preset(tmp_path / "theirs", task)
    every_position = np.tile(np.arange(LENGTH), (ROWS, 1))
    more = {"mask_positions": every_position} if "mask_positions" in ours.input else {}
    found = outputs(ours({**inputs, **more}))
    for name, value in found.items():
        where = real if value.shape[:2] == real.shape else ...
        np.testing.assert_allclose(
            numpy(value)[where], expected[name][where], atol=1e-5, err_msg=name
        )

    ours.export_to_transformers(tmp_path / "ours")
    again = load(model_class, tmp_path / "ours")
    for name, value in their_outputs(again, inputs).items():
        np.testing.assert_allclose(value, expected[name], atol=1e-5, err_msg=name)
    kept = set(UNUSUAL) | {"hidden_dropout_prob", "attention_probs_dropout_prob", "id2label"}
    for key in kept - ({"id2label"} - set(classes)):
        assert getattr(again.config, key) == getattr(theirs.config, key), key


def preprocessor(kind="TextClassifier", length=16, **switches):
    tokenizer = zoo.preprocessing.BertTokenizer(PIECES, **{"lowercase": True, **switches})
    return getattr(zoo.preprocessing, f"Bert{kind}Preprocessor")(tokenizer, length)


def backbone(**arguments):
    return zoo.models.BertBackbone(
        **{
            "vocabulary_size": len(PIECES),
            "num_layers": 1,
            "num_heads": 2,
            "hidden_dim": 8,
            "intermediate_dim": 16,
            "max_sequence_length": 300,
            **arguments,
        }
    )


def exported_tokenizer(folder, **switches):
    model = zoo.models.BertTextClassifier(backbone(), 2, preprocessor(**switches))
    model.export_to_transformers(folder)
    return transformers.AutoTokenizer.from_pretrained(folder), model.preprocessor.tokenizer


@pytest.mark.parametrize(
    "switches",
    [
        {},
        {"lowercase": False, "special_tokens_in_strings": True},
        {"strip_accents": False, "split_on_cjk": False, "max_word_length": 3},
    ],
)
def test_tokenizer_gives_the_same_ids(tmp_path, switches):
    theirs, ours = exported_tokenizer(tmp_path / "out", **switches)
    texts = ["A b, cs.", "á aá", "a [MASK]b[SEP]", "", "abcd s 我a", "a" + "s" * 150, "s" * 250]
    marked = [[2, *ids, 3] for ids in ours(texts).to_list()]
    assert theirs(texts)["input_ids"] == marked
    assert theirs(["a b"], ["c"])["token_type_ids"] == [[0, 0, 0, 0, 1, 1]]
    assert theirs.model_max_length == 16
    assert (theirs.pad_token_id, theirs.mask_token_id) == (0, 4)


def test_tokenizer_settings_come_back(tmp_path):
    _, ours = exported_tokenizer(
        tmp_path / "out", strip_accents=False, split_on_cjk=False, special_tokens_in_strings=True
    )
    assert zoo.load_tokenizer(tmp_path / "out").get_config() == ours.get_config()
    loaded = zoo.from_preset(tmp_path / "out", "text_classifier")
    assert loaded.preprocessor.sequence_length == 16


def test_vocabulary_without_a_mask_gets_none(tmp_path):
    pieces = [piece for piece in PIECES if piece != "[MASK]"]
    tokenizer = zoo.preprocessing.BertTokenizer(pieces, lowercase=True)
    encoder = backbone(preprocessor=zoo.preprocessing.BertPreprocessor(tokenizer, 16))
    encoder.export_to_transformers(tmp_path / "out")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert (len(theirs), theirs.mask_token) == (len(pieces), None)


def test_their_fill_mask_finds_the_mask(tmp_path):
    masked_lm = zoo.models.BertMaskedLM(backbone(), preprocessor("MaskedLM"))
    masked_lm.export_to_transformers(tmp_path / "out")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert theirs("a [MASK]")["input_ids"] == [2, PIECES.index("a"), 4, 3]


@pytest.mark.parametrize(
    "arguments, problem",
    [
        ({"num_classes": 1}, "regression"),
        ({"num_classes": 3}, "single_label_classification"),
        ({"num_classes": 3, "activation": "softmax"}, "single_label_classification"),
        ({"num_classes": 3, "activation": "sigmoid"}, "multi_label_classification"),
    ],
)
def test_classifiers_problem_and_dropout_are_said(tmp_path, arguments, problem):
    classifier = zoo.models.BertTextClassifier(backbone(), dropout=0.3, **arguments)
    classifier.export_to_transformers(tmp_path / "out")
    config = transformers.AutoConfig.from_pretrained(tmp_path / "out")
    assert (config.problem_type, config.classifier_dropout) == (problem, 0.3)
    assert config.num_labels == arguments["num_classes"]
    (tmp_path / "out" / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    loaded = zoo.from_preset(tmp_path / "out", "text_classifier")
    kept = {"softmax": None}.get(classifier.activation, classifier.activation)
    assert (loaded.activation, loaded.dropout) == (kept, 0.3)


def test_embedders_pooling_and_length_are_said_as_sentence_transformers_does(tmp_path):
    embedder = zoo.models.BertTextEmbedder(
        backbone(), preprocessor("TextEmbedder", 24), pooling="max", normalize=True
    )
    embedder.export_to_transformers(tmp_path / "out")
    modules = json.loads((tmp_path / "out" / "modules.json").read_text())
    assert [(module["type"], module["path"]) for module in modules] == [
        ("sentence_transformers.models.Transformer", ""),
        ("sentence_transformers.models.Pooling", "1_Pooling"),
        ("sentence_transformers.models.Normalize", "2_Normalize"),
    ]
    assert json.loads((tmp_path / "out" / "1_Pooling" / "config.json").read_text()) == {
        "word_embedding_dimension": 8,
        "pooling_mode_mean_tokens": False,
        "pooling_mode_cls_token": False,
        "pooling_mode_max_tokens": True,
    }
    loaded = zoo.from_preset(tmp_path / "out", "text_embedder")
    assert (loaded.pooling, loaded.normalize) == ("max", True)
    assert loaded.preprocessor.sequence_length == 24


@pytest.mark.parametrize("kind", ["Transformer", "Sentence"])
def test_sentence_transformers_gives_the_same_vectors(tmp_path, kind):
    library = pytest.importorskip("sentence_transformers")
    pooling, normalize = {"Transformer": ("mean", False), "Sentence": ("cls", True)}[kind]
    embedder = zoo.models.BertTextEmbedder(
        backbone(), preprocessor("TextEmbedder"), pooling=pooling, normalize=normalize
    )
    embedder.export_to_transformers(tmp_path / "out")
    theirs = library.SentenceTransformer(str(tmp_path / "out"), device="cpu")
    texts = ["a b c", "d s " * 20, ""]
    np.testing.assert_allclose(theirs.encode(texts), embedder.encode(texts), atol=1e-6)


def test_what_transformers_can_not_say_is_refused_and_nothing_is_written(tmp_path):
    with pytest.raises(ValueError, match="causal is True, and it has only False"):
        backbone(causal=True).export_to_transformers(tmp_path / "out")
    adapted = backbone()
    adapted.encoder_layers[0].intermediate_dense.enable_lora(2)
    with pytest.raises(ValueError, match="no place for 2 of the model's weights.*lora"):
        adapted.export_to_transformers(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_only_an_export_is_written_over(tmp_path):
    make(tmp_path / "theirs")
    before = {path.name: path.read_bytes() for path in (tmp_path / "theirs").iterdir()}
    with pytest.raises(ValueError, match="must be new, empty or a folder that"):
        backbone().export_to_transformers(tmp_path / "theirs")
    assert {path.name: path.read_bytes() for path in (tmp_path / "theirs").iterdir()} == before
    backbone().export_to_transformers(tmp_path / "ours")
    backbone(num_segments=3).export_to_transformers(tmp_path / "ours")
    assert load("BertModel", tmp_path / "ours").config.type_vocab_size == 3


def test_half_precision_is_written_in_full(tmp_path):
    theirs = make(tmp_path / "theirs").to(torch.bfloat16).state_dict()
    zoo.from_preset(tmp_path / "theirs", dtype="bfloat16").export_to_transformers(tmp_path / "out")
    for name, tensor in load("BertModel", tmp_path / "out").state_dict().items():
        assert tensor.dtype == torch.float32
        np.testing.assert_array_equal(tensor.numpy(), theirs[name].float().numpy(), err_msg=name)
