"""Hugging Face folders: loaded with their heads and settings, or refused with a reason."""

import json

import keras
import numpy as np
import pytest

import keras_bert_zoo as zoo
from keras_bert_zoo.checkpoints import huggingface

torch = pytest.importorskip("torch", reason="transformers runs on PyTorch only")
transformers = pytest.importorskip("transformers")

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrst", "##s"]
SIZES = {
    "vocab_size": len(PIECES),
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
}
UNUSUAL = {
    "hidden_act": "relu",
    "layer_norm_eps": 1e-3,
    "type_vocab_size": 3,
    "max_position_embeddings": 40,
}


def make(folder, model_class="BertModel", **settings):
    """Save a transformers model with random weights and return it."""
    torch.manual_seed(0)
    config = transformers.BertConfig(**{**SIZES, "initializer_range": 0.2, **settings})
    model = getattr(transformers, model_class)(config).eval()
    # Biases and LayerNorms are not random of themselves.
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.1 * torch.randn_like(weight)
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    return model


def model_inputs(num_segments=2):
    rng = np.random.default_rng(0)
    return {
        "token_ids": rng.integers(0, len(PIECES), (3, 9)),
        "segment_ids": rng.integers(0, num_segments, (3, 9)),
        "padding_mask": np.array([[1] * 9, [1] * 5 + [0] * 4, [1] * 2 + [0] * 7]),
    }


def their_outputs(model, inputs):
    with torch.no_grad():
        return model(
            input_ids=torch.tensor(inputs["token_ids"]),
            token_type_ids=torch.tensor(inputs["segment_ids"]),
            attention_mask=torch.tensor(inputs["padding_mask"]),
        )


def numpy(x):
    return keras.ops.convert_to_numpy(x)


def change_config(folder, **settings):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for key, value in settings.items():
        if value is None:
            del config[key]
        else:
            config[key] = value
    path.write_text(json.dumps(config))


