"""Features: an encoder's states, computed once in inference mode, and a head trained on them."""

import hashlib
import json
import os
import pathlib
from collections.abc import Sequence

import keras
import numpy as np

from keras_bert_zoo.layers.common import check_positive_int
from keras_bert_zoo.layers.layer_mix import layer_numbers
from keras_bert_zoo.models import whole_folder
from keras_bert_zoo.models.text_embedder import BertTextEmbedder
from keras_bert_zoo.preprocessing.token_classification import (
    INPUTS,
    BertTokenClassifierPreprocessor,
    word_rows,
)
from keras_bert_zoo.training.optimizer import WarmupLinearDecay, adamw

FORMAT = "keras_bert_zoo word features"
_MANIFEST = "features.json"
# Sentences that are encoded together, those of like length in the same batches.
_CHUNK = 2048


class WordFeatures:
    """States of the words of sentences, read from the files of a folder as they are asked for.

    Attributes:
        manifest: what the features are of: encoder, vocabulary, sentences, layers, and how a word
            is read.
        word_counts: integers (sentences,).
    """

    def __init__(self, folder: str | os.PathLike):
        folder = pathlib.Path(folder)
        self.manifest = _read_manifest(folder)
        if self.manifest is None:
            raise ValueError(f"{str(folder)!r} holds no word features.")
        self.word_counts = np.load(folder / "word_counts.npy")
        self._ends = np.cumsum(self.word_counts)
        self._states = {
            number: np.load(folder / _file(number), mmap_mode="r")
            for number in self.manifest["layers"]
        }

    def __len__(self) -> int:
        """Return the number of sentences."""
        return len(self.word_counts)

    def batch(self, sentences: Sequence[int], layers: str) -> np.ndarray:
        """Return the states of some sentences' words, filled up with 0 behind a sentence's last.

        Args:
            sentences: their numbers.
            layers: a way of table 7, as `LayerMix` takes it.

        Returns:
            float32 (sentences, words, layers, hidden_dim).

        Raises:
            ValueError: the way reads layers that were not kept.
        """
        numbers = layer_numbers(layers, self.manifest["num_layers"])
        missing = [number for number in numbers if number not in self._states]
        if missing:
            raise ValueError(f"`layers` is {layers!r}, but the states {missing} were not kept.")
        counts = self.word_counts[sentences]
        width = self.manifest["hidden_dim"]
        states = np.zeros((len(counts), counts.max(initial=0), len(numbers), width), "float32")
        for row, (end, count) in enumerate(zip(self._ends[sentences], counts, strict=True)):
            for place, number in enumerate(numbers):
                states[row, :count, place] = self._states[number][end - count : end]
        return states


