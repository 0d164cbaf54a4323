"""Programs of `benchmark.py` on one batch of fixed shape: an encoder, a training step, products.

A batch is 16 rows of 128 pieces, none of them padding, 20 of them predicted; the encoder has 6
layers of 384 and 12 heads. BASE has 12 layers of 768 and batches of 8. KerasHub's GELU is the tanh
one, transformers' the exact. Each program returns a function that does the work once.
"""

from typing import NamedTuple

import numpy as np


class Sizes(NamedTuple):
    """An encoder's, and its batch's."""

    layers: int
    width: int
    heads: int
    rows: int
    length: int = 128
    predictions: int = 20
    vocabulary: int = 30522


SMALL = Sizes(layers=6, width=384, heads=12, rows=16)
BASE = Sizes(layers=12, width=768, heads=12, rows=8)
# Of the optimiser, for all programs.
RATE, DECAY, NORM = 1e-4, 0.01, 1.0


def example(sizes):
    """Return the batch: ids, chosen positions and what stood there."""
    rng = np.random.default_rng(0)
    ids = rng.integers(1000, sizes.vocabulary, (sizes.rows, sizes.length)).astype("int32")
    order = rng.permuted(np.tile(np.arange(sizes.length), (sizes.rows, 1)), axis=1)
    positions = np.sort(order[:, : sizes.predictions], axis=1).astype("int32")
    return ids, positions, np.take_along_axis(ids, positions, axis=1)


# === Products ===


def forward_products(sizes):
    """Return (left shape, right shape, how often) of a forward pass's matrix products."""
    tokens, width = sizes.rows * sizes.length, sizes.width
    heads, head_width = sizes.rows * sizes.heads, width // sizes.heads
    return [
        ((tokens, width), (width, width), 4 * sizes.layers),
        ((tokens, width), (width, 4 * width), sizes.layers),
        ((tokens, 4 * width), (4 * width, width), sizes.layers),
        ((heads, sizes.length, head_width), (heads, head_width, sizes.length), sizes.layers),
        ((heads, sizes.length, sizes.length), (heads, sizes.length, head_width), sizes.layers),
    ]


def step_products(sizes):
    """Return those of a masked-LM training step: forward, and the gradients of both factors."""
    read, width = sizes.rows * sizes.predictions, sizes.width
    forward = [
        *forward_products(sizes),
        ((read, width), (width, width), 1),
        ((read, width), (width, sizes.vocabulary), 1),
    ]
    for left, right, count in forward:
        batch, (rows, inner), columns = left[:-2], left[-2:], right[-1]
        yield left, right, count
        yield (*batch, rows, columns), (*batch, columns, inner), count
        yield (*batch, inner, rows), (*batch, rows, columns), count


def products(shapes):
    """Multiply random matrices of these shapes, in the backend, as often as is said."""
    import keras

    rng = np.random.default_rng(0)
    factors = [
        [keras.ops.convert_to_tensor(rng.normal(size=s).astype("float32")) for s in (left, right)]
        for left, right, _ in shapes
    ]
    # Each by itself: what a compiler would do to several is no plain product any more.
    multiply = compiled(keras.ops.matmul)

    def run():
        for (left, right), (_, _, count) in zip(factors, shapes, strict=True):
            for _ in range(count):
                product = multiply(left, right)
            wait(product)

    return run


def compiled(function):
    """Return the function as the backend runs it fastest."""
    import keras

    if keras.backend.backend() == "jax":
        import jax

        return jax.jit(function)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.function(function)
    return function


def wait(tensor):
    """Let what the backend has put off be done."""
    if hasattr(tensor, "block_until_ready"):
        tensor.block_until_ready()


def flops(shapes):
    """Return the multiplications and additions of these products."""
    return sum(2 * int(np.prod(left)) * right[-1] * count for left, right, count in shapes)


# === The same encoder in three packages ===