def rename_tensors(folder, rename):
    from safetensors.numpy import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    renamed = {rename(name): np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    save_file({n: t for n, t in renamed.items() if n}, folder / "model.safetensors")


@pytest.mark.parametrize(
    "settings",
    [
        {},
        UNUSUAL,
        {"hidden_act": "gelu_new"},
        {"hidden_act": "silu", "type_vocab_size": 1},
        {"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-5, "type_vocab_size": 4},
    ],
)
def test_backbone_outputs_are_those_of_transformers(tmp_path, settings):
    theirs = make(tmp_path, **settings)
    inputs = model_inputs(settings.get("type_vocab_size", 2))
    expected = their_outputs(theirs, inputs)
    found = zoo.from_preset(tmp_path)(inputs)
    real = inputs["padding_mask"] == 1
    np.testing.assert_allclose(
        numpy(found["sequence_output"])[real], expected.last_hidden_state.numpy()[real], atol=1e-5
    )
    np.testing.assert_allclose(
        numpy(found["pooled_output"]), expected.pooler_output.numpy(), atol=1e-5
    )


def test_pretraining_heads_are_loaded(tmp_path):
    theirs = make(tmp_path, "BertForPreTraining", **UNUSUAL)
    inputs = model_inputs(3)
    expected = their_outputs(theirs, inputs)
    positions = np.array([[1, 4], [0, 3], [1, 0]])
    masked = {**inputs, "mask_positions": positions}
    rows = np.arange(3)[:, None]
    scores = expected.prediction_logits.numpy()[rows, positions]
    pretrainer = zoo.from_preset(tmp_path, "pretrainer")(masked)
    np.testing.assert_allclose(numpy(pretrainer["masked_lm"]), scores, atol=1e-5)
    next_sentence = expected.seq_relationship_logits.numpy()
    np.testing.assert_allclose(numpy(pretrainer["next_sentence"]), next_sentence, atol=1e-5)
    masked_lm = zoo.from_preset(tmp_path, "masked_lm")(masked)
    np.testing.assert_allclose(numpy(masked_lm), scores, atol=1e-5)
    alone = zoo.from_preset(tmp_path, "next_sentence")(inputs)
    np.testing.assert_allclose(numpy(alone), next_sentence, atol=1e-5)


def test_classifier_is_loaded_with_its_class_names(tmp_path):
    names = {0: "good", 1: "bad", 2: "neither"}
    theirs = make(tmp_path, "BertForSequenceClassification", num_labels=3, id2label=names)
    classifier = zoo.from_preset(tmp_path, "text_classifier")
    expected = their_outputs(theirs, model_inputs()).logits.numpy()
    np.testing.assert_allclose(numpy(classifier(model_inputs())), expected, atol=1e-5)
    assert classifier.class_names == ["good", "bad", "neither"]


def test_question_answerer_is_loaded_and_exported(tmp_path):
    theirs = make(tmp_path / "theirs", "BertForQuestionAnswering")
    inputs = model_inputs()
    expected = their_outputs(theirs, inputs)
    answerer = zoo.from_preset(tmp_path / "theirs", "question_answerer")
    found = answerer(inputs)
    real = inputs["padding_mask"] == 1
    for name in ("start", "end"):
        logits = expected[f"{name}_logits"].numpy()
        np.testing.assert_allclose(numpy(found[name])[real], logits[real], atol=1e-5)
    answerer.export_to_transformers(tmp_path / "ours")
    again = transformers.BertForQuestionAnswering.from_pretrained(tmp_path / "ours").eval()
    for name, logits in their_outputs(again, inputs).items():
        np.testing.assert_array_equal(logits.numpy(), expected[name].numpy())


def test_classifier_of_another_size_is_new_and_said_to_be(tmp_path):
    make(tmp_path, "BertForSequenceClassification", num_labels=3)
    with pytest.warns(UserWarning, match="no classifier_head"):
        classifier = zoo.from_preset(tmp_path, "text_classifier", num_classes=5)
    assert classifier.num_classes == 5


def test_classifier_without_a_size_anywhere_is_refused(tmp_path):
    make(tmp_path)
    with pytest.raises(ValueError, match="`num_classes` is needed"):
        zoo.from_preset(tmp_path, "text_classifier")


def test_a_head_that_scores_tokens_is_not_taken_for_a_text_classifier(tmp_path):
    make(tmp_path, "BertForTokenClassification", num_labels=3)
    with pytest.warns(UserWarning, match="no pooler and no classifier_head"):
        zoo.from_preset(tmp_path, "text_classifier", num_classes=3)


def test_new_heads_are_named(tmp_path):
    make(tmp_path)
    with pytest.warns(UserWarning, match="no masked_lm_head and no next_sentence_head"):
        zoo.from_preset(tmp_path, "pretrainer")


def test_nothing_is_said_where_nothing_is_new(tmp_path, recwarn):
    make(tmp_path, "BertForPreTraining")
    zoo.from_preset(tmp_path, "pretrainer")
    assert not [w for w in recwarn if "new weights" in str(w.message)]


def test_one_report_says_what_was_loaded_what_is_new_and_what_is_left_over(tmp_path, caplog):
    make(tmp_path, "BertForPreTraining")
    caplog.set_level("INFO", "keras_bert_zoo")
    with pytest.warns(UserWarning, match="no classifier_head"):
        zoo.from_preset(tmp_path, "text_classifier", num_classes=2)
    (line,) = [record.getMessage() for record in caplog.records]
    # Three tables and a LayerNorm, two layers of sixteen tensors, and the pooler.
    assert f"loaded {5 + 2 * 16 + 2} tensors; new: classifier_head; left over: cls." in line
    assert line.count("cls.") == 7


def test_fewer_layers_than_the_checkpoint_has_are_said(tmp_path):
    make(tmp_path)
    change_config(tmp_path, num_hidden_layers=1)
    with pytest.warns(UserWarning, match="more encoder layers.*16 tensors are not loaded"):
        assert zoo.from_preset(tmp_path).num_layers == 1


def test_old_names_and_prefix_load(tmp_path):
    theirs = make(tmp_path)

    def old(name):
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
        return "bert." + name.replace("LayerNorm.bias", "LayerNorm.beta")

    rename_tensors(tmp_path, old)
    expected = their_outputs(theirs, model_inputs()).pooler_output.numpy()
    found = zoo.from_preset(tmp_path)(model_inputs())["pooled_output"]
    np.testing.assert_allclose(numpy(found), expected, atol=1e-5)


def test_shards_load(tmp_path):
    theirs = make(tmp_path)
    theirs.save_pretrained(tmp_path, max_shard_size="5KB")
    (tmp_path / "model.safetensors").unlink()
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    expected = their_outputs(theirs, model_inputs()).pooler_output.numpy()
    found = zoo.from_preset(tmp_path)(model_inputs())["pooled_output"]
    np.testing.assert_allclose(numpy(found), expected, atol=1e-5)


def test_half_precision_loads(tmp_path):
    theirs = make(tmp_path).to(torch.bfloat16)
    theirs.save_pretrained(tmp_path)
    expected = their_outputs(theirs.to(torch.float32), model_inputs()).pooler_output.numpy()
    found = zoo.from_preset(tmp_path)(model_inputs())["pooled_output"]
    np.testing.assert_allclose(numpy(found), expected, atol=1e-5)


def test_shards_of_a_bin_load(tmp_path):
    theirs = make(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    names = sorted(theirs.state_dict())
    parts = {"one.bin": names[:10], "two.bin": names[10:]}
    for file, part in parts.items():
        torch.save({name: theirs.state_dict()[name] for name in part}, tmp_path / file)
    index = {"weight_map": {name: file for file, part in parts.items() for name in part}}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    expected = their_outputs(theirs, model_inputs()).pooler_output.numpy()
    found = zoo.from_preset(tmp_path)(model_inputs())["pooled_output"]
    np.testing.assert_allclose(numpy(found), expected, atol=1e-5)


def test_a_file_that_is_cut_short_or_gone_is_named(tmp_path):
    make(tmp_path).save_pretrained(tmp_path, max_shard_size="5KB")
    (tmp_path / "model.safetensors").unlink()
    shard = sorted(tmp_path.glob("model-*.safetensors"))[1]
    shard.write_bytes(shard.read_bytes()[:-10])
    with pytest.raises(ValueError, match=f"{shard.name}.*damaged or cut short"):
        zoo.from_preset(tmp_path)
    shard.unlink()
    with pytest.raises(ValueError, match=f"lacks the file '{shard.name}'"):
        zoo.from_preset(tmp_path)


def test_bare_config_and_bin_load(tmp_path):
    theirs = make(tmp_path)
    change_config(tmp_path, architectures=None, model_type=None)
    torch.save(theirs.state_dict(), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    expected = their_outputs(theirs, model_inputs()).pooler_output.numpy()
    found = zoo.from_preset(tmp_path)(model_inputs())["pooled_output"]
    np.testing.assert_allclose(numpy(found), expected, atol=1e-5)


def test_a_bin_that_would_run_code_is_refused(tmp_path):
    make(tmp_path)
    (tmp_path / "model.safetensors").unlink()

    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "trapped"), "w"))

    torch.save({"embeddings.word_embeddings.weight": Trap()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match="damaged, or holds something else than tensors"):
        zoo.from_preset(tmp_path)
    assert not (tmp_path / "trapped").exists()


def test_no_pooler_is_said(tmp_path):
    make(tmp_path)
    rename_tensors(tmp_path, lambda name: None if name.startswith("pooler") else name)
    with pytest.warns(UserWarning, match="no pooler"):
        backbone = zoo.from_preset(tmp_path)
    kernel = numpy(backbone.pooler.kernel)
    # Drawn as ever, at twice the standard deviation 0.02 at most.
    assert 0 < np.abs(kernel).max() <= 0.04 + 1e-6


def test_a_loaded_models_weights_are_known_to_the_backend(tmp_path):
    make(tmp_path, "BertForNextSentencePrediction")
    model = zoo.from_preset(tmp_path, "next_sentence")
    fresh = zoo.models.BertNextSentence(zoo.from_preset(tmp_path, load_weights=False))
    paths = [[weight.path for weight in m.trainable_weights] for m in (model, fresh)]
    assert paths[0] == paths[1]
    if keras.backend.backend() == "torch":
        ours, theirs = (
            sorted(name for name, _ in m.named_parameters() if "seed" not in name)
            for m in (model, fresh)
        )
        assert ours == theirs


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"is_decoder": True}, "is_decoder=True"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key'"),
        ({"quantization_config": {"load_in_8bit": True}}, "quantization_config={.*8bit"),
        ({"hidden_act": "mish"}, "hidden_act='mish'"),
        ({"model_type": "roberta"}, "model_type='roberta'"),
        ({"num_hidden_layers": 3}, "lacks 16 tensors"),
        ({"intermediate_size": 20}, r"shape \(16, 24\); expected \(16, 20\)"),
    ],
)
def test_what_is_not_computed_is_refused(tmp_path, settings, message):
    make(tmp_path)
    change_config(tmp_path, **settings)
    with pytest.raises(ValueError, match=message):
        zoo.from_preset(tmp_path)


