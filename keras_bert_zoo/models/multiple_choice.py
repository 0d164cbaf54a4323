"""The likeliest of some choices, after a prompt."""

from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from keras_bert_zoo.layers.common import initializer
from keras_bert_zoo.models.inputs import InputRules
from keras_bert_zoo.models.structured_texts import StructuredTexts
from keras_bert_zoo.models.text_model import DEFAULT_BATCH_SIZE, weighted_mean
from keras_bert_zoo.preprocessing.multiple_choice import check_choice_dataset

_INPUTS = ("token_ids", "segment_ids", "padding_mask")


class Chosen(NamedTuple):
    """A prompt's likeliest choice: its number, its text, and its share of the probability."""

    index: int
    text: str
    probability: float


@keras.saving.register_keras_serializable("keras_bert_zoo")
class BertMultipleChoice(StructuredTexts, keras.Model):
    """One score a choice from the pooled output, softmax over choices (Devlin et al. 2018, SWAG).

    Inputs are the backbone's with a dimension more, `token_ids`, `segment_ids` and
    `padding_mask` of shape (batch, choices, length); the output is (batch, choices) of logits.
    A choice that is padding alone, which fills up an example, has -1e9 and can't win. With a
    preprocessor `x` may be a tuple of prompts and lists of choices, and `y` the number of each
    prompt's right choice.

    Args:
        backbone: a `BertBackbone`.
        preprocessor: a `BertMultipleChoicePreprocessor`, so that texts can be given.
        dropout: rate on the pooled output; the backbone's where None.

    Raises:
        ValueError: a preprocessor is given and the backbone has one segment.

    Example:
        >>> tokenizer = BertTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"], lowercase=True)
        >>> backbone = BertBackbone(
        ...     vocabulary_size=7, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16)
        >>> model = BertMultipleChoice(
        ...     backbone, BertMultipleChoicePreprocessor(tokenizer, sequence_length=16))
        >>> chosen = model.choose(["a", "b"], [["a", "b b", "b"], ["b"]])
        >>> chosen[1].text, chosen[1].index
        ('b', 0)
    """

    heads = ("classifier_head",)

    def __init__(
        self, backbone, preprocessor=None, dropout: float | None = None, name: str | None = None
    ):
        if preprocessor is not None and backbone.num_segments < 2:
            raise ValueError(
                "A prompt and a choice need two segments; the backbone's `num_segments` is "
                f"{backbone.num_segments}."
            )

        # === Layers ===
        as_rows = ChoicesAsRows(name="choices_as_rows")
        rate = backbone.dropout if dropout is None else dropout
        head_dropout = keras.layers.Dropout(
            rate, dtype=backbone.dtype_policy, name="classifier_dropout"
        )
        classifier_head = keras.layers.Dense(
            1, kernel_initializer=initializer(), dtype="float32", name="classifier_head"
        )
        scores_of_choices = ScoresOfChoices(dtype="float32", name="scores_of_choices")

        # === Functional Model ===
        inputs = {name: keras.Input((None, None), dtype="int32", name=name) for name in _INPUTS}
        pooled = backbone.first_pooled_output({name: as_rows(x) for name, x in inputs.items()})
        scores = classifier_head(head_dropout(pooled))
        outputs = scores_of_choices(scores, inputs["padding_mask"])
        super().__init__(inputs=inputs, outputs=outputs, name=name)

        # === Config ===
        self.classifier_head = classifier_head
        self.dropout = dropout
        self.set_up(backbone, preprocessor)

    def defaults(self) -> dict:
        """Return the cross-entropy over choices and the accuracy."""
        loss = weighted_mean(keras.losses.SparseCategoricalCrossentropy, from_logits=True)
        accuracy = keras.metrics.SparseCategoricalAccuracy(name="accuracy")
        return {"loss": loss, "weighted_metrics": [accuracy]}

    def input_rules(self) -> InputRules:
        """Return what the model's inputs must be."""
        return ChoiceRules(*super().input_rules())

    def choose(self, prompts, choices, *, batch_size: int = DEFAULT_BATCH_SIZE) -> list[Chosen]:
        """Return the likeliest of each prompt's choices.

        Args:
            prompts: a list, array or tensor of strings.
            choices: for each prompt a list of strings, any number of them.
            batch_size: prompts of a batch.

        Returns:
            A `Chosen` a prompt: `index`, `text` and `probability`.

        Raises:
            TypeError: a text is not a string, named by its place.
            ValueError: there are not as many lists of choices as prompts, or one is empty.
        """
        logits = self.predict((prompts, choices), batch_size=batch_size, verbose=0)
        shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        rows = choices.to_list() if hasattr(choices, "to_list") else choices
        best = np.argmax(shares, axis=-1)
        return [
            Chosen(int(i), _as_text(row[i]), float(share[i]))
            for i, row, share in zip(best, rows, shares, strict=True)
        ]

    def _batches(self, x, y, sample_weight, batch_size, callbacks=None, **order):
        is_dataset = hasattr(x, "element_spec")
        if is_dataset and not self._is_model_input(x):
            raise ValueError(
                "Prompts and choices are given as a tuple of lists, or as the batches of "
                f"`preprocessor.dataset`. Received: a data set of {x.element_spec}."
            )
        if isinstance(x, dict) and y is not None:
            _check_labels(y, np.shape(x["token_ids"])[1:2])
        return super()._batches(x, y, sample_weight, batch_size, callbacks, **order)

    def serving_strings(self, pairs: bool | None):
        """Return the strings that a SavedModel takes, prompts and choices, and its function.

        All prompts have as many choices.

        Raises:
            ValueError: `pairs` is given.
        """
        if pairs is not None:
            raise ValueError(
                f"A SavedModel of prompts and choices takes no `pairs`. Received: pairs={pairs}."
            )

        def serve(prompts, choices):
            inputs = self.preprocessor.rows(prompts, choices)
            return self.serving_outputs(self(inputs, training=False))

        return {"prompts": [None], "choices": [None, None]}, serve

    def serving_outputs(self, outputs) -> dict:
        """Return the choices' probabilities, and which is the likeliest."""
        # ONNX and LiteRT have not all that Keras's `argmax` is made of.
        best = ops.top_k(outputs, 1)[1]
        return {"probabilities": ops.softmax(outputs), "indices": ops.squeeze(best, axis=-1)}

    def get_config(self):
        """Return the constructor's arguments."""
        return {**super().get_config(), "dropout": self.dropout}


