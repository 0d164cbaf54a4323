"""Texts or piece ids, with labels, as the batches a model is trained on."""

import numpy as np

from keras_bert_zoo.preprocessing.lazy_tensorflow import tf

# Texts that are tokenised at once.
_CHUNK = 4096


def batches(
    preprocessor,
    x,
    y=None,
    sample_weight=None,
    *,
    batch_size: int,
    shuffle: bool = False,
    seed: int = 0,
    epochs: int = 1,
    initial_epoch: int = 0,
    initial_step: int = 0,
    order: np.ndarray | None = None,
    with_example_ids: bool = False,
):
    """Return a `tf.data.Dataset` of preprocessed batches, all epochs one after the other.

    Args:
        preprocessor: has `batch_graph(texts, y, sample_weight, example_ids, epoch)`.
        x: a tuple of columns, a segment each: string tensors (examples,) or ragged piece ids.
        y, sample_weight: arrays, or nests of them, with a row an example; or None.
        batch_size: examples a batch; the last of an epoch may be smaller.
        shuffle: a new order each epoch, set by `seed` and the epoch alone.
        seed, epochs, initial_epoch: integers.
        initial_step: batches of the first epoch to pass over.
        order: the examples' places, int64 (examples,); as they stand if None.
        with_example_ids: give (batch, ids), the rows' places in `x`, int64 (batch,).

    Raises:
        ValueError: `y` or `sample_weight` has not one row an example.
    """
    size = x[0].shape[0]
    rows = _rows(x, y, sample_weight)

    def examples(epoch):
        places = tf.range(size, dtype=tf.int64) if order is None else tf.constant(order)
        if shuffle:
            places = tf.random.experimental.stateless_shuffle(places, seed=[seed, epoch])
        first = tf.where(epoch == initial_epoch, tf.constant(initial_step, tf.int64), 0)
        places = tf.data.Dataset.from_tensor_slices(places[first * batch_size :]).batch(batch_size)
        return places.map(lambda ids: make_batch(ids, epoch), num_parallel_calls=tf.data.AUTOTUNE)

    def make_batch(ids, epoch):
        batch = _batch(preprocessor, rows, ids, epoch)
        return (batch, ids) if with_example_ids else batch

    dataset = tf.data.Dataset.range(initial_epoch, epochs).flat_map(examples)
    steps = -(-size // batch_size) * (epochs - initial_epoch) - initial_step
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(steps))
    return untuned(dataset.prefetch(tf.data.AUTOTUNE))


def one_batch(preprocessor, x, y=None, sample_weight=None, *, order: np.ndarray) -> tuple:
    """Return all examples as one batch, NumPy arrays; arguments and errors as for `batches`.

    A data set takes a tenth of a second before its first batch, and this a hundredth of that.
    """
    rows = _rows(x, y, sample_weight)
    batch = _batch(preprocessor, rows, tf.constant(order), tf.constant(0, tf.int64))
    return tf.nest.map_structure(lambda part: part if part is None else part.numpy(), batch)


