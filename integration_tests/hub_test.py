"""Downloads from hubs that this file serves on loopback, in order and out of it."""

import base64
import errno
import hashlib
import http.server
import io
import json
import logging
import os
import re
import subprocess
import sys
import threading
import time
import traceback
import urllib.parse

import h5py
import keras
import numpy as np
import pytest
import safetensors.numpy

import keras_bert_zoo as zoo
from keras_bert_zoo import downloads
from keras_bert_zoo.checkpoints import huggingface

REPO = "owner/tiny"
HANDLE = "owner/bert/keras/tiny"
TOKEN = "hf_a-secret-that-nobody-may-see"
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film", "##s"]
TABLE = "embeddings.word_embeddings.weight"
LARGE = (".safetensors", ".bin", ".h5", ".msgpack", ".ot", ".onnx")
PAGE = b"<!DOCTYPE html><html><body>Log in to this network first</body></html>"


# === Checkpoints ===


def tiny_tensors():
    """Return the tensors of a BERT of two layers of 8, as transformers names them."""
    shapes = {
        TABLE: (len(PIECES), 8),
        "embeddings.position_embeddings.weight": (32, 8),
        "embeddings.token_type_embeddings.weight": (2, 8),
        "embeddings.LayerNorm": 8,
        "pooler.dense": (8, 8),
    }
    for i in range(2):
        layer = f"encoder.layer.{i}"
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            shapes[f"{layer}.attention.{part}"] = (8, 8)
        shapes[f"{layer}.attention.output.LayerNorm"] = 8
        shapes[f"{layer}.intermediate.dense"] = (16, 8)
        shapes[f"{layer}.output.dense"] = (8, 16)
        shapes[f"{layer}.output.LayerNorm"] = 8
    rng = np.random.default_rng(0)
    tensors = {}
    for name, shape in shapes.items():
        if name.endswith(".weight"):
            tensors[name] = rng.normal(size=shape).astype("float32")
        else:
            tensors[f"{name}.weight"] = rng.normal(size=shape).astype("float32")
            tensors[f"{name}.bias"] = np.zeros(shape if shape == 8 else shape[0], "float32")
    return tensors


CONFIG = {
    "model_type": "bert",
    "vocab_size": len(PIECES),
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 32,
}
TENSORS = tiny_tensors()
SMALL = {
    "config.json": json.dumps(CONFIG).encode(),
    "vocab.txt": "\n".join([*PIECES, ""]).encode(),
}
WEIGHTS = safetensors.numpy.save(TENSORS)
FILES = {**SMALL, "model.safetensors": WEIGHTS}


def in_shards(whole, contents):
    """Return the files of weights in shards with their index."""
    stem, kind = whole.split(".")
    names = [f"{stem}-{i + 1:05}-of-{len(contents):05}.{kind}" for i in range(len(contents))]
    index = {"weight_map": {f"tensor_{i}": name for i, name in enumerate(names)}}
    return {
        f"{whole}.index.json": json.dumps(index).encode(),
        **dict(zip(names, contents, strict=True)),
    }


# === Hubs ===


