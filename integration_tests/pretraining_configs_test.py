"""The experiments that the package brings: each is read with its commands, and its model built."""

import dataclasses
import pathlib
import re
import shlex

import pytest

from keras_bert_zoo import list_presets
from keras_bert_zoo.cli import make_parser
from keras_bert_zoo.preprocessing import BertTokenizer
from keras_bert_zoo.training.config import read_config
from keras_bert_zoo.training.phase_data import Source
from keras_bert_zoo.training.pretraining import make_model

ROOT = pathlib.Path(__file__).parent.parent
CONFIGS = sorted((ROOT / "examples" / "pretraining").glob("*.toml"))
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"]


def commands(path):
    return re.findall(r"^#   python -m keras_bert_zoo (.*)$", path.read_text(), re.MULTILINE)


def variants(path):
    """Return the settings of each of a file's own commands."""
    parsed = [make_parser().parse_args(shlex.split(command)) for command in commands(path)]
    runs = [each for each in parsed if each.verb == "pretrain"]
    assert runs
    assert {each.config for each in runs} == {str(path.relative_to(ROOT))}
    return [read_config(ROOT / each.config, each.set) for each in runs]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_each_is_read_with_its_commands_and_builds(path):
    configs = variants(path)
    assert len({config.run for config in configs}) == len(configs)
    source = Source(BertTokenizer(PIECES, lowercase=True), {}, None)
    for config in configs:
        # Of the full width, but a layer alone: the others are like it.
        model = dataclasses.replace(config.model, num_layers=1)
        built = make_model(dataclasses.replace(config, model=model), source)
        assert built.backbone.hidden_dim == config.model.hidden_dim
        assert built.backbone.causal == config.model.causal


def sizes(config):
    return config.model.num_layers, config.model.hidden_dim, config.model.num_heads


@pytest.mark.backend_free
@pytest.mark.parametrize("name", ["base", "large"])
def test_the_papers_models_have_the_released_ones_sizes_and_recipe(name):
    config = read_config(ROOT / "examples" / "pretraining" / f"bert_{name}.toml")
    card = next(card for card in list_presets() if card["name"] == f"bert_{name}_en_uncased")
    expected = card["architecture"]
    assert sizes(config) == tuple(
        expected[key] for key in ("num_layers", "hidden_dim", "num_heads")
    )
    phases = [(phase.steps, phase.sequence_length, phase.batch_size) for phase in config.phases]
    assert phases == [(900_000, 128, 256), (100_000, 512, 256)]
    optimizer = config.optimizer
    assert (optimizer.name, optimizer.learning_rate, optimizer.warmup_steps) == (
        "adamw",
        1e-4,
        10**4,
    )
    assert (optimizer.beta_1, optimizer.beta_2, optimizer.epsilon) == (0.9, 0.999, 1e-6)
    assert (optimizer.weight_decay, optimizer.clipnorm) == (0.01, 1.0)
    assert optimizer.bias_correction is False
    assert (config.model.dropout, config.model.attention_dropout) == (0.1, 0.1)


@pytest.mark.backend_free
def test_the_ablations_are_the_papers():
    folder = ROOT / "examples" / "pretraining"
    expected = {(12, 768, 12), (3, 768, 12), (6, 768, 3), (6, 768, 12)}
    expected |= {(12, 1024, 16), (24, 1024, 16)}
    assert {sizes(config) for config in variants(folder / "model_sizes.toml")} == expected
    rates = {
        (round(100 * m.mask_token_rate), round(100 * m.random_token_rate))
        for m in (config.masking for config in variants(folder / "masking_rates.toml"))
    }
    assert rates == {(80, 10), (100, 0), (80, 20), (80, 0), (0, 80), (0, 100)}
    assert not read_config(folder / "no_nsp.toml").model.next_sentence
    assert read_config(folder / "left_to_right.toml").model.causal
