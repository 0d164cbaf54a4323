"""Tasks whose texts are more than columns of strings: sentences of words, prompts with choices."""

from keras_bert_zoo.layers.common import check_positive_int
from keras_bert_zoo.models.text_model import DEFAULT_BATCH_SIZE, BertTask
from keras_bert_zoo.preprocessing import dataset as text_dataset


class StructuredTexts(BertTask):
    """Mixin for a task whose preprocessor's `examples` turns texts and labels into columns.

    A `tf.data.Dataset` of texts goes the way of every task's.
    """

    def fit(self, x=None, y=None, *args, validation_split=0.0, sample_weight=None, **kwargs):
        """Train as `keras.Model.fit` does; `x` may be texts."""
        if validation_split and self._is_texts(x):
            parts = [x, y] if sample_weight is None else [x, y, sample_weight]
            size = len(x[0] if isinstance(x, tuple) else x)
            at = int(size * (1 - validation_split))
            if not 0 < at < size or kwargs.get("validation_data") is not None:
                raise ValueError(
                    f"`validation_split`={validation_split} must leave some of the {size} "
                    "examples to train on and some to score, and goes without "
                    "`validation_data`."
                )
            kwargs["validation_data"] = tuple(_rows(part, slice(at, None)) for part in parts)
            x, y, *rest = (_rows(part, slice(at)) for part in parts)
            sample_weight = rest[0] if rest else None
            validation_split = 0.0
        return super().fit(
            x, y, *args, validation_split=validation_split, sample_weight=sample_weight, **kwargs
        )

    def label_ids(self, y):
        """Return labels as numbers of classes."""
        return y

    def _batches(self, x, y, sample_weight, batch_size, callbacks=None, **order):
        if not self._is_texts(x):
            return super()._batches(x, y, sample_weight, batch_size, callbacks, **order)
        y = None if y is None else self.label_ids(y)
        columns, y, sample_weight = self.preprocessor.examples(x, y, sample_weight)
        size = int(columns[0].shape[0])
        if not size:
            raise ValueError("`x` holds no texts.")
        self.check_labels(y)
        batch_size = DEFAULT_BATCH_SIZE if batch_size is None else batch_size
        check_positive_int(batch_size=batch_size)
        batches = text_dataset.batches(
            self.preprocessor, columns, y, sample_weight, batch_size=batch_size, **order
        )
        return batches, None, None, None, -(-size // batch_size)

    def _is_texts(self, x):
        is_other = self._is_model_input(x) or hasattr(x, "element_spec")
        return not is_other and self.preprocessor is not None


def _rows(values, rows):
    return tuple(v[rows] for v in values) if isinstance(values, tuple) else values[rows]
