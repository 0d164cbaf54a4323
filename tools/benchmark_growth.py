"""How time and memory grow with length, batch, layers, corpus and devices, beside the formula.

    python tools/benchmark_growth.py length batch layers corpus devices --data DATA --plot a.png

Each point is a process of its own, on the backend of `KERAS_BACKEND`; `devices`, a training step
over so many of JAX's processor devices on the same cores, is JAX's. Prints the median seconds,
the most memory, and the formula's time: arithmetic, or for the corpus real pieces, at a speed
fitted to all points of the parameter. `R^2` is the share of the times' variance that the formula
explains. `corpus` predicts sentences of SST-2, in DATA's `glue/SST-2`, over and over.
"""

import argparse
import json
import os
import pathlib
import sys
import time

import benchmark_shapes as shapes
import numpy as np
import taking_turns

POINTS = {
    "length": (32, 64, 128, 256, 512),
    "batch": (1, 2, 4, 8, 16, 32, 64),
    "layers": (1, 2, 4, 8, 12),
    "corpus": (10**4, 3 * 10**4, 10**5, 3 * 10**5, 10**6),
    "devices": (1, 2, 4, 8),
}
FIELDS = {"length": "length", "batch": "rows", "layers": "layers"}


def sizes_at(name, value):
    """Return an encoder's and a batch's sizes, one of them another."""
    return shapes.SMALL._replace(**{FIELDS[name]: value}) if name in FIELDS else shapes.SMALL


def formula(name, value):
    """Return what the time should be proportional to."""
    if name == "corpus":
        return value
    sizes = sizes_at(name, value)
    # The devices share the cores, so that more of them do the same work.
    products = shapes.step_products if name == "devices" else shapes.forward_products
    return shapes.flops(products(sizes))


def program(name, value, data):
    """Return a function that does a point's work once."""
    if name == "corpus":
        return predict(value, data)
    if name == "devices":
        os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={value}"
        import keras_bert_zoo as zoo

        zoo.training.distribute("data")
        return shapes.zoo_step(shapes.SMALL)
    return shapes.zoo_forward(sizes_at(name, value))


def predict(pieces, data):
    """Return a function that predicts sentences with so many pieces."""
    import benchmark_texts as texts

    import keras_bert_zoo as zoo

    sentences, _ = texts.sst2(data, "dev")
    classifier = zoo.from_preset(
        texts.PRESET, "text_classifier", num_classes=2, sequence_length=128
    )
    lengths = classifier.preprocessor.tokenizer(sentences).row_lengths().numpy() + 2
    count = int(np.searchsorted(np.cumsum(np.tile(lengths, pieces // lengths.sum() + 1)), pieces))
    sentences = [sentences[i % len(sentences)] for i in range(count + 1)]
    return lambda: classifier.predict(sentences, batch_size=texts.BATCH_SIZE, verbose=0)


def explained(rows):
    """Return the share of the times' variance that the formula explains."""
    seconds, expected = (np.array([row[n] for row in rows]) for n in ("seconds", "formula_seconds"))
    return 1 - np.sum((seconds - expected) ** 2) / np.sum((seconds - seconds.mean()) ** 2)


def measure(name, arguments):
    """Return a row for each point of a parameter."""
    backend = "jax" if name == "devices" else None
    rows = []
    for value in arguments.points or POINTS[name]:
        worker = taking_turns.start([name, value], arguments.cores, backend)
        [(seconds, memory)] = taking_turns.medians([worker], arguments.repeats)
        rows.append({"parameter": name, "value": value, "seconds": seconds, "bytes": memory})
    work = np.array([formula(name, row["value"]) for row in rows], "float64")
    measured = np.array([row["seconds"] for row in rows])
    # The speed at which the points differ least from the formula, each relative to itself.
    speed = np.sum((work / measured) ** 2) / np.sum(work / measured)
    for row, amount in zip(rows, work, strict=True):
        row["formula_seconds"] = float(amount / speed)
    return rows


def plot(figures, path):
    """Draw times, the formula's and memory against each parameter."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        2, len(figures), figsize=(3.2 * len(figures), 6), squeeze=False, layout="constrained"
    )
    for (above, below), (name, rows) in zip(axes.T, figures.items(), strict=True):
        values = [row["value"] for row in rows]
        above.loglog(values, [row["seconds"] for row in rows], "o", label="measured")
        above.loglog(values, [row["formula_seconds"] for row in rows], "-", label="formula")
        above.set(title=name, ylabel="seconds")
        above.legend()
        below.semilogx(values, [row["bytes"] / 1e6 for row in rows], "o-")
        below.set(xlabel=name, ylabel="most memory, MB", ylim=(0, None))
    figure.savefig(path, dpi=120)


def main() -> None:
    """Measure the parameters."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parameters", nargs="+", choices=POINTS)
    parser.add_argument("--points", type=int, nargs="+", help="in place of the usual ones")
    parser.add_argument("--cores", type=int, nargs="+", default=sorted(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--data", help="folder with glue/SST-2")
    parser.add_argument("--json", help="write the figures there")
    parser.add_argument("--plot", help="draw the figures there")
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work = program(*arguments.worker, arguments.data)
        work(), work()
        taking_turns.serve(work, time.perf_counter)
        return

    figures = {}
    print(f"{'':10}{'':>10}{'seconds':>10}{'formula':>10}{'MB':>8}")
    for name in arguments.parameters:
        rows = figures[name] = measure(name, arguments)
        for row in rows:
            print(
                f"{name:10}{row['value']:10,}{row['seconds']:10.3f}{row['formula_seconds']:10.3f}"
                f"{row['bytes'] / 1e6:8.0f}"
            )
        print(f"{name:10}R^2 {explained(rows):.4f}", flush=True)
        if arguments.json:
            pathlib.Path(arguments.json).write_text(json.dumps(figures, indent=1) + "\n")
    if arguments.plot:
        plot(figures, arguments.plot)


if __name__ == "__main__":
    sys.exit(main())
