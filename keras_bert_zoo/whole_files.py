"""Files that are there with all their content, or not at all."""

import contextlib
import os
import pathlib


def write_whole(path: str | os.PathLike, content: bytes) -> None:
    """Write a file, brought onto the disk before it takes its name; its folder is made if need be.

    Example:
        >>> import tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "new" / "a.txt"
        >>> write_whole(path, b"whole")
        >>> path.read_bytes()
        b'whole'
    """
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # What a killed process left is written over the next time.
    building = path.with_name(f".{path.name}.part")
    try:
        with open(building, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        building.replace(path)
    finally:
        building.unlink(missing_ok=True)
    # The name too has to reach the disk; not every system lets a folder be opened.
    with contextlib.suppress(OSError):
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
