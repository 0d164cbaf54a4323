"""Checkpoints from the Hugging Face hub and from Kaggle: the one place that touches the network.

The hubs' own clients download, resume, cache and show progress. Here it is chosen what of a
repository is fetched, what came is checked, and a failure becomes one error that says what to do.
"""

import contextlib
import errno
import fnmatch
import hashlib
import json
import os
import pathlib
import re
import warnings

from keras_bert_zoo.checkpoints import huggingface, keras_hub

# === Errors ===

# What a client raised, by the names of its classes, its HTTP status or its error number; what is
# raised in its place, and the words. The first row that fits is taken, and what fits none is raised
# as it is. A client's own words may repeat what a server said, addresses and tokens included, so
# that they are left out.
_HUB_ERRORS = (
    (
        {"GatedRepoError"},
        ValueError,
        "The repository {name!r} is gated. Ask for access on its page, then log in with "
        "`hf auth login`.",
    ),
    (
        {"RevisionNotFoundError"},
        ValueError,
        "The repository {name!r} has no revision {revision!r}. Its page lists its branches, tags "
        "and commits.",
    ),
    (
        {"RepositoryNotFoundError"},
        ValueError,
        "The Hugging Face hub has no repository {name!r}, or it is private. Check the name; for a "
        "private one log in with `hf auth login`.",
    ),
    (
        {"HFValidationError"},
        ValueError,
        "`source` must be hf://owner/name[@revision]. {error}",
    ),
    (
        {401, 403},
        ValueError,
        "The Hugging Face hub refuses {name!r} to your token, if you have one (HTTP {status}). Log "
        "in with `hf auth login` and a token that may read it.",
    ),
    (
        {429},
        ConnectionError,
        "The Hugging Face hub has had too many requests (HTTP 429) to give {name!r}. Wait some "
        "minutes and try again; logged in with `hf auth login` you may ask more.",
    ),
    (
        {"HfHubHTTPError"},
        ConnectionError,
        "The Hugging Face hub did not give {name!r}: it answered with HTTP {status}. Try again "
        "later.",
    ),
    (
        {"OfflineModeIsEnabled"},
        ConnectionError,
        "{name!r}, or a part of it, is not in the local cache, and HF_HUB_OFFLINE keeps it from "
        "being downloaded. Unset that once, or load a folder.",
    ),
    (
        {"TimeoutException"},
        ConnectionError,
        "{name!r} is not in the local cache and the Hugging Face hub did not answer in time. Try "
        "again; HF_HUB_ETAG_TIMEOUT and HF_HUB_DOWNLOAD_TIMEOUT (seconds) give it longer.",
    ),
    (
        {"FileMetadataError", "JSONDecodeError"},
        ConnectionError,
        "{name!r} is not in the local cache, and what answered is not a Hugging Face hub, perhaps "
        "the page of a proxy. Check HF_ENDPOINT and your proxy.",
    ),
    (
        {"ENOSPC"},
        OSError,
        "The disk is full: {name!r} could not be downloaded. Make room, or set HF_HOME to a folder "
        "on another disk.",
    ),
    (
        # hf_xet's errors, by which large files come, are of the last kind.
        {"HTTPError", "ConnectionError", "OSError", "RuntimeError"},
        ConnectionError,
        "{name!r} is not in the local cache and the Hugging Face hub could not be reached, or the "
        "connection broke. Try again once you are connected, or load a folder.",
    ),
)
_KAGGLE_ERRORS = (
    (
        {404},
        ValueError,
        "Kaggle has no model {name!r}. Its page says how it is called and which versions it has.",
    ),
    (
        {401, 403},
        ValueError,
        "The Kaggle model {name!r} is gated or private. Ask for access on its page, then log in "
        "with `kagglehub.login()`.",
    ),
    (
        {"KaggleApiHTTPError"},
        ConnectionError,
        "Kaggle did not give {name!r}: it answered with HTTP {status}. Try again later.",
    ),
    (
        {"DataCorruptionError"},
        ConnectionError,
        "A file of {name!r} came from Kaggle with another content than its hash, and was deleted. "
        "Try again.",
    ),
    (
        {"JSONDecodeError"},
        ConnectionError,
        "What answered for {name!r} is not Kaggle, perhaps the page of a proxy. Check your proxy.",
    ),
    (
        {"ENOSPC"},
        OSError,
        "The disk is full: {name!r} could not be downloaded. Make room, or set KAGGLEHUB_CACHE to "
        "a folder on another disk.",
    ),
    (
        {"ConnectionError", "OSError"},
        ConnectionError,
        "{name!r} is not in the local cache and Kaggle could not be reached, or the connection "
        "broke. Try again once you are connected, or load a folder; a model in the cache needs no "
        "connection if its /version is stated.",
    ),
    (
        {"ValueError"},
        ValueError,
        "`source` must be kaggle://owner/model/keras/variation[/version]. {error}",
    ),
)


