"""SQuAD's official scores: exact match and F1, with and without questions of no answer."""

import json
import os
import pathlib
import re
import string
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence

from keras_bert_zoo.whole_files import write_whole

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"\b(a|an|the)\b")


def normalize_answer(text: str) -> str:
    """Return an answer as SQuAD compares it (Rajpurkar et al. 2016, section 6.1).

    Lower-cased, without ASCII punctuation and then without the articles a, an and the, its
    white space made single. That leaves other scripts' punctuation in its place.

    Example:
        >>> normalize_answer("  The (old) man's  boat.")
        'old mans boat'
    """
    words = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLE.sub(" ", words).split())


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """Return 1 where the prediction is one of the answers, both normalised, and else 0.

    Example:
        >>> exact_match("the boat", ["A boat!", "A ship"])
        1.0
    """
    return float(normalize_answer(prediction) in map(normalize_answer, answers))


def token_f1(prediction: str, answers: Sequence[str], empty_agree: bool = True) -> float:
    """Return the highest F1 of the prediction's words against those of an answer.

    Args:
        prediction: a text.
        answers: the gold ones.
        empty_agree: whether two texts of no words score 1, as SQuAD 2.0 has it, or 0, as
            SQuAD 1.1 has it.

    Example:
        >>> round(token_f1("a small red boat", ["the red boat", "ship"]), 2)
        0.8
    """
    found = normalize_answer(prediction).split()

    def score(answer):
        expected = normalize_answer(answer).split()
        if not found or not expected:
            return float(empty_agree and found == expected)
        common = (Counter(found) & Counter(expected)).total()
        if not common:
            return 0.0
        precision, recall = common / len(found), common / len(expected)
        return 2 * precision * recall / (precision + recall)

    return max(map(score, answers))


def squad_scores(
    table: Mapping[str, Sequence],
    predictions: Mapping[str, str] | Sequence[str],
    null_odds: Mapping[str, float] | Sequence[float] | None = None,
    threshold: float | None = None,
) -> dict[str, float]:
    """Return what the official evaluation of SQuAD 1.1 or 2.0 says of predictions.

    Where some question is impossible the rules are 2.0's: answers that are nothing but
    articles and punctuation are none, and a question without answers is right if nothing is
    predicted.

    Args:
        table: what `read_squad` returns; its columns `id`, `answers` and `is_impossible` count.
        predictions: the text predicted, `""` for no answer, for each id or, as a list, for
            each question in the table's order.
        null_odds: likewise how much is said for no answer, in any unit.
        threshold: take the questions with higher odds as predicted to have no answer.

    Returns:
        In percent and by their official names `exact` and `f1`, and their `total` number; of
        2.0 the same with `HasAns_` and `NoAns_` before it, of either kind alone. With
        `null_odds` also `best_exact` and `best_f1`, what the best threshold gives, and that
        threshold, `best_exact_thresh` and `best_f1_thresh`.

    Raises:
        ValueError: a question that is not impossible has no gold answers; two have the same
            id, and predictions go by ids; lists are not as long as the table; the odds of a
            question are missing; or there is a threshold for no odds.

    Example:
        >>> table = {
        ...     "id": ["1", "2"],
        ...     "answers": [[("a red boat", 0)], []],
        ...     "is_impossible": [False, True],
        ... }
        >>> scores = squad_scores(table, {"1": "The boat", "2": ""})
        >>> round(scores["exact"], 1), round(scores["f1"], 1), scores["NoAns_f1"]
        (50.0, 83.3, 100.0)
    """
    _check_golds(table)
    texts = _in_order(table, predictions, "predictions")
    missing = [i for i, text in zip(table["id"], texts, strict=True) if text is None]
    if missing:
        warnings.warn(
            f"{len(missing)} of {len(texts)} questions have no prediction and count as wrong, the "
            f"first {missing[0]!r}.",
            stacklevel=2,
        )
    has_answer = [bool(answers) for answers in table["answers"]]
    is_second = not all(has_answer)
    raw = {"exact": [], "f1": []}
    for text, answers in zip(texts, table["answers"], strict=True):
        golds = [gold for gold, _ in answers if not is_second or normalize_answer(gold)] or [""]
        # A question without a prediction is wrong, an impossible one too.
        raw["exact"].append(0.0 if text is None else exact_match(text, golds))
        raw["f1"].append(0.0 if text is None else token_f1(text, golds, is_second))

    kept = raw
    if null_odds is None and threshold is not None:
        raise ValueError(f"`threshold`={threshold} needs `null_odds`.")
    if null_odds is not None:
        odds = _in_order(table, null_odds, "null_odds")
        if None in odds:
            missing = table["id"][odds.index(None)]
            raise ValueError(f"`null_odds` must have every question. Missing: {missing!r}.")
        if threshold is not None:
            is_none = [value > threshold for value in odds]
            kept = {
                name: [
                    float(not known) if none else score
                    for score, known, none in zip(scores, has_answer, is_none, strict=True)
                ]
                for name, scores in raw.items()
            }
    result = _means(kept)
    if is_second:
        for prefix, kind in (("HasAns_", True), ("NoAns_", False)):
            chosen = [row for row, known in enumerate(has_answer) if known is kind]
            if chosen:
                means = _means({name: [of[row] for row in chosen] for name, of in kept.items()})
                result.update({f"{prefix}{name}": value for name, value in means.items()})
    if null_odds is not None:
        rows = range(len(odds))
        if isinstance(null_odds, Mapping):
            # In the order of the odds given, as the official evaluation breaks its ties.
            places = {i: place for place, i in enumerate(null_odds)}
            rows = sorted(rows, key=lambda row: places[table["id"][row]])
        rows = sorted(rows, key=lambda row: odds[row])
        for name, scores in raw.items():
            best, where = _best_threshold(rows, scores, texts, odds, has_answer)
            result.update({f"best_{name}": best, f"best_{name}_thresh": where})
    return result


