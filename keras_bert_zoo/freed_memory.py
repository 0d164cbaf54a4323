"""Memory that is freed and soon needed again, kept from going back to the system in between."""

import ctypes
import sys

# Of glibc's `mallopt`, from its malloc.h.
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8


def keep_freed_memory() -> bool:
    """Let this process keep the memory it frees, and return whether that could be arranged.

    On a processor each step of training frees its activations, and glibc gives the larger ones
    back to Linux, which clears every page when the next step asks for it again: up to a quarter of
    the step's time on JAX and PyTorch. Afterwards the process keeps what it has had at its most.
    Call it first, before anything is computed; the command line does. It has no effect on memory
    of a GPU or TPU, and none where the C library is another than glibc.

    Example:
        >>> keep_freed_memory()  # doctest: +SKIP
        True
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # One arena, for those of other threads are not large enough and leave it to the system.
    return all([mallopt(_TRIM_THRESHOLD, -1), mallopt(_MMAP_MAX, 0), mallopt(_ARENA_MAX, 1)])
