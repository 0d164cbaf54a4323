"""A table of what can be fine-tuned: for each task its model, its labels, its answers, its scores.

An answer is a row in the user's own terms, such as a class's name and its probability.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_bert_zoo.data.conll import tag_names
from keras_bert_zoo.data.sources import Examples
from keras_bert_zoo.evaluation.glue import glue_score
from keras_bert_zoo.evaluation.squad import squad_scores
from keras_bert_zoo.evaluation.tagging import span_scores


class Task(NamedTuple):
    """How a task is trained and scored.

    Args:
        model: what `from_preset` calls it.
        head: from training examples to arguments of the model.
        targets: from labels and a model to what `fit` takes for `y`.
        predict: from a model, `x` and a batch size to a dictionary an example.
        answer: the key in it of what is compared with the label.
        score: from labels and answers to measures, higher is better in the first.
        wrong: from labels and answers to whether each answer is wrong.
        sequence_length: where none is asked for.
        tune: from labels and predictions to the predictions, and attributes of the model, that
            labelled examples make of them.
    """

    model: str
    head: Callable[[Examples], dict]
    targets: Callable[[Sequence, keras.Model], Any]
    predict: Callable[[keras.Model, Any, int], list[dict]]
    answer: str
    score: Callable[[Sequence, Sequence], dict[str, float]]
    wrong: Callable[[Sequence, Sequence], list[bool]]
    sequence_length: int = 128
    tune: Callable = lambda labels, predictions: (predictions, {})


def task_of(model: keras.Model) -> str:
    """Return the name in `TASKS` of what a model was made for.

    Raises:
        ValueError: it answers no such task.
    """
    name = _MODELS.get(type(model).__name__)
    if name is None:
        raise ValueError(
            f"A {type(model).__name__} has no answers to be predicted or scored; `finetune` makes "
            "a model of a task from it."
        )
    if name != "classification":
        return name
    if model.activation == "sigmoid":
        return "labels"
    return "regression" if model.num_classes == 1 else name


def answers_of(task: str, predictions: Sequence[Mapping]) -> list:
    """Return of each prediction what is compared with the label."""
    return [row[TASKS[task].answer] for row in predictions]


def scores_of(examples: Examples, predictions: Sequence[Mapping]) -> dict[str, float]:
    """Return the measures of predictions, the first what runs are chosen by.

    Those of GLUE's tasks are GLUE's, the first their mean.

    Raises:
        ValueError: an example has no label; or the scores need a package that is missing.
    """
    examples.check_labelled()
    answers = answers_of(examples.task, predictions)
    if examples.glue is None:
        return TASKS[examples.task].score(examples.labels, answers)
    scores = glue_score(examples.glue, examples.labels, answers)
    return {"score": scores.pop("score"), **scores}


def wrong_ids(examples: Examples, predictions: Sequence[Mapping]) -> list:
    """Return the ids of the examples that were answered wrongly."""
    answers = answers_of(examples.task, predictions)
    wrong = TASKS[examples.task].wrong(examples.labels, answers)
    return [i for i, is_wrong in zip(examples.ids, wrong, strict=True) if is_wrong]


def _differ(labels, answers):
    return [label != answer for label, answer in zip(labels, answers, strict=True)]


def _accuracy(labels, answers):
    return 1 - float(np.mean(_differ(labels, answers)))


# === Classes ===


def _class_head(examples):
    names = examples.classes or sorted(set(examples.labels))
    if len(names) < 2:
        raise ValueError(f"{examples.source!r} has one label only, {names[0]!r}.")
    return _names_head(names)


def _names_head(names, activation=None):
    # All is said, since a preset that has such a head already would keep what is not.
    return {"class_names": list(names), "num_classes": len(names), "activation": activation}


def _class_numbers(labels, model):
    return np.array([_known(model, label) for label in labels], "int32")


def _known(model, label):
    names = class_names(model)
    if label not in names:
        raise ValueError(f"The model has no class {label!r}. It has: {names}.")
    return names.index(label)


def class_names(model: keras.Model) -> list[str]:
    """Return what a classifier's outputs are called; their numbers where they have no names."""
    return model.class_names or [str(i) for i in range(model.num_classes)]


def _predict_classes(model, x, batch_size):
    names = class_names(model)
    outputs = model.predict(x, batch_size=batch_size, verbose=0)
    shares = outputs if model.activation == "softmax" else _softmax(outputs)
    return [
        {"label": names[int(np.argmax(row))], "probability": float(np.max(row))} for row in shares
    ]


def _softmax(logits):
    shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return shares / shares.sum(axis=-1, keepdims=True)


def _class_scores(labels, answers):
    return {"accuracy": _accuracy(labels, answers), "macro_f1": _macro_f1(labels, answers)}


def _macro_f1(labels, answers):
    """Return the mean over the classes that occur of their F1."""
    right = Counter(a for a, b in zip(labels, answers, strict=True) if a == b)
    sizes = Counter(labels) + Counter(answers)
    return float(np.mean([2 * right[name] / size for name, size in sizes.items()]))


# === Numbers ===


def _predict_numbers(model, x, batch_size):
    outputs = model.predict(x, batch_size=batch_size, verbose=0)
    return [{"value": float(row[0])} for row in outputs]


def _number_scores(labels, answers):
    labels, answers = np.array(labels), np.array(answers)
    error = float(np.mean((labels - answers) ** 2))
    spread = float(np.var(labels))
    is_flat = not spread or not np.ptp(answers)
    return {
        "r2": 1 - error / spread if spread else 0.0,
        "pearson": 0.0 if is_flat else float(np.corrcoef(labels, answers)[0, 1]),
        "mean_squared_error": error,
    }


