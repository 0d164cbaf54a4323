"""BERT on Keras 3: one definition for TensorFlow, JAX and PyTorch."""

from keras_bert_zoo import layers, models, preprocessing
from keras_bert_zoo.version import __version__

__all__ = ["__version__", "layers", "models", "preprocessing"]