def zoo_backbone(sizes, activation):
    """Return this package's encoder."""
    import keras_bert_zoo as zoo

    return zoo.models.BertBackbone(
        sizes.vocabulary,
        sizes.layers,
        sizes.heads,
        sizes.width,
        4 * sizes.width,
        hidden_activation=activation,
    )


def keras_hub_backbone(sizes):
    """Return KerasHub's."""
    import keras_hub

    return keras_hub.models.BertBackbone(
        sizes.vocabulary, sizes.layers, sizes.heads, sizes.width, 4 * sizes.width
    )


def transformers_config(sizes):
    """Return the configuration of transformers' models."""
    import transformers

    return transformers.BertConfig(
        vocab_size=sizes.vocabulary,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        hidden_size=sizes.width,
        intermediate_size=4 * sizes.width,
    )


# === Forward ===


def keras_inputs(ids):
    """Return the encoder's inputs, which are called the same in both Keras packages."""
    return {
        "token_ids": ids,
        "segment_ids": np.zeros_like(ids),
        "padding_mask": np.ones_like(ids),
    }


def keras_forward(sizes, backbone):
    """Return a forward pass by `predict_on_batch`."""
    inputs = keras_inputs(example(sizes)[0])
    return lambda: backbone.predict_on_batch(inputs)


def zoo_forward(sizes, activation="gelu"):
    """Run this package's encoder."""
    return keras_forward(sizes, zoo_backbone(sizes, activation))


def keras_hub_forward(sizes):
    """Run KerasHub's."""
    return keras_forward(sizes, keras_hub_backbone(sizes))


def transformers_forward(sizes, compiled=False):
    """Run transformers' encoder."""
    import torch
    import transformers

    model = transformers.BertModel(transformers_config(sizes)).eval()
    model = torch.compile(model) if compiled else model
    ids = torch.tensor(example(sizes)[0]).long()
    mask = torch.ones_like(ids)

    def run():
        with torch.inference_mode():
            return model(input_ids=ids, attention_mask=mask)[0].numpy()

    return run


# === A masked-LM training step ===


def keras_step(sizes, model, optimizer):
    """Return a training step by `fit`, with the package's own loss and accuracy."""
    ids, positions, labels = example(sizes)
    inputs = {**keras_inputs(ids), "mask_positions": positions}
    weights = np.ones(labels.shape, "float32")
    model.compile(optimizer=optimizer)
    return lambda: model.fit(
        inputs, labels, sample_weight=weights, batch_size=sizes.rows, shuffle=False, verbose=0
    )


def zoo_step(sizes, activation="gelu"):
    """Train this package's masked LM."""
    import keras_bert_zoo as zoo

    # A plain number would be the peak of a schedule of each `fit`, compiled anew each time.
    rate = zoo.training.WarmupLinearDecay(RATE, total_steps=10**6)
    optimizer = zoo.training.adamw(rate, weight_decay=DECAY, clipnorm=NORM)
    model = zoo.models.BertMaskedLM(zoo_backbone(sizes, activation))
    return keras_step(sizes, model, optimizer)


def keras_hub_step(sizes):
    """Train KerasHub's."""
    import keras
    import keras_hub

    model = keras_hub.models.BertMaskedLM(keras_hub_backbone(sizes), preprocessor=None)
    optimizer = keras.optimizers.AdamW(RATE, weight_decay=DECAY, global_clipnorm=NORM)
    return keras_step(sizes, model, optimizer)


def transformers_step(sizes, compiled=False):
    """Train transformers' masked LM as its own example script does."""
    import torch
    import transformers

    ids, positions, labels = example(sizes)
    targets = np.full_like(ids, -100)
    np.put_along_axis(targets, positions, labels, axis=1)
    ids, targets = torch.tensor(ids).long(), torch.tensor(targets).long()
    mask = torch.ones_like(ids)
    model = transformers.BertForMaskedLM(transformers_config(sizes)).train()
    model = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY)

    def run():
        model(input_ids=ids, attention_mask=mask, labels=targets).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), NORM)
        optimizer.step()
        optimizer.zero_grad()

    return run
