"""Time text to ids, and text to masked-LM examples, beside the fastest peers, on one core.

    python tools/text_benchmark.py --sst2 GLUE/SST-2 --mixed LINES --vocabulary vocab.txt

`GLUE/SST-2` holds train.tsv in GLUE's layout; `LINES` is a folder of text files, searched to
the bottom, in any languages; the vocabulary is an uncased one, or `--cased` says otherwise.
Needs `pip install keras-hub tokenizers`. Each program runs in a process of its own, all on
the same core, and they take turns, so that what else the machine does meets all alike. What
counts is processor time, without the first batch, in which graphs are made ready. Prints the
medians, and fails where a ratio is below its bar.
"""

import argparse
import collections
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import time

TEXTS = 20480
BATCH_SIZE = 512
SEQUENCE_LENGTH = 128
PREDICTIONS = 20

# === Programs: each returns a function that makes an iterator over the texts' batches ===


def zoo_ids(texts, arguments):
    """Return this package's tokenizer on lists of texts."""
    from keras_bert_zoo.preprocessing import BertTokenizer

    tokenizer = BertTokenizer(arguments.vocabulary, lowercase=not arguments.cased)
    return lambda: map(tokenizer, batched(texts))


def rust_ids(texts, arguments):
    """Return the Rust tokenizer of Hugging Face on the same lists."""
    from tokenizers import BertWordPieceTokenizer

    tokenizer = BertWordPieceTokenizer(arguments.vocabulary, lowercase=not arguments.cased)

    def ids(batch):
        return [e.ids for e in tokenizer.encode_batch(batch, add_special_tokens=False)]

    return lambda: map(ids, batched(texts))


def zoo_masked_lm(texts, arguments, buckets=None):
    """Return this package's masked-LM examples, in tf.data, padded to buckets of lengths."""
    import tensorflow as tf

    from keras_bert_zoo.preprocessing import BertMaskedLMPreprocessor, BertTokenizer

    preprocessor = BertMaskedLMPreprocessor(
        BertTokenizer(arguments.vocabulary, lowercase=not arguments.cased),
        SEQUENCE_LENGTH,
        buckets,
        mask_selection_length=PREDICTIONS,
    )

    def example(batch):
        return preprocessor.batch((batch,), example_ids=tf.range(tf.shape(batch)[0]))

    return in_tf_data(texts, example)


def zoo_masked_lm_fixed(texts, arguments):
    """Return the same, every row padded to the full length."""
    return zoo_masked_lm(texts, arguments, buckets=[])


def keras_hub_masked_lm(texts, arguments):
    """Return KerasHub's masked-LM examples, in tf.data."""
    import keras_hub

    tokenizer = keras_hub.tokenizers.BertTokenizer(
        arguments.vocabulary, lowercase=not arguments.cased
    )
    preprocessor = keras_hub.models.BertMaskedLMPreprocessor(
        tokenizer, sequence_length=SEQUENCE_LENGTH, mask_selection_length=PREDICTIONS
    )
    return in_tf_data(texts, lambda batch: preprocessor(batch))


def batched(texts):
    """Return lists of `BATCH_SIZE` texts."""
    return [texts[i : i + BATCH_SIZE] for i in range(0, len(texts), BATCH_SIZE)]


def in_tf_data(texts, example):
    """Return a function that makes an iterator over a data set of the texts' examples."""
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensor_slices(texts).batch(BATCH_SIZE).cache().map(example)
    options = tf.data.Options()
    # Nothing is to be made ahead, while the other program runs.
    options.experimental_optimization.map_parallelization = False
    dataset = dataset.with_options(options)
    return lambda: iter(dataset)


# A comparison: what it is, its texts, ours, the peer's, and the least ratio of their speeds.
COMPARISONS = (
    ("ids, SST-2", "sst2", zoo_ids, rust_ids, 5.0),
    ("ids, mixed lines", "mixed", zoo_ids, rust_ids, 2.5),
    ("masked LM, buckets", "sst2", zoo_masked_lm, keras_hub_masked_lm, 3.0),
    ("masked LM, fixed length", "sst2", zoo_masked_lm_fixed, keras_hub_masked_lm, 3.0),
)


# === Taking turns ===


def read_texts(name, arguments):
    """Return the texts that a comparison is made on."""
    if name == "sst2":
        lines = (pathlib.Path(arguments.sst2) / "train.tsv").read_text(encoding="utf-8")
        texts = [line.rpartition("\t")[0] for line in lines.splitlines()[1:]]
    else:
        files = sorted(path for path in pathlib.Path(arguments.mixed).rglob("*") if path.is_file())
        texts = [
            line
            for path in files
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines()
            if line.strip()
        ]
    return random.Random(0).sample(texts, min(TEXTS, len(texts)))


def work(number, is_peer, arguments):
    """Be one program: for each line that comes in, run once and write the seconds."""
    _, texts, ours, peer, _ = COMPARISONS[number]
    batches = (peer if is_peer else ours)(read_texts(texts, arguments), arguments)
    collections.deque(batches(), maxlen=0)
    print("ready", flush=True)
    for _ in sys.stdin:
        rest = batches()
        next(rest)
        start = time.process_time()
        collections.deque(rest, maxlen=0)
        print(time.process_time() - start, flush=True)


def start_worker(number, is_peer, core):
    """Return a process that does `work`, on one core."""
    environment = {
        **os.environ,
        "KERAS_BACKEND": "tensorflow",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TOKENIZERS_PARALLELISM": "false",
    }
    return subprocess.Popen(
        [sys.executable, __file__, *sys.argv[1:], "--worker", json.dumps([number, is_peer, core])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )


def compare(number, repeats, core):
    """Return the median seconds of ours and of the peer's, their runs in turn."""
    workers = [start_worker(number, is_peer, core) for is_peer in (False, True)]
    try:
        for worker in workers:
            if worker.stdout.readline() != "ready\n":
                raise SystemExit(f"A process of {COMPARISONS[number][0]!r} failed; see above.")
        seconds = [[], []]
        for _ in range(repeats):
            for worker, times in zip(workers, seconds, strict=True):
                worker.stdin.write("run\n")
                worker.stdin.flush()
                times.append(float(worker.stdout.readline()))
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    return [statistics.median(times) for times in seconds]


def main() -> None:
    """Run the comparisons."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sst2", required=True, help="folder with train.tsv")
    parser.add_argument("--mixed", required=True, help="folder with text files")
    parser.add_argument("--vocabulary", required=True, help="vocabulary file")
    parser.add_argument("--cased", action="store_true", help="the vocabulary is cased")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--core", type=int, help="number of the core; the first by default")
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        number, is_peer, core = arguments.worker
        os.sched_setaffinity(0, {core})
        work(number, is_peer, arguments)
        return

    core = min(os.sched_getaffinity(0)) if arguments.core is None else arguments.core
    missed = False
    print(f"{'':24}{'texts/s':>10}{'peer':>10}{'ratio':>8}{'bar':>6}")
    for number, (name, texts, _, _, bar) in enumerate(COMPARISONS):
        count = len(read_texts(texts, arguments)) - BATCH_SIZE
        ours, peer = compare(number, arguments.repeats, core)
        missed |= peer / ours < bar
        print(f"{name:24}{count / ours:10.0f}{count / peer:10.0f}{peer / ours:8.2f}{bar:6.1f}")
    sys.exit(missed)


if __name__ == "__main__":
    main()