class Hub(http.server.ThreadingHTTPServer):
    """Both hubs, as far as their clients ask.

    `repos` holds what the Hugging Face hub has, the files of each commit, and `refs` which commit
    each branch and tag is; `models` what Kaggle has, the files by handle. `faults` say what goes
    wrong: an HTTP method, the end of a path, what is done then, and how often.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answer)
        self.address = f"http://127.0.0.1:{self.server_port}"
        self.end_of_waiting = threading.Event()
        self.reset()

    def reset(self):
        self.repos, self.refs, self.models = {}, {}, {}
        self.faults, self.asked = [], []

    def handle_error(self, *_):
        """Leave a client that has gone away unsaid."""

    def publish(self, files, *, repo=REPO, refs=("main",)):
        """Make a commit of the files; return its name."""
        content = json.dumps({name: content.hex() for name, content in files.items()})
        commit = hashlib.sha1(content.encode()).hexdigest()
        self.repos.setdefault(repo, {})[commit] = files
        self.refs.update({(repo, ref): commit for ref in refs})
        return commit

    def asked_for(self, end):
        """Return the headers of the GETs of paths with that end."""
        return [head for kind, path, head in self.asked if kind == "GET" and path.endswith(end)]


class Answer(http.server.BaseHTTPRequestHandler):
    """One answer of a hub."""

    def log_message(self, *_):
        """Print nothing."""

    def do_HEAD(self):
        self.answer()

    def do_GET(self):
        self.answer()

    def do_POST(self):
        self.answer()

    def answer(self):
        length = int(self.headers.get("Content-Length", 0))
        self.body = json.loads(self.rfile.read(length) or b"{}")
        # Kaggle's client sees a proxy in the hub, and asks it for whole addresses.
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        self.server.asked.append((self.command, path, self.headers))
        what = f"{path}?{self.body.get('path', '')}" if self.command == "POST" else path
        for fault in self.server.faults:
            method, end, do, times = fault
            if self.command in method and what.endswith(end) and times:
                fault[3] -= 1
                return do(self)
        self.regular(path)

    def regular(self, path):
        _, first, *rest = path.split("/")
        if first == "api" and rest[0] == "models":
            self.describe("/".join(rest[1:3]), rest[3:])
        elif first == "api":
            self.answer_kaggle(rest[-1])
        elif first == "files":
            self.give_kaggle("/".join(rest))
        else:
            self.give_file(path)

    def send(self, status, content=b"", length=None, **headers):
        """Send an answer; `length` is what is said of the content where that is not so."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(content) if length is None else length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def send_json(self, content):
        self.send(200, json.dumps(content).encode(), Content_Type="application/json")

    # --- Hugging Face ---

    def commit(self, repo, revision):
        """Return the commit and its files, or None once it is said that there are none."""
        if repo not in self.server.repos:
            return self.send(404, X_Error_Code="RepoNotFound")
        commit = self.server.refs.get((repo, revision), revision)
        if commit not in self.server.repos[repo]:
            return self.send(404, X_Error_Code="RevisionNotFound")
        return commit, self.server.repos[repo][commit]

    def describe(self, repo, rest):
        found = self.commit(repo, "/".join(rest[1:]) or "main")
        if found is None:
            return
        commit, files = found
        if rest[:1] != ["tree"]:
            return self.send_json({"id": repo, "sha": commit, "siblings": []})
        tree = []
        for name, content in files.items():
            entry = {"type": "file", "path": name, "size": len(content), "oid": git_hash(content)}
            if name.endswith(LARGE):
                sha256 = hashlib.sha256(content).hexdigest()
                entry["lfs"] = {"oid": sha256, "size": len(content), "pointerSize": 100}
            tree.append(entry)
        self.send_json(tree)

    def give_file(self, path):
        repo, rest = path[1:].split("/resolve/")
        revision, name = rest.split("/", 1)
        found = self.commit(repo, revision)
        if found is None:
            return
        commit, files = found
        if name not in files:
            return self.send(404, X_Error_Code="EntryNotFound", X_Repo_Commit=commit)
        self.give(files[name], name, X_Repo_Commit=commit)

    def give(self, content, name, keep=None, said=None, **headers):
        """Send a file: of it `keep` bytes, and as if it had `said`."""
        digest = hashlib.sha256(content).hexdigest() if name.endswith(LARGE) else git_hash(content)
        headers = {"ETag": f'"{digest}"', "Accept_Ranges": "bytes", **headers}
        status, start, total = 200, 0, len(content) if said is None else said
        if "Range" in self.headers:
            start = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
            status = 206
            headers["Content_Range"] = f"bytes {start}-{total - 1}/{total}"
        self.send(status, content[start:keep], total - start, **headers)

    # --- Kaggle ---

    def answer_kaggle(self, request):
        ask = self.body
        handle = f"{ask['ownerSlug']}/{ask['modelSlug']}/keras/{ask['instanceSlug']}"
        if handle not in self.server.models:
            return self.send(404)
        files = self.server.models[handle]
        if request == "GetModelInstance":
            return self.send_json({"versionNumber": 3})
        if request == "ListModelInstanceVersionFiles":
            return self.send_json({"files": [{"name": name} for name in files]})
        if ask["path"] not in files:
            return self.send(404)
        self.send(302, Location=f"http://localhost/files/{handle}/{ask['path']}")

    def give_kaggle(self, path):
        *handle, name = path.split("/", 4)
        content = self.server.models["/".join(handle)][name]
        self.give(content, name, x_goog_hash=f"md5={md5(content)}")