def cached_word_features(
    model: keras.Model,
    sentences: Sequence,
    folder: str | os.PathLike,
    *,
    layers: Sequence[int] | None = None,
    sequence_length: int | None = None,
    batch_size: int = 32,
    dtype: str = "float16",
) -> WordFeatures:
    """Return the states of words, from `folder` where they are, else computed and written there.

    A word's state is that of its first piece (Devlin et al. 2018, section 5.3), and in a sentence
    too long for a row that in the window that shows it in most context. The folder appears
    whole or not at all, a `.npy` file a layer.

    Args:
        model: a model with a preprocessor; its encoder runs without dropout or gradients.
        sentences: lists of words, or texts, which are split at white space.
        folder: a path that is new, empty or that this function wrote. Features of anything else
            there, other weights or other sentences, are replaced.
        layers: which states, 0 for the embeddings' up to `num_layers`; all if None.
        sequence_length: of the rows; the preprocessor's if None.
        batch_size: rows of a batch.
        dtype: `"float16"`, which rounds to three digits, or `"float32"`.

    Raises:
        ValueError: an argument is out of range, or `folder` holds something else.

    Example:
        >>> import os, tempfile
        >>> tokenizer = BertTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "ni", "##els"],
        ...     lowercase=True)
        >>> backbone = BertBackbone(
        ...     vocabulary_size=8, num_layers=1, num_heads=2, hidden_dim=4, intermediate_dim=8,
        ...     preprocessor=BertPreprocessor(tokenizer, 16))
        >>> features = cached_word_features(
        ...     backbone, [["hello", "niels"], ["niels"]], os.path.join(tempfile.mkdtemp(), "new"))
        >>> features.batch([0, 1], "last").shape
        (2, 2, 1, 4)
    """
    backbone = getattr(model, "backbone", model)
    if model.preprocessor is None:
        raise ValueError("`model` must have a preprocessor, which makes ids of the words.")
    if dtype not in ("float16", "float32"):
        raise ValueError(f"`dtype` must be 'float16' or 'float32'. Received: {dtype!r}.")
    check_positive_int(batch_size=batch_size)
    every = range(backbone.num_layers + 1)
    numbers = list(every) if layers is None else sorted(set(layers))
    if not numbers or not set(numbers) <= set(every):
        raise ValueError(
            f"`layers` must be numbers from 0 to {backbone.num_layers}. Received: {layers!r}."
        )
    preprocessor = BertTokenClassifierPreprocessor(
        model.preprocessor.tokenizer, sequence_length or model.preprocessor.sequence_length
    )
    words = word_rows(sentences)
    counts = words.row_lengths().numpy()
    if not counts.sum():
        raise ValueError("`sentences` has no words.")
    manifest = {
        "format": FORMAT,
        "encoder": type(backbone).__name__,
        "encoder_sha256": _hash_of(
            np.ascontiguousarray(keras.ops.convert_to_numpy(weight.value))
            for weight in sorted(backbone.weights, key=lambda weight: weight.path)
        ),
        "encoder_is_trained_here": False,
        "num_layers": backbone.num_layers,
        "hidden_dim": backbone.hidden_dim,
        "vocabulary_sha256": _hash_of(
            piece.encode() for piece in preprocessor.tokenizer.vocabulary
        ),
        "lowercase": preprocessor.tokenizer.lowercase,
        "sentences": len(counts),
        "words": int(counts.sum()),
        "sentences_sha256": _hash_of([*words.flat_values.numpy(), counts]),
        "sequence_length": preprocessor.sequence_length,
        "position": "the word's first piece, in the window with most context",
        "layers": numbers,
        "dtype": dtype,
    }
    folder = whole_folder.check_free(
        folder, lambda folder: _read_manifest(folder) is not None, "a folder of word features"
    )
    if _read_manifest(folder) != manifest:
        with whole_folder.written_whole(folder) as building:
            _write(building, backbone, preprocessor, words, manifest, batch_size)
    return WordFeatures(folder)


