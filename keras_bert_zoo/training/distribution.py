"""Training on many devices, by each backend's own engine, behind one switch.

`distribute` names the engine's part in it: `keras.distribution` on JAX, `tf.distribute` on
TensorFlow, DistributedDataParallel on PyTorch. What the engines leave to the program is here
too, so that a run on many devices is the run on one: global batches are cut into equal parts,
a loss is the mean over the global batch, not a mean of the parts' means, and the metrics are
those of all parts.
"""

import contextlib
import os
from typing import NamedTuple

import keras
import numpy as np
from keras import ops
from keras.src.backend.common.masking import get_keras_mask, set_keras_mask
from keras.src.backend.common.stateless_scope import in_stateless_scope
from keras.src.losses.loss import apply_mask
from keras.src.trainers.compile_utils import CompileLoss

from keras_bert_zoo.layers.common import check_positive_int
from keras_bert_zoo.preprocessing.lazy_tensorflow import tf

BACKEND = keras.backend.backend()

# Where each weight is split over the devices of the mesh's axis "model". Queries, keys and
# values and the intermediate layer are split by columns, which are heads and units; what
# follows them by rows, so that one sum over the devices ends each half of a layer. Of the
# token table the columns are split, because few vocabularies have a size that divides.
LAYOUT = {
    r".*/token_embedding/embeddings": (None, "model"),
    r".*/(position|segment)_embedding/embeddings": (None, None),
    r".*/attention/qkv/kernel": (None, "model"),
    r".*/attention/qkv/bias": ("model",),
    r".*/attention/output/kernel": ("model", None),
    r".*/intermediate/kernel": (None, "model"),
    r".*/intermediate/bias": ("model",),
    r".*encoder_layer_\d+/output/kernel": ("model", None),
    r".*/output/bias": (None,),
    r".*layer_norm/(gamma|beta)": (None,),
    r"(.*/)?(pooler|\w+_head(/dense)?)/kernel": (None, None),
    r"(.*/)?(pooler|\w+_head(/dense)?)/bias": (None,),
}


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


_distribution = None


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
    strategies = _STRATEGIES[BACKEND]
    if strategy is not None and strategy not in strategies:
        raise ValueError(
            f"`strategy` must be None or one of {list(strategies)} on the {BACKEND} backend. "
            f"Received: {strategy!r}."
        )
    check_positive_int(model_devices=model_devices)
    _RESETS[BACKEND]()
    _distribution = None
    if strategy is not None:
        parts = strategies[strategy](model_devices)
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


# === JAX ===


def layout_map(mesh: keras.distribution.DeviceMesh) -> keras.distribution.LayoutMap:
    """Return `LAYOUT` over a mesh with an axis called `"model"`."""
    layouts = keras.distribution.LayoutMap(mesh)
    for path, axes in LAYOUT.items():
        layouts[path] = axes
    return layouts


def _jax_data(_):
    _start_jax_processes()
    return _set_jax(keras.distribution.DataParallel(auto_shard_dataset=False))


