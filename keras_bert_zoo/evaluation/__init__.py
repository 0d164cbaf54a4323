"""Scores, and what they are measured against."""

from keras_bert_zoo.evaluation.baselines import majority_accuracy, unigram_entropy
from keras_bert_zoo.evaluation.squad import squad_scores, write_squad_predictions

__all__ = ["majority_accuracy", "squad_scores", "unigram_entropy", "write_squad_predictions"]
