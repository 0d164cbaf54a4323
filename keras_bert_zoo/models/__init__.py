"""The encoder and its tasks, one file each."""

from keras_bert_zoo.models.backbone import BertBackbone
from keras_bert_zoo.models.features import WordFeatures, cached_word_features, fit_head
from keras_bert_zoo.models.masked_lm import BertMaskedLM
from keras_bert_zoo.models.multiple_choice import BertMultipleChoice
from keras_bert_zoo.models.next_sentence import BertNextSentence
from keras_bert_zoo.models.pretrainer import BertPretrainer
from keras_bert_zoo.models.question_answerer import BertQuestionAnswerer
from keras_bert_zoo.models.resizing import add_tokens, keep_layers, resize_positions
from keras_bert_zoo.models.text_classifier import BertTextClassifier
from keras_bert_zoo.models.text_embedder import BertTextEmbedder
from keras_bert_zoo.models.token_classifier import BertTokenClassifier

__all__ = [
    "BertBackbone",
    "BertMaskedLM",
    "BertMultipleChoice",
    "BertNextSentence",
    "BertPretrainer",
    "BertQuestionAnswerer",
    "BertTextClassifier",
    "BertTextEmbedder",
    "BertTokenClassifier",
    "WordFeatures",
    "add_tokens",
    "cached_word_features",
    "fit_head",
    "keep_layers",
    "resize_positions",
]
