"""Pre-train a BERT on raw text or on prepared examples, and save it as a preset."""

import time
from typing import NamedTuple

import keras
import numpy as np

from keras_bert_zoo.cli.output import positive_int, print_results, write_json
from keras_bert_zoo.data.documents import read_documents
from keras_bert_zoo.data.example_files import (
    example_batches,
    iterate_examples,
    read_manifest,
    read_tokenizer,
    split_shards,
)
from keras_bert_zoo.data.pretraining import (
    pretraining_examples,
    split_documents,
    tokenize_documents,
)
from keras_bert_zoo.data.vocabulary import train_vocabulary
from keras_bert_zoo.evaluation import unigram_entropy
from keras_bert_zoo.models import BertBackbone
from keras_bert_zoo.models.preset_folder import check_free
from keras_bert_zoo.preprocessing import BertTokenizer
from keras_bert_zoo.presets import TASKS
from keras_bert_zoo.training import WarmupLinearDecay, adamw

# Pairs are drawn from the held-out documents this often, for a steadier figure.
_EVALUATION_PASSES = 5


def add_arguments(parser) -> None:
    """Add the text, the model's size and the training settings."""
    add = parser.add_argument
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--text", nargs="+", help="text files, or folders of them")
    source.add_argument(
        "--examples",
        help="a folder that `prepare` filled; vocabulary, casing and length come from it",
    )
    add(
        "--held-out-examples",
        help="a folder of examples to score on; a share of the shards of --examples if not given",
    )
    add("--output", required=True, help="the preset's folder")
    add("--language", default="en", help="whose rules split the text into sentences")
    add(
        "--sentence-per-line",
        action="store_true",
        help="the text has a sentence a line and a blank line between documents",
    )
    add("--vocabulary", help="a vocab.txt; trained on the text if not given")
    add("--vocabulary-size", type=positive_int, default=8000, help="of a trained vocabulary")
    add("--cased", action="store_true", help="keep case and accents")
    add("--num-layers", type=positive_int, default=4)
    add("--num-heads", type=positive_int, default=4)
    add("--hidden-dim", type=positive_int, default=256)
    add("--intermediate-dim", type=positive_int, help="4 x hidden-dim if not given")
    add("--dropout", type=float, default=0.1)
    add("--sequence-length", type=positive_int, default=128)
    add(
        "--passes",
        type=positive_int,
        default=10,
        help="over the documents, with new pairs each time, or over the examples, with new masks",
    )
    add("--batch-size", type=positive_int, default=32)
    add("--learning-rate", type=float, default=1e-4, help="the peak, after the warm-up")
    add("--warmup", type=float, default=0.1, help="the climb's share of the steps")
    add("--held-out", type=float, default=0.1, help="share of documents, or shards, to score on")
    add("--seed", type=int, default=0)


class _Data(NamedTuple):
    """What to train and to score on: arguments of `fit` and `evaluate`, and what is known."""

    tokenizer: BertTokenizer
    sequence_length: int
    task: str
    fit: dict
    evaluate: dict
    facts: dict
    held_out_pieces: list[int]
    held_out_labels: list[int]


def run(arguments) -> None:
    """Read, train, score on what was held out, save."""
    check_free(arguments.output)
    keras.utils.set_random_seed(arguments.seed)
    data = _from_examples(arguments) if arguments.examples else _from_text(arguments)
    tokenizer, length = data.tokenizer, data.sequence_length
    backbone = BertBackbone(
        vocabulary_size=tokenizer.vocabulary_size,
        num_layers=arguments.num_layers,
        num_heads=arguments.num_heads,
        hidden_dim=arguments.hidden_dim,
        intermediate_dim=arguments.intermediate_dim or 4 * arguments.hidden_dim,
        dropout=arguments.dropout,
        attention_dropout=arguments.dropout,
        max_sequence_length=max(512, length),
    )
    # Full rows are the rule here, so one length costs little and is one program to compile.
    model_class, preprocessor_class = TASKS[data.task]
    preprocessor = preprocessor_class(tokenizer, length, buckets=[], seed=arguments.seed)
    model = model_class(backbone, preprocessor)
    learning_rate = WarmupLinearDecay(arguments.learning_rate, arguments.warmup)
    model.compile(optimizer=adamw(learning_rate))
    facts = ", ".join(f"{count:,} {name}" for name, count in data.facts.items())
    print(
        f"Pre-training {backbone.count_params():,} parameters on {keras.backend.backend()}: "
        f"{facts}."
    )
    start = time.perf_counter()
    model.fit(**data.fit)
    seconds = time.perf_counter() - start

    scores = model.evaluate(**data.evaluate, return_dict=True, verbose=0)
    # A model of one task has no task's name before its scores.
    prefix = "masked_lm_" if data.task == "pretrainer" else ""
    results = {
        "backend": keras.backend.backend(),
        "parameters": backbone.count_params(),
        **data.facts,
        "seconds": seconds,
        "held-out masked-LM loss (nats)": float(scores[f"{prefix}loss"]),
        "unigram entropy of the held-out text (nats)": unigram_entropy(data.held_out_pieces),
        "held-out masked-LM accuracy": float(scores[f"{prefix}accuracy"]),
    }
    if data.task == "pretrainer":
        share = float(np.mean(data.held_out_labels))
        results |= {
            "held-out next-sentence accuracy": float(scores["next_sentence_accuracy"]),
            "its standard error at chance": float(0.5 / np.sqrt(len(data.held_out_labels))),
            "share of the larger next-sentence class": max(share, 1 - share),
        }
    print_results(results, "pre-training")
    write_json(results, arguments.json)
    model.save_to_preset(arguments.output)
    print(f"Saved to {arguments.output}")


