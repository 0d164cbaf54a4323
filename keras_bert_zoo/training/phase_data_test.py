"""A phase's data: the same batches from any number on, masks as asked for, what is refused."""

import dataclasses

import keras
import numpy as np
import pytest

from keras_bert_zoo.data.example_files import read_manifest, split_shards
from keras_bert_zoo.data.prepare import prepare_examples
from keras_bert_zoo.preprocessing import BertTokenizer
from keras_bert_zoo.training.config import make_config
from keras_bert_zoo.training.phase_data import open_source

pytest.importorskip("apache_beam", reason="apache-beam is not installed")

pytestmark = pytest.mark.backend_free

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
MODEL = {"num_layers": 1, "num_heads": 1, "hidden_dim": 8}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Texts, and folders of examples made of them."""
    folder = tmp_path_factory.mktemp("phase_data")
    rng = np.random.default_rng(0)
    texts = [
        "\n".join(" ".join(rng.choice(list("abcdefgh"), rng.integers(2, 9))) for _ in range(15))
        for _ in range(20)
    ]
    (folder / "texts.txt").write_text("\n\n".join(texts))
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))
    kinds = {
        "pairs": {},
        "masked": {"masking": {}},
        "single": {"objective": "single"},
        "other": {"vocabulary": [*PIECES, "i"]},
    }
    for name, settings in kinds.items():
        tokenizer = BertTokenizer(settings.pop("vocabulary", PIECES), lowercase=True)
        prepare_examples(
            [str(folder / "texts.txt")],
            folder / name,
            tokenizer,
            format="sentences",
            sequence_length=24,
            shards=4,
            **settings,
        )
    return folder


def config(folder, name, model=None, phase=None, **sections):
    """Return settings for texts (`name` is None) or a folder of examples."""
    phase = {"steps": 10, "sequence_length": 24, "batch_size": 8, **(phase or {})}
    data = {}
    if name is None:
        data = {"text": [str(folder / "texts.txt")], "format": "sentences", "duplicates": 1}
        data["vocabulary"] = str(folder / "vocab.txt")
    else:
        phase["examples"] = str(folder / name)
    model = {**MODEL, **(model or {})}
    return make_config({"run": "run", "model": model, "phases": [phase], "data": data, **sections})


def arrays(dataset):
    return [keras.tree.map_structure(lambda x: x.numpy().tolist(), batch) for batch in dataset]


@pytest.mark.parametrize("name", [None, "pairs", "masked"])
def test_batches_from_a_number_on_are_those_of_the_whole(folder, name):
    data = open_source(config(folder, name)).phase(0)
    count = 2 * data.epoch_batches + 3
    whole = arrays(data.batches_from(0, count))
    assert len(whole) == count
    for first in (1, data.epoch_batches - 1, data.epoch_batches, count - 1):
        assert arrays(data.batches_from(first, count - first)) == whole[first:]
    epochs = [whole[: data.epoch_batches], whole[data.epoch_batches : 2 * data.epoch_batches]]
    for epoch in epochs:
        ids = [i for _, batch_ids in epoch for i in batch_ids]
        assert len(set(ids)) == len(ids) == data.counts["training examples"]


def test_what_is_held_out_is_not_trained_on(folder):
    settings = config(folder, "pairs", evaluation={"held_out": 0.25})
    data = open_source(settings).phase(0)
    shards = split_shards(read_manifest(folder / "pairs"), 0.25, 0)[1]
    counts = read_manifest(folder / "pairs")["examples_by_shard"]
    assert data.counts["held-out examples"] == sum(counts[number] for number in shards)
    assert sum(data.counts.values()) == sum(counts)
    rows = sum(len(batch[0]["token_ids"]) for batch in data.held_out)
    assert rows == 5 * data.counts["held-out examples"]
    assert len(data.labels()) == data.counts["held-out examples"]


@pytest.mark.parametrize("name", [None, "pairs"])
def test_masks_are_those_asked_for(folder, name):
    rates = {"mask_selection_rate": 0.5, "mask_token_rate": 1.0, "random_token_rate": 0.0}
    data = open_source(config(folder, name, masking=rates)).phase(0)
    (inputs, _, weights), _ = next(iter(data.batches_from(0, 1)))
    masked = inputs["token_ids"].numpy() == PIECES.index("[MASK]")
    real = inputs["padding_mask"].numpy().sum(axis=1)
    np.testing.assert_array_equal(masked.sum(axis=1), weights["masked_lm"].numpy().sum(axis=1))
    assert abs(masked.sum() / real.sum() - 0.5) < 0.05


@pytest.mark.parametrize("name", [None, "pairs", "single"])
def test_a_left_to_right_model_is_to_predict_each_next_piece(folder, name):
    model = {"causal": True, "next_sentence": False}
    data = open_source(config(folder, name, model)).phase(0)
    (inputs, labels, weights), _ = next(iter(data.batches_from(0, 1)))
    rows = (inputs["token_ids"], inputs["mask_positions"], labels, weights)
    for row, positions, ids, weight in zip(*(x.numpy() for x in rows), strict=True):
        chosen = weight > 0
        np.testing.assert_array_equal(row[positions[chosen] + 1], ids[chosen])
        # All but the marks and padding are predicted, and none is hidden.
        assert PIECES.index("[MASK]") not in row
        assert chosen.sum() == (row >= 5).sum()


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("single", {}, "single segments.*`model.next_sentence = false`"),
        ("masked", {"masking": {"mask_selection_rate": 0.3}}, "were masked once"),
        ("masked", {"model": {"causal": True, "next_sentence": False}}, "were masked once"),
        ("pairs", {"phase": {"sequence_length": 16}}, "examples in .*, 24. Received: 16"),
        ("nowhere", {}, "`prepare` did not finish there"),
    ],
)
def test_what_does_not_fit_the_examples_is_refused(folder, name, arguments, message):
    with pytest.raises(ValueError, match=message):
        open_source(config(folder, name, **arguments)).phase(0)


def test_phases_of_different_vocabularies_are_refused(folder):
    settings = config(folder, "pairs")
    other = dataclasses.replace(settings.phases[0], examples=str(folder / "other"))
    settings = dataclasses.replace(settings, phases=(*settings.phases, other))
    with pytest.raises(ValueError, match="the same vocabulary_sha256"):
        open_source(settings)
