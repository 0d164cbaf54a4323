"""Whether this package and transformers make the same of the same texts.

For `compare_transformers.py`; both sides are given as its finetunings, untrained. A row is what a
model reads, without padding, and what it is to learn from it.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

import keras
import numpy as np
import torch
from with_transformers import NO_LABEL

from keras_bert_zoo.data.sources import Examples

BATCH_SIZE = 64


def rows_in_common(ours, theirs, examples: Examples, targets=(None, None)) -> dict[str, int]:
    """Return how many rows both sides make of examples and targets, and how many the one alone."""
    counts = [
        Counter(row for row, _ in make(side, examples, side_targets))
        for make, side, side_targets in zip(
            (_our_rows, _their_rows), (ours, theirs), targets, strict=True
        )
    ]
    shared = (counts[0] & counts[1]).total()
    alone = (count.total() - shared for count in counts)
    return dict(zip(("both", "ours alone", "theirs alone"), (shared, *alone), strict=True))


def examples_in_common(ours, theirs, examples: Examples, targets) -> list[int]:
    """Return the numbers of the examples of which both sides make the same rows."""
    found = {row for row, _ in _our_rows(ours, examples, targets[0])}
    owners = [
        features.get("example", number)
        for number, features in enumerate(theirs.rows(examples, targets[1]))
    ]
    rows = _their_rows(theirs, examples, targets[1])
    lost = {owner for owner, (row, _) in zip(owners, rows, strict=True) if row not in found}
    return [number for number in range(len(examples)) if number not in lost]


def logits(ours, theirs, examples: Examples) -> np.ndarray:
    """Return the logits, (2, logits), of the rows that both sides make of examples."""
    found = dict(_our_rows(ours, examples, with_logits=True))
    pairs = [
        (np.ravel(found[row]), np.ravel(outputs))
        for row, outputs in _their_rows(theirs, examples, with_logits=True)
        if row in found
    ]
    return np.stack([np.concatenate(side) for side in zip(*pairs, strict=True)])


def drop_nothing(ours, theirs) -> None:
    """Train both models without dropout from now on, and in the order of the examples."""
    for layer in ours.model._flatten_layers():
        if isinstance(layer, keras.layers.Dropout):
            layer.rate = 0.0
    for module in theirs.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    ours.shuffle = False
    theirs.arguments.train_sampling_strategy = "sequential"


def copy_head(ours, theirs) -> None:
    """Give this side's model the other one's head."""
    # The head is the last of its layers.
    *_, peer = theirs.model.children()
    kernel, bias = (x.detach().cpu().numpy() for x in (peer.weight.T, peer.bias))
    getattr(ours.model, ours.model.heads[0]).set_weights([kernel, bias])


def _our_rows(
    ours, examples: Examples, targets: Sequence | None = None, with_logits: bool = False
) -> Iterator[tuple]:
    """Yield the rows that `fit` and `predict` read, and their logits or None."""
    dataset = ours.model.preprocessor.dataset(examples.x, targets, batch_size=BATCH_SIZE)
    for batch in dataset.as_numpy_iterator():
        inputs, labels, weights = keras.utils.unpack_x_y_sample_weight(batch)
        if isinstance(labels, dict):
            labels = np.stack([labels["start"], labels["end"]], axis=-1)
        if weights is not None:
            labels = np.where(weights > 0, labels, NO_LABEL)
        outputs = None
        if with_logits:
            outputs = ours.model.predict_on_batch(inputs)
            if isinstance(outputs, dict):
                outputs = np.stack([outputs["start"], outputs["end"]], axis=-1)
        yield from _rows(
            inputs["token_ids"], inputs["segment_ids"], inputs["padding_mask"], labels, outputs
        )


def _their_rows(
    theirs, examples: Examples, targets: Sequence | None = None, with_logits: bool = False
) -> Iterator[tuple]:
    """Yield the rows that a `Trainer` feeds its model, and their logits or None."""
    features = theirs.rows(examples, targets)
    model = theirs.model.eval()
    for batch in theirs.trainer().get_test_dataloader(features):
        inputs = {name: batch[name] for name in ("input_ids", "token_type_ids", "attention_mask")}
        labels = batch.get("labels") if targets is not None else None
        if "start_positions" in batch:
            labels = torch.stack([batch["start_positions"], batch["end_positions"]], dim=-1)
        outputs = None
        if with_logits:
            with torch.no_grad():
                found = model(**inputs)
            outputs = found.get("logits")
            if outputs is None:
                outputs = torch.stack([found.start_logits, found.end_logits], dim=-1)
        yield from _rows(
            inputs["input_ids"],
            inputs["token_type_ids"],
            inputs["attention_mask"],
            labels,
            outputs,
        )


def _rows(ids, segments, mask, labels, outputs):
    """Yield a batch's rows, which can be compared, and their logits where there is a piece."""
    ids, segments, mask, labels, outputs = (
        x.cpu().numpy() if torch.is_tensor(x) else x for x in (ids, segments, mask, labels, outputs)
    )
    for i, is_real in enumerate(mask == 1):
        label = None
        if labels is not None:
            # Of tags, a label a piece.
            label = labels[i][is_real] if labels.shape == mask.shape else labels[i]
            label = tuple(np.round(np.ravel(label).astype("float64"), 4).tolist())
        logits = None
        if outputs is not None:
            logits = outputs[i][is_real] if outputs.ndim > mask.ndim else outputs[i]
        row = tuple(ids[i][is_real].tolist()), tuple(segments[i][is_real].tolist()), label
        yield row, logits
