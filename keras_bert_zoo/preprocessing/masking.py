"""Masked-LM examples: which pieces are hidden, and what stands in their place."""

from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import keras
import numpy as np

from keras_bert_zoo.preprocessing import mask_units
from keras_bert_zoo.preprocessing.lazy_tensorflow import tf
from keras_bert_zoo.preprocessing.random_streams import integers, mix, uniform
from keras_bert_zoo.preprocessing.tokenizer import BertTokenizer

# What an example draws for each position: its order among the candidates, what happens to it,
# what replaces it, and how long a span is that begins there.
_ORDER, _FATE, _REPLACEMENT, _SPAN_LENGTH = range(4)

# How many pieces are chosen together, as their mean square over their mean, in long rows of
# text: it sets the spread of the number that chance chooses.
_CHOSEN_TOGETHER = {"piece": 1, "word": 2, "span": 8}

# A word that is longer than its row's count is chosen all the same, if it has no more pieces
# than this and is the shortest of the row: short texts get a mask too.
_SHORT_WORD = 8

_NO_LIMIT = np.iinfo(np.int32).max


@keras.saving.register_keras_serializable("keras_bert_zoo")
class MaskedLMMasker:
    """Hides pieces for the masked-LM task (Devlin et al. 2018, section 3.1 and appendix A.1).

    A chosen piece becomes `[MASK]` at `mask_token_rate`, a random piece at
    `random_token_rate`, and stays otherwise. All chosen pieces are to be predicted.

    With `selection="count"` a row of n real pieces, marks included, gets as many choices as in
    the authors' code, `min(mask_selection_length, max(1, round(mask_selection_rate * n)))`, if
    it has so many pieces to choose from. With `"chance"` each unit is chosen by itself at
    `mask_selection_rate`, and a row may get none.

    The units:

    - `"piece"`: each piece.
    - `"word"`: whole words, which are never split: a piece and the `##` pieces behind it, or
      what `word_ids` says. To fill a count they are taken in random order, and one that would
      exceed it is passed over (the authors' whole word masking), so a row may stay below its
      count. Where every word of a row is longer than the count, the shortest is taken, unless
      it has more than 8 pieces or more than `mask_selection_length`. Each piece becomes
      `[MASK]`, random or the same by itself.
    - `"span"`: runs of whole words (SpanBERT, Joshi et al. 2020). A row is cut into spans of
      1 to 10 words, geometrically distributed with p = 0.2, that also end at special pieces;
      they are taken in random order, and the one that would exceed the count gives the words
      from its first on that fit. Where no span's first word does, the shortest of these is
      taken as above. The pieces of a span become `[MASK]`, random or the same together.

    A word with a piece that can't be chosen is not chosen, and ends a span.

    The choice depends on `seed`, the epoch, the example's id and its row alone: not on the
    batch the example falls in, its padding, the number of workers or the backend.

    Args:
        tokenizer: knows the vocabulary and its special pieces.
        mask_selection_rate: share of a row's pieces that is chosen, in (0, 1].
        mask_selection_length: most choices in a row. None sets no limit to a count; to chance
            it sets one that six standard deviations separate from the mean,
            `r * n + 6 * sqrt(k * n * r * (1 - r))` with k = 1, 2 and 8 for pieces, words and
            spans. What chance chooses beyond the limit is given up at random, by whole units.
        mask_token_rate, random_token_rate: shares of the chosen, together at most 1.
        selection: `"count"` or `"chance"`.
        unit: `"piece"`, `"word"` or `"span"`.
        unselectable_token_ids: ids that are never chosen, beside the special pieces.
        replacement_token_ids: the ids of random pieces, each as likely. None is the ordinary
            pieces, neither special nor `[unused...]`; `"all"` the whole vocabulary, as in the
            authors' code.
        ignore_index: the label of a position that is not chosen.
        seed: an integer.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument is out of its range, or the vocabulary has no `[MASK]` or no
            piece to put in place of another.

    Example:
        >>> tokenizer = BertTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##b"], lowercase=True)
        >>> masker = MaskedLMMasker(tokenizer, unit="word")
        >>> out = masker([[2, 5, 6, 3]], [[1, 1, 1, 1]], example_ids=[0])
        >>> out["labels"].numpy().tolist()
        [[-100, 5, 6, -100]]
        >>> out["mask_positions"].numpy()[out["mask_weights"].numpy() > 0].tolist()
        [1, 2]
    """

    def __init__(
        self,
        tokenizer: BertTokenizer,
        mask_selection_rate: float = 0.15,
        mask_selection_length: int | None = None,
        mask_token_rate: float = 0.8,
        random_token_rate: float = 0.1,
        selection: str = "count",
        unit: str = "piece",
        unselectable_token_ids: Sequence[int] | None = None,
        replacement_token_ids: Sequence[int] | str | None = None,
        ignore_index: int = -100,
        seed: int = 0,
    ):
        rates = {
            "mask_selection_rate": mask_selection_rate,
            "mask_token_rate": mask_token_rate,
            "random_token_rate": random_token_rate,
        }
        for name, rate in rates.items():
            if not isinstance(rate, Real) or isinstance(rate, bool):
                raise TypeError(f"`{name}` must be a number. Received: {rate!r}.")
        if not 0 < mask_selection_rate <= 1:
            raise ValueError(
                f"`mask_selection_rate` must be in (0, 1]. Received: {mask_selection_rate!r}."
            )
        together = mask_token_rate + random_token_rate
        if not (min(mask_token_rate, random_token_rate) >= 0 and together <= 1):
            raise ValueError(
                "`mask_token_rate` and `random_token_rate` must not be negative and at most 1 "
                f"together. Received: {mask_token_rate!r} and {random_token_rate!r}."
            )
        if mask_selection_length is not None:
            _check_integer("mask_selection_length", mask_selection_length, 1, _NO_LIMIT)
        _check_integer("ignore_index", ignore_index, -(2**31), 2**31 - 1)
        _check_integer("seed", seed, -(2**63), 2**63 - 1)
        for name, value, known in (
            ("selection", selection, ("count", "chance")),
            ("unit", unit, tuple(_CHOSEN_TOGETHER)),
        ):
            if value not in known:
                raise ValueError(f"`{name}` must be one of {known}. Received: {value!r}.")
        if tokenizer.mask_token_id is None:
            raise ValueError("`tokenizer` has no [MASK] piece in its vocabulary.")

        self.tokenizer = tokenizer
        self.mask_selection_rate = float(mask_selection_rate)
        self.mask_selection_length = (
            None if mask_selection_length is None else int(mask_selection_length)
        )
        self.mask_token_rate = float(mask_token_rate)
        self.random_token_rate = float(random_token_rate)
        self.selection = selection
        self.unit = unit
        self.ignore_index = int(ignore_index)
        self.seed = int(seed)

        vocabulary = tokenizer.vocabulary
        self.unselectable_token_ids = _checked_ids(
            "unselectable_token_ids", unselectable_token_ids, len(vocabulary)
        )
        self.replacement_token_ids = _checked_ids(
            "replacement_token_ids", replacement_token_ids, len(vocabulary), words=("all",)
        )

        # Tables over the vocabulary: a look-up is cheaper than a comparison with each special id.
        self._is_special = np.zeros(len(vocabulary), bool)
        self._is_special[tokenizer.special_token_ids] = True
        self._is_selectable = ~self._is_special
        self._is_selectable[self.unselectable_token_ids or []] = False
        self._is_continuation = np.array([piece.startswith("##") for piece in vocabulary])
        if self.replacement_token_ids is None:
            is_unused = np.array([piece.startswith("[unused") for piece in vocabulary])
            replacements = np.flatnonzero(~self._is_special & ~is_unused)
        elif self.replacement_token_ids == "all":
            replacements = np.arange(len(vocabulary))
        else:
            replacements = self.replacement_token_ids
        self._replacements = np.array(replacements, np.int32)
        if not self._replacements.size:
            raise ValueError(
                "There must be a piece to put in place of another: an ordinary one in the "
                "vocabulary of `tokenizer`, or one in `replacement_token_ids`. Received: none."
            )

    def __call__(
        self,
        token_ids: Any,
        padding_mask: Any,
        example_ids: Any,
        epoch: Any = 0,
        word_ids: Any = None,
    ) -> dict[str, Any]:
        """Hide pieces of packed rows.

        Args:
            token_ids: integers (batch, length), rows with their marks.
            padding_mask: integers or booleans (batch, length), 1 for a real piece.
            example_ids: integers (batch,), the examples' places in the data set.
            epoch: an integer or integer tensor (); the next epoch gives other choices.
            word_ids: integers (batch, length), equal for neighbouring pieces of one word. None
                goes by `##`. What stands at special pieces and padding does not matter.

        Returns:
            A dictionary of tensors. For gathered positions: `mask_positions` (batch,
            predictions), int32 and ascending; `mask_ids`, the pieces that stood there;
            `mask_weights`, floats, 1 for a real choice and 0 for filling, whose position and
            id are 0. The width depends on the length alone. For all positions (batch, length):
            `token_ids` with pieces replaced, `chosen` booleans, and `labels`, the piece that
            stood at a chosen position and `ignore_index` elsewhere. A row with no piece to
            choose has zero weights only.

        Raises:
            TypeError: an argument is not integers.
            ValueError: the shapes differ, an id is outside the vocabulary, or `word_ids` came
                though the unit is pieces.
        """
        token_ids = _integers("token_ids", token_ids, (None, None), tf.int32)
        padding_mask = _integers("padding_mask", padding_mask, token_ids.shape, tf.int32)
        example_ids = _integers("example_ids", example_ids, token_ids.shape[:1], tf.int64)
        epoch = _integers("epoch", epoch, (), tf.int64)
        if tf.executing_eagerly():
            self._check_range(token_ids)

        # Each example draws from streams of its own.
        key = mix(example_ids ^ mix(mix(self.seed) ^ epoch))
        real = padding_mask > 0
        if self.unit == "piece":
            if word_ids is not None:
                raise ValueError('`word_ids` needs the unit "word" or "span". The unit is "piece".')
            positions, owners = self._choose_pieces(key, token_ids, real)
        else:
            if word_ids is not None:
                word_ids = _integers("word_ids", word_ids, token_ids.shape, tf.int64)
            positions, owners = self._choose_units(key, token_ids, real, word_ids)

        weights = tf.cast(positions >= 0, tf.float32)
        positions = tf.maximum(positions, 0)
        mask_ids = tf.gather(token_ids, positions, batch_dims=1) * tf.cast(weights, tf.int32)
        random_ids = tf.gather(
            self._replacements, integers(key, _REPLACEMENT, positions, len(self._replacements))
        )
        fate = uniform(key, _FATE, owners)
        new_ids = tf.where(
            fate < self.mask_token_rate,
            self.tokenizer.mask_token_id,
            tf.where(fate < self.mask_token_rate + self.random_token_rate, random_ids, mask_ids),
        )
        # Filling adds nothing to position 0.
        change = (new_ids - mask_ids) * tf.cast(weights, tf.int32)
        row = tf.broadcast_to(tf.range(tf.shape(positions)[0])[:, None], tf.shape(positions))
        cells = tf.stack([row, positions], axis=-1)
        chosen = tf.scatter_nd(cells, weights, tf.shape(token_ids)) > 0
        return {
            "token_ids": tf.tensor_scatter_nd_add(token_ids, cells, change),
            "mask_positions": positions,
            "mask_ids": mask_ids,
            "mask_weights": weights,
            "chosen": chosen,
            "labels": tf.where(chosen, token_ids, self.ignore_index),
        }

    def _choose_pieces(self, key, token_ids, real):
        """Return positions (batch, predictions), -1 as filling behind, and these as owners too."""
        length = tf.shape(token_ids)[1]
        most = self._most(length)
        # Behind the longest row there is nothing to choose.
        longest = tf.reduce_max(tf.where(real, tf.range(1, length + 1), 0))
        real, token_ids = real[:, :longest], token_ids[:, :longest]
        order = uniform(key, _ORDER, tf.range(longest)[None, :])
        selectable = real & tf.gather(self._is_selectable, token_ids)
        if self.selection == "chance":
            selectable &= order < self.mask_selection_rate
        wanted = tf.minimum(self._most(_number(real)), _number(selectable))
        first = tf.minimum(most, longest)
        positions = tf.math.top_k(-tf.where(selectable, order, 2.0), k=first).indices
        is_filling = tf.range(first) >= wanted[:, None]
        positions = tf.sort(tf.where(is_filling, longest, positions), axis=1)
        positions = tf.where(is_filling, -1, positions)
        positions = tf.pad(positions, [[0, 0], [0, most - first]], constant_values=-1)
        return positions, positions

    def _choose_units(self, key, token_ids, real, word_ids):
        """Return positions as for pieces, and owners: where the number of a piece's fate stands."""
        position = tf.range(tf.shape(token_ids)[1])
        inside = real & ~tf.gather(self._is_special, token_ids)
        selectable = tf.gather(self._is_selectable, token_ids)
        if word_ids is None:
            joined = tf.gather(self._is_continuation, token_ids)
        else:
            joined = tf.pad(word_ids[:, 1:] == word_ids[:, :-1], [[0, 0], [1, 0]])
        first, size = mask_units.words(inside, selectable, joined)
        start, need = first, size
        if self.unit == "span":
            drawn = mask_units.span_lengths(uniform(key, _SPAN_LENGTH, position[None, :]))
            start, need = mask_units.spans(first, size, drawn)
            if self.selection == "chance":
                # Chance takes a span or leaves it: it is an item as a word is.
                first, size = mask_units.words(size > 0, size > 0, start != position)
                need = size

        order = uniform(key, _ORDER, start)
        is_item = (first == position) & (size > 0)
        row_length = _number(real)
        room = self._most(row_length)
        if self.selection == "chance":
            is_item &= order < self.mask_selection_rate
        else:
            count = self._count(row_length)
            shortest = tf.reduce_min(tf.where(is_item, need, _NO_LIMIT), axis=1)
            room = tf.where(shortest <= room, tf.maximum(count, shortest), count)
        taken = mask_units.choose(order, tf.where(is_item, size, 0), need, room)

        chosen = tf.gather(taken, first, batch_dims=1) & (size > 0)
        length = tf.size(position)
        places = tf.where(chosen, length - position, 0)
        places = tf.math.top_k(places, k=self._most(length)).values
        positions = tf.where(places > 0, length - places, -1)
        if self.unit == "word":
            return positions, positions
        return positions, tf.gather(start, tf.maximum(positions, 0), batch_dims=1)

    def _count(self, length):
        """Return how many of `length` pieces are chosen, rounding halves to even as Python does."""
        count = tf.round(self.mask_selection_rate * tf.cast(length, tf.float64))
        return self._limited(tf.maximum(tf.cast(count, tf.int32), 1), length)

    def _most(self, length):
        """Return the most of `length` pieces that are chosen; longer rows never have less."""
        if self.selection == "count":
            count = self._count(length)
            if self.unit == "piece":
                return count
            return self._limited(tf.maximum(count, _SHORT_WORD), length)
        if self.mask_selection_length is not None:
            return self._limited(length, length)
        rate = self.mask_selection_rate
        mean = rate * tf.cast(length, tf.float64)
        deviation = tf.sqrt(_CHOSEN_TOGETHER[self.unit] * mean * (1 - rate))
        return self._limited(tf.cast(tf.math.ceil(mean + 6 * deviation), tf.int32), length)

    def _limited(self, count, length):
        return tf.minimum(tf.minimum(count, length), self.mask_selection_length or _NO_LIMIT)

    def _check_range(self, token_ids):
        size = len(self._is_special)
        wrong = tf.boolean_mask(token_ids, (token_ids < 0) | (token_ids >= size))
        if tf.size(wrong):
            raise ValueError(
                f"`token_ids` must be ids of the tokenizer's vocabulary, 0 to {size - 1}. "
                f"Received: {int(wrong[0])}."
            )

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {
            "tokenizer": keras.saving.serialize_keras_object(self.tokenizer),
            "mask_selection_rate": self.mask_selection_rate,
            "mask_selection_length": self.mask_selection_length,
            "mask_token_rate": self.mask_token_rate,
            "random_token_rate": self.random_token_rate,
            "selection": self.selection,
            "unit": self.unit,
            "unselectable_token_ids": self.unselectable_token_ids,
            "replacement_token_ids": self.replacement_token_ids,
            "ignore_index": self.ignore_index,
            "seed": self.seed,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "MaskedLMMasker":
        """Make the masker `get_config` described."""
        tokenizer = keras.saving.deserialize_keras_object(config["tokenizer"])
        return cls(**{**config, "tokenizer": tokenizer})


def _number(booleans):
    """Return how many are true in each row."""
    return tf.reduce_sum(tf.cast(booleans, tf.int32), axis=1)


def _check_integer(name, value, lowest, highest):
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(f"`{name}` must be an integer. Received: {value!r}.")
    if not lowest <= value <= highest:
        raise ValueError(f"`{name}` must be from {lowest} to {highest}. Received: {value!r}.")


def _checked_ids(name, ids, vocabulary_size, words=()):
    """Return ids of the vocabulary as a list of Python integers; None and `words` as they are."""
    if ids is None or (isinstance(ids, str) and ids in words):
        return ids
    if isinstance(ids, str) or not hasattr(ids, "__iter__"):
        expected = " or ".join(["None", *map(repr, words), "a list of ids"])
        raise TypeError(f"`{name}` must be {expected}. Received: {ids!r}.")
    ids = list(ids)
    for index, number in enumerate(ids):
        _check_integer(f"{name}[{index}]", number, 0, vocabulary_size - 1)
    return [int(number) for number in ids]


def _integers(name, value, shape, dtype):
    """Return an argument as a tensor, of a shape that is only checked as far as it is known."""
    if isinstance(value, tf.RaggedTensor):
        raise ValueError(f"`{name}` must be rows of one length, padded. Received: a ragged tensor.")
    # Python numbers as int64, which tf would take for int32.
    value = tf.convert_to_tensor(value if tf.is_tensor(value) else np.asarray(value))
    if not (value.dtype.is_integer or value.dtype.is_bool):
        raise TypeError(f"`{name}` must be integers. Received: dtype {value.dtype.name}.")
    if not value.shape.is_compatible_with(shape):
        expected = tuple(tf.TensorShape(shape))
        raise ValueError(
            f"`{name}` must have the shape {expected}. Received: {tuple(value.shape)}."
        )
    return tf.cast(value, dtype)
