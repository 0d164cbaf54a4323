"""How BERT is trained: the optimiser and its schedule."""

from keras_bert_zoo.training.optimizer import WarmupLinearDecay, adamw

__all__ = ["WarmupLinearDecay", "adamw"]
