"""Scores, and what they are measured against."""

from keras_bert_zoo.evaluation.baselines import majority_accuracy, unigram_entropy

__all__ = ["majority_accuracy", "unigram_entropy"]
