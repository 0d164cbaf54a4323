"""Rows regrouped: nothing lost, nothing twice, each label still beside its pieces."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from keras_bert_zoo.preprocessing import (
    BertMaskedLMPreprocessor,
    BertPreprocessor,
    BertPretrainerPreprocessor,
    BertTokenizer,
    bucket_batches,
    pack_rows,
)
from keras_bert_zoo.preprocessing.row_transforms import _best_fit_decreasing

pytestmark = pytest.mark.backend_free

CLS, SEP = 2, 3
WORDS = [f"w{i}" for i in range(100)]
TOKENIZER = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS], lowercase=True)
RANDOM = np.random.default_rng(0)
TEXTS = [" ".join(RANDOM.choice(WORDS, n)) for n in RANDOM.integers(0, 29, 60)]
LABELS = list(range(1, 61))


def together(*tensors):
    """The rows of several tensors side by side."""
    return zip(*(tensor.numpy() for tensor in tensors), strict=True)


def rows_of(inputs):
    """The real pieces and segments of each row of a batch."""
    rows = []
    for ids, segments, mask in together(
        inputs["token_ids"], inputs["segment_ids"], inputs["padding_mask"]
    ):
        size = int(mask.sum())
        assert mask.tolist() == [1] * size + [0] * (len(mask) - size)
        assert not ids[size:].any() and not segments[size:].any()
        rows.append((tuple(ids[:size].tolist()), tuple(segments[:size].tolist())))
    return rows


def examples_of(inputs):
    """The pieces and segments of each example of packed rows, row by row."""
    rows = []
    for (ids, segments), starts in zip(
        rows_of(inputs), inputs["example_starts"].numpy(), strict=True
    ):
        starts = [0, *starts[starts > 0].tolist()]
        ends = [*starts[1:], len(ids)]
        rows.append([(ids[a:b], segments[a:b]) for a, b in zip(starts, ends, strict=True)])
    return rows


@functools.cache
def classified():
    """A data set of texts with labels, and its rows with theirs."""
    dataset = BertPreprocessor(TOKENIZER, 32).dataset(TEXTS, LABELS, batch_size=16)
    rows = [row for inputs, y in dataset for row in zip(rows_of(inputs), y.numpy(), strict=True)]
    return sorted(rows), dataset


# === Buckets ===


def test_each_row_is_in_one_batch_of_its_bucket():
    examples, dataset = classified()
    found, shapes = [], set()
    for inputs, y in bucket_batches(dataset, 32, batch_size=8, buckets=[8, 20]):
        rows = rows_of(inputs)
        length = inputs["token_ids"].shape[1]
        shapes.add(length)
        below = {8: 0, 20: 8, 32: 20}[length]
        assert all(below < len(ids) <= length for ids, _ in rows)
        found += zip(rows, y.numpy(), strict=True)
    assert sorted(found) == examples
    assert shapes == {8, 20, 32}


def test_batches_of_a_bucket_are_full_but_its_last():
    _, dataset = classified()
    sizes = {}
    for inputs, _ in bucket_batches(dataset, 32, batch_size=8, buckets=[8, 20]):
        rows, length = inputs["token_ids"].shape
        sizes.setdefault(length, []).append(rows)
    assert all(set(rows[:-1]) <= {8} and rows[-1] <= 8 for rows in sizes.values())


def test_labels_of_examples_are_bucketed_as_they_were():
    _, dataset = classified()
    assert [part.dtype for part in bucket_batches(dataset, 32).element_spec[1:]] == [tf.int32]
    weighted = dataset.map(lambda x, y: (x, y, tf.cast(y, tf.float64) / 2))
    for _, y, weight in bucket_batches(weighted, 32):
        assert weight.numpy().tolist() == [label / 2 for label in y.numpy()]


# === Packed rows ===


def test_each_example_is_in_one_row_with_its_label():
    examples, dataset = classified()
    found = []
    for inputs, y, weight in pack_rows(dataset, 48, batch_size=4, max_examples=6):
        assert inputs["token_ids"].shape[1] == 48
        assert inputs["example_starts"].shape[1] == y.shape[1] == weight.shape[1] == 6
        for row, labels, weights in zip(
            examples_of(inputs), y.numpy(), weight.numpy(), strict=True
        ):
            size = len(row)
            assert weights.tolist() == [1.0] * size + [0.0] * (6 - size)
            assert not labels[size:].any()
            found += zip(row, labels[:size].tolist(), strict=True)
    assert sorted(found) == sorted(examples)


def test_pairs_keep_their_segments():
    firsts = [text for text in TEXTS if text]
    dataset = BertPreprocessor(TOKENIZER, 24).dataset((firsts, firsts[::-1]))
    before = [row for inputs in dataset for row in rows_of(inputs)]
    after = [e for inputs in pack_rows(dataset, 64) for row in examples_of(inputs) for e in row]
    assert {piece for _, segments in after for piece in segments} == {0, 1}
    assert sorted(after) == sorted(before)


@pytest.mark.parametrize(("capacity", "most"), [(16, 100), (16, 3), (40, 100), (10, 1)])
def test_examples_go_into_the_fullest_row_that_has_room(capacity, most):
    lengths = np.random.default_rng(capacity).integers(1, 11, 150).tolist()
    rows = []
    for example in sorted(range(150), key=lambda i: -lengths[i]):
        room = [
            (capacity - sum(lengths[i] for i in row), number)
            for number, row in enumerate(rows)
            if len(row) < most
        ]
        fitting = [(left, number) for left, number in room if left >= lengths[example]]
        if fitting:
            rows[min(fitting)[1]].append(example)
        else:
            rows.append([example])
    packed = _best_fit_decreasing([tf.constant(lengths)], [capacity], most)
    order, counts = (x.numpy() for x in packed)
    found = np.split(order, np.cumsum(counts)[:-1])
    sizes = sorted(sorted(lengths[i] for i in row) for row in rows)
    assert sorted(sorted(lengths[i] for i in row) for row in found) == sizes
    assert sorted(order.tolist()) == list(range(150))
    assert [row[0] for row in found] == sorted(row[0] for row in found)


def test_a_row_s_examples_may_all_be_blank():
    dataset = BertPreprocessor(TOKENIZER, 8).dataset([""] * 5, [1, 2, 3, 4, 5])
    ((inputs, y, weight),) = pack_rows(dataset, 8, max_examples=4)
    assert inputs["token_ids"].numpy().tolist() == [[CLS, SEP] * 4, [CLS, SEP] + [0] * 6]
    assert inputs["example_starts"].numpy().tolist() == [[0, 2, 4, 6], [0, 0, 0, 0]]
    assert y.numpy().tolist() == [[1, 2, 3, 4], [5, 0, 0, 0]]
    assert weight.numpy().tolist() == [[1, 1, 1, 1], [1, 0, 0, 0]]


def test_a_row_of_padding_alone_is_an_example_of_one_position():
    inputs = {name: [[0, 0], [1, 1]] for name in ("token_ids", "padding_mask")}
    dataset = tf.data.Dataset.from_tensors((inputs, [4, 5]))
    ((inputs, y, _),) = pack_rows(dataset, 4, max_examples=3)
    assert inputs["padding_mask"].numpy().tolist() == [[1, 1, 0, 0]]
    assert inputs["example_starts"].numpy().tolist() == [[0, 2, 0]]
    assert y.numpy().tolist() == [[5, 4, 0]]


# === Labels of positions and of predictions ===


@pytest.mark.parametrize("given", [None, "examples", "positions"])
def test_labels_of_positions_stay_beside_their_pieces(given):
    def label(inputs, y):
        weight = tf.cast(y, tf.float32)
        if given == "positions":
            weight = tf.cast(inputs["token_ids"], tf.float32) / 2
        labelled = (inputs, inputs["token_ids"] * 10)
        return labelled if given is None else (*labelled, weight)

    _, dataset = classified()
    dataset = dataset.map(label)
    for batches in (bucket_batches(dataset, 32, 8), pack_rows(dataset, 48)):
        for inputs, y, weight in batches:
            assert (y.numpy() == inputs["token_ids"].numpy() * 10).all()
            real = inputs["padding_mask"].numpy()
            if given == "examples":
                assert ((weight.numpy() > 0) == real).all()
            else:
                expected = real if given is None else inputs["token_ids"].numpy() / 2
                assert (weight.numpy() == expected).all()


def test_an_example_s_weight_goes_to_all_its_positions():
    inputs = {"token_ids": [[2, 3, 0], [2, 7, 3]], "padding_mask": [[1, 1, 0], [1, 1, 1]]}
    dataset = tf.data.Dataset.from_tensors((inputs, [[5, 6, 9], [7, 8, 9]], [0.5, 2.0]))
    ((_, y, weight),) = pack_rows(dataset, 6, max_examples=2, label_kinds="position")
    assert y.numpy().tolist() == [[7, 8, 9, 5, 6, 0]]
    assert weight.numpy().tolist() == [[2, 2, 2, 0.5, 0.5, 0]]


def test_labels_that_are_vectors_stay_whole():
    inputs = {"token_ids": [[2, 3, 0], [2, 7, 3]], "padding_mask": [[1, 1, 0], [1, 1, 1]]}
    dataset = tf.data.Dataset.from_tensors((inputs, [[0, 1], [1, 0]]))
    ((_, y, weight),) = pack_rows(dataset, 6, max_examples=3)
    assert y.numpy().tolist() == [[[1, 0], [0, 1], [0, 0]]]
    assert weight.numpy().tolist() == [[1, 1, 0]]


def test_numbers_to_regress_stay_beside_their_examples():
    values = np.arange(60, dtype="float32") / 8
    preprocessor = BertPreprocessor(TOKENIZER, 32)
    ids = [row for inputs in preprocessor.dataset(TEXTS) for row, _ in rows_of(inputs)]
    expected = sorted(zip(ids, values.tolist(), (values + 1).tolist(), strict=True))
    for shape in ((60,), (60, 1)):
        y, given = values.reshape(shape), (values + 1).reshape(shape)
        dataset = preprocessor.dataset(TEXTS, y, given)
        found = []
        for inputs, y, weight in pack_rows(dataset, 48, max_examples=6):
            assert y.dtype == weight.dtype == tf.float32
            assert y.shape == weight.shape == (len(y), 6, *shape[1:])
            rows = examples_of(inputs)
            for row, labels, weights in zip(rows, y.numpy(), weight.numpy(), strict=True):
                size = len(row)
                assert not weights[size:].any()
                labels, weights = (x[:size].reshape(-1).tolist() for x in (labels, weights))
                found += zip((ids for ids, _ in row), labels, weights, strict=True)
        assert sorted(found) == expected


# === Labels as wide as the rows ===


def fixed_width(**arguments):
    """Rows of three positions, two of them real in the first, with labels three wide."""
    inputs = {"token_ids": [[2, 3, 0], [2, 7, 3]], "padding_mask": [[1, 1, 0], [1, 1, 1]]}
    element = (inputs, [[5, 6, 9], [7, 8, 9]], *arguments.values())
    return tf.data.Dataset.from_tensors(element)


@pytest.mark.parametrize("dtype", [tf.int32, tf.float32])
def test_labels_that_may_be_either_are_told_by_the_argument(dtype):
    dataset = fixed_width().map(lambda x, y: (x, tf.cast(y, dtype)))
    for transform in (bucket_batches, pack_rows):
        with pytest.raises(ValueError, match="\\(batch, 3\\).*'position'.*'example'"):
            transform(dataset, 6)
    ((_, y, weight),) = pack_rows(dataset, 6, max_examples=2, label_kinds="position")
    assert y.numpy().tolist() == [[7, 8, 9, 5, 6, 0]]
    assert weight.numpy().tolist() == [[1, 1, 1, 1, 1, 0]]
    ((_, y, weight),) = pack_rows(dataset, 6, max_examples=2, label_kinds="example")
    assert y.numpy().tolist() == [[[7, 8, 9], [5, 6, 9]]]
    assert weight.numpy().tolist() == [[1, 1]]
    for _, y in bucket_batches(dataset, 6, buckets=[2], label_kinds="example"):
        assert y.numpy().tolist() in ([[5, 6, 9]], [[7, 8, 9]])


def test_a_weight_for_each_position_tells_their_labels():
    dataset = fixed_width(sample_weight=[[0.0, 2.0, 0.0], [0.0, 3.0, 4.0]])
    ((_, y, weight),) = pack_rows(dataset, 6, max_examples=2)
    assert y.numpy().tolist() == [[7, 8, 9, 5, 6, 0]]
    assert weight.numpy().tolist() == [[0, 3, 4, 0, 2, 0]]


def test_kinds_are_told_label_by_label():
    dataset = fixed_width().map(lambda x, y: (x, {"tags": y, "topics": y, "class": y[:, 0]}))
    kinds = {"tags": "position", "topics": "example"}
    ((_, y, weight),) = pack_rows(dataset, 6, max_examples=2, label_kinds=kinds)
    assert y["tags"].numpy().tolist() == [[7, 8, 9, 5, 6, 0]]
    assert y["topics"].numpy().tolist() == [[[7, 8, 9], [5, 6, 9]]]
    assert y["class"].numpy().tolist() == [[7, 5]]
    assert weight["tags"].shape == (1, 6)
    assert weight["topics"].shape == weight["class"].shape == (1, 2)


@pytest.mark.parametrize(
    ("label_kinds", "message"),
    [("word", "'word'"), ("prediction", "'prediction'"), ({"tags": "position"}, "tags")],
)
def test_wrong_kinds_are_named(label_kinds, message):
    with pytest.raises(ValueError, match=f"`label_kinds`.*{message}"):
        pack_rows(fixed_width(), 6, label_kinds=label_kinds)


# === Predictions ===


def predictions_of(inputs, y, weight):
    """What each row predicts: (position, label, weight, the piece that stands there)."""
    rows = []
    for ids, positions, labels, weights in together(
        inputs["token_ids"], inputs["mask_positions"], y, weight
    ):
        real = positions > 0
        assert not weights[~real].any()
        columns = (positions[real], labels[real], weights[real], ids[positions[real]])
        rows.append([*zip(*(column.tolist() for column in columns), strict=True)])
    return rows


@pytest.mark.parametrize("buckets", [None, []])
def test_masks_move_with_their_pieces(buckets):
    preprocessor = BertMaskedLMPreprocessor(TOKENIZER, 32, buckets)
    dataset = preprocessor.dataset(TEXTS, sample_weight=np.arange(1.0, 61.0))
    before, bucketed = (
        sorted(
            (ids, masks)
            for batch in batches
            for (ids, _), masks in zip(rows_of(batch[0]), predictions_of(*batch), strict=True)
        )
        for batches in (dataset, bucket_batches(dataset, 32, 8))
    )
    assert bucketed == before
    packed = []
    for inputs, y, weight in pack_rows(dataset, 64):
        masks = predictions_of(inputs, y, weight)
        for row, row_masks in zip(examples_of(inputs), masks, strict=True):
            start = 0
            for ids, _ in row:
                end = start + len(ids)
                own = [(p - start, *rest) for p, *rest in row_masks if start <= p < end]
                packed.append((ids, own))
                start = end
    assert sorted(packed) == before


def test_a_row_has_no_more_predictions_than_it_may():
    dataset = BertMaskedLMPreprocessor(TOKENIZER, 32, mask_selection_rate=0.5).dataset(TEXTS)

    def most(**arguments):
        rows, found = 0, []
        for inputs, y, weight in pack_rows(dataset, 64, 8, **arguments):
            found += [len(masks) for masks in predictions_of(inputs, y, weight)]
            rows += len(examples_of(inputs))
            assert not arguments or inputs["mask_positions"].shape[1] == 20
        return max(found), sum(found), rows

    (high, predictions, rows), limited = most(), most(max_predictions=20)
    assert high > 20 >= limited[0]
    assert limited[1] == predictions and limited[2] > rows


def test_predictions_are_few_shapes():
    dataset = BertMaskedLMPreprocessor(TOKENIZER, 32).dataset(TEXTS)
    widths = {x["mask_positions"].shape[1] for x, _, _ in bucket_batches(dataset, 32, 8)}
    assert widths == {8}


def test_labels_in_a_dictionary_are_told_apart():
    preprocessor = BertPretrainerPreprocessor(TOKENIZER, 32)
    dataset = preprocessor.dataset((TEXTS, TEXTS[::-1]), LABELS, LABELS)
    for inputs, y, weight in pack_rows(dataset, 64, max_examples=5):
        assert y["next_sentence"].shape == inputs["example_starts"].shape
        assert (weight["next_sentence"].numpy() == y["next_sentence"].numpy()).all()
        assert y["masked_lm"].shape == inputs["mask_positions"].shape == weight["masked_lm"].shape
        assert ((weight["masked_lm"].numpy() > 0) == (inputs["mask_positions"].numpy() > 0)).all()


@pytest.mark.parametrize("buckets", [None, []])
def test_a_pair_s_weight_is_that_of_both_its_labels(buckets):
    preprocessor = BertPretrainerPreprocessor(TOKENIZER, 32, buckets)
    # The weight tells which pair it is.
    dataset = preprocessor.dataset((TEXTS, TEXTS[::-1]), [0, 1] * 30, np.arange(60) / 4 + 1)
    before = {}
    for inputs, y, weight in dataset:
        masks = predictions_of(inputs, y["masked_lm"], weight["masked_lm"])
        labels = together(y["next_sentence"], weight["next_sentence"])
        before |= {w: (label, m) for (label, w), m in zip(labels, masks, strict=True)}
    packed = 0
    for inputs, y, weight in pack_rows(dataset, 64, max_examples=5):
        masks = predictions_of(inputs, y["masked_lm"], weight["masked_lm"])
        columns = (inputs["example_starts"], y["next_sentence"], weight["next_sentence"])
        for starts, labels, weights, row in zip(
            *(column.numpy() for column in columns), masks, strict=True
        ):
            for start, label, w in zip(starts, labels, weights, strict=True):
                if w == 0:
                    continue
                given_label, given_masks = before[w]
                assert label == given_label
                own = [(p - start, *rest) for p, *rest in row if rest[1] == w]
                assert own == given_masks
                packed += 1
    assert packed == len(before) == 60


# === Epochs ===


@pytest.mark.parametrize("transform", [bucket_batches, pack_rows])
def test_each_epoch_has_each_example_once_with_masks_of_its_own(transform):
    preprocessor = BertMaskedLMPreprocessor(TOKENIZER, 32)
    # The weight tells which text it is; blank texts have no mask to carry it.
    texts = [text for text in TEXTS if text]
    size = len(texts)

    def masks(dataset):
        found = []
        for inputs, y, weight in dataset:
            starts = inputs.get("example_starts")
            starts = np.zeros((len(y), 1), int) if starts is None else starts.numpy()
            rows = predictions_of(inputs, y, weight)
            for own_starts, row in zip(starts, rows, strict=True):
                examples = {}
                for position, label, w, _ in row:
                    place = position - own_starts[own_starts <= position].max()
                    examples.setdefault(w, []).append((place, label))
                found += examples.items()
        return found

    def epochs_of(number):
        return preprocessor.dataset(
            texts, sample_weight=np.arange(1, size + 1), shuffle=True, epochs=number
        )

    made = transform(epochs_of(3), 32, 4, count=True)
    whole = masks(epochs_of(3))
    assert sorted(masks(made)) == sorted(whole)
    epochs = [whole[i : i + size] for i in range(0, 3 * size, size)]
    assert all([w for w, _ in sorted(epoch)] == [*range(1, size + 1)] for epoch in epochs)
    assert not any(sorted(a) == sorted(b) for a, b in zip(epochs, epochs[1:], strict=False))


@pytest.mark.parametrize("transform", [bucket_batches, pack_rows])
def test_batches_that_were_counted_are_as_many(transform):
    _, dataset = classified()
    assert int(transform(dataset, 32, 4).cardinality()) == tf.data.UNKNOWN_CARDINALITY
    made = transform(dataset, 32, 4, count=True)
    assert int(made.cardinality()) == len(list(made)) > 1
    with pytest.raises(ValueError, match="`count=True`.*ends"):
        transform(dataset.repeat(), 32, count=True)


def test_rows_after_some_examples_are_those_of_the_whole():
    dataset = BertPreprocessor(TOKENIZER, 32).dataset(TEXTS, LABELS, batch_size=25)

    def labels(dataset, **arguments):
        packed = pack_rows(dataset, 48, 1, window=None, **arguments)
        return [y[weight > 0].numpy().tolist() for _, y, weight in packed]

    rows = labels(dataset)
    # A window is a batch: none has examples of two.
    ends = np.cumsum([len(row) for row in rows])
    assert {25, 50, 60} <= set(ends.tolist())
    for seen in (3, len(rows) - 2):
        windows, left = divmod(int(ends[seen - 1]), 25)
        assert left
        assert labels(dataset.skip(windows), initial_examples=left) == rows[seen:]


# === Padding ===


@pytest.mark.parametrize("transform", [bucket_batches, pack_rows])
def test_padding_is_0_whatever_the_vocabulary_s(transform):
    tokenizer = BertTokenizer(["a", "[UNK]", "[CLS]", "[SEP]", "[PAD]"], lowercase=True)
    dataset = BertPreprocessor(tokenizer, 16).dataset(["a", "a a a a a"])
    rows = [row for inputs in transform(dataset, 12) for row in inputs["token_ids"].numpy()]
    assert {tuple(row) for row in map(np.ndarray.tolist, rows)} <= {
        (CLS, 0, SEP, *[0] * 5),
        (CLS, *[0] * 5, SEP, 0),
        (CLS, *[0] * 5, SEP, CLS, 0, SEP, 0, 0),
    }


# === What is refused ===


@pytest.mark.parametrize("transform", [bucket_batches, pack_rows])
def test_wrong_data_sets_and_arguments_are_named(transform):
    _, dataset = classified()
    longest = max(len(ids) for (ids, _), _ in classified()[0])
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"at most.*16.*\[{longest}\]"):
        list(transform(dataset.unbatch().batch(60), 16))
    with pytest.raises(TypeError, match="`dataset` must be.*`tf.data.Dataset`.*list"):
        transform(list(dataset), 16)
    with pytest.raises(ValueError, match="`y` must be a tensor or a dictionary"):
        transform(dataset.map(lambda x, y: (x, (y, y))), 32)
    with pytest.raises(ValueError, match="sequence_length"):
        transform(dataset, 0)
    with pytest.raises(ValueError, match="batch_size"):
        transform(dataset, 32, batch_size=0)
    with pytest.raises(ValueError, match="`token_ids` and `padding_mask`"):
        transform(tf.data.Dataset.from_tensors(["a"]), 32)
    with pytest.raises(ValueError, match="batches"):
        transform(dataset.unbatch(), 32)


def test_more_predictions_than_a_row_may_have_are_refused():
    dataset = BertMaskedLMPreprocessor(TOKENIZER, 32).dataset(["w1 " * 30])
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"more of a row.*\[32 5 1\] \[64 4 8\]"
    ):
        list(pack_rows(dataset, 64, max_examples=8, max_predictions=4))
    _, dataset = classified()
    with pytest.raises(ValueError, match="`max_predictions` needs `mask_positions`"):
        pack_rows(dataset, 64, max_predictions=4)


def test_packed_rows_are_not_packed_again():
    _, dataset = classified()
    with pytest.raises(ValueError, match="one example a row"):
        pack_rows(pack_rows(dataset, 48), 96)


def test_labels_of_another_width_are_refused():
    _, dataset = classified()
    dataset = dataset.map(lambda x, y: (x, x["token_ids"][:, 1:]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="as wide as the batch"):
        list(pack_rows(dataset, 48))
