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
    predictions: Mapping[str, str],
    null_odds: Mapping[str, float] | None = None,
    threshold: float | None = None,
) -> dict[str, float]:
    """Return what the official evaluation of SQuAD 1.1 or 2.0 says of predictions.

    Where some question is impossible the rules are 2.0's: answers that are nothing but
    articles and punctuation are none, and a question without answers is right if nothing is
    predicted.

    Args:
        table: what `read_squad` returns; its columns `id`, `answers` and `is_impossible` count.
        predictions: the text predicted for each id, `""` for no answer.
        null_odds: for each id how much is said for no answer, in any unit.
        threshold: take the questions with higher odds as predicted to have no answer.

    Returns:
        In percent and by their official names `exact` and `f1`, and their `total` number; of
        2.0 the same with `HasAns_` and `NoAns_` before it, of either kind alone. With
        `null_odds` also `best_exact` and `best_f1`, what the best threshold gives, and that
        threshold, `best_exact_thresh` and `best_f1_thresh`.

    Raises:
        ValueError: a question that is not impossible has no gold answers; the odds of a
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
    ids = list(table["id"])
    _check(table, predictions, null_odds, threshold)
    has_answer = {i: bool(a) for i, a in zip(ids, table["answers"], strict=True)}
    is_second = not all(has_answer.values())
    raw = {"exact": {}, "f1": {}}
    for i, answers in zip(ids, table["answers"], strict=True):
        golds = [text for text, _ in answers if not is_second or normalize_answer(text)] or [""]
        # An id without a prediction is wrong, an impossible question's too.
        given = i in predictions
        text = predictions.get(i, "")
        raw["exact"][i] = exact_match(text, golds) if given else 0.0
        raw["f1"][i] = token_f1(text, golds, is_second) if given else 0.0

    kept = {
        name: {
            i: float(not has_answer[i])
            if threshold is not None and null_odds[i] > threshold
            else score
            for i, score in scores.items()
        }
        for name, scores in raw.items()
    }
    result = _means(kept, ids)
    if is_second:
        for prefix, kind in (("HasAns_", True), ("NoAns_", False)):
            chosen = [i for i in ids if has_answer[i] is kind]
            if chosen:
                means = _means(kept, chosen).items()
                result.update({f"{prefix}{name}": value for name, value in means})
    if null_odds is not None:
        for name, scores in raw.items():
            best, where = _best_threshold(scores, predictions, null_odds, has_answer)
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
    """
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


def _check(table, predictions, null_odds, threshold):
    ids = table["id"]
    if not len(ids):
        raise ValueError("`table` has no questions.")
    unknown = [
        i
        for i, answers, impossible in zip(
            ids, table["answers"], table["is_impossible"], strict=True
        )
        if not answers and not impossible
    ]
    if unknown:
        raise ValueError(
            f"{len(unknown)} of {len(ids)} questions have no gold answers and are not said to be "
            f"impossible, the first {unknown[0]!r}: what they are answered can't be scored."
        )
    missing = [i for i in ids if i not in predictions]
    if missing:
        warnings.warn(
            f"{len(missing)} of {len(ids)} questions have no prediction and count as wrong, the "
            f"first {missing[0]!r}.",
            stacklevel=3,
        )
    if null_odds is None and threshold is not None:
        raise ValueError(f"`threshold`={threshold} needs `null_odds`.")
    if null_odds is not None and any(i not in null_odds for i in ids):
        first = next(i for i in ids if i not in null_odds)
        raise ValueError(f"`null_odds` must have every question. Missing: {first!r}.")


def _means(scores, ids):
    means = {name: 100 * sum(of[i] for i in ids) / len(ids) for name, of in scores.items()}
    return {**means, "total": len(ids)}


def _best_threshold(scores, predictions, null_odds, has_answer):
    """Return the best score in percent, and the highest odds at which an answer is still given.

    As in the official evaluation the questions pass one by one from "no answer" to what is
    predicted for them, also those of equal odds.
    """
    current = best = sum(not answer for answer in has_answer.values())
    threshold = 0.0
    # In the order of the odds given, as the official evaluation breaks its ties.
    for i in sorted((i for i in null_odds if i in scores), key=null_odds.get):
        if has_answer[i]:
            current += scores[i]
        elif predictions.get(i, "?"):
            current -= 1
        if current > best:
            best, threshold = current, null_odds[i]
    return 100 * best / len(scores), threshold
