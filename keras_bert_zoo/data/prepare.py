"""Raw text to a folder of pre-training examples, on Apache Beam.

The folder fills in this order, each file under another name until it is whole:

- `settings.json` and `vocab.txt`: what the examples are made from, the inputs' hashes included.
- `examples-00000-of-00016.tfrecord` and `statistics-00000-of-00016.json`, a pair a shard. A
  run that was ended goes on with the shards that have not both yet.
- `lengths.png` and `manifest.json`. The manifest marks the folder as complete; a shard that is
  lost later is made again.

A document's shard is decided by a hash of its text, and a shard is a pure function of its
documents (`shards.py`), so neither the number of workers nor the order of files matters.
"""

import functools
import hashlib
import logging
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from keras_bert_zoo.data import documents as texts
from keras_bert_zoo.data import example_folder as folders
from keras_bert_zoo.data.example_folder import ExampleFolder, file_systems, import_beam
from keras_bert_zoo.data.next_sentence import check_arguments
from keras_bert_zoo.data.shards import ExampleMaker
from keras_bert_zoo.data.tables import load_tfds
from keras_bert_zoo.preprocessing import BertTokenizer, MaskedLMMasker
from keras_bert_zoo.preprocessing.examples import write_records
from keras_bert_zoo.preprocessing.vocabulary import vocabulary_file
from keras_bert_zoo.version import __version__

# A file of JSON lines is read in parts of this size.
_PART_BYTES = 2**26
# If not told, a shard is to hold so much text and so many documents.
_SHARD_BYTES = 2**25
_SHARD_DOCUMENTS = 8
_FEWEST_SHARDS, _MOST_SHARDS = 16, 2**12
_DIRECT = "DirectRunner"


class Source(NamedTuple):
    """An input, or the part of its lines that begin from `start` up to `stop`."""

    path: str
    format: str
    start: int = 0
    stop: int | None = None


def prepare_examples(
    text: Sequence[str],
    output: str,
    tokenizer: BertTokenizer,
    *,
    format: str = "auto",
    text_column: str = "text",
    encoding_errors: str = "strict",
    language: str = "en",
    objective: str = "next_sentence",
    sequence_length: int = 128,
    short_share: float = 0.1,
    balanced: bool = True,
    duplicates: int = 1,
    masking: Mapping | None = None,
    shards: int | None = None,
    seed: int = 0,
    workers: int = 1,
    runner: str = _DIRECT,
    beam_options: Sequence[str] = (),
) -> dict:
    """Make a folder of pre-training examples from texts, and return its manifest.

    Args:
        text: files, folders of text files, or patterns, local or of a file system that Beam
            knows (`gs://...`); or `tfds:name:split`.
        output: the folder, new, or one that a run with the same arguments was ended in.
        tokenizer: a `BertTokenizer`.
        format: `"auto"`, or one of the formats of `read_documents`.
        text_column: the key of the text, in JSONL and TFDS.
        encoding_errors: `"strict"` refuses bytes that are not UTF-8, `"replace"` puts U+FFFD
            in their place, which the tokenizer drops.
        language: whose rules split prose into sentences.
        objective, sequence_length, short_share, balanced, duplicates: as
            `next_sentence_examples` takes them.
        masking: arguments of `MaskedLMMasker`, to mask the examples once; None leaves that to
            training, which can then mask anew each epoch.
        shards: how many files of examples; None chooses by the size of the text. A random
            next sentence comes from the same shard.
        seed: an integer. With the inputs, the tokenizer and the arguments before it, it
            decides the examples.
        workers: processes on this machine, with the runner `"DirectRunner"`, which holds the
            text in memory.
        runner: the name of a Beam runner.
        beam_options: further options of the runner, such as `["--region=europe-west1"]`.

    Raises:
        ValueError: an argument is wrong; a line is broken, named by file and number; there are
            too few documents; the folder holds something else; apache-beam is missing.
    """
    check_arguments(objective, sequence_length, short_share, duplicates)
    texts.check_language(language)
    for name, value in {"shards": shards, "workers": workers}.items():
        if value is not None and value < 1:
            raise ValueError(f"`{name}` must be at least 1. Received: {value}.")
    if workers > 1 and runner != _DIRECT:
        raise ValueError(
            f"`workers` is for the runner {_DIRECT!r}; another has options of its own, to be given "
            f"as `beam_options`. Received: {workers} workers and {runner!r}."
        )
    if beam_options and runner == _DIRECT:
        _check_beam_options(beam_options)
    if masking is not None:
        MaskedLMMasker(tokenizer, seed=seed, **masking)
    tokenizer_settings = tokenizer.get_config()
    vocabulary = tokenizer_settings.pop("vocabulary")
    settings = {
        "objective": objective,
        "sequence_length": sequence_length,
        "short_share": short_share,
        "balanced": balanced,
        "duplicates": duplicates,
        "masking": None if masking is None else dict(masking),
        "seed": seed,
        "language": language,
        "text_column": text_column,
        "encoding_errors": encoding_errors,
        "tokenizer": tokenizer_settings,
        "vocabulary_sha256": hashlib.sha256(vocabulary_file(vocabulary)).hexdigest(),
    }
    run = functools.partial(_run, runner=runner, beam_options=beam_options)
    folder = ExampleFolder(output)
    folder.check()
    sources = _sources(text, format)
    try:
        # Reading alone is done before several processes would have begun.
        inputs, counts = _examine(
            sources, settings, shards, folder, functools.partial(run, workers=1)
        )
        settings["shards"] = _choose_shards(counts, shards, inputs, objective)
        described = {
            "format": folders.FORMAT,
            "version": folders.VERSION,
            "package": __version__,
            "settings": settings,
            "inputs": inputs,
        }
        folder.claim(described, vocabulary)
        folder.clean(others=True)
        names = folder.names()
        missing = _missing(names, settings["shards"])
        if missing:
            run = functools.partial(run, workers=workers)
            _make_shards(sources, missing, settings, tokenizer, folder, run)
        if missing or folders.MANIFEST not in names:
            _finish(folder, described)
        return folder.read_json(folders.MANIFEST)
    finally:
        folder.clean()


