"""TensorFlow and tf-text, imported when the first text is tokenised.

Preprocessing is one tf-text graph on every backend, but a program that runs JAX
or PyTorch and never tokenises a text should not pay for TensorFlow's import.
"""

import importlib
import sys
import types

import keras


class _LazyModule(types.ModuleType):
    """Stands for a module and imports it when one of its names is first read."""

    def __getattr__(self, name: str):
        if self.__name__ not in sys.modules:
            _import(self.__name__)
        return getattr(sys.modules[self.__name__], name)


def _import(name: str) -> None:
    try:
        importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"Tokenising text needs the package {name.replace('_', '-')}, which could not be "
            f"imported: {error}. Install it with `pip install tensorflow-text`."
        ) from error
    if keras.backend.backend() != "tensorflow":
        # TensorFlow only reads text here: the accelerator belongs to the other backend.
        sys.modules["tensorflow"].config.set_visible_devices([], "GPU")


tf = _LazyModule("tensorflow")
tf_text = _LazyModule("tensorflow_text")
