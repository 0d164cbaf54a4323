"""A global batch shared out over many devices: its parts, their filling, and a loss over all."""

from collections.abc import Callable
from typing import NamedTuple

import keras
import numpy as np
from keras import ops
from keras.src.backend.common.masking import get_keras_mask, set_keras_mask
from keras.src.losses.loss import apply_mask
from keras.src.trainers.compile_utils import CompileLoss

from keras_bert_zoo.preprocessing.lazy_tensorflow import tf


class Distribution(NamedTuple):
    """How a global batch is shared out.

    Its rows go in equal parts to `replicas`, each with the whole model; `shard` of `shards`
    is this process's share of them.
    """

    replicas: int
    shards: int
    shard: int
    processes: int
    process: int
    reads_own_shard: bool


def seed_offset(replica: int) -> int:
    """Return what is added to a replica's seeds of dropout; the first's stay."""
    # A seed's draws are numbered from it on, so neighbouring seeds would meet.
    return replica * 1_640_531_527 % 2**31


# === The parts ===


def part_of(dataset, parts: Distribution, count: int, index: int):
    """Return one of `count` equal parts of each global batch of a dataset.

    A batch that the replicas do not divide is filled up with rows of padding, which count in
    no loss and no metric. Where a process reads its own shard, that is what is cut.
    """
    multiple = parts.replicas
    if parts.reads_own_shard:
        multiple, count, index = (
            multiple // parts.shards,
            count // parts.shards,
            index % (count // parts.shards),
        )

    def cut(*element):
        element = [part for part in element if part is not None]
        rows = tf.shape(element[0]["token_ids"])[0]
        size = _filled(rows, multiple) // count

        def cut_rows(x):
            filling = tf.concat([[size * count - rows], tf.shape(x)[1:]], 0)
            filled = tf.concat([x, tf.zeros(filling, x.dtype)], 0)
            part = filled[index * size : (index + 1) * size]
            if x.shape[0] is not None:
                # A TPU wants to know it beforehand.
                part.set_shape([_filled(x.shape[0], multiple) // count, *x.shape[1:]])
            return part

        return keras.utils.pack_x_y_sample_weight(*tf.nest.map_structure(cut_rows, element))

    return dataset.map(cut, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def without_filling(outputs, dataset, replicas: int):
    """Return outputs for a dataset of filled global batches without the rows of padding."""

    def is_real(*element):
        rows = tf.shape(element[0]["token_ids"])[0]
        return tf.range(_filled(rows, replicas)) < rows

    keep = np.concatenate([rows.numpy() for rows in dataset.map(is_real)])
    return keras.tree.map_structure(lambda x: x[keep[: len(x)]], outputs)


def mark_real_rows(inputs: dict, outputs):
    """Give the outputs Keras's mask, by which losses and metrics leave rows of padding out."""
    real = ops.any(ops.cast(inputs["padding_mask"], "bool"), axis=1)

    def mark(output):
        shape = ops.shape(output)[:-1]
        mask = ops.reshape(real, (-1, *[1] * (len(shape) - 1)))
        set_keras_mask(output, ops.broadcast_to(mask, shape))
        return output

    return keras.tree.map_structure(mark, outputs)


def _filled(rows, multiple):
    return -(-rows // multiple) * multiple


# === A loss over the global batch ===


class GlobalLoss(CompileLoss):
    """A compiled model's losses, each the mean over the global batch.

    A part's mean has its own number of masked pieces below the line, so the mean of the
    parts' means is not the global one, nor is its gradient. Here a part's mean is multiplied
    by that number's share in the sum over the replicas, times the replicas. What the engines
    do then, average losses and gradients, gives the global mean and its gradient exactly, at
    the cost of one number a loss sent round.

    Args:
        compiled: Keras's own `CompileLoss`.
        replicas: how many parts there are.
        sum_over_replicas: takes each replica's number and gives all their sum.
        factor_of_sums: what a loss that is no mean but a sum is multiplied by.
    """

    def __init__(
        self,
        compiled: CompileLoss,
        replicas: int,
        sum_over_replicas: Callable,
        factor_of_sums: int,
    ):
        # The user's own losses stay in the saved settings.
        super().__init__(
            compiled._user_loss, compiled._user_loss_weights, output_names=compiled.output_names
        )
        self.replicas = replicas
        self.sum_over_replicas = sum_over_replicas
        self.factor_of_sums = factor_of_sums

    def build(self, y_true, y_pred):
        """Resolve the losses as Keras does, and make each of them global."""
        super().build(y_true, y_pred)
        self._flat_losses = [
            part._replace(loss=self._globally(part.loss)) for part in self._flat_losses
        ]

    def _globally(self, loss):
        def global_mean(y_true, y_pred, sample_weight=None):
            if sample_weight is not None:
                # Keras multiplies it by the mask in place, where gradients may need it.
                sample_weight = ops.cast(sample_weight, "float32") * 1
            value = loss(y_true, y_pred, sample_weight)
            return value * self._factor(loss.reduction, y_pred, sample_weight)

        return global_mean

    def _factor(self, reduction, y_pred, sample_weight):
        if reduction == "sum":
            return self.factor_of_sums
        if reduction not in ("mean", "sum_over_batch_size", "mean_with_sample_weight"):
            return 1
        if reduction != "mean_with_sample_weight" or sample_weight is None:
            weights = None
        else:
            weights = sample_weight * 1
        own = ops.sum(apply_mask(weights, get_keras_mask(y_pred), "float32", reduction="sum"))
        return ops.divide_no_nan(own * self.replicas, self.sum_over_replicas(own))