# === Pipelines ===

# A worker tokenises, so it needs TensorFlow and no other backend, and no accelerator.
_WORKER = (
    "exec env KERAS_BACKEND=tensorflow CUDA_VISIBLE_DEVICES=-1 {python} -c "
    "'import logging; logging.disable(logging.CRITICAL); "
    "from apache_beam.runners.worker import sdk_worker_main; sdk_worker_main.main([])'"
)


def _make_runner(runner, workers):
    if runner != _DIRECT:
        return runner
    # By its name, Beam would download another runner and run that.
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner
    from apache_beam.transforms.environments import SubprocessSDKEnvironment

    if workers == 1:
        return FnApiRunner()
    command = _WORKER.format(python=shlex.quote(sys.executable))
    return FnApiRunner(SubprocessSDKEnvironment.from_command_string(command))


def _check_beam_options(flags):
    """Refuse options that Beam would pass over; another runner may have some that it knows."""
    parsers = []
    options = import_beam().options.pipeline_options.PipelineOptions([])
    options.get_all_options(add_extra_args_fn=parsers.append)
    _, unknown = parsers[0].parse_known_args(list(flags))
    if unknown:
        raise ValueError(f"`beam_options` has what Beam does not know: {' '.join(unknown)}")


def _run(put_together, runner, workers, beam_options):
    """Run the pipeline that a function puts together."""
    beam = import_beam()
    flags = [f"--direct_num_workers={workers}", *beam_options]
    options = beam.options.pipeline_options.PipelineOptions(flags)
    logger = logging.getLogger("apache_beam")
    level = logger.level
    if runner == _DIRECT:
        # What goes wrong is raised, and needs no log.
        logger.setLevel(logging.CRITICAL)
    try:
        with beam.Pipeline(_make_runner(runner, workers), options) as root:
            put_together(root)
    except Exception as error:
        # Beam's message may be the trace of a worker; its last line says what was wrong.
        lines = [line for line in str(error).splitlines() if line.strip()]
        line = lines[-1] if lines else type(error).__name__
        raise ValueError(re.sub(r" \[while running '.*'\]$", "", line)) from error
    finally:
        logger.setLevel(level)


# === Inputs ===


def _sources(text, format):
    """Return the inputs by path, each with its format, once."""
    sources = {Source(name, "tfds") for name in text if name.startswith("tfds:")}
    remote = [name for name in text if "://" in name]
    local = [name for name in text if not name.startswith("tfds:") and "://" not in name]
    paths = [
        *map(str, texts.find_files(local)),
        *(path for name in remote for path in _match(name)),
    ]
    for path in paths:
        kind = format
        if format == "auto":
            with texts.open_text(path, _open) as stream:
                kind = texts.detect_format(path, stream)
        sources.add(Source(path, kind))
    return sorted(sources)


