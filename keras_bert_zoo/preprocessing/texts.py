"""What a user may call texts, checked, as tensors of strings or of piece ids."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_bert_zoo.preprocessing.lazy_tensorflow import tf


def text_columns(x: Any, name: str = "x") -> tuple:
    """Return texts, or a pair of columns of texts, as a tuple of one or two tensors.

    Args:
        x: a string; a list, array, series or tensor of strings; piece ids, a list of lists
            or a ragged tensor; or a tuple of two of these, which is a pair and never (x,
            labels).
        name: what to call `x` in an error.

    Raises:
        TypeError: a text is not a string; its index is named.
        ValueError: the columns differ in length, or there are more than two.

    Example:
        >>> [column.shape[0] for column in text_columns((["a", "b"], ["c", "d"]))]
        [2, 2]
    """
    columns = x if isinstance(x, tuple) else (x,)
    if len(columns) not in (1, 2):
        raise ValueError(
            f"`{name}` must be texts or a pair (first, second). Received a tuple of {len(columns)}."
        )
    names = [name] if len(columns) == 1 else [f"{name}[{i}]" for i in range(len(columns))]
    columns = tuple(_column(c, n) for c, n in zip(columns, names, strict=True))
    sizes = [column.shape[0] for column in columns]
    if len(set(sizes)) > 1:
        raise ValueError(
            f"The two columns of `{name}` must be equally long. Received: {sizes[0]} and "
            f"{sizes[1]} texts."
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
    if tf.is_tensor(texts) and texts.dtype.is_integer and isinstance(texts, tf.RaggedTensor):
        return texts
    if isinstance(texts, list | tuple) and len(texts) and isinstance(texts[0], list | np.ndarray):
        return _ragged_ids(texts, name)
    return string_tensor(texts, name)[0]


def _ragged_ids(rows, name):
    values = np.concatenate([np.asarray(row) for row in rows]) if any(map(len, rows)) else []
    values = np.asarray(values, dtype=None if len(values) else "int32")
    if values.dtype.kind not in "iu":
        raise TypeError(
            f"`{name}` must hold texts, or lists of integer piece ids. Received lists of "
            f"{values.dtype.name}."
        )
    return tf.RaggedTensor.from_row_lengths(values.astype("int32"), [len(row) for row in rows])


def _encode(text):
    """Return a text as UTF-8; half a surrogate pair, which is no character, becomes U+FFFD."""
    if isinstance(text, bytes):
        return text
    try:
        return text.encode()
    except UnicodeEncodeError:
        return "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in text).encode()