def _jax_data_and_model(model_devices):
    _start_jax_processes()
    devices = keras.distribution.list_devices()
    if len(devices) % model_devices:
        raise ValueError(
            f"`model_devices` must divide the number of devices, {len(devices)}. "
            f"Received: {model_devices}."
        )
    shape = (len(devices) // model_devices, model_devices)
    mesh = keras.distribution.DeviceMesh(shape, ["batch", "model"], devices)
    return _set_jax(
        keras.distribution.ModelParallel(
            layout_map=layout_map(mesh), batch_dim_name="batch", auto_shard_dataset=False
        )
    )


def _start_jax_processes():
    import jax

    named = any(name.startswith("KERAS_DISTRIBUTION_") for name in os.environ)
    if named and not jax.distributed.is_initialized():
        keras.distribution.initialize()


def _set_jax(engine):
    import jax

    keras.distribution.set_distribution(engine)
    return {
        "replicas": engine.num_model_replicas,
        "shards": min(engine.num_processes, engine.num_model_replicas),
        "shard": engine.data_shard_id,
        "processes": engine.num_processes,
        "process": jax.process_index(),
    }


@contextlib.contextmanager
def saving(variables):
    """Hold the weights that are split over several hosts whole, so that one can read them all.

    Every process has to come here: each has a part of them.
    """
    if BACKEND != "jax" or _distribution is None or _distribution.processes == 1:
        yield
        return
    import jax

    split = [variable for variable in variables if not _readable(variable.value)]
    parts = [variable.value for variable in split]
    engine = keras.distribution.distribution()
    try:
        for variable, value in zip(split, parts, strict=True):
            mesh, whole = value.sharding.mesh, jax.sharding.PartitionSpec()
            everywhere = jax.sharding.NamedSharding(mesh, whole)
            variable._value = jax.jit(lambda x: x, out_shardings=everywhere)(value)
        # While it saves Keras makes variables, which all processes would have to make together.
        keras.distribution.set_distribution(None)
        yield
    finally:
        keras.distribution.set_distribution(engine)
        for variable, value in zip(split, parts, strict=True):
            variable._value = value


def _readable(value):
    return value.is_fully_addressable or value.is_fully_replicated


# === TensorFlow ===


def _tensorflow_data(_):
    workers = tf.distribute.cluster_resolver.TFConfigClusterResolver().cluster_spec().as_dict()
    return (_multi_worker if len(workers.get("worker", [])) > 1 else _mirrored)(_)


def _mirrored(_):
    # Without a GPU TensorFlow would take the first of several CPU devices alone.
    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    return _set_tensorflow(tf.distribute.MirroredStrategy([device.name for device in devices]))


def _multi_worker(_):
    return _set_tensorflow(tf.distribute.MultiWorkerMirroredStrategy())


def _tpu(_):
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
        os.environ.get("TPU_NAME", "local")
    )
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return _set_tensorflow(tf.distribute.TPUStrategy(resolver))


def _set_tensorflow(engine):
    tf.distribute.experimental_set_strategy(engine)
    # A TPU pod's hosts are fed by this one process.
    workers = isinstance(engine, tf.distribute.MultiWorkerMirroredStrategy)
    resolver = engine.cluster_resolver
    processes = len(resolver.cluster_spec().as_dict().get("worker", [0])) if workers else 1
    process = (resolver.task_id or 0) if workers else 0
    return {
        "replicas": engine.num_replicas_in_sync,
        "shards": processes,
        "shard": process,
        "processes": processes,
        "process": process,
    }


def first_replicas_batch(iterator):
    """Return what the first replica gets of an epoch's first batch."""
    strategy = tf.distribute.get_strategy()
    _, _, batches_left = next(iter(iterator))
    return keras.tree.map_structure(
        lambda x: strategy.experimental_local_results(x)[0], next(batches_left)
    )


def _in_replica():
    return tf.distribute.get_replica_context() is not None


def reduce_before_clipping(optimizer) -> None:
    """Let a TensorFlow optimiser clip the global batch's gradient, not each replica's.

    Keras's clips first and sums over the replicas then. A lookup's gradient it would only
    string together, row for row, and Adam would square each instead of their sum.
    """
    apply_gradients = optimizer._backend_apply_gradients
    sum_over_replicas = optimizer._all_reduce_sum_gradients

    def apply_sums(gradients, variables):
        dense = [None if g is None else tf.convert_to_tensor(g) for g in gradients]
        pairs = sum_over_replicas(list(zip(dense, variables, strict=True)))
        apply_gradients([gradient for gradient, _ in pairs], variables)

    optimizer._backend_apply_gradients = apply_sums
    optimizer._all_reduce_sum_gradients = lambda pairs: pairs


# === PyTorch ===

# Of each model that is being trained, its DistributedDataParallel.
_parallel_calls = {}


