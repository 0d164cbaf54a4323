"""How fast `prepare` is on one core, beside a plain Python program with the authors' rules.

    KERAS_BERT_ZOO_DATA=... python tools/prepare_benchmark.py --vocabulary vocab.txt

Both make next-sentence examples from the same file in the authors' format, ten passes,
masked once, 128 pieces, and write tf.train.Example records. Each runs as a process of its own,
pinned to one core, several times; whole processes are timed, and what they take for almost no
text is given apart. To make that small beside the work the text is written several times, each
copy's documents with a first sentence of their own. The plain program follows
google-research/bert's create_pretraining_data.py: a sentence, an example and a piece at a time.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).parent.parent
LENGTH, PREDICTIONS, PASSES = 128, 20, 10


# === The plain program ===


def plain(text, vocabulary, output):
    """Read, tokenise, pair, mask and write as the authors' script does."""
    import tensorflow as tf

    location = ROOT / "keras_bert_zoo" / "preprocessing" / "wordpiece_oracle.py"
    spec = importlib.util.spec_from_file_location("wordpiece_oracle", location)
    oracle = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(oracle)

    with open(vocabulary, encoding="utf-8") as lines:
        ids = {line.rstrip("\n"): number for number, line in enumerate(lines)}
    words = list(ids)
    documents = [[]]
    with open(text, encoding="utf-8") as lines:
        for line in lines:
            if not line.strip():
                documents.append([])
            elif pieces := oracle.tokenize(line.strip(), ids, lowercase=True):
                documents[-1].append(pieces)
    documents = [document for document in documents if document]
    rng = random.Random(0)
    rng.shuffle(documents)
    examples = []
    for _ in range(PASSES):
        for index in range(len(documents)):
            for first, second, is_random in plain_pairs(documents, index, rng):
                row = ["[CLS]", *first, "[SEP]", *second, "[SEP]"]
                segments = [0] * (len(first) + 2) + [1] * (len(second) + 1)
                examples.append((*plain_masks(row, words, rng), segments, is_random))
    rng.shuffle(examples)
    with tf.io.TFRecordWriter(output) as writer:
        for example in examples:
            writer.write(plain_record(tf, ids, *example))
    print(len(examples))


def plain_pairs(documents, index, rng):
    """Return (first, second, is_random) of one pass over a document."""
    document, room = documents[index], LENGTH - 3
    target = rng.randint(2, room) if rng.random() < 0.1 else room
    chunk, size, i = [], 0, 0
    while i < len(document):
        chunk.append(document[i])
        size += len(document[i])
        if i == len(document) - 1 or size >= target:
            split = rng.randint(1, len(chunk) - 1) if len(chunk) >= 2 else 1
            first, second = [], []
            for sentence in chunk[:split]:
                first.extend(sentence)
            is_random = len(chunk) == 1 or rng.random() < 0.5
            if is_random:
                for _ in range(10):
                    other = rng.randint(0, len(documents) - 1)
                    if other != index:
                        break
                begin = rng.randint(0, len(documents[other]) - 1)
                for sentence in documents[other][begin:]:
                    second.extend(sentence)
                    if len(second) >= target - len(first):
                        break
                i -= len(chunk) - split
            else:
                for sentence in chunk[split:]:
                    second.extend(sentence)
            while len(first) + len(second) > room:
                longer = first if len(first) > len(second) else second
                if rng.random() < 0.5:
                    del longer[0]
                else:
                    longer.pop()
            yield first, second, is_random
            chunk, size = [], 0
        i += 1


def plain_masks(row, words, rng):
    """Return the row with pieces hidden, their positions, and what stood there."""
    candidates = [i for i, piece in enumerate(row) if piece not in ("[CLS]", "[SEP]")]
    rng.shuffle(candidates)
    hidden = list(row)
    chosen = candidates[: min(PREDICTIONS, max(1, round(0.15 * len(row))))]
    for position in chosen:
        if rng.random() < 0.8:
            hidden[position] = "[MASK]"
        elif rng.random() >= 0.5:
            hidden[position] = words[rng.randint(0, len(words) - 1)]
    chosen.sort()
    return hidden, chosen, [row[position] for position in chosen]


