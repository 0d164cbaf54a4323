"""Texts to model inputs, one preprocessor a task, all of them the same tf-text graph."""

from collections.abc import Sequence
from numbers import Integral

import keras

from keras_bert_zoo.preprocessing.lazy_tensorflow import tf
from keras_bert_zoo.preprocessing.masking import MaskedLMMasker
from keras_bert_zoo.preprocessing.packing import bucket_lengths, pack
from keras_bert_zoo.preprocessing.texts import text_columns
from keras_bert_zoo.preprocessing.tokenizer import BertTokenizer


@keras.saving.register_keras_serializable("keras_bert_zoo")
class BertPreprocessor:
    """Tokenises and packs: `[CLS] text [SEP]`, or `[CLS] first [SEP] second [SEP]` for a pair.

    Args:
        tokenizer: a `BertTokenizer`.
        sequence_length: most pieces in a row, marks included; a longer text is cut at its
            end, a longer pair a piece at a time from the longer of the two.
        buckets: lengths that batches are padded to, the smallest that fits; the default
            keeps both the padding and the number of shapes small. `[]` pads every batch
            to `sequence_length`.

    Example:
        >>> tokenizer = BertTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"], lowercase=True)
        >>> preprocessor = BertPreprocessor(tokenizer, sequence_length=16)
        >>> inputs = preprocessor(["a b", "b"], ["a", ""])
        >>> keras.ops.convert_to_numpy(inputs["token_ids"]).tolist()
        [[2, 5, 6, 3, 5, 3, 0, 0], [2, 6, 3, 3, 0, 0, 0, 0]]
    """

    def __init__(
        self,
        tokenizer: BertTokenizer,
        sequence_length: int = 512,
        buckets: Sequence[int] | None = None,
    ):
        if not isinstance(sequence_length, Integral) or sequence_length < 3:
            raise ValueError(
                "`sequence_length` must be an integer of at least 3, room for [CLS], a piece and "
                f"[SEP]. Received: {sequence_length!r}."
            )
        self.tokenizer = tokenizer
        self.sequence_length = int(sequence_length)
        self.buckets = None if buckets is None else list(buckets)
        self._lengths = bucket_lengths(sequence_length, buckets)

    def __call__(self, first, second=None) -> dict:
        """Return the inputs of a batch of texts, or of pairs.

        Args:
            first: a string, a list or array of strings, a string tensor, or ragged piece
                ids (batch, pieces); a tuple of two of them is a pair.
            second: the pairs' second texts, or None.

        Returns:
            `token_ids`, `segment_ids` and `padding_mask`, integer tensors (batch, length)
            of the current backend (of TensorFlow inside its graphs).

        Raises:
            ValueError: a text is not a string, named by its index; the columns' lengths
                differ.
        """
        columns = text_columns(first if second is None else (first, second))
        inputs, _, _ = self.batch(columns, example_ids=_example_ids(columns))
        return _to_backend(inputs)

    def batch(self, columns: tuple, y=None, sample_weight=None, *, example_ids, epoch=0) -> tuple:
        """Return (inputs, y, sample_weight) of one batch as TensorFlow tensors."""
        return self.pack(*columns), y, sample_weight

    def pack(self, first, second=None) -> dict:
        """Return the packed rows of string tensors or of ragged piece ids."""
        return pack(
            self._pieces(first),
            None if second is None else self._pieces(second),
            cls_id=self.tokenizer.cls_token_id,
            sep_id=self.tokenizer.sep_token_id,
            pad_id=self.tokenizer.pad_token_id,
            lengths=self._lengths,
        )

    def _pieces(self, column):
        return self.tokenizer(column) if column.dtype == tf.string else column

    def get_config(self) -> dict:
        """Return the constructor's arguments."""
        return {
            "tokenizer": keras.saving.serialize_keras_object(self.tokenizer),
            "sequence_length": self.sequence_length,
            "buckets": self.buckets,
        }

    @classmethod
    def from_config(cls, config: dict) -> "BertPreprocessor":
        """Make the preprocessor `get_config` described."""
        tokenizer = keras.saving.deserialize_keras_object(config["tokenizer"])
        return cls(**{**config, "tokenizer": tokenizer})


@keras.saving.register_keras_serializable("keras_bert_zoo")
class BertTextClassifierPreprocessor(BertPreprocessor):
    """Texts or pairs for `BertTextClassifier`; labels pass through."""


@keras.saving.register_keras_serializable("keras_bert_zoo")
class BertNextSentencePreprocessor(BertPreprocessor):
    """Pairs for `BertNextSentence`: label 0 where the second text follows, 1 where it does not."""


