"""Prompts with choices to model inputs, a row a choice."""

import keras
import numpy as np

from keras_bert_zoo.preprocessing.dataset import check_id_dataset
from keras_bert_zoo.preprocessing.lazy_tensorflow import tf
from keras_bert_zoo.preprocessing.preprocessor import BertPreprocessor, to_backend
from keras_bert_zoo.preprocessing.string_rows import string_rows
from keras_bert_zoo.preprocessing.texts import string_tensor


@keras.saving.register_keras_serializable("keras_bert_zoo")
class BertMultipleChoicePreprocessor(BertPreprocessor):
    """Prompts and choices for `BertMultipleChoice`: `[CLS] prompt [SEP] choice [SEP]` a choice.

    Where examples have different numbers of choices, rows of padding alone fill them up.

    Example:
        >>> tokenizer = BertTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"], lowercase=True)
        >>> preprocessor = BertMultipleChoicePreprocessor(tokenizer, sequence_length=16)
        >>> inputs = preprocessor(["a", "b"], [["a", "b b"], ["b"]])
        >>> for choices in keras.ops.convert_to_numpy(inputs["token_ids"]).tolist():
        ...     print(choices)
        [[2, 5, 3, 5, 3, 0, 0, 0], [2, 5, 3, 6, 6, 3, 0, 0]]
        [[2, 6, 3, 6, 3, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0, 0]]
    """

    def __call__(self, prompts, choices=None) -> dict:
        """Return the inputs of prompts and their choices.

        Args:
            prompts: a list, array or tensor of strings; a tuple of both is (prompts, choices).
            choices: for each prompt a list of strings, any number of them; or a string tensor
                (batch, choices).

        Returns:
            `token_ids`, `segment_ids` and `padding_mask`, integer tensors (batch, choices,
            length) of the current backend (of TensorFlow inside its graphs).

        Raises:
            TypeError: a text is not a string, named by its place.
            ValueError: there are not as many lists of choices as prompts, or one is empty.
        """
        columns, _, _ = self.examples(prompts if choices is None else (prompts, choices))
        inputs, _, _ = self.batch(columns, example_ids=None)
        return to_backend(inputs)

    def examples(self, x, y=None, sample_weight=None) -> tuple:
        """Return the prompts, the choices filled up and their numbers as columns, and labels.

        Args:
            x: a tuple (prompts, choices), in the forms that a call takes.
            y: the numbers of the right choices, integers (prompts,), or None.
            sample_weight: floats (prompts,), or None.

        Returns:
            String tensors (prompts,) and (prompts, choices) and int32 (prompts,) in a tuple,
            then `y` and `sample_weight`.

        Raises:
            ValueError: the columns do not fit each other, or a label is the number of no
                choice; it is named.
        """
        if not isinstance(x, tuple) or len(x) != 2:
            raise ValueError(
                "Examples of multiple choice are a tuple (prompts, choices). Received: "
                f"{type(x).__name__}" + (f" of {len(x)}." if isinstance(x, tuple) else ".")
            )
        prompts = string_tensor(x[0], "prompts")[0]
        choices = string_rows(x[1], "choices")
        if prompts.shape[0] != choices.shape[0]:
            raise ValueError(
                "There must be a list of choices a prompt. Received: "
                f"{choices.shape[0]} for {prompts.shape[0]} prompts."
            )
        counts = choices.row_lengths().numpy()
        for index in np.flatnonzero(counts == 0)[:1]:
            raise ValueError(f"`choices[{index}]` must hold a choice. Received: none.")
        if y is not None:
            y = np.asarray(y)
            if y.shape != counts.shape or y.dtype.kind not in "iub":
                raise ValueError(
                    f"`y` must be integers of shape {counts.shape}, the number of the right choice "
                    f"for each prompt. Received: {y.dtype.name} of shape {y.shape}."
                )
            for index in np.flatnonzero((y < 0) | (y >= counts))[:1]:
                raise ValueError(
                    f"`y[{index}]` must be at least 0 and below {counts[index]}, the number of "
                    f"its choices. Received: {y[index]}."
                )
        return (prompts, choices.to_tensor(), tf.constant(counts, tf.int32)), y, sample_weight

    def batch(self, columns: tuple, y=None, sample_weight=None, *, example_ids, epoch=0) -> tuple:
        """Return (inputs, y, sample_weight) of columns that `examples` made, in TensorFlow."""
        return self.rows(*columns), y, sample_weight

    def rows(self, prompts, choices, counts=None) -> dict:
        """Return the inputs (batch, choices, length) of string tensors.

        `prompts` are (batch,), `choices` (batch, choices), of which the first `counts`, (batch,)
        or None for all, are choices and the rest fills them up.
        """
        batch, most = tf.unstack(tf.shape(choices))
        prompts = tf.gather(self.tokenizer(prompts), tf.repeat(tf.range(batch), most))
        rows = self.pack(prompts, self.tokenizer(tf.reshape(choices, [-1])))
        rows = {name: tf.reshape(x, [batch, most, tf.shape(x)[1]]) for name, x in rows.items()}
        if counts is None:
            return rows
        is_choice = tf.cast(tf.sequence_mask(counts, most), tf.int32)[:, :, None]
        rows = {name: x * is_choice for name, x in rows.items()}
        rows["token_ids"] += self.tokenizer.pad_token_id * (1 - is_choice)
        return rows


def check_choice_dataset(dataset, names: set[str], limits: dict[str, int], max_length: int):
    """Return a dataset of inputs (batch, choices, length) that fails on what has no place.

    Arguments and errors are those of `check_id_dataset`.
    """

    def check(*element):
        length = tf.shape(element[0]["token_ids"])[-1]
        message = (
            f"The inputs' length must be at most `max_sequence_length`, {max_length}. Received:"
        )
        tf.debugging.Assert(length <= max_length, [message, length])
        return element if len(element) > 1 else element[0]

    # There the second dimension, here the number of choices, has no limit but this.
    unlimited = np.iinfo("int32").max
    return check_id_dataset(dataset, names, limits, unlimited).map(check)
