"""Pre-train a BERT on raw text, with masked LM and next sentence, and save it as a preset."""

import time

import keras
import numpy as np

from keras_bert_zoo.cli.output import positive_int, print_results, write_json
from keras_bert_zoo.data.documents import read_documents
from keras_bert_zoo.data.pretraining import (
    pretraining_examples,
    split_documents,
    tokenize_documents,
)
from keras_bert_zoo.data.vocabulary import train_vocabulary
from keras_bert_zoo.evaluation import unigram_entropy
from keras_bert_zoo.models import BertBackbone, BertPretrainer
from keras_bert_zoo.models.preset_folder import check_free
from keras_bert_zoo.preprocessing import BertPretrainerPreprocessor, BertTokenizer
from keras_bert_zoo.training import WarmupLinearDecay, adamw

# Pairs are drawn from the held-out documents this often, for a steadier figure.
_EVALUATION_PASSES = 5


def add_arguments(parser) -> None:
    """Add the text, the model's size and the training settings."""
    add = parser.add_argument
    add("--text", nargs="+", required=True, help="text files, or folders of .txt files")
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
        help="over the documents, with new pairs each time",
    )
    add("--batch-size", type=positive_int, default=32)
    add("--learning-rate", type=float, default=1e-4, help="the peak, after the warm-up")
    add("--warmup", type=float, default=0.1, help="the climb's share of the steps")
    add("--held-out", type=float, default=0.1, help="share of documents to score on")
    add("--seed", type=int, default=0)


def run(arguments) -> None:
    """Read, train, score on held-out documents, save."""
    check_free(arguments.output)
    keras.utils.set_random_seed(arguments.seed)
    language = None if arguments.sentence_per_line else arguments.language
    documents = read_documents(arguments.text, language)
    train, held_out = split_documents(documents, arguments.held_out, arguments.seed)
    lowercase = not arguments.cased
    vocabulary = arguments.vocabulary or train_vocabulary(
        (s for document in train for s in document), arguments.vocabulary_size, lowercase
    )
    tokenizer = BertTokenizer(vocabulary, lowercase=lowercase)
    length, seed = arguments.sequence_length, arguments.seed
    pairs, labels = pretraining_examples(
        train, tokenizer, length, duplicates=arguments.passes, seed=seed
    )
    held_out_pairs, held_out_labels = pretraining_examples(
        held_out, tokenizer, length, duplicates=_EVALUATION_PASSES, seed=seed
    )

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
    preprocessor = BertPretrainerPreprocessor(tokenizer, length, buckets=[], seed=seed)
    pretrainer = BertPretrainer(backbone, preprocessor)
    learning_rate = WarmupLinearDecay(arguments.learning_rate, arguments.warmup)
    pretrainer.compile(optimizer=adamw(learning_rate))
    print(
        f"Pre-training {backbone.count_params():,} parameters on {keras.backend.backend()}: "
        f"{len(labels):,} pairs from {len(train)} documents, {len(held_out)} held out."
    )
    start = time.perf_counter()
    pretrainer.fit(pairs, labels, batch_size=arguments.batch_size, shuffle=True, seed=seed)
    seconds = time.perf_counter() - start

    scores = pretrainer.evaluate(
        held_out_pairs,
        held_out_labels,
        batch_size=arguments.batch_size,
        return_dict=True,
        verbose=0,
    )
    pieces = [
        piece
        for document in tokenize_documents(held_out, tokenizer)
        for sentence in document
        for piece in sentence
    ]
    count = len(held_out_labels)
    results = {
        "backend": keras.backend.backend(),
        "parameters": backbone.count_params(),
        "training documents": len(train),
        "held-out documents": len(held_out),
        "training pairs": len(labels),
        "held-out pairs": count,
        "seconds": seconds,
        "held-out masked-LM loss (nats)": float(scores["masked_lm_loss"]),
        "unigram entropy of the held-out text (nats)": unigram_entropy(pieces),
        "held-out masked-LM accuracy": float(scores["masked_lm_accuracy"]),
        "held-out next-sentence accuracy": float(scores["next_sentence_accuracy"]),
        "its standard error at chance": float(0.5 / np.sqrt(count)),
        "share of the larger next-sentence class": float(
            max(np.mean(held_out_labels), 1 - np.mean(held_out_labels))
        ),
    }
    print_results(results, "pre-training")
    write_json(results, arguments.json)
    pretrainer.save_to_preset(arguments.output)
    print(f"Saved to {arguments.output}")