@keras.saving.register_keras_serializable("keras_bert_zoo")
class BertTextEmbedderPreprocessor(BertPreprocessor):
    """Texts for `BertTextEmbedder`."""


@keras.saving.register_keras_serializable("keras_bert_zoo")
class BertMaskedLMPreprocessor(BertPreprocessor):
    """Texts for `BertMaskedLM`: packed, then masked, with the masked pieces as labels.

    Beside `BertPreprocessor`'s arguments it takes those of `MaskedLMMasker`. Rows come
    with `mask_positions` (batch, predictions) among the inputs.

    In training the masks are new each epoch. Called on texts it gives the inputs alone,
    and `masked_example` the labels and weights too.

    Raises:
        ValueError: in a direct call, a text has no piece that could be masked.

    Example:
        >>> tokenizer = BertTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"], lowercase=True)
        >>> preprocessor = BertMaskedLMPreprocessor(tokenizer, sequence_length=16)
        >>> inputs, labels, weights = preprocessor.masked_example(["a"])
        >>> keras.ops.convert_to_numpy(labels).tolist()
        [[5]]
    """

    def __init__(
        self,
        tokenizer: BertTokenizer,
        sequence_length: int = 512,
        buckets: Sequence[int] | None = None,
        **masking,
    ):
        super().__init__(tokenizer, sequence_length, buckets)
        self.masker = MaskedLMMasker(tokenizer, **masking)

    def __call__(self, first, second=None) -> dict:
        """Return the inputs of a batch of texts, masked."""
        return self.masked_example(first, second)[0]

    def masked_example(self, first, second=None, epoch: int = 0) -> tuple:
        """Return (inputs, labels, weights) of a batch of texts, masked as in that epoch."""
        columns = text_columns(first if second is None else (first, second))
        inputs, labels, weights = self._masked(columns, _example_ids(columns), epoch)
        if tf.executing_eagerly():
            empty = tf.where(tf.reduce_sum(weights, axis=1) == 0)[:, 0].numpy().tolist()
            if empty:
                raise ValueError(f"No piece of the text at index {empty[0]} can be masked.")
        return _to_backend((inputs, labels, weights))

    def batch(self, columns: tuple, y=None, sample_weight=None, *, example_ids, epoch=0) -> tuple:
        """Return (inputs, labels, weights) of one batch; an example's weight scales its labels'."""
        inputs, labels, weights = self._masked(columns, example_ids, epoch)
        if sample_weight is not None:
            weights *= tf.cast(sample_weight, weights.dtype)[:, None]
        return inputs, labels, weights

    def _masked(self, columns, example_ids, epoch):
        inputs = self.pack(*columns)
        masked = self.masker(inputs["token_ids"], inputs["padding_mask"], example_ids, epoch)
        inputs.update(token_ids=masked["token_ids"], mask_positions=masked["mask_positions"])
        return inputs, masked["mask_ids"], masked["mask_weights"]

    def get_config(self) -> dict:
        """Return the constructor's arguments."""
        masking = self.masker.get_config()
        del masking["tokenizer"]
        return {**super().get_config(), **masking}


@keras.saving.register_keras_serializable("keras_bert_zoo")
class BertPretrainerPreprocessor(BertMaskedLMPreprocessor):
    """Pairs for `BertPretrainer`: masked as for `BertMaskedLM`, the pair's label kept beside.

    Labels and weights come as dictionaries with the keys `masked_lm` and `next_sentence`.
    """

    def batch(self, columns: tuple, y=None, sample_weight=None, *, example_ids, epoch=0) -> tuple:
        """Return (inputs, labels, weights) of one batch of pairs."""
        inputs, labels, weights = super().batch(
            columns, None, sample_weight, example_ids=example_ids, epoch=epoch
        )
        if y is None:
            return inputs, None, None
        if sample_weight is None:
            sample_weight = tf.ones(tf.shape(y)[:1])
        return (
            inputs,
            {"masked_lm": labels, "next_sentence": y},
            {"masked_lm": weights, "next_sentence": tf.cast(sample_weight, weights.dtype)},
        )


def _example_ids(columns):
    return tf.range(tf.shape(columns[0])[0] if hasattr(columns[0], "shape") else len(columns[0]))


def _to_backend(tensors):
    """Return TensorFlow tensors as the current backend's, unless a graph is being traced."""
    if not tf.executing_eagerly() or keras.backend.backend() == "tensorflow":
        return tensors
    return keras.tree.map_structure(
        lambda x: None if x is None else keras.ops.convert_to_tensor(x.numpy()), tensors
    )
