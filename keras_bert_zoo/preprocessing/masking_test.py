"""Masks against the authors' rule in plain Python, the paper's rates, and their repeatability."""

import functools
import hashlib
import math
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_bert_zoo.preprocessing.masking import MaskedLMMasker
from keras_bert_zoo.preprocessing.random_streams_test import GOLDEN, splitmix64
from keras_bert_zoo.preprocessing.tokenizer import BertTokenizer

pytestmark = pytest.mark.backend_free

PAD, UNK, CLS, SEP, MASK = range(5)
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
UNUSED = range(5, 15)
WORDS = range(15, 765)
CONTINUATIONS = range(765, 1015)
ORDINARY = range(15, 1015)
TOKENIZER = BertTokenizer(
    [
        *SPECIALS,
        *(f"[unused{i}]" for i in UNUSED),
        *(f"w{i}" for i in WORDS),
        *(f"##c{i}" for i in CONTINUATIONS),
    ],
    lowercase=True,
)
SELECTIONS, UNITS = ("count", "chance"), ("piece", "word", "span")
KINDS = [(selection, unit) for selection in SELECTIONS for unit in UNITS]
# Joshi et al. 2020: a geometric distribution, cut at 10 words.
SPAN_LENGTHS = np.arange(1, 11)
SPAN_SHARES = 0.2 * 0.8 ** (SPAN_LENGTHS - 1) / (1 - 0.8**10)


def random_rows(sizes, length=None, seed=0, ids=ORDINARY):
    """Packed rows of `sizes` real pieces each, marks included, and their padding mask."""
    rng = np.random.default_rng(seed)
    length = length or max(sizes)
    token_ids = rng.choice(ids, (len(sizes), length))
    mask = np.arange(length) < np.array(sizes)[:, None]
    token_ids[:, 0] = CLS
    token_ids[np.arange(len(sizes)), np.array(sizes) - 1] = SEP
    return np.where(mask, token_ids, PAD), mask.astype(int)


def masked(token_ids, padding_mask, example_ids=None, epoch=0, word_ids=None, **arguments):
    example_ids = range(len(token_ids)) if example_ids is None else example_ids
    masker = MaskedLMMasker(**{"tokenizer": TOKENIZER, **arguments})
    out = masker(token_ids, padding_mask, list(example_ids), epoch, word_ids)
    return {name: x.numpy() for name, x in out.items()}


def choices(out, row):
    """What was chosen in a row: (position, piece that stood there, piece that stands there)."""
    positions = out["mask_positions"][row][out["mask_weights"][row] > 0]
    ids = out["mask_ids"][row][out["mask_weights"][row] > 0]
    return [
        (int(p), int(i), int(out["token_ids"][row, p])) for p, i in zip(positions, ids, strict=True)
    ]


# === The rules in plain Python ===


def number(seed, epoch, example, stream, position):
    """A position's 64 bits for its order, fate, replacement (0, 1, 2) or span length (3)."""
    key = splitmix64(example ^ splitmix64(splitmix64(seed) ^ epoch))
    return splitmix64((key + (4 * position + stream + 1) * GOLDEN) % 2**64)


def words_of(row, real, word_ids=None, tokenizer=TOKENIZER):
    """The positions of each word, as the authors' code collects its candidates."""
    words, is_open = [], False
    for p, piece in enumerate(row):
        if not real[p] or piece in tokenizer.special_token_ids:
            is_open = False
            continue
        if word_ids is None:
            joined = tokenizer.id_to_token(piece).startswith("##")
        else:
            joined = word_ids[p] == word_ids[p - 1]
        if is_open and joined:
            words[-1].append(p)
        else:
            words.append([p])
        is_open = True
    return words


