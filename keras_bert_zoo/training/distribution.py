"""Training on many devices, by each backend's own engine, behind one switch.

`distribute` names the engine's part in it: `keras.distribution` on JAX, `tf.distribute` on
TensorFlow, DistributedDataParallel on PyTorch. What the engines leave to the program is here
too, so that a run on many devices is the run on one: global batches are cut into equal parts,
a loss is the mean over the global batch, not a mean of the parts' means, and the metrics are
those of all parts.

Each engine is a file, `jax_engine.py`, `tensorflow_engine.py` and `torch_engine.py`, with the
same functions. `global_batch.py` has what they share.
"""

import contextlib
import importlib

import keras
from keras.src.backend.common.stateless_scope import in_stateless_scope

from keras_bert_zoo.layers.common import check_positive_int
from keras_bert_zoo.training import global_batch
from keras_bert_zoo.training.global_batch import Distribution
from keras_bert_zoo.training.jax_engine import LAYOUT, layout_map
from keras_bert_zoo.training.tensorflow_engine import first_replicas_batch

__all__ = [
    "LAYOUT",
    "Distribution",
    "batches",
    "data_shard",
    "distribute",
    "distribution",
    "first_replicas_batch",
    "is_first_process",
    "layout_map",
    "make_global",
    "mark_real_rows",
    "metrics_of_all_processes",
    "predicting",
    "saving",
    "training",
    "training_call",
    "verbose",
]

BACKEND = keras.backend.backend()

engine = importlib.import_module(f"keras_bert_zoo.training.{BACKEND}_engine")

_distribution = None

# Of each model that is being trained, its engine's forward pass.
_parallel_calls = {}


# === The switch ===


def distribute(
    strategy: str | None, *, model_devices: int = 2, reads_own_shard: bool = False
) -> Distribution | None:
    """Train every model made from now on with all devices of all processes.

    Call it before anything is computed, in every process. `batch_size` is then that of the
    global batch, on every backend.

    Args:
        strategy: `"data"` gives each device the whole model and a part of every batch.
            `"data+model"` (JAX) splits the model over groups of `model_devices` besides.
            On TensorFlow `"data"` is `"multi_worker"` where `TF_CONFIG` names workers, else
            `"mirrored"`; `"tpu"` has to be asked for. None trains on one device again.
        model_devices: devices that share one copy of the model; it divides the number of
            devices, the heads and the feed-forward network's width.
        reads_own_shard: a `tf.data.Dataset` given to `fit` holds this process's part of each
            global batch, of as many rows and batches as the other processes' parts, not the
            global batch. `data_shard` says which part that is.

    Returns:
        The `Distribution`, or None.

    Raises:
        ValueError: the backend has no such strategy, or was not started for it.

    Example:
        >>> distribute(None)
        >>> data_shard()
        (0, 1)
    """
    global _distribution
    if strategy is not None and strategy not in engine.STRATEGIES:
        raise ValueError(
            f"`strategy` must be None or one of {list(engine.STRATEGIES)} on the {BACKEND} "
            f"backend. Received: {strategy!r}."
        )
    check_positive_int(model_devices=model_devices)
    if _distribution is not None:
        _distribution = None
        engine.end()
    if strategy is not None:
        parts = engine.begin(strategy, model_devices)
        _distribution = Distribution(**parts, reads_own_shard=reads_own_shard)
    return _distribution


def distribution() -> Distribution | None:
    """Return what `distribute` set, or None."""
    return _distribution


def data_shard() -> tuple[int, int]:
    """Return this process's number and the count of processes that read data of their own."""
    return (_distribution.shard, _distribution.shards) if _distribution else (0, 1)


def is_first_process() -> bool:
    """Say whether this is the process that prints and saves."""
    return _distribution is None or _distribution.process == 0


def verbose(asked):
    """Return what was asked for in the first process, and silence in the others."""
    return asked if is_first_process() else 0


# === A run ===


def batches(dataset):
    """Return a dataset of global batches as what this process's `fit` iterates over.

    A batch that the replicas do not divide is filled up with rows of padding, which count in
    no loss and no metric.
    """
    return dataset if _distribution is None else engine.batches(dataset, _distribution)


def make_global(model) -> None:
    """Make a compiled model's losses and gradients those of the global batch.

    Raises:
        ValueError: the engine can't, with this optimiser.
    """
    if _distribution is not None:
        engine.make_global(model, _distribution)


@contextlib.contextmanager
def training(model, call):
    """Hold while a model is trained: its replicas begin alike and draw dropout apart.

    `call` is the model's own forward pass, for `training_call`.
    """
    if _distribution is None:
        yield
        return
    with engine.training(model, call, _distribution) as parallel_call:
        _parallel_calls[id(model)] = parallel_call
        try:
            yield
        finally:
            del _parallel_calls[id(model)]


def training_call(model, call):
    """Return what runs a training step's forward pass: `call`, or what averages gradients."""
    return _parallel_calls.get(id(model), call)


def mark_real_rows(inputs: dict, outputs):
    """Give the outputs Keras's mask, by which losses and metrics leave rows of padding out."""
    if _distribution is None or inputs is None:
        return outputs
    return global_batch.mark_real_rows(inputs, outputs)


def metrics_of_all_processes(variables, results):
    """Return `results()` of metrics, made of `variables`, over all processes."""
    one_process = _distribution is None or _distribution.processes == 1
    if one_process or in_stateless_scope() or not variables:
        return results()
    return engine.metrics_of_all_processes(variables, results, _distribution)


@contextlib.contextmanager
def predicting(dataset):
    """Give what `predict` iterates over, and a function that takes filling rows off its outputs.

    On PyTorch each process predicts by itself, and all of it.
    """
    if _distribution is None or not engine.PREDICTS_TOGETHER:
        yield dataset, lambda outputs: outputs
        return
    if _distribution.processes > 1:
        raise ValueError(
            "`predict` runs in one process. Received: a model distributed over "
            f"{_distribution.processes}. Save it with `save_to_preset` and predict with what "
            "`from_preset` loads."
        )
    replicas = _distribution.replicas
    yield (
        batches(dataset),
        lambda outputs: global_batch.without_filling(outputs, dataset, replicas),
    )


def saving(variables):
    """Return what is held while variables are read that are split over several hosts.

    Every process has to come here: each has a part of them.
    """
    if _distribution is None or _distribution.processes == 1:
        return contextlib.nullcontext()
    return engine.saving(variables)
