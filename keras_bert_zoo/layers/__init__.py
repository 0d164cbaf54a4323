"""BERT's layers. They import Keras and nothing else, so they run on every backend."""

from keras_bert_zoo.layers.embeddings import BertEmbeddings
from keras_bert_zoo.layers.encoder_block import BertEncoderBlock
from keras_bert_zoo.layers.heads import MaskedLMHead
from keras_bert_zoo.layers.self_attention import BertSelfAttention

__all__ = ["BertEmbeddings", "BertEncoderBlock", "BertSelfAttention", "MaskedLMHead"]
