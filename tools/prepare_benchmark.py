"""How fast `prepare` is on one core, beside a plain Python program with the authors' rules.

    KERAS_BERT_ZOO_DATA=... python tools/prepare_benchmark.py --vocabulary vocab.txt

Both make next-sentence examples from the same file in the authors' format, ten passes,
masked once, 128 pieces, and write tf.train.Example records. Each runs as a process of its own,
pinned to one core, several times; whole processes are timed, and what they take for almost no
text is given apart. To make that small beside the work the text is written several times, each
copy's documents with a first sentence of their own. The plain program follows
google-research/bert's create_pretraining_data.py and tokenization.py: a sentence, an example and
a piece at a time. Its pieces are checked to be those of this package.
"""

import argparse
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
import unicodedata

LENGTH, PREDICTIONS, PASSES = 128, 20, 10


# === The plain program ===


def plain(text, vocabulary, output):
    """Read, tokenise, pair, mask and write as the authors' script does."""
    import tensorflow as tf

    with open(vocabulary, encoding="utf-8") as lines:
        ids = {line.rstrip("\n"): number for number, line in enumerate(lines)}
    words = list(ids)
    documents = [[]]
    with open(text, encoding="utf-8") as lines:
        for line in lines:
            if not line.strip():
                documents.append([])
            elif pieces := plain_pieces(line.strip(), ids):
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


def plain_pieces(text, ids):
    """Return the pieces of a text, as tokenization.py finds them."""
    pieces = []
    for word in spaced_ideographs(cleaned(text)).strip().split():
        for part in split_punctuation(without_accents(word.lower())):
            pieces.extend(word_pieces(part, ids))
    return pieces


def cleaned(text):
    """Return a text without control characters, all white space made a space."""
    kept = []
    for character in text:
        if character == "\0" or character == "\ufffd" or is_control(character):
            continue
        kept.append(" " if is_space(character) else character)
    return "".join(kept)


def is_control(character):
    """Say whether a character is a control character, and no line end or tab."""
    if character in "\t\n\r":
        return False
    return unicodedata.category(character) in ("Cc", "Cf")


def is_space(character):
    """Say whether a character is white space."""
    if character in " \t\n\r":
        return True
    return unicodedata.category(character) == "Zs"


def spaced_ideographs(text):
    """Return a text with a space on both sides of each ideograph."""
    kept = []
    for character in text:
        if is_ideograph(ord(character)):
            kept += [" ", character, " "]
        else:
            kept.append(character)
    return "".join(kept)


def is_ideograph(code):
    """Say whether a code point is in one of the blocks of CJK ideographs."""
    return (
        0x4E00 <= code <= 0x9FFF
        or 0x3400 <= code <= 0x4DBF
        or 0x20000 <= code <= 0x2A6DF
        or 0x2A700 <= code <= 0x2B73F
        or 0x2B740 <= code <= 0x2B81F
        or 0x2B820 <= code <= 0x2CEAF
        or 0xF900 <= code <= 0xFAFF
        or 0x2F800 <= code <= 0x2FA1F
    )


def without_accents(word):
    """Return a word without its combining marks."""
    decomposed = unicodedata.normalize("NFD", word)
    return "".join([c for c in decomposed if unicodedata.category(c) != "Mn"])


def split_punctuation(word):
    """Return the parts of a word, each punctuation character one of its own."""
    parts, begins = [], True
    for character in word:
        if is_punctuation(character):
            parts.append([character])
            begins = True
        else:
            if begins:
                parts.append([])
            begins = False
            parts[-1].append(character)
    return ["".join(part) for part in parts]


def is_punctuation(character):
    """Say whether a character is split off."""
    code = ord(character)
    if 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126:
        return True
    return unicodedata.category(character).startswith("P")


def word_pieces(word, ids):
    """Return a word's longest pieces from the left, or [UNK] alone."""
    if len(word) > 200:
        return ["[UNK]"]
    pieces, start = [], 0
    while start < len(word):
        end = len(word)
        while start < end:
            piece = word[start:end] if start == 0 else "##" + word[start:end]
            if piece in ids:
                break
            end -= 1
        else:
            return ["[UNK]"]
        pieces.append(piece)
        start = end
    return pieces


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
            with reading.open_text(str(file)) as stream:
                kind = reading.detect_format(str(file), stream)
                stream.seek(0)
                for document in reading.iterate_documents(stream, kind, encoding_errors="replace"):
                    sentences = "\n".join(reading.sentences(document))
                    for copy in range(copies):
                        out.write(f"This is copy {copy}.\n{sentences}\n\n")
                        count += 1
    return count


def check_pieces(corpus, vocabulary):
    """Refuse to measure a plain tokenizer that finds other pieces than this package's."""
    from keras_bert_zoo.preprocessing import BertTokenizer
    from keras_bert_zoo.preprocessing.examples import tokenize_flat

    with open(vocabulary, encoding="utf-8") as lines:
        ids = {line.rstrip("\n"): number for number, line in enumerate(lines)}
    lines = corpus.read_text(encoding="utf-8").split("\n")
    plain_ids = [ids[piece] for line in lines for piece in plain_pieces(line.strip(), ids)]
    ours, _ = tokenize_flat(BertTokenizer(vocabulary, lowercase=True), lines)
    if ours.tolist() != plain_ids:
        raise SystemExit("The plain tokenizer and this package's find other pieces.")


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
        write_corpus(texts, folder / "once.txt", 1)
        check_pieces(folder / "once.txt", arguments.vocabulary)
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
