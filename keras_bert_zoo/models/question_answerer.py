"""The part of a passage that answers a question."""

from itertools import groupby

import keras
import numpy as np
from keras import ops

from keras_bert_zoo.evaluation.answer_spans import NO_SPAN, PredictedAnswer, best_answers
from keras_bert_zoo.layers.common import check_positive_int, initializer
from keras_bert_zoo.models.structured_texts import StructuredTexts
from keras_bert_zoo.models.text_model import DEFAULT_BATCH_SIZE, weighted_mean
from keras_bert_zoo.preprocessing.packing import bucket_lengths
from keras_bert_zoo.preprocessing.question_answering import (
    CHUNK,
    python_strings,
    served_answers,
)
from keras_bert_zoo.preprocessing.texts import text_columns


@keras.saving.register_keras_serializable("keras_bert_zoo")
class BertQuestionAnswerer(StructuredTexts, keras.Model):
    """Two scores a piece, that the answer starts and ends there (Devlin et al. 2018, 4.2, 4.3).

    Inputs are the backbone's, of rows `[CLS] question [SEP] part of the passage [SEP]`; the
    outputs are `start` and `end`, logits (batch, length), -1e9 at padding. Labels are
    positions in the row under the same names, 0, that of `[CLS]`, where the row holds no
    answer. The loss is the mean of both cross-entropies.

    With a preprocessor `fit((questions, contexts), answers)` takes strings; `answers` has a
    list a question of (text, start) pairs, empty where there is no answer. A passage's
    windows are rows of their own, so `batch_size` counts windows. `answer` gives the answers
    back.

    Args:
        backbone: a `BertBackbone`.
        preprocessor: a `BertQuestionAnswererPreprocessor`, so that texts can be given.
        max_answer_length: most pieces in an answer.
        no_answer_threshold: `answer` gives `""` where no answer scores higher than the best
            span by more than this, which is to be found on held-out questions (SQuAD 2.0);
            with None it gives a span always (SQuAD 1.1). It may be set later.

    Example:
        >>> backbone = BertBackbone(
        ...     vocabulary_size=9, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16)
        >>> tokenizer = BertTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "who", "by", "ann", "lee"], True)
        >>> preprocessor = BertQuestionAnswererPreprocessor(tokenizer, sequence_length=16)
        >>> answerer = BertQuestionAnswerer(backbone, preprocessor)
        >>> (answer,) = answerer.answer(["Who"], ["By Ann Lee"])
        >>> answer.text == "By Ann Lee"[answer.start : answer.end]
        True
    """

    heads = ("qa_outputs",)
    uses_pooler = False

    def __init__(
        self,
        backbone,
        preprocessor=None,
        max_answer_length: int = 30,
        no_answer_threshold: float | None = None,
        name: str | None = None,
    ):
        check_positive_int(max_answer_length=max_answer_length)

        # === Layers ===
        qa_outputs = keras.layers.Dense(
            2, kernel_initializer=initializer(), dtype="float32", name="qa_outputs"
        )

        # === Functional Model ===
        # A row is one example here, so there is no `example_starts`.
        inputs = backbone.example_inputs()
        del inputs["example_starts"]
        logits = qa_outputs(backbone(inputs)["sequence_output"])
        is_real = inputs["padding_mask"] > 0
        outputs = {
            name: ops.where(is_real, logits[:, :, i], NO_SPAN)
            for i, name in enumerate(("start", "end"))
        }
        super().__init__(inputs=inputs, outputs=outputs, name=name)

        # === Config ===
        self.qa_outputs = qa_outputs
        self.max_answer_length = max_answer_length
        self.no_answer_threshold = no_answer_threshold
        self.set_up(backbone, preprocessor)

    def defaults(self) -> dict:
        """Return the cross-entropies and accuracies of the start and of the end."""
        loss, accuracy = (
            keras.losses.SparseCategoricalCrossentropy,
            keras.metrics.SparseCategoricalAccuracy,
        )
        return {
            "loss": {name: weighted_mean(loss, from_logits=True) for name in ("start", "end")},
            "weighted_metrics": {name: [accuracy(name="accuracy")] for name in ("start", "end")},
        }

    def compile(self, optimizer="auto", loss="auto", *, loss_weights=None, **kwargs):
        """Compile as every task does; of an automatic loss both parts weigh a half."""
        if isinstance(loss, str) and loss == "auto" and loss_weights is None:
            loss_weights = {"start": 0.5, "end": 0.5}
        super().compile(optimizer, loss, loss_weights=loss_weights, **kwargs)

    # === Texts ===

    def predict(self, x, batch_size=None, verbose="auto", **kwargs):
        """Return the logits `start` and `end` of ids, or of (questions, contexts).

        Of texts there is a row for each of the windows that `preprocessor.windows` returns.
        """
        if not self._is_texts(x):
            return super().predict(x, batch_size, verbose, **kwargs)
        windows = _arrays(self.preprocessor.windows(x))
        return self._logits(windows, batch_size or DEFAULT_BATCH_SIZE, verbose, **kwargs)

    def answer(
        self,
        questions,
        contexts,
        *,
        n_best: int = 1,
        batch_size: int = DEFAULT_BATCH_SIZE,
        max_context: bool = True,
    ) -> list[PredictedAnswer]:
        """Return the part of each passage that answers its question.

        Args:
            questions, contexts: equally many strings, in a form that the preprocessor takes.
            n_best: the number of candidates to list in each answer's `n_best`.
            batch_size: windows that the model reads at once.
            max_context: let an answer start only in the window that shows its first piece in
                most context (Devlin et al. 2018, in their code).

        Returns:
            A `PredictedAnswer` a question: `text`, which is `context[start:end]` to the
            letter, or `""` with 0 and 0 for no answer; `start`; `end`; `score`, its
            probability; `null_odds`, in logits; `n_best`.

        Raises:
            ValueError: the model has no preprocessor, or an argument is out of range.
            TypeError: a text is not a string; its index is named.
        """
        check_positive_int(n_best=n_best, batch_size=batch_size)
        if self.preprocessor is None:
            raise ValueError("`answer` takes texts, for which the model needs a `preprocessor`.")
        columns, passages = text_columns((questions, contexts)), python_strings(contexts)
        answers = []
        for begin in range(0, len(passages), CHUNK):
            part = slice(begin, begin + CHUNK)
            windows = _arrays(self.preprocessor.windows(*(column[part] for column in columns)))
            logits = self._logits(windows, batch_size, verbose=0)
            answers += best_answers(
                logits["start"],
                logits["end"],
                windows,
                passages[part],
                max_answer_length=self.max_answer_length,
                n_best=n_best,
                max_context=max_context,
                no_answer_threshold=self.no_answer_threshold,
            )
        return answers

    def _batches(self, x, y, sample_weight, batch_size, callbacks=None, **order):
        if isinstance(x, dict):
            _check_positions(x, y)
        return super()._batches(x, y, sample_weight, batch_size, callbacks, **order)

    def _logits(self, windows, batch_size, verbose, **kwargs):
        """Return the logits of windows, which are read in the order of their lengths.

        Batches of one bucket go through the loop together; few rows are cut short by its end.
        """
        sizes = windows["padding_mask"].sum(axis=1)
        order = np.argsort(-sizes, kind="stable")
        lengths = np.array(
            bucket_lengths(self.preprocessor.sequence_length, self.preprocessor.buckets)
        )
        logits = {
            name: np.full(windows["token_ids"].shape, NO_SPAN, "float32") for name in self.output
        }

        def bucket(begin):
            return lengths[np.searchsorted(lengths, sizes[order[begin]])]

        for length, begins in groupby(range(0, len(order), batch_size), bucket):
            rows = np.concatenate([order[begin : begin + batch_size] for begin in begins])
            inputs = {name: windows[name][rows, :length] for name in self.input}
            outputs = super().predict(inputs, batch_size, verbose, **kwargs)
            for name, values in outputs.items():
                logits[name][rows, :length] = values
        return logits

    # === Saving ===

    def serving_strings(self, pairs: bool | None):
        """Return the strings that a SavedModel takes, questions and contexts, and its function.

        It answers with the threshold that is set now.

        Raises:
            ValueError: `pairs` is False.
        """
        if pairs is False:
            raise ValueError(
                f"A SavedModel that answers questions takes `pairs`. Received: pairs={pairs}."
            )

        def serve(questions, contexts):
            windows = self.preprocessor.windows((questions, contexts))
            outputs = self({name: windows[name] for name in self.input}, training=False)
            return served_answers(
                outputs["start"],
                outputs["end"],
                windows,
                contexts,
                self.max_answer_length,
                self.no_answer_threshold,
            )

        return {"first": [None], "second": [None]}, serve

    def get_config(self):
        """Return the constructor's arguments."""
        return {
            **super().get_config(),
            "max_answer_length": self.max_answer_length,
            "no_answer_threshold": self.no_answer_threshold,
        }


def _arrays(windows):
    return {name: ops.convert_to_numpy(x) for name, x in windows.items()}


def _check_positions(x, y):
    """Refuse labels outside their rows, which on JAX would count as no loss at all."""
    if not isinstance(y, dict):
        return
    length = np.shape(x["token_ids"])[1]
    for name, positions in y.items():
        positions = ops.convert_to_numpy(positions)
        wrong = positions[(positions < 0) | (positions >= length)]
        if wrong.size:
            raise ValueError(
                f"`y[{name!r}]` must be at least 0 and below {length}, the rows' length. "
                f"Received: {wrong[0]}."
            )