@contextlib.contextmanager
def _clear_errors(rows, **words):
    try:
        yield
    except Exception as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        number = getattr(error, "errno", None)
        marks = {kind.__name__ for kind in type(error).__mro__} | {status}
        if number is not None:
            # An error of this machine, which says by itself what and where it is.
            marks = marks - {"OSError"} | {errno.errorcode.get(number)}
        for fitting, kind, text in rows:
            if marks & fitting:
                raise kind(text.format(status=status, error=error, **words)) from None
        raise


# === Hugging Face ===

_SMALL_FILES = ["*.json", "*.txt"]
# The weights that `checkpoints` reads, the best first; of a kind in shards, its index names them.
_WEIGHTS = ("model.safetensors", "pytorch_model.bin", "*.weights.h5", "bert_model.ckpt.*")


def from_hugging_face(
    repo: str, revision: str | None = None, load_weights: bool = True
) -> pathlib.Path:
    """Return the folder of the local cache with a repository's files, fetched if need be.

    Args:
        repo: `owner/name`.
        revision: a branch, a tag or a commit; None is the main branch.
        load_weights: False leaves the weights at the hub.

    Raises:
        ValueError: there is no such repository or revision, it is not for you, or a shard of
            its weights is missing.
        ConnectionError: the hub did not give the files and they are not in the cache, or it
            gives others than it says.
        OSError: the disk is full.
    """
    with _clear_errors(_HUB_ERRORS, name=repo, revision=revision):
        unreachable = _why_unreachable(repo, revision)
    folder = _fetch(repo, revision, _SMALL_FILES, unreachable)
    names = _weight_files(repo, folder) if load_weights else []
    if names:
        # Of the same commit, though the branch may have moved on.
        _fetch(repo, folder.name, names, unreachable)
    return folder