def plain_record(tf, ids, row, positions, labels, segments, is_random):
    """Return the serialised example, padded as the authors' records are."""

    def padded(values, length):
        return list(values) + [0] * (length - len(values))

    def integers(values):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    weights = padded([1.0] * len(positions), PREDICTIONS)
    features = {
        "input_ids": integers(padded([ids[piece] for piece in row], LENGTH)),
        "input_mask": integers(padded([1] * len(row), LENGTH)),
        "segment_ids": integers(padded(segments, LENGTH)),
        "masked_lm_positions": integers(padded(positions, PREDICTIONS)),
        "masked_lm_ids": integers(padded([ids[piece] for piece in labels], PREDICTIONS)),
        "masked_lm_weights": tf.train.Feature(float_list=tf.train.FloatList(value=weights)),
        "next_sentence_labels": integers([int(is_random)]),
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


# === Measuring ===


def write_corpus(texts, path, copies):
    """Write texts of any format as a sentence a line; return how many documents there are."""
    from keras_bert_zoo.data import documents as reading

    count = 0
    with open(path, "w", encoding="utf-8") as out:
        for file in reading.find_files(texts):
            with open(file, "rb") as stream:
                kind = reading.detect_format(str(file), stream)
                stream.seek(0)
                for document in reading.iterate_documents(stream, kind, encoding_errors="replace"):
                    sentences = "\n".join(reading.sentences(document))
                    for copy in range(copies):
                        out.write(f"This is copy {copy}.\n{sentences}\n\n")
                        count += 1
    return count


def timed(command, core):
    """Return the seconds, by the clock and of the processor, that a process takes on one core."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    done = subprocess.run(["taskset", "-c", str(core), *command], capture_output=True, text=True)
    wall = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"{command} failed:\n{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, used


def main():
    """Run both programs in turn and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", nargs="+", help="texts; $KERAS_BERT_ZOO_DATA/pretraining if not")
    parser.add_argument("--vocabulary", required=True, help="an uncased vocab.txt")
    parser.add_argument("--copies", type=int, default=8)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--json", help="write the figures there")
    arguments = parser.parse_args()
    texts = arguments.text or [os.path.join(os.environ["KERAS_BERT_ZOO_DATA"], "pretraining")]
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        documents = write_corpus(texts, folder / "corpus.txt", arguments.copies)
        (folder / "tiny.txt").write_text("One sentence.\nAnother one.\n\nA third.\nThe last.\n")
        seconds = {}
        for run in range(arguments.runs):
            for corpus in ("corpus", "tiny"):
                text = str(folder / f"{corpus}.txt")
                output = folder / f"{corpus}-{run}"
                commands = {
                    "plain": [__file__, "plain", text, arguments.vocabulary, f"{output}.tfrecord"],
                    "prepare": ["-m", "keras_bert_zoo", "prepare", "--format", "sentences"]
                    + ["--text", text, "--vocabulary", arguments.vocabulary, "--masked-once"]
                    + ["--dupe-factor", str(PASSES), "--sequence-length", str(LENGTH)]
                    + ["--mask-selection-length", str(PREDICTIONS), "--output", str(output)],
                }
                for name, command in commands.items():
                    found = timed([sys.executable, *command], arguments.core)
                    seconds.setdefault((name, corpus), []).append(found)
        manifest = json.loads((folder / "corpus-0" / "manifest.json").read_text())
    figures = {
        "copies": arguments.copies,
        "documents": documents,
        "pieces": manifest["counts"]["pieces"],
        "examples of prepare": manifest["counts"]["examples"],
        "runs": arguments.runs,
    }
    for place, clock in enumerate(("wall", "processor")):
        median = {k: statistics.median(s[place] for s in found) for k, found in seconds.items()}
        for name in ("plain", "prepare"):
            figures[f"{name}, {clock} s"] = median[name, "corpus"]
            figures[f"{name}, start-up, {clock} s"] = median[name, "tiny"]
        work = [median[name, "corpus"] - median[name, "tiny"] for name in ("plain", "prepare")]
        figures[f"ratio, whole processes, {clock}"] = (
            median["plain", "corpus"] / median["prepare", "corpus"]
        )
        figures[f"ratio without start-up, {clock}"] = work[0] / work[1]
    for name, value in figures.items():
        print(f"{name}: {value:,.2f}" if isinstance(value, float) else f"{name}: {value:,}")
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["plain"]:
        plain(*sys.argv[2:])
    else:
        main()
