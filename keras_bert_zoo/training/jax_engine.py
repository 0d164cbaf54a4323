"""JAX's engine for many devices: `keras.distribution`, data parallel or data x model parallel.

Keras compiles one step over all devices, so batches, losses and metrics are global from the
start, and one mask of dropout is drawn for the global batch.
"""

import contextlib
import os

import keras

from keras_bert_zoo.training.global_batch import Distribution, part_of

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
    r"(.*/)?(pooler|qa_outputs|\w+_head(/dense)?)/kernel": (None, None),
    r"(.*/)?(pooler|qa_outputs|\w+_head(/dense)?)/bias": (None,),
}


def layout_map(mesh: keras.distribution.DeviceMesh) -> keras.distribution.LayoutMap:
    """Return `LAYOUT` over a mesh with an axis called `"model"`."""
    layouts = keras.distribution.LayoutMap(mesh)
    for path, axes in LAYOUT.items():
        layouts[path] = axes
    return layouts


# === Begin and end ===


def begin(strategy: str, model_devices: int) -> dict[str, int]:
    """Train on all devices; return how a batch is shared out over them."""
    import jax

    named = any(name.startswith("KERAS_DISTRIBUTION_") for name in os.environ)
    if named and not jax.distributed.is_initialized():
        keras.distribution.initialize()
    engine = STRATEGIES[strategy](model_devices)
    keras.distribution.set_distribution(engine)
    return {
        "replicas": engine.num_model_replicas,
        "shards": min(engine.num_processes, engine.num_model_replicas),
        "shard": engine.data_shard_id,
        "processes": engine.num_processes,
        "process": jax.process_index(),
    }


def _data(_):
    return keras.distribution.DataParallel(auto_shard_dataset=False)


def _data_and_model(model_devices):
    devices = keras.distribution.list_devices()
    if len(devices) % model_devices:
        raise ValueError(
            f"`model_devices` must divide the number of devices, {len(devices)}. "
            f"Received: {model_devices}."
        )
    shape = (len(devices) // model_devices, model_devices)
    mesh = keras.distribution.DeviceMesh(shape, ["batch", "model"], devices)
    return keras.distribution.ModelParallel(
        layout_map=layout_map(mesh), batch_dim_name="batch", auto_shard_dataset=False
    )


STRATEGIES = {"data": _data, "data+model": _data_and_model}


def end() -> None:
    """Train on one device again."""
    keras.distribution.set_distribution(None)


# === A run ===


def batches(dataset, parts: Distribution):
    """Return this process's part of a dataset of global batches."""
    return part_of(dataset, parts, parts.shards, parts.shard)


def make_global(model, parts: Distribution) -> None:
    """Do nothing: losses and gradients are global."""


@contextlib.contextmanager
def training(model, call, parts: Distribution):
    """Give `call` back, the forward pass: the compiled step is over all devices."""
    yield call


def metrics_of_all_processes(variables, results, parts: Distribution):
    """Return the metrics' `results()`, which are global."""
    return results()


PREDICTS_TOGETHER = True


@contextlib.contextmanager
def saving(variables):
    """Hold the weights that are split over several hosts whole, so that one can read them all.

    Every process has to come here: each has a part of them.
    """
    import jax

    split = [variable for variable in variables if not _readable(variable.value)]
    shards = [variable.value for variable in split]
    engine = keras.distribution.distribution()
    try:
        for variable, value in zip(split, shards, strict=True):
            mesh, whole = value.sharding.mesh, jax.sharding.PartitionSpec()
            everywhere = jax.sharding.NamedSharding(mesh, whole)
            variable._value = jax.jit(lambda x: x, out_shardings=everywhere)(value)
        # While it saves Keras makes variables, which all processes would have to make together.
        keras.distribution.set_distribution(None)
        yield
    finally:
        keras.distribution.set_distribution(engine)
        for variable, value in zip(split, shards, strict=True):
            variable._value = value


def _readable(value):
    return value.is_fully_addressable or value.is_fully_replicated
