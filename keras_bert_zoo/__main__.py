"""`python -m keras_bert_zoo <verb>`."""

import sys

from keras_bert_zoo.cli import main

if __name__ == "__main__":
    sys.exit(main())