def test_an_untied_masked_lm_head_is_refused(tmp_path):
    make(tmp_path, "BertForMaskedLM", tie_word_embeddings=False)
    with pytest.raises(ValueError, match="a table of its own"):
        zoo.from_preset(tmp_path, "masked_lm")


@pytest.mark.parametrize("keep_both", [False, True])
def test_the_masked_lm_bias_under_its_other_name_loads(tmp_path, keep_both):
    from safetensors.numpy import load_file, save_file

    make(tmp_path, "BertForMaskedLM")
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"] + 1
    if not keep_both:
        del tensors["cls.predictions.bias"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    bias = zoo.from_preset(tmp_path, "masked_lm").masked_lm_head.bias
    theirs = transformers.BertForMaskedLM.from_pretrained(tmp_path).cls.predictions.decoder.bias
    np.testing.assert_array_equal(numpy(bias), theirs.detach().numpy())


def test_no_weights_and_no_vocabulary_are_said(tmp_path):
    make(tmp_path)
    (tmp_path / "vocab.txt").unlink()
    with pytest.raises(ValueError, match="no WordPiece vocabulary"):
        zoo.from_preset(tmp_path, "text_embedder")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="has no weights: none of model.safetensors"):
        zoo.from_preset(tmp_path)


def test_tokenizer_json_comes_first(tmp_path):
    make(tmp_path)
    fast = {
        "normalizer": {
            "type": "BertNormalizer",
            "lowercase": False,
            "strip_accents": True,
            "handle_chinese_chars": False,
        },
        "model": {
            "type": "WordPiece",
            "vocab": {piece: i for i, piece in enumerate(PIECES)},
            "max_input_chars_per_word": 7,
        },
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(fast), encoding="utf-8")
    (tmp_path / "vocab.txt").unlink()
    tokenizer = huggingface.read_tokenizer(tmp_path)
    assert tokenizer.vocabulary == PIECES
    assert (tokenizer.lowercase, tokenizer.strip_accents) == (False, True)
    assert (tokenizer.split_on_cjk, tokenizer.max_word_length) == (False, 7)


