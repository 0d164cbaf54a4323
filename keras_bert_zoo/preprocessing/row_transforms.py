"""Rows of preprocessed batches, regrouped so that little of a batch is padding.

What a batch holds is of three kinds. Most labels have an entry an example. `token_ids`, the
labels of words and the like have one a position. `mask_positions` and what is predicted
there have one a prediction. The last two are made ragged here, the padding of a row and its
filling cut away, then rows are put together anew, and at the end padded.
"""

from collections.abc import Sequence

from keras_bert_zoo.layers.common import check_positive_int
from keras_bert_zoo.preprocessing.lazy_tensorflow import tf
from keras_bert_zoo.preprocessing.packing import bucket_lengths, smallest_bucket

EXAMPLE, POSITION, PREDICTION = "example", "position", "prediction"


def bucket_batches(
    dataset, sequence_length: int, batch_size: int = 32, buckets: Sequence[int] | None = None
):
    """Return the rows of a data set in batches of rows of like length, padded to their bucket.

    Args:
        dataset: a `tf.data.Dataset` of batches as a preprocessor makes them: inputs, alone,
            as (inputs, y) or as (inputs, y, sample_weight). `y` is a tensor or a dictionary
            of tensors; those as wide as `token_ids` are labels of positions.
        sequence_length: most positions of a row, an integer.
        batch_size: rows of a batch; what is left of a bucket at the end is a smaller one.
        buckets: the lengths of batches, as a preprocessor takes them.

    Returns:
        A data set of such batches, with each row once. Labels of positions and predictions
        come with a `sample_weight` that is 0 on padding. `mask_positions` and its labels
        are as wide as the next of the default buckets.

    Raises:
        ValueError: an argument is out of range, or the data set has other elements.
        tf.errors.InvalidArgumentError: when it runs, if a row is too long.

    Example:
        >>> tokenizer = BertTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"], lowercase=True)
        >>> preprocessor = BertPreprocessor(tokenizer, sequence_length=32)
        >>> dataset = preprocessor.dataset(["a", "b " * 20, "b", "a " * 30], batch_size=4)
        >>> for inputs in bucket_batches(dataset, sequence_length=32, batch_size=2):
        ...     print(inputs["token_ids"].shape)
        (2, 8)
        (1, 24)
        (1, 32)
    """
    check_positive_int(sequence_length=sequence_length, batch_size=batch_size)
    lengths = bucket_lengths(sequence_length, buckets)
    kinds = _kinds(dataset.element_spec)

    def bucket(*row):
        length = tf.shape(row[0]["token_ids"])[:1]
        return tf.searchsorted(list(lengths), length, out_type=tf.int64)[0]

    def pad(*batch):
        length = smallest_bucket(tf.reduce_max(batch[0]["token_ids"].row_lengths()), lengths)
        return _padded(batch, kinds, sequence_length, {POSITION: length})

    rows = _ragged_batches(dataset, kinds, sequence_length).unbatch()
    batches = rows.group_by_window(
        bucket, lambda _, rows: rows.ragged_batch(batch_size), window_size=batch_size
    )
    return batches.map(pad, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def pack_rows(
    dataset,
    sequence_length: int,
    batch_size: int = 32,
    max_examples: int | None = None,
    window: int = 1024,
):
    """Return the examples of a data set, several to a row (Krell et al. 2021).

    Of `window` examples at a time, the longest first, each goes into the fullest row that
    has room for it. The rows stand in the order of their longest examples, so that long
    and short ones stay mixed.

    Args:
        dataset: as `bucket_batches` takes it.
        sequence_length: positions of a row, an integer.
        batch_size: rows of a batch; the last may be smaller.
        max_examples: most examples of a row; None for a quarter of `sequence_length`.
        window: examples that are looked at together.

    Returns:
        A data set of such batches, with each example once. Inputs are (rows,
        sequence_length), and `example_starts`, int32 (rows, max_examples), is added: where
        each of the row's examples begins. What had one entry an example, (batch, ...), has
        the shape (rows, max_examples, ...). Where there are labels there is a
        `sample_weight`, 0 on padding and filling. `mask_positions` count from the row's
        start, and are as wide, like their labels, as the next of the default buckets.

    Raises:
        ValueError: an argument is out of range, or the data set has other elements.
        tf.errors.InvalidArgumentError: when it runs, if an example is too long.

    Example:
        >>> tokenizer = BertTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"], lowercase=True)
        >>> preprocessor = BertPreprocessor(tokenizer, sequence_length=16)
        >>> dataset = preprocessor.dataset(["a", "b b b", "b"], [7, 8, 9])
        >>> ((inputs, y, sample_weight),) = pack_rows(dataset, sequence_length=16, max_examples=4)
        >>> inputs["token_ids"].numpy().tolist()
        [[2, 6, 6, 6, 3, 2, 5, 3, 2, 6, 3, 0, 0, 0, 0, 0]]
        >>> inputs["example_starts"].numpy().tolist()
        [[0, 5, 8, 0]]
        >>> y.numpy().tolist(), sample_weight.numpy().tolist()
        ([[8, 7, 9, 0]], [[1.0, 1.0, 1.0, 0.0]])
    """
    if max_examples is None:
        max_examples = max(sequence_length // 4, 1)
    check_positive_int(
        sequence_length=sequence_length,
        batch_size=batch_size,
        max_examples=max_examples,
        window=window,
    )
    kinds = _kinds(dataset.element_spec, weighted=True)
    packed_kinds = ({**kinds[0], "example_starts": EXAMPLE}, *kinds[1:])

    def pack(*examples):
        lengths = tf.cast(examples[0]["token_ids"].row_lengths(), tf.int32)
        order, counts = _best_fit_decreasing(lengths, sequence_length, max_examples)
        examples = tf.nest.map_structure(lambda part: tf.gather(part, order), examples)
        # Where each example begins in all that is laid out, less where its row does.
        starts = tf.cumsum(tf.gather(lengths, order), exclusive=True)
        starts -= tf.repeat(tf.gather(starts, tf.cumsum(counts, exclusive=True)), counts)
        inputs = examples[0]
        inputs["example_starts"] = starts
        if "mask_positions" in inputs:
            inputs["mask_positions"] += tf.cast(starts, inputs["mask_positions"].dtype)[:, None]

        def lay(part, kind):
            part = tf.RaggedTensor.from_row_lengths(part, counts, validate=False)
            return part if kind == EXAMPLE else part.merge_dims(1, 2)

        return tf.nest.map_structure(lay, examples, packed_kinds)

    def pad(*batch):
        widths = {POSITION: sequence_length, EXAMPLE: max_examples}
        return _padded(batch, packed_kinds, sequence_length, widths)

    examples = _ragged_batches(dataset, kinds, sequence_length).rebatch(window)
    rows = examples.map(pack, num_parallel_calls=tf.data.AUTOTUNE).rebatch(batch_size)
    return rows.map(pad, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


# === Kinds ===


def _kinds(spec, weighted: bool = False) -> tuple:
    """Return the kinds of what the batches will hold: of inputs, of y, of sample_weight.

    The last are there if the data set has them, if a label's row has padding, or if
    `weighted` says so.
    """
    inputs, *rest = spec if isinstance(spec, tuple) else (spec,)
    parts = [*tf.nest.flatten(inputs), *tf.nest.flatten(rest)]
    if not isinstance(inputs, dict) or not {"token_ids", "padding_mask"} <= set(inputs):
        raise ValueError(
            "The data set must hold preprocessed inputs, a dictionary with `token_ids` and "
            f"`padding_mask`. Received elements: {spec}."
        )
    is_dense = all(isinstance(part, tf.TensorSpec) and part.shape.rank for part in parts)
    if not is_dense or inputs["token_ids"].shape.rank != 2:
        raise ValueError(
            "The data set must hold batches of dense tensors, `token_ids` of shape (batch, "
            f"length). Received elements: {spec}."
        )
    length = inputs["token_ids"].shape[1]

    def kind(part):
        return POSITION if part.shape.rank == 2 and part.shape[1] == length else EXAMPLE

    def label_kind(part):
        positions = inputs.get("mask_positions")
        is_prediction = positions is not None and part.shape.rank == 2
        is_prediction = is_prediction and part.shape[1] == positions.shape[1]
        return PREDICTION if is_prediction else kind(part)

    input_kinds = {
        name: PREDICTION if name == "mask_positions" else kind(part)
        for name, part in inputs.items()
    }
    if not rest:
        return (input_kinds,)
    label_kinds = tf.nest.map_structure(label_kind, rest[0])
    has_padding = set(tf.nest.flatten(label_kinds)) != {EXAMPLE}
    if len(rest) > 1 or has_padding or weighted:
        return input_kinds, label_kinds, label_kinds
    return input_kinds, label_kinds


# === Batches cut to what is real, and padded again ===


def _ragged_batches(dataset, kinds, sequence_length):
    """Return the data set with sample weights where `kinds` has them, padding cut away."""

    def cut(*batch):
        inputs, *labels = batch
        mask = tf.cast(inputs["padding_mask"], tf.int32)
        width = tf.shape(mask)[1]
        # A row of padding alone is kept, as one position.
        lengths = tf.maximum(tf.reduce_max(mask * (tf.range(width) + 1), axis=1), 1)
        tf.debugging.assert_less_equal(
            lengths, sequence_length, f"A row is longer than `sequence_length={sequence_length}`"
        )
        is_real = {POSITION: tf.sequence_mask(lengths, width)}
        if "mask_positions" in inputs:
            # Position 0 holds [CLS], which is never predicted: it is filling.
            is_real[PREDICTION] = inputs["mask_positions"] > 0
        if len(kinds) == 3:
            labels = [labels[0], _weights(*labels, kinds=kinds[1], mask=mask)]

        # What to keep, found once for all parts of a kind.
        places = {kind: tf.where(real) for kind, real in is_real.items()}
        counts = {kind: tf.math.count_nonzero(real, axis=1) for kind, real in is_real.items()}

        def ragged(part, kind):
            if kind == EXAMPLE:
                return part
            tf.debugging.assert_equal(
                tf.shape(part),
                tf.shape(is_real[kind]),
                f"A tensor with an entry a {kind} must be as wide as the batch. A tensor with "
                "an entry an example needs a static shape that says so",
            )
            values = tf.gather_nd(part, places[kind])
            return tf.RaggedTensor.from_row_lengths(values, counts[kind], validate=False)

        return tf.nest.map_structure(ragged, (inputs, *labels), kinds)

    return dataset.map(cut, num_parallel_calls=tf.data.AUTOTUNE)


def _weights(y, sample_weight=None, *, kinds, mask):
    """Return a weight for each entry of the labels: what was given, or 1, and 0 on padding."""

    def weight(label, kind, given):
        if given is not None and (kind == EXAMPLE or given.shape.rank == 2):
            return given
        if given is None:
            given = tf.ones(tf.shape(label)[:1])
        if kind == EXAMPLE:
            return given
        real = mask if kind == POSITION else tf.ones_like(label)
        return given[:, None] * tf.cast(real, given.dtype)

    if not isinstance(y, dict):
        return weight(y, kinds, sample_weight)
    # As in Keras, one weight counts for all labels.
    if not isinstance(sample_weight, dict):
        sample_weight = dict.fromkeys(y, sample_weight)
    return {name: weight(y[name], kinds[name], sample_weight.get(name)) for name in y}


def _padded(batch, kinds, sequence_length, widths):
    """Return a batch dense, and without its tuple where it holds inputs alone.

    `widths` has an entry for each kind that is ragged, but predictions.
    """
    if "mask_positions" in batch[0]:
        longest = tf.reduce_max(batch[0]["mask_positions"].row_lengths())
        widths = {**widths, PREDICTION: smallest_bucket(longest, bucket_lengths(sequence_length))}

    def pad(part, kind):
        if kind not in widths:
            return part
        return part.to_tensor(shape=tf.stack([-1, widths[kind], *part.shape[2:]]))

    batch = tf.nest.map_structure(pad, batch, kinds)
    return batch if len(batch) > 1 else batch[0]


# === Rows of several examples ===


def _best_fit_decreasing(lengths, capacity: int, max_examples: int) -> tuple:
    """Return the examples in the order of the rows they go into, and each row's number of them.

    Examples of one length are placed at once: the fullest row that has room for one takes
    as many as it can, then the next, which is what best fit does with one after the other.
    """
    count = tf.size(lengths)
    descending = tf.argsort(lengths, direction="DESCENDING", stable=True)
    sizes, _, numbers = tf.unique_with_counts(tf.gather(lengths, descending))

    def place(step, rows, room, free, placed):
        fullest = tf.argsort(room, stable=True)
        rows, room, free = (tf.gather(x, fullest) for x in (rows, room, free))
        fitting = tf.minimum(room // sizes[step], free)
        left = numbers[step] - tf.cumsum(fitting, exclusive=True)
        taken = tf.minimum(fitting, tf.maximum(left, 0))
        placed = placed.write(step, tf.repeat(rows, taken))
        return step + 1, rows, room - taken * sizes[step], free - taken, placed

    steps = tf.size(sizes)
    placed = tf.TensorArray(tf.int32, steps, element_shape=[None], infer_shape=False)
    *_, placed = tf.while_loop(
        lambda step, *_: step < steps,
        place,
        (0, tf.range(count), tf.fill([count], capacity), tf.fill([count], max_examples), placed),
    )
    row = placed.concat()
    # A row is called by its first example, its longest.
    first = tf.math.unsorted_segment_min(tf.range(count), row, count)
    row = tf.gather(descending, tf.gather(first, row))
    by_row = tf.argsort(row, stable=True)
    _, _, counts = tf.unique_with_counts(tf.gather(row, by_row), out_idx=tf.int64)
    return tf.gather(descending, by_row), counts
