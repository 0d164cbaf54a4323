"""A phase's data: the same batches from any number on, masks as asked for, what is refused."""

import dataclasses

import keras
import numpy as np
import pytest

from keras_bert_zoo.data.example_files import read_manifest, split_shards
from keras_bert_zoo.data.prepare import prepare_examples
from keras_bert_zoo.preprocessing import BertTokenizer
from keras_bert_zoo.training import distribution, phase_data
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


@pytest.mark.parametrize(
    ("name", "packed"), [(None, False), ("pairs", False), (None, True), ("pairs", True)]
)
def test_batches_after_some_examples_are_those_of_the_whole(folder, name, packed, monkeypatch):
    # Some windows an epoch.
    monkeypatch.setattr(phase_data, "_WINDOW", 50)
    data = open_source(config(folder, name, phase={"packed": packed})).phase(0)
    size = data.counts["training examples"]
    count = 2 * -(-size // 8) + 3
    whole = arrays(data.batches_after(0, count))
    assert len(whole) == count
    seen = np.cumsum([0] + [len(ids) for _, ids in whole]).tolist()
    epoch = next(i for i, number in enumerate(seen) if number >= size)
    for first in (epoch,) if packed else (1, epoch, count - 1):
        assert arrays(data.batches_after(seen[first], count - first)) == whole[first:]
    ids = [i for _, batch_ids in whole for i in batch_ids]
    for epoch_ids in (ids[:size], ids[size : 2 * size]):
        assert len(set(epoch_ids)) == len(epoch_ids) == size


@pytest.mark.parametrize(("name", "packed"), [(None, False), ("masked", True)])
def test_all_batches_have_one_shape(folder, name, packed):
    settings = config(folder, name, phase={"packed": packed, "batch_size": 7})
    data = open_source(settings).phase(0)

    def shapes(batches):
        found = [keras.tree.map_structure(lambda x: tuple(x.shape), batch) for batch in batches]
        assert all(batch == found[0] for batch in found)
        return found[0]

    count = data.counts["training examples"] // 7 + 2
    inputs, labels, weights = shapes(batch for batch, _ in data.batches_after(0, count))
    assert inputs["token_ids"] == (7, 24)
    assert inputs["mask_positions"] == labels["masked_lm"] == (7, data.predictions)
    assert labels == weights
    # Of 24 positions 4 are predicted; 6 examples is the most of a row.
    assert data.predictions == (5 if packed else 4)
    assert labels["next_sentence"] == ((7, 6) if packed else (7,))
    inputs, labels, _ = shapes(data.held_out)
    assert "example_starts" not in inputs and labels["next_sentence"] == (7,)


def test_a_share_of_the_passes_over_texts_makes_shorter_pairs(folder):
    def mean_length(short_share):
        settings = config(folder, None, {"next_sentence": True})
        data = dataclasses.replace(settings.data, duplicates=5, short_share=short_share)
        data = open_source(dataclasses.replace(settings, data=data)).phase(0)
        masks = [batch[0]["padding_mask"].numpy() for batch, _ in data.batches_after(0, 20)]
        return np.concatenate(masks).sum(axis=1).mean()

    # Targets from 2 pieces to all but the marks are drawn evenly.
    assert mean_length(1.0) < mean_length(0.0) - 4


def test_packed_rows_hold_the_examples_that_are_trained_on_alone(folder):
    def examples(packed):
        """Pieces, segments, masks and labels of an epoch's examples, by id; places in rows."""
        data = open_source(config(folder, "masked", phase={"packed": packed})).phase(0)
        found, places = {}, set()
        for (inputs, labels, weights), ids in data.batches_after(0, 60):
            x, y, w = (
                {name: np.reshape(value, (8, -1)) for name, value in part.items()}
                for part in (inputs, labels, weights)
            )
            starts = x.get("example_starts", np.zeros((8, 1), int))
            ids = iter(ids.numpy().tolist())
            for row in range(8):
                begins = starts[row, w["next_sentence"][row] > 0].tolist()
                ends = [*begins[1:], int(x["padding_mask"][row].sum())]
                masks = np.stack([x["mask_positions"][row], y["masked_lm"][row]], axis=1)
                masks = masks[w["masked_lm"][row] > 0].tolist()
                for place, (begin, end) in enumerate(zip(begins, ends, strict=False)):
                    places.add(place)
                    found[next(ids)] = (
                        x["token_ids"][row, begin:end].tolist(),
                        x["segment_ids"][row, begin:end].tolist(),
                        [(at - begin, piece) for at, piece in masks if begin <= at < end],
                        int(y["next_sentence"][row, place]),
                    )
            if len(found) == data.counts["training examples"]:
                return found, places

    (alone, places), (packed, packed_places) = examples(False), examples(True)
    assert packed == alone
    assert places == {0} and {0, 1} <= packed_places


def test_processes_pack_shards_of_their_own(folder, monkeypatch):
    found = []
    settings = config(folder, "pairs", phase={"packed": True}, evaluation={"held_out": 0.5})
    for shard in range(2):
        monkeypatch.setattr(distribution, "data_shard", lambda shard=shard: (shard, 2))
        data = open_source(settings).phase(0)
        epoch = [i for _, ids in data.batches_after(0, 30) for i in ids.numpy().tolist()]
        found.append(set(epoch[: data.epoch_examples]))
        assert len(found[-1]) == data.epoch_examples
    assert not found[0] & found[1]
    assert len(found[0] | found[1]) == data.counts["training examples"]


def test_what_is_held_out_is_not_trained_on(folder):
    settings = config(folder, "pairs", evaluation={"held_out": 0.25})
    data = open_source(settings).phase(0)
    shards = split_shards(read_manifest(folder / "pairs"), 0.25, 0)[1]
    counts = read_manifest(folder / "pairs")["examples_by_shard"]
    assert data.counts["held-out examples"] == sum(counts[number] for number in shards)
    assert sum(data.counts.values()) == sum(counts)
    rows = sum(int(weights["next_sentence"].numpy().sum()) for _, _, weights in data.held_out)
    assert rows == 5 * data.counts["held-out examples"]
    assert len(data.labels()) == data.counts["held-out examples"]


@pytest.mark.parametrize("name", [None, "pairs"])
def test_masks_are_those_asked_for(folder, name):
    rates = {"mask_selection_rate": 0.5, "mask_token_rate": 1.0, "random_token_rate": 0.0}
    data = open_source(config(folder, name, masking=rates)).phase(0)
    (inputs, _, weights), _ = next(iter(data.batches_after(0, 1)))
    masked = inputs["token_ids"].numpy() == PIECES.index("[MASK]")
    real = inputs["padding_mask"].numpy().sum(axis=1)
    np.testing.assert_array_equal(masked.sum(axis=1), weights["masked_lm"].numpy().sum(axis=1))
    assert abs(masked.sum() / real.sum() - 0.5) < 0.05


@pytest.mark.parametrize(
    ("name", "packed"), [(None, False), ("pairs", False), ("single", False), ("single", True)]
)
def test_a_left_to_right_model_is_to_predict_each_next_piece(folder, name, packed):
    model = {"causal": True, "next_sentence": False}
    data = open_source(config(folder, name, model, {"packed": packed})).phase(0)
    (inputs, labels, weights), _ = next(iter(data.batches_after(0, 1)))
    rows = (inputs["token_ids"], inputs["mask_positions"], labels, weights)
    for row, positions, ids, weight in zip(*(x.numpy() for x in rows), strict=True):
        chosen = weight > 0
        np.testing.assert_array_equal(row[positions[chosen] + 1], ids[chosen])
        # All but the marks and padding are predicted, and none is hidden.
        assert PIECES.index("[MASK]") not in row
        assert chosen.sum() == (row >= 5).sum()


def test_bytes_that_are_no_utf_8_are_refused_or_dropped(folder, tmp_path):
    path = tmp_path / "latin_1.txt"
    path.write_bytes((folder / "texts.txt").read_bytes().replace(b"a", b"\xe9"))
    data = {"text": [str(path)], "format": "sentences", "vocabulary": str(folder / "vocab.txt")}
    settings = config(folder, None, data=data)
    with pytest.raises(ValueError, match="Line 1 of .*latin_1.txt' is not UTF-8"):
        open_source(settings)
    settings = config(folder, None, data={**data, "encoding_errors": "replace"})
    assert set(open_source(settings).phase(0).pieces()) == set(range(6, 13))


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
