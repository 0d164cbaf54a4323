"""Texts to model inputs, one preprocessor a task, all of them the same tf-text graph."""

from collections.abc import Sequence
from numbers import Integral

import keras

from keras_bert_zoo.layers.common import check_positive_int
from keras_bert_zoo.preprocessing.dataset import batches
from keras_bert_zoo.preprocessing.lazy_tensorflow import tf
from keras_bert_zoo.preprocessing.masking import MaskedLMMasker
from keras_bert_zoo.preprocessing.packing import bucket_lengths, check_truncation, pack
from keras_bert_zoo.preprocessing.texts import text_columns
from keras_bert_zoo.preprocessing.tokenizer import BertTokenizer
from keras_bert_zoo.preprocessing.windows import slide


@keras.saving.register_keras_serializable("keras_bert_zoo")
class BertPreprocessor:
    """Tokenises and packs: `[CLS] text [SEP]`, or `[CLS] first [SEP] second [SEP]` for a pair.

    Each further text is a segment more, as many as the model has.

    Args:
        tokenizer: a `BertTokenizer`.
        sequence_length: most pieces in a row, marks included; longer rows are truncated.
        buckets: lengths that batches are padded to, the smallest that fits; the default
            keeps both the padding and the number of shapes small. `[]` pads every batch
            to `sequence_length`.
        truncation: `"longest_first"`, the longest of the texts loses a piece at a time from
            its end, the last of those that are equally long (Devlin et al. 2018, in their
            code); or `"only_first"` or `"only_second"`, that one alone.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> tokenizer = BertTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"], lowercase=True)
        >>> preprocessor = BertPreprocessor(tokenizer, sequence_length=16)
        >>> inputs = preprocessor(["a b", "b"], ["a", ""])
        >>> keras.ops.convert_to_numpy(inputs["token_ids"]).tolist()
        [[2, 5, 6, 3, 5, 3, 0, 0], [2, 6, 3, 3, 0, 0, 0, 0]]
    """

    # How many columns of texts there must be; None takes any.
    columns: int | None = None

    def __init__(
        self,
        tokenizer: BertTokenizer,
        sequence_length: int = 512,
        buckets: Sequence[int] | None = None,
        truncation: str = "longest_first",
    ):
        check_truncation(truncation)
        if not isinstance(sequence_length, Integral) or sequence_length < 3:
            raise ValueError(
                "`sequence_length` must be an integer of at least 3, room for [CLS], a piece and "
                f"[SEP]. Received: {sequence_length!r}."
            )
        self.tokenizer = tokenizer
        self.sequence_length = int(sequence_length)
        self.buckets = None if buckets is None else list(buckets)
        self.truncation = truncation
        self._lengths = bucket_lengths(sequence_length, buckets)

    def __call__(self, first, second=None, *more) -> dict:
        """Return the inputs of a batch of texts, of pairs, or of texts of more segments.

        Args:
            first: a string, a list or array of strings, a string tensor, or ragged piece
                ids (batch, pieces); a tuple of them is (first, second, *more).
            second, *more: the second texts and those behind them, in the same forms.

        Returns:
            `token_ids`, `segment_ids` and `padding_mask`, integer tensors (batch, length)
            of the current backend (of TensorFlow inside its graphs).

        Raises:
            ValueError: a text is not a string, named by its index; the columns' lengths
                differ.
        """
        columns = _columns(first, second, *more)
        inputs, _, _ = self.batch(columns, example_ids=_example_ids(columns))
        return to_backend(inputs)

    def windows(self, first, second=None, stride: int = 128, first_length: int = 64) -> dict:
        """Return overlapping windows that show all of long texts (Devlin et al. 2018, SQuAD).

        Each row is `[CLS] first [SEP] window of second [SEP]`, or `[CLS] window of first
        [SEP]` where there is no second. An empty text has one window.

        Args:
            first: questions, in a form that a call takes; of each at most `first_length`
                pieces stay.
            second: the passages, or None for windows over `first`.
            stride: pieces from a window's start to that of the next.
            first_length: an integer, of no effect without `second`.

        Returns:
            What a call returns, a row a window, and integer tensors: `example_ids`
            (windows,), which of the texts a window is of; `window_starts` (windows,), the
            place in its text of a window's first piece; `piece_places` (windows, length),
            the place in the text of the piece that stands there, -1 where none of it does;
            `max_context` (windows, length), 1 in the one window that shows a piece in most
            context.

        Raises:
            ValueError: `stride` or `first_length` is not a positive integer.
            tf.errors.InvalidArgumentError: a question leaves no room for its passage.

        Example:
            >>> tokenizer = BertTokenizer(
            ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"], lowercase=True)
            >>> preprocessor = BertPreprocessor(tokenizer, sequence_length=8)
            >>> windows = preprocessor.windows(["b"], ["a a a a a a b"], stride=2)
            >>> keras.ops.convert_to_numpy(windows["token_ids"]).tolist()
            [[2, 6, 3, 5, 5, 5, 5, 3], [2, 6, 3, 5, 5, 5, 5, 3], [2, 6, 3, 5, 5, 6, 3, 0]]
        """
        check_positive_int(stride=stride, first_length=first_length)
        columns = _columns(first, second)
        if len(columns) > 2:
            raise ValueError(f"`windows` takes one text or two. Received: {len(columns)}.")
        rows = slide(
            self._pieces(columns),
            **self._layout(),
            stride=int(stride),
            first_length=int(first_length),
        )
        return to_backend(rows)

    def dataset(
        self,
        x,
        y=None,
        sample_weight=None,
        *,
        batch_size: int = 32,
        shuffle: bool = False,
        seed: int = 0,
        epochs: int = 1,
    ):
        """Return the batches that `fit` would make of texts, as a `tf.data.Dataset`.

        Args:
            x: texts, or a tuple of columns of them, as a call takes them.
            y, sample_weight: arrays, or dictionaries of them, with a row a text; or None.
            batch_size: texts a batch; the last of an epoch may be smaller.
            shuffle: a new order each epoch, set by `seed` and the epoch alone.
            seed, epochs: integers. All epochs follow one another, each with an order and masks
                of its own; `fit` is to be told its `steps_per_epoch` then.

        Returns:
            A data set of inputs, of (inputs, y), or of (inputs, y, sample_weight).

        Raises:
            TypeError: a text is not a string, named by its index.
            ValueError: `y` or `sample_weight` has not one row a text.

        Example:
            >>> tokenizer = BertTokenizer(
            ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"], lowercase=True)
            >>> preprocessor = BertPreprocessor(tokenizer, sequence_length=16)
            >>> for inputs, y in preprocessor.dataset(["a", "b a"], [0, 1], batch_size=2):
            ...     print(inputs["token_ids"].numpy().tolist(), y.numpy().tolist())
            [[2, 5, 3, 0, 0, 0, 0, 0], [2, 6, 5, 3, 0, 0, 0, 0]] [0, 1]
        """
        check_positive_int(batch_size=batch_size)
        made = batches(
            self,
            *self.examples(x, y, sample_weight),
            batch_size=batch_size,
            shuffle=shuffle,
            seed=seed,
            epochs=epochs,
        )
        return made.map(keras.utils.pack_x_y_sample_weight)

    def examples(self, x, y=None, sample_weight=None) -> tuple:
        """Return (columns, y, sample_weight) with a row an example, which `batch` takes."""
        return text_columns(x), y, sample_weight

    def batch(self, columns: tuple, y=None, sample_weight=None, *, example_ids, epoch=0) -> tuple:
        """Return (inputs, y, sample_weight) of one batch as TensorFlow tensors."""
        return self.pack(*columns), y, sample_weight

    def batch_graph(self, *args, **kwargs) -> tuple:
        """Return what `batch` does, by a graph that is made once for each kind of arguments."""
        # TensorFlow would warn of one function with graphs for many kinds.
        kind = str(tf.nest.map_structure(lambda x: getattr(x, "dtype", None), (args, kwargs)))
        graphs = self.__dict__.setdefault("_batch_graphs", {})
        if kind not in graphs:
            graphs[kind] = tf.function(
                lambda *args, **kwargs: self.batch(*args, **kwargs), reduce_retracing=True
            )
        return graphs[kind](*args, **kwargs)

    def __setattr__(self, name: str, value) -> None:
        """Sets an attribute, of which the graphs hold the old one."""
        self.__dict__.pop("_batch_graphs", None)
        super().__setattr__(name, value)

    def __getstate__(self) -> dict:
        """Leaves the graphs out of pickles and copies; they are made again where needed."""
        return {name: value for name, value in self.__dict__.items() if name != "_batch_graphs"}

    def check_columns(self, count: int) -> None:
        """Refuse texts in another number of columns than there must be."""
        if self.columns not in (None, count):
            names = {1: "single texts", 2: "pairs, a tuple (first, second)"}
            expected, received = (
                names.get(number, f"{number} columns of texts") for number in (self.columns, count)
            )
            raise ValueError(
                f"The model was trained on {expected}. Received: {received}. A table's second "
                "column is named by `--second` on the command line."
            )

    def pack(self, *columns) -> dict:
        """Return the packed rows of string tensors or of ragged piece ids, a column a segment."""
        self.check_columns(len(columns))
        return pack(self._pieces(columns), **self._layout(), truncation=self.truncation)

    def _pieces(self, columns):
        return [self.tokenizer(c) if c.dtype == tf.string else _as_pieces(c) for c in columns]

    def _layout(self):
        return {
            "cls_id": self.tokenizer.cls_token_id,
            "sep_id": self.tokenizer.sep_token_id,
            "pad_id": self.tokenizer.pad_token_id,
            "lengths": self._lengths,
        }

    def get_config(self) -> dict:
        """Return the constructor's arguments."""
        return {
            "tokenizer": keras.saving.serialize_keras_object(self.tokenizer),
            "sequence_length": self.sequence_length,
            "buckets": self.buckets,
            "truncation": self.truncation,
        }

    @classmethod
    def from_config(cls, config: dict) -> "BertPreprocessor":
        """Make the preprocessor `get_config` described."""
        tokenizer = keras.saving.deserialize_keras_object(config["tokenizer"])
        return cls(**{**config, "tokenizer": tokenizer})