def expected_choices(row, real, word_ids, example, epoch, *, seed, selection, unit, rate, most):
    """What `choices` should give of one row."""

    def uniform(stream, position):
        return (number(seed, epoch, example, stream, position) >> 40) / 2**24

    words = words_of(row, real, word_ids)
    if unit == "piece":
        words = [[p] for word in words for p in word]
    groups = [[word] for word in words]
    if unit == "span":
        groups, left = [], 0
        for word in words:
            if left == 0 or groups[-1][-1][-1] != word[0] - 1:
                groups.append([])
                left = 1 + int((uniform(3, word[0]) >= np.cumsum(SPAN_SHARES)[:-1]).sum())
            groups[-1].append(word)
            left -= 1
    start = {p: group[0][0] for group in groups for word in group for p in word}
    groups.sort(key=lambda group: uniform(0, group[0][0]))

    n, chosen = sum(real), []
    if selection == "count":
        room = min(n, max(1, round(rate * n)), most or n)
        if unit != "piece" and groups:
            shortest = min(len(group[0]) for group in groups)
            if room < shortest <= min(n, 8, most or n):
                room = shortest
        for group in groups:
            for word in group:
                if len(chosen) + len(word) > room:
                    break
                chosen += word
    else:
        together = {"piece": 1, "word": 2, "span": 8}[unit]
        spread = math.sqrt(together * n * rate * (1 - rate))
        room = min(n, most or math.ceil(n * rate + 6 * spread))
        for group in groups:
            pieces = sum(group, [])
            if uniform(0, pieces[0]) < rate and len(chosen) + len(pieces) <= room:
                chosen += pieces

    result = []
    for p in sorted(chosen):
        fate = uniform(1, start[p] if unit == "span" else p)
        random_id = ORDINARY[((number(seed, epoch, example, 2, p) >> 24) * len(ORDINARY)) >> 40]
        result.append((p, row[p], MASK if fate < 0.6 else random_id if fate < 0.9 else row[p]))
    return result


@pytest.mark.parametrize("most", [None, 4])
@pytest.mark.parametrize(
    ("selection", "unit", "given_words"),
    [(*kind, False) for kind in KINDS] + [(*kind, True) for kind in KINDS if kind[1] != "piece"],
)
def test_masks_are_what_the_rule_says(selection, unit, given_words, most):
    rng = np.random.default_rng(3)
    sizes = [*range(2, 40), *rng.integers(40, 97, 20)]
    token_ids, padding_mask = random_rows(sizes)
    marks = rng.random(token_ids.shape) < 0.05
    token_ids[marks] = rng.choice([UNK, SEP, MASK], marks.sum())
    # Continuations in plenty for some rows, so that words are longer than the count.
    longer = rng.random(token_ids.shape) < rng.random((len(sizes), 1)) * (token_ids >= 15)
    token_ids[longer] = rng.choice(CONTINUATIONS, longer.sum())
    word_ids = np.cumsum(rng.random(token_ids.shape) < 0.6, axis=1) if given_words else None
    example_ids = rng.integers(0, 2**40, len(sizes))

    for epoch, rate in ((0, 0.15), (7, 0.4)):
        out = masked(
            token_ids,
            padding_mask,
            example_ids,
            epoch,
            word_ids,
            seed=5,
            selection=selection,
            unit=unit,
            mask_selection_rate=rate,
            mask_selection_length=most,
            mask_token_rate=0.6,
            random_token_rate=0.3,
        )
        for row in range(len(sizes)):
            expected = expected_choices(
                token_ids[row].tolist(),
                padding_mask[row].tolist(),
                None if word_ids is None else word_ids[row].tolist(),
                int(example_ids[row]),
                epoch,
                seed=5,
                selection=selection,
                unit=unit,
                rate=rate,
                most=most,
            )
            assert choices(out, row) == expected


# === Counts ===


@pytest.mark.parametrize(
    ("rate", "n", "count"),
    # Halves go to the even number: 1.5, 2.5, 4.5, 7.5; and the paper's 512 pieces.
    [(0.15, 10, 2), (0.5, 5, 2), (0.15, 30, 4), (0.15, 50, 8), (0.15, 3, 1), (0.15, 512, 77)],
)
@pytest.mark.parametrize("unit", UNITS)
def test_the_published_count(unit, rate, n, count):
    token_ids, padding_mask = random_rows([n], ids=WORDS)
    out = masked(token_ids, padding_mask, mask_selection_rate=rate, unit=unit)
    assert out["mask_weights"].sum() == count
    if unit == "piece":
        assert out["mask_positions"].shape == (1, count)


@pytest.mark.parametrize(("rate", "most"), [(0.15, None), (0.15, 5), (0.5, None), (0.01, 3)])
def test_a_row_gets_exactly_the_authors_number_of_masks(rate, most):
    sizes = list(range(3, 129))
    token_ids, padding_mask = random_rows(sizes)
    out = masked(token_ids, padding_mask, mask_selection_rate=rate, mask_selection_length=most)
    for row, n in enumerate(sizes):
        expected = min(most or n, max(1, round(rate * n)), n - 2)
        assert len(choices(out, row)) == expected


