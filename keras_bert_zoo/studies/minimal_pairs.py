"""Texts that differ in one thing: how far the representation moves, and how far the prediction."""

from collections.abc import Callable, Sequence

import numpy as np

from keras_bert_zoo.studies.runs import spread

# Pairs to begin with. A paraphrase keeps the meaning, so it says how small a shift can be.
PAIRS = {
    "negation": [
        ("The film is good.", "The film is not good."),
        ("I would watch it again.", "I would never watch it again."),
        ("There is a reason to see it.", "There is no reason to see it."),
        ("The actors were convincing.", "The actors were hardly convincing."),
    ],
    "antonym": [
        ("The story is interesting.", "The story is boring."),
        ("It was a warm evening.", "It was a cold evening."),
        ("The ending made us laugh.", "The ending made us cry."),
        ("She loved the book.", "She hated the book."),
    ],
    "roles": [
        ("The dog chased the cat.", "The cat chased the dog."),
        ("The teacher praised the pupil.", "The pupil praised the teacher."),
        ("The train left before the bus.", "The bus left before the train."),
        ("Anna owes money to Peter.", "Peter owes money to Anna."),
    ],
    "number": [
        ("They waited for two hours.", "They waited for nine hours."),
        ("The price fell by 5 percent.", "The price fell by 50 percent."),
        ("One of the windows broke.", "All of the windows broke."),
        ("He has visited twice.", "He has visited once."),
    ],
    "spelling": [
        ("The music is beautiful.", "The music is beautifull."),
        ("We definitely enjoyed it.", "We definately enjoyed it."),
        ("Their house is large.", "Thier house is large."),
        ("The weather was terrible.", "The weather was terible."),
    ],
    "paraphrase": [
        ("The film is good.", "The movie is good."),
        ("She began to read.", "She started to read."),
        ("It is almost finished.", "It is nearly finished."),
        ("They bought a big car.", "They purchased a big car."),
    ],
}
UNRELATED = "(unrelated)"


def pair_shifts(
    first: Sequence[str],
    second: Sequence[str],
    encode: Callable,
    probabilities: Callable | None = None,
    class_names: Sequence[str] | None = None,
    kinds: Sequence[str] | None = None,
) -> list[dict]:
    """Return how far what a model makes of the first text of each pair is from the second's.

    A shift of the representation is 1 less the cosine, 0 to 2; one of the prediction is the
    total variation between the probabilities, half the sum of their differences, 0 to 1.

    Args:
        first, second: the texts of the pairs.
        encode: from a list of texts to vectors (texts, width), such as `BertTextEmbedder.encode`.
        probabilities: from a list of texts to those of the classes, (texts, classes).
        class_names: the classes' names; their numbers if None.
        kinds: what each pair differs in.

    Returns:
        A row a pair: `kind`, `first`, `second`, `representation_shift`; `unrelated_shift`, that
        of its first text against the next pair's, by which the shifts may be measured, None of a
        single pair; and with `probabilities` also `prediction_shift`, both texts' classes
        `first_class` and `second_class`, and `flipped`, whether these differ.

    Raises:
        ValueError: there are no pairs, or the lists are not equally long.

    Example:
        >>> rows = pair_shifts(["x"], ["xy"], lambda texts: [["x" in t, "y" in t] for t in texts])
        >>> round(rows[0]["representation_shift"], 4)
        0.2929
    """
    kinds = [""] * len(first) if kinds is None else kinds
    if not len(first) or not len(first) == len(second) == len(kinds):
        raise ValueError(
            "Pairs must be complete, and some. Received: "
            f"{len(first)} first texts, {len(second)} second texts, {len(kinds)} kinds."
        )
    # Each text once: what is the same text has the same vector, whatever stands beside it.
    texts = list(dict.fromkeys([*first, *second]))
    place = {text: i for i, text in enumerate(texts)}
    vectors = np.asarray(encode(texts), "float64")
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    found = None if probabilities is None else np.asarray(probabilities(texts), "float64")

    def shift(one, other):
        # 1 less the cosine, without the rounding that would keep it from 0.
        return float(np.sum((vectors[place[one]] - vectors[place[other]]) ** 2) / 2)

    def class_of(row):
        number = int(np.argmax(row))
        return str(number) if class_names is None else class_names[number]

    rows = []
    for i, (one, other, kind) in enumerate(zip(first, second, kinds, strict=True)):
        row = {
            "kind": kind,
            "first": one,
            "second": other,
            "representation_shift": shift(one, other),
            "unrelated_shift": shift(one, first[(i + 1) % len(first)]) if len(first) > 1 else None,
        }
        if found is not None:
            before, after = found[place[one]], found[place[other]]
            row["prediction_shift"] = float(np.sum(np.abs(before - after)) / 2)
            row["first_class"], row["second_class"] = class_of(before), class_of(after)
            row["flipped"] = row["first_class"] != row["second_class"]
        rows.append(row)
    return rows


def shifts_by_kind(rows: Sequence[dict]) -> list[dict]:
    """Return the rows of `pair_shifts` together, a row a kind, and one of unrelated texts.

    Returns:
        Rows with `kind`, `pairs`, the means `representation_shift` and, where there are
        predictions, `prediction_shift`, each with its `_deviation`, and the share `flipped`.
    """
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    summary = []
    for kind in kinds:
        part = [row for row in rows if row["kind"] == kind]
        entry = {"kind": kind, "pairs": len(part)}
        for name in ("representation_shift", "prediction_shift"):
            if name in part[0]:
                entry |= spread(name, [row[name] for row in part])
        if "flipped" in part[0]:
            entry["flipped"] = sum(row["flipped"] for row in part) / len(part)
        summary.append(entry)
    if len(rows) > 1:
        unrelated = spread("representation_shift", [row["unrelated_shift"] for row in rows])
        blank = dict.fromkeys(summary[0])
        summary.append({**blank, "kind": UNRELATED, "pairs": len(rows), **unrelated})
    return summary
