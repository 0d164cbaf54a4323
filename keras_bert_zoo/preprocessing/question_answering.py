"""Questions and passages as windows: what a question answerer reads, learns and answers from."""

import warnings
from collections.abc import Sequence

import keras
import numpy as np

from keras_bert_zoo.layers.common import check_positive_int
from keras_bert_zoo.preprocessing.lazy_tensorflow import tf
from keras_bert_zoo.preprocessing.preprocessor import BertPreprocessor, to_backend
from keras_bert_zoo.preprocessing.texts import received, text_columns
from keras_bert_zoo.preprocessing.tokenizer import BertTokenizer
from keras_bert_zoo.preprocessing.windows import slide

# Questions whose windows are held at once, which bounds the memory.
CHUNK = 1024

# What has no span has this for its score: odds are finite.
_NO_SPAN = -1e9

_INPUTS = ("token_ids", "segment_ids", "padding_mask")


@keras.saving.register_keras_serializable("keras_bert_zoo")
class BertQuestionAnswererPreprocessor(BertPreprocessor):
    """Windows `[CLS] question [SEP] part of the passage [SEP]` (Devlin et al. 2018, SQuAD).

    A passage has as many rows as it takes to show all of it. In training an answer is labelled
    in each window that holds the whole of it, and `[CLS]` in the others, as it is where the
    question has no answer. An answer that no window holds is left out, and counted in a warning.

    Args:
        tokenizer: a `BertTokenizer`.
        sequence_length: most pieces in a window, question and marks included.
        buckets: lengths that batches are padded to, as in `BertPreprocessor`.
        stride: pieces from a window's start to that of the next.
        question_length: most pieces of a question; longer ones are cut.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> tokenizer = BertTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "who", "ann", "lee", "."], True)
        >>> preprocessor = BertQuestionAnswererPreprocessor(tokenizer, 8, stride=2)
        >>> windows, labels, lost = preprocessor.labelled_windows(
        ...     ["Who"], ["Ann . . Lee ."], [[("Lee", 8)]])
        >>> keras.ops.convert_to_numpy(windows["token_ids"]).tolist()
        [[2, 5, 3, 6, 8, 8, 7, 3], [2, 5, 3, 8, 7, 8, 3, 0]]
        >>> keras.ops.convert_to_numpy(labels["start"]).tolist()
        [6, 4]
    """

    # What windows have where a model could take more.
    default_sequence_length = 384

    def __init__(
        self,
        tokenizer: BertTokenizer,
        sequence_length: int = default_sequence_length,
        buckets: Sequence[int] | None = None,
        stride: int = 128,
        question_length: int = 64,
    ):
        check_positive_int(stride=stride, question_length=question_length)
        super().__init__(tokenizer, sequence_length, buckets)
        self.stride = int(stride)
        self.question_length = int(question_length)

    def __call__(self, first, second=None) -> dict:
        """Return the model's inputs of questions and passages, a row a window."""
        windows = self.windows(first, second)
        return {name: windows[name] for name in _INPUTS}

    def windows(self, first, second=None, stride=None, first_length=None) -> dict:
        """Return the windows of passages, and where in the text their pieces stand.

        Args:
            first: questions, strings in a form that a call takes; a tuple is (questions,
                passages).
            second: the passages.
            stride, first_length: integers, the preprocessor's own where None.

        Returns:
            What `BertPreprocessor.windows` returns, and `piece_starts` and `piece_ends`, integers
            (windows, length): the piece there is `passage[start:end]`, -1 where none stands.

        Raises:
            TypeError: a text is not a string.
            tf.errors.InvalidArgumentError: a question leaves no room for its passage.
        """
        columns = _questions_and_passages(first if second is None else (first, second))
        return to_backend(self._windows(*columns, stride=stride, first_length=first_length)[0])

    def labelled_windows(self, questions, contexts, answers) -> tuple:
        """Return windows with what is to be learnt from them.

        Args:
            questions, contexts: strings in a form that a call takes.
            answers: a list a question of (text, start) pairs, `context[start:]` beginning with
                the text. The first is learnt; an empty list is for no answer.

        Returns:
            (windows, labels, lost). `windows` is what `windows` returns. `labels` is `start` and
            `end`, integers (windows,): the answer's first and last position in the row, 0 and 0
            in a window without it. `lost` is a list of the questions whose answer no window
            holds, from 0.

        Raises:
            ValueError: an answer does not stand in its passage, named by its index.
        """
        columns = _questions_and_passages((questions, contexts))
        spans = answer_spans(contexts, answers)
        windows, labels, lost = self._windows(*columns, spans)
        return to_backend(windows), to_backend(labels), np.flatnonzero(lost).tolist()

    def examples(self, x, y=None, sample_weight=None) -> tuple:
        """Return (x, y, sample_weight) with a row a window, to be batched.

        Args:
            x: (questions, contexts).
            y: answers as `labelled_windows` takes them, or None.
            sample_weight: a number a question, which all its windows get.

        Returns:
            The pieces of the questions and of the windows, ragged; the labels; the weights.

        Raises:
            ValueError: no window holds any of the answers.
        """
        questions, contexts = _questions_and_passages(x)
        size = questions.shape[0]
        spans = None if y is None else answer_spans(x[1], y)
        if sample_weight is not None and len(sample_weight) != size:
            raise ValueError(
                "`sample_weight` must have one row a question. Received: "
                f"{len(sample_weight)} for {size} questions."
            )
        parts, labels, owners, lost = [], [], [], []
        for begin in range(0, max(size, 1), CHUNK):
            part = slice(begin, begin + CHUNK)
            of_part = None if spans is None else {k: v[part] for k, v in spans.items()}
            windows, labelled, is_lost = self._windows(questions[part], contexts[part], of_part)
            is_kept = ~np.isin(windows["example_ids"], np.flatnonzero(is_lost))
            lost += (begin + np.flatnonzero(is_lost)).tolist()
            owners.append(begin + windows["example_ids"].numpy()[is_kept])
            labels.append({name: v.numpy()[is_kept] for name, v in labelled.items()})
            parts.append(_pieces(windows, is_kept))
        _tell_lost(lost, size)
        x = tuple(tf.concat(column, axis=0) for column in zip(*parts, strict=True))
        if y is not None:
            y = {name: np.concatenate([part[name] for part in labels]) for name in labels[0]}
        if sample_weight is not None:
            sample_weight = np.asarray(sample_weight)[np.concatenate(owners)]
        return x, y, sample_weight

    def batch(self, columns: tuple, y=None, sample_weight=None, *, example_ids, epoch=0) -> tuple:
        """Return (inputs, labels, weights) of a batch of the windows that `examples` made."""
        if columns[0].dtype == tf.string:
            raise ValueError(
                "Questions and passages must be lists or arrays, or the data set that "
                "`preprocessor.dataset((questions, contexts), answers)` makes of them: a passage "
                "has several windows, so batches of texts are not batches of rows."
            )
        return super().batch(columns, y, sample_weight, example_ids=example_ids, epoch=epoch)

    def _windows(self, questions, contexts, spans=None, stride=None, first_length=None):
        """Return the windows, their labels, and of which texts no window has the answer."""
        stride = self.stride if stride is None else stride
        first_length = self.question_length if first_length is None else first_length
        check_positive_int(stride=stride, first_length=first_length)
        # A passage with many questions is tokenised once.
        unique, places = tf.unique(contexts)
        tokenised = self.tokenizer.tokenize_with_offsets(unique)
        ids, starts, ends = (tf.gather(part, places) for part in tokenised)
        windows = slide(
            [self.tokenizer(questions), ids],
            **self._layout(),
            stride=int(stride),
            first_length=int(first_length),
        )
        places, example_ids = windows["piece_places"], windows["example_ids"]
        first = tf.gather(tf.cast(ids.row_starts(), tf.int32), example_ids)[:, None]
        # Behind the last piece stands what is said where there is none.
        numbers = tf.where(places < 0, tf.size(ids.values), first + places)
        for name, values in (("piece_starts", starts.values), ("piece_ends", ends.values)):
            windows[name] = tf.gather(tf.concat([values, [-1]], axis=0), numbers)
        if spans is None:
            return windows, {}, np.zeros(0, bool)
        labels, is_lost = _labels(windows, ids, starts, ends, spans)
        return windows, labels, is_lost.numpy()

    def get_config(self) -> dict:
        """Return the constructor's arguments."""
        config = super().get_config()
        del config["truncation"]
        return {**config, "stride": self.stride, "question_length": self.question_length}


