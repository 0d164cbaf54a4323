"""The WordPiece tokenizer of the BERT authors."""

import os
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_bert_zoo.preprocessing import vocabulary as vocabularies
from keras_bert_zoo.preprocessing.lazy_tensorflow import tf
from keras_bert_zoo.preprocessing.texts import received, string_list, string_tensor
from keras_bert_zoo.preprocessing.wordpiece import WordPieceGraph


@keras.saving.register_keras_serializable("keras_bert_zoo")
class BertTokenizer:
    """Cuts texts into WordPiece ids exactly as the BERT authors' tokenizer does.

    The rules (Devlin et al. 2018, on the WordPiece of Wu et al. 2016): control characters are
    dropped, ideographs stand alone, words part at white space, are lower-cased and lose their
    accents as the switches say, punctuation is split off, and each word becomes the longest
    pieces of the vocabulary from left to right, or one `[UNK]`. Characters are judged by the
    Unicode data of the running Python. The work is done by one TensorFlow graph, which is made
    at the first call: eager calls, `tf.function`, `tf.data` and a SavedModel give the same ids.

    Args:
        vocabulary: the path of a vocabulary file (UTF-8, an entry a line), or its entries.
        lowercase: whether to lower-case, as the uncased checkpoints need.
        strip_accents: whether to decompose characters and drop their accents. `None` is
            "as `lowercase`".
        split_on_cjk: whether each CJK ideograph is a word of its own.
        special_tokens_in_strings: whether `[PAD]`, `[UNK]`, `[CLS]`, `[SEP]` and `[MASK]` in a
            text are these tokens; otherwise they are a word between two brackets.
        max_word_length: a longer word, in characters, is one `[UNK]`. The authors' 200;
            Hugging Face's tokenizers use 100.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: the vocabulary has an entry twice, lacks a special token or can't be read;
            or `max_word_length` is not positive.

    Example:
        >>> tokenizer = BertTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "caf", "##es", "!"], lowercase=True)
        >>> tokenizer(["Cafés!", ""]).to_list()
        [[5, 6, 7], []]
        >>> ids, starts, ends = tokenizer.tokenize_with_offsets("Cafés")
        >>> starts.numpy().tolist(), ends.numpy().tolist()
        ([0, 3], [3, 5])
        >>> ids, word_ids = tokenizer.tokenize_words([["Cafés", "!"]])
        >>> word_ids.to_list()
        [[0, 0, 1]]
        >>> tokenizer.detokenize([2, 5, 6, 7, 3, 0])
        'cafes !'
    """

    def __init__(
        self,
        vocabulary: str | os.PathLike | Sequence[str],
        lowercase: bool,
        strip_accents: bool | None = None,
        split_on_cjk: bool = True,
        special_tokens_in_strings: bool = False,
        max_word_length: int = 200,
    ):
        for name, value in (
            ("lowercase", lowercase),
            ("split_on_cjk", split_on_cjk),
            ("special_tokens_in_strings", special_tokens_in_strings),
        ):
            if not isinstance(value, (bool, np.bool_)):
                raise TypeError(f"`{name}` must be True or False. {received(value)}")
        if strip_accents is not None and not isinstance(strip_accents, (bool, np.bool_)):
            raise TypeError(
                f"`strip_accents` must be True, False or None. {received(strip_accents)}"
            )
        if isinstance(max_word_length, bool) or not isinstance(max_word_length, (int, np.integer)):
            raise TypeError(f"`max_word_length` must be an integer. {received(max_word_length)}")
        if max_word_length < 1:
            raise ValueError(f"`max_word_length` must be at least 1. Received: {max_word_length}.")

        self.lowercase = bool(lowercase)
        self.strip_accents = self.lowercase if strip_accents is None else bool(strip_accents)
        self.split_on_cjk = bool(split_on_cjk)
        self.special_tokens_in_strings = bool(special_tokens_in_strings)
        self.max_word_length = int(max_word_length)
        self._vocabulary = vocabularies.read_vocabulary(vocabulary)
        self._ids = {token: number for number, token in enumerate(self._vocabulary)}
        self._graph = None

    # === Tokenising ===

    def __call__(self, texts: Any) -> Any:
        """Gives the piece ids of texts.

        Args:
            texts: one string, or a list, array or string tensor of shape (batch,).

        Returns:
            An int32 `tf.RaggedTensor` (batch, pieces); for one string an int32 tensor (pieces,).
            Bytes that are not UTF-8 are dropped.

        Raises:
            TypeError: a text is not a string; its index is named.
            ValueError: `texts` has more than one dimension.
        """
        texts, is_one = string_tensor(texts)
        ids = self._get_graph().ids(texts)
        return ids[0] if is_one else ids

    def tokenize_with_offsets(self, texts: Any) -> tuple[Any, Any, Any]:
        """Gives the piece ids of texts and where in the text each piece stands.

        Args:
            texts: as in a call.

        Returns:
            `(ids, starts, ends)`, each as a call returns ids: piece `i` comes from the characters
            `text[starts[i]:ends[i]]` of the text as it was given. Where a character becomes
            several pieces, each of them has that character.

        Raises:
            TypeError, ValueError: as in a call.
        """
        texts, is_one = string_tensor(texts)
        parts = self._get_graph().ids_and_offsets(texts)
        return tuple(part[0] for part in parts) if is_one else tuple(parts)

    def tokenize_words(self, words: Any) -> tuple[Any, Any]:
        """Gives the piece ids of texts that are already split into words.

        Args:
            words: a list of lists of strings, or a ragged string tensor (batch, words).

        Returns:
            `(ids, word_ids)`, two int32 `tf.RaggedTensor`s (batch, pieces): `word_ids` says for
            each piece which word of its row it belongs to. A word that holds white space or
            punctuation becomes several pieces of the same word; a word of which nothing is left
            has none.

        Raises:
            TypeError: a word is not a string; its row and index are named.
        """
        words = _ragged_strings(words)
        pieces = self._get_graph().ids(words.flat_values)
        row_splits = tf.gather(pieces.row_splits, words.row_splits)
        places = tf.ragged.range(words.row_lengths()).flat_values
        word_ids = tf.cast(tf.gather(places, pieces.value_rowids()), tf.int32)
        return (
            tf.RaggedTensor.from_row_splits(pieces.flat_values, row_splits, validate=False),
            tf.RaggedTensor.from_row_splits(word_ids, row_splits, validate=False),
        )

    def detokenize(self, ids: Any) -> str | list[str]:
        """Joins pieces to readable text, without `[PAD]`, `[CLS]` and `[SEP]`.

        Args:
            ids: integers (pieces,) or (batch, pieces): lists, an array, a tensor of any backend
                or a `tf.RaggedTensor`.

        Returns:
            One string, or a list with a string for each row. What the vocabulary does not hold
            (case, accents, spaces beside punctuation) can't come back.

        Raises:
            ValueError: an id is outside the vocabulary.
        """
        if hasattr(ids, "to_list"):
            ids = ids.to_list()
        elif not isinstance(ids, (list, tuple)):
            ids = keras.ops.convert_to_numpy(ids).tolist()
        if len(ids) and all(np.ndim(row) for row in ids):
            return [self.detokenize(row) for row in ids]
        left_out = {self.pad_token_id, self.cls_token_id, self.sep_token_id}
        tokens = [self.id_to_token(number) for number in ids if int(number) not in left_out]
        return " ".join(tokens).replace(" ##", "")

    # === Vocabulary ===

    @property
    def vocabulary(self) -> list[str]:
        """The entries in the order of their ids."""
        return list(self._vocabulary)

    @property
    def vocabulary_size(self) -> int:
        """The number of entries."""
        return len(self._vocabulary)

    def id_to_token(self, number: int) -> str:
        """Gives the entry with an id, or a ValueError for an id that the vocabulary lacks."""
        if not 0 <= number < len(self._vocabulary):
            raise ValueError(
                f"The id {number} is outside the vocabulary, whose {len(self._vocabulary)} ids "
                f"go from 0 to {len(self._vocabulary) - 1}."
            )
        return self._vocabulary[number]

    def token_to_id(self, token: str) -> int:
        """Gives the id of an entry, or a ValueError for an entry that the vocabulary lacks."""
        if token not in self._ids:
            raise ValueError(f"The vocabulary has no entry {token!r}.")
        return self._ids[token]

    @property
    def pad_token_id(self) -> int:
        """The id of `[PAD]`."""
        return self._ids[vocabularies.PAD]

    @property
    def unk_token_id(self) -> int:
        """The id of `[UNK]`."""
        return self._ids[vocabularies.UNK]

    @property
    def cls_token_id(self) -> int:
        """The id of `[CLS]`."""
        return self._ids[vocabularies.CLS]

    @property
    def sep_token_id(self) -> int:
        """The id of `[SEP]`."""
        return self._ids[vocabularies.SEP]

    @property
    def mask_token_id(self) -> int | None:
        """The id of `[MASK]`, or None where the vocabulary has none."""
        return self._ids.get(vocabularies.MASK)

    @property
    def special_token_ids(self) -> list[int]:
        """The ids of the special tokens that the vocabulary has."""
        return [self._ids[token] for token in vocabularies.SPECIAL_TOKENS if token in self._ids]

    def save_vocabulary(self, path: str | os.PathLike) -> None:
        """Writes the vocabulary to a file that the tokenizer can be made from."""
        vocabularies.write_vocabulary(path, self._vocabulary)

    # === Config ===

    def get_config(self) -> dict[str, Any]:
        """Gives all arguments, the vocabulary as a list."""
        return {
            "vocabulary": self.vocabulary,
            "lowercase": self.lowercase,
            "strip_accents": self.strip_accents,
            "split_on_cjk": self.split_on_cjk,
            "special_tokens_in_strings": self.special_tokens_in_strings,
            "max_word_length": self.max_word_length,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "BertTokenizer":
        """Makes a tokenizer from what `get_config` gave."""
        return cls(**config)

    def __getstate__(self) -> dict[str, Any]:
        """Leaves the graph out of pickles and copies; it is made again at the next call."""
        return {**self.__dict__, "_graph": None}

    def _get_graph(self):
        if self._graph is None:
            self._graph = WordPieceGraph(
                self._vocabulary,
                self.lowercase,
                self.strip_accents,
                self.split_on_cjk,
                self.special_tokens_in_strings,
                self.max_word_length,
            )
        return self._graph


def _ragged_strings(words: Any) -> Any:
    if tf.is_tensor(words):
        if words.dtype != tf.string or words.shape.rank != 2:
            raise ValueError(
                "Words must be a string tensor of the shape (batch, words). "
                f"Received: shape {words.shape}, dtype {words.dtype.name}."
            )
        if isinstance(words, tf.RaggedTensor):
            return words
        return tf.RaggedTensor.from_tensor(words)
    if hasattr(words, "tolist"):
        words = words.tolist()
    if not isinstance(words, (list, tuple)):
        raise TypeError(f"Words must be a list of lists of strings. {received(words)}")
    for index, row in enumerate(words):
        if not isinstance(row, (list, tuple, np.ndarray)):
            raise TypeError(
                f"Words must be a list of lists of strings. At index {index}: {received(row)}"
            )
    flat = [string_list(row, f"words[{index}]") for index, row in enumerate(words) if len(row)]
    return tf.RaggedTensor.from_row_lengths(
        tf.concat([tf.constant([], tf.string), *flat], axis=0),
        tf.constant([len(row) for row in words], tf.int64),
    )