def git_hash(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def md5(content):
    return base64.b64encode(hashlib.md5(content).digest()).decode()


# === Faults ===


def fails(status, **headers):
    """Answer with a status, and repeat the token in the body."""

    def do(answer):
        echo = {"error": f"Failed with {answer.headers.get('Authorization')}"}
        answer.send(status, json.dumps(echo).encode(), **headers)

    return do


def shows_page(answer):
    answer.send(200, PAGE, Content_Type="text/html")


def is_slow(answer):
    answer.server.end_of_waiting.wait(10)


def gives(content=WEIGHTS, **changes):
    """Give a file in the place of another, under the other's names."""

    def do(answer):
        commit = answer.path.split("/resolve/")[1].split("/")[0]
        hashes = hashlib.sha256(WEIGHTS).hexdigest()
        answer.give(
            content, "model.safetensors", X_Repo_Commit=commit, X_Linked_Etag=hashes, **changes
        )

    return do


breaks_off = gives(keep=5000)
is_too_short = gives(keep=5000, said=5000)
is_another = gives(WEIGHTS[:-4] + b"\0\1\2\3")


# === Fixtures ===


@pytest.fixture(scope="module")
def server():
    with Hub() as hub:
        thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield hub
        hub.end_of_waiting.set()
        hub.shutdown()
        thread.join()


@pytest.fixture
def said(caplog):
    """Return what the clients' loggers say, who keep it from the common one."""
    for name in ("huggingface_hub", "kagglehub"):
        logging.getLogger(name).addHandler(caplog.handler)
    yield caplog
    for name in ("huggingface_hub", "kagglehub"):
        logging.getLogger(name).removeHandler(caplog.handler)


@pytest.fixture
def hub(server, monkeypatch, tmp_path, said):
    """Point the Hugging Face client to a hub with one repository, with a token and a new cache."""
    import huggingface_hub
    from huggingface_hub import constants

    server.reset()
    server.publish(FILES)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    # What HF_ENDPOINT and HF_HOME set when the client is first imported.
    monkeypatch.setattr(constants, "ENDPOINT", server.address)
    template = server.address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    # Small pieces, of which some arrive before a connection breaks, and no waits between tries.
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    huggingface_hub.close_session()
    yield server
    assert TOKEN not in said.text


@pytest.fixture
def kaggle(server, monkeypatch, tmp_path, said):
    """Make the hub the proxy that Kaggle's client asks, with a token and a new cache."""
    pytest.importorskip("kagglehub")
    server.reset()
    server.models[HANDLE] = KAGGLE_FILES
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", server.address)
    # The address that this stands for is http://localhost.
    monkeypatch.setenv("KAGGLE_API_ENVIRONMENT", "LOCALHOST")
    monkeypatch.setenv("KAGGLE_API_TOKEN", TOKEN)
    monkeypatch.setenv("KAGGLEHUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("kagglehub.clients.CHUNK_SIZE", 100)
    # It looks through all modules for the one that has called, which takes longer than the rest.
    monkeypatch.setattr("kagglehub.clients.get_user_agent", lambda: "test")
    yield server
    assert TOKEN not in said.text


def files_in(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def error_of(kind, download, *arguments):
    """Return the words of the error that a download ends with; no token and no trace is in it."""
    with pytest.raises(kind) as caught:
        download(*arguments)
    shown = "".join(traceback.format_exception(caught.value))
    assert TOKEN not in shown
    assert "During handling" not in shown and "direct cause" not in shown
    assert type(caught.value) is kind
    return str(caught.value)


def go_offline(monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


# === Hugging Face ===


def test_a_model_is_loaded_from_the_hub(hub):
    backbone = zoo.from_preset(f"hf://{REPO}")
    table = backbone.get_layer("embeddings").token_embedding.embeddings
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(table), TENSORS[TABLE])
    assert backbone.preprocessor.tokenizer.vocabulary == PIECES


OTHER_FORMATS = {
    name: b"of another library"
    for name in (
        "tf_model.h5",
        "flax_model.msgpack",
        "rust_model.ot",
        "onnx/model.onnx",
        "model.fp16.safetensors",
        "coreml/weights/weight.bin",
    )
}
BIN = {"pytorch_model.bin": b"a pickle"}
SHARDS = in_shards("model.safetensors", [b"one", b"two"])
BIN_SHARDS = in_shards("pytorch_model.bin", [b"one", b"two"])
MODULES = [
    {"type": "sentence_transformers.models.Transformer", "path": "0_Transformer"},
    {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
]
SENTENCE = {"modules.json": json.dumps(MODULES).encode(), "1_Pooling/config.json": b"{}"}
SUBFOLDER = {"0_Transformer/pytorch_model.bin": b"a pickle", "0_Transformer/config.json": b"{}"}
TF1 = {f"bert_model.ckpt.{part}": b"tensors" for part in ("index", "data-00000-of-00001")}


@pytest.mark.backend_free
@pytest.mark.parametrize(
    "wanted, unwanted",
    [
        (FILES, {**BIN, **OTHER_FORMATS}),
        ({**SMALL, **BIN}, OTHER_FORMATS),
        ({**SMALL, **SHARDS}, {**BIN, "other-00001-of-00002.safetensors": b"another's"}),
        ({**SMALL, **BIN_SHARDS}, OTHER_FORMATS),
        ({**SENTENCE, **SUBFOLDER}, BIN),
        ({**SMALL, "model.weights.h5": b"of KerasHub", "task.weights.h5": b""}, OTHER_FORMATS),
        ({"bert_config.json": b"{}", "vocab.txt": b"", **TF1}, {"notes.md": b""}),
        (SMALL, OTHER_FORMATS),
    ],
    ids=["safetensors", "bin", "shards", "bin_shards", "subfolder", "keras_hub", "tf1", "none"],
)
def test_of_the_weights_those_are_fetched_that_are_read(hub, wanted, unwanted):
    hub.publish({**unwanted, **wanted})
    small = downloads.from_hugging_face(REPO, load_weights=False)
    assert not [name for name in files_in(small) if not name.endswith((".json", ".txt"))]
    assert files_in(downloads.from_hugging_face(REPO)) == wanted


@pytest.mark.backend_free
def test_a_pytorch_file_alone_is_fetched_and_read(hub):
    torch = pytest.importorskip("torch")
    content = io.BytesIO()
    torch.save({name: torch.tensor(value) for name, value in TENSORS.items()}, content)
    hub.publish({**SMALL, "pytorch_model.bin": content.getvalue()})
    with huggingface.open_tensors(downloads.from_hugging_face(REPO)) as tensors:
        np.testing.assert_array_equal(tensors[TABLE], TENSORS[TABLE])


@pytest.mark.backend_free
def test_a_shard_that_is_missing_is_named_before_the_others_are_fetched(hub):
    files = dict(SHARDS)
    del files["model-00002-of-00002.safetensors"]
    hub.publish({**SMALL, **files})
    message = error_of(ValueError, downloads.from_hugging_face, REPO)
    assert "lacks ['model-00002-of-00002.safetensors']" in message
    assert not hub.asked_for("safetensors")
    hub.publish({**SMALL, **SHARDS})
    assert files_in(downloads.from_hugging_face(REPO)) == {**SMALL, **SHARDS}


@pytest.mark.backend_free
def test_a_revision_is_a_branch_a_tag_or_a_commit(hub, monkeypatch):
    first = hub.publish({**FILES, "vocab.txt": b"first"}, refs=("v1.0", "refs/pr/2"))
    hub.publish({**FILES, "vocab.txt": b"second"}, refs=("main",))

    def vocabulary(revision):
        return (downloads.from_hugging_face(REPO, revision) / "vocab.txt").read_bytes()

    revisions = (None, "main", "v1.0", "refs/pr/2", first)
    assert [vocabulary(name) for name in revisions] == [b"second"] * 2 + [b"first"] * 3
    # A branch moves, a commit does not.
    hub.publish({**FILES, "vocab.txt": b"third"}, refs=("main",))
    assert (vocabulary("main"), vocabulary(first)) == (b"third", b"first")
    go_offline(monkeypatch)
    assert (vocabulary("main"), vocabulary(first)) == (b"third", b"first")


@pytest.mark.backend_free
def test_what_is_in_the_cache_is_not_fetched_again_and_needs_no_hub(hub, monkeypatch):
    from huggingface_hub import constants

    folder = downloads.from_hugging_face(REPO)
    assert len(hub.asked_for("model.safetensors")) == 1
    assert downloads.from_hugging_face(REPO) == folder
    assert len(hub.asked_for("model.safetensors")) == 1
    hub.asked.clear()
    for status in (401, 403, 404, 429, 500):
        hub.faults = [["GET HEAD", "", fails(status), -1]]
        assert downloads.from_hugging_face(REPO) == folder
    hub.faults = [["GET HEAD", "", shows_page, -1]]
    assert downloads.from_hugging_face(REPO) == folder
    hub.asked.clear()
    go_offline(monkeypatch)
    assert files_in(downloads.from_hugging_face(REPO)) == FILES
    assert not hub.asked
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert downloads.from_hugging_face(REPO) == folder


@pytest.mark.backend_free
@pytest.mark.parametrize("known", [False, True], ids=["nothing", "no_weights"])
def test_offline_without_the_files_is_one_clear_error(hub, monkeypatch, known):
    if known:
        downloads.from_hugging_face(REPO, load_weights=False)
    go_offline(monkeypatch)
    message = error_of(ConnectionError, zoo.from_preset, f"hf://{REPO}")
    assert "not in the local cache, and HF_HUB_OFFLINE" in message


@pytest.mark.backend_free
@pytest.mark.parametrize(
    "repo, revision, kind, message",
    [
        ("owner/nothing", None, ValueError, "has no repository 'owner/nothing', or it is private"),
        (REPO, "v9", ValueError, "'owner/tiny' has no revision 'v9'"),
        (REPO, "0" * 40, ValueError, "'owner/tiny' has no revision '0000"),
        ("not a name", None, ValueError, "must be hf://owner/name"),
    ],
)
def test_what_the_hub_does_not_have_is_said(hub, repo, revision, kind, message):
    assert message in error_of(kind, downloads.from_hugging_face, repo, revision)


INFO = f"api/models/{REPO}"
TOO_MANY = "too many requests"
BAD_TOKEN = {"X_Error_Message": "Invalid credentials in Authorization header"}


@pytest.mark.backend_free
@pytest.mark.parametrize(
    "method, end, fault, kind, message",
    [
        ("HEAD", "", fails(403, X_Error_Code="GatedRepo"), ValueError, "is gated. Ask for access"),
        ("GET", INFO, fails(401, X_Error_Code="RepoNotFound"), ValueError, "or it is private"),
        ("GET", INFO, fails(401, **BAD_TOKEN), ValueError, "refuses 'owner/tiny' to your token"),
        ("GET HEAD", "", fails(403), ValueError, "refuses 'owner/tiny' to your token"),
        ("GET", INFO, fails(429), ConnectionError, TOO_MANY),
        ("HEAD", "vocab.txt", fails(429), ConnectionError, TOO_MANY),
        ("GET", "vocab.txt", fails(429), ConnectionError, TOO_MANY),
        ("GET HEAD", "", fails(500), ConnectionError, "answered with HTTP 500"),
        ("HEAD", "vocab.txt", fails(404), ConnectionError, "answered with HTTP 404"),
        ("GET", "model.safetensors", fails(503), ConnectionError, "answered with HTTP 503"),
        ("GET HEAD", "", shows_page, ConnectionError, "not a Hugging Face hub"),
        ("HEAD", "config.json", shows_page, ConnectionError, "not a Hugging Face hub"),
        ("GET", "config.json", shows_page, ConnectionError, "or the connection broke"),
        ("GET", "model.safetensors", shows_page, ConnectionError, "or the connection broke"),
        ("GET", "model.safetensors", gives(keep=0), ConnectionError, "or the connection broke"),
    ],
)
def test_a_failure_is_one_clear_error_and_forgotten_when_it_is_over(
    hub, method, end, fault, kind, message
):
    hub.faults = [[method, end, fault, -1]]
    assert message in error_of(kind, downloads.from_hugging_face, REPO)
    assert any(head.get("Authorization") == f"Bearer {TOKEN}" for *_, head in hub.asked)
    hub.faults = []
    assert files_in(downloads.from_hugging_face(REPO)) == FILES


@pytest.mark.backend_free
def test_no_hub_at_all_is_one_clear_error(hub, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    message = error_of(ConnectionError, downloads.from_hugging_face, REPO)
    assert "not in the local cache and the Hugging Face hub could not be reached" in message


@pytest.mark.backend_free
def test_a_broken_connection_is_taken_up_where_it_broke(hub):
    hub.faults = [["GET", "model.safetensors", breaks_off, 1]]
    assert files_in(downloads.from_hugging_face(REPO)) == FILES
    ranges = [head.get("Range") for head in hub.asked_for("model.safetensors")]
    assert ranges == [None, "bytes=5000-"]


@pytest.mark.backend_free
@pytest.mark.parametrize("fault", [is_too_short, is_another], ids=["cut_short", "another"])
def test_a_file_of_another_hash_is_fetched_again_or_refused(hub, fault):
    hub.faults = [["GET HEAD", "model.safetensors", fault, 2]]
    with pytest.warns(UserWarning, match="another content than the hub states"):
        assert files_in(downloads.from_hugging_face(REPO)) == FILES
    hub.publish({**FILES, "vocab.txt": b"another commit"}, repo="owner/other")
    hub.faults = [["GET HEAD", "model.safetensors", fault, -1]]
    with pytest.warns(UserWarning, match="It was deleted"):
        message = error_of(ConnectionError, downloads.from_hugging_face, "owner/other")
    assert "['model.safetensors'] of 'owner/other' has another content" in message


@pytest.mark.backend_free
@pytest.mark.parametrize("name", sorted(FILES))
def test_a_damaged_file_in_the_cache_is_never_loaded(hub, monkeypatch, name):
    file = downloads.from_hugging_face(REPO) / name
    file.write_bytes(FILES[name][:-2])
    with pytest.warns(UserWarning, match=f"{name}' has another content"):
        assert files_in(downloads.from_hugging_face(REPO)) == FILES
    file.write_bytes(FILES[name] + b" ")
    go_offline(monkeypatch)
    with pytest.warns(UserWarning, match=f"{name}' has another content"):
        message = error_of(ConnectionError, zoo.from_preset, f"hf://{REPO}")
    assert "a part of it, is not in the local cache" in message


@pytest.mark.backend_free
@pytest.mark.parametrize(
    "method, end", [("GET", INFO), ("HEAD", "config.json"), ("GET", "vocab.txt")]
)
def test_a_hub_that_does_not_answer_is_not_waited_for_longer_than_said(
    hub, monkeypatch, method, end
):
    hub.faults = [[method, end, is_slow, -1]]
    with monkeypatch.context() as patch:
        for name in ("HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT"):
            patch.setattr(f"huggingface_hub.constants.{name}", 0.05)
        patch.setattr("huggingface_hub.file_download._ETAG_RETRY_TIMEOUT", 0.05)
        message = error_of(ConnectionError, downloads.from_hugging_face, REPO)
    assert "did not answer in time" in message and "HF_HUB_DOWNLOAD_TIMEOUT" in message
    hub.faults = []
    assert files_in(downloads.from_hugging_face(REPO)) == FILES


@pytest.mark.backend_free
@pytest.mark.parametrize(
    "error, kind, message",
    [
        (OSError(errno.ENOSPC, "No space left"), OSError, "The disk is full.*HF_HOME"),
        # What the client's way of large files says of a broken connection.
        (RuntimeError(f"Task error: {TOKEN}"), ConnectionError, "or the connection broke"),
    ],
)
def test_an_error_in_the_middle_of_a_file_is_said_and_leaves_no_half_file(
    hub, monkeypatch, error, kind, message
):
    def http_get(url, file, **_):
        file.write(b"half")
        raise error

    with monkeypatch.context() as patch:
        patch.setattr("huggingface_hub.file_download.http_get", http_get)
        assert re.search(message, error_of(kind, downloads.from_hugging_face, REPO))
    assert files_in(downloads.from_hugging_face(REPO)) == FILES


@pytest.mark.backend_free
@pytest.mark.slow
def test_two_processes_download_the_same_at_once(server, tmp_path):
    server.reset()
    server.publish(FILES)
    program = (
        "from keras_bert_zoo import downloads, checkpoints\n"
        f"folder = downloads.from_hugging_face({REPO!r})\n"
        "with checkpoints.huggingface.open_tensors(folder) as tensors:\n"
        f"    print(tensors[{TABLE!r}].tobytes().hex())\n"
    )
    environment = {
        **os.environ,
        "HF_ENDPOINT": server.address,
        "HF_HOME": str(tmp_path),
        "NO_PROXY": "127.0.0.1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    both = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    printed = [process.communicate() for process in both]
    assert [out for out, _ in printed] == [TENSORS[TABLE].tobytes().hex() + "\n"] * 2, printed
    # No progress is shown, and it is the only thing that the clients write.
    assert "%|" not in printed[0][1] + printed[1][1]


# === Kaggle ===


def h5_file():
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        file["table"] = TENSORS[TABLE]
    return content.getvalue()


KAGGLE_FILES = {
    "config.json": b'{"registered_name": "keras_hub>BertBackbone"}',
    "model.weights.h5": h5_file(),
    "tokenizer.json": b"{}",
    "assets/tokenizer/vocabulary.txt": SMALL["vocab.txt"],
}
POST = "DownloadModelInstanceVersion?"


@pytest.mark.backend_free
def test_a_kaggle_model_comes_whole_or_without_its_weights_and_then_from_the_cache(kaggle):
    small = downloads.from_kaggle(HANDLE, load_weights=False)
    names = {name for name in KAGGLE_FILES if not name.endswith(".h5")}
    assert set(files_in(small)) == names and not kaggle.asked_for(".h5")
    folder = downloads.from_kaggle(HANDLE)
    assert files_in(folder) == KAGGLE_FILES and folder == small
    kaggle.asked.clear()
    assert downloads.from_kaggle(f"{HANDLE}/3") == folder
    assert not kaggle.asked


@pytest.mark.backend_free
@pytest.mark.parametrize(
    "end, fault, kind, message",
    [
        ("GetModelInstance?", fails(404), ValueError, "Kaggle has no model"),
        (f"{POST}config.json", fails(403), ValueError, "is gated or private"),
        ("GetModelInstance?", fails(401), ValueError, "is gated or private"),
        ("GetModelInstance?", fails(429), ConnectionError, "answered with HTTP 429"),
        (f"{POST}model.weights.h5", fails(500), ConnectionError, "answered with HTTP 500"),
        ("GetModelInstance?", shows_page, ConnectionError, "is not Kaggle"),
        (f"{POST}config.json", shows_page, ConnectionError, "gives ['config.json']"),
        (f"{POST}model.weights.h5", shows_page, ConnectionError, "gives ['model.weights.h5']"),
        (f"{POST}assets/tokenizer/vocabulary.txt", shows_page, ConnectionError, "gives ['vocab"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*are damaged")
def test_kaggles_failure_is_one_clear_error_and_forgotten_when_it_is_over(
    kaggle, end, fault, kind, message
):
    kaggle.faults = [["POST", end, fault, -1]]
    assert message in error_of(kind, downloads.from_kaggle, HANDLE)
    assert any(head.get("Authorization") == f"Bearer {TOKEN}" for *_, head in kaggle.asked)
    kaggle.faults = []
    assert files_in(downloads.from_kaggle(HANDLE)) == KAGGLE_FILES


@pytest.mark.backend_free
def test_a_broken_download_from_kaggle_is_taken_up_the_next_time(kaggle):
    def do(answer):
        answer.give(KAGGLE_FILES["model.weights.h5"], ".h5", keep=600)

    kaggle.faults = [["GET", ".h5", do, 1]]
    message = error_of(ConnectionError, downloads.from_kaggle, HANDLE)
    assert "or the connection broke" in message
    assert files_in(downloads.from_kaggle(HANDLE)) == KAGGLE_FILES
    ranges = [head.get("Range") for head in kaggle.asked_for(".h5")]
    assert ranges == [None, None, "bytes=600-"]


@pytest.mark.backend_free
def test_a_file_of_another_hash_than_kaggles_is_refused(kaggle):
    def do(answer):
        answer.give(KAGGLE_FILES["model.weights.h5"], ".h5", x_goog_hash=f"md5={md5(b'another')}")

    kaggle.faults = [["GET", ".h5", do, 1]]
    message = error_of(ConnectionError, downloads.from_kaggle, HANDLE)
    assert "another content than its hash" in message
    assert files_in(downloads.from_kaggle(HANDLE)) == KAGGLE_FILES


@pytest.mark.backend_free
@pytest.mark.parametrize("name", ["config.json", "model.weights.h5"])
def test_a_file_cut_short_in_kaggles_cache_is_fetched_again(kaggle, name):
    (downloads.from_kaggle(HANDLE) / name).write_bytes(KAGGLE_FILES[name][:-8])
    with pytest.warns(UserWarning, match="are damaged"):
        assert files_in(downloads.from_kaggle(HANDLE)) == KAGGLE_FILES


@pytest.mark.backend_free
def test_without_kaggle_only_a_stated_version_in_the_cache_is_found(kaggle, monkeypatch):
    folder = downloads.from_kaggle(HANDLE)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert downloads.from_kaggle(f"{HANDLE}/3") == folder
    message = error_of(ConnectionError, downloads.from_kaggle, HANDLE)
    assert "needs no connection if its /version is stated" in message
