"""Masks against the paper's rates, and their repeatability."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_bert_zoo.preprocessing.masking import MaskedLMMasker, _mix
from keras_bert_zoo.preprocessing.tokenizer import BertTokenizer

pytestmark = pytest.mark.backend_free

PAD, UNK, CLS, SEP, MASK = range(5)
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
UNUSED = range(5, 15)
ORDINARY = range(15, 1015)
TOKENIZER = BertTokenizer(
    [*SPECIALS, *(f"[unused{i}]" for i in UNUSED), *(f"w{i}" for i in ORDINARY)], lowercase=True
)
GOLDEN = 0x9E3779B97F4A7C15


def splitmix64(state):
    """The finaliser of Steele, Lea and Flood 2014, figure 16, on unsigned 64-bit numbers."""
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) % 2**64
    return state ^ (state >> 31)


def signed(number):
    return number - 2**64 if number >= 2**63 else number


def random_rows(sizes, length=None, seed=0):
    """Packed rows of `sizes` real pieces each, marks included, and their padding mask."""
    rng = np.random.default_rng(seed)
    length = length or max(sizes)
    token_ids = rng.choice(ORDINARY, (len(sizes), length))
    mask = np.arange(length) < np.array(sizes)[:, None]
    token_ids[:, 0] = CLS
    token_ids[np.arange(len(sizes)), np.array(sizes) - 1] = SEP
    return np.where(mask, token_ids, PAD), mask.astype(int)


def masked(token_ids, padding_mask, example_ids=None, epoch=0, **arguments):
    example_ids = range(len(token_ids)) if example_ids is None else example_ids
    out = MaskedLMMasker(TOKENIZER, **arguments)(
        token_ids, padding_mask, example_ids=list(example_ids), epoch=epoch
    )
    return {name: x.numpy() for name, x in out.items()}


def choices(out, row):
    """What was chosen in a row: (position, piece that stood there, piece that stands there)."""
    positions = out["mask_positions"][row][out["mask_weights"][row] > 0]
    ids = out["mask_ids"][row][out["mask_weights"][row] > 0]
    return [
        (int(p), int(i), int(out["token_ids"][row, p])) for p, i in zip(positions, ids, strict=True)
    ]


def test_the_generator_gives_the_published_numbers():
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    states = [(1234567 + k * GOLDEN) % 2**64 for k in (1, 2, 3)]
    assert [splitmix64(state) for state in states] == published
    assert [int(_mix(signed(state))) % 2**64 for state in states] == published


def test_the_generator_on_many_numbers():
    numbers = [0, 1, 2**63 - 1, 2**63, 2**64 - 1, *(k * GOLDEN % 2**64 for k in range(1000))]
    mixed = _mix(tf.constant([signed(n) for n in numbers], tf.int64)).numpy()
    assert [int(m) % 2**64 for m in mixed] == [splitmix64(n) for n in numbers]


@pytest.mark.parametrize(("rate", "most"), [(0.15, None), (0.15, 5), (0.5, None), (0.01, 3)])
def test_a_row_gets_exactly_the_authors_number_of_masks(rate, most):
    sizes = list(range(3, 129))
    token_ids, padding_mask = random_rows(sizes)
    out = masked(token_ids, padding_mask, mask_selection_rate=rate, mask_selection_length=most)
    for row, n in enumerate(sizes):
        expected = min(most or n, max(1, round(rate * n)), n - 2)
        assert len(choices(out, row)) == expected


def test_the_paper_s_77_of_512():
    out = masked(*random_rows([512]))
    assert out["mask_positions"].shape == (1, 77)
    assert out["mask_weights"].sum() == 77


def test_positions_ascend_and_hold_what_stood_there():
    token_ids, padding_mask = random_rows([60, 9, 33], length=64)
    out = masked(token_ids, padding_mask)
    untouched = np.ones_like(token_ids, bool)
    for row in range(3):
        positions = [p for p, _, _ in choices(out, row)]
        assert positions == sorted(set(positions))
        assert [i for _, i, _ in choices(out, row)] == token_ids[row, positions].tolist()
        untouched[row, positions] = False
    np.testing.assert_array_equal(out["token_ids"][untouched], token_ids[untouched])


def test_special_pieces_are_never_chosen():
    row = [CLS, UNK, 20, SEP, MASK, 21, SEP, PAD]
    for epoch in range(50):
        out = masked([row], [[1] * 7 + [0]], epoch=epoch, mask_selection_rate=1.0)
        assert [p for p, _, _ in choices(out, 0)] == [2, 5]


def test_a_pad_typed_in_a_text_is_not_chosen_either():
    out = masked([[CLS, PAD, 20, SEP]], [[1, 1, 1, 1]], mask_selection_rate=1.0)
    assert [p for p, _, _ in choices(out, 0)] == [2]


def test_one_piece_alone_is_masked():
    out = masked([[CLS, 20, SEP, PAD]], [[1, 1, 1, 0]])
    assert [(p, i) for p, i, _ in choices(out, 0)] == [(1, 20)]


@pytest.mark.parametrize(
    ("row", "mask"), [([CLS, UNK, SEP, PAD], [1, 1, 1, 0]), ([20, 20, 20, 20], [0, 0, 0, 0])]
)
def test_a_row_with_nothing_to_choose_has_no_weight(row, mask):
    out = masked([row, [CLS, 20, 21, SEP]], [mask, [1, 1, 1, 1]])
    assert out["mask_weights"].sum(axis=1).tolist() == [0, 1]
    assert out["token_ids"][0].tolist() == row


def test_rates_over_two_hundred_thousand_choices():
    sizes = np.random.default_rng(1).integers(64, 513, 5000)
    token_ids, padding_mask = random_rows(sizes)
    out = masked(token_ids, padding_mask)
    chosen = out["mask_weights"] > 0
    count = chosen.sum()
    assert count >= 200_000

    # Rounding a row's count to a whole number has a variance of 1/12.
    assert abs(count - 0.15 * sizes.sum()) < 4 * np.sqrt(len(sizes) / 12)

    now = np.take_along_axis(out["token_ids"], out["mask_positions"], axis=1)[chosen]
    before = out["mask_ids"][chosen]
    same_by_chance = 0.1 / len(ORDINARY)
    for share, expected in (
        ((now == MASK).mean(), 0.8),
        ((now == before).mean(), 0.1 + same_by_chance),
        (((now != MASK) & (now != before)).mean(), 0.1 - same_by_chance),
    ):
        assert abs(share - expected) < 4 * np.sqrt(expected * (1 - expected) / count)

    replacements = now[(now != MASK) & (now != before)]
    assert set(replacements.tolist()) == set(ORDINARY)
    # The mean of the numbers 15 to 1014, whose variance is (1000**2 - 1) / 12.
    standard_error = np.sqrt((1000**2 - 1) / 12 / len(replacements))
    assert abs(replacements.mean() - 514.5) < 4 * standard_error


def test_every_place_of_a_row_is_chosen_equally_often():
    rows = 20_000
    token_ids, padding_mask = random_rows([22] * rows)
    out = masked(token_ids, padding_mask)
    assert out["mask_positions"].shape == (rows, 3)
    counts = np.bincount(out["mask_positions"].ravel(), minlength=22)
    assert counts[0] == counts[21] == 0
    expected = rows * 3 / 20
    standard_error = np.sqrt(rows * 3 / 20 * 17 / 20)
    assert np.abs(counts[1:21] - expected).max() < 4 * standard_error


def test_random_pieces_of_the_whole_vocabulary_are_an_option():
    token_ids, padding_mask = random_rows([512] * 400)
    out = masked(
        token_ids, padding_mask, mask_token_rate=0.0, random_token_rate=1.0, random_from_all=True
    )
    now = np.take_along_axis(out["token_ids"], out["mask_positions"], axis=1)
    assert set(now.ravel().tolist()) == set(range(1015))


def test_masks_belong_to_the_example_and_not_to_its_batch():
    sizes = [12, 40, 7, 30, 25]
    token_ids, padding_mask = random_rows(sizes)
    whole = masked(token_ids, padding_mask, example_ids=[3, 1, 4, 15, 9])
    expected = [choices(whole, row) for row in range(5)]

    order = [4, 0, 2]
    some = masked(token_ids[order], padding_mask[order], example_ids=[9, 3, 4])
    assert [choices(some, row) for row in range(3)] == [expected[row] for row in order]

    for row, example_id in enumerate([3, 1, 4, 15, 9]):
        padded = np.zeros((1, 64), int)
        padded_mask = padded.copy()
        padded[0, :40], padded_mask[0, :40] = token_ids[row], padding_mask[row]
        alone = masked(padded, padded_mask, example_ids=[example_id])
        assert choices(alone, 0) == expected[row]


def test_epochs_seeds_and_examples_have_masks_of_their_own():
    token_ids, padding_mask = random_rows([64])

    def positions(**arguments):
        return tuple(p for p, _, _ in choices(masked(token_ids, padding_mask, **arguments), 0))

    assert positions() == positions()
    draws = {
        *(positions(epoch=epoch) for epoch in range(10)),
        *(positions(seed=seed) for seed in range(1, 10)),
        *(positions(example_ids=[i]) for i in range(1, 10)),
    }
    assert len(draws) == 28


def test_a_graph_masks_as_an_eager_call_does():
    token_ids, padding_mask = random_rows([30, 20])
    masker = MaskedLMMasker(TOKENIZER, seed=5)
    eager = masker(token_ids, padding_mask, [0, 1], epoch=2)
    graph = tf.function(masker)(
        tf.constant(token_ids), tf.constant(padding_mask), tf.constant([0, 1]), tf.constant(2)
    )
    for name, value in eager.items():
        np.testing.assert_array_equal(value, graph[name], err_msg=name)


def test_a_masker_is_saved_with_its_arguments():
    arguments = {
        "mask_selection_rate": 0.3,
        "mask_selection_length": 4,
        "mask_token_rate": 0.5,
        "random_token_rate": 0.25,
        "random_from_all": True,
        "seed": 11,
    }
    config = keras.saving.serialize_keras_object(MaskedLMMasker(TOKENIZER, **arguments))
    loaded = keras.saving.deserialize_keras_object(config)
    assert {name: getattr(loaded, name) for name in arguments} == arguments


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"mask_selection_rate": 0.0}, "mask_selection_rate"),
        ({"mask_selection_rate": 1.5}, "mask_selection_rate"),
        ({"mask_selection_length": 0}, "mask_selection_length"),
        ({"mask_token_rate": 0.9, "random_token_rate": 0.2}, "mask_token_rate"),
        ({"random_token_rate": -0.1}, "random_token_rate"),
        ({"tokenizer": BertTokenizer(SPECIALS[:4] + ["a"], lowercase=True)}, r"\[MASK\]"),
        ({"tokenizer": BertTokenizer(SPECIALS, lowercase=True)}, "tokenizer"),
    ],
)
def test_wrong_arguments_are_named(arguments, name):
    with pytest.raises(ValueError, match=name):
        MaskedLMMasker(**{"tokenizer": TOKENIZER, **arguments})
