"""BERT's input: token, segment and position embeddings, summed and normalised."""

import keras
from keras import ops

from keras_bert_zoo.layers.common import check_epsilon, check_positive_int, check_rate, initializer
from keras_bert_zoo.layers.dropout import BertDropout
from keras_bert_zoo.layers.packed_rows import current_starts


@keras.saving.register_keras_serializable("keras_bert_zoo")
class BertEmbeddings(keras.layers.Layer):
    """Sum of token, segment and learned position embeddings, then LayerNorm and dropout.

    Inputs are `token_ids` and `segment_ids`, integers of shape (batch, length), and for rows
    that hold several examples `example_starts` (batch, examples), where each begins, so
    that its positions count from 0; the output is a float tensor (batch, length,
    hidden_dim). Devlin et al. 2018, figure 2.

    Raises:
        ValueError: the length is over `max_sequence_length`.

    Example:
        >>> layer = BertEmbeddings(vocabulary_size=10, hidden_dim=4)
        >>> ids = keras.ops.array([[2, 5, 3]])
        >>> tuple(layer(ids, keras.ops.zeros_like(ids)).shape)
        (1, 3, 4)
    """

    def __init__(
        self,
        vocabulary_size: int,
        hidden_dim: int,
        max_sequence_length: int = 512,
        num_segments: int = 2,
        dropout: float = 0.1,
        layer_norm_epsilon: float = 1e-12,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_positive_int(
            vocabulary_size=vocabulary_size,
            hidden_dim=hidden_dim,
            max_sequence_length=max_sequence_length,
            num_segments=num_segments,
        )
        check_rate(dropout=dropout)
        check_epsilon(layer_norm_epsilon)
        self.vocabulary_size = vocabulary_size
        self.hidden_dim = hidden_dim
        self.max_sequence_length = max_sequence_length
        self.num_segments = num_segments
        self.dropout_rate = dropout
        self.layer_norm_epsilon = layer_norm_epsilon

        def table(rows, name):
            return keras.layers.Embedding(
                rows,
                hidden_dim,
                embeddings_initializer=initializer(),
                dtype=self.dtype_policy,
                name=name,
            )

        self.token_embedding = table(vocabulary_size, "token_embedding")
        self.segment_embedding = table(num_segments, "segment_embedding")
        self.position_embedding = table(max_sequence_length, "position_embedding")
        self.layer_norm = keras.layers.LayerNormalization(
            epsilon=layer_norm_epsilon, dtype=self.dtype_policy, name="layer_norm"
        )
        self.dropout = BertDropout(dropout, dtype=self.dtype_policy, name="dropout")

    def build(self, token_ids_shape, segment_ids_shape=None, example_starts_shape=None):
        """Create the three tables and the normalisation's weights."""
        self.token_embedding.build()
        self.segment_embedding.build()
        self.position_embedding.build()
        self.layer_norm.build((None, None, self.hidden_dim))
        self.built = True

    def call(self, token_ids, segment_ids, example_starts=None, training=None):
        """Embed (batch, length) ids into (batch, length, hidden_dim)."""
        length = token_ids.shape[1]
        if isinstance(length, int) and length > self.max_sequence_length:
            raise ValueError(
                f"The inputs have {length} positions but `max_sequence_length` is "
                f"{self.max_sequence_length}. Cut the text or use a model with more positions."
            )
        positions = ops.arange(ops.shape(token_ids)[1], dtype="int32")
        x = _look_up(self.token_embedding, token_ids, training)
        x = x + _look_up(self.segment_embedding, segment_ids, training)
        if example_starts is None:
            x = x + self.position_embedding(positions)
        else:
            positions = positions - current_starts(example_starts, ops.shape(token_ids)[1])
            x = x + _look_up(self.position_embedding, positions, training)
        return self.dropout(self.layer_norm(x), training=training)

    def compute_output_shape(
        self, token_ids_shape, segment_ids_shape=None, example_starts_shape=None
    ):
        """Return (batch, length, hidden_dim)."""
        return (*token_ids_shape, self.hidden_dim)

    def get_config(self):
        """Return the constructor's arguments."""
        return {
            **super().get_config(),
            "vocabulary_size": self.vocabulary_size,
            "hidden_dim": self.hidden_dim,
            "max_sequence_length": self.max_sequence_length,
            "num_segments": self.num_segments,
            "dropout": self.dropout_rate,
            "layer_norm_epsilon": self.layer_norm_epsilon,
        }


def _look_up(table, ids, training):
    if training and keras.backend.backend() == "tensorflow":
        # TensorFlow's gradient of a lookup has a row as often as its id occurs, and Adam and
        # the clipping square each of them instead of their sum. Behind a product the
        # gradient is one dense tensor.
        rows = ops.take(table.embeddings * 1.0, ids, axis=0)
        return ops.cast(rows, table.compute_dtype)
    return table(ids)
