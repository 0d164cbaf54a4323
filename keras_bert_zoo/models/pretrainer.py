"""BERT's pre-training: the masked-LM and the next-sentence task at once."""

import keras
from keras import ops

from keras_bert_zoo.layers.packed_rows import ExampleStates, FirstPositions
from keras_bert_zoo.models.masked_lm import (
    make_masked_lm_head,
    masked_inputs,
    masked_lm_loss,
)
from keras_bert_zoo.models.next_sentence import make_next_sentence_head, next_sentence_loss
from keras_bert_zoo.models.text_model import BertTask
from keras_bert_zoo.models.vocabulary_scores import VocabularyAccuracy


@keras.saving.register_keras_serializable("keras_bert_zoo")
class BertPretrainer(BertTask, keras.Model):
    """Masked LM and next sentence on one encoder, their losses added (Devlin et al. 2018, A.2).

    Inputs are the backbone's and `mask_positions`, integers (batch, predictions). Outputs
    are a dictionary of logits: `masked_lm` (batch, predictions, vocabulary_size) and
    `next_sentence` (batch, 2). Labels and weights are dictionaries with the same keys.

    Example:
        >>> backbone = BertBackbone(
        ...     vocabulary_size=100, num_layers=2, num_heads=2, hidden_dim=8, intermediate_dim=16)
        >>> outputs = BertPretrainer(backbone)({
        ...     "token_ids": [[2, 5, 3]], "segment_ids": [[0, 0, 0]], "padding_mask": [[1, 1, 1]],
        ...     "mask_positions": [[1]],
        ... })
        >>> tuple(outputs["masked_lm"].shape), tuple(outputs["next_sentence"].shape)
        ((1, 1, 100), (1, 2))
    """

    heads = ("masked_lm_head", "next_sentence_head")
    num_labels = 2

    def __init__(self, backbone, preprocessor=None, name: str | None = None):
        # === Layers ===
        masked_lm_head = make_masked_lm_head(backbone)
        next_sentence_head = make_next_sentence_head()
        split_firsts = SplitFirsts(name="split_firsts", dtype=backbone.dtype_policy)
        example_states = ExampleStates(name="example_states", dtype=backbone.dtype_policy)

        # === Functional Model ===
        inputs = masked_inputs(backbone)
        encoder_inputs = {name: inputs[name] for name in backbone.example_inputs()}
        starts = encoder_inputs["example_starts"]
        firsts = FirstPositions(name="first_positions")(inputs["token_ids"], starts)
        # Nothing reads the last layer's other states.
        join = keras.layers.Concatenate(name="read_positions", dtype="int32")
        encoder_inputs["output_positions"] = join([firsts, inputs["mask_positions"]])
        pooled, masked = split_firsts(backbone(encoder_inputs), firsts)
        outputs = {
            "masked_lm": masked_lm_head(masked),
            "next_sentence": next_sentence_head(example_states(pooled, starts)),
        }
        super().__init__(inputs=inputs, outputs=outputs, name=name)

        # === Config ===
        self.masked_lm_head = masked_lm_head
        self.next_sentence_head = next_sentence_head
        self.set_up(backbone, preprocessor)

    def defaults(self) -> dict:
        """Return both losses, which Keras adds, and both accuracies."""
        return {
            "loss": {
                "masked_lm": masked_lm_loss(),
                "next_sentence": next_sentence_loss(),
            },
            "weighted_metrics": {
                "masked_lm": [VocabularyAccuracy()],
                "next_sentence": [keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
            },
        }


@keras.saving.register_keras_serializable("keras_bert_zoo")
class SplitFirsts(keras.layers.Layer):
    """Splits an encoder's outputs at `[CLS]` and masked positions into what each head reads.

    Inputs are the encoder's outputs, (batch, firsts + predictions, hidden_dim) each, and the
    first positions (batch, firsts); the results are the pooled outputs of the firsts and the
    states of the rest.
    """

    def call(self, outputs, firsts):
        """Return both."""
        count = ops.shape(firsts)[1]
        return outputs["pooled_output"][:, :count], outputs["sequence_output"][:, count:]
