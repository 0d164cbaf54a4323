"""Scores of tags: F1 over spans, as CoNLL's own script counts them."""

from collections.abc import Sequence


def span_scores(expected: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict:
    """Return precision, recall and F1 over the spans that tags mark, by the package seqeval.

    A span is right if its type, its first and its last word are. `B-` begins one, and so does
    an `I-` of another type than the tag before it, so IO tags can be scored as well as BIO
    (Tjong Kim Sang and De Meulder 2003, by their script conlleval).

    Args:
        expected, predicted: for each sentence its tags, one a word; of all words.

    Returns:
        `precision`, `recall` and `f1` over all spans, 0 where there are none to count;
        `accuracy` over words; `spans`, how many there should be; `types`, a dictionary of
        `precision`, `recall`, `f1` and `spans` for each type.

    Raises:
        ValueError: a sentence has another number of predicted than of expected tags; or
            seqeval is not installed.

    Example:
        >>> scores = span_scores(
        ...     [["B-PER", "I-PER", "O", "B-LOC"]], [["B-PER", "I-PER", "O", "O"]])
        >>> scores["precision"], scores["recall"], scores["accuracy"]
        (1.0, 0.5, 0.75)
    """
    try:
        from seqeval.metrics import accuracy_score, classification_report
    except ImportError as error:
        raise ValueError(
            "Span scores need the package seqeval, which is not installed: "
            'pip install "keras_bert_zoo[evaluation]".'
        ) from error
    expected, predicted = ([list(row) for row in rows] for rows in (expected, predicted))
    if len(expected) != len(predicted):
        raise ValueError(
            "`predicted` must have a row of tags a sentence. "
            f"Received: {len(predicted)} rows for {len(expected)} sentences."
        )
    for index, (right, given) in enumerate(zip(expected, predicted, strict=True)):
        if len(right) != len(given):
            raise ValueError(
                f"`predicted[{index}]` must have a tag a word. "
                f"Received: {len(given)} tags for {len(right)} words."
            )
    if not any(tag != "O" for row in [*expected, *predicted] for tag in row):
        report = {}
    else:
        report = classification_report(expected, predicted, output_dict=True, zero_division=0)
    overall = report.pop("micro avg", {"precision": 0.0, "recall": 0.0, "f1-score": 0.0})
    types = {name: _named(row) for name, row in report.items() if not name.endswith(" avg")}
    return {
        **_named({"support": 0, **overall}),
        "accuracy": float(accuracy_score(expected, predicted)),
        "types": types,
    }


def _named(row):
    return {
        "precision": float(row["precision"]),
        "recall": float(row["recall"]),
        "f1": float(row["f1-score"]),
        "spans": int(row["support"]),
    }
