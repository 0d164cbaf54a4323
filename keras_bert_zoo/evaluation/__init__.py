"""Scores, and what they are measured against."""

from keras_bert_zoo.evaluation.baselines import majority_accuracy, unigram_entropy
from keras_bert_zoo.evaluation.glue import glue_average, glue_score
from keras_bert_zoo.evaluation.squad import squad_scores, write_squad_predictions
from keras_bert_zoo.evaluation.tagging import span_scores

__all__ = [
    "glue_average",
    "glue_score",
    "majority_accuracy",
    "span_scores",
    "squad_scores",
    "unigram_entropy",
    "write_squad_predictions",
]
