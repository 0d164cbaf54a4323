"""What a user may call texts, checked, as columns of strings or of piece ids."""

import numpy as np

from keras_bert_zoo.preprocessing.lazy_tensorflow import tf


def text_columns(x, name: str = "x") -> tuple:
    """Return texts, or a pair of columns of texts, as a tuple of one or two tensors.

    Args:
        x: a string; a list, array, series or tensor of strings; piece ids, a list of lists
            or a ragged tensor; or a tuple of two of these, which is a pair and never (x,
            labels).
        name: what to call `x` in an error.

    Raises:
        ValueError: a text is not a string, the columns differ in length, or there are
            more than two.

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


def _column(texts, name):
    if tf.is_tensor(texts) or isinstance(texts, tf.RaggedTensor):
        if texts.dtype == tf.string and texts.shape.rank == 0:
            return texts[None]
        if texts.dtype.is_integer or texts.dtype == tf.string:
            return texts
        raise ValueError(f"`{name}` must hold strings. Received a tensor of {texts.dtype.name}.")
    if isinstance(texts, str | bytes):
        texts = [texts]
    if isinstance(texts, list | tuple) and texts and isinstance(texts[0], list | np.ndarray):
        return _ragged_ids(texts, name)
    texts = np.asarray(texts, dtype=object) if not hasattr(texts, "to_numpy") else texts.to_numpy()
    if texts.ndim != 1:
        raise ValueError(
            f"`{name}` must be a text or a list of texts. Received an array of shape "
            f"{texts.shape}; a pair of columns is a tuple, (first, second)."
        )
    for index, text in enumerate(texts):
        if not isinstance(text, str | bytes):
            raise ValueError(f"`{name}[{index}]` must be a string. Received: {text!r}.")
    return tf.constant([_encode(text) for text in texts], dtype=tf.string, shape=texts.shape)


def _ragged_ids(rows, name):
    values = np.concatenate([np.asarray(row) for row in rows]) if any(map(len, rows)) else []
    values = np.asarray(values, dtype=None if len(values) else "int32")
    if values.dtype.kind not in "iu":
        raise ValueError(
            f"`{name}` must hold texts, or lists of integer piece ids. Received lists of "
            f"{values.dtype.name}."
        )
    return tf.RaggedTensor.from_row_lengths(values.astype("int32"), [len(row) for row in rows])


def _encode(text):
    # A lone surrogate passes as invalid bytes, which the tokenizer drops.
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