def _match(name):
    found, inside = (
        [item.path for item in file_systems().match([pattern])[0].metadata_list]
        for pattern in (name, f"{name.rstrip('/')}/**")
    )
    found += [path for path in inside if texts.is_text_file(path.rsplit("/", 1)[-1])]
    if not found:
        raise ValueError(f"There is no text file {name!r}, and no folder of that name with any.")
    return found


def _open(path):
    """Open a file as it is: Beam's own decompression is silent where a file is cut short."""
    raw = import_beam().io.filesystem.CompressionTypes.UNCOMPRESSED
    return file_systems().open(path, compression_type=raw)


def _parts(source):
    """Return the parts that a source can be read in at the same time."""
    if source.format != "jsonl" or texts.is_compressed(source.path):
        return [source]
    size = file_systems().get_filesystem(source.path).size(source.path)
    return [source._replace(start=s, stop=s + _PART_BYTES) for s in range(0, size, _PART_BYTES)]


def _read(source: Source, settings: Mapping) -> Iterator[texts.Document]:
    """Return the documents of a source; a ValueError names the file and the line."""
    if source.format == "tfds":
        yield from _read_tfds(source.path, settings)
        return
    with texts.open_text(source.path, _open) as stream:
        yield from texts.iterate_documents(
            stream,
            source.format,
            text_column=settings["text_column"],
            encoding_errors=settings["encoding_errors"],
            start=source.start,
            stop=source.stop,
        )


def _read_tfds(source, settings):
    dataset, _, tfds = load_tfds(source)
    text_column = settings["text_column"]
    # A nested feature is a dictionary or a data set, and a list of texts is no text.
    columns = [
        name
        for name, spec in dataset.element_spec.items()
        if getattr(spec, "dtype", None) == "string" and spec.shape.rank == 0
    ]
    if text_column not in columns:
        raise ValueError(f"{source!r} has no column {text_column!r} of texts. It has: {columns}.")
    for row in tfds.as_numpy(dataset):
        document = texts.Document(row[text_column].decode("utf-8", settings["encoding_errors"]))
        if document.text.strip():
            yield document


def _shard_number(text: str, seed: int, shards: int) -> int:
    digest = hashlib.blake2b(text.encode(), digest_size=8, key=str(seed).encode()).digest()
    return int.from_bytes(digest, "big") % shards


# === Examination: hashes and counts, before anything is tokenised ===


def _examine(sources, settings, shards, folder, run):
    """Return what each input is, and how many documents each shard, or bucket, gets."""
    beam = import_beam()
    tasks = [(_describe, source) for source in sources]
    tasks += [(_count, part) for source in sources for part in _parts(source)]
    path = folder.unfinished("examination")

    def put_together(root):
        _ = (
            root
            | beam.Create(tasks)
            | beam.Map(_examine_one, settings, shards or _MOST_SHARDS)
            | beam.combiners.ToList()
            | "Write" >> beam.Map(_write_json, path)
        )

    run(put_together)
    results = folder.read_json(os.path.basename(path))
    folder.clean()
    errors = sorted(result["error"] for result in results if "error" in result)
    if errors:
        raise ValueError(errors[0])
    inputs = [result for result in results if "path" in result]
    counts = Counter()
    for result in results:
        counts.update({int(bucket): n for bucket, n in result.get("documents", {}).items()})
    return sorted(inputs, key=lambda item: item["path"]), counts


def _examine_one(task, settings, buckets):
    function, source = task
    try:
        return function(source, settings, buckets)
    except (ValueError, OSError) as error:
        # Raised in a worker it would reach the user in the middle of a trace.
        return {"error": str(error)}


def _describe(source, settings, buckets):
    digest, size = hashlib.sha256(), 0
    for block in _blocks(source, settings):
        digest.update(block)
        size += len(block)
    return {
        "path": source.path,
        "format": source.format,
        "bytes": size,
        "sha256": digest.hexdigest(),
    }


def _blocks(source, settings):
    """Return the bytes of a file as it is, or the texts of a TFDS data set."""
    if source.format == "tfds":
        for document in _read(source, settings):
            yield document.text.encode() + b"\n"
        return
    with _open(source.path) as stream:
        yield from iter(lambda: stream.read(2**20), b"")


