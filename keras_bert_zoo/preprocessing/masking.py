"""Masked-LM examples: which pieces are hidden, and what stands in their place."""

import keras

from keras_bert_zoo.preprocessing.lazy_tensorflow import tf
from keras_bert_zoo.preprocessing.tokenizer import BertTokenizer

# Constants of the splitmix64 generator (Steele, Lea and Flood 2014), as signed 64-bit numbers.
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2 = 0x94D049BB133111EB - 2**64


@keras.saving.register_keras_serializable("keras_bert_zoo")
class MaskedLMMasker:
    """Hides pieces for the masked-LM task (Devlin et al. 2018, section 3.1 and appendix A.1).

    Of a row of n real pieces, marks included, `min(mask_selection_length, max(1,
    round(mask_selection_rate * n)))` are chosen, never a special piece. A chosen piece
    becomes `[MASK]` at `mask_token_rate`, a random ordinary piece at `random_token_rate`,
    and stays otherwise.

    The choice depends on `seed`, the epoch and the example's id alone: not on the batch
    the example falls in, the number of workers or the backend.

    Args:
        tokenizer: knows the special pieces.
        mask_selection_rate: share of a row's pieces that is chosen, in (0, 1].
        mask_selection_length: most choices in a row; None for no limit but the rate's.
        mask_token_rate, random_token_rate: shares of the chosen, together at most 1.
        random_from_all: draw replacements from the whole vocabulary, special and unused
            entries too, as the authors' code does.
        seed: an integer.

    Example:
        >>> tokenizer = BertTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"], lowercase=True)
        >>> masker = MaskedLMMasker(tokenizer)
        >>> out = masker([[2, 5, 6, 3]], [[1, 1, 1, 1]], example_ids=[0])
        >>> int(out["mask_weights"].numpy().sum())
        1
    """

    def __init__(
        self,
        tokenizer: BertTokenizer,
        mask_selection_rate: float = 0.15,
        mask_selection_length: int | None = None,
        mask_token_rate: float = 0.8,
        random_token_rate: float = 0.1,
        random_from_all: bool = False,
        seed: int = 0,
    ):
        if not 0 < mask_selection_rate <= 1:
            raise ValueError(
                f"`mask_selection_rate` must be in (0, 1]. Received: {mask_selection_rate!r}."
            )
        if mask_selection_length is not None and mask_selection_length < 1:
            raise ValueError(
                "`mask_selection_length` must be None or at least 1. "
                f"Received: {mask_selection_length!r}."
            )
        if min(mask_token_rate, random_token_rate) < 0 or mask_token_rate + random_token_rate > 1:
            raise ValueError(
                "`mask_token_rate` and `random_token_rate` must not be negative and at most 1 "
                f"together. Received: {mask_token_rate!r} and {random_token_rate!r}."
            )
        if tokenizer.mask_token_id is None:
            raise ValueError("`tokenizer` has no [MASK] piece in its vocabulary.")
        self.tokenizer = tokenizer
        self.mask_selection_rate = mask_selection_rate
        self.mask_selection_length = mask_selection_length
        self.mask_token_rate = mask_token_rate
        self.random_token_rate = random_token_rate
        self.random_from_all = random_from_all
        self.seed = seed
        special = set(tokenizer.special_token_ids)
        self._replacements = [
            i
            for i, piece in enumerate(tokenizer.vocabulary)
            if random_from_all or not (i in special or piece.startswith("[unused"))
        ]
        if not self._replacements:
            raise ValueError("`tokenizer` has no ordinary piece to put in place of a masked one.")

    def __call__(self, token_ids, padding_mask, example_ids, epoch=0) -> dict:
        """Hide pieces of packed rows.

        Args:
            token_ids, padding_mask: integers (batch, length).
            example_ids: integers (batch,), the examples' places in the data set.
            epoch: an integer; the next epoch gives other choices.

        Returns:
            `token_ids` (batch, length) with pieces replaced; `mask_positions` (batch,
            predictions) ascending, `mask_ids` the pieces that stood there, `mask_weights`
            floats, 1 for a real choice and 0 for filling. A row with no piece to choose
            has zero weights only.
        """
        token_ids = tf.cast(token_ids, tf.int32)
        padding_mask = tf.cast(padding_mask, tf.int32)
        length = tf.shape(token_ids)[1]
        predictions = self._count(length)

        # Each example draws from its own stream: one number a position for the choice, then
        # one for what happens to the piece and one for its replacement.
        key = _mix(
            tf.cast(example_ids, tf.int64) ^ _mix(_mix(self.seed) ^ tf.cast(epoch, tf.int64))
        )
        special = tf.constant(self.tokenizer.special_token_ids, tf.int32)
        maskable = (padding_mask > 0) & tf.reduce_all(token_ids[..., None] != special, axis=-1)
        # Padded lengths must not change the draw, so a position's number depends on its index.
        order = tf.where(maskable, _uniform(key, 0, length), 2.0)
        chosen = tf.math.top_k(-order, k=predictions, sorted=True).indices
        wanted = tf.minimum(
            self._count(tf.reduce_sum(padding_mask, axis=1)),
            tf.reduce_sum(tf.cast(maskable, tf.int32), axis=1),
        )
        chosen = tf.where(tf.range(predictions)[None, :] < wanted[:, None], chosen, length)
        positions = tf.sort(chosen, axis=1)
        weights = tf.cast(positions < length, tf.float32)
        positions = tf.where(positions < length, positions, 0)
        mask_ids = tf.gather(token_ids, positions, batch_dims=1) * tf.cast(weights, tf.int32)

        fate = tf.gather(_uniform(key, 1, length), positions, batch_dims=1)
        draw = tf.gather(_uniform(key, 2, length), positions, batch_dims=1)
        replacements = tf.constant(self._replacements, tf.int32)
        draw = tf.cast(draw * len(self._replacements), tf.int32)
        random_ids = tf.gather(replacements, tf.minimum(draw, len(self._replacements) - 1))
        new_ids = tf.where(
            fate < self.mask_token_rate,
            self.tokenizer.mask_token_id,
            tf.where(fate < self.mask_token_rate + self.random_token_rate, random_ids, mask_ids),
        )
        row, column = tf.unstack(tf.where(weights > 0), axis=1)
        position = tf.gather_nd(positions, tf.stack([row, column], axis=1))
        token_ids = tf.tensor_scatter_nd_update(
            token_ids,
            tf.stack([row, tf.cast(position, tf.int64)], axis=1),
            tf.boolean_mask(new_ids, weights > 0),
        )
        return {
            "token_ids": token_ids,
            "mask_positions": positions,
            "mask_ids": mask_ids,
            "mask_weights": weights,
        }

    def _count(self, length):
        """Return how many of `length` pieces are chosen, rounding halves to even as Python does."""
        count = tf.round(self.mask_selection_rate * tf.cast(length, tf.float64))
        count = tf.maximum(tf.cast(count, tf.int32), 1)
        if self.mask_selection_length is not None:
            count = tf.minimum(count, self.mask_selection_length)
        return count

    def get_config(self) -> dict:
        """Return the constructor's arguments."""
        return {
            "tokenizer": keras.saving.serialize_keras_object(self.tokenizer),
            "mask_selection_rate": self.mask_selection_rate,
            "mask_selection_length": self.mask_selection_length,
            "mask_token_rate": self.mask_token_rate,
            "random_token_rate": self.random_token_rate,
            "random_from_all": self.random_from_all,
            "seed": self.seed,
        }

    @classmethod
    def from_config(cls, config: dict) -> "MaskedLMMasker":
        """Make the masker `get_config` described."""
        tokenizer = keras.saving.deserialize_keras_object(config["tokenizer"])
        return cls(**{**config, "tokenizer": tokenizer})


def _mix(number):
    """Return the splitmix64 finaliser of int64 numbers."""
    number = tf.bitcast(tf.convert_to_tensor(number, tf.int64), tf.uint64)
    shift = tf.bitwise.right_shift

    def times(value, factor):
        # Signed multiplication wraps to the same bits, and has a kernel everywhere.
        return tf.bitcast(tf.bitcast(value, tf.int64) * factor, tf.uint64)

    number = times(number ^ shift(number, tf.constant(30, tf.uint64)), _MIX_1)
    number = times(number ^ shift(number, tf.constant(27, tf.uint64)), _MIX_2)
    return tf.bitcast(number ^ shift(number, tf.constant(31, tf.uint64)), tf.int64)


def _uniform(key, stream: int, length):
    """Return (batch, length) floats in [0, 1): the first numbers of one stream of each key."""
    counter = tf.cast(tf.range(length), tf.int64) * 3 + (stream + 1)
    bits = _mix(key[:, None] + counter[None, :] * _GOLDEN)
    # The top 24 bits are what a float32 holds exactly.
    bits = tf.bitwise.right_shift(tf.bitcast(bits, tf.uint64), tf.constant(40, tf.uint64))
    return tf.cast(bits, tf.float32) * 2.0**-24