def _write(folder, backbone, preprocessor, words, manifest, batch_size):
    counts = words.row_lengths().numpy()
    np.save(folder / "word_counts.npy", counts)
    numbers, shape = manifest["layers"], (manifest["words"], manifest["hidden_dim"])
    files = {
        number: np.lib.format.open_memmap(folder / _file(number), "w+", manifest["dtype"], shape)
        for number in numbers
    }
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in INPUTS}
    states = backbone.layer_states(inputs)
    encoder = keras.Model(inputs, {str(number): states[number] for number in numbers})
    first = 0
    for start in range(0, len(counts), _CHUNK):
        chunk = words[start : start + _CHUNK]
        rows = {name: value.numpy() for name, value in preprocessor.slide(chunk).items()}
        # Each word's place among all.
        starts = first + chunk.row_starts().numpy()
        places = starts[rows["example_ids"]][:, None] + rows["word_ids"]
        for part, length in preprocessor.rows_of_like_length(rows["padding_mask"]):
            batch = {name: rows[name][part, :length] for name in INPUTS}
            found = encoder.predict(batch, batch_size=batch_size, verbose=0)
            is_first = rows["is_tagged"][part, :length] == 1
            for number, file in files.items():
                file[places[part, :length][is_first]] = found[str(number)][is_first]
        first += int(chunk.row_splits[-1])
    for file in files.values():
        file.flush()
    (folder / _MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def _file(number):
    return f"layer_{number:02}.npy"


def _read_manifest(folder):
    try:
        manifest = json.loads((pathlib.Path(folder) / _MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return manifest if manifest.get("format") == FORMAT else None


def _hash_of(parts):
    digest = hashlib.sha256()
    for part in parts:
        content = memoryview(part).cast("B") if isinstance(part, np.ndarray) else part
        # Their lengths too, so that no other cutting of the same bytes is taken for this one.
        digest.update(len(content).to_bytes(8, "little"))
        digest.update(content)
    return digest.hexdigest()


# === A head on features ===


def fit_head(
    classifier: keras.Model,
    x,
    y,
    *,
    learning_rate: float = 1e-3,
    batch_size: int = 32,
    epochs: int = 10,
    validation_data: tuple | None = None,
    **fit_arguments,
) -> keras.callbacks.History:
    """Train a text classifier's head on features that are computed once.

    The encoder runs over each text once, without dropout or gradients, whatever the number of
    epochs, and stays as it is; the head is the classifier's own, so it predicts from texts
    afterwards.

    Args:
        classifier: a `BertTextClassifier`.
        x, y: texts and labels, or ids, as its `fit` takes them.
        learning_rate: the peak; a head begins from nothing, so it is higher than for the encoder.
        batch_size, epochs: as for `fit`.
        validation_data: (x, y), or None.
        **fit_arguments: Keras's, such as `callbacks` or `class_weight`.

    Returns:
        The history of the head's `fit`.

    Raises:
        ValueError: `classifier` is no text classifier or learns a sum of layers, or a label is no
            class.

    Example:
        >>> import numpy as np
        >>> backbone = BertBackbone(
        ...     vocabulary_size=100, num_layers=1, num_heads=2, hidden_dim=4, intermediate_dim=8)
        >>> classifier = BertTextClassifier(backbone, num_classes=2)
        >>> ids = np.ones((4, 3), "int32")
        >>> inputs = {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": ids}
        >>> history = fit_head(classifier, inputs, np.array([0, 1, 1, 0]), epochs=2, verbose=0)
        >>> len(history.history["loss"])
        2
    """
    if type(classifier).__name__ != "BertTextClassifier":
        raise ValueError(
            f"`classifier` must be a `BertTextClassifier`. Received: {type(classifier).__name__}."
        )
    if len(classifier.heads) > 1:
        raise ValueError(
            f"`classifier` has layers={classifier.layer_way!r}, whose weights are learnt: its head "
            "has no features that could be computed once. Train the head with `fit`."
        )
    embedder = BertTextEmbedder(
        classifier.backbone,
        classifier.preprocessor,
        pooling=classifier.pooling,
        layers=classifier.layer_way,
    )

    def features(x, y):
        classifier.check_labels(y)
        y = np.asarray(y)
        y = y[:, None] if classifier.num_classes == 1 and y.ndim == 1 else y
        return embedder.predict(x, batch_size=batch_size, verbose=0), y

    states, y = features(x, y)
    if validation_data is not None:
        validation_data = features(*validation_data)
    inputs = keras.Input(states.shape[1:])
    rate = classifier.backbone.dropout if classifier.dropout is None else classifier.dropout
    head = keras.Model(inputs, classifier.classifier_head(keras.layers.Dropout(rate)(inputs)))
    steps = -(-len(states) // batch_size) * epochs
    schedule = WarmupLinearDecay(learning_rate, total_steps=steps)
    head.compile(optimizer=adamw(schedule), **classifier.defaults())
    return head.fit(
        states,
        y,
        batch_size=batch_size,
        epochs=epochs,
        validation_data=validation_data,
        **fit_arguments,
    )