def answer_spans(contexts, answers) -> dict:
    """Return where in the passages the first answers stand.

    Args:
        contexts: passages in a form that a preprocessor takes.
        answers: a list a passage of (text, start) pairs, empty for no answer.

    Returns:
        `start` and `end`, integer arrays (passages,): the answer is `context[start:end]`; both
        are 0 where there is none.

    Raises:
        TypeError: `answers` has another form; the index is named.
        ValueError: an answer does not stand in its passage, or there are more answers than
            passages or fewer.

    Example:
        >>> {name: x.tolist() for name, x in answer_spans(["By Ann."], [[("Ann", 3)]]).items()}
        {'start': [3], 'end': [6]}
    """
    contexts = python_strings(contexts)
    if len(contexts) != len(answers):
        raise ValueError(
            "`answers` must have one list a question. Received: "
            f"{len(answers)} for {len(contexts)} questions."
        )
    starts, ends = np.zeros((2, len(contexts)), "int64")
    for index, (context, given) in enumerate(zip(contexts, answers, strict=True)):
        if not isinstance(given, list | tuple | np.ndarray) or not all(map(_is_answer, given)):
            raise TypeError(
                f"`answers[{index}]` must be a list of (text, start) pairs, empty where there is "
                f"no answer. {received(given)}"
            )
        if not len(given):
            continue
        text, start = given[0]
        if start < 0 or not context.startswith(text, start):
            raise ValueError(
                f"`answers[{index}]` must stand in its passage: {text!r} does not begin at "
                f"character {start}. There stands {context[start : start + len(text)]!r}."
            )
        starts[index], ends[index] = start, start + len(text)
    return {"start": starts, "end": ends}