@pytest.mark.parametrize(("selection", "unit"), KINDS)
def test_a_limit_is_kept_and_everything_can_be_chosen(selection, unit):
    token_ids, padding_mask = random_rows(range(3, 65))
    arguments = {"selection": selection, "unit": unit, "mask_selection_rate": 1.0}
    whole = masked(token_ids, padding_mask, **arguments)
    np.testing.assert_array_equal(whole["chosen"], token_ids > SEP)
    limited = masked(token_ids, padding_mask, mask_selection_length=9, **arguments)
    assert limited["mask_positions"].shape == (62, 9)
    assert limited["mask_weights"].sum(axis=1).max() == 9


@pytest.mark.parametrize("unit", ["word", "span"])
def test_a_row_whose_words_all_exceed_its_count_gets_the_shortest(unit):
    a, more = WORDS[0], CONTINUATIONS[0]
    three, four = [a, more, more], [a, more, more, more]
    for epoch in range(10):
        out = masked([[CLS, *four, SEP, *three, SEP]], [[1] * 10], epoch=epoch, unit=unit)
        assert [p for p, _, _ in choices(out, 0)] == [6, 7, 8]
    eight, nine = [[CLS, a, *[more] * k, SEP] for k in (7, 8)]
    for row, count in ((eight, 8), (nine, 0)):
        assert masked([row], [[1] * len(row)], unit=unit)["mask_weights"].sum() == count
    limited = masked([eight], [[1] * 10], unit=unit, mask_selection_length=7)
    assert limited["mask_weights"].sum() == 0


@pytest.mark.parametrize("unit", UNITS)
def test_chance_leaves_a_row_without_a_choice_now_and_then(unit):
    token_ids, padding_mask = random_rows([12] * 20_000, ids=WORDS)
    out = masked(token_ids, padding_mask, selection="chance", unit=unit)
    none = (out["mask_weights"].sum(axis=1) == 0).mean()
    if unit == "span":  # two to ten spans a row
        assert 0.85**10 < none < 0.85
    else:
        assert abs(none - 0.85**10) < 4 * np.sqrt(0.2 * 0.8 / 20_000)


@pytest.mark.parametrize("unit", UNITS)
def test_chance_has_room_for_what_it_chooses(unit):
    """The width is a matter of the length alone, and cuts nothing off."""
    for length in (8, 32, 128, 512):
        token_ids, padding_mask = random_rows([length] * 2000, ids=WORDS)
        out = masked(token_ids, padding_mask, selection="chance", unit=unit)
        width = out["mask_positions"].shape[1]
        assert width == length or out["mask_weights"].sum(axis=1).max() < width


# === What is given back ===


@pytest.mark.parametrize(("selection", "unit"), KINDS)
def test_positions_ids_labels_and_rows_say_the_same(selection, unit):
    token_ids, padding_mask = random_rows([60, 9, 33, 2], length=64)
    out = masked(token_ids, padding_mask, selection=selection, unit=unit, mask_selection_rate=0.3)
    chosen = np.zeros_like(token_ids, bool)
    for row in range(4):
        positions = [p for p, _, _ in choices(out, row)]
        assert positions == sorted(set(positions))
        assert [i for _, i, _ in choices(out, row)] == token_ids[row, positions].tolist()
        chosen[row, positions] = True
    assert chosen.any()
    filling = out["mask_weights"] == 0
    assert not out["mask_positions"][filling].any() and not out["mask_ids"][filling].any()
    np.testing.assert_array_equal(out["chosen"], chosen)
    np.testing.assert_array_equal(out["labels"], np.where(chosen, token_ids, -100))
    np.testing.assert_array_equal(out["token_ids"][~chosen], token_ids[~chosen])
    assert {name: x.dtype.name for name, x in out.items()} == {
        "token_ids": "int32",
        "mask_positions": "int32",
        "mask_ids": "int32",
        "mask_weights": "float32",
        "chosen": "bool",
        "labels": "int32",
    }


def test_the_ignore_index_is_the_caller_s():
    out = masked([[CLS, 20, SEP, PAD]], [[1, 1, 1, 0]], ignore_index=-1)
    assert out["labels"].tolist() == [[-1, 20, -1, -1]]


