"""Rows of preprocessed batches, regrouped so that little of a batch is padding.

What a batch holds is of three kinds. Most labels have an entry an example. `token_ids`, the
labels of words and the like have one a position. `mask_positions` and what is predicted
there have one a prediction. The last two are made ragged here, the padding of a row and its
filling cut away, then rows are put together anew, and at the end padded: with 0, also where
the vocabulary's [PAD] is another. What stands under padding changes no output, 0 is in every
table, and batches without padding could not tell the id.
"""

from collections.abc import Sequence

from keras_bert_zoo.layers.common import check_positive_int
from keras_bert_zoo.preprocessing.lazy_tensorflow import tf
from keras_bert_zoo.preprocessing.packing import bucket_lengths, smallest_bucket

EXAMPLE, POSITION, PREDICTION = "example", "position", "prediction"


def bucket_batches(
    dataset,
    sequence_length: int,
    batch_size: int = 32,
    buckets: Sequence[int] | None = None,
    *,
    label_kinds: str | dict[str, str] | None = None,
    count: bool = False,
):
    """Return the rows of a data set in batches of rows of like length, padded to their bucket.

    Args:
        dataset: a `tf.data.Dataset` of batches as a preprocessor makes them: inputs, alone,
            as (inputs, y) or as (inputs, y, sample_weight). `y` and `sample_weight` are
            tensors or dictionaries of tensors.
        sequence_length: most positions of a row, an integer.
        batch_size: rows of a batch; what is left of a bucket at the end is a smaller one.
        buckets: the lengths of batches, as a preprocessor takes them.
        label_kinds: whether `y` has an entry an `"example"`, a `"position"` or a
            `"prediction"`, one word for all labels or a dictionary. None goes by shapes:
            (batch, width) is labels of predictions or positions if `mask_positions` or
            `token_ids` are as wide, and others are labels of examples. Where that width is
            one number for all batches, labels of examples could have it by chance: then it
            is to be said here, unless a `sample_weight` of the same width says it.
        count: read the data set once, which must be the same in each pass, to count the
            batches. `cardinality()` then tells their number, from which `fit` and its learning
            rate know the steps.

    Returns:
        A data set of such batches, with each row once. Labels of positions and predictions
        come with a `sample_weight` that is 0 on padding. `mask_positions` and its labels
        are as wide as the next of the default buckets.

    Raises:
        TypeError: `dataset` is no data set.
        ValueError: an argument is out of range, the data set has other elements, or
            `label_kinds` is needed.
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
    kinds = _kinds(dataset, label_kinds)

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
    return _finished(batches.map(pad, num_parallel_calls=tf.data.AUTOTUNE), dataset, count)


def pack_rows(
    dataset,
    sequence_length: int,
    batch_size: int | None = 32,
    max_examples: int | None = None,
    window: int | None = 1024,
    *,
    max_predictions: int | None = None,
    initial_examples: int = 0,
    label_kinds: str | dict[str, str] | None = None,
    count: bool = False,
):
    """Return the examples of a data set, several to a row (Krell et al. 2021).

    Of `window` examples at a time, the longest first, each goes into the fullest row that
    has room for it. The rows stand in the order of their longest examples, so that long
    and short ones stay mixed.

    For new masks and a new order each epoch, let the preprocessor's data set hold all
    epochs, and count their batches: the second example. They are packed as one stream, so
    the last examples of an epoch may share a batch with the first of the next.

    Args:
        dataset: as `bucket_batches` takes it, of rows of one example.
        sequence_length: positions of a row, an integer.
        batch_size: rows of a batch; the last may be smaller. None for all rows of a window.
        max_examples: most examples of a row; None for a quarter of `sequence_length`.
        window: examples that are looked at together; None for those of each batch of `dataset`.
        max_predictions: most `mask_positions` of a row, and then their width in every batch.
            None takes what comes.
        initial_examples: examples of the first window, in the order of the rows, to pass over;
            none of a row's examples is passed over alone. With as many as were seen, a run
            that goes on gets the rows it would have had.
        label_kinds, count: as for `bucket_batches`.

    Returns:
        A data set of such batches, with each example once. Inputs are (rows,
        sequence_length), and `example_starts`, int32 (rows, max_examples), is added: where
        each of the row's examples begins. What had one entry an example, (batch, ...), has
        the shape (rows, max_examples, ...). Where there are labels there is a
        `sample_weight`, 0 on padding and filling. `mask_positions` count from the row's
        start, and are as wide, like their labels, as `max_predictions` or else as the next of
        the default buckets.

    Raises:
        TypeError: `dataset` is no data set.
        ValueError: an argument is out of range, the data set has other elements, or
            `label_kinds` is needed.
        tf.errors.InvalidArgumentError: when it runs, if an example is too long, or has more
            than `max_predictions`.

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

        >>> preprocessor = BertMaskedLMPreprocessor(tokenizer, sequence_length=16)
        >>> epochs = preprocessor.dataset(["a b a", "b b", "a"] * 8, shuffle=True, epochs=3)
        >>> packed = pack_rows(epochs, sequence_length=16, batch_size=2, count=True)
        >>> steps = int(packed.cardinality()) // 3
        >>> model = BertMaskedLM(BertBackbone(
        ...     vocabulary_size=7, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16))
        >>> history = model.fit(packed, epochs=3, steps_per_epoch=steps, verbose=0)
        >>> float(model.optimizer.learning_rate)
        0.0
    """
    if max_examples is None:
        max_examples = default_max_examples(sequence_length)
    limits = {"batch_size": batch_size, "window": window, "max_predictions": max_predictions}
    check_positive_int(
        sequence_length=sequence_length,
        max_examples=max_examples,
        **{name: limit for name, limit in limits.items() if limit is not None},
    )
    kinds = _kinds(dataset, label_kinds, weighted=True)
    if "example_starts" in kinds[0]:
        raise ValueError("`dataset` must have one example a row. Received: rows packed already.")
    if max_predictions is not None and "mask_positions" not in kinds[0]:
        raise ValueError("`max_predictions` needs `mask_positions` in `dataset`. Received: none.")
    packed_kinds = ({**kinds[0], "example_starts": EXAMPLE}, *kinds[1:])

    def pack(number, examples):
        sizes = [tf.cast(examples[0]["token_ids"].row_lengths(), tf.int32)]
        capacities = [sequence_length]
        if max_predictions is not None:
            sizes.append(tf.cast(examples[0]["mask_positions"].row_lengths(), tf.int32))
            capacities.append(max_predictions)
        order, counts = _best_fit_decreasing(sizes, capacities, max_examples)
        passed_over = tf.where(number == 0, tf.constant(initial_examples, tf.int64), 0)
        is_left = tf.cumsum(counts) > passed_over
        order = tf.boolean_mask(order, tf.repeat(is_left, counts))
        counts = tf.boolean_mask(counts, is_left)
        lengths = tf.gather(sizes[0], order)
        examples = tf.nest.map_structure(lambda part: tf.gather(part, order), examples)
        # Where each example begins in all that is laid out, less where its row does.
        starts = tf.cumsum(lengths, exclusive=True)
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
        if max_predictions is not None:
            widths[PREDICTION] = max_predictions
        return _padded(batch, packed_kinds, sequence_length, widths)

    examples = _ragged_batches(dataset, kinds, sequence_length)
    if window is not None:
        examples = examples.rebatch(window)
    rows = examples.enumerate().map(pack, num_parallel_calls=tf.data.AUTOTUNE)
    if batch_size is not None:
        rows = rows.rebatch(batch_size)
    return _finished(rows.map(pad, num_parallel_calls=tf.data.AUTOTUNE), dataset, count)


def full_batches(dataset, batch_size: int):
    """Return batches of one shape, each filled up with rows of padding.

    Args:
        dataset: a `tf.data.Dataset` of ((inputs, labels, weights), ids), batches of at most
            `batch_size` rows. The ids stay as they are.
        batch_size: rows of a batch.

    Returns:
        The batches. What is added is 0, its weights too: it counts in no loss or metric that
        is a weighted mean.
    """

    def fill(batch, ids):
        def fill_rows(part):
            missing = tf.concat([[batch_size - tf.shape(part)[0]], tf.shape(part)[1:]], 0)
            filled = tf.concat([part, tf.zeros(missing, part.dtype)], 0)
            return tf.ensure_shape(filled, [batch_size, *part.shape[1:]])

        return tf.nest.map_structure(fill_rows, batch), ids

    return dataset.map(fill, num_parallel_calls=tf.data.AUTOTUNE)


def default_max_examples(sequence_length: int) -> int:
    """Return how many examples a packed row may hold where nothing else is said."""
    return max(sequence_length // 4, 1)


def _finished(batches, dataset, count):
    """Return the batches of a data set made ahead, and their number known if `count` says so."""
    if count:
        if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
            raise ValueError("`count=True` needs a data set that ends. Received: one without end.")
        number = batches.reduce(tf.constant(0, tf.int64), lambda number, _: number + 1)
        batches = batches.apply(tf.data.experimental.assert_cardinality(number))
    return batches.prefetch(tf.data.AUTOTUNE)


# === Kinds ===


def _kinds(dataset, label_kinds=None, weighted: bool = False) -> tuple:
    """Return the kinds of what the batches will hold: of inputs, of y, of sample_weight.

    The last are there if the data set has them, if a label's row has padding, or if
    `weighted` says so.
    """
    if not isinstance(dataset, tf.data.Dataset):
        raise TypeError(
            "`dataset` must be a `tf.data.Dataset` of batches, as a preprocessor's `dataset` "
            f"returns it. Received: {type(dataset).__name__}."
        )
    spec = dataset.element_spec
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
    if not all(isinstance(part, tf.TensorSpec) for part in _each_label(rest)):
        raise ValueError(
            "`y` must be a tensor or a dictionary of tensors, and `sample_weight` a tensor or, "
            f"where `y` is one, a dictionary of tensors. Received elements: {spec}."
        )

    def is_as_wide(part, rows):
        return part.shape.rank == 2 and part.shape[1] in (None, inputs[rows].shape[1])

    input_kinds = {
        name: POSITION if is_as_wide(part, "token_ids") else EXAMPLE
        for name, part in inputs.items()
    }
    rows_of_kinds = {POSITION: "token_ids"}
    if "mask_positions" in inputs:
        input_kinds["mask_positions"] = PREDICTION
        # What could be either is what the masked-LM models take.
        rows_of_kinds = {PREDICTION: "mask_positions", **rows_of_kinds}
    if not rest:
        return (input_kinds,)

    def label_kind(label, weight, said):
        known = (EXAMPLE, *rows_of_kinds)
        if said is not None and said not in known:
            raise ValueError(f"`label_kinds` must be one of {known} here. Received: {said!r}.")
        fitting = [kind for kind, rows in rows_of_kinds.items() if is_as_wide(label, rows)]
        if said is not None or not fitting:
            return said or EXAMPLE
        width = label.shape[1]
        # Where the width differs from batch to batch, it is compared while they are made.
        if width is None or (weight is not None and weight.shape[1:] == label.shape[1:]):
            return fitting[0]
        raise ValueError(
            f"Labels of shape (batch, {width}) may have an entry a {fitting[0]} or be vectors, "
            f"one an example: pass `label_kinds={fitting[0]!r}` or `label_kinds={EXAMPLE!r}`."
        )

    if isinstance(label_kinds, dict) and not (
        isinstance(rest[0], dict) and set(label_kinds) <= set(rest[0])
    ):
        raise ValueError(
            f"`label_kinds` must have the names of labels. Received: {sorted(label_kinds)} for "
            f"{rest[0]}."
        )
    kinds = _by_label(label_kind, rest[0], rest[1] if len(rest) > 1 else None, label_kinds)
    has_padding = set(tf.nest.flatten(kinds)) != {EXAMPLE}
    if len(rest) > 1 or has_padding or weighted:
        return input_kinds, kinds, kinds
    return input_kinds, kinds


def _each_label(labels):
    """Return y and sample_weight one by one, of dictionaries what is in them."""
    is_named = bool(labels) and isinstance(labels[0], dict)
    return [
        part
        for given in labels
        for part in (given.values() if is_named and isinstance(given, dict) else [given])
    ]


def _by_label(function, y, *others):
    """Return what `function` gives for each label and what belongs to it.

    As with Keras's weights, what is no dictionary counts for all labels.
    """
    if not isinstance(y, dict):
        return function(y, *others)
    return {
        name: function(
            label, *(other.get(name) if isinstance(other, dict) else other for other in others)
        )
        for name, label in y.items()
    }


# === Batches cut to what is real, and padded again ===


def _ragged_batches(dataset, kinds, sequence_length):
    """Return the data set with sample weights where `kinds` has them, padding cut away."""

    def cut(*batch):
        inputs, *labels = batch
        mask = tf.cast(inputs["padding_mask"], tf.int32)
        width = tf.shape(mask)[1]
        # A row of padding alone is kept, as one position.
        lengths = tf.maximum(tf.reduce_max(mask * (tf.range(width) + 1), axis=1), 1)
        longest = tf.reduce_max(lengths)
        message = (
            f"A row must have at most {sequence_length} positions, `sequence_length`. Received:"
        )
        tf.debugging.Assert(longest <= sequence_length, [message, longest])
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

    return _by_label(weight, y, kinds, sample_weight)


def _padded(batch, kinds, sequence_length, widths):
    """Return a batch dense, and without its tuple where it holds inputs alone.

    `widths` has an entry for each kind that is ragged, but may leave out predictions.
    """
    if "mask_positions" in batch[0] and PREDICTION not in widths:
        longest = tf.reduce_max(batch[0]["mask_positions"].row_lengths())
        widths = {**widths, PREDICTION: smallest_bucket(longest, bucket_lengths(sequence_length))}

    def pad(part, kind):
        if kind not in widths:
            return part
        return part.to_tensor(shape=tf.stack([-1, widths[kind], *part.shape[2:]]))

    batch = tf.nest.map_structure(pad, batch, kinds)
    return batch if len(batch) > 1 else batch[0]


# === Rows of several examples ===


def _best_fit_decreasing(sizes: Sequence, capacities: Sequence[int], max_examples: int) -> tuple:
    """Return the examples in the order of the rows they go into, and each row's number of them.

    `sizes` are what the examples take up of each of a row's `capacities`: first lengths, which
    decide what is longest and fullest. Examples of one length are placed at once: the fullest
    row that has room for one takes as many as it can, then the next, which is what best fit
    does with one after the other. Of the other sizes each counts as the largest of its length.
    """
    count = tf.size(sizes[0])
    descending = tf.argsort(sizes[0], direction="DESCENDING", stable=True)
    lengths, length_number, numbers = tf.unique_with_counts(tf.gather(sizes[0], descending))
    steps = tf.size(lengths)
    needs = [tf.math.segment_max(tf.gather(size, descending), length_number) for size in sizes]
    # Each takes one of the places for examples besides.
    needs = tf.stack([*needs, tf.ones_like(lengths)])
    capacities = tf.constant([*capacities, max_examples])
    most = tf.reduce_max(needs, axis=1)
    message = "An example takes up more of a row than there is. Received, and the limits:"
    fits = tf.debugging.Assert(tf.reduce_all(most <= capacities), [message, most, capacities])
    with tf.control_dependencies([fits]):
        needs = tf.identity(needs)

    def place(step, rows, room, placed):
        need = needs[:, step]
        fullest = tf.argsort(room[0], stable=True)
        rows, room = tf.gather(rows, fullest), tf.gather(room, fullest, axis=1)
        # What takes up nothing of a resource fits any number of times.
        fitting = tf.reduce_min(
            tf.where(need[:, None] > 0, room // tf.maximum(need, 1)[:, None], count), axis=0
        )
        left = numbers[step] - tf.cumsum(fitting, exclusive=True)
        taken = tf.minimum(fitting, tf.maximum(left, 0))
        placed = placed.write(step, tf.repeat(rows, taken))
        return step + 1, rows, room - taken * need[:, None], placed

    placed = tf.TensorArray(tf.int32, steps, element_shape=[None], infer_shape=False)
    *_, placed = tf.while_loop(
        lambda step, *_: step < steps,
        place,
        (0, tf.range(count), tf.repeat(capacities[:, None], count, axis=1), placed),
    )
    row = placed.concat()
    # A row is called by its first example, its longest.
    first = tf.math.unsorted_segment_min(tf.range(count), row, count)
    row = tf.gather(descending, tf.gather(first, row))
    by_row = tf.argsort(row, stable=True)
    _, _, counts = tf.unique_with_counts(tf.gather(row, by_row), out_idx=tf.int64)
    return tf.gather(descending, by_row), counts
