"""LoRA: a dense layer that keeps its kernel and learns a change of it of low rank."""

import keras
from keras import ops

from keras_bert_zoo.layers.common import check_positive_int
from keras_bert_zoo.layers.products import matrix_product

_FACTORS = ("lora_kernel_a", "lora_kernel_b")


class LoraDense(keras.layers.Dense):
    """`keras.layers.Dense` whose `enable_lora` follows Hu et al. 2021 to the end.

    The output is `x W + (lora_alpha / rank) x A B + bias`, `W` and the bias still, and no gradient
    of `W` is ever computed. Keras's own adds `A B` to `W` first, trains the bias, lets
    `trainable = True` free `W` again, and saves the sum alone, so that a saved layer
    could not be trained on.

    Example:
        >>> from keras_bert_zoo.layers.lora import LoraDense
        >>> dense = LoraDense(3)
        >>> dense.build((None, 4))
        >>> dense.enable_lora(2)
        >>> [variable.name for variable in dense.trainable_variables]
        ['lora_kernel_a', 'lora_kernel_b']
    """

    def enable_lora(
        self,
        rank: int,
        lora_alpha: float | None = None,
        a_initializer="he_uniform",
        b_initializer="zeros",
    ) -> None:
        """Add `A` (inputs, rank) and `B` (rank, units), float32; `lora_alpha` is `rank` if None.

        Raises:
            ValueError: the layer is not built, is quantised or has LoRA already.
        """
        check_positive_int(rank=rank)
        if self.quantization_mode is not None:
            raise ValueError(f"The layer {self.path!r} is quantised; LoRA is for float kernels.")
        super().enable_lora(rank, lora_alpha, a_initializer, b_initializer)
        self._set_plain_trainable(False)

    def factors(self) -> list:
        """Return the variables `A` and `B` of a layer that has LoRA."""
        return [getattr(self, name) for name in _FACTORS]

    def merge_lora(self) -> None:
        """Add `A B` to the kernel and take the factors away; the layer is a plain one then."""
        self._kernel.assign(self.kernel)
        for name in _FACTORS:
            self._untrack_variable(getattr(self, name))
            delattr(self, name)
        self.lora_enabled = False
        self.lora_rank = self.lora_alpha = None
        self._set_plain_trainable(self.trainable)

    @property
    def trainable(self) -> bool:
        """Whether the layer is trained: with LoRA, the factors of the change alone."""
        return keras.layers.Dense.trainable.fget(self)

    @trainable.setter
    def trainable(self, value: bool) -> None:
        keras.layers.Dense.trainable.fset(self, value)
        if getattr(self, "lora_enabled", False):
            self._set_plain_trainable(False)

    def call(self, inputs, training=None):
        """Transform `inputs` (rows, inputs)."""
        if not self.lora_enabled:
            return super().call(inputs, training=training)
        low, high = (ops.cast(factor, inputs.dtype) for factor in self.factors())
        change = matrix_product(matrix_product(inputs, low), high)
        outputs = matrix_product(inputs, self._kernel, self.bias)
        outputs = outputs + (self.lora_alpha / self.lora_rank) * change
        return outputs if self.activation is None else self.activation(outputs)

    def save_own_variables(self, store):
        """Write the kernel as it was, and the factors of its change beside it."""
        if not self.lora_enabled:
            super().save_own_variables(store)
            return
        for name, variable in self._by_name().items():
            store[name] = variable

    def load_own_variables(self, store):
        """Read what `save_own_variables` wrote; a plain layer's weights leave the factors be."""
        if not self.lora_enabled:
            super().load_own_variables(store)
            return
        for name, variable in self._by_name().items():
            if name in store or name not in _FACTORS:
                variable.assign(store[name])

    def _plain(self):
        return [variable for variable in (self._kernel, self.bias) if variable is not None]

    def _set_plain_trainable(self, value):
        for variable in self._plain():
            variable.trainable = value

    def _by_name(self):
        """Return the variables by the names they are saved under, the plain ones as Keras does."""
        return {
            **{str(i): variable for i, variable in enumerate(self._plain())},
            **dict(zip(_FACTORS, self.factors(), strict=True)),
        }
