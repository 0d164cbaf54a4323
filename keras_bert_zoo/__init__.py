"""BERT on Keras 3: one definition for TensorFlow, JAX and PyTorch."""

from keras_bert_zoo import data, layers, models, preprocessing, training
from keras_bert_zoo.freed_memory import keep_freed_memory
from keras_bert_zoo.presets import from_preset, list_presets, load_tokenizer
from keras_bert_zoo.version import __version__

__all__ = [
    "__version__",
    "data",
    "from_preset",
    "keep_freed_memory",
    "layers",
    "list_presets",
    "load_tokenizer",
    "models",
    "preprocessing",
    "training",
]
