"""A class, or a number, for a text or a pair of texts."""

from collections.abc import Sequence
from functools import partial

import keras

from keras_bert_zoo.layers.common import check_positive_int, initializer
from keras_bert_zoo.models.text_model import BertTask, weighted_mean
from keras_bert_zoo.models.text_vectors import TextVectors


@keras.saving.register_keras_serializable("keras_bert_zoo")
class BertTextClassifier(BertTask, keras.Model):
    """A dense layer on the pooled output (Devlin et al. 2018, section 4.1).

    Inputs are the backbone's; the output is (batch, num_classes). Without an activation
    these are logits of one class out of many, or with `num_classes=1` a number to regress.

    Args:
        backbone: a `BertBackbone`.
        num_classes: outputs; may be left out where `class_names` is given.
        preprocessor: a `BertTextClassifierPreprocessor`, so that texts can be given.
        activation: None, `"softmax"`, or `"sigmoid"` for several labels at once. The
            automatic loss follows it.
        dropout: rate on what the dense layer reads; the backbone's where None.
        class_names: what the outputs are called, in their order.
        pooling, layers: what the dense layer reads in place of the pooled output, as
            `BertTextEmbedder` takes them.

    Example:
        >>> backbone = BertBackbone(
        ...     vocabulary_size=100, num_layers=2, num_heads=2, hidden_dim=8, intermediate_dim=16)
        >>> classifier = BertTextClassifier(backbone, num_classes=3)
        >>> tuple(classifier({
        ...     "token_ids": [[2, 5, 3]], "segment_ids": [[0, 0, 0]], "padding_mask": [[1, 1, 1]],
        ... }).shape)
        (1, 3)
    """

    one_output_a_row = True
    heads = ("classifier_head",)

    def __init__(
        self,
        backbone,
        num_classes: int | None = None,
        preprocessor=None,
        activation: str | None = None,
        dropout: float | None = None,
        class_names: Sequence[str] | None = None,
        pooling: str = "pooled",
        layers: str = "last",
        name: str | None = None,
    ):
        if num_classes is None and class_names is not None:
            num_classes = len(class_names)
        check_positive_int(num_classes=num_classes)
        if class_names is not None and len(class_names) != num_classes:
            raise ValueError(
                f"`class_names` must hold `num_classes`={num_classes} names. "
                f"Received: {len(class_names)}."
            )
        if activation not in _LOSSES:
            raise ValueError(
                f"`activation` must be one of {list(_LOSSES)}. Received: {activation!r}."
            )
        if activation == "softmax" and num_classes == 1:
            raise ValueError(
                '`activation="softmax"` over `num_classes=1` is always 1. Use "sigmoid" for one '
                "output, or two classes."
            )

        # === Layers ===
        vectors = TextVectors(backbone, pooling, layers)
        dtype = backbone.dtype_policy
        classifier_head = keras.layers.Dense(
            num_classes,
            activation=activation,
            kernel_initializer=initializer(),
            # A half-precision softmax or loss would round away what it is asked for.
            dtype="float32",
            name="classifier_head",
        )
        rate = backbone.dropout if dropout is None else dropout
        head_dropout = keras.layers.Dropout(rate, dtype=dtype, name="classifier_dropout")

        # === Functional Model ===
        inputs = backbone.example_inputs()
        outputs = classifier_head(head_dropout(vectors(inputs)))
        super().__init__(inputs=inputs, outputs=outputs, name=name)

        # === Config ===
        self.classifier_head = classifier_head
        self.num_classes = num_classes
        self.num_labels = num_classes if num_classes > 1 and activation != "sigmoid" else None
        self.activation = activation
        self.dropout = dropout
        self.class_names = None if class_names is None else list(class_names)
        self.pooling = pooling
        self.layer_way = layers
        self.layer_mix = vectors.layer_mix
        self.heads = (*type(self).heads, *vectors.heads)
        self.uses_pooler = pooling == "pooled"
        self.set_up(backbone, preprocessor)

    def defaults(self) -> dict:
        """Return the loss and metrics that fit the head."""
        if self.num_classes == 1 and self.activation is None:
            return {"loss": weighted_mean(keras.losses.MeanSquaredError), "weighted_metrics": []}
        loss, metric = _LOSSES[self.activation]
        return {"loss": loss(), "weighted_metrics": [metric(name="accuracy")]}

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """Return the loss; a head of one output has labels with or without its axis."""
        y = self._with_output_axis(y, y_pred)
        return super().compute_loss(x, y, y_pred, sample_weight, training)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """Count the labels and outputs of a batch in the metrics."""
        y = self._with_output_axis(y, y_pred)
        return super().compute_metrics(x, y, y_pred, sample_weight)

    def _with_output_axis(self, y, y_pred):
        # Of packed rows Keras would take the axis of the examples for that of the outputs.
        missing = self.num_classes == 1 and len(y.shape) == len(y_pred.shape) - 1
        return keras.ops.expand_dims(y, -1) if missing else y

    def serving_outputs(self, outputs) -> dict:
        """Return probabilities, and the likeliest class's name; or the number regressed."""
        if self.activation is None and self.num_classes == 1:
            return {"value": outputs[:, 0]}
        if self.activation is None:
            outputs = keras.ops.softmax(outputs)
        served = {"probabilities": outputs}
        if self.class_names is not None and self.activation != "sigmoid":
            served["labels"] = keras.ops.take(
                self.class_names, keras.ops.argmax(outputs, axis=-1), axis=0
            )
        return served

    def get_config(self):
        """Return the constructor's arguments."""
        return {
            **super().get_config(),
            "num_classes": self.num_classes,
            "activation": self.activation,
            "dropout": self.dropout,
            "class_names": self.class_names,
            "pooling": self.pooling,
            "layers": self.layer_way,
        }


_LOSSES = {
    None: (
        partial(weighted_mean, keras.losses.SparseCategoricalCrossentropy, from_logits=True),
        keras.metrics.SparseCategoricalAccuracy,
    ),
    "softmax": (
        partial(weighted_mean, keras.losses.SparseCategoricalCrossentropy),
        keras.metrics.SparseCategoricalAccuracy,
    ),
    "sigmoid": (
        partial(weighted_mean, keras.losses.BinaryCrossentropy),
        keras.metrics.BinaryAccuracy,
    ),
}
