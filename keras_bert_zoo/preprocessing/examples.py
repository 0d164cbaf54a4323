"""Pre-training examples as files of records: tokenised and written, read and batched."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from keras_bert_zoo.preprocessing.dataset import untuned
from keras_bert_zoo.preprocessing.lazy_tensorflow import tf
from keras_bert_zoo.preprocessing.packing import smallest_bucket
from keras_bert_zoo.preprocessing.tokenizer import BertTokenizer

# Sentences tokenised at once, files read at once, and records mixed at once.
_SENTENCES = 2**14
_FILES = 16
_WINDOW = 2**14


def tokenize_flat(
    tokenizer: BertTokenizer, sentences: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the piece ids of all sentences one after the other, and how many each has."""
    pieces, sizes = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)]
    for start in range(0, len(sentences), _SENTENCES):
        ragged = tokenizer(sentences[start : start + _SENTENCES])
        pieces.append(ragged.flat_values.numpy())
        sizes.append(ragged.row_lengths().numpy())
    return np.concatenate(pieces), np.concatenate(sizes)


def compiled_masker(masker) -> Callable:
    """Return a function of arrays, as one graph: `token_ids`, `padding_mask`, `example_ids`."""
    rows = tf.TensorSpec([None, None], tf.int32)
    signature = [rows, rows, tf.TensorSpec([None], tf.int64)]

    @tf.function(input_signature=signature, autograph=False)
    def mask(token_ids, padding_mask, example_ids):
        with tf.device("CPU"):
            return masker(token_ids, padding_mask, example_ids)

    return lambda *arrays: {name: value.numpy() for name, value in mask(*arrays).items()}


def write_records(path: str, records: Iterable[bytes]) -> None:
    """Write serialised records to a TFRecord file."""
    with tf.io.TFRecordWriter(path) as writer:
        for record in records:
            writer.write(record)


def record_batches(
    files: Sequence[str],
    make_batch: Callable,
    *,
    batch_size: int,
    steps_per_epoch: int,
    shuffle: bool,
    seed: int,
    epochs: int,
    initial_epoch: int,
    initial_step: int = 0,
):
    """Return a `tf.data.Dataset` of `make_batch(records, epoch)`, all epochs one after the other.

    `records` are serialised, (batch_size,) of them. Shuffled, an epoch takes the files and
    then the records in another order, which `seed` and the epoch's number alone decide. The
    first `initial_step` batches of the first epoch are read and passed over.
    """

    def one_epoch(epoch):
        names = tf.constant(list(files))
        key = tf.stack([tf.constant(seed, tf.int64), epoch])
        if shuffle:
            names = tf.random.experimental.stateless_shuffle(names, key)
        records = tf.data.Dataset.from_tensor_slices(names).interleave(
            tf.data.TFRecordDataset,
            cycle_length=min(_FILES, len(files)),
            block_length=16,
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        )
        if shuffle:
            windows = records.batch(_WINDOW).enumerate()
            records = windows.map(lambda index, window: mix(window, key, index))
            records = records.rebatch(batch_size)
        else:
            records = records.batch(batch_size)
        passed_over = tf.where(epoch == initial_epoch, tf.constant(initial_step, tf.int64), 0)
        records = records.take(steps_per_epoch).skip(passed_over)
        return records.map(
            lambda batch: make_batch(batch, epoch), num_parallel_calls=tf.data.AUTOTUNE
        )

    def mix(window, key, index):
        key = tf.random.experimental.stateless_fold_in(key, index + 1)
        return tf.random.experimental.stateless_shuffle(window, key)

    dataset = tf.data.Dataset.range(initial_epoch, epochs).flat_map(one_epoch)
    steps = steps_per_epoch * (epochs - initial_epoch) - initial_step
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(steps))
    return untuned(dataset.prefetch(tf.data.AUTOTUNE))


def parse_records(records, names: Sequence[str]) -> dict:
    """Return the columns of serialised records, ragged int64 (batch, values)."""
    ragged = {name: tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64) for name in names}
    return tf.io.parse_example(records, ragged)


def pad_rows(columns: dict, *, pad_id: int, lengths: Sequence[int]) -> dict:
    """Return `token_ids`, `segment_ids` and `padding_mask` of one bucket's length.

    Args:
        columns: ragged `token_ids`, and of pairs `first_length`, the positions of segment 0.
        pad_id: the id of the padding piece.
        lengths: what `bucket_lengths` gave.
    """
    rows = tf.cast(columns["token_ids"], tf.int32)
    row_lengths = tf.cast(rows.row_lengths(), tf.int32)
    length = smallest_bucket(tf.reduce_max(row_lengths), lengths)
    place = tf.range(length)[None, :]
    padding_mask = tf.cast(place < row_lengths[:, None], tf.int32)
    segment_ids = tf.zeros_like(padding_mask)
    if "first_length" in columns:
        first_length = tf.cast(columns["first_length"].flat_values, tf.int32)
        segment_ids = tf.cast(place >= first_length[:, None], tf.int32) * padding_mask
    token_ids = rows.to_tensor(pad_id, shape=tf.stack([rows.nrows(out_type=tf.int32), length]))
    return {"token_ids": token_ids, "segment_ids": segment_ids, "padding_mask": padding_mask}


def pad_masks(columns: dict, predictions: int) -> dict:
    """Return stored `mask_positions`, `mask_ids` and `mask_weights`, (batch, predictions)."""
    positions, ids = (
        tf.cast(columns[name].to_tensor(shape=[None, predictions]), tf.int32)
        for name in ("mask_positions", "mask_ids")
    )
    chosen = tf.range(predictions, dtype=tf.int64) < columns["mask_ids"].row_lengths()[:, None]
    return {
        "mask_positions": positions,
        "mask_ids": ids,
        "mask_weights": tf.cast(chosen, tf.float32),
    }


def with_pair_labels(inputs: dict, mask_ids, mask_weights, labels) -> tuple:
    """Return (inputs, labels, weights) of pairs, as `BertPretrainer` takes them."""
    labels = tf.cast(labels.flat_values, tf.int32)
    return (
        inputs,
        {"masked_lm": mask_ids, "next_sentence": labels},
        {"masked_lm": mask_weights, "next_sentence": tf.ones_like(labels, tf.float32)},
    )


def read_file(path: str) -> bytes | None:
    """Return what a local or remote file holds, or None if there is no such file."""
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            return file.read()
    except tf.errors.NotFoundError:
        return None


def file_exists(path: str) -> bool:
    """Say whether there is a local or remote file."""
    return tf.io.gfile.exists(path)
