"""Windows against the loop of the authors' run_squad.py, written out in plain Python."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_bert_zoo.preprocessing import BertPreprocessor, BertTokenizer

PAD, UNK, CLS, SEP, MASK = range(5)
TOKENIZER = BertTokenizer(
    ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(200))], lowercase=True
)


def numpy(windows):
    return {name: keras.ops.convert_to_numpy(x).tolist() for name, x in windows.items()}


def authors_spans(passage, room, stride):
    """Return (start, length) of each window, as `convert_examples_to_features` lays them."""
    spans, start = [], 0
    while start < passage:
        length = min(passage - start, room)
        spans.append((start, length))
        if start + length == passage:
            break
        start += min(length, stride)
    return spans or [(0, 0)]


def authors_best(spans, place):
    """Return the window that shows a piece in most context, as `_check_is_max_context` does."""
    best, best_score = None, None
    for number, (start, length) in enumerate(spans):
        if start <= place < start + length:
            left, right = place - start, start + length - 1 - place
            score = min(left, right) + 0.01 * length
            if best is None or score > best_score:
                best, best_score = number, score
    return best


def authors_windows(first, second, length, stride, first_length):
    """Return the windows of one text, or of one question and passage."""
    head = [CLS, *(() if first is None else [*first[:first_length], SEP])]
    segment = 0 if first is None else 1
    spans = authors_spans(len(second), length - len(head) - 1, stride)
    windows = []
    for number, (start, size) in enumerate(spans):
        padding = [0] * (length - len(head) - size - 1)
        places = range(start, start + size)
        best = [int(authors_best(spans, place) == number) for place in places]
        around = len(head)
        windows.append(
            {
                "token_ids": [*head, *second[start : start + size], SEP, *padding],
                "segment_ids": [0] * around + [segment] * (size + 1) + padding,
                "padding_mask": [1] * (around + size + 1) + padding,
                "window_starts": start,
                "piece_places": [-1] * around + [*places, -1] + [-1] * len(padding),
                "max_context": [0] * around + [*best, 0] + padding,
            }
        )
    return windows


@pytest.mark.parametrize("stride", [1, 5, 8, 100])
@pytest.mark.parametrize("paired", [True, False])
def test_windows_are_the_authors(stride, paired):
    random = np.random.default_rng(stride)
    texts = [random.integers(5, 200, n).tolist() for n in (0, 1, 40, 13, 14, 100)]
    questions = [random.integers(5, 200, n).tolist() for n in (5, 0, 5, 9, 1, 2)]
    if not paired:
        questions = [None] * len(texts)
    preprocessor = BertPreprocessor(TOKENIZER, 20, buckets=[])
    columns = (questions, texts) if paired else (texts,)
    windows = numpy(preprocessor.windows(*columns, stride=stride, first_length=7))
    expected = [
        authors_windows(q, text, 20, stride, 7) for q, text in zip(questions, texts, strict=True)
    ]
    assert windows.pop("example_ids") == [i for i, rows in enumerate(expected) for _ in rows]
    for name, values in windows.items():
        assert values == [row[name] for rows in expected for row in rows], name


def test_the_question_stays_whole_and_the_windows_cover_the_passage():
    question, passage = [10] * 5, list(range(50, 90))
    windows = numpy(BertPreprocessor(TOKENIZER, 20).windows([question], [passage], stride=8))
    assert windows["window_starts"] == [0, 8, 16, 24, 32]
    rows = windows["token_ids"]
    assert all(row[:7] == [CLS, *question, SEP] for row in rows)
    assert {piece for row in rows for piece in row[7:]} == {*passage, SEP, PAD}
    assert np.shape(rows) == (5, 20)


def test_each_piece_has_one_window_of_most_context():
    windows = numpy(BertPreprocessor(TOKENIZER, 20).windows([list(range(50, 90))], stride=3))
    best = np.array(windows["piece_places"])[np.array(windows["max_context"]) == 1]
    assert sorted(best.tolist()) == list(range(40))


def test_blank_texts_have_one_window():
    windows = numpy(BertPreprocessor(TOKENIZER, 8).windows(["w1", ""], ["  ", ""]))
    assert windows["token_ids"] == [
        [CLS, 6, SEP, SEP, PAD, PAD, PAD, PAD],
        [CLS, SEP, SEP, PAD, PAD, PAD, PAD, PAD],
    ]
    assert windows["example_ids"] == [0, 1]
    assert sum(map(sum, windows["max_context"])) == 0


def test_a_batch_without_texts_has_no_windows():
    assert numpy(BertPreprocessor(TOKENIZER, 8).windows([]))["example_ids"] == []


def test_a_data_set_gives_the_windows_that_a_call_gives():
    preprocessor = BertPreprocessor(TOKENIZER, 12)
    questions, passages = ["w1 w2", "w3"], ["w5 " * 30, "w6 " * 5]
    dataset = tf.data.Dataset.from_tensors((questions, passages))
    (in_graph,) = dataset.map(lambda *texts: preprocessor.windows(*texts, stride=4))
    assert numpy(in_graph) == numpy(preprocessor.windows(questions, passages, stride=4))


def test_windows_are_padded_to_a_bucket():
    windows = numpy(BertPreprocessor(TOKENIZER, 64).windows(["w1 w2"], ["w3"]))
    assert np.shape(windows["token_ids"]) == np.shape(windows["max_context"]) == (1, 8)


def test_a_question_without_room_for_its_passage_is_an_error():
    preprocessor = BertPreprocessor(TOKENIZER, 8)
    with pytest.raises(tf.errors.InvalidArgumentError, match="`first_length=64`, leaves no room"):
        preprocessor.windows(["w1 " * 5], ["w2"])
    assert numpy(preprocessor.windows(["w1 " * 5], ["w2"], first_length=4))["token_ids"] == [
        [CLS, 6, 6, 6, 6, SEP, 7, SEP]
    ]


@pytest.mark.parametrize("arguments", [{"stride": 0}, {"stride": 2.0}, {"first_length": 0}])
def test_wrong_arguments_are_named(arguments):
    (name,) = arguments
    with pytest.raises(ValueError, match=name):
        BertPreprocessor(TOKENIZER, 8).windows(["w1"], **arguments)


def test_more_than_two_texts_are_refused():
    with pytest.raises(ValueError, match="one text or two. Received: 3"):
        BertPreprocessor(TOKENIZER, 8).windows((["w1"], ["w1"], ["w1"]))
