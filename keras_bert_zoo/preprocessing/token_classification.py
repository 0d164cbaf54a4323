"""Sentences of words to model inputs, with a label a word."""

from collections.abc import Sequence

import keras
import numpy as np

from keras_bert_zoo.layers.common import check_positive_int
from keras_bert_zoo.preprocessing.lazy_tensorflow import tf
from keras_bert_zoo.preprocessing.packing import pack
from keras_bert_zoo.preprocessing.preprocessor import BertPreprocessor, to_backend
from keras_bert_zoo.preprocessing.string_rows import is_rows, string_rows
from keras_bert_zoo.preprocessing.texts import string_tensor
from keras_bert_zoo.preprocessing.tokenizer import BertTokenizer
from keras_bert_zoo.preprocessing.windows import slide

INPUTS = ("token_ids", "segment_ids", "padding_mask")

# Sentences that are cut into windows at once: it bounds the memory.
_CHUNK = 4096


@keras.saving.register_keras_serializable("keras_bert_zoo")
class BertTokenClassifierPreprocessor(BertPreprocessor):
    """Sentences for `BertTokenClassifier`: `[CLS] pieces of the words [SEP]`.

    A word is tagged by its first piece (Devlin et al. 2018, section 5.3); a word of which
    nothing is left, a control character, is `[UNK]`. A sentence too long for a row takes
    several, overlapping windows of it, and each of its words is tagged in the one window that
    shows its first piece in most context. So every word has one label in the loss and one tag.

    Args:
        tokenizer: a `BertTokenizer`.
        sequence_length, buckets: as for `BertPreprocessor`.
        stride: pieces from a window's start to that of the next; None for half of what a row
            holds.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> tokenizer = BertTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "ni", "##els"],
        ...     lowercase=True)
        >>> preprocessor = BertTokenClassifierPreprocessor(tokenizer, sequence_length=16)
        >>> windows = preprocessor.windows([["hello", "niels"]])
        >>> keras.ops.convert_to_numpy(windows["token_ids"]).tolist()
        [[2, 5, 6, 7, 3, 0, 0, 0]]
        >>> keras.ops.convert_to_numpy(windows["word_ids"]).tolist()
        [[-1, 0, 1, 1, -1, -1, -1, -1]]
        >>> keras.ops.convert_to_numpy(windows["is_tagged"]).tolist()
        [[0, 1, 1, 0, 0, 0, 0, 0]]
    """

    def __init__(
        self,
        tokenizer: BertTokenizer,
        sequence_length: int = 512,
        buckets: Sequence[int] | None = None,
        stride: int | None = None,
    ):
        super().__init__(tokenizer, sequence_length, buckets)
        if stride is not None:
            check_positive_int(stride=stride)
        self.stride = stride

    def __call__(self, words) -> dict:
        """Return the inputs of sentences, a row a window; of short ones, a row a sentence.

        Args:
            words: a list of lists of words, a ragged string tensor (batch, words), or texts,
                which are split at white space: a string, or a list or tensor of strings.

        Returns:
            `token_ids`, `segment_ids` and `padding_mask`, integer tensors (rows, length) of
            the current backend (of TensorFlow inside its graphs).

        Raises:
            TypeError: a word is not a string, named by its place.
        """
        windows = self.windows(words)
        return {name: windows[name] for name in INPUTS}

    def windows(self, words) -> dict:
        """Return the rows of sentences, and which word stands where.

        Args:
            words: as in a call.

        Returns:
            What a call returns, and integer tensors: `example_ids` (rows,), which sentence a
            row is of; `word_ids` (rows, length), the word of its sentence that a piece is of,
            -1 where there is none; `is_tagged` (rows, length), 1 at the one piece that a word
            is tagged by.

        Raises:
            TypeError: as a call.
        """
        return to_backend(self.slide(word_rows(words)))

    def slide(self, words) -> dict:
        """Return `windows` of words, a ragged string tensor, or of texts, in TensorFlow."""
        if not isinstance(words, tf.RaggedTensor):
            words = _split(words)
        pieces = self.tokenizer(words.flat_values)
        is_empty = pieces.row_lengths() == 0
        unknown = tf.fill([tf.math.count_nonzero(is_empty)], self.tokenizer.unk_token_id)
        unknown = tf.RaggedTensor.from_row_lengths(unknown, tf.cast(is_empty, tf.int64))
        pieces = tf.concat([pieces, unknown], axis=1)
        row_splits = tf.gather(pieces.row_splits, words.row_splits)
        sentences = tf.RaggedTensor.from_row_splits(pieces.flat_values, row_splits, validate=False)
        stride = self.stride or max(1, (self.sequence_length - 2) // 2)
        rows = slide([sentences], **self._layout(), stride=stride, first_length=1)

        word_of_piece = pieces.value_rowids()
        is_first = tf.range(pieces.row_splits[-1]) == tf.gather(pieces.row_starts(), word_of_piece)
        word_ids = tf.gather(tf.ragged.range(words.row_lengths()).flat_values, word_of_piece)
        # The batch's pieces counted through; where none stands, one behind the last.
        places = tf.cast(rows["piece_places"], tf.int64)
        starts = tf.gather(row_splits, rows["example_ids"])[:, None]
        numbers = tf.where(places >= 0, starts + places, pieces.row_splits[-1])
        is_first = tf.gather(tf.concat([tf.cast(is_first, tf.int32), [0]], axis=0), numbers)
        word_ids = tf.gather(tf.concat([tf.cast(word_ids, tf.int32), [-1]], axis=0), numbers)
        inputs = {name: rows[name] for name in (*INPUTS, "example_ids")}
        return {**inputs, "word_ids": word_ids, "is_tagged": is_first * rows["max_context"]}

    def examples(self, x, y=None, sample_weight=None) -> tuple:
        """Return the rows of all sentences as columns of ragged pieces, labels and weights.

        Args:
            x: sentences, as in a call.
            y: class numbers, a list or ragged tensor of them for each sentence, one a word; or
                None.
            sample_weight: floats (sentences,), or None.

        Returns:
            A tuple of one ragged int32 tensor (rows, pieces); int32 labels (rows, length) and
            float32 weights (rows, length), 1 where a word is tagged, as they stand in the
            packed row; or None and None.

        Raises:
            ValueError: a sentence has another number of labels than of words.
        """
        words = word_rows(x)
        if y is not None:
            y = label_rows(y, words)
        parts = {"pieces": [], "lengths": [], "y": [], "weights": []}
        for start in range(0, int(words.nrows()), _CHUNK):
            chunk = slice(start, start + _CHUNK)
            rows = self.slide(words[chunk])
            is_piece = rows["word_ids"].numpy() >= 0
            parts["pieces"].append(rows["token_ids"].numpy()[is_piece])
            parts["lengths"].append(is_piece.sum(axis=1))
            if y is not None:
                weight = None if sample_weight is None else np.asarray(sample_weight)[chunk]
                labels, weights = _labels_of(rows, y[chunk], weight)
                parts["y"].append(labels.numpy())
                parts["weights"].append(weights.numpy())
        columns = (
            tf.RaggedTensor.from_row_lengths(
                np.concatenate([np.zeros(0, "int32"), *parts["pieces"]]),
                np.concatenate([np.zeros(0, "int64"), *parts["lengths"]]),
            ),
        )
        if y is None:
            return columns, None, None
        return columns, _stack(parts["y"]), _stack(parts["weights"])

    def batch(self, columns: tuple, y=None, sample_weight=None, *, example_ids, epoch=0) -> tuple:
        """Return (inputs, labels, weights) of rows that `examples` made, or of texts.

        Labels and weights are (rows, length), the weights 1 where a word is tagged. Of texts
        `y` are class numbers (texts, words), ragged or filled up at the end.
        """
        (column,) = columns
        if column.dtype == tf.string:
            rows = self.slide(column)
            if y is not None:
                y, sample_weight = _labels_of(rows, _dense_labels(y, rows), sample_weight)
            return {name: rows[name] for name in INPUTS}, y, sample_weight
        inputs = pack([column], **self._layout())
        length = tf.shape(inputs["token_ids"])[1]

        def fitted(values):
            return None if values is None else tf.pad(values, [[0, 0], [0, length]])[:, :length]

        return inputs, fitted(y), fitted(sample_weight)

    def rows_of_like_length(self, padding_mask) -> list[tuple]:
        """Return (rows, length) for each of the lengths that rows of an array are padded to."""
        lengths = np.array(self._lengths)
        own = lengths[np.searchsorted(lengths, padding_mask.sum(axis=1))]
        return [(np.flatnonzero(own == length), length) for length in np.unique(own)]

    def of_words(self, scores, rows: dict) -> tuple:
        """Return the scores (sentences, words, classes) of rows' words, and where words are.

        `scores` are (rows, length, classes), `rows` what `slide` gave. The second result is a
        boolean tensor (sentences, words), False where a sentence has fewer words.
        """
        at = tf.where(rows["is_tagged"] == 1)
        sentence = tf.gather(rows["example_ids"], at[:, 0])
        places = tf.stack([sentence, tf.gather_nd(rows["word_ids"], at)], axis=1)
        shape = [rows["example_ids"][-1] + 1, tf.reduce_max(rows["word_ids"]) + 1]
        is_word = tf.scatter_nd(places, tf.ones_like(sentence), shape) > 0
        scores = tf.gather_nd(scores, at)
        return tf.scatter_nd(places, scores, [*shape, tf.shape(scores)[1]]), is_word

    def get_config(self) -> dict:
        """Return the constructor's arguments."""
        config = super().get_config()
        del config["truncation"]
        return {**config, "stride": self.stride}


def word_rows(x, name: str = "x"):
    """Return sentences as a ragged string tensor (batch, words); texts are split at white space.

    Raises:
        TypeError: a word is not a string, named by its place.

    Example:
        >>> word_rows(["A fine  film", ""]).to_list()
        [[b'A', b'fine', b'film'], []]
    """
    if isinstance(x, tuple):
        raise TypeError(
            f"`{name}` must be a list of sentences, each a list of words or a text. Received: a "
            "tuple, which would be texts of several segments."
        )
    if hasattr(x, "tolist") and not tf.is_tensor(x):
        x = x.tolist()
    return string_rows(x, name) if is_rows(x) else _split(string_tensor(x, name)[0])


def label_rows(y, words):
    """Return labels as a ragged int32 tensor (batch, words), checked against the words.

    Raises:
        ValueError: a sentence has another number of labels than of words; its index is named.
    """
    if not isinstance(y, tf.RaggedTensor):
        counts = [len(row) for row in y]
        flat = [int(label) for row in y for label in row]
        y = tf.RaggedTensor.from_row_lengths(tf.constant(flat, tf.int32), counts)
    counts, expected = y.row_lengths().numpy(), words.row_lengths().numpy()
    if len(counts) != len(expected):
        raise ValueError(
            f"`y` must have a row of labels a sentence. Received: {len(counts)} rows for "
            f"{len(expected)} sentences."
        )
    for index in np.flatnonzero(counts != expected)[:1]:
        raise ValueError(
            f"`y[{index}]` must have a label a word. Received: {counts[index]} labels for "
            f"{expected[index]} words."
        )
    return tf.cast(y, tf.int32)


def _split(texts):
    """Return texts split at white space, as the tokenizer's rules see it."""
    return tf.strings.split(tf.strings.regex_replace(texts, r"[\s\p{Z}]+", " "))


def _dense_labels(y, rows):
    """Return labels filled up at the end, where each word of the rows has one."""
    if isinstance(y, tf.RaggedTensor):
        y = y.to_tensor()
    most = tf.reduce_max(rows["word_ids"]) + 1
    message = "`y` must have a label a word. Received: the most labels and words of a text"
    tf.debugging.Assert(tf.shape(y)[1] >= most, [message, tf.shape(y)[1], most])
    return y


def _labels_of(rows, y, sample_weight):
    """Return the labels and weights (rows, length) of windows over sentences."""
    if isinstance(y, tf.RaggedTensor):
        y = y.to_tensor()
    # A column more, so that there is one for sentences without words.
    y = tf.pad(y, [[0, 0], [0, 1]])
    sentences = tf.broadcast_to(rows["example_ids"][:, None], tf.shape(rows["word_ids"]))
    places = tf.stack([sentences, tf.maximum(rows["word_ids"], 0)], axis=-1)
    weights = tf.cast(rows["is_tagged"], tf.float32)
    labels = tf.gather_nd(y, places) * tf.cast(rows["is_tagged"], y.dtype)
    if sample_weight is not None:
        sample_weight = tf.cast(tf.gather(sample_weight, rows["example_ids"]), tf.float32)
        weights *= sample_weight[:, None]
    return labels, weights


def _stack(parts):
    """Return arrays (rows, length) one below the other, filled up to one length."""
    length = max(part.shape[1] for part in parts)
    return np.concatenate([np.pad(p, [(0, 0), (0, length - p.shape[1])]) for p in parts])
