"""A folder of prepared examples as the batches a model is trained on."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from keras_bert_zoo.data.example_folder import (
    FORMAT,
    MANIFEST,
    VERSION,
    VOCABULARY,
    examples_name,
)
from keras_bert_zoo.preprocessing import BertTokenizer, MaskedLMMasker
from keras_bert_zoo.preprocessing import examples as records
from keras_bert_zoo.preprocessing.packing import bucket_lengths


def read_manifest(folder: str | os.PathLike) -> dict:
    """Return what is known of a folder of examples: settings, inputs, counts, rates.

    Raises:
        ValueError: the folder is not one that `prepare` finished, or was written by a later
            version of the format.
    """
    content = records.read_file(_join(folder, MANIFEST))
    if content is None:
        raise ValueError(
            f"The folder {os.fspath(folder)!r} has no {MANIFEST}: `prepare` did not finish there. "
            "The same command again finishes it."
        )
    manifest = json.loads(content)
    if (manifest.get("format"), manifest.get("version")) != (FORMAT, VERSION):
        raise ValueError(
            f"The folder {os.fspath(folder)!r} has the format {manifest.get('format')!r}, version "
            f"{manifest.get('version')!r}; this version of keras_bert_zoo reads {FORMAT!r}, "
            f"version {VERSION}."
        )
    return manifest


def read_tokenizer(folder: str | os.PathLike) -> BertTokenizer:
    """Return the tokenizer that the examples were made with."""
    vocabulary = records.read_file(_join(folder, VOCABULARY)).decode().split("\n")[:-1]
    return BertTokenizer(vocabulary, **read_manifest(folder)["settings"]["tokenizer"])


def split_shards(
    manifest: Mapping, held_out_share: float, seed: int = 0
) -> tuple[list[int], list[int]]:
    """Return the shards to train on and those to score on, chosen by `seed`.

    Raises:
        ValueError: either side would have no shard.
    """
    shards = manifest["settings"]["shards"]
    count = max(1, round(held_out_share * shards))
    if not 0 < held_out_share < 1 or count >= shards:
        raise ValueError(
            f"A held-out share of {held_out_share} of {shards} shards leaves a side empty."
        )
    order = np.random.default_rng(seed).permutation(shards).tolist()
    return sorted(order[count:]), sorted(order[:count])


def iterate_examples(
    folder: str | os.PathLike, shards: Sequence[int] | None = None
) -> Iterator[dict[str, np.ndarray]]:
    """Return the examples as they are stored, one after the other, without padding.

    Returns:
        For each a dictionary of int64 arrays: `token_ids` with the marks; `example_id` (1,);
        of a pair `first_length` (1,), the positions of segment 0, and `next_sentence` (1,), its
        label; masked once also `mask_positions` and `mask_ids`, the pieces that stood there.
    """
    manifest = read_manifest(folder)
    dataset = records.record_batches(
        _files(folder, manifest, shards),
        lambda batch, epoch: records.parse_records(batch, _columns(manifest)),
        batch_size=1024,
        steps_per_epoch=-(-_count(manifest, shards) // 1024),
        shuffle=False,
        seed=0,
        epochs=1,
        initial_epoch=0,
    )
    for batch in dataset:
        columns = {name: np.split(*_values_and_ends(value)) for name, value in batch.items()}
        for row in zip(*columns.values(), strict=True):
            yield dict(zip(columns, row, strict=True))


def example_batches(
    folder: str | os.PathLike,
    batch_size: int = 32,
    *,
    task: str | None = None,
    shards: Sequence[int] | None = None,
    masking: Mapping | None = None,
    buckets: Sequence[int] | None = None,
    shuffle: bool = True,
    seed: int = 0,
    epochs: int = 1,
    initial_epoch: int = 0,
    initial_step: int = 0,
    num_processes: int = 1,
    process_index: int = 0,
    with_example_ids: bool = False,
):
    """Return a `tf.data.Dataset` of (inputs, labels, weights), all epochs one after the other.

    The order of an epoch depends on `seed` and the epoch's number, the masks also on the
    example's id: a run that goes on with `initial_epoch` and `initial_step` gets the batches
    it would have had.

    Args:
        folder: one that `prepare` filled.
        batch_size: examples a batch; the last of an epoch may be smaller, unless there are
            several processes.
        task: `"pretrainer"`, for `BertPretrainer`, or `"masked_lm"`, for `BertMaskedLM`. None
            is the first for pairs and the second for single segments.
        shards: numbers of the shards to read; None is all.
        masking: arguments of `MaskedLMMasker` for examples that are not masked yet.
        buckets: lengths that batches are padded to, as a preprocessor takes them.
        shuffle, seed, epochs, initial_epoch: as `fit` takes them.
        initial_step: batches of the first epoch to pass over.
        num_processes, process_index: how many processes train together and which one this
            is. Each reads other shards, and all the same number of batches.
        with_example_ids: give ((inputs, labels, weights), ids), with int64 ids (batch,).

    Returns:
        Inputs are `token_ids`, `segment_ids`, `padding_mask` (batch, length) and
        `mask_positions` (batch, predictions); labels and weights those of the task. With
        several epochs pass `steps_per_epoch=dataset.cardinality() // epochs` to `fit`.

    Raises:
        ValueError: the folder is incomplete, there are fewer shards than processes, or an
            argument does not fit the examples.

    Example:
        >>> dataset = example_batches("examples", epochs=3)  # doctest: +SKIP
        >>> steps = int(dataset.cardinality()) // 3  # doctest: +SKIP
        >>> pretrainer.fit(dataset, epochs=3, steps_per_epoch=steps)  # doctest: +SKIP
    """
    manifest = read_manifest(folder)
    settings = manifest["settings"]
    is_pair = settings["objective"] != "single"
    task = task or ("pretrainer" if is_pair else "masked_lm")
    if task not in ("pretrainer", "masked_lm") or (task == "pretrainer" and not is_pair):
        raise ValueError(
            "`task` must be 'pretrainer', for pairs only, or 'masked_lm'. "
            f"Received: {task!r} for the objective {settings['objective']!r}."
        )
    if masking and settings["masking"] is not None:
        raise ValueError("`masking` is for examples that are not masked yet; these were, once.")
    tokenizer = read_tokenizer(folder)
    masker = None
    if settings["masking"] is None:
        masker = MaskedLMMasker(tokenizer, **{"seed": seed, **(masking or {})})
    lengths = bucket_lengths(settings["sequence_length"], buckets)
    names = _columns(manifest)
    # The most predictions that a row has.
    predictions = int(np.max(np.nonzero(manifest["counts"].get("predictions", [1]))))

    def make_batch(batch, epoch):
        columns = records.parse_records(batch, names)
        example_ids = columns["example_id"].flat_values
        inputs = records.pad_rows(columns, pad_id=tokenizer.pad_token_id, lengths=lengths)
        if masker is None:
            masked = records.pad_masks(columns, predictions)
        else:
            masked = masker(inputs["token_ids"], inputs["padding_mask"], example_ids, epoch)
            inputs["token_ids"] = masked["token_ids"]
        inputs["mask_positions"] = masked["mask_positions"]
        labels, weights = masked["mask_ids"], masked["mask_weights"]
        element = (inputs, labels, weights)
        if task == "pretrainer":
            element = records.with_pair_labels(*element, columns["next_sentence"])
        return (element, example_ids) if with_example_ids else element

    mine, steps = _share(manifest, shards, batch_size, num_processes, process_index)
    return records.record_batches(
        _files(folder, manifest, mine),
        make_batch,
        batch_size=batch_size,
        steps_per_epoch=steps,
        shuffle=shuffle,
        seed=seed,
        epochs=epochs,
        initial_epoch=initial_epoch,
        initial_step=initial_step,
    )


def _share(manifest, shards, batch_size, num_processes, process_index):
    """Return one process's shards, and the batches that every process has."""
    shards = _numbers(manifest, shards)
    if not 0 <= process_index < num_processes or len(shards) < num_processes:
        raise ValueError(
            "`process_index` must be below `num_processes`, and that at most the number of "
            f"shards, {len(shards)}. Received: {process_index} and {num_processes}."
        )
    if num_processes == 1:
        return shards, -(-_count(manifest, shards) // batch_size)
    shares = [shards[index::num_processes] for index in range(num_processes)]
    steps = min(_count(manifest, share) // batch_size for share in shares)
    if not steps:
        raise ValueError(f"A process has fewer than `batch_size` = {batch_size} examples.")
    return shares[process_index], steps


def _numbers(manifest, shards):
    total = manifest["settings"]["shards"]
    shards = list(range(total)) if shards is None else list(shards)
    wrong = [number for number in shards if not 0 <= number < total]
    if wrong or not shards:
        raise ValueError(f"`shards` must be numbers from 0 to {total - 1}. Received: {shards}.")
    return shards


def _count(manifest, shards):
    return sum(manifest["examples_by_shard"][number] for number in _numbers(manifest, shards))


def _files(folder, manifest, shards):
    total = manifest["settings"]["shards"]
    files = [_join(folder, examples_name(n, total)) for n in _numbers(manifest, shards)]
    for file in files:
        if not records.file_exists(file):
            raise ValueError(f"There is no {file!r}, though the manifest tells of it.")
    return files


def _columns(manifest):
    settings = manifest["settings"]
    names = ["token_ids", "example_id"]
    names += ["first_length", "next_sentence"] if settings["objective"] != "single" else []
    return names + (["mask_positions", "mask_ids"] if settings["masking"] is not None else [])


def _values_and_ends(ragged):
    return ragged.flat_values.numpy(), ragged.row_splits.numpy()[1:-1]


def _join(folder, name):
    return f"{os.fspath(folder).rstrip('/')}/{name}"