def test_labels_go_into_a_loss_that_leaves_the_others_out():
    token_ids, padding_mask = random_rows([30, 12])
    out = masked(token_ids, padding_mask)
    logits = np.random.default_rng(0).normal(size=(2, 30, 1015)).astype("float32")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-100)
    log_sums = np.log(np.exp(logits).sum(axis=-1))
    picked = [
        log_sums[row, p] - logits[row, p, i] for row in range(2) for p, i, _ in choices(out, row)
    ]
    np.testing.assert_allclose(float(loss(out["labels"], logits)), np.mean(picked), rtol=1e-5)


# === What may be chosen, and what may replace ===


@pytest.mark.parametrize(("selection", "unit"), KINDS)
def test_special_pieces_are_never_chosen(selection, unit):
    row = [CLS, UNK, 20, SEP, MASK, 21, PAD, SEP, PAD]
    out = masked(
        [row] * 50, [[1] * 8 + [0]] * 50, mask_selection_rate=1.0, selection=selection, unit=unit
    )
    assert all([p for p, _, _ in choices(out, i)] == [2, 5] for i in range(50))


def test_listed_pieces_are_not_chosen_either():
    row = [CLS, 20, 21, 22, SEP]
    arguments = {"mask_selection_rate": 1.0, "unselectable_token_ids": [21, MASK]}
    assert masked([row], [[1] * 5], **arguments)["chosen"].tolist() == [[0, 1, 0, 1, 0]]
    # Nor is a word that one of them is part of.
    row = [CLS, 20, 800, 21, 800, 22, SEP]
    for unit in ("word", "span"):
        out = masked([row], [[1] * 7], unit=unit, **arguments)
        assert out["chosen"].tolist() == [[0, 1, 1, 0, 0, 1, 0]]


@pytest.mark.parametrize("unit", UNITS)
def test_one_piece_alone_is_masked(unit):
    out = masked([[CLS, 20, SEP, PAD]], [[1, 1, 1, 0]], unit=unit)
    assert [(p, i) for p, i, _ in choices(out, 0)] == [(1, 20)]


@pytest.mark.parametrize(("selection", "unit"), KINDS)
@pytest.mark.parametrize(
    ("row", "mask"), [([CLS, UNK, SEP, PAD], [1, 1, 1, 0]), ([20, 20, 20, 20], [0, 0, 0, 0])]
)
def test_a_row_with_nothing_to_choose_has_no_weight(row, mask, selection, unit):
    for rows in ([row], [row, [CLS, 20, 21, SEP]]):
        masks = [mask, [1, 1, 1, 1]][: len(rows)]
        out = masked(rows, masks, selection=selection, unit=unit)
        assert out["mask_weights"][0].sum() == 0
        assert out["token_ids"][0].tolist() == row
        assert not out["chosen"][0].any()


@pytest.mark.parametrize(
    ("replacements", "expected"),
    [(None, set(ORDINARY)), ("all", set(range(1015))), ([7, MASK, 900], {7, MASK, 900})],
)
def test_replacements_are_the_pieces_asked_for(replacements, expected):
    token_ids, padding_mask = random_rows([512] * 400)
    out = masked(
        token_ids,
        padding_mask,
        mask_token_rate=0.0,
        random_token_rate=1.0,
        replacement_token_ids=replacements,
    )
    assert set(out["token_ids"][out["chosen"]].tolist()) == expected


def test_words_may_be_given_for_text_without_spaces():
    row, word_ids = [CLS, 20, 21, 22, 23, 24, SEP], [0, 1, 1, 2, 3, 3, 3]
    seen = set()
    for epoch in range(40):
        out = masked([row], [[1] * 7], epoch=epoch, unit="word", word_ids=[word_ids])
        seen.add(tuple(p for p, _, _ in choices(out, 0)))
    # One piece is the count: the words of two are passed over.
    assert seen == {(3,)}
    for epoch in range(40):
        out = masked(
            [row], [[1] * 7], epoch=epoch, unit="word", word_ids=[word_ids], mask_selection_rate=0.3
        )
        seen.add(tuple(p for p, _, _ in choices(out, 0)))
    assert seen == {(1, 2), (3,), (4, 5)}


# === Rates ===


