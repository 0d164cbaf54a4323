"""TensorFlow's engine for many devices: `tf.distribute`, on GPUs, several workers or TPUs.

Keras runs its step in each replica, on a part of the batch, and adds up their gradients.
"""

import contextlib
import functools
import os

import keras
from keras import ops

from keras_bert_zoo.preprocessing.lazy_tensorflow import tf
from keras_bert_zoo.training.global_batch import Distribution, GlobalLoss, part_of, seed_offset

# === Begin and end ===


def begin(strategy: str, model_devices: int) -> dict[str, int]:
    """Train on all devices; return how a batch is shared out over them."""
    engine = STRATEGIES[strategy]()
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


# An engine is made once in a process: a second one's messages would be taken for the first's.


@functools.cache
def _mirrored():
    # Without a GPU TensorFlow would take the first of several CPU devices alone.
    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    return tf.distribute.MirroredStrategy([device.name for device in devices])


@functools.cache
def _multi_worker():
    return tf.distribute.MultiWorkerMirroredStrategy()


@functools.cache
def _tpu():
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
        os.environ.get("TPU_NAME", "local")
    )
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver)


def _data():
    workers = tf.distribute.cluster_resolver.TFConfigClusterResolver().cluster_spec().as_dict()
    return _multi_worker() if len(workers.get("worker", [])) > 1 else _mirrored()


STRATEGIES = {
    "data": _data,
    "mirrored": _mirrored,
    "multi_worker": _multi_worker,
    "tpu": _tpu,
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
    """Make a compiled model's losses and gradients those of the global batch."""
    if model._compile_loss is not None:
        # Gradients are added up, those of a sum as they are.
        model._compile_loss = GlobalLoss(model._compile_loss, parts.replicas, _sum_over_replicas, 1)
    if model.optimizer is not None:
        _reduce_first(model.optimizer)
        _accumulate_together(getattr(model.optimizer, "inner_optimizer", model.optimizer))


def _in_replica():
    # Outside a step Keras only asks for shapes.
    return tf.distribute.get_replica_context() is not None


def _sum_over_replicas(value):
    if not _in_replica():
        return value
    return tf.distribute.get_replica_context().all_reduce("SUM", value)


def _reduce_first(optimizer):
    """Let an optimiser clip the global batch's gradient, and look for NaN there.

    Keras's sums over the replicas last, and a lookup's gradient it would only string together,
    row for row, so that Adam would square each instead of their sum.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    # The class's: a model may be compiled again with the same optimiser.
    apply, sum_over_replicas = type(optimizer).apply, type(inner)._all_reduce_sum_gradients

    def apply_sums(gradients, variables=None):
        dense = [None if g is None else tf.convert_to_tensor(g) for g in gradients]
        pairs = sum_over_replicas(inner, list(zip(dense, variables, strict=True)))
        apply(optimizer, [gradient for gradient, _ in pairs], variables)

    optimizer.apply = apply_sums
    inner._all_reduce_sum_gradients = lambda pairs: pairs


def _accumulate_together(optimizer):
    """Let an optimiser accumulate gradients on several replicas.

    Keras asks in each replica whether a step is due, and TensorFlow lets none meet the others
    inside a condition. So they meet before it.
    """
    steps = optimizer.gradient_accumulation_steps

    def apply(gradients, variables):
        if tf.__internal__.distribute.strategy_supports_no_merge_call():
            type(optimizer)._backend_apply_gradients(optimizer, gradients, variables)
        else:
            tf.distribute.get_replica_context().merge_call(meet, (gradients, variables))

    def meet(strategy, gradients, variables):
        def in_each(function):
            strategy.extended.call_for_each_replica(function, (gradients, variables))

        def take_step():
            in_each(step)
            optimizer._backend_reset_gradient_accumulators()

        due = (optimizer._iterations + 1) % steps == 0
        ops.cond(due, take_step, lambda: in_each(add))

    def add(gradients, variables):
        optimizer._backend_increment_gradient_accumulators(gradients, accumulators(variables))

    def step(gradients, variables):
        pairs = zip(gradients, accumulators(variables), strict=True)
        means = optimizer._clip_gradients([(g + earlier) / steps for g, earlier in pairs])
        optimizer._apply_weight_decay(variables)
        optimizer._backend_update_step(means, variables, optimizer.learning_rate)

    def accumulators(variables):
        return [
            optimizer._accumulated_gradients[optimizer._get_variable_index(variable)]
            for variable in variables
        ]

    if steps:
        optimizer._backend_apply_gradients = apply


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


@contextlib.contextmanager
def saving(variables):
    """Hold no strategy: variables that Keras makes while it saves are the first process's alone."""
    engine = tf.distribute.get_strategy()
    end()
    try:
        yield
    finally:
        tf.distribute.experimental_set_strategy(engine)