def _count(part, settings, buckets):
    documents = _read(part, settings)
    return {
        "documents": Counter(_shard_number(d.text, settings["seed"], buckets) for d in documents)
    }


def _write_json(content, path):
    with file_systems().create(path) as file:
        file.write(folders.as_json(content))


def _choose_shards(counts, shards, inputs, objective):
    """Return how many shards there are to be.

    Counts of documents modulo a number tell those modulo its divisors.
    """
    total = sum(counts.values())
    least = 2 if objective == "next_sentence" else 1
    if total < least:
        raise ValueError(
            f"There must be at least {least} documents for the objective {objective!r}. "
            f"There are {total}."
        )

    def smallest(number):
        folded = Counter()
        for bucket, count in counts.items():
            folded[bucket % number] += count
        return min(folded[n] for n in range(number))

    if shards is None:
        text = sum(item["bytes"] for item in inputs)
        shards = _FEWEST_SHARDS
        while shards < min(_MOST_SHARDS, text / _SHARD_BYTES):
            shards *= 2
        while shards > 1 and smallest(shards) < _SHARD_DOCUMENTS:
            shards //= 2
    elif objective == "next_sentence" and smallest(shards) < 2:
        fewer = [n for n in range(1, shards) if shards % n == 0 and smallest(n) >= 2]
        raise ValueError(
            "A random next sentence comes from another document of the same shard, and of "
            f"{total} documents in {shards} shards not every shard gets two. "
            f"`shards` could be {fewer[-1]}."
        )
    return shards


# === Shards ===


def _missing(names, shards):
    files = (folders.examples_name, folders.statistics_name)
    return [n for n in range(shards) if not {name(n, shards) for name in files} <= set(names)]


def _make_shards(sources, missing, settings, tokenizer, folder, run):
    beam = import_beam()
    parts = [part for source in sources for part in _parts(source)]

    def put_together(root):
        documents = (
            root
            | "Parts" >> beam.Create(parts)
            | "Read" >> beam.FlatMap(_keyed_documents, settings, frozenset(missing))
        )
        # So that a shard without a document has its file too.
        empty = root | "Shards" >> beam.Create([(number, None) for number in missing])
        _ = (
            (documents, empty)
            | beam.Flatten()
            | beam.GroupByKey()
            | "Make" >> beam.Map(_make_shard, ExampleMaker(tokenizer, settings), folder)
        )

    run(put_together)


def _keyed_documents(part, settings, missing):
    for document in _read(part, settings):
        number = _shard_number(document.text, settings["seed"], settings["shards"])
        if number in missing:
            yield number, tuple(document)


def _make_shard(keyed, maker, folder):
    number, documents = keyed
    shards = maker.settings["shards"]
    documents = [texts.Document(*document) for document in documents if document is not None]
    shard = maker.shard(number, documents)
    name = folders.examples_name(number, shards)
    path = folder.unfinished(name)
    with tempfile.TemporaryDirectory() as scratch:
        local = os.path.join(scratch, name)
        write_records(local, shard)
        with open(local, "rb") as source, file_systems().create(path) as target:
            shutil.copyfileobj(source, target, 2**20)
    folder.finish(path, name)
    folder.write_json(folders.statistics_name(number, shards), shard.statistics)


def _finish(folder, described):
    """Write the plot and the manifest."""
    shards = described["settings"]["shards"]
    each = [folder.read_json(folders.statistics_name(n, shards)) for n in range(shards)]
    counts = _summed(each)
    manifest = {
        **described,
        "examples_by_shard": [statistics["examples"] for statistics in each],
        "counts": counts,
    }
    if "masked" in counts:
        chosen = counts["masked"]["chosen"]
        places = sum(length * count for length, count in enumerate(counts["lengths"]))
        manifest["rates"] = {
            "chosen": chosen / max(places, 1),
            **{k: counts["masked"][k] / max(chosen, 1) for k in ("mask", "random", "same")},
        }
    folder.write(folders.PLOT, folders.length_plot(counts["lengths"]))
    folder.write_json(folders.MANIFEST, manifest)


def _summed(values):
    """Return the sums of dictionaries, lists and numbers, entry by entry."""
    first = values[0]
    if isinstance(first, dict):
        return {name: _summed([value[name] for value in values]) for name in first}
    if isinstance(first, list):
        return [sum(entries) for entries in zip(*values, strict=True)]
    return sum(values)
