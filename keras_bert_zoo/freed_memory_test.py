"""Whether memory that is freed comes back without Linux clearing it anew."""

import pathlib
import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.backend_free

# In processes of their own, for it can't be undone.
FAULTS = """
import resource, runpy, sys
if sys.argv[2] == "kept":
    assert runpy.run_path(sys.argv[1])["keep_freed_memory"]()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    b"x" * 40_000_000
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_kept_memory_is_cleared_once():
    path = pathlib.Path(__file__).with_name("freed_memory.py")
    given_back, kept = (
        int(subprocess.check_output([sys.executable, "-c", FAULTS, path, word]))
        for word in ("given back", "kept")
    )
    assert kept < given_back / 5
