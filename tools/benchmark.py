"""Time this package's encoder and training step beside the peers', same sizes, same work.

    python tools/benchmark.py masked_lm_step --cores 0

The model has 6 layers of 384 and 12 heads, a batch 16 rows of 128 pieces, none of them padding,
20 of them predicted. Programs take turns; each is pinned to the same cores. Processor time
counts where there is one core, the clock where there are several. KerasHub's GELU is the tanh
one, transformers' the exact. Prints medians and the ratios to this package's first on the same
backend. Needs `pip install keras-hub transformers`.
"""

import argparse
import json
import os
import pathlib
import sys
import time

import numpy as np
import taking_turns

LAYERS, WIDTH, HEADS, VOCABULARY = 6, 384, 12, 30522
ROWS, LENGTH, PREDICTIONS = 16, 128, 20
# Of the optimiser, for all programs.
RATE, DECAY, NORM = 1e-4, 0.01, 1.0


def example():
    """Return the batch: ids, chosen positions and what stood there."""
    rng = np.random.default_rng(0)
    ids = rng.integers(1000, VOCABULARY, (ROWS, LENGTH)).astype("int32")
    order = rng.permuted(np.tile(np.arange(LENGTH), (ROWS, 1)), axis=1)
    positions = np.sort(order[:, :PREDICTIONS], axis=1).astype("int32")
    return ids, positions, np.take_along_axis(ids, positions, axis=1)


def zoo_backbone(activation):
    """Return this package's encoder."""
    import keras_bert_zoo as zoo

    return zoo.models.BertBackbone(
        VOCABULARY, LAYERS, HEADS, WIDTH, 4 * WIDTH, hidden_activation=activation
    )


def keras_hub_backbone():
    """Return KerasHub's."""
    import keras_hub

    return keras_hub.models.BertBackbone(VOCABULARY, LAYERS, HEADS, WIDTH, 4 * WIDTH)


def transformers_config():
    """Return the configuration of transformers' models."""
    import transformers

    return transformers.BertConfig(
        vocab_size=VOCABULARY,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
    )


# === Workloads: each program returns a function that does the work once ===


def keras_inputs(ids):
    """Return the encoder's inputs, which are called the same in both Keras packages."""
    return {
        "token_ids": ids,
        "segment_ids": np.zeros_like(ids),
        "padding_mask": np.ones_like(ids),
    }


def keras_forward(backbone):
    """Return a forward pass by `predict_on_batch`."""
    inputs = keras_inputs(example()[0])
    return lambda: backbone.predict_on_batch(inputs)


def keras_step(model, optimizer):
    """Return training steps by `fit`, with the package's own loss and accuracy."""
    ids, positions, labels = example()
    steps = 2
    inputs = {**keras_inputs(ids), "mask_positions": positions}
    inputs = {name: np.tile(x, (steps, 1)) for name, x in inputs.items()}
    labels = np.tile(labels, (steps, 1))
    weights = np.ones(labels.shape, "float32")
    model.compile(optimizer=optimizer)
    return lambda: model.fit(
        inputs, labels, sample_weight=weights, batch_size=ROWS, shuffle=False, verbose=0
    )


def zoo_forward(activation="gelu"):
    """Run this package's encoder."""
    return keras_forward(zoo_backbone(activation))


def keras_hub_forward():
    """Run KerasHub's."""
    return keras_forward(keras_hub_backbone())


def zoo_step(activation="gelu"):
    """Train this package's masked LM."""
    import keras_bert_zoo as zoo

    # A plain number would be the peak of a schedule of each `fit`, compiled anew each time.
    rate = zoo.training.WarmupLinearDecay(RATE, total_steps=10**6)
    optimizer = zoo.training.adamw(rate, weight_decay=DECAY, clipnorm=NORM)
    return keras_step(zoo.models.BertMaskedLM(zoo_backbone(activation)), optimizer)


def keras_hub_step():
    """Train KerasHub's."""
    import keras
    import keras_hub

    model = keras_hub.models.BertMaskedLM(keras_hub_backbone(), preprocessor=None)
    optimizer = keras.optimizers.AdamW(RATE, weight_decay=DECAY, global_clipnorm=NORM)
    return keras_step(model, optimizer)


def transformers_forward(compiled=False):
    """Run transformers' encoder."""
    import torch
    import transformers

    model = transformers.BertModel(transformers_config()).eval()
    model = torch.compile(model) if compiled else model
    ids = torch.tensor(example()[0]).long()
    mask = torch.ones_like(ids)

    def run():
        with torch.inference_mode():
            return model(input_ids=ids, attention_mask=mask)[0].numpy()

    return run


def transformers_step(compiled=False):
    """Train transformers' masked LM as its own example script does."""
    import torch
    import transformers

    ids, positions, labels = example()
    targets = np.full_like(ids, -100)
    np.put_along_axis(targets, positions, labels, axis=1)
    ids, targets = torch.tensor(ids).long(), torch.tensor(targets).long()
    mask = torch.ones_like(ids)
    model = transformers.BertForMaskedLM(transformers_config()).train()
    model = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY)

    def run():
        for _ in range(2):
            model(input_ids=ids, attention_mask=mask, labels=targets).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), NORM)
            optimizer.step()
            optimizer.zero_grad()

    return run


WORKLOADS = {
    "forward": {
        "zoo": zoo_forward,
        "zoo, tanh GELU": lambda: zoo_forward("gelu_tanh"),
        "keras_hub": keras_hub_forward,
        "transformers": transformers_forward,
        "transformers, compiled": lambda: transformers_forward(compiled=True),
    },
    "masked_lm_step": {
        "zoo": zoo_step,
        "zoo, tanh GELU": lambda: zoo_step("gelu_tanh"),
        "keras_hub": keras_hub_step,
        "transformers": transformers_step,
        "transformers, compiled": lambda: transformers_step(compiled=True),
    },
}
BACKENDS = ("jax", "tensorflow", "torch")


def timed(work, clock):
    """Return a function that does the work once and returns its seconds."""

    def run():
        start = clock()
        work()
        return clock() - start

    return run


def main() -> None:
    """Run the comparisons."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=BACKENDS)
    parser.add_argument("--programs", nargs="+", help="these alone, of zoo, keras_hub, ...")
    parser.add_argument("--cores", type=int, nargs="+", default=sorted(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", help="write the figures there")
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    programs = WORKLOADS[arguments.workload]
    clock = time.process_time if len(arguments.cores) == 1 else time.perf_counter
    if arguments.worker:
        work = programs[arguments.worker]()
        work(), work()
        taking_turns.serve(timed(work, clock))
        return

    figures = []
    print(f"{'':14}{'program':26}{'seconds':>10}{'ratio':>8}")
    for backend in arguments.backends:
        names = [
            name
            for name in arguments.programs or programs
            if backend == "torch" or not name.startswith("transformers")
        ]
        workers = [taking_turns.start(name, arguments.cores, backend) for name in names]
        seconds = taking_turns.median_seconds(workers, arguments.repeats)
        for name, median in zip(names, seconds, strict=True):
            ratio = median / seconds[0]
            print(f"{backend:14}{name:26}{median:10.3f}{ratio:8.2f}", flush=True)
            figures.append({"backend": backend, "program": name, "seconds": median})
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
