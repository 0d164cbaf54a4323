"""How BERT is trained: optimisers, their schedule, many devices, and what a step costs."""

from keras_bert_zoo.training.distribution import data_shard, distribute
from keras_bert_zoo.training.flops import step_flops
from keras_bert_zoo.training.optimizer import WarmupLinearDecay, adamw, lamb

__all__ = ["WarmupLinearDecay", "adamw", "data_shard", "distribute", "lamb", "step_flops"]