def _why_unreachable(repo, revision):
    """Return the error that keeps the hub's answer from us, or None; a wrong revision is raised.

    The client asks the same by itself, but would wait for the answer without an end.
    """
    from huggingface_hub import HfApi, constants, errors

    try:
        HfApi().model_info(repo, revision=revision, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except (errors.RevisionNotFoundError, errors.HFValidationError):
        raise
    except Exception as error:
        # Whatever it is, the cache will do; if that has not got the files, this is the reason.
        return error
    return None


def _fetch(repo, revision, patterns, unreachable):
    """Return the cache's folder of a revision; in it the files of the patterns, all whole."""
    import huggingface_hub
    from huggingface_hub import errors

    for _ in range(2):
        with _clear_errors(_HUB_ERRORS, name=repo, revision=revision):
            try:
                folder = huggingface_hub.snapshot_download(
                    repo,
                    revision=revision,
                    allow_patterns=patterns,
                    local_files_only=unreachable is not None,
                )
            except errors.LocalEntryNotFoundError as error:
                raise unreachable or error.__cause__ or error from None
        folder = pathlib.Path(folder)
        damaged = _damaged(folder, patterns)
        if not damaged:
            return folder
        for file in damaged:
            warnings.warn(
                f"{str(file)!r} has another content than the hub states by its hash. It was "
                "deleted.",
                stacklevel=5,
            )
            (file.parent / os.readlink(file)).unlink(missing_ok=True)
            file.unlink(missing_ok=True)
    raise ConnectionError(
        f"What comes for {[file.name for file in damaged]} of {repo!r} has another content than "
        "the hub states by its hash. Nothing of it was kept; try again later, or from another "
        "network."
    )


def _weight_files(repo, folder):
    """Return which of a repository's files are the weights to fetch; [] where it has none.

    Raises:
        ValueError: the repository lacks a file that its index names.
    """
    import huggingface_hub
    from huggingface_hub import errors

    try:
        tree = huggingface_hub.get_cached_repo_tree(repo, revision=folder.name)
        listed = {file.path for file in tree}
    except errors.CachedRepoTreeNotFoundError:
        # The cache is of an older client, and the hub out of reach.
        listed = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
    encoder = huggingface.encoder_folder(folder).relative_to(folder)
    for kind in _WEIGHTS:
        index = folder / encoder / f"{kind}.index.json"
        if index.exists():
            shards = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
            names = sorted({(encoder / shard).as_posix() for shard in shards})
            missing = [name for name in names if name not in listed]
            if missing:
                raise ValueError(
                    f"The repository {repo!r} lacks {missing}, which its {index.name} names. Its "
                    "owner has to add what is missing; another revision may have it."
                )
        else:
            names = fnmatch.filter(listed, (encoder / kind).as_posix())
        if names:
            return names
    return []


def _damaged(folder, patterns):
    """Return the files that the patterns fit and whose content has another hash than is stated."""
    from huggingface_hub.utils import filter_repo_objects

    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
    return [
        files[name]
        for name in filter_repo_objects(files, allow_patterns=patterns)
        if files[name].is_file() and not _has_its_hash(files[name])
    ]


def _has_its_hash(file):
    """Say whether a file's content is what it is called by in the cache, if that is a hash.

    The cache keeps a file under the hub's hash of it, SHA-256 for a large one and git's for the
    others, and links to it.
    """
    stated = os.path.basename(os.readlink(file)) if file.is_symlink() else ""
    if re.fullmatch("[0-9a-f]{64}", stated):
        with open(file, "rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest() == stated
    if re.fullmatch("[0-9a-f]{40}", stated):
        content = file.read_bytes()
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest() == stated
    return True


# === Kaggle ===


def from_kaggle(handle: str, load_weights: bool = True) -> pathlib.Path:
    """Return the folder of the local cache with a Kaggle model's files, fetched if need be.

    Args:
        handle: `owner/model/keras/variation`, with `/version` if one is meant.
        load_weights: False leaves the weights at Kaggle.

    Raises:
        ImportError: kagglehub is not installed.
        ValueError: the handle is none, or Kaggle has no such model, or not for you.
        ConnectionError: Kaggle did not give the files and they are not in the cache, or they
            are damaged.
        OSError: the disk is full.
    """
    if load_weights:
        return _fetch_from_kaggle(handle)
    folder = _fetch_from_kaggle(handle, "config.json").parent
    for name in keras_hub.SMALL_FILES:
        # A model need not have them all.
        with contextlib.suppress(ValueError):
            _fetch_from_kaggle(handle, name)
    return folder


def _fetch_from_kaggle(handle, *name):
    """Return the model's folder, or the one file of it that is named."""
    try:
        import kagglehub
    except ImportError as error:
        raise ImportError(
            f"{handle!r} is on Kaggle; a download needs kagglehub: `pip install kagglehub`."
        ) from error

    for again in ({}, {"force_download": True}):
        with _clear_errors(_KAGGLE_ERRORS, name=handle):
            path = pathlib.Path(kagglehub.model_download(handle, *name, **again))
        files = [path] if path.is_file() else sorted(path.rglob("*"))
        damaged = [file.name for file in files if file.is_file() and not _is_whole(file)]
        if not damaged:
            return path
        warnings.warn(f"{damaged} of {handle!r} in {str(path)!r} are damaged.", stacklevel=5)
    raise ConnectionError(
        f"Kaggle, or what answers in its place, gives {damaged} of {handle!r} cut short or as "
        "something else. Try again later, or from another network."
    )


def _is_whole(file):
    """Say whether a file's content is of the kind that its name says; Kaggle's cache has no hashes.

    The page of a proxy that answers in Kaggle's place is nothing of what could be asked for.
    """
    import h5py

    try:
        if file.suffix == ".h5":
            h5py.File(file).close()
        elif file.suffix == ".json":
            json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    with open(file, "rb") as stream:
        return not stream.read(20).lstrip().lower().startswith((b"<!doctype", b"<html"))
