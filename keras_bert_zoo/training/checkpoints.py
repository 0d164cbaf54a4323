"""Checkpoints: all that decides how a run goes on, in files that are whole or not there.

A checkpoint is `step_<number>.safetensors`, the values of every variable, and
`step_<number>.json`, which appears last and holds the first one's hash: a file that was cut
short or has changed is noticed, and the checkpoint before it is used. Of several processes with
data of their own, each but the first adds `step_<number>.shard_<its own>.json`, its notes.

`keras.callbacks.OrbaxCheckpoint` would add writing in the background and from every host, at the
price of JAX beside each backend; this is one small file that serves all three.
"""

import errno
import hashlib
import json
import pathlib
import re
import warnings
from typing import NamedTuple

import keras
import numpy as np

from keras_bert_zoo.training import distribution
from keras_bert_zoo.whole_files import write_whole

_NAME = re.compile(r"step_(\d+)\.json")


class Checkpoint(NamedTuple):
    """A checkpoint that was found whole: its step, what was noted with it, its values."""

    step: int
    notes: dict
    values: dict[str, np.ndarray]


def save(folder: pathlib.Path, step: int, model: keras.Model, notes: dict, keep: int) -> None:
    """Write the model's state at a step, then remove all but the newest `keep` checkpoints.

    All processes call it, and the first one writes; where the data are shared out, each its
    own notes.

    Raises:
        OSError: it could not be written, as on a full disk; older checkpoints stay.
    """
    variables = _variables(model)
    name = f"step_{step:08d}"
    shard, shards = distribution.data_shard()
    if shard:
        write_whole(_shard_file(folder, step, shard), json.dumps(notes).encode())
    with distribution.saving(variables):
        if not distribution.is_first_process():
            return
        values = {
            # Its own `numpy`, which has a TensorFlow replica's copy too.
            name: np.array(variable.numpy())
            for name, variable in _named(variables)
        }
    from safetensors.numpy import save as to_bytes

    content = to_bytes(values)
    digest = hashlib.sha256(content).hexdigest()
    facts = {"step": step, "sha256": digest, "shards": shards, "notes": notes}
    try:
        write_whole(folder / f"{name}.safetensors", content)
        write_whole(folder / f"{name}.json", json.dumps(facts, indent=1).encode())
    except OSError as error:
        reason = "the disk is full" if error.errno == errno.ENOSPC else error.strerror
        raise OSError(
            f"The checkpoint of step {step} could not be written: {reason}. Older ones in "
            f"{str(folder)!r} are whole; the same command goes on from the newest."
        ) from error
    for old in sorted(_steps(folder))[:-keep]:
        # The hash goes first: without it the rest is no checkpoint.
        (folder / f"step_{old:08d}.json").unlink()
        for path in folder.glob(f"step_{old:08d}.*"):
            path.unlink()


def newest(folder: pathlib.Path) -> Checkpoint | None:
    """Return the newest checkpoint that is whole, or None; each one that is not is warned of."""
    from safetensors.numpy import load

    shard, _ = distribution.data_shard()
    for step in sorted(_steps(folder), reverse=True):
        name = f"step_{step:08d}"
        try:
            facts = json.loads((folder / f"{name}.json").read_text())
            content = (folder / f"{name}.safetensors").read_bytes()
            whole = hashlib.sha256(content).hexdigest() == facts["sha256"]
            notes = [facts["notes"]] + [
                json.loads(_shard_file(folder, step, other).read_text())
                for other in range(1, facts["shards"])
            ]
        except (OSError, ValueError, KeyError):
            whole = False
        if whole:
            # On more processes than there were, the new ones have no notes of their own.
            return Checkpoint(step, notes[shard if shard < len(notes) else 0], load(content))
        warnings.warn(
            f"The checkpoint of step {step} in {str(folder)!r} is damaged; an older one is used.",
            stacklevel=2,
        )
    return None


def restore(model: keras.Model, checkpoint: Checkpoint) -> None:
    """Give a compiled model the state of a checkpoint.

    Raises:
        ValueError: the checkpoint is one of another model.
    """
    variables = dict(_named(_variables(model)))
    values = checkpoint.values
    shapes = {name: tuple(variable.shape) for name, variable in variables.items()}
    if {name: value.shape for name, value in values.items()} != shapes:
        raise ValueError(
            f"The checkpoint of step {checkpoint.step} is one of another model: its variables have "
            "other names or shapes."
        )
    for name, variable in variables.items():
        variable.assign(values[name])


def _shard_file(folder, step, shard):
    return folder / f"step_{step:08d}.shard_{shard}.json"


def _steps(folder):
    if not folder.is_dir():
        return []
    matches = (_NAME.fullmatch(path.name) for path in folder.iterdir())
    return [int(match[1]) for match in matches if match]


def _variables(model):
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    # Seeds are among a model's variables; Keras's own weights files leave them out.
    return [*model.variables, *model.optimizer.variables]


def _named(variables):
    """Return (name, variable) pairs; a place makes each name the only one of its kind."""
    return [(f"{place:05d}/{variable.name}", variable) for place, variable in enumerate(variables)]
