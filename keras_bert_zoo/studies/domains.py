"""A source and a target domain side by side: vocabulary, lengths, cuts, unknowns, score."""

from collections.abc import Callable, Sequence

import numpy as np

from keras_bert_zoo.data.text_report import text_report
from keras_bert_zoo.evaluation import majority_accuracy
from keras_bert_zoo.preprocessing import BertTextClassifierPreprocessor, BertTokenizer
from keras_bert_zoo.presets import load_tokenizer
from keras_bert_zoo.studies.runs import check_labels, examples, run_seeds


def compare_texts(
    tokenizer: BertTokenizer, source, target, sequence_length: int = 128, num_pieces: int = 10
) -> list[dict]:
    """Return what the texts of two domains become, a row each.

    Args:
        tokenizer: whose pieces are counted.
        source, target: a list of texts, or a tuple of columns of them.
        sequence_length: where texts are cut.
        num_pieces: how many of the pieces to give that a domain has alone.

    Returns:
        A row for `source` and one for `target`: `texts`; of the pieces of a text `pieces` (the
        mean), `pieces_median` and `pieces_p95`; `cut_texts` and `cut_pieces`, the shares that are
        cut and lost; `unknown_texts` and `unknown_pieces`, the shares with and of `[UNK]`;
        `distinct_pieces`; `shared_pieces`, the share of these that the other domain has too;
        `covered_pieces`, the share of all the domain's pieces, each as often as it occurs, that
        the other has too; `divergence`, Jensen and Shannon's of the pieces' frequencies in bits,
        0 where they are the same and 1 where none is shared; `unknown_words`, the most frequent;
        and `own_pieces`, the most frequent that the other lacks.

    Raises:
        ValueError: a domain has no texts.

    Example:
        >>> tokenizer = BertTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c"], lowercase=True)
        >>> rows = compare_texts(tokenizer, ["a a a b"], ["c"])
        >>> rows[0]["own_pieces"], rows[1]["shared_pieces"], rows[0]["divergence"]
        (['a', 'b'], 0.0, 1.0)
    """
    preprocessor = BertTextClassifierPreprocessor(tokenizer, sequence_length)
    domains = {"source": source, "target": target}
    counts = {name: _counts(tokenizer, texts) for name, texts in domains.items()}
    divergence = _divergence(*counts.values())
    rows = []
    for (name, texts), other in zip(domains.items(), reversed(counts.values()), strict=True):
        report = text_report(texts, preprocessor, lengths=[sequence_length], num_unknown_words=10)
        own, (cut,) = counts[name], report["cut"]
        distinct, is_shared = own > 0, (own > 0) & (other > 0)
        alone = np.where(other > 0, 0, own)
        frequent = np.argsort(-alone, kind="stable")[:num_pieces]
        rows.append(
            {
                "domain": name,
                "texts": report["texts"],
                "pieces": report["pieces"]["mean"],
                "pieces_median": report["pieces"]["median"],
                "pieces_p95": report["pieces"]["p95"],
                "cut_texts": cut["texts"],
                "cut_pieces": cut["pieces"],
                "unknown_texts": report["unknown"]["texts"],
                "unknown_pieces": report["unknown"]["pieces"],
                "distinct_pieces": int(distinct.sum()),
                "shared_pieces": float(is_shared.sum() / max(1, distinct.sum())),
                "covered_pieces": float(own[is_shared].sum() / max(1, own.sum())),
                "divergence": divergence,
                "unknown_words": [entry["word"] for entry in report["unknown"]["words"]],
                "own_pieces": [tokenizer.id_to_token(int(i)) for i in frequent if alone[i]],
            }
        )
    return rows


def domains_study(
    preset: str,
    train: tuple,
    source: tuple,
    target: tuple,
    *,
    what: str = "all",
    learning_rate: float = 5e-5,
    seeds: Sequence[int] = (0, 1, 2),
    sequence_length: int = 128,
    batch_size: int = 32,
    epochs: int = 3,
    separate_processes: bool = True,
    progress: Callable[[str], None] | None = None,
) -> list[dict]:
    """Return the texts of two domains side by side, and what one learnt from the first scores.

    Args:
        preset, seeds, sequence_length, batch_size, epochs, separate_processes, progress: as in
            `transfer_study`.
        train: (texts, labels) of the source domain, to learn from.
        source, target: (texts, labels) of either domain, to score on.
        what: what `train_only` takes.
        learning_rate: the peak.

    Returns:
        The two rows of `compare_texts`, of the training texts and of `target`'s, with
        `majority_accuracy`, that of the training labels' most frequent; `runs`, the mean
        `accuracy` and its `accuracy_deviation`, on `source` and on `target`; and `each_run`.

    Raises:
        ValueError: labels to score on are not in training.

    Example:
        >>> domains_study("all_minilm_l6_v2_en", (["a", "b"], [0, 1]), (["c"], [0]), (["d"], [2]))
        Traceback (most recent call last):
        ValueError: The target examples have labels that training lacks: ['2'].
    """
    train, scored = examples(*train), {"source": examples(*source), "target": examples(*target)}
    check_labels(train, **scored)
    texts = (tuple(part["texts"]) for part in (train, scored["target"]))
    rows = compare_texts(load_tokenizer(preset), *texts, sequence_length)
    runs = run_seeds(
        "train_and_score",
        seeds,
        separate_processes=separate_processes,
        progress=progress,
        title=what,
        preset=preset,
        train=train,
        scored=scored,
        what=what,
        sequence_length=sequence_length,
        batch_size=batch_size,
        epochs=epochs,
        learning_rate=learning_rate,
    )
    for row in rows:
        name = row["domain"]
        row["scored_on"] = len(scored[name]["labels"])
        row["majority_accuracy"] = majority_accuracy(train["labels"], scored[name]["labels"])
        row["runs"] = runs["runs"]
        for figure in ("accuracy", "accuracy_deviation"):
            row[figure] = runs[f"{name}_{figure}"]
        row["each_run"] = [
            {"seed": run["seed"], "accuracy": run[f"{name}_accuracy"]} for run in runs["each_run"]
        ]
    return rows


def _counts(tokenizer, texts):
    counts = np.zeros(tokenizer.vocabulary_size, np.int64)
    for column in texts if isinstance(texts, tuple) else (texts,):
        ids = tokenizer(list(column)).flat_values.numpy()
        counts += np.bincount(ids, minlength=len(counts))
    return counts


def _divergence(one, other):
    """Return Jensen and Shannon's divergence of two lists of counts, in bits."""
    one, other = (counts / max(1, counts.sum()) for counts in (one, other))
    middle = (one + other) / 2

    def against_middle(shares):
        here = shares > 0
        return float(np.sum(shares[here] * np.log2(shares[here] / middle[here])))

    return (against_middle(one) + against_middle(other)) / 2
