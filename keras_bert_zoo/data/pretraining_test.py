"""Documents as what `fit` takes, and documents held out."""

import pytest

from keras_bert_zoo.data.pretraining import pretraining_examples, split_documents
from keras_bert_zoo.preprocessing import BertTokenizer

pytestmark = pytest.mark.backend_free


def test_documents_of_strings_become_training_pairs():
    tokenizer = BertTokenizer(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "d"], lowercase=True
    )
    documents = [["a b", "b a", "a"], ["c d", "d", "c c"]]
    (first, second), labels = pretraining_examples(documents, tokenizer, 16, duplicates=20)
    assert len(first) == len(second) == len(labels)
    letters = [{5, 6}, {7, 8}]
    for a, b, label in zip(first, second, labels, strict=True):
        sides = [next(i for i, part in enumerate(letters) if set(x) <= part) for x in (a, b)]
        assert (sides[0] != sides[1]) == bool(label)


def test_documents_are_held_out_whole_and_by_seed():
    documents = [[str(i)] for i in range(20)]
    train, held_out = split_documents(documents, 0.2, seed=1)
    assert (len(train), len(held_out)) == (16, 4)
    assert sorted(train + held_out) == sorted(documents)
    assert split_documents(documents, 0.2, seed=1) == (train, held_out)
    assert split_documents(documents, 0.2, seed=2) != (train, held_out)
    assert len(split_documents(documents, 0.01)[1]) == 2


@pytest.mark.parametrize(("count", "share"), [(3, 0.5), (10, 0.0), (10, 1.0), (10, 0.95)])
def test_a_share_that_leaves_a_side_too_small_is_refused(count, share):
    with pytest.raises(ValueError, match=f"{share} of {count} documents"):
        split_documents(list(range(count)), share)
