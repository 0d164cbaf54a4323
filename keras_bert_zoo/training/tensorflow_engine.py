"""TensorFlow's engine for many devices: `tf.distribute`, on GPUs, several workers or TPUs.

Keras runs its step in each replica, on a part of the batch, and adds up their gradients.
"""

import contextlib
import os

import keras
from keras import ops

from keras_bert_zoo.preprocessing.lazy_tensorflow import tf
from keras_bert_zoo.training.global_batch import Distribution, GlobalLoss, part_of, seed_offset

# === Begin and end ===


def data(model_devices: int) -> dict[str, int]:
    """Use the workers that `TF_CONFIG` names, else the devices of this machine."""
    workers = tf.distribute.cluster_resolver.TFConfigClusterResolver().cluster_spec().as_dict()
    strategy = multi_worker if len(workers.get("worker", [])) > 1 else mirrored
    return strategy(model_devices)


def mirrored(model_devices: int) -> dict[str, int]:
    """Use all devices of this machine."""
    # Without a GPU TensorFlow would take the first of several CPU devices alone.
    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    return _begin(tf.distribute.MirroredStrategy([device.name for device in devices]))


def multi_worker(model_devices: int) -> dict[str, int]:
    """Use the devices of the workers that `TF_CONFIG` names."""
    return _begin(tf.distribute.MultiWorkerMirroredStrategy())


def tpu(model_devices: int) -> dict[str, int]:
    """Use the TPU called `TPU_NAME`, else this machine's."""
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
        os.environ.get("TPU_NAME", "local")
    )
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return _begin(tf.distribute.TPUStrategy(resolver))


STRATEGIES = {"data": data, "mirrored": mirrored, "multi_worker": multi_worker, "tpu": tpu}


def _begin(engine):
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


def end() -> None:
    """Train on one device again."""
    tf.distribute.experimental_set_strategy(None)


# === Batches ===


def batches(dataset, parts: Distribution):
    """Return what gives each replica of this process its part of a dataset of global batches."""

    def feed(context):
        local = parts.replicas // context.num_input_pipelines
        part = part_of(dataset, parts, context.num_input_pipelines, context.input_pipeline_id)
        # TensorFlow takes an element a replica.
        return part.map(lambda *element: _one_a_replica(element, local)).unbatch()

    distributed = tf.distribute.get_strategy().distribute_datasets_from_function(feed)
    # Keras takes it for the steps of an epoch.
    distributed._cardinality = int(dataset.cardinality())
    # What Keras does with a dataset to weigh its classes.
    distributed.map = lambda weigh: batches(dataset.map(weigh), parts)
    distributed.prefetch = lambda size: distributed
    return distributed


def _one_a_replica(element, count):
    def split(x):
        rows = None if x.shape[0] is None else x.shape[0] // count
        parts = tf.reshape(x, tf.concat([[count, tf.shape(x)[0] // count], tf.shape(x)[1:]], 0))
        parts.set_shape([count, rows, *x.shape[1:]])
        return parts

    return keras.utils.pack_x_y_sample_weight(*tf.nest.map_structure(split, element))


def first_replicas_batch(iterator):
    """Return what the first replica gets of an epoch's first batch."""
    strategy = tf.distribute.get_strategy()
    _, _, batches_left = next(iter(iterator))
    return keras.tree.map_structure(
        lambda x: strategy.experimental_local_results(x)[0], next(batches_left)
    )


# === A run ===


def make_global(model, parts: Distribution) -> None:
    """Make a compiled model's losses and gradients those of the global batch.

    Raises:
        ValueError: gradients are to be accumulated, and there is no place for replicas in a
            condition.
    """
    if model._compile_loss is not None:
        # Gradients are added up, those of a sum as they are.
        model._compile_loss = GlobalLoss(model._compile_loss, parts.replicas, _sum_over_replicas, 1)
    if model.optimizer is not None:
        optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
        if optimizer.gradient_accumulation_steps and parts.replicas > 1:
            raise ValueError(
                "`gradient_accumulation_steps` must be None for several replicas on TensorFlow. "
                f"Received: {optimizer.gradient_accumulation_steps} for {parts.replicas} "
                "replicas. JAX and PyTorch accumulate on many devices."
            )
        _reduce_before_clipping(optimizer)


def _in_replica():
    # Outside a step Keras only asks for shapes.
    return tf.distribute.get_replica_context() is not None


def _sum_over_replicas(value):
    if not _in_replica():
        return value
    return tf.distribute.get_replica_context().all_reduce("SUM", value)


def _reduce_before_clipping(optimizer):
    """Let an optimiser clip the global batch's gradient, not each replica's.

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


@contextlib.contextmanager
def training(model, call, parts: Distribution):
    """Give `call` back, the forward pass; meanwhile each replica draws dropout of its own."""
    copies = [
        (copy, seed_offset(replica))
        for variable in model.variables
        if variable.name == "seed_generator_state"
        for replica, copy in enumerate(
            variable.value.values, parts.process * len(variable.value.values)
        )
    ]
    for copy, offset in copies:
        copy.assign_add([offset, 0])
    try:
        yield call
    finally:
        for copy, offset in copies:
            copy.assign_add([-offset, 0])


def metrics_of_all_processes(variables, results, parts: Distribution):
    """Return the metrics' `results()`, which are global, in a form that Keras takes."""
    # It takes the mean over the workers along the first axis, which a number has not.
    shape = (1,) if _in_replica() else ()
    return {name: ops.reshape(value, shape) for name, value in results().items()}


PREDICTS_TOGETHER = True


def saving(variables):
    """Do nothing: each process has the whole model."""
    return contextlib.nullcontext()