def _far_off(labels, answers):
    """Say which answers are further off than half of the labels' standard deviation."""
    return (np.abs(np.subtract(labels, answers)) > np.std(labels) / 2).tolist()


# === Several labels at once ===


def _several_head(examples):
    names = sorted({name for row in examples.labels for name in row})
    if not names:
        raise ValueError(f"No row of {examples.source!r} has a label.")
    return _names_head(names, "sigmoid")


def _several_targets(labels, model):
    targets = np.zeros((len(labels), model.num_classes), "float32")
    for row, names in enumerate(labels):
        for name in names:
            targets[row, _known(model, name)] = 1
    return targets


def _predict_several(model, x, batch_size):
    names = class_names(model)
    outputs = model.predict(x, batch_size=batch_size, verbose=0)
    return [
        {"labels": [name for name, share in zip(names, row, strict=True) if share >= 0.5]}
        for row in outputs
    ]


def _several_scores(labels, answers):
    rows = [(set(a), set(b)) for a, b in zip(labels, answers, strict=True)]
    right = sum(len(a & b) for a, b in rows)
    total = sum(len(a) + len(b) for a, b in rows)
    return {
        "micro_f1": 2 * right / total if total else 1.0,
        "exact_match": float(np.mean([a == b for a, b in rows])),
    }


def _sets_differ(labels, answers):
    return [set(a) != set(b) for a, b in zip(labels, answers, strict=True)]


# === Tags ===


def _tag_head(examples):
    names = tag_names(examples.labels)
    return {"class_names": names, "num_classes": len(names)}


def _predict_tags(model, x, batch_size):
    return [{"tags": list(map(str, tags))} for tags in model.predict_tags(x, batch_size)]


def _tag_scores(labels, answers):
    """Return the scores of spans where tags mark some, and otherwise of words."""
    if not all(tag == "O" or tag[:2] in ("B-", "I-") for row in labels for tag in row):
        flat = [[tag for row in rows for tag in row] for rows in (labels, answers)]
        return _class_scores(*flat)
    scores = span_scores(labels, answers)
    return {name: scores[name] for name in ("f1", "precision", "recall", "accuracy")}


# === Answers in a passage ===


def _predict_answers(model, x, batch_size):
    answers = model.answer(*x, batch_size=batch_size)
    return [
        {"answer": a.text, "start": a.start, "end": a.end, "score": a.score, "odds": a.null_odds}
        for a in answers
    ]


def _answer_table(labels):
    return {
        "id": list(range(len(labels))),
        "answers": labels,
        "is_impossible": [not answers for answers in labels],
    }


def _answer_scores(labels, answers):
    scores = squad_scores(_answer_table(labels), answers)
    scores.pop("total")
    return {"f1": scores.pop("f1"), **scores}


def _tune_answers(labels, predictions):
    """Find the threshold of no answer, where some questions have none, and go by it."""
    if all(labels):
        return predictions, {}
    texts, odds = ([row[name] for row in predictions] for name in ("answer", "odds"))
    threshold = squad_scores(_answer_table(labels), texts, odds)["best_f1_thresh"]
    none = {"answer": "", "start": 0, "end": 0}
    predictions = [{**row, **none} if row["odds"] > threshold else row for row in predictions]
    return predictions, {"no_answer_threshold": threshold}


def _answers_differ(labels, answers):
    return [
        squad_scores(_answer_table([label]), [answer])["exact"] == 0
        for label, answer in zip(labels, answers, strict=True)
    ]


# === Choices ===


def _predict_choices(model, x, batch_size):
    return [
        {"choice": chosen.index, "chosen": chosen.text, "probability": chosen.probability}
        for chosen in model.choose(*x, batch_size=batch_size)
    ]


TASKS = {
    "classification": Task(
        model="text_classifier",
        head=_class_head,
        targets=_class_numbers,
        predict=_predict_classes,
        answer="label",
        score=_class_scores,
        wrong=_differ,
    ),
    "regression": Task(
        model="text_classifier",
        head=lambda examples: {"num_classes": 1, "activation": None},
        targets=lambda labels, model: np.array(labels, "float32"),
        predict=_predict_numbers,
        answer="value",
        score=_number_scores,
        wrong=_far_off,
    ),
    "labels": Task(
        model="text_classifier",
        head=_several_head,
        targets=_several_targets,
        predict=_predict_several,
        answer="labels",
        score=_several_scores,
        wrong=_sets_differ,
    ),
    "tagging": Task(
        model="token_classifier",
        head=_tag_head,
        targets=lambda labels, model: labels,
        predict=_predict_tags,
        answer="tags",
        score=_tag_scores,
        wrong=_differ,
    ),
    "question_answering": Task(
        model="question_answerer",
        head=lambda examples: {},
        targets=lambda labels, model: labels,
        predict=_predict_answers,
        answer="answer",
        score=_answer_scores,
        wrong=_answers_differ,
        sequence_length=384,
        tune=_tune_answers,
    ),
    "multiple_choice": Task(
        model="multiple_choice",
        head=lambda examples: {},
        targets=lambda labels, model: np.array(labels, "int32"),
        predict=_predict_choices,
        answer="choice",
        score=lambda labels, answers: {"accuracy": _accuracy(labels, answers)},
        wrong=_differ,
    ),
}

_MODELS = {
    "BertTextClassifier": "classification",
    "BertTokenClassifier": "tagging",
    "BertQuestionAnswerer": "question_answering",
    "BertMultipleChoice": "multiple_choice",
}
