"""The first look before any training: one small batch, and what a step or two of it changes."""

import math
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

# Enough for a look.
SMOKE_ROWS = 8


def smoke_check(model: keras.Model, batch: tuple) -> dict[str, Any]:
    """Check one batch, its loss, and that just those parameters move that are meant to.

    The model takes two steps of Adam, the second because LoRA's first factor has no gradient in
    the first. So its weights are others afterwards, and it has to be compiled again: give a model
    that is not needed any more.

    Args:
        model: any task of this package, with what is to be trained said already.
        batch: `(inputs, labels)` or `(inputs, labels, weights)`, as the task's preprocessor makes
            them.

    Returns:
        What there is to be said of the batch: its `rows` and `length`, the shares of `real_pieces`
        and of `unknown_pieces` among them, the `loss` before any step, and the numbers of
        parameters that `moved` and `stayed`.

    Raises:
        ValueError: an input has another shape or range than it must have; the loss is not finite;
            or a parameter moved that should not, or stayed though it should have moved.

    Example:
        >>> import numpy as np
        >>> backbone = BertBackbone(
        ...     vocabulary_size=100, num_layers=1, num_heads=2, hidden_dim=4, intermediate_dim=8)
        >>> classifier = BertTextClassifier(backbone, num_classes=2)
        >>> ids = np.full((4, 6), 7)
        >>> inputs = {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": 0 * ids + 1}
        >>> smoke_check(classifier, (inputs, np.array([0, 1, 0, 0])))["moved"] == (
        ...     classifier.count_params())
        True
    """
    inputs, *labels = (keras.tree.map_structure(np.asarray, part) for part in batch)
    facts = _check_inputs(model, inputs)
    # Two steps are not worth a graph, but on JAX it takes less time than its many operations.
    eagerly = keras.backend.backend() != "jax"
    model.compile(optimizer=keras.optimizers.Adam(1e-3), run_eagerly=eagerly)
    before = _values(model)
    loss = float(np.ravel(model.train_on_batch(inputs, *labels))[0])
    if not math.isfinite(loss):
        raise ValueError(f"Smoke check: the loss of the first batch is {loss}.")
    model.train_on_batch(inputs, *labels)
    after = _values(model)
    moved = {name for name in after if not np.array_equal(after[name], before[name])}
    meant = {weight.path for weight in model.trainable_weights}
    for names, fault in (
        (moved - meant, "changed in a training step, but are not to be trained"),
        (meant - moved, "are to be trained, but did not change in two steps"),
    ):
        if names:
            raise ValueError(f"Smoke check: {len(names)} weights {fault}, the first {min(names)}.")
    sizes = {name: values.size for name, values in before.items()}
    count = sum(sizes[name] for name in moved)
    return {**facts, "loss": loss, "moved": count, "stayed": sum(sizes.values()) - count}


def describe(seen: Mapping[str, Any]) -> str:
    """Return what `smoke_check` returned in words."""
    return (
        f"Smoke check: {seen['rows']} rows of {seen['length']} positions, {seen['real_pieces']:.0%}"
        f" of them pieces, {seen['unknown_pieces']:.1%} of these unknown; the loss is "
        f"{seen['loss']:.4f}; {seen['moved']:,} parameters move, {seen['stayed']:,} stay."
    )


def _check_inputs(model, inputs):
    model.input_rules().check(inputs)
    ids, real = inputs["token_ids"], inputs["padding_mask"] == 1
    if not real.any():
        raise ValueError(f"Smoke check: a batch of shape {ids.shape} is padding alone.")
    facts = {
        "rows": len(ids),
        "length": ids.shape[-1],
        "real_pieces": float(np.mean(real)),
    }
    preprocessor = model.preprocessor
    if preprocessor is None:
        return facts
    if ids.shape[-1] > preprocessor.sequence_length:
        raise ValueError(
            f"Smoke check: a row has {ids.shape[-1]} positions, more than the `sequence_length`, "
            f"{preprocessor.sequence_length}."
        )
    # Of choices, one that only fills an example up is padding alone.
    first = ids[..., 0][real.any(axis=-1)]
    if (first != preprocessor.tokenizer.cls_token_id).any():
        raise ValueError("Smoke check: a row does not begin with [CLS].")
    pieces = ids[real]
    unknown = np.mean(pieces == preprocessor.tokenizer.unk_token_id)
    return {**facts, "unknown_pieces": float(unknown)}


def _values(model):
    to_numpy = keras.ops.convert_to_numpy
    return {weight.path: to_numpy(weight.value).copy() for weight in model.weights}
