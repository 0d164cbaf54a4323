"""Settings: what is read, and what is refused by name."""

import dataclasses
import inspect

import pytest

from keras_bert_zoo.preprocessing import MaskedLMMasker
from keras_bert_zoo.training.config import LEFT_TO_RIGHT, Masking, make_config, read_config

pytestmark = pytest.mark.backend_free

FILE = """
run = "runs/one"
[model]
num_layers = 2
num_heads = 2
hidden_dim = 8
[data]
text = ["texts"]
[[phases]]
steps = 90
sequence_length = 128
batch_size = 32
[[phases]]
steps = 10
sequence_length = 512
batch_size = 8
[optimizer]
learning_rate = 1
"""


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text(FILE)
    return path


def test_a_file_is_read(path):
    config = read_config(path)
    assert (config.run, config.steps, config.data.text) == ("runs/one", 100, ("texts",))
    assert [phase.sequence_length for phase in config.phases] == [128, 512]
    assert type(config.optimizer.learning_rate) is float
    assert make_config(dataclasses.asdict(config)) == config


def test_settings_stand_in_for_the_files(path):
    settings = ["seed=3", "phases.1.steps=20", "optimizer.name=lamb", "run=runs/b = c"]
    settings += [
        "masking.mask_token_rate=1",
        "masking.random_token_rate=0.0",
        "precision='float32'",
    ]
    config = read_config(path, settings)
    assert (config.seed, config.steps, config.run) == (3, 110, "runs/b = c")
    assert (config.optimizer.name, config.precision) == ("lamb", "float32")
    assert config.masking == Masking(mask_token_rate=1.0, random_token_rate=0.0)


@pytest.mark.parametrize(
    ("setting", "error", "message"),
    [
        ("modle.num_layers=2", ValueError, "no key `modle`. Known are run, model"),
        ("model.layers=2", ValueError, "no key `model.layers`. Known are num_layers"),
        ("phases.0.length=2", ValueError, "no key `phases.0.length`"),
        ("phases.2.steps=2", ValueError, "nothing at 'phases.2.steps'"),
        ("phases=[]", ValueError, "`phases` must hold at least one"),
        ("phases=3", TypeError, "`phases` must be a list"),
        ("model=3", TypeError, "`model` must be a section"),
        ("model.num_layers=2.5", TypeError, "`model.num_layers` must be an integer.*2.5"),
        ("model.num_layers=true", TypeError, "`model.num_layers` must be an integer.*True"),
        ("model.causal=1", TypeError, "`model.causal` must be true or false"),
        ("optimizer.learning_rate=fast", TypeError, "must be a number.*'fast'"),
        ("data.text=texts", TypeError, "`data.text` must be a list"),
        ("data.text=[1]", TypeError, "`data.text.0` must be a string"),
        ("optimizer.name=sgd", ValueError, "`optimizer.name` must be one of .*'sgd'"),
        ("data.encoding_errors=ignore", ValueError, "`data.encoding_errors` must be one of"),
        ("precision=float64", ValueError, "`precision` must be one of"),
        ("seed=-1", ValueError, "`seed` must be at least 0"),
        ("checkpoints.keep=0", ValueError, "`checkpoints.keep` must be at least 1"),
        ("phases.0.steps=0", ValueError, "`phases.0.steps` must be at least 1"),
        ("phases.0.examples=folder", ValueError, "either `examples` of its own or `data.text`"),
        ("data.text=[]", ValueError, "either `examples` of its own or `data.text`"),
        ("optimizer.accumulation=16", ValueError, "must divide `phases.1.batch_size`, 8"),
        ("optimizer.warmup_steps=100", ValueError, "below the steps of all phases, 100"),
        ("model.max_sequence_length=256", ValueError, "`phases.1.sequence_length` must be at most"),
        ("model.causal=true", ValueError, "needs `model.next_sentence = false`"),
        ("evaluation.examples=folder", ValueError, "not `data.text`"),
        ("seed", ValueError, "`section.key=value`. Received: 'seed'"),
    ],
)
def test_what_is_wrong_is_named(path, setting, error, message):
    with pytest.raises(error, match=message):
        read_config(path, [setting])


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(ValueError, match="There is no file"):
        read_config(tmp_path / "nothing.toml")
    (tmp_path / "broken.toml").write_text("run =")
    with pytest.raises(ValueError, match="broken.toml' is no TOML"):
        read_config(tmp_path / "broken.toml")
    (tmp_path / "short.toml").write_text(FILE.replace("num_heads = 2\n", ""))
    with pytest.raises(ValueError, match="`model.num_heads` is missing"):
        read_config(tmp_path / "short.toml")


def test_a_left_to_right_model_hides_nothing_and_predicts_all(path):
    config = read_config(path, ["model.causal=true", "model.next_sentence=false"])
    assert config.masking == Masking(**LEFT_TO_RIGHT)


def test_defaults_of_masking_are_the_maskers():
    parameters = inspect.signature(MaskedLMMasker).parameters
    for name, value in dataclasses.asdict(Masking()).items():
        assert parameters[name].default == value
