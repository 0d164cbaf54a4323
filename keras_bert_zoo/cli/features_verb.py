"""Write the features of texts, or of their words, that an encoder gives them."""

import json
import logging

import numpy as np

from keras_bert_zoo.cli.inputs import add_input
from keras_bert_zoo.cli.output import positive_int, print_results, write_json
from keras_bert_zoo.data.sources import Columns, read_examples
from keras_bert_zoo.models import whole_folder
from keras_bert_zoo.presets import from_preset

FORMAT = "keras_bert_zoo text features"
_MANIFEST = "features.json"


def add_arguments(parser) -> None:
    """Add the encoder, the data, and which of its states are meant."""
    add = parser.add_argument
    add("--preset", required=True, help="a preset's name, a folder, or hf://owner/name")
    add_input(parser, required=True)
    add("--output", required=True, help="the folder to write: features.npy and features.json")
    add("--pooling", choices=["mean", "max", "cls", "pooled"], help="None is the preset's, or mean")
    add(
        "--layers",
        help="last, second_to_last, concat_last_four, ...; None is the preset's, or last",
    )
    add("--normalize", action="store_true", help="divide each vector by its length")
    add("--words", action="store_true", help="the states of every layer of each word, unpooled")
    add("--sequence-length", type=positive_int, default=128)
    add("--batch-size", type=positive_int, default=32)


def run(arguments) -> None:
    """Read, encode in inference mode, write."""
    from keras_bert_zoo.training.finetuning import model_facts
    from keras_bert_zoo.training.finetuning_data import data_facts

    # What is new in a model without a head, a pooler, is of use to no feature but one.
    logging.getLogger("keras_bert_zoo").setLevel(logging.WARNING)
    columns = Columns(arguments.text, arguments.second, None, arguments.id)
    examples = read_examples(arguments.input, "train", arguments.task, columns)
    data = data_facts({"texts": examples})
    if arguments.words:
        results = _words(arguments, examples)
    else:
        results = _texts(arguments, examples, data, model_facts)
    print_results({**results, "folder": arguments.output}, "features")
    write_json({**results, "data": data}, arguments.json)


def _texts(arguments, examples, data, model_facts):
    folder = whole_folder.check_free(arguments.output, _is_features, "a folder of text features")
    asked = {name: getattr(arguments, name) for name in ("pooling", "layers", "normalize")}
    embedder = from_preset(
        arguments.preset,
        "text_embedder",
        sequence_length=arguments.sequence_length,
        **{name: value for name, value in asked.items() if value},
    )
    texts = examples.texts
    x = texts[0] if len(texts) == 1 else tuple(texts)
    vectors = embedder.encode(x, arguments.batch_size)
    manifest = {
        "format": FORMAT,
        **model_facts(arguments.preset, embedder),
        "encoder_is_trained_here": False,
        "layers": embedder.layer_way,
        "position": embedder.pooling,
        "normalize": embedder.normalize,
        "shape": list(vectors.shape),
        "dtype": str(vectors.dtype),
        "data": data,
        "ids": examples.ids,
    }
    with whole_folder.written_whole(folder) as building:
        np.save(building / "features.npy", vectors)
        text = json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"
        (building / _MANIFEST).write_text(text, encoding="utf-8")
    names = ("layers", "position", "sequence_length", "encoder_sha256")
    size = {"texts": len(vectors), "width": vectors.shape[1]}
    return {**size, **{name: manifest[name] for name in names}}


def _words(arguments, examples):
    from keras_bert_zoo.models.features import cached_word_features

    if len(examples.columns) != 1 or arguments.pooling or arguments.layers:
        raise ValueError("--words takes single texts, and no --pooling or --layers.")
    features = cached_word_features(
        from_preset(arguments.preset),
        examples.x,
        arguments.output,
        sequence_length=arguments.sequence_length,
        batch_size=arguments.batch_size,
    )
    names = ("sentences", "words", "hidden_dim", "position", "sequence_length", "encoder_sha256")
    return {name: features.manifest[name] for name in names}


def _is_features(folder):
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return manifest.get("format") == FORMAT
