"""A tag for each word of a sentence."""

from collections.abc import Sequence

import keras
import numpy as np

from keras_bert_zoo.layers.common import check_positive_int, initializer
from keras_bert_zoo.models.structured_texts import StructuredTexts
from keras_bert_zoo.models.text_model import weighted_mean
from keras_bert_zoo.preprocessing.token_classification import INPUTS, word_rows

# Sentences that are predicted together, those of like length in the same batches.
_CHUNK = 4096


@keras.saving.register_keras_serializable("keras_bert_zoo")
class BertTokenClassifier(StructuredTexts, keras.Model):
    """A dense layer on every piece's state (Devlin et al. 2018, section 5.3, fine-tuning).

    Inputs are the backbone's; the output is (batch, length, num_classes) of logits. With a
    preprocessor `x` may be sentences, each a list of words or a text that is split at white
    space, and `y` their labels, one a word: class numbers, or names from `class_names`. A
    batch's loss is the mean over its words, the accuracy that over all words, also those of
    sentences too long for a row, which take several. Beside ids `y` is (batch, length), and so
    is `sample_weight`, 0 where a piece has no label.

    Args:
        backbone: a `BertBackbone`.
        num_classes: tags there are; may be left out where `class_names` is given.
        preprocessor: a `BertTokenClassifierPreprocessor`, so that sentences can be given.
        class_names: what the tags are called, in their order.
        dropout: rate on the states; the backbone's where None.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> tokenizer = BertTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "ni", "##els"],
        ...     lowercase=True)
        >>> backbone = BertBackbone(
        ...     vocabulary_size=8, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16)
        >>> tagger = BertTokenClassifier(
        ...     backbone, class_names=["O", "B-PER"],
        ...     preprocessor=BertTokenClassifierPreprocessor(tokenizer, sequence_length=16))
        >>> [len(tags) for tags in tagger.predict_tags([["hello", "niels"], ["niels"]])]
        [2, 1]
    """

    heads = ("classifier_head",)
    uses_pooler = False

    def __init__(
        self,
        backbone,
        num_classes: int | None = None,
        preprocessor=None,
        class_names: Sequence[str] | None = None,
        dropout: float | None = None,
        name: str | None = None,
    ):
        if num_classes is None and class_names is not None:
            num_classes = len(class_names)
        check_positive_int(num_classes=num_classes)
        if class_names is not None and len(set(class_names)) != num_classes:
            raise ValueError(
                f"`class_names` must hold `num_classes`={num_classes} different names. "
                f"Received: {list(class_names)}."
            )

        # === Layers ===
        rate = backbone.dropout if dropout is None else dropout
        head_dropout = keras.layers.Dropout(
            rate, dtype=backbone.dtype_policy, name="classifier_dropout"
        )
        classifier_head = keras.layers.Dense(
            num_classes,
            kernel_initializer=initializer(),
            # A half-precision loss would round away what it is asked for.
            dtype="float32",
            name="classifier_head",
        )

        # === Functional Model ===
        inputs = backbone.example_inputs()
        outputs = classifier_head(head_dropout(backbone(inputs)["sequence_output"]))
        super().__init__(inputs=inputs, outputs=outputs, name=name)

        # === Config ===
        self.classifier_head = classifier_head
        self.num_classes = num_classes
        self.class_names = None if class_names is None else list(class_names)
        self.dropout = dropout
        self.set_up(backbone, preprocessor)

    def defaults(self) -> dict:
        """Return the loss over words and its accuracy."""
        loss = weighted_mean(keras.losses.SparseCategoricalCrossentropy, from_logits=True)
        return {"loss": loss, "weighted_metrics": [WordAccuracy(name="accuracy")]}

    # === Labels ===

    def label_ids(self, y) -> list[list[int]]:
        """Return labels, rows of class numbers or names, as rows of numbers.

        Raises:
            ValueError: a label is no class; its place is named.
        """
        rows = y.to_list() if hasattr(y, "to_list") else y
        names = {name: number for number, name in enumerate(self.class_names or [])}
        numbers = {}

        def number(label, row, word):
            key = label if isinstance(label, str) else int(label)
            if key not in numbers:
                found = names.get(key) if isinstance(key, str) else key
                if found is None or not 0 <= found < self.num_classes:
                    raise ValueError(
                        f"`y[{row}][{word}]` must be a number below {self.num_classes}, the "
                        f"number of classes, or one of `class_names`, {self.class_names}. "
                        f"Received: {label!r}."
                    )
                numbers[key] = found
            return numbers[key]

        return [[number(label, i, j) for j, label in enumerate(row)] for i, row in enumerate(rows)]

    def check_labels(self, y) -> None:
        """Refuse class numbers outside the task's classes.

        Raises:
            ValueError: names the label and the number of classes. What has no label has the
                weight 0.
        """
        if y is None:
            return
        labels = keras.ops.convert_to_numpy(y)
        wrong = labels[(labels < 0) | (labels >= self.num_classes)]
        if wrong.size:
            raise ValueError(
                f"`y` must be at least 0 and below {self.num_classes}, the number of classes, and "
                "`sample_weight` 0 where a piece has no label. "
                f"Received: {wrong[0]}."
            )

    # === Prediction ===

    def predict(self, x, batch_size=None, verbose="auto", **kwargs):
        """Predict as `keras.Model.predict` does; of sentences, the logits of their words.

        Args:
            x: ids, or sentences as in `fit`.
            batch_size: rows of a batch.
            verbose, **kwargs: Keras's.

        Returns:
            Of ids, floats (batch, length, num_classes); of sentences a list with an array
            (words, num_classes) for each.

        Raises:
            ValueError: `x` is a data set of texts, whose words could not be counted.
        """
        if self._is_model_input(x) or self.preprocessor is None:
            return super().predict(x, batch_size, verbose, **kwargs)
        if hasattr(x, "element_spec"):
            raise ValueError(
                "`predict` takes sentences as a list or a tensor. Received: a `tf.data.Dataset`."
            )
        words = word_rows(x)
        if not int(words.nrows()):
            raise ValueError("`x` holds no texts.")
        predicted = []
        for start in range(0, int(words.nrows()), _CHUNK):
            chunk = words[start : start + _CHUNK]
            rows = {name: v.numpy() for name, v in self.preprocessor.slide(chunk).items()}
            ends = chunk.row_splits.numpy()
            # Each word's place among the chunk's.
            numbers = ends[rows["example_ids"]][:, None] + rows["word_ids"]
            scores = np.zeros((ends[-1], self.num_classes), "float32")
            for part, length in self.preprocessor.rows_of_like_length(rows["padding_mask"]):
                inputs = {name: rows[name][part, :length] for name in INPUTS}
                outputs = super().predict(inputs, batch_size, verbose, **kwargs)
                is_tagged = rows["is_tagged"][part, :length] == 1
                scores[numbers[part, :length][is_tagged]] = outputs[is_tagged]
            predicted += np.split(scores, ends[1:-1])
        return predicted

    def predict_tags(self, x, batch_size: int = 32) -> list[list]:
        """Return the likeliest tag of each word of each sentence.

        Args:
            x: sentences as in `fit`.
            batch_size: rows of a batch.

        Returns:
            For each sentence a list of names from `class_names`, one a word; of class numbers
            where the classes have no names.
        """
        names = self.class_names or range(self.num_classes)
        return [
            [names[i] for i in np.argmax(scores, axis=-1)]
            for scores in self.predict(x, batch_size, verbose=0)
        ]

    # === Saving ===

    def serving_outputs(self, outputs) -> dict:
        """Return the probabilities of each piece."""
        return {"probabilities": keras.ops.softmax(outputs)}

    def serving_strings(self, pairs: bool | None):
        """Return the strings that a SavedModel takes, texts, and its function, of their words.

        Raises:
            ValueError: `pairs` is True.
        """
        if pairs:
            raise ValueError(
                f"A SavedModel that tags texts takes no `pairs`. Received: pairs={pairs}."
            )

        def serve(texts):
            rows = self.preprocessor.slide(texts)
            outputs = self({name: rows[name] for name in INPUTS}, training=False)
            served = self.serving_outputs(outputs)
            scores, is_word = self.preprocessor.of_words(served["probabilities"], rows)
            if self.class_names is None:
                return {"probabilities": scores}
            # One behind the last is no word's.
            best = keras.ops.where(is_word, keras.ops.argmax(scores, axis=-1), self.num_classes)
            labels = keras.ops.take([*self.class_names, ""], best, axis=0)
            return {"probabilities": scores, "labels": labels}

        return {"texts": [None]}, serve

    def get_config(self):
        """Return the constructor's arguments."""
        return {
            **super().get_config(),
            "num_classes": self.num_classes,
            "class_names": self.class_names,
            "dropout": self.dropout,
        }


@keras.saving.register_keras_serializable("keras_bert_zoo")
class WordAccuracy(keras.metrics.SparseCategoricalAccuracy):
    """The share of words, pieces of weight 1, whose likeliest class is the right one.

    Keras's own metric divides by the length of a batch's rows, so that words among long
    sentences would count less.

    Example:
        >>> accuracy = WordAccuracy()
        >>> logits = keras.ops.array([[[0.0, 1.0], [0.0, 1.0], [1.0, 0.0]]])
        >>> accuracy.update_state([[1, 0, 0]], logits, sample_weight=[[1, 1, 0]])
        >>> float(accuracy.result())
        0.5
    """

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Count the labels (batch, length) and logits (batch, length, classes) of a batch."""
        labels = keras.ops.reshape(y_true, (-1,))
        weights = keras.ops.ones_like(labels, "float32")
        # The mask leaves rows out that only fill up a batch for many devices.
        for counted in (sample_weight, getattr(y_pred, "_keras_mask", None)):
            if counted is not None:
                weights *= keras.ops.reshape(keras.ops.cast(counted, "float32"), (-1,))
        logits = keras.ops.reshape(y_pred, (-1, y_pred.shape[-1]))
        return super().update_state(labels, logits, weights)
