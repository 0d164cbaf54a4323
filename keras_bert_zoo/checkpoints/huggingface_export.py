"""Hugging Face folders, written: what transformers and sentence-transformers load."""

import json
import os
import pathlib
import shutil

import keras
import numpy as np

from keras_bert_zoo.checkpoints.huggingface import (
    ACTIVATIONS,
    ARCHITECTURES,
    BACKBONE_KEYS,
    HEAD_RULES,
    POOLER_RULES,
    POOLINGS,
    backbone_rules,
)
from keras_bert_zoo.checkpoints.rules import (
    check_all_written,
    check_expressible,
    masked_lm_choices,
    their_tensors,
)
from keras_bert_zoo.layers.common import INITIALIZER_RANGE
from keras_bert_zoo.models import whole_folder
from keras_bert_zoo.preprocessing import BertTokenizer
from keras_bert_zoo.version import __version__

# What a folder says of who wrote it, so that the next export may take its place.
_WRITER_KEY = "keras_bert_zoo_version"
_PROBLEMS = {
    None: "single_label_classification",
    "softmax": "single_label_classification",
    "sigmoid": "multi_label_classification",
}


def write(model: keras.Model, folder: str | os.PathLike) -> None:
    """Write `model` into `folder`, whole or not at all, in place of an export that stood there.

    Raises:
        ValueError: transformers has no way to say what the model is; or `folder` exists
            and holds something else.
    """
    config = _config(model)
    rules = _rules(model)
    folder = whole_folder.check_free(
        folder, _is_export, "a folder that `export_to_transformers` wrote"
    )
    with whole_folder.written_whole(folder) as building:
        _write_json(building / "config.json", config)
        _write_weights(building / "model.safetensors", model, rules)
        if model.preprocessor is not None:
            write_tokenizer(model, building)
        if type(model).__name__ == "BertTextEmbedder":
            _write_modules(building, model)


def _is_export(folder):
    try:
        return _WRITER_KEY in json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False


# === Configuration ===


def _config(model):
    backbone = getattr(model, "backbone", model)
    # To transformers a BERT that sees only what is left of it, `is_decoder`, writes texts; it
    # has none of the classes here.
    choices = [
        ("the class", type(model).__name__, ARCHITECTURES),
        ("causal", backbone.causal, [False]),
        *masked_lm_choices(model, backbone.hidden_activation, backbone.layer_norm_epsilon),
    ]
    if type(model).__name__ == "BertTextEmbedder":
        choices.append(("pooling", model.pooling, list(POOLINGS.values())))
        choices.append(("layers", model.layer_way, ["last"]))
    if type(model).__name__ == "BertTextClassifier":
        choices.append(("pooling", model.pooling, ["pooled"]))
    check_expressible("transformers", choices)
    names = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    config = {
        "architectures": [ARCHITECTURES[type(model).__name__]],
        "model_type": "bert",
        **{theirs: getattr(backbone, ours) for ours, (theirs, _) in BACKBONE_KEYS.items()},
        "hidden_act": names[backbone.hidden_activation],
        "initializer_range": INITIALIZER_RANGE,
        "dtype": "float32",
        **_classes(model),
        _WRITER_KEY: __version__,
    }
    if model.preprocessor is not None:
        config["pad_token_id"] = model.preprocessor.tokenizer.pad_token_id
    return config


def _classes(model):
    """Return what their config says of a head with classes."""
    settings = {}
    if getattr(model, "num_classes", None) is not None:
        names = model.class_names or [f"LABEL_{i}" for i in range(model.num_classes)]
        settings["id2label"] = dict(enumerate(names))
        settings["label2id"] = {name: i for i, name in enumerate(names)}
    if type(model).__name__ == "BertTextClassifier":
        is_regression = model.num_classes == 1 and model.activation is None
        settings["problem_type"] = "regression" if is_regression else _PROBLEMS[model.activation]
    if hasattr(model, "backbone") and getattr(model, "dropout", None) is not None:
        settings["classifier_dropout"] = model.dropout
    return settings


# === Weights ===


