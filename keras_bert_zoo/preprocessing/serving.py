"""A trained model as a SavedModel that takes strings, for TensorFlow Serving and its like."""

import os
from collections.abc import Callable

from keras_bert_zoo.preprocessing.lazy_tensorflow import tf


def save_strings_model(
    folder: str | os.PathLike, preprocessor, outputs: Callable, variables, pairs: bool
) -> None:
    """Write a SavedModel from texts to named outputs, tokenising included.

    A process that loads it needs tensorflow and tensorflow_text and nothing else.

    Args:
        folder: where to write.
        preprocessor: makes a model's inputs of one or two string tensors.
        outputs: from those inputs to a dictionary of tensors, in TensorFlow.
        variables: the `tf.Variable`s that `outputs` reads.
        pairs: take `first` and `second` instead of `texts`.
    """
    names = ["first", "second"] if pairs else ["texts"]
    module = tf.Module()
    module.weights = list(variables)

    def serve(*texts):
        return outputs(preprocessor.pack(*texts))

    signature = [tf.TensorSpec([None], tf.string, name=name) for name in names]
    module.serve = tf.function(serve, input_signature=signature)
    tf.saved_model.save(module, os.fspath(folder), signatures={"serving_default": module.serve})