def _from_text(arguments):
    language = None if arguments.sentence_per_line else arguments.language
    documents = read_documents(arguments.text, language)
    train, held_out = split_documents(documents, arguments.held_out, arguments.seed)
    lowercase = not arguments.cased
    vocabulary = arguments.vocabulary or train_vocabulary(
        (s for document in train for s in document), arguments.vocabulary_size, lowercase
    )
    tokenizer = BertTokenizer(vocabulary, lowercase=lowercase)
    length, seed, batch_size = arguments.sequence_length, arguments.seed, arguments.batch_size
    pairs, labels = pretraining_examples(
        train, tokenizer, length, duplicates=arguments.passes, seed=seed
    )
    held_out_pairs, held_out_labels = pretraining_examples(
        held_out, tokenizer, length, duplicates=_EVALUATION_PASSES, seed=seed
    )
    pieces = [
        piece
        for document in tokenize_documents(held_out, tokenizer)
        for sentence in document
        for piece in sentence
    ]
    return _Data(
        tokenizer,
        length,
        "pretrainer",
        {"x": pairs, "y": labels, "batch_size": batch_size, "shuffle": True, "seed": seed},
        {"x": held_out_pairs, "y": held_out_labels, "batch_size": batch_size},
        {
            "training documents": len(train),
            "held-out documents": len(held_out),
            "training pairs": len(labels),
            "held-out pairs": len(held_out_labels),
        },
        pieces,
        held_out_labels,
    )


def _from_examples(arguments):
    manifest = read_manifest(arguments.examples)
    settings = manifest["settings"]
    folder, shards, held_out_shards = arguments.held_out_examples, None, None
    if folder is None:
        folder = arguments.examples
        shards, held_out_shards = split_shards(manifest, arguments.held_out, arguments.seed)
    held_out = read_manifest(folder)["settings"]
    for name in ("vocabulary_sha256", "tokenizer", "objective"):
        if held_out[name] != settings[name]:
            raise ValueError(
                f"The examples to train and to score on differ in {name}: {settings[name]!r} and "
                f"{held_out[name]!r}."
            )
    tokenizer = read_tokenizer(arguments.examples)
    passes, batch_size, seed = arguments.passes, arguments.batch_size, arguments.seed
    lengths = {"batch_size": batch_size, "buckets": [], "seed": seed}
    train = example_batches(arguments.examples, shards=shards, epochs=passes, **lengths)
    # What is not masked yet is masked anew in each pass.
    repeats = _EVALUATION_PASSES if held_out["masking"] is None else 1
    evaluation = example_batches(
        folder, shards=held_out_shards, epochs=repeats, shuffle=False, **lengths
    )
    special = set(tokenizer.special_token_ids)
    pieces, labels = [], []
    for example in iterate_examples(folder, held_out_shards):
        token_ids = example["token_ids"]
        if "mask_ids" in example:
            token_ids[example["mask_positions"]] = example["mask_ids"]
        pieces += [piece for piece in token_ids.tolist() if piece not in special]
        labels += example.get("next_sentence", np.zeros(1)).tolist()
    counts = manifest["examples_by_shard"]
    return _Data(
        tokenizer,
        max(settings["sequence_length"], held_out["sequence_length"]),
        "masked_lm" if settings["objective"] == "single" else "pretrainer",
        {"x": train, "epochs": passes, "steps_per_epoch": int(train.cardinality()) // passes},
        {"x": evaluation},
        {
            "training examples": sum(counts if shards is None else [counts[n] for n in shards]),
            "held-out examples": len(labels),
        },
        pieces,
        labels,
    )