@pytest.mark.parametrize("extra, lowercase", [([], True), (["Zug"], False)])
def test_casing_that_no_file_states_follows_the_vocabulary(tmp_path, extra, lowercase):
    (tmp_path / "vocab.txt").write_text("\n".join([*PIECES, *extra]) + "\n", encoding="utf-8")
    assert huggingface.read_tokenizer(tmp_path).lowercase is lowercase


def test_sentence_transformers_pooling_is_kept(tmp_path):
    make(tmp_path)
    modules = [
        {"type": "sentence_transformers.models.Transformer", "path": ""},
        {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
        {"type": "sentence_transformers.models.Normalize", "path": "2_Normalize"},
    ]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 16, "pooling_mode_cls_token": True}
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    embedder = zoo.from_preset(tmp_path, "text_embedder")
    assert (embedder.pooling, embedder.normalize) == ("cls", True)


def write_modules(folder, *kinds, pooling=None, encoder=""):
    paths = [encoder, *(f"{i}_{kind}" for i, kind in enumerate(kinds, 1))]
    types = ["base.modules.transformer.Transformer", *kinds]
    modules = [{"type": f"s.{t}", "path": path} for t, path in zip(types, paths, strict=True)]
    (folder / "modules.json").write_text(json.dumps(modules))
    for path in paths[1:]:
        (folder / path).mkdir()
    if pooling:
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


