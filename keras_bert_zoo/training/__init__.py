"""How BERT is trained: the optimisers and their schedule, and what a step costs."""

from keras_bert_zoo.training.flops import step_flops
from keras_bert_zoo.training.optimizer import WarmupLinearDecay, adamw, lamb

__all__ = ["WarmupLinearDecay", "adamw", "lamb", "step_flops"]
