"""What the records of pre-training and fine-tuning say alike, and how they are written."""

import json
import os
import platform
from importlib import metadata
from typing import Any

from keras_bert_zoo.preprocessing import BertTokenizer
from keras_bert_zoo.training.phase_data import sha256
from keras_bert_zoo.version import __version__
from keras_bert_zoo.whole_files import write_whole

_LIBRARIES = ("keras", "numpy", "tensorflow", "tensorflow-text", "jax", "jaxlib", "torch")


def versions() -> dict[str, str]:
    """Return the versions of Python, this package and the libraries that are installed.

    Example:
        >>> versions()["keras"] == keras.__version__
        True
    """
    found = {"python": platform.python_version(), "keras_bert_zoo": __version__}
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def vocabulary_facts(tokenizer: BertTokenizer) -> dict[str, Any]:
    """Return a vocabulary's hash and size, and how the tokenizer treats words."""
    facts = tokenizer.get_config()
    vocabulary = facts.pop("vocabulary")
    content = "".join(f"{piece}\n" for piece in vocabulary).encode()
    return {"sha256": sha256(content), "size": len(vocabulary), **facts}


def write_json(path: str | os.PathLike, content: Any) -> None:
    """Write a JSON file, whole or not at all.

    Raises:
        TypeError: the content is none that JSON can say.

    Example:
        >>> import pathlib, tempfile
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "record.json"
        >>> write_json(file, {"seed": 0})
        >>> file.read_text().split()
        ['{', '"seed":', '0', '}']
    """
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    write_whole(path, text.encode())