def untuned(dataset):
    """Return the data set without tf.data's tuner, and as it was built.

    The tuner sleeps between its rounds, twice as long each time, and the end of an iteration waits
    until it wakes: an iteration of three seconds took five. The search for a better arrangement
    delays the first batch, and finds none.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    return dataset.with_options(options)


def to_pieces(tokenizer, column):
    """Return strings (texts,) as ragged pieces, many at a time; a column of pieces as it is."""
    if column.dtype != tf.string:
        return column
    # A data set takes longer to begin than few texts to tokenise, and has all cores for many.
    if column.shape[0] <= _CHUNK:
        return tokenizer(column)
    chunks = tf.data.Dataset.from_tensor_slices(column).batch(_CHUNK)
    chunks = chunks.map(tokenizer, num_parallel_calls=tf.data.AUTOTUNE)
    return tf.concat(list(untuned(chunks)), axis=0)


def longest_first(x: tuple) -> np.ndarray:
    """Return the places of examples by how long they are, int64 (examples,), the longest first.

    `x` are columns of ragged pieces, as for `batches`.
    """
    lengths = sum(column.row_lengths() for column in x)
    return np.argsort(-lengths.numpy(), kind="stable")


def _rows(x, y, sample_weight):
    """Return what has a row an example, tensors, by name."""
    rows = {"x": x}
    for name, values in (("y", y), ("sample_weight", sample_weight)):
        if values is not None:
            rows[name] = _with_rows(values, name, x[0].shape[0])
    return rows


def _batch(preprocessor, rows, ids, epoch):
    """Return the preprocessed batch of the rows at `ids`."""
    batch = tf.nest.map_structure(lambda column: tf.gather(column, ids), rows)
    y, sample_weight = batch.get("y"), batch.get("sample_weight")
    return preprocessor.batch_graph(batch["x"], y, sample_weight, example_ids=ids, epoch=epoch)


def _with_rows(values, name, size):
    """Return labels or weights, an array or a dictionary of arrays, as tensors of `size` rows."""
    if isinstance(values, dict):
        return {key: _with_rows(value, f"{name}[{key!r}]", size) for key, value in values.items()}
    values = tf.convert_to_tensor(values)
    if values.shape[:1] != (size,):
        raise ValueError(
            f"`{name}` must have one row an example. Received: shape {values.shape} for {size} "
            "examples."
        )
    return values


def map_dataset(preprocessor, dataset) -> tuple:
    """Return a dataset of texts, batched, as preprocessed batches, and a way to tell the epoch.

    Elements are texts or a tuple of columns of texts, a segment each, alone or as (texts, y)
    or (texts, y, sample_weight). The second result is a function that takes an epoch's
    number: what is masked in the passes from then on depends on it and on the example's place.

    Raises:
        ValueError: the dataset is not batched.
    """
    spec = dataset.element_spec
    # A dataset of pairs and a dataset of (texts, labels) are told apart by what comes
    # second: columns of strings are all segments.
    has_y = isinstance(spec, tuple) and not all(
        isinstance(part, tf.TensorSpec) and part.dtype == tf.string for part in spec
    )
    texts = spec[0] if has_y else spec
    if any(part.shape.rank != 1 for part in tf.nest.flatten(texts)):
        raise ValueError(
            "The dataset must be batched: texts of shape (batch,), for instance by "
            f"`dataset.batch(32)`. Received elements: {spec}."
        )

    epoch = tf.Variable(0, dtype=tf.int64, trainable=False)

    def number(first, element):
        size = tf.shape(tf.nest.flatten(element)[0], tf.int64)[0]
        return first + size, (first + tf.range(size), element)

    def make_batch(example_ids, element):
        x, *rest = element if has_y else (element,)
        x = x if isinstance(x, tuple) else (x,)
        y, sample_weight = [*rest, None, None][:2]
        return preprocessor.batch_graph(x, y, sample_weight, example_ids=example_ids, epoch=epoch)

    dataset = dataset.scan(tf.constant(0, tf.int64), number)
    dataset = dataset.map(make_batch, num_parallel_calls=tf.data.AUTOTUNE)
    return dataset.prefetch(tf.data.AUTOTUNE), epoch.assign


def watched(dataset, note):
    """Return the batches of a dataset of ((inputs, labels, weights), ids).

    `note(number, ids, real_pieces)` is called with each one's number, the list of its ids and
    its count of pieces that are no padding, before the batch goes on: early where batches are
    prefetched, and again where another iteration begins.
    """

    def pass_on(number, element):
        batch, example_ids = element

        def call(number, ids, real):
            note(int(number), ids.tolist(), int(real))
            return np.zeros((), np.int32)

        real = tf.reduce_sum(batch[0]["padding_mask"])
        tf.numpy_function(call, [number, example_ids, real], tf.int32)
        return batch

    return dataset.enumerate().map(pass_on).prefetch(tf.data.AUTOTUNE)


def predict_from_before(batch: tuple) -> tuple:
    """Return (inputs, labels, weights) with each label at the position before its piece's."""
    inputs, *rest = batch
    positions = tf.maximum(inputs["mask_positions"] - 1, 0)
    return ({**inputs, "mask_positions": positions}, *rest)


def check_id_dataset(dataset, names: set[str], limits: dict[str, int], max_length: int):
    """Return a dataset of model inputs that fails, by name, on an id outside its table.

    Args:
        dataset: elements are inputs, alone or with labels behind them.
        names: the inputs the model takes.
        limits: for each input of ids, the first value that is too high.
        max_length: the most positions.

    Raises:
        ValueError: an input is missing or unknown.
    """
    spec = dataset.element_spec
    inputs = spec[0] if isinstance(spec, tuple) else spec
    if set(inputs) != names:
        raise ValueError(f"The model takes the inputs {sorted(names)}. Received: {sorted(inputs)}.")

    def check(*element):
        inputs = element[0]
        for name, limit in limits.items():
            if name in inputs:
                values = inputs[name]
                highest, lowest = tf.reduce_max(values), tf.reduce_min(values)
                message = f"`{name}` must be at least 0 and below {limit}. Received:"
                tf.debugging.Assert((highest < limit) & (lowest >= 0), [message, lowest, highest])
        length = tf.shape(inputs["token_ids"])[1]
        message = (
            f"The inputs' length must be at most `max_sequence_length`, {max_length}. Received:"
        )
        tf.debugging.Assert(length <= max_length, [message, length])
        if "mask_positions" in inputs:
            lowest = tf.reduce_min(inputs["mask_positions"])
            highest = tf.reduce_max(inputs["mask_positions"])
            message = (
                "`mask_positions` must be at least 0 and below the rows' length. "
                "Received lowest, highest and length:"
            )
            tf.debugging.Assert(
                (lowest >= 0) & (highest < tf.cast(length, highest.dtype)),
                [message, lowest, highest, length],
            )
        return element if len(element) > 1 else element[0]

    return dataset.map(check, num_parallel_calls=tf.data.AUTOTUNE)