def test_newer_sentence_transformers_folders_load(tmp_path):
    make(tmp_path)
    write_modules(tmp_path, "Pooling", pooling={"embedding_dimension": 16, "pooling_mode": "max"})
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 33}')
    embedder = zoo.from_preset(tmp_path, "text_embedder")
    assert (embedder.pooling, embedder.normalize) == ("max", False)
    assert embedder.preprocessor.sequence_length == 33


def test_older_sentence_transformers_folders_load(tmp_path):
    (tmp_path / "0_BERT").mkdir()
    theirs = make(tmp_path / "0_BERT")
    settings = {"max_seq_length": 12, "do_lower_case": False}
    (tmp_path / "0_BERT" / "sentence_bert_config.json").write_text(json.dumps(settings))
    write_modules(tmp_path, "Pooling", pooling={"pooling_mode_mean_tokens": True}, encoder="0_BERT")
    embedder = zoo.from_preset(tmp_path, "text_embedder")
    assert embedder.preprocessor.sequence_length == 12
    assert zoo.load_tokenizer(tmp_path).vocabulary == PIECES
    inputs = {name: ids[:1] for name, ids in model_inputs().items()}
    expected = their_outputs(theirs, inputs).last_hidden_state.mean(dim=1).numpy()
    np.testing.assert_allclose(numpy(embedder(inputs)), expected, atol=1e-5)


@pytest.mark.parametrize(
    "kinds, pooling, message",
    [
        (["Pooling", "Dense"], {"pooling_mode": "mean"}, r"the modules \['Dense'\]"),
        (["Pooling"], {"pooling_mode_weightedmean_tokens": True}, "pools by .*weightedmean"),
        (["Pooling"], {"pooling_mode": ["cls", "mean"]}, r"pools by \['cls', 'mean'\]"),
    ],
)
def test_what_an_embedder_does_not_compute_is_refused(tmp_path, kinds, pooling, message):
    make(tmp_path)
    write_modules(tmp_path, *kinds, pooling=pooling)
    with pytest.raises(ValueError, match=message):
        zoo.from_preset(tmp_path, "text_embedder")


def test_tokenizer_json_and_a_config_that_names_no_casing_load(tmp_path):
    """The tokenizer's own file states what its settings leave out."""
    make(tmp_path)
    settings = {"tokenizer_class": "BertTokenizer", "model_max_length": 10**30}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = transformers.BertTokenizer.from_pretrained(tmp_path, do_lower_case=False)
    tokenizer.backend_tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "vocab.txt").unlink()
    embedder = zoo.from_preset(tmp_path, "text_embedder")
    assert embedder.preprocessor.tokenizer.lowercase is False
    assert embedder.preprocessor.sequence_length == 512


@pytest.mark.parametrize("source", ["hf://owner/name", "hf://owner/name@main"])
def test_a_repository_in_the_cache_loads_offline(tmp_path, monkeypatch, source):
    import huggingface_hub.constants

    repository = tmp_path / "models--owner--name"
    commit = "0123456789012345678901234567890123456789"
    (repository / "snapshots" / commit).mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    theirs = make(repository / "snapshots" / commit)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    expected = their_outputs(theirs, model_inputs()).pooler_output.numpy()
    found = zoo.from_preset(source)(model_inputs())["pooled_output"]
    np.testing.assert_allclose(numpy(found), expected, atol=1e-5)
