"""Lists of strings, any number each: the words of sentences, the choices of questions."""

from typing import Any

import numpy as np

from keras_bert_zoo.preprocessing.lazy_tensorflow import tf
from keras_bert_zoo.preprocessing.texts import received, string_list

_ROW_TYPES = list | tuple | np.ndarray


def is_rows(rows: Any) -> bool:
    """Say whether `rows` is a list of lists or a tensor of rows, and not a list of strings."""
    if tf.is_tensor(rows):
        return rows.shape.rank == 2
    if isinstance(rows, np.ndarray) and rows.ndim == 2:
        return True
    return not isinstance(rows, str | bytes) and len(rows) > 0 and isinstance(rows[0], _ROW_TYPES)


def string_rows(rows: Any, name: str) -> Any:
    """Return lists of strings as a ragged string tensor (batch, strings).

    Args:
        rows: a list of lists of strings, or a string tensor (batch, strings), ragged or not.
        name: what to call `rows` in an error.

    Raises:
        TypeError: a row is no list, or an entry no string; its place is named.

    Example:
        >>> string_rows([["a", "b"], []], "words").to_list()
        [[b'a', b'b'], []]
    """
    if tf.is_tensor(rows):
        if rows.dtype != tf.string or rows.shape.rank != 2:
            raise TypeError(
                f"`{name}` must be a tensor of strings of the shape (batch, strings). Received: "
                f"shape {rows.shape}, dtype {rows.dtype.name}."
            )
        return rows if isinstance(rows, tf.RaggedTensor) else tf.RaggedTensor.from_tensor(rows)
    for index, row in enumerate(rows):
        if not isinstance(row, _ROW_TYPES):
            raise TypeError(f"`{name}[{index}]` must be a list of strings. {received(row)}")
    flat = [string_list(list(row), f"{name}[{index}]") for index, row in enumerate(rows)]
    return tf.RaggedTensor.from_row_lengths(
        tf.concat([tf.constant([], tf.string), *flat], axis=0),
        tf.constant([len(row) for row in rows], tf.int64),
    )
