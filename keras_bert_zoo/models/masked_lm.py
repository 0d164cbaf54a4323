"""The pieces that were hidden, predicted from what stands around them."""

import keras

from keras_bert_zoo.layers import MaskedLMHead
from keras_bert_zoo.models.text_model import BertTask, weighted_mean
from keras_bert_zoo.models.vocabulary_scores import VocabularyAccuracy, VocabularyCrossentropy


@keras.saving.register_keras_serializable("keras_bert_zoo")
class BertMaskedLM(BertTask, keras.Model):
    """The masked-LM task (Devlin et al. 2018, section 3.1, task 1).

    Inputs are the backbone's and `mask_positions`, integers (batch, predictions). The
    output is (batch, predictions, vocabulary_size) of logits, for those positions only.
    The loss is the mean over the masked pieces of the batch, not over its rows.

    Args:
        backbone: the encoder.
        preprocessor: what makes inputs of texts.
        head_activation: the head's activation, by default the backbone's.
        head_layer_norm_epsilon: the epsilon of the head's LayerNorm, by default the backbone's.
        name: the model's name.

    Example:
        >>> backbone = BertBackbone(
        ...     vocabulary_size=100, num_layers=2, num_heads=2, hidden_dim=8, intermediate_dim=16)
        >>> tuple(BertMaskedLM(backbone)({
        ...     "token_ids": [[2, 5, 3]], "segment_ids": [[0, 0, 0]], "padding_mask": [[1, 1, 1]],
        ...     "mask_positions": [[1]],
        ... }).shape)
        (1, 1, 100)
    """

    heads = ("masked_lm_head",)
    uses_pooler = False

    def __init__(
        self,
        backbone,
        preprocessor=None,
        head_activation: str | None = None,
        head_layer_norm_epsilon: float | None = None,
        name: str | None = None,
    ):
        # === Layers ===
        masked_lm_head = make_masked_lm_head(backbone, head_activation, head_layer_norm_epsilon)

        # === Functional Model ===
        inputs = masked_inputs(backbone)
        encoder_inputs = {name: inputs[name] for name in backbone.example_inputs()}
        # Nothing reads the last layer's other states.
        encoder_inputs["output_positions"] = inputs["mask_positions"]
        outputs = masked_lm_head(backbone(encoder_inputs)["sequence_output"])
        super().__init__(inputs=inputs, outputs=outputs, name=name)

        # === Config ===
        self.masked_lm_head = masked_lm_head
        self.head_activation = head_activation
        self.head_layer_norm_epsilon = head_layer_norm_epsilon
        self.set_up(backbone, preprocessor)

    def defaults(self) -> dict:
        """Return the loss over the masked pieces and its accuracy."""
        return {
            "loss": masked_lm_loss(),
            "weighted_metrics": [VocabularyAccuracy()],
        }

    def get_config(self):
        """Return the constructor's arguments."""
        return {
            **super().get_config(),
            "head_activation": self.head_activation,
            "head_layer_norm_epsilon": self.head_layer_norm_epsilon,
        }


def make_masked_lm_head(
    backbone, activation: str | None = None, epsilon: float | None = None
) -> MaskedLMHead:
    """Return a masked-LM head tied to the backbone's token table, like it in what is None."""
    return MaskedLMHead(
        backbone.token_embedding,
        backbone.hidden_activation if activation is None else activation,
        backbone.layer_norm_epsilon if epsilon is None else epsilon,
        dtype=backbone.dtype_policy,
        name="masked_lm_head",
    )


def masked_inputs(backbone) -> dict:
    """Return the backbone's inputs and `mask_positions`."""
    positions = keras.Input(shape=(None,), dtype="int32", name="mask_positions")
    return {**backbone.example_inputs(), "mask_positions": positions}


def masked_lm_loss() -> keras.losses.Loss:
    """Return the cross-entropy from logits, averaged over the masked pieces."""
    return weighted_mean(VocabularyCrossentropy)
