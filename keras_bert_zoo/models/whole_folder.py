"""Folders that are written whole or not at all."""

import contextlib
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterator


def check_free(
    folder: str | os.PathLike, may_replace: Callable[[pathlib.Path], bool], kind: str
) -> pathlib.Path:
    """Return the resolved folder if it is new, empty or may be replaced.

    Raises:
        ValueError: it holds something else than `kind`, which is what `may_replace` looks for.
    """
    folder = pathlib.Path(folder).resolve()
    free = not folder.exists() or (
        folder.is_dir() and (may_replace(folder) or not any(folder.iterdir()))
    )
    if not free:
        raise ValueError(
            f"`folder` must be new, empty or {kind}. Received: {str(folder)!r}, "
            "which holds something else."
        )
    return folder


@contextlib.contextmanager
def written_whole(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """Give a folder to write into that takes the place of `folder` at the end.

    A reader never sees half of it. On an error it is gone, and what stood there stays.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = pathlib.Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        yield building
        building.chmod(0o777 & ~_umask())
        _replace(folder, building)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise


def _replace(folder, building):
    """Put `building` in the place of `folder`; what stood there comes back if that fails."""
    if not folder.exists():
        building.rename(folder)
        return
    old = pathlib.Path(f"{building}.old")
    folder.rename(old)
    try:
        building.rename(folder)
    except BaseException:
        old.rename(folder)
        raise
    shutil.rmtree(old)


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask
