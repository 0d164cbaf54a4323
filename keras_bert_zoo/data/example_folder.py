"""The folder that pre-training examples are prepared in: its files, written whole or not at all.

Files go through Beam's file systems, so the folder may lie in a cloud's storage.
"""

import contextlib
import io
import json
import logging
import os
import uuid
from collections.abc import Mapping, Sequence

from keras_bert_zoo.preprocessing.vocabulary import vocabulary_file

FORMAT = "keras_bert_zoo examples"
VERSION = 1
SETTINGS, MANIFEST, VOCABULARY, PLOT = "settings.json", "manifest.json", "vocab.txt", "lengths.png"

_UNFINISHED = ".unfinished-"


def import_beam():
    """Return Apache Beam, or raise a ValueError that says how to install it."""
    # What Beam has to say of its optional parts is not for the user.
    disabled = logging.root.manager.disable
    logging.disable(max(disabled, logging.WARNING))
    try:
        import apache_beam
    except ImportError as error:
        raise ValueError(
            "Preparing examples needs the package apache-beam, which is not installed: "
            'pip install "keras_bert_zoo[prepare]"'
        ) from error
    finally:
        logging.disable(disabled)
    return apache_beam


def file_systems():
    """Return Beam's access to files by path, local or remote."""
    return import_beam().io.filesystems.FileSystems


def examples_name(number: int, shards: int) -> str:
    """Return the name of a shard's file.

    Example:
        >>> examples_name(3, 16)
        'examples-00003-of-00016.tfrecord'
    """
    return f"examples-{number:05}-of-{shards:05}.tfrecord"


def statistics_name(number: int, shards: int) -> str:
    """Return the name of a shard's statistics, which are written after its examples."""
    return f"statistics-{number:05}-of-{shards:05}.json"


class ExampleFolder:
    """A folder of examples that is being filled.

    Args:
        path: the folder, which need not exist yet.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = os.fspath(path)
        # In the names of what this run, its workers included, has not finished.
        self._run = uuid.uuid4().hex

    def join(self, name: str) -> str:
        """Return a file's path."""
        return file_systems().join(self.path, name)

    def names(self) -> list[str]:
        """Return the names of the files that are there."""
        if "://" in self.path:
            found = file_systems().match([self.join("*")])[0].metadata_list
            return [item.path.rsplit("/", 1)[-1] for item in found]
        return os.listdir(self.path) if os.path.isdir(self.path) else []

    def read_json(self, name: str):
        """Return what a JSON file holds."""
        with file_systems().open(self.join(name)) as file:
            return json.loads(file.read())

    def unfinished(self, name: str) -> str:
        """Return the path that a file is written under until it is whole."""
        return self.join(f"{name}{_UNFINISHED}{self._run}-{uuid.uuid4().hex}")

    def write(self, name: str, content: bytes) -> None:
        """Write a file, whole or not at all."""
        path = self.unfinished(name)
        with file_systems().create(path) as file:
            file.write(content)
        self.finish(path, name)

    def finish(self, path: str, name: str) -> None:
        """Give a file that is whole its name."""
        file_systems().rename([path], [self.join(name)])

    def write_json(self, name: str, content) -> None:
        """Write a JSON file."""
        self.write(name, as_json(content))

    def clean(self, others: bool = False) -> None:
        """Delete what this run, or any, has not finished, and a local folder with nothing in it."""
        mark = _UNFINISHED if others else f"{_UNFINISHED}{self._run}"
        unfinished = [self.join(name) for name in self.names() if mark in name]
        if unfinished:
            file_systems().delete(unfinished)
        with contextlib.suppress(OSError):
            os.rmdir(self.path)

    def check(self) -> None:
        """Refuse a folder, with a ValueError, that holds something else than examples."""
        if os.path.isfile(self.path):
            raise ValueError(f"The output must be a folder. Received: the file {self.path!r}.")
        names = [name for name in self.names() if _UNFINISHED not in name]
        if names and SETTINGS not in names:
            raise ValueError(
                f"The folder {self.path!r} must be new, empty or one that `prepare` began. "
                f"It holds {min(names)!r}."
            )

    def claim(self, described: Mapping, vocabulary: Sequence[str]) -> None:
        """Write what the examples are made from, or check that it is what the folder has.

        Raises:
            ValueError: the folder holds examples made from other things, which are named.
        """
        names = self.names()
        if SETTINGS in names:
            _check_same(self.read_json(SETTINGS), json.loads(as_json(described)), self.path)
        else:
            self.write_json(SETTINGS, described)
        if VOCABULARY not in names:
            self.write(VOCABULARY, vocabulary_file(vocabulary))


def as_json(content) -> bytes:
    """Return the bytes of a JSON file."""
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


def length_plot(lengths: Sequence[int]) -> bytes:
    """Return a PNG of how many examples have each length."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    axes.bar(range(len(lengths)), lengths, width=1.0)
    axes.set(
        xlabel="pieces, marks included", ylabel="examples", yscale="symlog", xlim=(0, len(lengths))
    )
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=100, metadata={"Software": None})
    return image.getvalue()


def _check_same(there, now, path):
    def flat(described):
        settings = dict(described["settings"])
        settings |= settings.pop("tokenizer")
        inputs = sorted([item["sha256"], item["format"]] for item in described["inputs"])
        versions = {name: described[name] for name in ("format", "version", "package")}
        return {**versions, **settings, "inputs": inputs}

    there_flat, now_flat = flat(there), flat(now)
    different = [name for name in now_flat if there_flat.get(name) != now_flat[name]]
    if not different:
        return
    parts = [
        f"{name} ({there_flat.get(name)!r} there, {now_flat[name]!r} now)"
        for name in different
        if name != "inputs"
    ]
    if "inputs" in different:
        known, given = (
            {(item["path"], item["sha256"], item["format"]) for item in described["inputs"]}
            for described in (there, now)
        )
        parts.append(f"inputs ({', '.join(sorted({path for path, _, _ in known ^ given}))})")
    raise ValueError(
        f"The folder {path!r} holds examples made from something else: {'; '.join(parts)}. "
        "Go on with what is there, or give another folder."
    )
