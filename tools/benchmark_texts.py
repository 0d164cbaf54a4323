"""Programs of `benchmark.py` on real texts, strings in: all-MiniLM-L6-v2 in three packages.

Batches are of 32. transformers pads a batch to its longest row; KerasHub to a fixed length, by
default 512. KerasHub's encoder has random weights, since it can't compute this model's exact
GELU. Each program returns a function that does the work once. `data` is a folder with `glue/SST-2`
in GLUE's layout and `squad/xquad.en.json`.
"""

import pathlib
import subprocess
import sys

import numpy as np
from benchmark_shapes import DECAY, NORM, RATE, SMALL, keras_hub_backbone

BATCH_SIZE = 32
PRESET = "all_minilm_l6_v2_en"
# Of the training phrases, as many as there are sentences to predict.
PHRASES = 872


def sst2(data, split):
    """Return SST-2's sentences and labels."""
    from keras_bert_zoo.data.glue import read_glue

    table = read_glue("SST-2", split, pathlib.Path(data) / "glue")
    labels = [int(label == "positive") for label in table["label"]]
    return table["text"][:PHRASES], np.array(labels[:PHRASES])


def passages(data):
    """Return XQuAD's passages, each once."""
    from keras_bert_zoo.data.squad import read_squad

    table = read_squad(str(pathlib.Path(data) / "squad" / "xquad.en.json"))
    return list(dict.fromkeys(table["context"]))


def checkpoint():
    """Return the folder of the weights, in transformers' layout."""
    from keras_bert_zoo.presets import find_card, resolve_card

    return str(resolve_card(find_card(PRESET)))


# === This package ===


def zoo_predict(data):
    """Return the classes' probabilities of SST-2's sentences."""
    import keras_bert_zoo as zoo

    texts, _ = sst2(data, "dev")
    classifier = zoo.from_preset(PRESET, "text_classifier", num_classes=2, sequence_length=128)
    return lambda: classifier.predict(texts, batch_size=BATCH_SIZE, verbose=0)


def zoo_fit(data, packed=False):
    """Train an epoch on SST-2's phrases as the command line does; `packed`: several to a row."""
    import keras_bert_zoo as zoo

    zoo.keep_freed_memory()
    texts, labels = sst2(data, "train")
    classifier = zoo.from_preset(PRESET, "text_classifier", num_classes=2, sequence_length=128)
    # A plain number would be the peak of a schedule of each `fit`, compiled anew each time.
    rate = zoo.training.WarmupLinearDecay(RATE, total_steps=10**6)
    classifier.compile(optimizer=zoo.training.adamw(rate, weight_decay=DECAY, clipnorm=NORM))
    return lambda: classifier.fit(texts, labels, batch_size=BATCH_SIZE, packed=packed, verbose=0)


def zoo_embed(data):
    """Return vectors of XQuAD's passages."""
    import keras_bert_zoo as zoo

    texts = passages(data)
    embedder = zoo.from_preset(PRESET, "text_embedder", sequence_length=512)
    return lambda: embedder.encode(texts, batch_size=BATCH_SIZE)


def zoo_load(data):
    """Load the encoder and its tokenizer."""
    import keras_bert_zoo as zoo

    return lambda: zoo.from_preset(PRESET)


# === KerasHub ===


def keras_hub_classifier(sequence_length):
    """Return its classifier, with its preprocessor."""
    import keras_hub

    from keras_bert_zoo import load_tokenizer

    models = keras_hub.models
    vocabulary = list(load_tokenizer(PRESET).vocabulary)
    length = {} if sequence_length is None else {"sequence_length": sequence_length}
    tokenizer = models.BertTokenizer(vocabulary, lowercase=True)
    preprocessor = models.BertTextClassifierPreprocessor(tokenizer, **length)
    return models.BertTextClassifier(keras_hub_backbone(SMALL), 2, preprocessor)


def keras_hub_predict(data, sequence_length=None):
    """Return the classes' probabilities of SST-2's sentences."""
    texts, _ = sst2(data, "dev")
    classifier = keras_hub_classifier(sequence_length)
    return lambda: classifier.predict(texts, batch_size=BATCH_SIZE, verbose=0)


def keras_hub_fit(data):
    """Train an epoch on SST-2's phrases, padded to 128."""
    import keras

    texts, labels = sst2(data, "train")
    classifier = keras_hub_classifier(128)
    classifier.compile(
        optimizer=keras.optimizers.AdamW(RATE, weight_decay=DECAY, global_clipnorm=NORM),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return lambda: classifier.fit(texts, labels, batch_size=BATCH_SIZE, verbose=0)


# === transformers ===


def transformers_model(name, **arguments):
    """Return its tokenizer and a model."""
    import transformers

    transformers.logging.set_verbosity_error()
    folder = checkpoint()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return tokenizer, getattr(transformers, name).from_pretrained(folder, **arguments)


def in_batches(tokenizer, texts, length, is_sorted, outputs):
    """Return the outputs of texts, in their order, from batches of like length if `is_sorted`."""
    import torch

    ids = tokenizer(texts, truncation=True, max_length=length)["input_ids"]
    order = np.arange(len(ids))
    if is_sorted:
        order = np.argsort([-len(row) for row in ids], kind="stable")
    found = []
    with torch.inference_mode():
        for start in range(0, len(order), BATCH_SIZE):
            rows = [ids[i] for i in order[start : start + BATCH_SIZE]]
            batch = tokenizer.pad({"input_ids": rows}, return_tensors="pt")
            found.append(outputs(batch).numpy())
    return np.concatenate(found)[np.argsort(order)]


def transformers_predict(data, is_sorted=False):
    """Return the classes' probabilities of SST-2's sentences."""
    texts, _ = sst2(data, "dev")
    tokenizer, model = transformers_model("AutoModelForSequenceClassification", num_labels=2)
    model.eval()

    def probabilities(batch):
        return model(**batch).logits.softmax(-1)

    return lambda: in_batches(tokenizer, texts, 128, is_sorted, probabilities)


def transformers_embed(data, is_sorted=False):
    """Return mean-pooled vectors of XQuAD's passages, of length 1."""
    import torch

    texts = passages(data)
    tokenizer, model = transformers_model("AutoModel")
    model.eval()

    def vectors(batch):
        mask = batch["attention_mask"][..., None]
        states = model(**batch).last_hidden_state
        return torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1))

    return lambda: in_batches(tokenizer, texts, 512, is_sorted, vectors)


def transformers_fit(data):
    """Train an epoch on SST-2's phrases, in an order drawn anew."""
    import torch

    texts, labels = sst2(data, "train")
    tokenizer, model = transformers_model("AutoModelForSequenceClassification", num_labels=2)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY)

    def run():
        ids = tokenizer(texts, truncation=True, max_length=128)["input_ids"]
        for part in torch.randperm(len(ids)).split(BATCH_SIZE):
            rows = [ids[i] for i in part]
            batch = tokenizer.pad({"input_ids": rows}, return_tensors="pt")
            model(**batch, labels=torch.tensor(labels[part])).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), NORM)
            optimizer.step()
            optimizer.zero_grad()

    return run


def transformers_load(data):
    """Load the encoder and its tokenizer."""
    return lambda: transformers_model("AutoModel")


# === Import ===


def import_of(package):
    """Return a program that starts Python and imports a package."""

    def program(data):
        return lambda: subprocess.run([sys.executable, "-c", f"import {package}"], check=True)

    return program