@functools.cache
def rows_of_words(rows=1024):
    """Rows of 64 to 512 pieces in words of one to four pieces, a mark here and there."""
    rng = np.random.default_rng(1)
    sizes = rng.integers(64, 513, rows)
    token_ids, padding_mask = random_rows(sizes, length=512, ids=WORDS)
    inside = token_ids > SEP
    longer = inside & (rng.random(token_ids.shape) < 0.2)
    token_ids[longer] = rng.choice(CONTINUATIONS, longer.sum())
    marks = inside & (rng.random(token_ids.shape) < 0.01)
    token_ids[marks] = SEP
    return token_ids, padding_mask


def run_lengths(flags):
    """The lengths of the runs of True in a row of flags."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags.astype(int), [0]])))
    return edges[1::2] - edges[::2]


@pytest.mark.parametrize(("selection", "unit"), KINDS)
def test_rates_over_a_million_choices(selection, unit):
    token_ids, padding_mask = rows_of_words()
    sizes = padding_mask.sum(axis=1)
    is_word = token_ids > SEP
    behind_word = np.pad(is_word, ((0, 0), (1, 0)))[:, :-1]
    begins = is_word & ~((token_ids >= CONTINUATIONS[0]) & behind_word)
    # A span's pieces share one fate. Its variance grows with the square of its pieces, and runs
    # of chosen pieces are never shorter than their spans.
    outcomes, squares, count, words, below = np.zeros(3), 0, 0, 0, 0
    epochs, replacements = 24, []
    for epoch in range(epochs):
        out = masked(token_ids, padding_mask, epoch=epoch, selection=selection, unit=unit)
        chosen = out["chosen"]
        now, before = out["token_ids"][chosen], token_ids[chosen]
        is_random = (now != MASK) & (now != before)
        outcomes += [(now == MASK).sum(), (now == before).sum(), is_random.sum()]
        replacements.append(now[is_random])
        squares += (run_lengths(chosen.ravel()) ** 2).sum() if unit == "span" else chosen.sum()
        count += chosen.sum()
        words += (chosen & begins).sum()
        below += (chosen.sum(axis=1) < np.maximum(1, np.round(0.15 * sizes))).sum()
    assert count >= 1_000_000

    rows = epochs * len(sizes)
    if selection == "count":
        # Rounding a row's count to a whole number has a variance of 1/12, the same each epoch.
        standard_error = epochs * np.sqrt(len(sizes) / 12)
        assert abs(count - 0.15 * epochs * sizes.sum()) < 4 * standard_error
        assert below == 0 if unit == "piece" else below < rows / 1000
    else:
        # A span of k words counts k times among words, so the mean k of a word's span is
        # sum(k**2 p) / sum(k p).
        pieces, begun = epochs * is_word.sum(), epochs * begins.sum()
        number, expected, together = {
            "piece": (count, 0.15 * pieces, 1),
            "word": (words, 0.15 * begun, 1),
            "span": (
                words,
                0.15 * begun,
                (SPAN_LENGTHS**2 @ SPAN_SHARES) / (SPAN_LENGTHS @ SPAN_SHARES),
            ),
        }[unit]
        assert abs(number - expected) < 4 * np.sqrt(expected * 0.85 * together)

    same_by_chance = 0.1 / len(ORDINARY)
    expected = np.array([0.8, 0.1 + same_by_chance, 0.1 - same_by_chance])
    standard_errors = np.sqrt(expected * (1 - expected) * squares) / count
    assert (np.abs(outcomes / count - expected) < 4 * standard_errors).all()

    replacements = np.concatenate(replacements)
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


def test_spans_have_the_published_lengths():
    """At a rate of 0.2% a run of chosen pieces is one span, but for one in five hundred."""
    token_ids, padding_mask = random_rows([512] * 8000, ids=WORDS)
    out = masked(
        token_ids, padding_mask, selection="chance", unit="span", mask_selection_rate=0.002
    )
    out["chosen"][:, -12:] = False  # where the row's end cuts spans
    lengths = run_lengths(out["chosen"].ravel())
    assert len(lengths) > 1500
    share = np.bincount(np.minimum(lengths, 11), minlength=12)[1:11] / len(lengths)
    standard_errors = np.sqrt(SPAN_SHARES * (1 - SPAN_SHARES) / len(lengths))
    assert (np.abs(share - SPAN_SHARES) < 4 * standard_errors).all()
    assert abs(lengths.mean() - 3.8) < 4 * lengths.std() / np.sqrt(len(lengths))


def test_the_pieces_of_a_span_share_one_fate_and_those_of_a_word_do_not():
    token_ids, padding_mask = random_rows([12] * 4000, ids=WORDS)
    arguments = {"mask_selection_rate": 0.35, "mask_token_rate": 0.5, "random_token_rate": 0.5}
    mixed = {}
    for unit in ("word", "span"):
        # One word or one span is the row's only unit.
        row_words = np.tile(np.arange(12), (4000, 1))
        row_words[:, 1:5] = 1
        rows, mask, words = token_ids[:, [0, 1, 2, 3, 4, 11]], padding_mask[:, :6], row_words[:, :6]
        words[:, -1] = 9
        out = masked(rows, mask, unit=unit, word_ids=words, **arguments)
        is_mask = (out["token_ids"] == MASK)[:, 1:5]
        assert out["chosen"][:, 1:5].all()
        mixed[unit] = (is_mask.any(axis=1) & ~is_mask.all(axis=1)).mean()
    assert mixed["span"] == 0
    # Four fair coins that do not all fall alike: 7/8.
    assert abs(mixed["word"] - 7 / 8) < 4 * np.sqrt(7 / 64 / 4000)


# === Whole words ===


def assert_words_are_whole(rows, tokenizer=TOKENIZER):
    """Mask rows of ids in all ways, and look for a word of which a part was chosen."""
    length = max(len(row) for row in rows)
    token_ids = np.array([row + [PAD] * (length - len(row)) for row in rows])
    padding_mask = token_ids != PAD
    words = [words_of(r, m, None, tokenizer) for r, m in zip(rows, padding_mask, strict=True)]
    several = 0
    for selection in SELECTIONS:
        for unit in ("word", "span"):
            for most in (None, 5):
                out = masked(
                    token_ids,
                    padding_mask,
                    tokenizer=tokenizer,
                    selection=selection,
                    unit=unit,
                    mask_selection_length=most,
                )
                for chosen, row_words in zip(out["chosen"], words, strict=True):
                    parts = [chosen[word] for word in row_words]
                    assert all(part.all() or not part.any() for part in parts)
                    several += sum(part.all() and len(part) > 1 for part in parts)
    assert several > len(rows)


def test_no_word_is_split():
    token_ids, padding_mask = rows_of_words()
    lengths = padding_mask.sum(axis=1)[:100]
    assert_words_are_whole([token_ids[row, :n].tolist() for row, n in enumerate(lengths)])


def test_no_word_of_a_real_text_is_split():
    data = os.environ.get("KERAS_BERT_ZOO_DATA")
    if not data:
        pytest.skip("needs the texts of KERAS_BERT_ZOO_DATA")
    data = pathlib.Path(data)
    tokenizer = BertTokenizer(data / "vocab" / "bert-base-uncased-vocab.txt", lowercase=True)
    lines = (data / "glue" / "SST-2" / "dev.tsv").read_text(encoding="utf-8").splitlines()[1:]
    pieces = tokenizer([line.split("\t")[0] for line in lines]).to_list()
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    assert_words_are_whole([[cls, *row, sep] for row in pieces], tokenizer)


# === Repeatability ===


def equal(first, second):
    return first.keys() == second.keys() and all(
        np.array_equal(first[name], second[name]) for name in first
    )


def examples(epochs=(0,)):
    """A data set of a hundred (epoch, example id, row) an epoch."""
    rng = np.random.default_rng(6)
    rows = [[CLS, *rng.choice(ORDINARY, n), SEP] for n in rng.integers(3, 60, 100)]
    rows = tf.data.Dataset.from_tensor_slices(tf.ragged.constant(rows, tf.int32))
    return tf.data.Dataset.from_tensor_slices(list(epochs)).flat_map(
        lambda epoch: rows.enumerate().map(lambda i, row: (epoch, i, row))
    )


def batched(dataset, batch_size, length=None):
    return dataset.padded_batch(batch_size, ((), (), (length,)))


def masked_batches(batches, unit, parallel_calls=None):
    """A data set of (example ids, numbers of real pieces, what the masker gives)."""
    masker = MaskedLMMasker(TOKENIZER, unit=unit, seed=11)

    def mask(epochs, ids, rows):
        real = rows != PAD
        return ids, tf.math.count_nonzero(real, axis=1), masker(rows, real, ids, epochs[0])

    return batches.map(mask, num_parallel_calls=parallel_calls)


def by_example(batches):
    """Each example's row and labels by its id."""
    rows = {}
    for ids, sizes, out in batches.as_numpy_iterator():
        for row, (i, n) in enumerate(zip(ids.tolist(), sizes, strict=True)):
            assert i not in rows
            rows[i] = out["token_ids"][row, :n].tolist(), out["labels"][row, :n].tolist()
    return rows