def _torch_data(_):
    import torch

    missing = [name for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK") if name not in os.environ]
    if missing:
        raise ValueError(
            '`strategy="data"` on PyTorch needs processes started by torchrun, for instance '
            "`torchrun --nproc-per-node 8 train.py`. The environment has no "
            f"{', '.join(missing)}."
        )
    gpu = torch.cuda.is_available() and os.environ.get("KERAS_TORCH_DEVICE", "cuda") == "cuda"
    if gpu:
        # Keras says "cuda", which is the process's current device.
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("nccl" if gpu else "gloo")
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    return {"replicas": world, "shards": world, "shard": rank, "processes": world, "process": rank}


def _torch_reset():
    import torch

    if _distribution is not None:
        torch.distributed.destroy_process_group()


@contextlib.contextmanager
def training(model, call):
    """Hold while a model is trained: its replicas begin alike and draw dropout apart.

    `call` is the model's own forward pass; on PyTorch gradients are averaged behind it.
    """
    if _distribution is None:
        yield
        return
    if BACKEND == "torch":
        _parallel_calls[id(model)] = _data_parallel(model, call)
    _shift_seeds(model, 1)
    try:
        with _own_random_numbers():
            yield
    finally:
        _shift_seeds(model, -1)
        _parallel_calls.pop(id(model), None)


def _data_parallel(model, call):
    import torch

    for variable in model.variables:
        torch.distributed.broadcast(variable.value.detach(), src=0)

    class Forward(torch.nn.Module):
        """The forward pass with the weights that are trained, and no others, as parameters."""

        def __init__(self):
            super().__init__()
            self.weights = torch.nn.ParameterList(v.value for v in model.trainable_variables)

        def forward(self, *args, **kwargs):
            return call(*args, **kwargs)

    return torch.nn.parallel.DistributedDataParallel(Forward())


def training_call(model, call):
    """Return what runs a training step's forward pass: `call`, or what averages gradients."""
    return _parallel_calls.get(id(model), call)


def metrics_of_all_processes(variables, results):
    """Return `results()` of metrics whose `variables` are summed over PyTorch's processes.

    Keras's metrics are made of sums. On JAX and TensorFlow they are global already.
    """
    one_process = _distribution is None or _distribution.processes == 1
    if one_process or BACKEND == "jax" or in_stateless_scope() or not variables:
        return results()
    if BACKEND == "tensorflow":
        # Keras takes the mean over the workers along the first axis, which a number has not.
        shape = (1,) if _in_replica() else ()
        return {name: ops.reshape(value, shape) for name, value in results().items()}
    import torch

    own = [variable.value.detach().clone() for variable in variables]
    sums = torch.cat([value.flatten().double() for value in own])
    torch.distributed.all_reduce(sums)
    for variable, total in zip(variables, sums.split([v.numel() for v in own]), strict=True):
        variable.assign(total.reshape(variable.shape).to(variable.value.dtype))
    try:
        return {name: torch.clone(value) for name, value in results().items()}
    finally:
        for variable, value in zip(variables, own, strict=True):
            variable.assign(value)


# === A global batch in parts ===


def batches(dataset):
    """Return a dataset of global batches as what this process's `fit` iterates over.

    A batch that the replicas do not divide is filled up with rows of padding, which count in
    no loss and no metric.
    """
    if _distribution is None:
        return dataset
    if BACKEND != "tensorflow":
        return _own_part(dataset, _distribution.shards, _distribution.shard)

    def feed(context):
        local = _distribution.replicas // context.num_input_pipelines
        part = _own_part(dataset, context.num_input_pipelines, context.input_pipeline_id)
        # TensorFlow takes an element a replica.
        return part.map(lambda *element: _in_parts(element, local)).unbatch()

    distributed = tf.distribute.get_strategy().distribute_datasets_from_function(feed)
    # Keras takes it for the steps of an epoch.
    distributed._cardinality = int(dataset.cardinality())
    return distributed


def _own_part(dataset, shards, shard):
    multiple = _distribution.replicas
    if _distribution.reads_own_shard:
        multiple, shards, shard = multiple // shards, 1, 0

    def cut(*element):
        element = [part for part in element if part is not None]
        rows = tf.shape(element[0]["token_ids"])[0]
        size = -(-rows // multiple) * multiple // shards

        def cut_rows(x):
            filling = tf.concat([[size * shards - rows], tf.shape(x)[1:]], 0)
            filled = tf.concat([x, tf.zeros(filling, x.dtype)], 0)
            part = filled[shard * size : (shard + 1) * size]
            if x.shape[0] is not None:
                # A TPU wants to know it beforehand.
                static = -(-x.shape[0] // multiple) * multiple // shards
                part.set_shape([static, *x.shape[1:]])
            return part

        return keras.utils.pack_x_y_sample_weight(*tf.nest.map_structure(cut_rows, element))

    return dataset.map(cut, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def _in_parts(element, count):
    def split(x):
        rows = None if x.shape[0] is None else x.shape[0] // count
        parts = tf.reshape(x, tf.concat([[count, tf.shape(x)[0] // count], tf.shape(x)[1:]], 0))
        parts.set_shape([count, rows, *x.shape[1:]])
        return parts

    return keras.utils.pack_x_y_sample_weight(*tf.nest.map_structure(split, element))


@contextlib.contextmanager
def predicting(dataset):
    """Give what `predict` iterates over, and a function that takes filling rows off its outputs.

    On PyTorch each process predicts by itself, and all of it.
    """
    if _distribution is None or BACKEND == "torch":
        yield dataset, lambda outputs: outputs
        return
    if _distribution.processes > 1:
        raise ValueError(
            "`predict` runs in one process. Received: a model distributed over "
            f"{_distribution.processes}. Save it with `save_to_preset` and predict with what "
            "`from_preset` loads."
        )

    def count(*element):
        rows = tf.shape(element[0]["token_ids"])[0]
        filled = -(-rows // _distribution.replicas) * _distribution.replicas
        return tf.range(filled) < rows

    def real_rows(outputs):
        keep = np.concatenate([rows.numpy() for rows in dataset.map(count)])
        return keras.tree.map_structure(lambda x: x[keep[: len(x)]], outputs)

    yield batches(dataset), real_rows


def mark_real_rows(inputs: dict, outputs):
    """Give the outputs Keras's mask, by which losses and metrics leave rows of padding out."""
    if _distribution is None or inputs is None:
        return outputs
    real = ops.any(ops.cast(inputs["padding_mask"], "bool"), axis=1)

    def mark(output):
        shape = ops.shape(output)[:-1]
        mask = ops.reshape(real, (-1, *[1] * (len(shape) - 1)))
        set_keras_mask(output, ops.broadcast_to(mask, shape))
        return output

    return keras.tree.map_structure(mark, outputs)


# === A loss over the global batch ===


class GlobalLoss(CompileLoss):
    """A model's losses, each the mean over the global batch.

    A part's mean has its own number of masked pieces below the line, so the mean of the
    parts' means is not the global one, nor is its gradient. Here a part's mean is multiplied
    by that number's share in the sum over the replicas, times the replicas. What the engines
    do then, average losses and gradients, gives the global mean and its gradient exactly, at
    the cost of one number a loss sent round. On JAX a part's loss is global from the start.
    """

    def build(self, y_true, y_pred):
        """Resolve the losses as Keras does, and make each of them global."""
        super().build(y_true, y_pred)
        self._flat_losses = [part._replace(loss=_globally(part.loss)) for part in self._flat_losses]


def _globally(loss):
    def global_mean(y_true, y_pred, sample_weight=None):
        if sample_weight is not None:
            # Keras multiplies it by the mask in place, where it may be needed for gradients.
            sample_weight = ops.cast(sample_weight, "float32") * 1
        return loss(y_true, y_pred, sample_weight) * _share(loss.reduction, y_pred, sample_weight)

    return global_mean


def _share(reduction, y_pred, sample_weight):
    """Return what a part's loss is multiplied by."""
    if reduction == "sum":
        # TensorFlow adds up the replicas' gradients, PyTorch averages them.
        return _distribution.replicas if BACKEND == "torch" else 1
    if reduction not in ("mean", "sum_over_batch_size", "mean_with_sample_weight"):
        return 1
    if reduction == "mean_with_sample_weight" and sample_weight is not None:
        weights = sample_weight * 1
    else:
        weights = None
    own = ops.sum(apply_mask(weights, get_keras_mask(y_pred), "float32", reduction="sum"))
    return ops.divide_no_nan(own * _distribution.replicas, _sum_over_replicas(own))


def _sum_over_replicas(value):
    if BACKEND == "tensorflow":
        # Outside a step Keras only asks for shapes.
        return (
            tf.distribute.get_replica_context().all_reduce("SUM", value) if _in_replica() else value
        )
    if not in_stateless_scope():
        import torch

        value = value.clone()
        torch.distributed.all_reduce(value)
    return value


def make_global(model) -> None:
    """Make a compiled model's losses and clipping those of the global batch.

    Raises:
        ValueError: gradients are to be accumulated on TensorFlow, which has no place for
            replicas in a condition.
    """
    if _distribution is None or BACKEND == "jax":
        return
    compiled = model._compile_loss
    if compiled is not None:
        # The user's own losses stay in the saved settings.
        model._compile_loss = GlobalLoss(
            compiled._user_loss, compiled._user_loss_weights, output_names=compiled.output_names
        )
    if BACKEND == "tensorflow" and model.optimizer is not None:
        optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
        if optimizer.gradient_accumulation_steps and _distribution.replicas > 1:
            raise ValueError(
                "`gradient_accumulation_steps` must be None for several replicas on TensorFlow. "
                f"Received: {optimizer.gradient_accumulation_steps} for "
                f"{_distribution.replicas} replicas. JAX and PyTorch accumulate on many devices."
            )
        reduce_before_clipping(optimizer)


# === Dropout ===


def _shift_seeds(model, sign):
    """Move each replica's seeds to a place of its own, or back; the first's stay.

    JAX draws one mask for the global batch.
    """
    seeds = [v for v in model.variables if v.name == "seed_generator_state"]
    if BACKEND == "tensorflow":
        for variable in seeds:
            copies = variable.value.values
            first = _distribution.process * len(copies)
            for replica, copy in enumerate(copies, first):
                copy.assign_add([sign * _seed_offset(replica), 0])
    elif BACKEND == "torch":
        for variable in seeds:
            variable.value.detach()[0] += sign * _seed_offset(_distribution.process)


@contextlib.contextmanager
def _own_random_numbers():
    """Draw from PyTorch's own generator, as a dropout without a seed does, apart too."""
    if BACKEND != "torch":
        yield
        return
    import torch

    seed = int(torch.randint(2**31, ()))
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed + _seed_offset(_distribution.process))
        yield


def _seed_offset(replica):
    # A seed's draws are numbered from it on, so neighbouring seeds would meet.
    return replica * 1_640_531_527 % 2**31


_STRATEGIES = {
    "jax": {"data": _jax_data, "data+model": _jax_data_and_model},
    "tensorflow": {
        "data": _tensorflow_data,
        "mirrored": _mirrored,
        "multi_worker": _multi_worker,
        "tpu": _tpu,
    },
    "torch": {"data": _torch_data},
}

_RESETS = {
    "jax": lambda: keras.distribution.set_distribution(None),
    "tensorflow": lambda: tf.distribute.experimental_set_strategy(None),
    "torch": _torch_reset,
}
