"""Time programs against each other: each in a process of its own, pinned, run in turn.

So what else the machine does meets all of them alike, and their ratios hold on a noisy one.
"""

import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence


def serve(run: Callable[[], float]) -> None:
    """Be one of the programs: for each line that comes in, run once and write the seconds."""
    print("ready", flush=True)
    for _ in sys.stdin:
        print(run(), flush=True)


def start(program: object, cores: Sequence[int], backend: str | None = None) -> subprocess.Popen:
    """Return a process of this same command with `--worker PROGRAM`, on some cores only."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "TOKENIZERS_PARALLELISM": "false"}
    if backend:
        environment["KERAS_BACKEND"] = backend
    command = [sys.executable, *sys.argv, "--worker", json.dumps(program)]
    return subprocess.Popen(
        ["taskset", "-c", ",".join(map(str, cores)), *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )


def median_seconds(workers: Sequence[subprocess.Popen], repeats: int) -> list[float]:
    """Return each worker's median seconds of a run; the workers are ended."""
    with contextlib.ExitStack() as stack:
        for worker in workers:
            stack.callback(worker.communicate)
            stack.callback(worker.kill)
        for worker in workers:
            while (line := worker.stdout.readline()) != "ready\n":
                if not line:
                    raise SystemExit(f"{worker.args} failed; see above.")
        seconds = [[] for _ in workers]
        for _ in range(repeats):
            for worker, times in zip(workers, seconds, strict=True):
                worker.stdin.write("run\n")
                worker.stdin.flush()
                times.append(float(worker.stdout.readline()))
    return [statistics.median(times) for times in seconds]
