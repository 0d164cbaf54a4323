"""Start and end logits to answers: the best spans of a passage over all its windows."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

# A score below that of any span: what a passage without pieces has.
NO_SPAN = -1e9


class AnswerSpan(NamedTuple):
    """A part `context[start:end]` of a passage, and its probability."""

    text: str
    start: int
    end: int
    score: float


class PredictedAnswer(NamedTuple):
    """An answer `context[start:end]`, or `""` for none, and what else came into question.

    `score` is the answer's probability among all spans that could have been given;
    `null_odds` is how much higher no answer scores than the best span, in logits; `n_best`
    are the likeliest spans, the best first.
    """

    text: str
    start: int
    end: int
    score: float
    null_odds: float
    n_best: list[AnswerSpan]


def best_answers(
    start_logits: np.ndarray,
    end_logits: np.ndarray,
    windows: Mapping[str, np.ndarray],
    contexts: Sequence[str],
    *,
    max_answer_length: int = 30,
    n_best: int = 20,
    max_context: bool = True,
    no_answer_threshold: float | None = None,
) -> list[PredictedAnswer]:
    """Return the best span of each passage (Devlin et al. 2018, sections 4.2 and 4.3).

    A span's score is its start's logit plus its end's. It lies in the passage, ends where it
    starts or behind, and has at most `max_answer_length` pieces. The score of no answer is
    that of `[CLS]`, the lowest over the passage's windows, as the authors' program has it.

    Args:
        start_logits, end_logits: floats (windows, length).
        windows: what `BertQuestionAnswererPreprocessor.windows` returns, as arrays.
        contexts: the passages.
        max_answer_length: most pieces in an answer.
        n_best: the number of spans to list; of several with the same text the best counts.
        max_context: let a span start only in the window that shows its first piece in most
            context, as the authors' program does.
        no_answer_threshold: give no answer where the odds of none are higher; None always
            gives a span, where the passage has one, and leaves no answer out of the
            probabilities.

    Returns:
        An answer a passage.
    """
    starts = np.searchsorted(windows["example_ids"], np.arange(len(contexts) + 1))
    answers = []
    for context, first, behind in zip(contexts, starts, starts[1:], strict=False):
        null = min(start_logits[first:behind, 0] + end_logits[first:behind, 0])
        found, masses = [], []
        for row in range(first, behind):
            window = {name: windows[name][row] for name in _OF_PIECES}
            scores, spans = _best_spans(
                start_logits[row],
                end_logits[row],
                window,
                max_answer_length,
                # Of what one window gives, some may have the same text.
                4 * n_best,
                max_context,
            )
            masses.append(_log_sum_exp(scores))
            found += spans
        with_none = no_answer_threshold is not None
        total = _log_sum_exp(np.array([*masses, null] if with_none else masses))
        spans = candidates = _distinct(found, context, total, n_best)
        highest = max((score for score, *_ in found), default=NO_SPAN)
        odds = float(null - highest)
        none = AnswerSpan("", 0, 0, float(np.exp(null - total)) if with_none else 1.0)
        is_none = not spans or (with_none and odds > no_answer_threshold)
        if with_none:
            candidates = sorted([*spans, none], key=lambda span: -span.score)[:n_best]
        chosen = none if is_none else spans[0]
        answers.append(PredictedAnswer(*chosen, odds, candidates))
    return answers


_OF_PIECES = ("piece_places", "piece_starts", "piece_ends", "max_context")


def _best_spans(start_logits, end_logits, window, max_answer_length, count, max_context):
    """Return the scores of all spans of a window, and its best as (score, start, end)."""
    positions = np.flatnonzero(window["piece_places"] >= 0)
    if not positions.size:
        return np.zeros(0), []
    longest = min(max_answer_length, positions.size)
    # Row i has the ends at i, i + 1, ...; behind the window's last piece stands none.
    ends = np.append(end_logits[positions], np.full(longest - 1, -np.inf))
    ends = np.lib.stride_tricks.sliding_window_view(ends, longest)
    scores = start_logits[positions].astype("float64")[:, None] + ends
    if max_context:
        scores[window["max_context"][positions] == 0] = -np.inf
    scores = scores.ravel()
    count = min(count, scores.size)
    best = np.argpartition(-scores, count - 1)[:count]
    best = best[np.isfinite(scores[best])]
    first = positions[best // longest]
    last = positions[best // longest + best % longest]
    places = zip(window["piece_starts"][first], window["piece_ends"][last], strict=True)
    return scores, [(scores[i], int(a), int(b)) for i, (a, b) in zip(best, places, strict=True)]


def _distinct(spans, context, total, count):
    """Return the best of (score, start, end), the first in the text of equals, no text twice."""
    best = {}
    for score, start, end in sorted(spans, key=lambda span: (-span[0], *span[1:])):
        text = context[start:end]
        if text not in best:
            best[text] = AnswerSpan(text, start, end, float(np.exp(score - total)))
        if len(best) == count:
            break
    return list(best.values())


def _log_sum_exp(scores):
    highest = scores.max(initial=-np.inf)
    if highest == -np.inf:
        return -np.inf
    return highest + np.log(np.exp(scores - highest).sum())
