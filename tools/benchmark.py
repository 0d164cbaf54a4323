"""Time this package beside KerasHub and transformers, on the same work.

    python tools/benchmark.py forward
    python tools/benchmark.py masked_lm_step --cores 0
    python tools/benchmark.py predict fit embed --data DATA --json figures.json --plot figures.png

Programs take turns, each in a process of its own, all pinned to the same cores. Processor time
counts where there is one core, the clock where there are several. Prints medians, their ratios
to this package's on the same backend, and each process's peak memory. `forward`, `base_forward` and
`masked_lm_step` are one batch of fixed shape (`benchmark_shapes.py`), and the bare matrix products
of its shapes are timed too, so that the share of the machine's speed is known: what would be the
time at the products' speed, divided by the program's. `predict`, `fit`, `embed` and `load` are real
texts and weights (`benchmark_texts.py`). Needs `pip install keras-hub transformers`.
"""

import argparse
import functools
import json
import os
import pathlib
import sys
import time

import benchmark_shapes as shapes
import benchmark_texts as texts
import taking_turns

BACKENDS = ("jax", "tensorflow", "torch")
PRODUCTS = "matrix products"


def shaped(sizes, forward):
    """Return the programs of one shape; each takes `data`, as all do, and has no use for it."""
    zoo, keras_hub, transformers, products = (
        (
            shapes.zoo_forward,
            shapes.keras_hub_forward,
            shapes.transformers_forward,
            shapes.forward_products,
        )
        if forward
        else (
            shapes.zoo_step,
            shapes.keras_hub_step,
            shapes.transformers_step,
            shapes.step_products,
        )
    )
    programs = {
        "zoo": functools.partial(zoo, sizes),
        "zoo, tanh GELU": functools.partial(zoo, sizes, "gelu_tanh"),
        "keras_hub": functools.partial(keras_hub, sizes),
        "transformers": functools.partial(transformers, sizes),
        "transformers, compiled": functools.partial(transformers, sizes, compiled=True),
        PRODUCTS: functools.partial(shapes.products, list(products(sizes))),
    }
    return {name: lambda data, make=make: make() for name, make in programs.items()}


WORKLOADS = {
    "forward": shaped(shapes.SMALL, forward=True),
    "base_forward": shaped(shapes.BASE, forward=True),
    "masked_lm_step": shaped(shapes.SMALL, forward=False),
    "predict": {
        "zoo": texts.zoo_predict,
        "keras_hub, 128": functools.partial(texts.keras_hub_predict, sequence_length=128),
        "keras_hub, default": texts.keras_hub_predict,
        "transformers": texts.transformers_predict,
        "transformers, sorted": functools.partial(texts.transformers_predict, is_sorted=True),
    },
    "fit": {
        "zoo": texts.zoo_fit,
        "zoo, packed": functools.partial(texts.zoo_fit, packed=True),
        "keras_hub, 128": texts.keras_hub_fit,
        "transformers": texts.transformers_fit,
    },
    "embed": {
        "zoo": texts.zoo_embed,
        "transformers": texts.transformers_embed,
        "transformers, sorted": functools.partial(texts.transformers_embed, is_sorted=True),
    },
    "load": {"zoo": texts.zoo_load, "transformers": texts.transformers_load},
    "import": {
        "zoo": texts.import_of("keras_bert_zoo"),
        "keras": texts.import_of("keras"),
    },
}


def compare(workload, backend, arguments):
    """Return a row for each program of a workload on a backend."""
    programs = WORKLOADS[workload]
    names = [
        name
        for name in arguments.programs or programs
        if name in programs and (backend == "torch" or not name.startswith("transformers"))
    ]
    workers = [taking_turns.start([workload, name], arguments.cores, backend) for name in names]
    measured = taking_turns.medians(workers, arguments.repeats)
    rows = []
    for name, (seconds, memory) in zip(names, measured, strict=True):
        row = {"workload": workload, "backend": backend, "program": name}
        rows.append({**row, "seconds": seconds, "ratio": seconds / measured[0][0]})
        rows[-1]["peak_memory_bytes"] = memory
        if PRODUCTS in names:
            rows[-1]["share_of_products"] = measured[names.index(PRODUCTS)][0] / seconds
    return rows


def plot(rows, path):
    """Draw a bar for each program's ratio, a picture for each workload and backend."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    groups = {}
    for row in rows:
        groups.setdefault(f"{row['workload']}, {row['backend']}", []).append(row)
    figure, axes = pyplot.subplots(
        len(groups), 1, figsize=(7, 1 + 1.6 * len(groups)), squeeze=False, layout="constrained"
    )
    for axis, (title, group) in zip(axes[:, 0], groups.items(), strict=True):
        names = [row["program"] for row in group][::-1]
        bars = axis.barh(names, [row["seconds"] for row in group][::-1])
        axis.bar_label(bars, [f"{row['ratio']:.2f}" for row in group][::-1], padding=3)
        axis.margins(x=0.1)
        axis.set(title=title, xlabel="seconds; beside the bars, times this package's")
    figure.savefig(path, dpi=120)


def main() -> None:
    """Run the comparisons."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="+", choices=WORKLOADS)
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=BACKENDS)
    parser.add_argument("--programs", nargs="+", help="these alone, of zoo, keras_hub, ...")
    parser.add_argument("--cores", type=int, nargs="+", default=sorted(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--data", help="folder with the texts, as those files say")
    parser.add_argument("--json", help="write the figures there")
    parser.add_argument("--plot", help="draw the figures there")
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        workload, name = arguments.worker
        # What is started for the import is no time of this process.
        is_own = len(arguments.cores) == 1 and workload != "import"
        clock = time.process_time if is_own else time.perf_counter
        work = WORKLOADS[workload][name](arguments.data)
        work(), work()
        taking_turns.serve(work, clock)
        return

    rows = []
    print(f"{'program':26}{'seconds':>10}{'ratio':>8}{'MB':>8}{'of products':>13}")
    for workload in arguments.workloads:
        for backend in arguments.backends:
            print(f"{workload}, {backend}")
            for row in compare(workload, backend, arguments):
                share = row.get("share_of_products")
                print(
                    f"  {row['program']:24}{row['seconds']:10.3f}{row['ratio']:8.2f}"
                    f"{row['peak_memory_bytes'] / 1e6:8.0f}{f'{share:13.0%}' if share else ''}",
                    flush=True,
                )
                rows.append(row)
            if arguments.json:
                pathlib.Path(arguments.json).write_text(json.dumps(rows, indent=1) + "\n")
    if arguments.plot:
        plot(rows, arguments.plot)


if __name__ == "__main__":
    sys.exit(main())
