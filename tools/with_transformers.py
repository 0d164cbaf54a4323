"""Fine-tune and predict as transformers' example scripts do, for `compare_transformers.py`.

Those are run_glue.py, run_qa.py, run_ner.py and run_swag.py: their model, features, collator and
`Trainer` for each task, rows padded to the longest of their batch. Needs `pip install transformers
accelerate`.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers

from keras_bert_zoo.data.sources import Examples

# run_qa.py's: the pieces that two windows of a passage share, and what bounds its search.
DOC_STRIDE, N_BEST, MAX_ANSWER_LENGTH = 128, 20, 30
# What PyTorch's cross-entropy leaves out.
NO_LABEL = -100

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


class Peer(NamedTuple):
    """How a task is done.

    Args:
        model: an `AutoModelFor...`.
        collator: a class that takes the tokenizer.
        rows: from a tokenizer, examples, the longest row and either targets or None to a list of
            rows, which a `Trainer` takes for a data set.
        answers: from outputs, rows, examples and the names of classes to what
            `finetuning_tasks.scores_of` takes, a dictionary an example.
    """

    model: type
    collator: type
    rows: Callable
    answers: Callable


class Finetuning:
    """A model with a new head, by the seed, and what trains it.

    Args:
        folder: the checkpoint.
        train: the examples.
        names: of the classes, in the order of their numbers; or None.
        targets: of `train`: numbers, lists of them a word, or lists of answers.
        settings: `sequence_length`, `batch_size`, `learning_rate`, `epochs` and `warmup`.
        seed: of head, order and dropout.
    """

    def __init__(
        self,
        folder: str,
        train: Examples,
        names: Sequence[str] | None,
        targets: Sequence,
        settings: Mapping[str, Any],
        seed: int,
    ):
        self.peer = PEERS[train.task]
        self.names, self.length = names, settings["sequence_length"]
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        transformers.set_seed(seed)
        head = {"regression": {"num_labels": 1}}.get(train.task, {})
        head = {"num_labels": len(names)} if names else head
        self.model = self.peer.model.from_pretrained(folder, **head)
        self.train, self.targets = train, targets
        self.folder = tempfile.TemporaryDirectory()
        self.arguments = transformers.TrainingArguments(
            output_dir=self.folder.name,
            num_train_epochs=settings["epochs"],
            per_device_train_batch_size=settings["batch_size"],
            per_device_eval_batch_size=settings["batch_size"],
            learning_rate=settings["learning_rate"],
            # Below 1 it is a share of the steps.
            warmup_steps=settings["warmup"],
            seed=seed,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=torch.cuda.is_available(),
        )

    def trainer(self, rows: Sequence[Mapping] | None = None) -> transformers.Trainer:
        """Return the trainer of these rows."""
        trainer = transformers.Trainer(
            self.model,
            self.arguments,
            data_collator=self.peer.collator(self.tokenizer),
            train_dataset=rows,
            processing_class=self.tokenizer,
        )
        trainer.remove_callback(transformers.PrinterCallback)
        return trainer

    def rows(self, examples: Examples, targets: Sequence | None = None) -> list[dict]:
        """Return examples as the trainer takes them."""
        return self.peer.rows(self.tokenizer, examples, self.length, targets)

    def fit(self) -> None:
        """Train."""
        self.trainer(self.rows(self.train, self.targets)).train()

    def predict(self, examples: Examples) -> list[dict]:
        """Return an answer an example."""
        rows = self.rows(examples)
        outputs = self.trainer().predict(rows).predictions
        return self.peer.answers(outputs, rows, examples, self.names)


def _as_rows(columns):
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


# === Classes and numbers: run_glue.py ===


def _text_rows(tokenizer, examples, length, targets):
    columns = dict(tokenizer(*examples.columns, truncation=True, max_length=length))
    if targets is not None:
        columns["labels"] = [target.item() for target in targets]
    return _as_rows(columns)


def _classes(outputs, rows, examples, names):
    return [{"label": names[i]} for i in outputs.argmax(axis=-1)]


def _numbers(outputs, rows, examples, names):
    return [{"value": float(value)} for value in outputs[:, 0]]


# === Tags: run_ner.py ===


def _word_rows(tokenizer, examples, length, targets):
    encoding = tokenizer(examples.x, is_split_into_words=True, truncation=True, max_length=length)
    columns = dict(encoding)
    # Which word's first piece stands where, and None where there is none.
    columns["first_pieces"] = [
        [
            word if word != before else None
            for before, word in zip([None, *words], words, strict=False)
        ]
        for words in map(encoding.word_ids, range(len(examples)))
    ]
    if targets is not None:
        columns["labels"] = [
            [NO_LABEL if word is None else target[word] for word in words]
            for words, target in zip(columns["first_pieces"], targets, strict=True)
        ]
    return _as_rows(columns)


def _tags(outputs, rows, examples, names):
    """Return the tags; a word that was cut off, or has no piece, is outside of all spans."""
    answers = []
    for row, numbers, words in zip(rows, outputs.argmax(axis=-1), examples.x, strict=True):
        tags = ["O"] * len(words)
        for word, number in zip(row["first_pieces"], numbers, strict=False):
            if word is not None:
                tags[word] = names[number]
        answers.append({"tags": tags})
    return answers


# === Answers in a passage: run_qa.py ===


def _window_rows(tokenizer, examples, length, targets):
    questions, contexts = examples.columns
    encoding = tokenizer(
        [question.lstrip() for question in questions],
        contexts,
        truncation="only_second",
        max_length=length,
        stride=DOC_STRIDE,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    columns = dict(encoding)
    columns["example"] = columns.pop("overflow_to_sample_mapping")
    # Of a piece that is not the passage's, None.
    columns["offsets"] = [
        [place if part == 1 else None for place, part in zip(places, parts, strict=True)]
        for places, parts in zip(
            columns.pop("offset_mapping"),
            map(encoding.sequence_ids, range(len(columns["example"]))),
            strict=True,
        )
    ]
    if targets is not None:
        spans = [
            _label_span(targets[example], offsets)
            for example, offsets in zip(columns["example"], columns["offsets"], strict=True)
        ]
        columns["start_positions"], columns["end_positions"] = zip(*spans, strict=True)
    return _as_rows(columns)


def _label_span(answers, offsets):
    """Return the first answer's first and last position; those of [CLS] where it is cut."""
    inside = [i for i, place in enumerate(offsets) if place is not None]
    if not answers or not inside:
        return 0, 0
    text, start = answers[0]
    end = start + len(text)
    if offsets[inside[0]][0] > start or offsets[inside[-1]][1] < end:
        return 0, 0
    first = max(i for i in inside if offsets[i][0] <= start)
    last = min(i for i in inside if offsets[i][1] >= end)
    return first, last


