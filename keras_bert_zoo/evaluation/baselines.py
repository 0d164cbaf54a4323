"""What a model that looks at nothing would score."""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np


def unigram_entropy(pieces: Iterable) -> float:
    """Return the entropy of the pieces' own frequencies, in nats a piece.

    No predictor that leaves the context out has a lower loss on these pieces.

    Example:
        >>> round(unigram_entropy("aabb"), 4)
        0.6931
    """
    counts = np.array(list(Counter(pieces).values()), dtype=float)
    shares = counts / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def majority_accuracy(train_labels: Sequence, test_labels: Sequence) -> float:
    """Return the accuracy of always giving the training set's most frequent label.

    Example:
        >>> majority_accuracy(["a", "a", "b"], ["a", "b"])
        0.5
    """
    majority = Counter(train_labels).most_common(1)[0][0]
    return sum(label == majority for label in test_labels) / len(test_labels)
