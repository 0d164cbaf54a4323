"""Programs of `benchmark.py` that make ids and masked-LM examples, beside the fastest peers.

20,480 texts in batches of 512: SST-2's training phrases, or the lines of all files in `data`'s
folder `tokenizer_text`, in any languages; the vocabulary is BERT's uncased English one. Each
program returns a function that goes through them once.
"""

import collections
import pathlib
import random

TEXTS, BATCH_SIZE = 20480, 512
SEQUENCE_LENGTH, PREDICTIONS = 128, 20
# A preset that has the vocabulary.
PRESET = "all_minilm_l6_v2_en"


def sst2(data):
    """Return texts of SST-2, in batches."""
    from keras_bert_zoo.data import read_glue

    return batched(read_glue("SST-2", "train", pathlib.Path(data) / "glue")["text"])


def mixed(data):
    """Return lines in many languages, in batches."""
    folder = pathlib.Path(data) / "tokenizer_text"
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    lines = (
        line
        for path in files
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines()
    )
    return batched([line for line in lines if line.strip()])


def batched(texts):
    """Return batches of some of the texts, at random."""
    texts = random.Random(0).sample(texts, min(TEXTS, len(texts)))
    return [texts[i : i + BATCH_SIZE] for i in range(0, len(texts), BATCH_SIZE)]


def use_up(values):
    """Go through an iterator."""
    collections.deque(values, maxlen=0)


# === Ids ===


def zoo_ids(data, texts=sst2):
    """Tokenise lists of texts with this package."""
    from keras_bert_zoo import load_tokenizer

    tokenizer, batches = load_tokenizer(PRESET), texts(data)
    return lambda: use_up(map(tokenizer, batches))


def rust_ids(data, texts=sst2):
    """Tokenise the same lists with Hugging Face's Rust tokenizer."""
    from tokenizers import BertWordPieceTokenizer

    from keras_bert_zoo import load_tokenizer

    vocabulary = load_tokenizer(PRESET).vocabulary
    tokenizer = BertWordPieceTokenizer({piece: i for i, piece in enumerate(vocabulary)})
    batches = texts(data)

    def ids(batch):
        return [e.ids for e in tokenizer.encode_batch(batch, add_special_tokens=False)]

    return lambda: use_up(map(ids, batches))


# === Masked-LM examples, in tf.data ===


def zoo_examples(data, buckets=None):
    """Make them with this package, padded to buckets of lengths, or to 128 with none."""
    import tensorflow as tf

    from keras_bert_zoo import load_tokenizer
    from keras_bert_zoo.preprocessing import BertMaskedLMPreprocessor

    preprocessor = BertMaskedLMPreprocessor(
        load_tokenizer(PRESET), SEQUENCE_LENGTH, buckets, mask_selection_length=PREDICTIONS
    )

    def example(batch):
        return preprocessor.batch((batch,), example_ids=tf.range(tf.shape(batch)[0]))

    return in_tf_data(data, example)


def keras_hub_examples(data):
    """Make them with KerasHub."""
    import keras_hub

    from keras_bert_zoo import load_tokenizer

    vocabulary = list(load_tokenizer(PRESET).vocabulary)
    preprocessor = keras_hub.models.BertMaskedLMPreprocessor(
        keras_hub.tokenizers.BertTokenizer(vocabulary, lowercase=True),
        sequence_length=SEQUENCE_LENGTH,
        mask_selection_length=PREDICTIONS,
    )
    return in_tf_data(data, lambda batch: preprocessor(batch))


def in_tf_data(data, example):
    """Return a function that goes through a data set of the texts' examples."""
    import tensorflow as tf

    texts = [text for batch in sst2(data) for text in batch]
    dataset = tf.data.Dataset.from_tensor_slices(texts).batch(BATCH_SIZE).cache().map(example)
    options = tf.data.Options()
    # Nothing is to be made ahead, while the other program runs.
    options.experimental_optimization.map_parallelization = False
    dataset = dataset.with_options(options)
    return lambda: use_up(dataset)
