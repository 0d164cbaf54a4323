import hashlib
import importlib.util
import json
import pathlib
import re

import pytest

from keras_bert_zoo import list_presets
from keras_bert_zoo.cli import main

pytestmark = pytest.mark.backend_free

PRESETS = pathlib.Path(__file__).resolve().parent.parent / "presets"
PATHS = sorted(PRESETS.glob("*.json"))

KEY_ORDER = [
    "name",
    "aliases",
    "description",
    "architecture",
    "parameters",
    "tokenizer",
    "language",
    "casing",
    "pooling",
    "normalize",
    "heads",
    "sources",
    "sha256",
    "licence",
]
OPTIONAL_KEYS = {"aliases", "tokenizer", "pooling", "normalize", "heads", "sha256", "licence"}
ARCHITECTURE_KEYS = [
    "vocabulary_size",
    "num_layers",
    "num_heads",
    "hidden_dim",
    "intermediate_dim",
    "max_sequence_length",
    "num_segments",
    "hidden_activation",
    "layer_norm_epsilon",
    "dropout",
    "attention_dropout",
]
TOKENIZER_KEYS = ["lowercase", "strip_accents", "split_on_cjk"]
SOURCE_KEYS = {
    "package": ["kind", "package", "version", "module", "folder"],
    "huggingface": ["kind", "repo"],
}
HEADS = {
    "masked_lm",
    "next_sentence",
    "question_answerer",
    "text_classifier",
    "token_classifier",
}
MINIATURE_LAYERS = (2, 4, 6, 8, 10, 12)
MINIATURE_HEADS_BY_WIDTH = {128: 2, 256: 4, 512: 8, 768: 12}


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def read_by_name(name):
    return read(PRESETS / f"{name}.json")


def count_parameters(architecture):
    """Count the weights of the embeddings, the encoder and the pooler."""
    hidden = architecture["hidden_dim"]
    inner = architecture["intermediate_dim"]

    def dense(inputs, outputs):
        return inputs * outputs + outputs

    layer_norm = 2 * hidden
    tables = hidden * (
        architecture["vocabulary_size"]
        + architecture["max_sequence_length"]
        + architecture["num_segments"]
    )
    attention = 4 * dense(hidden, hidden) + layer_norm
    feed_forward = dense(hidden, inner) + dense(inner, hidden) + layer_norm
    encoder = architecture["num_layers"] * (attention + feed_forward)
    return tables + layer_norm + encoder + dense(hidden, hidden)


every_card = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)


@every_card
def test_card_parses_and_is_named_like_its_file(path):
    assert read(path)["name"] == path.stem


@every_card
def test_card_has_its_keys_in_the_one_order(path):
    card = read(path)
    assert list(card) == [key for key in KEY_ORDER if key in card]
    assert set(KEY_ORDER) - set(card) <= OPTIONAL_KEYS
    assert list(card["architecture"]) == ARCHITECTURE_KEYS
    assert list(card.get("tokenizer", TOKENIZER_KEYS)) == TOKENIZER_KEYS
    for source in card["sources"]:
        assert list(source) == SOURCE_KEYS[source["kind"]]


@every_card
def test_card_states_the_parameter_count_of_its_architecture(path):
    card = read(path)
    assert card["parameters"] == count_parameters(card["architecture"])


@every_card
def test_card_describes_a_model_that_can_be_built(path):
    architecture = read(path)["architecture"]
    assert architecture["hidden_dim"] % architecture["num_heads"] == 0
    assert architecture["hidden_activation"] in ("gelu", "gelu_tanh")
    assert 0 < architecture["layer_norm_epsilon"] < 1e-3
    assert 0 <= architecture["dropout"] < 1
    assert 0 <= architecture["attention_dropout"] < 1


@every_card
def test_card_says_the_same_casing_in_every_place(path):
    card = read(path)
    assert card["casing"] in ("cased", "uncased")
    if "tokenizer" in card:
        assert card["tokenizer"]["lowercase"] == (card["casing"] == "uncased")
    for word in ("cased", "uncased"):
        if card["name"].endswith(f"_{word}"):
            assert card["casing"] == word


@every_card
def test_card_uses_only_known_words(path):
    card = read(path)
    assert card["language"] == "multilingual" or re.fullmatch("[a-z]{2}", card["language"])
    assert set(card.get("heads", [])) <= HEADS
    assert ("pooling" in card) == ("normalize" in card)
    assert card.get("pooling", "mean") in ("mean", "cls", "max")
    assert card["sources"]
    assert card["description"] and "\n" not in card["description"]


def test_names_and_aliases_are_unique():
    names = []
    for path in PATHS:
        card = read(path)
        names += [card["name"], *card.get("aliases", [])]
    assert len(names) == len(set(names))


def test_sources_are_named_once():
    repos = [
        source["repo"] for path in PATHS for source in read(path)["sources"] if "repo" in source
    ]
    assert len(repos) == len(set(repos))
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+", repo) for repo in repos)