@keras.saving.register_keras_serializable("keras_bert_zoo")
class BertTextClassifierPreprocessor(BertPreprocessor):
    """Texts or pairs for `BertTextClassifier`; labels pass through.

    Args:
        tokenizer, sequence_length, buckets, truncation: as for `BertPreprocessor`.
        columns: 1 where the classifier reads single texts and 2 where it reads pairs, so that
            nothing else is given to it; None takes both. `finetune` sets it.

    Raises:
        ValueError: an argument is out of range; or, in a call, texts come in another number of
            columns.

    Example:
        >>> tokenizer = BertTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"], lowercase=True)
        >>> preprocessor = BertTextClassifierPreprocessor(tokenizer, columns=2)
        >>> keras.ops.convert_to_numpy(preprocessor(["a"], ["b"])["segment_ids"]).tolist()
        [[0, 0, 0, 1, 1, 0, 0, 0]]
    """

    def __init__(
        self,
        tokenizer: BertTokenizer,
        sequence_length: int = 512,
        buckets: Sequence[int] | None = None,
        truncation: str = "longest_first",
        columns: int | None = None,
    ):
        super().__init__(tokenizer, sequence_length, buckets, truncation)
        if columns is not None:
            check_positive_int(columns=columns)
        self.columns = columns

    def get_config(self) -> dict:
        """Return the constructor's arguments."""
        return {**super().get_config(), "columns": self.columns}


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
        truncation: str = "longest_first",
        **masking,
    ):
        super().__init__(tokenizer, sequence_length, buckets, truncation)
        self.masker = MaskedLMMasker(tokenizer, **masking)

    def __call__(self, first, second=None, *more) -> dict:
        """Return the inputs of a batch of texts, masked."""
        return self.masked_example(first, second, *more)[0]

    def masked_example(self, first, second=None, *more, epoch: int = 0) -> tuple:
        """Return (inputs, labels, weights) of a batch of texts, masked as in that epoch."""
        columns = _columns(first, second, *more)
        inputs, labels, weights = self._masked(columns, _example_ids(columns), epoch)
        if tf.executing_eagerly():
            empty = tf.where(tf.reduce_sum(weights, axis=1) == 0)[:, 0].numpy().tolist()
            if empty:
                raise ValueError(f"No piece of the text at index {empty[0]} can be masked.")
        return to_backend((inputs, labels, weights))

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


def _columns(first, second, *more):
    return text_columns(first if second is None and not more else (first, second, *more))


def _as_pieces(ids):
    """Return ragged ids in the types that the tokenizer gives."""
    return tf.cast(ids, tf.int32).with_row_splits_dtype(tf.int64)


def _example_ids(columns):
    return tf.range(tf.shape(columns[0])[0])


def to_backend(tensors):
    """Return TensorFlow tensors as the current backend's, unless a graph is being traced."""
    if not tf.executing_eagerly() or keras.backend.backend() == "tensorflow":
        return tensors
    return keras.tree.map_structure(
        lambda x: None if x is None else keras.ops.convert_to_tensor(x.numpy()), tensors
    )
