"""Whether the second text follows the first."""

import keras

from keras_bert_zoo.layers.common import initializer
from keras_bert_zoo.models.text_model import BertTask, weighted_mean


@keras.saving.register_keras_serializable("keras_bert_zoo")
class BertNextSentence(BertTask, keras.Model):
    """The next-sentence task (Devlin et al. 2018, section 3.1, task 2).

    Inputs are the backbone's; the output is (batch, 2) of logits. Class 0: the second
    text follows the first; class 1: it is from somewhere else.

    Example:
        >>> backbone = BertBackbone(
        ...     vocabulary_size=100, num_layers=2, num_heads=2, hidden_dim=8, intermediate_dim=16)
        >>> tuple(BertNextSentence(backbone)({
        ...     "token_ids": [[2, 5, 3]], "segment_ids": [[0, 0, 0]], "padding_mask": [[1, 1, 1]],
        ... }).shape)
        (1, 2)
    """

    one_output_a_row = True
    heads = ("next_sentence_head",)
    num_labels = 2

    def __init__(self, backbone, preprocessor=None, name: str | None = None):
        # === Layers ===
        next_sentence_head = make_next_sentence_head()

        # === Functional Model ===
        inputs = backbone.example_inputs()
        outputs = next_sentence_head(backbone.first_pooled_output(inputs))
        super().__init__(inputs=inputs, outputs=outputs, name=name)

        # === Config ===
        self.next_sentence_head = next_sentence_head
        self.set_up(backbone, preprocessor)

    def defaults(self) -> dict:
        """Return the two-class cross-entropy and accuracy."""
        return {
            "loss": next_sentence_loss(),
            "weighted_metrics": [keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        }


def next_sentence_loss() -> keras.losses.Loss:
    """Return the two-class cross-entropy from logits."""
    return weighted_mean(keras.losses.SparseCategoricalCrossentropy, from_logits=True)


def make_next_sentence_head() -> keras.layers.Dense:
    """Return the dense layer of two outputs."""
    return keras.layers.Dense(
        2, kernel_initializer=initializer(), dtype="float32", name="next_sentence_head"
    )