def _rules(model):
    """Return the rules of what the model's class has in transformers, under full names."""
    backbone = getattr(model, "backbone", model)
    rules = backbone_rules(backbone.num_layers, backbone.num_heads)
    is_bare = ARCHITECTURES[type(model).__name__] == "BertModel"
    # Where a task does not use the pooler, their class has none.
    if is_bare or model.uses_pooler:
        rules += POOLER_RULES
    if not is_bare:
        rules = [
            rule._replace(theirs=tuple(f"bert.{name}" for name in rule.theirs)) for rule in rules
        ]
    for head in getattr(model, "heads", ()):
        rules += HEAD_RULES[head]
    check_all_written("transformers", model, [*rules, *POOLER_RULES])
    return rules


def _write_weights(path, model, rules):
    from safetensors.numpy import save_file

    variables = {weight.path: weight for weight in model.weights}
    tensors = {
        name: np.ascontiguousarray(tensor, "float32")
        for name, tensor in their_tensors(variables, rules)
    }
    save_file(tensors, path, metadata={"format": "pt"})
    # safetensors would have its file read by nobody else.
    shutil.copymode(path.with_name("config.json"), path)


# === Tokenizer ===


def write_tokenizer(model: keras.Model, folder: pathlib.Path) -> None:
    """Write the files from which transformers and tokenizers make the preprocessor's ids."""
    tokenizer = model.preprocessor.tokenizer
    # Their fill-mask has to find the mask in the text.
    finds_marks = "masked_lm_head" in getattr(model, "heads", ())
    tokenizer.save_vocabulary(folder / "vocab.txt")
    fast = _fast_tokenizer(tokenizer)
    fast.save(str(folder / "tokenizer.json"))
    marks = {
        f"{name}_token": f"[{name.upper()}]" if f"[{name.upper()}]" in fast.get_vocab() else None
        for name in ("pad", "unk", "cls", "sep", "mask")
    }
    _write_json(folder / "special_tokens_map.json", {k: v for k, v in marks.items() if v})
    settings = {
        # The class that takes tokenizer.json as it stands; their BertTokenizer makes its own.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "do_lower_case": tokenizer.lowercase,
        "strip_accents": tokenizer.strip_accents,
        "tokenize_chinese_chars": tokenizer.split_on_cjk,
        "split_special_tokens": not (tokenizer.special_tokens_in_strings or finds_marks),
        "model_max_length": model.preprocessor.sequence_length,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        **marks,
    }
    _write_json(folder / "tokenizer_config.json", settings)


def _fast_tokenizer(tokenizer: BertTokenizer):
    """Return the tokenizer in the library that transformers runs."""
    import tokenizers
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

    vocabulary = tokenizer.vocabulary
    fast = tokenizers.Tokenizer(
        models.WordPiece(
            {piece: i for i, piece in enumerate(vocabulary)},
            unk_token="[UNK]",
            max_input_chars_per_word=tokenizer.max_word_length,
        )
    )
    fast.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=tokenizer.split_on_cjk,
        strip_accents=tokenizer.strip_accents,
        lowercase=tokenizer.lowercase,
    )
    fast.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    fast.decoder = decoders.WordPiece()
    fast.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", tokenizer.cls_token_id), ("[SEP]", tokenizer.sep_token_id)],
    )
    fast.add_special_tokens([vocabulary[i] for i in tokenizer.special_token_ids])
    return fast


# === Sentence-transformers ===


def _write_modules(folder, model):
    modules = ["Transformer", "Pooling", *(["Normalize"] if model.normalize else [])]
    paths = ["", *(f"{i}_{kind}" for i, kind in enumerate(modules) if i)]
    kinds = [f"sentence_transformers.models.{kind}" for kind in modules]
    _write_json(
        folder / "modules.json",
        [
            {"idx": i, "name": str(i), "path": path, "type": kind}
            for i, (path, kind) in enumerate(zip(paths, kinds, strict=True))
        ],
    )
    for path in paths[1:]:
        (folder / path).mkdir()
    pooling = {f"pooling_mode_{theirs}": ours == model.pooling for theirs, ours in POOLINGS.items()}
    width = {"word_embedding_dimension": model.backbone.hidden_dim}
    _write_json(folder / "1_Pooling" / "config.json", width | pooling)
    length = (
        model.backbone.max_sequence_length
        if model.preprocessor is None
        else model.preprocessor.sequence_length
    )
    settings = {"max_seq_length": length, "do_lower_case": False}
    _write_json(folder / "sentence_bert_config.json", settings)


def _write_json(path: pathlib.Path, content):
    text = json.dumps(content, indent=2, ensure_ascii=False)
    path.write_text(f"{text}\n", encoding="utf-8")
