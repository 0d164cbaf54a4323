"""Raw text and tables as training examples."""

from keras_bert_zoo.data.documents import read_documents
from keras_bert_zoo.data.next_sentence import next_sentence_examples
from keras_bert_zoo.data.tables import read_table

__all__ = ["next_sentence_examples", "read_documents", "read_table"]
