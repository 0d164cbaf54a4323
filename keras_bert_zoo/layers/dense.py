"""Dense layers as one product of two matrices."""

import keras
from keras import ops

from keras_bert_zoo.layers.gelu import in_training
from keras_bert_zoo.layers.lora import LoraDense
from keras_bert_zoo.layers.products import matrix_product


@keras.saving.register_keras_serializable("keras_bert_zoo")
class BertDense(LoraDense):
    """`keras.layers.Dense` over the rows of (..., inputs), all axes before the last as one.

    The gradient of the kernel is then a plain product too: over two axes XLA takes more than
    twice the time for it on a processor.

    Example:
        >>> tuple(BertDense(4)(keras.ops.ones((2, 3, 8))).shape)
        (2, 3, 4)
    """

    def call(self, inputs, training=None):
        """Transform `inputs` (..., inputs)."""
        rows = ops.reshape(inputs, (-1, inputs.shape[-1]))
        if self.quantization_mode is not None or self.lora_enabled:
            outputs = super().call(rows, training=training)
        else:
            outputs = matrix_product(rows, self.kernel, self.bias if self.use_bias else None)
            if self.activation is not None:
                activation = in_training(self.activation) if training else self.activation
                outputs = activation(outputs)
        return ops.reshape(outputs, (*ops.shape(inputs)[:-1], self.units))
