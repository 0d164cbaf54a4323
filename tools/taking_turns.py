"""Time programs against each other: each in a process of its own, pinned, run in turn.

So what else the machine does meets all of them alike, and their ratios hold on a noisy one.
"""

import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence


def serve(work: Callable[[], object], clock: Callable[[], float]) -> None:
    """Be one of the programs: for each line that comes in, work once.

    Writes the seconds, by the clock, and the most bytes of memory that the process has had.
    """
    print("ready", flush=True)
    for _ in sys.stdin:
        start = clock()
        work()
        seconds = clock() - start
        # In kilobytes, on Linux.
        memory = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(seconds, memory, flush=True)


def start(program: object, cores: Sequence[int], backend: str | None = None) -> subprocess.Popen:
    """Return a process of this same command with `--worker PROGRAM`, on some cores only, ready.

    One that is made ready beside another would have to share the cores with it.
    """
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "TOKENIZERS_PARALLELISM": "false"}
    if backend:
        environment["KERAS_BACKEND"] = backend
    command = [sys.executable, *sys.argv, "--worker", json.dumps(program)]
    worker = subprocess.Popen(
        ["taskset", "-c", ",".join(map(str, cores)), *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    while (line := worker.stdout.readline()) != "ready\n":
        if not line:
            raise SystemExit(f"{worker.args} failed; see above.")
    return worker


def medians(workers: Sequence[subprocess.Popen], repeats: int) -> list[tuple[float, int]]:
    """Return each worker's median seconds of a run and peak memory; the workers are ended."""
    with contextlib.ExitStack() as stack:
        for worker in workers:
            stack.callback(worker.communicate)
            stack.callback(worker.kill)
        measured = [[] for _ in workers]
        for _ in range(repeats):
            for worker, runs in zip(workers, measured, strict=True):
                worker.stdin.write("run\n")
                worker.stdin.flush()
                seconds, memory = worker.stdout.readline().split()
                runs.append((float(seconds), int(memory)))
    return [
        (statistics.median(seconds for seconds, _ in runs), max(memory for _, memory in runs))
        for runs in measured
    ]
