"""Studies of models and texts: each a function that returns rows, for a table, JSON and a plot."""

from keras_bert_zoo.studies.domains import compare_texts, domains_study
from keras_bert_zoo.studies.lengths import lengths_study
from keras_bert_zoo.studies.minimal_pairs import pair_shifts, shifts_by_kind
from keras_bert_zoo.studies.pictures import (
    attention_map,
    confusion_matrix,
    plot_attention,
    plot_confusion,
)
from keras_bert_zoo.studies.plots import plot_rows
from keras_bert_zoo.studies.transfer import transfer_study

__all__ = [
    "attention_map",
    "compare_texts",
    "confusion_matrix",
    "domains_study",
    "lengths_study",
    "pair_shifts",
    "plot_attention",
    "plot_confusion",
    "plot_rows",
    "shifts_by_kind",
    "transfer_study",
]