def _spans(outputs, rows, examples, names):
    """Return the best span of the likeliest starts and ends, over all windows of a passage."""
    best = [(-np.inf, "")] * len(examples)
    for row, starts, ends in zip(rows, *outputs, strict=True):
        offsets, example = row["offsets"], row["example"]
        firsts, lasts = (
            [i for i in np.argsort(-scores)[:N_BEST] if i < len(offsets) and offsets[i]]
            for scores in (starts, ends)
        )
        for first in firsts:
            for last in lasts:
                score = starts[first] + ends[last]
                if first <= last < first + MAX_ANSWER_LENGTH and score > best[example][0]:
                    text = examples.columns[1][example][offsets[first][0] : offsets[last][1]]
                    best[example] = (score, text)
    return [{"answer": text} for _, text in best]


# === Choices: run_swag.py ===


def _choice_rows(tokenizer, examples, length, targets):
    prompts, choices = examples.columns
    pairs = [
        (prompt, choice) for prompt, row in zip(prompts, choices, strict=True) for choice in row
    ]
    encoding = tokenizer(*map(list, zip(*pairs, strict=True)), truncation=True, max_length=length)
    count = len(choices[0])
    columns = {
        name: [values[i : i + count] for i in range(0, len(values), count)]
        for name, values in encoding.items()
    }
    # The collator wants labels always.
    columns["labels"] = [0] * len(examples) if targets is None else [int(i) for i in targets]
    return _as_rows(columns)


def _choices(outputs, rows, examples, names):
    return [{"choice": int(i)} for i in outputs.argmax(axis=-1)]


PEERS = {
    "classification": Peer(
        transformers.AutoModelForSequenceClassification,
        transformers.DataCollatorWithPadding,
        _text_rows,
        _classes,
    ),
    "regression": Peer(
        transformers.AutoModelForSequenceClassification,
        transformers.DataCollatorWithPadding,
        _text_rows,
        _numbers,
    ),
    "tagging": Peer(
        transformers.AutoModelForTokenClassification,
        transformers.DataCollatorForTokenClassification,
        _word_rows,
        _tags,
    ),
    "question_answering": Peer(
        transformers.AutoModelForQuestionAnswering,
        transformers.DataCollatorWithPadding,
        _window_rows,
        _spans,
    ),
    "multiple_choice": Peer(
        transformers.AutoModelForMultipleChoice,
        transformers.DataCollatorForMultipleChoice,
        _choice_rows,
        _choices,
    ),
}