def served_answers(
    start, end, windows: dict, contexts, max_answer_length: int, no_answer_threshold: float | None
) -> dict:
    """Return the best answers as `evaluation.answer_spans.best_answers` does, in TensorFlow.

    Args:
        start, end: logits (windows, length).
        windows: what `BertQuestionAnswererPreprocessor.windows` returns.
        contexts: the passages, strings (passages,).
        max_answer_length: most pieces in an answer.
        no_answer_threshold: give `""` where the odds of no answer are higher; or None.

    Returns:
        `text`, strings (passages,); `start` and `end`, integers; `score` and `null_odds`,
        floats.
    """
    owners, count = windows["example_ids"], tf.size(contexts)
    length = tf.shape(start)[1]
    distance = tf.range(length)[None, :] - tf.range(length)[:, None]
    is_span = (distance >= 0) & (distance < max_answer_length)
    is_start, is_end = windows["max_context"] == 1, windows["piece_places"] >= 0
    is_span = is_span & is_start[:, :, None] & is_end[:, None, :]
    scores = tf.where(is_span, start[:, :, None] + end[:, None, :], _NO_SPAN)
    is_span, scores = (tf.reshape(x, [-1, length * length]) for x in (is_span, scores))

    # The first of a passage's windows that has its highest score.
    best = tf.reduce_max(scores, axis=1)
    highest = tf.math.unsorted_segment_max(best, owners, count)
    numbers = tf.range(tf.size(best))
    numbers = tf.where(best == tf.gather(highest, owners), numbers, tf.size(best))
    window = tf.math.unsorted_segment_min(numbers, owners, count)
    place = tf.argmax(tf.gather(scores, window), axis=1, output_type=tf.int32)
    first = tf.gather(windows["piece_starts"], window)
    first = tf.gather(first, place // length, batch_dims=1)
    last = tf.gather(tf.gather(windows["piece_ends"], window), place % length, batch_dims=1)

    null = tf.math.unsorted_segment_min(start[:, 0] + end[:, 0], owners, count)
    odds = null - highest
    is_given = highest > _NO_SPAN
    # Probabilities are among the spans, and no answer where that could be given.
    top, none = highest, tf.zeros_like(null)
    if no_answer_threshold is not None:
        is_given &= odds <= no_answer_threshold
        top = tf.maximum(highest, null)
        none = tf.exp(null - top)
    masses = tf.where(is_span, tf.exp(scores - tf.gather(top, owners)[:, None]), 0.0)
    total = none + tf.math.unsorted_segment_sum(tf.reduce_sum(masses, axis=1), owners, count)
    score = tf.where(is_given, tf.exp(highest - top), none) / total
    first, last = (tf.where(is_given, edge, 0) for edge in (first, last))
    return {
        "text": tf.strings.substr(contexts, first, last - first, unit="UTF8_CHAR"),
        "start": first,
        "end": last,
        "score": tf.where(total > 0, score, 1.0),
        "null_odds": odds,
    }


def python_strings(texts) -> list[str]:
    """Return texts in a form that a preprocessor takes as a list of strings.

    What was given as a string stays as it is; bytes that are not UTF-8 are dropped, as the
    tokenizer drops them.
    """
    if isinstance(texts, str | bytes):
        texts = [texts]
    elif tf.is_tensor(texts):
        texts = texts.numpy()
    return [t if isinstance(t, str) else t.decode(errors="ignore") for t in np.ravel(texts)]


def _is_answer(answer):
    if not isinstance(answer, list | tuple) or len(answer) != 2:
        return False
    return isinstance(answer[0], str) and isinstance(answer[1], int | np.integer)


def _questions_and_passages(x):
    columns = text_columns(x)
    if len(columns) != 2 or any(column.dtype != tf.string for column in columns):
        raise ValueError(
            "A question answerer takes strings, (questions, contexts). Received: "
            f"{' and '.join(column.dtype.name for column in columns)} columns."
        )
    return columns


def _pieces(windows, is_kept):
    """Return the pieces of the questions and of the passages in the windows kept, ragged."""
    kept = {name: tf.boolean_mask(windows[name], is_kept) for name in (*_INPUTS, "piece_places")}
    is_first = (kept["segment_ids"] == 0) & (kept["padding_mask"] == 1)
    questions = tf.ragged.boolean_mask(kept["token_ids"], is_first)[:, 1:-1]
    passages = tf.ragged.boolean_mask(kept["token_ids"], kept["piece_places"] >= 0)
    return questions, passages


def _labels(windows, ids, starts, ends, spans):
    """Return the answers' positions in the windows, and which answers stand in none of them.

    An answer's pieces are those that have a character of it.
    """
    count = ids.nrows(out_type=tf.int32)
    rows = tf.cast(ids.value_rowids(), tf.int32)
    places = tf.range(tf.size(rows)) - tf.gather(tf.cast(ids.row_starts(), tf.int32), rows)
    span_start, span_end = (tf.cast(spans[name], tf.int32) for name in ("start", "end"))
    is_inside = (ends.values > tf.gather(span_start, rows)) & (
        starts.values < tf.gather(span_end, rows)
    )
    # Place -2 stands nowhere.
    inside, rows = tf.boolean_mask(places, is_inside), tf.boolean_mask(rows, is_inside)
    has_pieces = tf.math.unsorted_segment_sum(tf.ones_like(rows), rows, count) > 0
    first, last = (
        tf.where(has_pieces, of_rows(inside, rows, count), -2)
        for of_rows in (tf.math.unsorted_segment_min, tf.math.unsorted_segment_max)
    )
    example_ids = windows["example_ids"]
    at_first, at_last = (
        windows["piece_places"] == tf.gather(place, example_ids)[:, None] for place in (first, last)
    )
    is_whole = tf.reduce_any(at_first, axis=1) & tf.reduce_any(at_last, axis=1)
    labels = {
        name: tf.where(is_whole, tf.argmax(tf.cast(at, tf.int32), axis=1, output_type=tf.int32), 0)
        for name, at in (("start", at_first), ("end", at_last))
    }
    is_found = tf.math.unsorted_segment_max(tf.cast(is_whole, tf.int32), example_ids, count) > 0
    return labels, (span_end > span_start) & ~is_found


def _tell_lost(lost, size):
    if size and len(lost) == size:
        raise ValueError(
            f"No window holds the answer of any of the {size} questions. Give the preprocessor a "
            "longer `sequence_length` or a shorter `stride`."
        )
    if lost:
        warnings.warn(
            f"{len(lost)} of {size} answers are in no window and are left out, the first at index "
            f"{lost[0]}.",
            stacklevel=4,
        )
