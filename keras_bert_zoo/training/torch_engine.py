"""PyTorch's engine for many devices: DistributedDataParallel, a process a device, by torchrun.

Each process is one replica with a part of every batch; gradients are averaged behind the
forward pass.
"""

import contextlib
import os

from keras.src.backend.common.stateless_scope import in_stateless_scope

from keras_bert_zoo.training.global_batch import Distribution, GlobalLoss, part_of, seed_offset

# === Begin and end ===


STRATEGIES = ("data",)


def begin(strategy: str, model_devices: int) -> dict[str, int]:
    """Join the processes that torchrun started; return how a batch is shared out over them."""
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


def end() -> None:
    """Leave the other processes."""
    import torch

    torch.distributed.destroy_process_group()


# === A run ===


def batches(dataset, parts: Distribution):
    """Return this process's part of a dataset of global batches."""
    return part_of(dataset, parts, parts.shards, parts.shard)


def make_global(model, parts: Distribution) -> None:
    """Make a compiled model's losses those of the global batch."""
    if model._compile_loss is not None:
        # Gradients are averaged, those of a sum too.
        model._compile_loss = GlobalLoss(
            model._compile_loss, parts.replicas, _sum_over_replicas, parts.replicas
        )


def _sum_over_replicas(value):
    # There Keras only asks for shapes.
    if in_stateless_scope():
        return value
    import torch

    total = value.clone()
    torch.distributed.all_reduce(total)
    return total


@contextlib.contextmanager
def training(model, call, parts: Distribution):
    """Give a forward pass that averages gradients; replicas begin alike and draw dropout apart."""
    parallel = _data_parallel(model, call)
    seeds = [v for v in model.variables if v.name == "seed_generator_state"]
    offset = seed_offset(parts.process)
    for variable in seeds:
        variable.value.detach()[0] += offset
    try:
        with _own_random_numbers(offset):
            yield parallel
    finally:
        for variable in seeds:
            variable.value.detach()[0] -= offset


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


@contextlib.contextmanager
def _own_random_numbers(offset):
    """Draw from PyTorch's own generator, as a dropout without a seed does, apart too."""
    import torch

    seed = int(torch.randint(2**31, ()))
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed + offset)
        yield


def metrics_of_all_processes(variables, results, parts: Distribution):
    """Return `results()` with the metrics' variables, which are sums, summed over processes."""
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


# Each process predicts by itself, and all of it.
PREDICTS_TOGETHER = False


def saving(variables):
    """Do nothing: each process has the whole model."""
    return contextlib.nullcontext()
