"""Prepared examples as batches: what was written, in what order, for whom."""

import keras
import numpy as np
import pytest

from keras_bert_zoo.data.example_files import (
    example_batches,
    iterate_examples,
    read_manifest,
    read_tokenizer,
    split_shards,
)
from keras_bert_zoo.data.prepare import prepare_examples
from keras_bert_zoo.models import BertBackbone, BertMaskedLM, BertPretrainer
from keras_bert_zoo.preprocessing import BertTokenizer

pytest.importorskip("apache_beam", reason="apache-beam is not installed")

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "!", *"ABCDEFGH"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders of examples: pairs, pairs masked once, and single segments."""
    folder = tmp_path_factory.mktemp("examples")
    rng = np.random.default_rng(0)
    texts = [
        "\n".join(" ".join(rng.choice(list("ABCDEFGH"), rng.integers(2, 9))) for _ in range(15))
        for _ in range(30)
    ]
    (folder / "texts.txt").write_text("\n\n".join(texts))
    tokenizer = BertTokenizer(PIECES, lowercase=False)
    kinds = {
        "pairs": {},
        "masked": {"masking": {}},
        "single": {"objective": "single"},
    }
    for name, settings in kinds.items():
        prepare_examples(
            [str(folder / "texts.txt")],
            folder / name,
            tokenizer,
            format="sentences",
            sequence_length=32,
            shards=5,
            **settings,
        )
    return {name: folder / name for name in kinds}


def unpacked(batches):
    """Return the rows of batches, without their padding, restored where they were masked."""
    rows = []
    for inputs, labels, weights in batches:
        pairs = isinstance(labels, dict)
        ids, real = (labels["masked_lm"], weights["masked_lm"]) if pairs else (labels, weights)
        token_ids = inputs["token_ids"].numpy()
        for r, positions in enumerate(inputs["mask_positions"].numpy()):
            chosen = real.numpy()[r] > 0
            token_ids[r][positions[chosen]] = ids.numpy()[r][chosen]
            mask = inputs["padding_mask"].numpy()[r]
            segments = inputs["segment_ids"].numpy()[r]
            row = (
                tuple(token_ids[r][mask == 1].tolist()),
                int((segments[mask == 1] == 0).sum()),
                int(labels["next_sentence"].numpy()[r]) if pairs else 0,
            )
            assert not segments[mask == 0].any()
            rows.append(row)
    return rows


def stored(folder, shards=None):
    """Return the same of what a folder holds."""
    rows = []
    for example in iterate_examples(folder, shards):
        token_ids = example["token_ids"]
        if "mask_ids" in example:
            token_ids[example["mask_positions"]] = example["mask_ids"]
        first_length = example.get("first_length", [len(token_ids)])[0]
        label = example.get("next_sentence", [0])[0]
        rows.append((tuple(token_ids.tolist()), int(first_length), int(label)))
    return rows


def arrays(batches):
    return [keras.tree.map_structure(lambda x: x.numpy().tolist(), batch) for batch in batches]


# === Content and order ===


@pytest.mark.backend_free
@pytest.mark.parametrize("name", ["pairs", "masked", "single"])
def test_batches_hold_what_was_written(folders, name):
    expected = stored(folders[name])
    for shuffle in (False, True):
        batches = list(example_batches(folders[name], 8, shuffle=shuffle))
        assert sorted(unpacked(batches)) == sorted(expected)
        assert {len(batch[0]["token_ids"]) for batch in batches[:-1]} == {8}


@pytest.mark.backend_free
def test_an_order_and_masks_come_with_each_epoch_and_seed(folders):
    def batches(**arguments):
        return arrays(example_batches(folders["pairs"], 8, **arguments))

    three = batches(epochs=3)
    steps = len(three) // 3
    assert three == batches(epochs=3)
    # A run that goes on gets the epochs it would have had.
    assert batches(epochs=3, initial_epoch=1) == three[steps:]
    for step in (0, 1, steps - 1):
        going_on = example_batches(
            folders["pairs"], 8, epochs=3, initial_epoch=1, initial_step=step
        )
        assert arrays(going_on) == three[steps + step :]
        assert int(going_on.cardinality()) == 2 * steps - step
    assert batches(seed=1) != three[:steps]
    epochs = [three[k * steps : (k + 1) * steps] for k in range(3)]
    masks = [[batch[0]["padding_mask"] for batch in epoch] for epoch in epochs]
    assert masks[0] != masks[1] != masks[2] != masks[0]
    still = batches(epochs=2, shuffle=False)
    assert [b[0]["padding_mask"] for b in still[:steps]] == [
        b[0]["padding_mask"] for b in still[steps:]
    ]
    assert [b[0]["mask_positions"] for b in still[:steps]] != [
        b[0]["mask_positions"] for b in still[steps:]
    ]


@pytest.mark.backend_free
def test_ids_come_with_the_batches(folders):
    pieces = {
        int(example["example_id"][0]): example["token_ids"].tolist()
        for example in iterate_examples(folders["masked"])
    }
    seen = []
    for (inputs, _, _), ids in example_batches(folders["masked"], 8, with_example_ids=True):
        real = inputs["padding_mask"].numpy().sum(axis=1)
        rows = zip(ids.numpy().tolist(), inputs["token_ids"].numpy(), real, strict=True)
        for number, row, length in rows:
            assert row[:length].tolist() == pieces[number]
            seen.append(number)
    assert sorted(seen) == sorted(pieces)


@pytest.mark.backend_free
def test_an_example_is_masked_the_same_in_any_batch(folders):
    def masks(batch_size):
        rows = {}
        for inputs, _, _ in example_batches(folders["pairs"], batch_size, shuffle=False):
            ids = inputs["token_ids"].numpy()
            real = inputs["padding_mask"].numpy().sum(axis=1)
            for row, length in zip(ids, real, strict=True):
                rows.setdefault(len(rows), row[:length].tolist())
        return rows

    assert masks(4) == masks(64)


@pytest.mark.backend_free
def test_what_was_masked_once_stays_so(folders):
    epochs = arrays(example_batches(folders["masked"], 8, epochs=2, shuffle=False))
    half = len(epochs) // 2
    assert epochs[:half] == epochs[half:]
    examples = iterate_examples(folders["masked"])
    for inputs, labels, weights in epochs[:half]:
        for row in zip(
            inputs["token_ids"],
            inputs["mask_positions"],
            labels["masked_lm"],
            weights["masked_lm"],
            strict=True,
        ):
            example = {name: value.tolist() for name, value in next(examples).items()}
            count = len(example["mask_ids"])
            assert row[0][: len(example["token_ids"])] == example["token_ids"]
            assert row[1][:count] == example["mask_positions"]
            assert row[2][:count] == example["mask_ids"]
            assert row[3] == [1.0] * count + [0.0] * (len(row[3]) - count)
    assert next(examples, None) is None


@pytest.mark.backend_free
def test_lengths_are_those_of_the_buckets(folders):
    lengths = {b[0]["token_ids"].shape[1] for b in example_batches(folders["single"], 1)}
    assert lengths <= {8, 16, 24, 32}
    fixed = example_batches(folders["single"], 1, buckets=[])
    assert {b[0]["token_ids"].shape[1] for b in fixed} == {32}


# === Shares ===


@pytest.mark.backend_free
def test_processes_share_the_shards_and_take_equal_steps(folders):
    folder = folders["pairs"]
    shares = [
        list(example_batches(folder, 4, num_processes=2, process_index=k, shuffle=False))
        for k in range(2)
    ]
    assert len(shares[0]) == len(shares[1])
    assert {len(batch[0]["token_ids"]) for share in shares for batch in share} == {4}
    for share, shards in zip(shares, ([0, 2, 4], [1, 3]), strict=True):
        assert set(unpacked(share)) <= set(stored(folder, shards))
    counts = read_manifest(folder)["examples_by_shard"]
    assert len(shares[0]) == min(sum(counts[0::2]), sum(counts[1::2])) // 4


@pytest.mark.backend_free
def test_shards_are_held_out(folders):
    manifest = read_manifest(folders["pairs"])
    train, held_out = split_shards(manifest, 0.4, seed=1)
    assert (len(train), len(held_out)) == (3, 2)
    assert sorted(train + held_out) == [0, 1, 2, 3, 4]
    assert split_shards(manifest, 0.4, seed=1) == (train, held_out)
    batches = example_batches(folders["pairs"], 8, shards=held_out)
    assert sorted(unpacked(batches)) == sorted(stored(folders["pairs"], held_out))
    for share in (0.0, 1.0, 0.95):
        with pytest.raises(ValueError, match=f"{share} of 5 shards"):
            split_shards(manifest, share)


# === Training ===


@pytest.mark.parametrize(
    ("name", "task", "model_class"),
    [
        ("pairs", None, BertPretrainer),
        ("masked", None, BertPretrainer),
        ("masked", "masked_lm", BertMaskedLM),
        ("single", None, BertMaskedLM),
    ],
)
def test_models_train_on_them(folders, name, task, model_class):
    backbone = BertBackbone(
        vocabulary_size=len(PIECES), num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16
    )
    model = model_class(backbone)
    dataset = example_batches(folders[name], 8, task=task, epochs=2, buckets=[])
    steps = int(dataset.cardinality()) // 2
    history = model.fit(dataset, epochs=2, steps_per_epoch=steps, verbose=0)
    assert len(history.history["loss"]) == 2
    assert int(model.optimizer.iterations) == 2 * steps
    assert np.isfinite(history.history["loss"]).all()


# === Errors ===


@pytest.mark.backend_free
def test_the_tokenizer_is_the_one_of_the_examples(folders):
    tokenizer = read_tokenizer(folders["pairs"])
    assert tokenizer.vocabulary == PIECES
    assert tokenizer.lowercase is False


@pytest.mark.backend_free
def test_a_folder_that_is_not_finished_is_refused(tmp_path):
    (tmp_path / "settings.json").write_text("{}")
    with pytest.raises(ValueError, match="did not finish"):
        example_batches(tmp_path)
    (tmp_path / "manifest.json").write_text('{"format": "keras_bert_zoo examples", "version": 2}')
    with pytest.raises(ValueError, match="version 2; this"):
        example_batches(tmp_path)


@pytest.mark.backend_free
@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("single", {"task": "pretrainer"}, "'pretrainer'.*'single'"),
        ("pairs", {"task": "classifier"}, "'classifier'"),
        ("masked", {"masking": {"mask_selection_rate": 0.2}}, "were, once"),
        ("pairs", {"shards": [5]}, r"from 0 to 4.*\[5\]"),
        ("pairs", {"shards": []}, "from 0 to 4"),
        ("pairs", {"num_processes": 6}, "shards, 5.*0 and 6"),
        ("pairs", {"num_processes": 2, "process_index": 2}, "2 and 2"),
        ("pairs", {"num_processes": 2, "batch_size": 1000}, "`batch_size` = 1000"),
    ],
)
def test_what_does_not_fit_the_examples_is_refused(folders, name, arguments, message):
    with pytest.raises(ValueError, match=message):
        example_batches(folders[name], **arguments)
