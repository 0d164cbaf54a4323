"""Columns of integers as serialised `tf.train.Example` records, many at a time.

A record holds an `int64_list` a column. Protocol Buffers writes a message as fields, each a
tag, a length and its bytes, and an integer as a varint: seven bits a byte, the lowest first, the
eighth bit set in all but the last. Making the messages one by one takes twice the time.
"""

import functools
from collections.abc import Mapping

import numpy as np

# Tags of the fields that nest a list in a record: the field's number times 8, plus 2.
_FEATURES = b"\x0a"  # Example.features, 1
_ENTRY = b"\x0a"  # Features.feature, 1, a map whose entries are messages
_KEY = b"\x0a"  # of an entry, 1
_VALUE = b"\x12"  # of an entry, 2
_INT64_LIST = b"\x1a"  # Feature.int64_list, 3
_INTEGERS = b"\x0a"  # Int64List.value, 1, packed


def serialize_examples(columns: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> list[bytes]:
    """Return one serialised `tf.train.Example` a row.

    Args:
        columns: by name the values of all rows one after the other, integers from 0, and how
            many of them each row has.

    Example:
        >>> import numpy as np
        >>> serialize_examples({"a": (np.array([1, 300]), np.array([2]))})
        [b'\\n\\x0e\\n\\x0c\\n\\x01a\\x12\\x07\\x1a\\x05\\n\\x03\\x01\\xac\\x02']
    """
    parts = [_feature_rows(name, *columns[name]) for name in sorted(columns)]
    features = map(b"".join, zip(*parts, strict=True))
    return [_FEATURES + _varint(len(row)) + row for row in features]


def _feature_rows(name, values, row_lengths):
    """Return one column's part of each record."""
    data, sizes = _varints(np.asarray(values, np.int64))
    ends = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])[np.cumsum(row_lengths)].tolist()
    rows, start = [], 0
    for end in ends:
        rows.append(_before(name, end - start) + data[start:end])
        start = end
    return rows


@functools.lru_cache(maxsize=2**14)
def _before(name, size):
    """Return all that comes before the packed integers of a column."""
    around = _INTEGERS + _varint(size)
    for tag in (_INT64_LIST, _VALUE):
        around = tag + _varint(len(around) + size) + around
    around = _KEY + _varint(len(name.encode())) + name.encode() + around
    return _ENTRY + _varint(len(around) + size) + around


@functools.lru_cache(maxsize=2**14)
def _varint(number):
    return _varints(np.array([number]))[0]


def _varints(values):
    """Return the varints of integers one after the other, and the size of each."""
    longest = max(1, -(-int(values.max(initial=0)).bit_length() // 7))
    values = values.astype(np.uint32 if longest < 5 else np.uint64)
    sizes = np.ones(len(values), np.uint8)
    places = np.empty((len(values), longest), np.uint8)
    for k in range(longest):
        rest = values >> 7 * (k + 1)
        more = rest != 0
        sizes += more
        places[:, k] = (values >> 7 * k) & 127 | more.astype(np.uint8) << 7
    if values.min(initial=1) > 0:
        # A zero byte then is no part of a varint, and this is the faster way to leave them out.
        return places.tobytes().translate(None, b"\0"), sizes
    return places[np.arange(longest) < sizes[:, None]].tobytes(), sizes
