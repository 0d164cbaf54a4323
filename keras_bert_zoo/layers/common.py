"""What several layers share: activations by BERT's names, the initialiser, argument checks."""

from collections.abc import Callable
from functools import partial
from numbers import Integral, Real

import keras

INITIALIZER_RANGE = 0.02

_ACTIVATIONS = {
    "gelu": partial(keras.ops.gelu, approximate=False),
    "gelu_tanh": partial(keras.ops.gelu, approximate=True),
    "relu": keras.ops.relu,
    "silu": keras.ops.silu,
    "tanh": keras.ops.tanh,
}


def activation_function(name: str) -> Callable:
    """Return the activation called `name`: exact GELU is `"gelu"`, its tanh form `"gelu_tanh"`."""
    if not isinstance(name, str) or name not in _ACTIVATIONS:
        raise ValueError(
            f"`hidden_activation` must be one of {sorted(_ACTIVATIONS)}. Received: {name!r}."
        )
    return _ACTIVATIONS[name]


def initializer() -> keras.initializers.Initializer:
    """Return BERT's weight initialiser, a truncated normal of standard deviation 0.02."""
    return keras.initializers.TruncatedNormal(stddev=INITIALIZER_RANGE)


def check_positive_int(**arguments: int) -> None:
    """Refuse, by name, every argument that is not an integer of at least 1."""
    for name, value in arguments.items():
        if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
            raise ValueError(f"`{name}` must be an integer of at least 1. Received: {value!r}.")


def check_rate(**arguments: float) -> None:
    """Refuse, by name, every dropout rate outside [0, 1)."""
    for name, value in arguments.items():
        if not isinstance(value, Real) or isinstance(value, bool) or not 0 <= value < 1:
            raise ValueError(f"`{name}` must be a number in [0, 1). Received: {value!r}.")


def check_epsilon(layer_norm_epsilon: float) -> None:
    """Refuse what can't be added to a variance."""
    if not isinstance(layer_norm_epsilon, Real) or not layer_norm_epsilon > 0:
        raise ValueError(f"`layer_norm_epsilon` must be over 0. Received: {layer_norm_epsilon!r}.")


def check_heads(hidden_dim: int, num_heads: int) -> None:
    """Refuse a width that the heads do not divide evenly."""
    check_positive_int(hidden_dim=hidden_dim, num_heads=num_heads)
    if hidden_dim % num_heads:
        raise ValueError(
            "`hidden_dim` must be a multiple of `num_heads`. "
            f"Received: hidden_dim={hidden_dim}, num_heads={num_heads}."
        )