class ChoiceRules(InputRules):
    """What the inputs of choices must be: a batch of what other models take for a batch."""

    def check(self, inputs) -> None:
        """Refuse inputs that are missing, unknown, or outside the model's tables.

        Raises:
            ValueError: names the input, what came and what was expected.
        """
        if isinstance(inputs, dict) and set(inputs) == self.names:
            for name, x in inputs.items():
                shape = tuple(np.shape(x))
                if len(shape) != 3:
                    raise ValueError(
                        f"`{name}` must have shape (batch, choices, length). Received: {shape}."
                    )
            inputs = {name: _as_rows(x) for name, x in inputs.items()}
        super().check(inputs)

    def checked(self, x):
        """Return what `fit` iterates over: arrays checked now, all else as its batches come."""
        if hasattr(x, "element_spec"):
            return check_choice_dataset(x, self.names, self.limits, self.max_length)
        return super().checked(x)


@keras.saving.register_keras_serializable("keras_bert_zoo")
class ChoicesAsRows(keras.layers.Layer):
    """Makes (batch, choices, length) a batch of (batch * choices, length)."""

    def call(self, ids):
        """Return the rows."""
        return ops.reshape(ids, (-1, ops.shape(ids)[-1]))

    def compute_output_spec(self, ids):
        """Return the rows' shape, whose number is not known."""
        return keras.KerasTensor((None, ids.shape[-1]), ids.dtype)


@keras.saving.register_keras_serializable("keras_bert_zoo")
class ScoresOfChoices(keras.layers.Layer):
    """Makes scores (batch * choices, 1) logits (batch, choices), where all is padding -1e9.

    `padding_mask` is (batch, choices, length).
    """

    def call(self, scores, padding_mask):
        """Return the logits."""
        is_choice = ops.any(ops.cast(padding_mask, "bool"), axis=-1)
        return ops.where(is_choice, ops.reshape(scores, ops.shape(is_choice)), -1e9)

    def compute_output_spec(self, scores, padding_mask):
        """Return the logits' shape."""
        return keras.KerasTensor(padding_mask.shape[:2], scores.dtype)


def _as_rows(x):
    """Return inputs (batch, choices, length) as rows, whatever they are."""
    if isinstance(x, keras.KerasTensor):
        return keras.KerasTensor((None, x.shape[-1]), x.dtype)
    if hasattr(x, "dtype") and not isinstance(x, np.ndarray):
        return ops.reshape(x, (-1, ops.shape(x)[-1]))
    x = np.asarray(x)
    return x.reshape(-1, x.shape[-1])


def _check_labels(y, limits):
    labels = ops.convert_to_numpy(y)
    for limit in limits:
        for wrong in labels[(labels < 0) | (labels >= limit)][:1]:
            raise ValueError(
                f"`y` must be at least 0 and below {limit}, the number of choices. "
                f"Received: {wrong}."
            )


def _as_text(text):
    return text.decode() if isinstance(text, bytes) else str(text)