@pytest.mark.parametrize("unit", UNITS)
def test_masks_are_the_same_for_any_number_of_workers(unit):
    dataset = examples()
    expected = by_example(masked_batches(batched(dataset, 16), unit))
    assert len(expected) == 100
    for workers in (1, 2, 8):
        assert by_example(masked_batches(batched(dataset, 16), unit, workers)) == expected
        shards = tf.data.Dataset.range(workers).flat_map(
            lambda i, workers=workers: batched(dataset.shard(workers, i), 7, length=64)
        )
        assert by_example(masked_batches(shards, unit)) == expected


@pytest.mark.parametrize("unit", UNITS)
def test_an_epoch_in_the_middle_of_a_run_is_the_same_alone(unit):
    run = masked_batches(batched(examples(epochs=range(4)), 20), unit)
    resumed = by_example(masked_batches(batched(examples(epochs=[2]), 20), unit))
    assert by_example(run.skip(10).take(5)) == resumed
    assert by_example(run.take(5)) != resumed


@pytest.mark.parametrize(("selection", "unit"), KINDS)
def test_masks_belong_to_the_example_and_not_to_its_batch(selection, unit):
    sizes = [12, 40, 7, 30, 25]
    token_ids, padding_mask = random_rows(sizes)
    arguments = {"selection": selection, "unit": unit}
    whole = masked(token_ids, padding_mask, example_ids=[3, 1, 4, 15, 9], **arguments)
    expected = [choices(whole, row) for row in range(5)]

    order = [4, 0, 2]
    some = masked(token_ids[order], padding_mask[order], example_ids=[9, 3, 4], **arguments)
    assert [choices(some, row) for row in range(3)] == [expected[row] for row in order]

    for row, example_id in enumerate([3, 1, 4, 15, 9]):
        padded = np.zeros((1, 64), int)
        padded_mask = padded.copy()
        padded[0, : sizes[row]] = token_ids[row, : sizes[row]]
        padded_mask[0, : sizes[row]] = 1
        alone = masked(padded, padded_mask, example_ids=[example_id], **arguments)
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


