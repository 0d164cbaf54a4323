"""What the phases of a run train and are scored on, from texts or from prepared examples.

The order of the examples is decided by the seed and the phase alone, so a run that goes on asks
for the batches after as many examples as it has seen.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from keras_bert_zoo.data import example_files
from keras_bert_zoo.data.documents import (
    detect_format,
    find_files,
    iterate_documents,
    open_text,
    sentences,
)
from keras_bert_zoo.data.next_sentence import next_sentence_examples
from keras_bert_zoo.data.pretraining import split_documents, tokenize_documents
from keras_bert_zoo.data.vocabulary import train_vocabulary
from keras_bert_zoo.preprocessing import (
    BertMaskedLMPreprocessor,
    BertPretrainerPreprocessor,
    BertTokenizer,
)
from keras_bert_zoo.preprocessing import examples as records
from keras_bert_zoo.preprocessing.dataset import batches, predict_from_before
from keras_bert_zoo.preprocessing.row_transforms import full_batches, pack_rows
from keras_bert_zoo.preprocessing.texts import text_columns
from keras_bert_zoo.training import distribution
from keras_bert_zoo.training.config import Config, Masking

# Examples that are packed together, and epochs that no run gets to.
_WINDOW = 1024
_WITHOUT_END = 2**31


class PhaseData(NamedTuple):
    """One phase's data.

    `train(initial_epoch=, initial_step=, initial_examples=)` gives a data set of (batch, example
    ids) without an end. The steps of an epoch are what it takes of its `epoch_examples` at
    once, `step_examples`; the batches of packed rows have another size. All are of one shape,
    with `predictions` masked positions a row. `held_out` is a data set of batches, never packed.
    `counts` says how many examples there are. `pieces()` are the held-out texts' and `labels()`
    their pairs' labels, for the scores to be measured against.
    """

    epoch_examples: int
    step_examples: int
    train: Callable[..., Any]
    predictions: int
    held_out: Any
    counts: dict[str, int]
    pieces: Callable[[], Iterable[int]]
    labels: Callable[[], np.ndarray]

    def batches_after(self, examples: int, count: int):
        """Return a data set of `count` (batch, example ids), those after so many examples."""
        epoch, left = divmod(examples, self.epoch_examples)
        step, left = divmod(left, self.step_examples)
        order = {"initial_epoch": epoch, "initial_step": step, "initial_examples": left}
        return self.train(**order).take(count)


class Source(NamedTuple):
    """Where the phases' data come from: the tokenizer, a record of the files, and each phase's."""

    tokenizer: BertTokenizer
    files: dict[str, Any]
    phase: Callable[[int], PhaseData]


def open_source(config: Config) -> Source:
    """Return the source of a run's data; texts without a vocabulary get one of their own.

    Raises:
        ValueError: a file or folder is missing, broken, or does not fit the settings.
    """
    return (_texts if config.data.text else _examples)(config)


def _texts(config):
    data, seed = config.data, config.seed
    files = {str(path): sha256(path.read_bytes()) for path in find_files(data.text)}
    documents = _read_documents(data)
    train, held_out = split_documents(documents, config.evaluation.held_out, seed)
    vocabulary, lowercase = data.vocabulary, not data.cased
    if vocabulary is None:
        sentences = (sentence for document in train for sentence in document)
        vocabulary = train_vocabulary(sentences, data.vocabulary_size, lowercase)
    tokenizer = BertTokenizer(vocabulary, lowercase=lowercase)
    train, held_out = (tokenize_documents(part, tokenizer) for part in (train, held_out))
    is_pair = config.model.next_sentence
    make = BertPretrainerPreprocessor if is_pair else BertMaskedLMPreprocessor

    def examples(documents, length, duplicates, seed):
        rows = next_sentence_examples(
            documents,
            length,
            objective="next_sentence" if is_pair else "single",
            duplicates=duplicates,
            short_share=data.short_share,
            seed=seed,
        )
        first, second, labels = map(list, zip(*rows, strict=True))
        columns = (first, second) if is_pair else first
        return text_columns(columns), np.array(labels) if is_pair else None

    def phase(number):
        settings = config.phases[number]
        phase_seed, length = seed + number, settings.sequence_length
        # Full rows are the rule here, so one length costs little and is one program to compile.
        masking = dataclasses.asdict(config.masking)
        preprocessor = make(tokenizer, length, buckets=[], seed=phase_seed, **masking)
        columns, labels = examples(train, length, data.duplicates, phase_seed)
        held_out_columns, held_out_labels = examples(
            held_out, length, config.evaluation.passes, seed
        )
        batch_size = settings.batch_size // config.optimizer.accumulation
        step_examples = _WINDOW if settings.packed else batch_size
        common = {"preprocessor": preprocessor, "with_example_ids": True}

        def ordered(**order):
            return batches(
                x=columns,
                y=labels,
                batch_size=step_examples,
                shuffle=True,
                seed=phase_seed,
                epochs=_WITHOUT_END,
                **order,
                **common,
            )

        scored = batches(x=held_out_columns, y=held_out_labels, batch_size=batch_size, **common)
        counts = {
            "training documents": len(train),
            "held-out documents": len(held_out),
            "training examples": int(columns[0].shape[0]),
            "held-out examples": int(held_out_columns[0].shape[0]),
        }
        return PhaseData(
            counts["training examples"],
            step_examples,
            *_rows(config, settings, batch_size, ordered, scored),
            counts,
            lambda: (piece for document in held_out for sentence in document for piece in sentence),
            lambda: held_out_labels,
        )

    return Source(tokenizer, files, phase)


def _examples(config):
    folders = {phase.examples for phase in config.phases} | {config.evaluation.examples} - {None}
    manifests = {folder: example_files.read_manifest(folder) for folder in sorted(folders)}
    first = manifests[config.phases[0].examples]["settings"]
    for folder, manifest in manifests.items():
        settings = manifest["settings"]
        for name in ("vocabulary_sha256", "tokenizer", "objective"):
            if settings[name] != first[name]:
                raise ValueError(
                    f"All examples must have the same {name}. Received: {first[name]!r} and, of "
                    f"{folder!r}, {settings[name]!r}."
                )
        if settings["objective"] == "single" and config.model.next_sentence:
            raise ValueError(
                f"The examples in {folder!r} are single segments, which need "
                "`model.next_sentence = false`."
            )
        if settings["masking"] is not None and config.masking != Masking():
            raise ValueError(
                f"The examples in {folder!r} were masked once, so `masking` can't be set, nor "
                "`model.causal`."
            )
    shard, shards = distribution.data_shard()

    def phase(number):
        settings = config.phases[number]
        manifest = manifests[settings.examples]
        length = manifest["settings"]["sequence_length"]
        if length != settings.sequence_length:
            raise ValueError(
                f"`phases.{number}.sequence_length` must be that of the examples in "
                f"{settings.examples!r}, {length}. Received: {settings.sequence_length}."
            )
        folder, train_shards, held_out_shards = config.evaluation.examples, None, None
        if folder is None:
            folder = settings.examples
            train_shards, held_out_shards = example_files.split_shards(
                manifest, config.evaluation.held_out, config.seed
            )
        batch_size = settings.batch_size // config.optimizer.accumulation // shards
        step_examples = _WINDOW if settings.packed else batch_size
        common = {
            "task": "pretrainer" if config.model.next_sentence else "masked_lm",
            "buckets": [],
            "with_example_ids": True,
        }
        parts = {"num_processes": shards, "process_index": shard}
        mine = {"shards": train_shards, **parts}
        if settings.packed and shards > 1:
            # How many rows a process has, it alone knows: none waits for the others' epochs.
            every = train_shards or range(manifest["settings"]["shards"])
            mine = {"shards": every[shard::shards]}

        def masking(folder):
            once = manifests[folder]["settings"]["masking"] is not None
            return None if once else dataclasses.asdict(config.masking)

        def ordered(epochs=_WITHOUT_END, **order):
            return example_files.example_batches(
                settings.examples,
                batch_size=step_examples,
                masking=masking(settings.examples),
                seed=config.seed + number,
                epochs=epochs,
                **order,
                **mine,
                **common,
            )

        scored = example_files.example_batches(
            folder,
            batch_size=batch_size,
            shards=held_out_shards,
            masking=masking(folder),
            shuffle=False,
            seed=config.seed,
            # What is not masked yet is masked anew in each pass.
            epochs=config.evaluation.passes if masking(folder) else 1,
            **parts,
            **common,
        )
        counts = {
            "training examples": _count(manifest, train_shards),
            "held-out examples": _count(manifests[folder], held_out_shards),
        }
        epoch_examples = _count(manifest, mine["shards"])
        if shards > 1 and not settings.packed:
            # What would make one process's epoch longer than another's is left out.
            epoch_examples = int(ordered(epochs=1).cardinality()) * step_examples
        return PhaseData(
            epoch_examples,
            step_examples,
            *_rows(config, settings, batch_size, ordered, scored),
            counts,
            lambda: _pieces(folder, held_out_shards, tokenizer.special_token_ids),
            lambda: _labels(folder, held_out_shards),
        )

    tokenizer = example_files.read_tokenizer(config.phases[0].examples)
    files = {
        f"{folder}/manifest.json": sha256(records.read_file(f"{folder}/manifest.json"))
        for folder in manifests
    }
    return Source(tokenizer, files, phase)


def _rows(config, phase, batch_size, ordered, scored):
    """Return a phase's `train`, `predictions` and `held_out`, as `PhaseData` has them.

    `ordered(initial_epoch=, initial_step=)` and `scored` are (batch, example ids), a row an
    example.
    """
    spec = scored.element_spec[0][0]["mask_positions"]
    predictions = spec.shape[1] or next(iter(scored))[0][0]["mask_positions"].shape[1]
    if phase.packed:
        # Each example's count is rounded, so those of a row come to more than one long one's.
        predictions = min(-(-5 * predictions // 4), phase.sequence_length)

    def train(initial_examples, **order):
        dataset = ordered(**order)
        if not phase.packed:
            return _directed(config, full_batches(dataset, batch_size))
        # Beside the inputs an id is packed as they are; what fills a row up is 0.
        dataset = dataset.map(lambda batch, ids: ({**batch[0], "ids": ids + 1}, *batch[1:]))
        dataset = pack_rows(
            dataset,
            phase.sequence_length,
            batch_size,
            window=None,
            max_predictions=predictions,
            initial_examples=initial_examples,
        )
        return _directed(config, dataset.map(_without_ids).repeat())

    held_out = _directed(config, full_batches(scored, batch_size))
    return train, predictions, held_out.map(lambda batch, ids: batch)


def _without_ids(inputs, *labels):
    inputs = dict(inputs)
    ids = inputs.pop("ids")
    return (inputs, *labels), ids[ids > 0] - 1


def _directed(config, dataset):
    """Return (batch, ids) as a model takes them that sees both sides, or the left alone."""
    if not config.model.causal:
        return dataset
    return dataset.map(lambda batch, ids: (predict_from_before(batch), ids))


def _read_documents(data):
    documents = []
    for path in map(str, find_files(data.text)):
        with open_text(path) as stream:
            kind = detect_format(path, stream) if data.format == "auto" else data.format
            stream.seek(0)
            found = iterate_documents(stream, kind, encoding_errors=data.encoding_errors)
            documents += [sentences(document, data.language) for document in found]
    documents = [document for document in documents if document]
    if not documents:
        raise ValueError(f"There is no text in {list(data.text)}.")
    return documents


def _pieces(folder, shards, special):
    special = set(special)
    for example in example_files.iterate_examples(folder, shards):
        token_ids = example["token_ids"]
        if "mask_ids" in example:
            token_ids[example["mask_positions"]] = example["mask_ids"]
        yield from (piece for piece in token_ids.tolist() if piece not in special)


def _labels(folder, shards):
    examples = example_files.iterate_examples(folder, shards)
    return np.array([int(example["next_sentence"][0]) for example in examples])


def _count(manifest, shards):
    counts = manifest["examples_by_shard"]
    return sum(counts if shards is None else (counts[number] for number in shards))


def sha256(content: bytes) -> str:
    """Return the hash of a file's content."""
    return hashlib.sha256(content).hexdigest()