@pytest.mark.parametrize(
    "name, count",
    [
        ("bert_base_en_uncased", 109_482_240),
        ("bert_large_en_uncased", 335_141_888),
        ("all_minilm_l12_v2_en", 33_360_000),
        ("arctic_embed_xs_en", 22_713_216),
        ("arctic_embed_l_en", 335_141_888),
        ("labse_multi_cased", 470_926_848),
        # The cross-encoders' published counts have one output's weights and bias more.
        ("ms_marco_minilm_l6_v2_en", 22_713_601 - 385),
        ("ms_marco_minilm_l12_v2_en", 33_360_385 - 385),
    ],
)
def test_parameters_are_the_published_count(name, count):
    assert read_by_name(name)["parameters"] == count


@pytest.mark.parametrize(
    "name, size",
    [
        ("bert_base_en_uncased", 30_522),
        ("bert_large_wwm_en_uncased", 30_522),
        ("bert_base_en_cased", 28_996),
        ("bert_large_en_cased", 28_996),
        ("bert_large_wwm_en_cased", 28_996),
        ("bert_base_zh", 21_128),
        ("bert_base_multi_cased", 119_547),
        ("bert_base_multi_uncased", 105_879),
        ("scibert_en_uncased", 31_090),
        ("scibert_en_cased", 31_116),
        ("labse_multi_cased", 501_153),
    ],
)
def test_vocabulary_has_the_published_size(name, size):
    assert read_by_name(name)["architecture"]["vocabulary_size"] == size


def test_all_24_miniatures_are_present_in_their_own_sizes():
    found = 0
    for layers in MINIATURE_LAYERS:
        for width, heads in MINIATURE_HEADS_BY_WIDTH.items():
            card = read_by_name(f"bert_l{layers}_h{width}_en_uncased")
            architecture = card["architecture"]
            assert architecture["num_layers"] == layers
            assert architecture["hidden_dim"] == width
            assert architecture["num_heads"] == heads
            assert architecture["intermediate_dim"] == 4 * width
            repo = f"google/bert_uncased_L-{layers}_H-{width}_A-{heads}"
            assert card["sources"] == [{"kind": "huggingface", "repo": repo}]
            found += 1
    assert found == 24


def test_all_25_multiberts_are_present_and_of_one_shape():
    cards = [read_by_name(f"multiberts_seed_{seed}_en_uncased") for seed in range(25)]
    for seed, card in enumerate(cards):
        assert card["architecture"] == read_by_name("bert_base_en_uncased")["architecture"]
        repo = f"google/multiberts-seed_{seed}"
        assert card["sources"] == [{"kind": "huggingface", "repo": repo}]


def test_hash_of_the_sentence_encoder_is_that_of_the_installed_package():
    card = read_by_name("all_minilm_l6_v2_en")
    source = card["sources"][0]
    assert source["kind"] == "package"
    spec = importlib.util.find_spec(source["module"])
    if spec is None:
        pytest.skip(f"The package {source['package']} is not installed: its hash is not compared.")
    folder = pathlib.Path(spec.origin).parent / source["folder"]
    for file_name, expected in card["sha256"].items():
        with open(folder / file_name, "rb") as file:
            assert hashlib.file_digest(file, "sha256").hexdigest() == expected


def test_filters_keep_the_cards_that_fit_all_of_them():
    assert len(list_presets()) == len(PATHS)
    names = [card["name"] for card in list_presets(language="zh", casing="cased")]
    assert names == ["bge_small_zh_v1_5", "bert_base_zh"]
    small = list_presets(language="en", casing="uncased", max_parameters=4_385_920)
    assert "bert_l2_h128_en_uncased" in [card["name"] for card in small]
    assert all(card["parameters"] <= 4_385_920 for card in small)
    assert list_presets(max_parameters=1) == []


@pytest.mark.parametrize(
    "task, name, other",
    [
        ("masked_lm", "bert_base_zh", "all_minilm_l6_v2_en"),
        ("pretrainer", "bert_base_zh", "all_minilm_l6_v2_en"),
        ("text_embedder", "all_minilm_l6_v2_en", "bert_base_zh"),
        ("question_answerer", "bert_large_wwm_squad_en_cased", "bert_large_wwm_en_cased"),
        ("text_classifier", "ms_marco_minilm_l6_v2_en", "bert_base_zh"),
        ("token_classifier", "bert_base_ner_en_cased", "bert_base_en_cased"),
        ("backbone", "all_minilm_l6_v2_en", None),
    ],
)
def test_a_task_keeps_the_cards_with_its_weights(task, name, other):
    names = [card["name"] for card in list_presets(task=task)]
    assert name in names and other not in names


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"language": "english"}, r"`language` must be one of \[.*'en'.*\]. Received: 'english'"),
        ({"casing": "lower"}, r"`casing` must be one of \['cased', 'uncased'\]. Received: 'lower'"),
        ({"task": "translator"}, r"`task` must be one of \['backbone', .*. Received: 'translator'"),
    ],
)
def test_a_wrong_filter_is_refused_with_the_known_values(arguments, message):
    with pytest.raises(ValueError, match=message):
        list_presets(**arguments)


def test_list_takes_the_filters(capsys, tmp_path):
    path = tmp_path / "cards.json"
    filters = ["--language", "en", "--casing", "uncased", "--task", "text_embedder"]
    assert main(["list", *filters, "--max-parameters", "22713216", "--json", str(path)]) == 0
    assert "all_minilm_l6_v2_en" in [card["name"] for card in read(path)]
    assert main(["list", "--max-parameters", "1"]) == 2
    assert "No preset fits all of {'max_parameters': 1}" in capsys.readouterr().err