@pytest.mark.parametrize(("selection", "unit"), KINDS)
def test_a_graph_masks_as_an_eager_call_does(selection, unit):
    token_ids, padding_mask = random_rows([30, 20])
    masker = MaskedLMMasker(TOKENIZER, seed=5, selection=selection, unit=unit)
    lists = masker(token_ids.tolist(), padding_mask.tolist(), [0, 1], epoch=2)
    arrays = masker(token_ids, padding_mask.astype(bool), np.array([0, 1]), np.int32(2))
    unknown = tf.TensorSpec(None, tf.int64)
    graph = tf.function(masker, input_signature=[unknown] * 4)(
        token_ids, padding_mask, [0, 1], tf.constant(2, tf.int64)
    )
    assert equal(lists, arrays) and equal(lists, graph)


def digest():
    """A hash of masks of all kinds, for other processes to compare."""
    token_ids, padding_mask = random_rows([50, 30, 40])
    outputs = [
        masked(token_ids, padding_mask, epoch=3, seed=9, selection=selection, unit=unit)
        for selection, unit in KINDS
    ]
    content = b"".join(out[name].tobytes() for out in outputs for name in sorted(out))
    return hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_a_restart_on_any_backend_gives_the_same_masks(backend):
    process = subprocess.run(
        [sys.executable, "-c", f"import {__name__} as test; print(test.digest())"],
        env={**os.environ, "KERAS_BACKEND": backend, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.stdout.strip() == digest(), process.stderr


# === Arguments ===


def test_a_masker_is_saved_with_its_arguments():
    arguments = {
        "mask_selection_rate": 0.3,
        "mask_selection_length": 4,
        "mask_token_rate": 0.5,
        "random_token_rate": 0.25,
        "selection": "chance",
        "unit": "span",
        "unselectable_token_ids": [20, 21],
        "replacement_token_ids": [30, 31, 32],
        "ignore_index": -1,
        "seed": 11,
    }
    for changes in ({}, {"unselectable_token_ids": None, "replacement_token_ids": "all"}):
        masker = MaskedLMMasker(TOKENIZER, **{**arguments, **changes})
        config = keras.saving.serialize_keras_object(masker)
        loaded = keras.saving.deserialize_keras_object(config)
        assert {name: getattr(loaded, name) for name in arguments} == {**arguments, **changes}
        assert equal(*(m(*random_rows([40]), example_ids=[0]) for m in (masker, loaded)))


@pytest.mark.parametrize(
    ("arguments", "error", "name"),
    [
        ({"mask_selection_rate": 0.0}, ValueError, "mask_selection_rate"),
        ({"mask_selection_rate": 1.5}, ValueError, "mask_selection_rate"),
        ({"mask_selection_rate": math.nan}, ValueError, "mask_selection_rate"),
        ({"mask_selection_rate": "0.15"}, TypeError, "mask_selection_rate"),
        ({"mask_selection_length": 0}, ValueError, "mask_selection_length"),
        ({"mask_selection_length": 7.5}, TypeError, "mask_selection_length"),
        ({"mask_token_rate": 0.9, "random_token_rate": 0.2}, ValueError, "mask_token_rate"),
        ({"random_token_rate": -0.1}, ValueError, "random_token_rate"),
        ({"mask_token_rate": math.nan}, ValueError, "mask_token_rate"),
        ({"random_token_rate": None}, TypeError, "random_token_rate"),
        ({"selection": "all"}, ValueError, "selection.*count"),
        ({"unit": "words"}, ValueError, "unit.*span.*'words'"),
        ({"unselectable_token_ids": [1015]}, ValueError, r"unselectable_token_ids\[0\].*1014"),
        ({"unselectable_token_ids": "all"}, TypeError, "unselectable_token_ids"),
        ({"unselectable_token_ids": 3}, TypeError, "unselectable_token_ids"),
        ({"replacement_token_ids": [3, -1]}, ValueError, r"replacement_token_ids\[1\].*-1"),
        ({"replacement_token_ids": [1.5]}, TypeError, r"replacement_token_ids\[0\]"),
        ({"replacement_token_ids": "any"}, TypeError, "replacement_token_ids.*'all'"),
        ({"replacement_token_ids": []}, ValueError, "replacement_token_ids"),
        ({"ignore_index": None}, TypeError, "ignore_index"),
        ({"seed": 2**63}, ValueError, "seed"),
        ({"seed": 0.5}, TypeError, "seed"),
        ({"tokenizer": BertTokenizer(SPECIALS[:4] + ["a"], lowercase=True)}, ValueError, "MASK"),
        ({"tokenizer": BertTokenizer(SPECIALS, lowercase=True)}, ValueError, "tokenizer"),
    ],
)
def test_wrong_arguments_are_named(arguments, error, name):
    with pytest.raises(error, match=name):
        MaskedLMMasker(**{"tokenizer": TOKENIZER, **arguments})


@pytest.mark.parametrize(
    ("inputs", "error", "name"),
    [
        ({"token_ids": [CLS, 20, SEP]}, ValueError, "token_ids.*shape"),
        ({"token_ids": [[2.0, 20.0, 3.0]]}, TypeError, "token_ids.*float"),
        ({"token_ids": [[CLS, 1015, SEP]]}, ValueError, "token_ids.*1014.*1015"),
        ({"token_ids": [[CLS, -1, SEP]]}, ValueError, "token_ids.*-1"),
        ({"token_ids": tf.ragged.constant([[2, 20], [3]])}, ValueError, "token_ids.*ragged"),
        ({"padding_mask": [[1, 1]]}, ValueError, "padding_mask.*shape"),
        ({"example_ids": [0, 1]}, ValueError, "example_ids.*shape"),
        ({"epoch": 0.5}, TypeError, "epoch"),
        ({"epoch": [1]}, ValueError, "epoch.*shape"),
        ({"word_ids": [[0, 1]]}, ValueError, "word_ids.*shape"),
        ({"word_ids": [[0, 1, 2]], "unit": "piece"}, ValueError, "word_ids.*piece"),
    ],
)
def test_wrong_inputs_are_named(inputs, error, name):
    row = {"token_ids": [[CLS, 20, SEP]], "padding_mask": [[1, 1, 1]], "example_ids": [0]}
    masker = MaskedLMMasker(TOKENIZER, unit=inputs.pop("unit", "word"))
    with pytest.raises(error, match=name):
        masker(**{**row, **inputs})
