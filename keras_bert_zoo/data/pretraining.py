"""Documents to what `BertPretrainer.fit` takes."""

from collections.abc import Sequence

import numpy as np

from keras_bert_zoo.data.next_sentence import next_sentence_examples


def pretraining_examples(
    documents: Sequence[Sequence[str]],
    tokenizer,
    sequence_length: int = 128,
    *,
    duplicates: int = 1,
    seed: int = 0,
) -> tuple[tuple[list, list], np.ndarray]:
    """Return ((first, second), labels): lists of piece ids, and labels (examples,) of 0 or 1.

    `documents` are lists of sentences; the other arguments are those of
    `next_sentence_examples`.
    """
    pieces = tokenize_documents(documents, tokenizer)
    examples = next_sentence_examples(pieces, sequence_length, duplicates=duplicates, seed=seed)
    first, second, labels = zip(*examples, strict=True)
    return (list(first), list(second)), np.array(labels)


def tokenize_documents(documents: Sequence[Sequence[str]], tokenizer) -> list[list[list[int]]]:
    """Return the documents with each sentence as its piece ids."""
    sentences = iter(tokenizer([s for document in documents for s in document]).to_list())
    return [[next(sentences) for _ in document] for document in documents]


def split_documents(documents: Sequence, held_out_share: float, seed: int = 0) -> tuple[list, list]:
    """Return the documents to train on and at least two held-out ones, chosen by `seed`.

    Raises:
        ValueError: either side would have fewer than two documents.

    Example:
        >>> train, held_out = split_documents(list("abcdefgh"), 0.25)
        >>> len(train), len(held_out)
        (6, 2)
    """
    count = max(2, round(held_out_share * len(documents)))
    if not 0 < held_out_share < 1 or len(documents) - count < 2:
        raise ValueError(
            f"A held-out share of {held_out_share} of {len(documents)} documents leaves fewer "
            "than two on a side."
        )
    order = np.random.default_rng(seed).permutation(len(documents))
    held_out = set(order[:count].tolist())
    return (
        [document for i, document in enumerate(documents) if i not in held_out],
        [document for i, document in enumerate(documents) if i in held_out],
    )
