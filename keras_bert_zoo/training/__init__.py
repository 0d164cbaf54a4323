"""How BERT is trained: optimisers and schedule, what is trained, many devices, a step's cost."""

from keras_bert_zoo.training.distribution import data_shard, distribute
from keras_bert_zoo.training.flops import step_flops
from keras_bert_zoo.training.optimizer import WarmupLinearDecay, adamw, lamb
from keras_bert_zoo.training.transfer import (
    GradualUnfreezing,
    layer_learning_rates,
    load_lora_weights,
    merge_lora,
    parameter_counts,
    save_lora_weights,
    train_only,
)

__all__ = [
    "GradualUnfreezing",
    "WarmupLinearDecay",
    "adamw",
    "data_shard",
    "distribute",
    "lamb",
    "layer_learning_rates",
    "load_lora_weights",
    "merge_lora",
    "parameter_counts",
    "save_lora_weights",
    "step_flops",
    "train_only",
]
