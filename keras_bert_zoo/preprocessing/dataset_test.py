"""Batches of texts: going on in the middle of an epoch, ids, what is seen on the way."""

import numpy as np
import pytest

from keras_bert_zoo.preprocessing import BertMaskedLMPreprocessor, BertTokenizer
from keras_bert_zoo.preprocessing.dataset import (
    batches,
    map_dataset,
    predict_from_before,
    watched,
)
from keras_bert_zoo.preprocessing.lazy_tensorflow import tf
from keras_bert_zoo.preprocessing.texts import text_columns

pytestmark = pytest.mark.backend_free

TEXTS = [" ".join("abcdefghijk"[: i + 1]) for i in range(11)]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijk"]


def make_batches(**arguments):
    """Return batches of eleven texts, the first of one piece, the last of eleven."""
    return batches(
        make_preprocessor(), text_columns(TEXTS), batch_size=3, shuffle=True, seed=5, **arguments
    )


def make_preprocessor():
    return BertMaskedLMPreprocessor(BertTokenizer(PIECES, lowercase=True), 16, buckets=[])


def ids_and_arrays(dataset):
    return [
        (ids.numpy().tolist(), inputs["token_ids"].numpy().tolist(), labels.numpy().tolist())
        for (inputs, labels, _), ids in dataset
    ]


@pytest.mark.parametrize(("epoch", "step"), [(0, 0), (0, 3), (1, 0), (1, 2), (2, 3)])
def test_a_run_that_goes_on_gets_the_batches_it_would_have_had(epoch, step):
    whole = ids_and_arrays(make_batches(epochs=3, with_example_ids=True))
    rest = make_batches(epochs=3, initial_epoch=epoch, initial_step=step, with_example_ids=True)
    assert ids_and_arrays(rest) == whole[4 * epoch + step :]
    assert int(rest.cardinality()) == 12 - 4 * epoch - step


def test_an_epoch_has_each_id_once_and_ids_are_places():
    rows = ids_and_arrays(make_batches(with_example_ids=True))
    assert sorted(number for ids, _, _ in rows for number in ids) == list(range(11))
    for ids, token_ids, _ in rows:
        for number, row in zip(ids, token_ids, strict=True):
            assert np.count_nonzero(row) == number + 3


def test_what_is_watched_is_noted_and_passed_on():
    noted = {}
    dataset = make_batches(epochs=2, with_example_ids=True)
    passing = watched(dataset, lambda number, *facts: noted.update({number: facts}))
    # A look at the first batch, as Keras takes one, counts for nothing.
    next(iter(passing))
    passed_on, expected = list(passing), list(dataset)
    for number, (batch, ((inputs, _, _), ids)) in enumerate(zip(passed_on, expected, strict=True)):
        np.testing.assert_array_equal(batch[0]["token_ids"], inputs["token_ids"])
        ids = ids.numpy().tolist()
        assert noted[number] == (ids, sum(i + 3 for i in ids))
    assert len(noted) == len(expected)


def test_a_left_to_right_model_predicts_from_the_position_before():
    (inputs, labels, weights), _ = next(iter(make_batches(with_example_ids=True)))
    shifted, *rest = predict_from_before((inputs, labels, weights))
    assert rest == [labels, weights]
    real = weights.numpy() > 0
    before, after = (x["mask_positions"].numpy()[real] for x in (shifted, inputs))
    np.testing.assert_array_equal(before, after - 1)
    assert shifted["mask_positions"].numpy().min() >= 0


def test_a_data_sets_masks_do_not_depend_on_its_batches():
    def rows(size):
        dataset = tf.data.Dataset.from_tensor_slices(TEXTS).batch(size)
        dataset, set_epoch = map_dataset(make_preprocessor(), dataset)
        for epoch in (0, 1):
            set_epoch(epoch)
            yield [row for inputs, *_ in dataset for row in inputs["token_ids"].numpy().tolist()]

    first, second = rows(3)
    assert first != second
    assert [first, second] == list(rows(4)) == list(rows(11))
    in_memory = batches(make_preprocessor(), text_columns(TEXTS), batch_size=5)
    assert first == [r for inputs, *_ in in_memory for r in inputs["token_ids"].numpy().tolist()]


def test_the_end_of_an_iteration_waits_for_no_tuner():
    assert make_batches().options().autotune.enabled is False
