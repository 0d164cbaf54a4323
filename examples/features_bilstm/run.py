"""Tag names with a BiLSTM on a frozen encoder's states, in the six ways of the paper's table 7.

    python examples/features_bilstm/run.py --preset bert_base_en_cased --train train.conll \
        --dev dev.conll

The states of both files' words are computed once and kept in `--output`; each way then trains
a BiLSTM on them (Devlin et al. 2018, section 5.3). README.md says what is the paper's and what
is not.
"""

import argparse
import json
import pathlib
import time

import keras
import numpy as np

from keras_bert_zoo import from_preset
from keras_bert_zoo.cli.output import positive_int, print_table, write_json
from keras_bert_zoo.data import read_conll, tag_names
from keras_bert_zoo.evaluation import span_scores
from keras_bert_zoo.layers.layer_mix import LAYER_WAYS, LayerMix, layer_numbers
from keras_bert_zoo.models import WordFeatures, cached_word_features
from keras_bert_zoo.training import parameter_counts

# F1 on CoNLL-2003's dev set, BASE.
PAPER = {
    "embeddings": 91.0,
    "second_to_last": 95.6,
    "last": 94.9,
    "weighted_last_four": 95.9,
    "concat_last_four": 96.1,
    "weighted_all": 95.5,
}


class Batches(keras.utils.PyDataset):
    """Batches of states, tags and weights, each as long as its longest sentence or a bit longer."""

    def __init__(self, features: WordFeatures, tags, layers: str, batch_size: int, seed=None):
        super().__init__()
        self.features, self.tags, self.layers = features, tags, layers
        self.rng = None if seed is None else np.random.default_rng(seed)
        self.batch_size = batch_size
        self.on_epoch_end()

    def on_epoch_end(self):
        """Put the sentences in a new order, if they have a seed."""
        order = np.arange(len(self.features))
        if self.rng is not None:
            self.rng.shuffle(order)
        self.batches = [
            order[start : start + self.batch_size]
            for start in range(0, len(order), self.batch_size)
        ]

    def __len__(self):
        """Return the number of batches."""
        return len(self.batches)

    def __getitem__(self, index):
        """Return a batch."""
        rows = self.batches[index]
        states = self.features.batch(rows, self.layers)
        # A few lengths only, each of which is compiled once.
        length = -(-states.shape[1] // 16) * 16
        states = np.pad(states, ((0, 0), (0, length - states.shape[1]), (0, 0), (0, 0)))
        labels, weights = np.zeros((2, len(rows), length), "int32")
        for place, row in enumerate(rows):
            labels[place, : len(self.tags[row])] = self.tags[row]
            weights[place, : len(self.tags[row])] = 1
        return {"states": states, "is_word": weights}, labels, weights


def bilstm(layers: str, states: int, width: int, tags: int, arguments) -> keras.Model:
    """Return the tagger: mixed states, BiLSTMs one on another, a dense layer, no CRF."""
    inputs = {
        "states": keras.Input((None, states, width), name="states"),
        "is_word": keras.Input((None,), dtype="int32", name="is_word"),
    }
    x = LayerMix(layers, name="layer_mix")(inputs["states"])
    mask = keras.ops.cast(inputs["is_word"], "bool")
    for _ in range(arguments.lstm_layers):
        x = keras.layers.Dropout(arguments.dropout)(x)
        lstm = keras.layers.LSTM(arguments.units, return_sequences=True)
        x = keras.layers.Bidirectional(lstm)(x, mask=mask)
    outputs = keras.layers.Dense(tags)(keras.layers.Dropout(arguments.dropout)(x))
    model = keras.Model(inputs, outputs)
    model.compile(
        optimizer=keras.optimizers.Adam(arguments.learning_rate, global_clipnorm=1.0),
        loss=keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction="mean_with_sample_weight"
        ),
    )
    return model