def write_squad_predictions(
    folder: str | os.PathLike, ids: Sequence[str], answers: Sequence
) -> None:
    """Write the three files that the BERT authors' program writes.

    `predictions.json` has a text an id, what the official evaluation takes;
    `null_odds.json` its odds of no answer; and `nbest_predictions.json` a list an id of
    candidates with `text`, `probability`, `start` and `end`.

    Args:
        folder: is made if need be.
        ids: the questions' ids.
        answers: what `BertQuestionAnswerer.answer` returned for them.

    Raises:
        ValueError: two questions have the same id.
    """
    _check_unique(ids)
    answers = dict(zip(ids, answers, strict=True))
    files = {
        "predictions": {i: answer.text for i, answer in answers.items()},
        "null_odds": {i: answer.null_odds for i, answer in answers.items()},
        "nbest_predictions": {
            i: [
                {"text": span.text, "probability": span.score, "start": span.start, "end": span.end}
                for span in answer.n_best
            ]
            for i, answer in answers.items()
        },
    }
    for name, content in files.items():
        text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        write_whole(pathlib.Path(folder) / f"{name}.json", text.encode())


def _check_golds(table):
    ids = table["id"]
    if not len(ids):
        raise ValueError("`table` has no questions.")
    columns = zip(ids, table["answers"], table["is_impossible"], strict=True)
    unknown = [i for i, answers, impossible in columns if not answers and not impossible]
    if unknown:
        raise ValueError(
            f"{len(unknown)} of {len(ids)} questions have no gold answers and are not said to be "
            f"impossible, the first {unknown[0]!r}: what they are answered can't be scored."
        )


def _in_order(table, values, name):
    """Return what is said of each question in the table's order, None where nothing is."""
    ids = table["id"]
    if isinstance(values, Mapping):
        _check_unique(ids)
        return [values.get(i) for i in ids]
    if len(values) != len(ids):
        raise ValueError(
            f"`{name}` must have one a question. Received: {len(values)} for {len(ids)} questions."
        )
    return list(values)


def _check_unique(ids):
    name, count = Counter(ids).most_common(1)[0]
    if count > 1:
        raise ValueError(
            f"{count} questions have the id {name!r}. Give predictions as a list, in the "
            "table's order, or give the questions ids of their own."
        )


def _means(scores):
    means = {name: 100 * sum(values) / len(values) for name, values in scores.items()}
    return {**means, "total": len(scores["exact"])}


def _best_threshold(rows, scores, predictions, odds, has_answer):
    """Return the best score in percent, and the highest odds at which an answer is still given.

    As in the official evaluation the questions pass one by one, in the order of `rows`, from
    "no answer" to what is predicted for them, also those of equal odds.
    """
    current = best = has_answer.count(False)
    threshold = 0.0
    for row in rows:
        if has_answer[row]:
            current += scores[row]
        elif predictions[row] != "":
            current -= 1
        if current > best:
            best, threshold = current, odds[row]
    return 100 * best / len(scores), threshold
