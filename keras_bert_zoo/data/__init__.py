"""Raw text and tables as training examples."""

from keras_bert_zoo.data.conll import read_conll, tag_names
from keras_bert_zoo.data.documents import read_documents
from keras_bert_zoo.data.example_files import example_batches
from keras_bert_zoo.data.glue import glue_task, read_glue
from keras_bert_zoo.data.next_sentence import next_sentence_examples
from keras_bert_zoo.data.prepare import prepare_examples
from keras_bert_zoo.data.pretraining import split_documents
from keras_bert_zoo.data.squad import read_squad
from keras_bert_zoo.data.tables import read_table
from keras_bert_zoo.data.text_report import text_report
from keras_bert_zoo.data.vocabulary import train_vocabulary

__all__ = [
    "example_batches",
    "glue_task",
    "next_sentence_examples",
    "prepare_examples",
    "read_conll",
    "read_documents",
    "read_glue",
    "read_squad",
    "read_table",
    "split_documents",
    "tag_names",
    "text_report",
    "train_vocabulary",
]
