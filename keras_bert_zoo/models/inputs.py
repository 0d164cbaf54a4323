"""What a model's inputs must be, checked before a batch reaches the weights."""

from typing import NamedTuple

import keras
import numpy as np

from keras_bert_zoo.preprocessing.dataset import check_id_dataset

# Inputs of places in a row.
_POSITIONS = {"mask_positions", "example_starts", "output_positions"}


class InputRules(NamedTuple):
    """The inputs a model takes, must or may, the first id outside each table, the most positions.

    On JAX an id outside its table would give NaN and no error, on a GPU it would take the
    whole process down; so ids are looked at while their values are still known.
    """

    names: frozenset[str]
    optional_names: frozenset[str]
    limits: dict[str, int]
    max_length: int

    def check(self, inputs) -> None:
        """Refuse inputs that are missing, unknown, or outside the model's tables.

        Raises:
            ValueError: names the input, what came and what was expected. Tensors whose
                values are not known yet, inside a compiled function, pass.
        """
        if not isinstance(inputs, dict) or set(inputs) != self._expected(inputs):
            received = sorted(inputs) if isinstance(inputs, dict) else type(inputs).__name__
            raise ValueError(
                f"The model takes a dictionary with {sorted(self.names)}. Received: {received}."
            )
        shape = tuple(np.shape(inputs["token_ids"]))
        if len(shape) != 2:
            raise ValueError(f"`token_ids` must have shape (batch, length). Received: {shape}.")
        for name in ("segment_ids", "padding_mask"):
            other = tuple(np.shape(inputs[name]))
            # A dimension that is not known yet is None.
            if len(other) != 2 or any(a != b for a, b in zip(shape, other, strict=True) if a and b):
                raise ValueError(
                    f"`{name}` must have the shape of `token_ids`, {shape}. Received: {other}."
                )
        for name in _POSITIONS & set(inputs):
            positions = tuple(np.shape(inputs[name]))
            if len(positions) != 2 or (positions[0] and shape[0] and positions[0] != shape[0]):
                raise ValueError(
                    f"`{name}` must have shape ({shape[0]}, any number). Received: {positions}."
                )
        length = shape[1]
        if isinstance(length, int) and length > self.max_length:
            raise ValueError(
                f"The inputs have {length} positions but `max_sequence_length` is "
                f"{self.max_length}. Cut the text or use a model with more positions."
            )
        for name, limit in {**self.limits, **dict.fromkeys(_POSITIONS, length)}.items():
            values = _known_values(inputs.get(name))
            if values is None or not values.size:
                continue
            if values.dtype.kind not in "iub":
                raise ValueError(f"`{name}` must be integers. Received: {values.dtype.name}.")
            wrong = values[(values < 0) | (values >= limit)]
            if wrong.size:
                raise ValueError(
                    f"`{name}` must be at least 0 and below {limit}. Received: {wrong[0]}."
                )

    def checked(self, x):
        """Return what `fit` iterates over: arrays checked now, all else as its batches come."""
        if isinstance(x, dict):
            self.check(x)
            x = {name: np.asarray(v) if isinstance(v, list) else v for name, v in x.items()}
        elif hasattr(x, "element_spec"):
            spec = x.element_spec
            names = self._expected(spec[0] if isinstance(spec, tuple) else spec)
            x = check_id_dataset(x, names, self.limits, self.max_length)
        elif hasattr(x, "__next__"):
            x = self._checked_generator(x)
        elif is_data_loader(x):
            x = _CheckedDataLoader(x, self._check_batch)
        elif isinstance(x, keras.utils.PyDataset):
            x = _CheckedPyDataset(x, self._check_batch)
        return x

    def _expected(self, inputs):
        return self.names | (self.optional_names & set(inputs))

    def _checked_generator(self, generator):
        for batch in generator:
            self._check_batch(batch)
            yield batch

    def _check_batch(self, batch):
        self.check(batch[0] if isinstance(batch, tuple) else batch)


def is_data_loader(x) -> bool:
    """Say whether `x` is a PyTorch `DataLoader`, without importing PyTorch."""
    return any(c.__module__.startswith("torch.utils.data") for c in type(x).__mro__)


class _CheckedDataLoader(keras.utils.PyDataset):
    """A PyTorch `DataLoader` gone through in its own order, its batches checked."""

    def __init__(self, loader, check):
        super().__init__()
        self.loader = loader
        self.check = check
        self.iterator = None

    def __getitem__(self, index):
        if index == 0 or self.iterator is None:
            self.iterator = iter(self.loader)
        batch = next(self.iterator)
        batch = keras.tree.map_structure(
            np.asarray, tuple(batch) if isinstance(batch, list) else batch
        )
        self.check(batch)
        return batch

    def __len__(self):
        return len(self.loader)


class _CheckedPyDataset(keras.utils.PyDataset):
    """A PyDataset whose batches are checked as they are fetched."""

    def __init__(self, inner, check):
        super().__init__(inner.workers, inner.use_multiprocessing, inner.max_queue_size)
        self.inner = inner
        self.check = check

    def __getitem__(self, index):
        batch = self.inner[index]
        self.check(batch)
        return batch

    def __len__(self):
        return len(self.inner)

    @property
    def num_batches(self):
        return self.inner.num_batches

    def on_epoch_begin(self):
        self.inner.on_epoch_begin()

    def on_epoch_end(self):
        self.inner.on_epoch_end()


def _known_values(x):
    """Return `x` as a NumPy array, or None where a compiled function will only know it later."""
    if x is None or isinstance(x, keras.KerasTensor):
        return None
    if isinstance(x, np.ndarray | list | tuple):
        return np.asarray(x)
    try:
        return keras.ops.convert_to_numpy(x)
    except Exception:  # Each backend's tracer refuses with an error of its own.
        return None
