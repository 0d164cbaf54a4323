"""Text to model inputs in one tf-text graph. The only room that imports TensorFlow."""

from keras_bert_zoo.preprocessing.masking import MaskedLMMasker
from keras_bert_zoo.preprocessing.multiple_choice import BertMultipleChoicePreprocessor
from keras_bert_zoo.preprocessing.preprocessor import (
    BertMaskedLMPreprocessor,
    BertNextSentencePreprocessor,
    BertPreprocessor,
    BertPretrainerPreprocessor,
    BertTextClassifierPreprocessor,
    BertTextEmbedderPreprocessor,
)
from keras_bert_zoo.preprocessing.question_answering import BertQuestionAnswererPreprocessor
from keras_bert_zoo.preprocessing.row_transforms import bucket_batches, pack_rows
from keras_bert_zoo.preprocessing.token_classification import BertTokenClassifierPreprocessor
from keras_bert_zoo.preprocessing.tokenizer import BertTokenizer

__all__ = [
    "BertMaskedLMPreprocessor",
    "BertMultipleChoicePreprocessor",
    "BertNextSentencePreprocessor",
    "BertPreprocessor",
    "BertPretrainerPreprocessor",
    "BertQuestionAnswererPreprocessor",
    "BertTextClassifierPreprocessor",
    "BertTextEmbedderPreprocessor",
    "BertTokenClassifierPreprocessor",
    "BertTokenizer",
    "MaskedLMMasker",
    "bucket_batches",
    "pack_rows",
]
