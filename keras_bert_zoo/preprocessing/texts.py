"""What a user may call texts, checked, as tensors of strings or of piece ids."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np

from keras_bert_zoo.preprocessing.lazy_tensorflow import tf

_ROW_TYPES = list | tuple | np.ndarray


def text_columns(x: Any, name: str = "x") -> tuple:
    """Return texts, or columns of texts that belong together, as a tuple of tensors.

    Args:
        x: a string; a list, array, series or tensor of strings; piece ids, a list of lists
            or a ragged tensor; or a tuple of these, a column a segment: (first, second) is
            a pair and never (x, labels).
        name: what to call `x` in an error.

    Raises:
        TypeError: a text is not a string; its index is named.
        ValueError: the columns differ in length, or there are none.

    Example:
        >>> [column.shape[0] for column in text_columns((["a", "b"], ["c", "d"]))]
        [2, 2]
    """
    columns = x if isinstance(x, tuple) else (x,)
    if not columns:
        raise ValueError(f"`{name}` must be texts or a tuple (first, second). Received: ().")
    names = [name] if len(columns) == 1 else [f"{name}[{i}]" for i in range(len(columns))]
    columns = tuple(_column(c, n) for c, n in zip(columns, names, strict=True))
    # Inside a graph a size may not be known yet, which is None.
    sizes = [column.shape[0] for column in columns if column.shape[0] is not None]
    if len(set(sizes)) > 1:
        raise ValueError(
            f"The columns of `{name}` must be equally long. Received: "
            f"{' and '.join(map(str, sizes))} texts."
        )
    return columns


def string_tensor(texts: Any, name: str = "texts") -> tuple[Any, bool]:
    """Return texts as a string tensor (batch,), and whether they were one text without a batch.

    Raises:
        TypeError: a text is not a string; its index is named.
        ValueError: `texts` has more than one dimension.
    """
    if isinstance(texts, str | bytes):
        return tf.constant([_encode(texts)]), True
    if hasattr(texts, "tolist"):  # a numpy array or a column of a table
        texts = texts.tolist()
        return (
            (string_list(texts, name), False)
            if isinstance(texts, list)
            else (string_tensor(texts, name))
        )
    if isinstance(texts, list | tuple):
        return string_list(texts, name), False
    if not tf.is_tensor(texts):
        raise TypeError(f"`{name}` must be a string, or a list of strings. {received(texts)}")
    if texts.dtype != tf.string:
        raise TypeError(
            f"`{name}` must be a tensor of strings. Received: dtype {texts.dtype.name}."
        )
    if texts.shape.rank not in (0, 1):
        raise ValueError(
            f"`{name}` must have the shape () or (batch,). "
            f"Received: shape {texts.shape}. For texts split into words see `tokenize_words`."
        )
    return tf.reshape(texts, [-1]), texts.shape.rank == 0


def string_list(texts: Sequence[Any], name: str = "texts") -> Any:
    """Return a list of texts as a string tensor (batch,); a TypeError names a wrong one's index."""
    for index, text in enumerate(texts):
        if not isinstance(text, str | bytes):
            raise TypeError(f"`{name}[{index}]` must be a string. {received(text)}")
    return tf.constant([_encode(text) for text in texts], tf.string, shape=[len(texts)])


def received(value: Any) -> str:
    """Return the end of an error message: what came in place of what was expected."""
    return f"Received: {value!r} of type {type(value).__name__}."


def _column(texts, name):
    if isinstance(texts, tf.RaggedTensor) and texts.dtype.is_integer and texts.shape.rank == 2:
        return texts
    if isinstance(texts, list | tuple) and len(texts) and isinstance(texts[0], _ROW_TYPES):
        return _ragged_ids(texts, name)
    return string_tensor(texts, name)[0]


def _ragged_ids(rows, name):
    for index, row in enumerate(rows):
        if not isinstance(row, _ROW_TYPES) or not all(isinstance(i, Integral) for i in row):
            raise TypeError(
                f"`{name}[{index}]` must be a list of integer piece ids. A pair of texts "
                f"is a tuple of two columns, (first texts, second texts). {received(row)}"
            )
    values = [int(piece) for row in rows for piece in row]
    return tf.RaggedTensor.from_row_lengths(tf.constant(values, tf.int32), [len(r) for r in rows])


def _encode(text):
    """Return a text as UTF-8; half a surrogate pair, which is no character, becomes U+FFFD."""
    if isinstance(text, bytes):
        return text
    try:
        return text.encode()
    except UnicodeEncodeError:
        return "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in text).encode()
