"""Models whose variables begin with a checkpoint's values, never with random ones."""

import contextvars
from collections.abc import Callable

import keras

_building = contextvars.ContextVar("_building", default=False)


def build_with_values(
    make: Callable[[], keras.Model], fill: Callable[[keras.Model], None]
) -> keras.Model:
    """Return a model whose variables come into being when they are first given values.

    So memory holds one copy of the weights and the tensor that is being read.

    Args:
        make: makes the model.
        fill: assigns values to its variables; those it leaves out begin as they always do.

    Example:
        >>> dense = build_with_values(
        ...     lambda: keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]),
        ...     lambda model: model.weights[0].assign([[7.0]]))
        >>> [float(weight.numpy().squeeze()) for weight in dense.weights]
        [7.0, 0.0]
    """
    token = _building.set(True)
    try:
        with _FirstValues():
            model = make()
            fill(model)
    finally:
        _building.reset(token)
    if keras.backend.backend() == "torch":
        # A layer that was built in the scope has not told PyTorch of its parameters.
        for layer in model._flatten_layers():
            layer._track_variables()
    return model


def is_building() -> bool:
    """Say whether a model is just being made for `build_with_values`."""
    return _building.get()


class _FirstValues(keras.StatelessScope):
    """In a stateless scope Keras gives variables their values at its end; here it is sooner."""

    def add_update(self, update):
        """Make the variable of the value it is assigned."""
        variable, value = update
        variable._initialize(value)
        # At the scope's end Keras would begin it again.
        variable._deferred_initialize = _nothing


def _nothing():
    """Stand where a variable's own way to begin was."""
