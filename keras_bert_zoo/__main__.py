"""`python -m keras_bert_zoo <verb>`."""

import signal
import sys

import keras

from keras_bert_zoo.cli import main
from keras_bert_zoo.freed_memory import keep_freed_memory

if __name__ == "__main__":
    # TensorFlow's allocator keeps it anyway, and its threads would wait for the one arena.
    if keras.backend.backend() != "tensorflow":
        keep_freed_memory()
    # A run that is told to end writes its record first.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    sys.exit(main())