def one_run(layers, seed, parts, names, arguments) -> dict:
    """Train one way with one seed; return its scores on dev after the last epoch."""
    keras.utils.set_random_seed(seed)
    train, dev = parts["train"], parts["dev"]
    ids = {name: number for number, name in enumerate(names)}
    manifest = train["features"].manifest
    states = len(layer_numbers(layers, manifest["num_layers"]))
    model = bilstm(layers, states, manifest["hidden_dim"], len(names), arguments)
    labels = [[ids[tag] for tag in row] for row in train["tags"]]
    start = time.perf_counter()
    history = model.fit(
        Batches(train["features"], labels, layers, arguments.batch_size, seed),
        epochs=arguments.epochs,
        verbose=0,
    )
    seconds = time.perf_counter() - start
    batches = Batches(dev["features"], [[0] * len(row) for row in dev["tags"]], layers, 64)
    predicted = []
    for index in range(len(batches)):
        inputs, _, weights = batches[index]
        best = np.argmax(model.predict_on_batch(inputs), axis=-1)
        predicted += [
            [names[tag] for tag in row[: count.sum()]]
            for row, count in zip(best, weights, strict=True)
        ]
    scores = span_scores(dev["tags"], predicted)
    return {
        "layers": layers,
        "seed": seed,
        "trained parameters": parameter_counts(model).trainable,
        "seconds": seconds,
        "loss": history.history["loss"][-1],
        "dev": {name: scores[name] for name in ("f1", "precision", "recall", "accuracy")},
        "errors": [i for i, row in enumerate(dev["tags"]) if row != predicted[i]],
    }


def main(arguments=None) -> None:
    """Read, encode once, train each way with each seed, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--preset", required=True, help="what `from_preset` takes")
    add("--train", required=True, help="a CoNLL-format file")
    add("--dev", required=True, help="the file to score on")
    add("--ways", nargs="+", choices=list(LAYER_WAYS), default=list(LAYER_WAYS))
    add("--seeds", nargs="+", type=int, default=[0, 1, 2])
    add("--units", type=positive_int, default=768, help="of each direction of a BiLSTM")
    add("--lstm-layers", type=positive_int, default=2)
    add("--dropout", type=float, default=0.5)
    add("--epochs", type=positive_int, default=10)
    add("--batch-size", type=positive_int, default=32)
    add("--learning-rate", type=float, default=1e-3)
    add("--sequence-length", type=positive_int, default=128)
    add("--output", default="features_bilstm", help="the folder of features and results")
    arguments = parser.parse_args(arguments)
    output = pathlib.Path(arguments.output)
    encoder = from_preset(arguments.preset)
    parts = {}
    for part in ("train", "dev"):
        sentences, tags = read_conll(getattr(arguments, part))
        features = cached_word_features(
            encoder,
            sentences,
            output / part,
            layers=sorted(
                {n for w in arguments.ways for n in layer_numbers(w, encoder.num_layers)}
            ),
            sequence_length=arguments.sequence_length,
        )
        parts[part] = {"tags": tags, "features": features}
    names = tag_names(parts["train"]["tags"])
    runs, rows = [], []
    for layers in arguments.ways:
        found = [one_run(layers, seed, parts, names, arguments) for seed in arguments.seeds]
        runs += found
        scores = 100 * np.array([run["dev"]["f1"] for run in found])
        deviation = f"{scores.std(ddof=1):.1f}" if len(scores) > 1 else "one seed"
        rows.append(
            {
                "states": layers.replace("_", " "),
                "dev F1": f"{scores.mean():.1f}",
                "deviation": deviation,
                "paper": f"{PAPER[layers]:.1f}",
            }
        )
        print(f"{layers}: dev F1 {scores.mean():.1f}", flush=True)
        results = {
            "settings": vars(arguments),
            "features": {part: found["features"].manifest for part, found in parts.items()},
            "tags": names,
            "runs": runs,
        }
        write_json(json.loads(json.dumps(results)), str(output / "results.json"))
    print_table(rows, f"A BiLSTM on states of {arguments.preset}; the paper's are of CoNLL-2003")


if __name__ == "__main__":
    main()
