"""Models whose variables begin with a checkpoint's values, never with random ones."""

from collections.abc import Callable

import keras


def build_with_values(
    make: Callable[[], keras.Model], fill: Callable[[keras.Model], None]
) -> keras.Model:
    """Return a model whose variables come into being when they are first given values.

    So memory holds one copy of the weights and the tensor that is being read.

    Args:
        make: makes the model, of variables with initialisers: one that begins with a number,
            as an optimiser's count does, cannot be made here.
        fill: assigns values to its variables; those it leaves out begin as they always do.

    Example:
        >>> dense = build_with_values(
        ...     lambda: keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]),
        ...     lambda model: model.weights[0].assign([[7.0]]))
        >>> [float(weight.numpy().squeeze()) for weight in dense.weights]
        [7.0, 0.0]
    """
    with _FirstValues():
        model = make()
        fill(model)
    if keras.backend.backend() == "torch":
        # A layer that was built in the scope has not told PyTorch of its parameters.
        for layer in model._flatten_layers():
            layer._track_variables()
    return model


class _FirstValues(keras.StatelessScope):
    """In a stateless scope Keras gives variables their values at its end; here it is sooner."""

    def add_update(self, update):
        """Make the variable of the value it is assigned."""
        variable, value = update
        variable._initialize(value)
        # At the scope's end Keras would begin it again.
        variable._deferred_initialize = _nothing


def _nothing():
    """Do nothing, in the place of what begins a variable."""
