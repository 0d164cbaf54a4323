"""The encoder: embeddings, a stack of encoder layers, and the pooler."""

from collections.abc import Sequence

import keras

from keras_bert_zoo.layers import BertEmbeddings, BertEncoderBlock
from keras_bert_zoo.layers.common import check_heads, check_positive_int, initializer
from keras_bert_zoo.layers.lora import LoraDense
from keras_bert_zoo.layers.packed_rows import (
    AttentionMask,
    ExampleStates,
    FirstPositions,
    FirstStates,
)
from keras_bert_zoo.models.text_model import TextModel

# The layers that LoRA changes where none are named: queries, keys and values, in one product.
LORA_LAYERS = ("qkv",)


@keras.saving.register_keras_serializable("keras_bert_zoo")
class BertBackbone(TextModel, keras.Model):
    """BERT's encoder (Devlin et al. 2018), of any size.

    Inputs are a dictionary of integer tensors (batch, length): `token_ids`, `segment_ids`
    and `padding_mask` (1 where a real token stands). Outputs are a dictionary of floats:
    `sequence_output` (batch, length, hidden_dim), the last layer's states, and
    `pooled_output` (batch, hidden_dim), a dense tanh of the first position's state.

    A row may hold several examples, as `preprocessing.pack_rows` makes them. Then a fourth
    input, `example_starts` (batch, examples), says where each begins: none sees another,
    each one's positions count from 0, and `pooled_output` is (batch, examples,
    hidden_dim).

    A fifth input that may be left out, `output_positions` (batch, outputs), says which
    positions' states are wanted. Then the last layer works at these alone, and both outputs
    are (batch, outputs, hidden_dim): the states, and the pooler's of each.

    Args:
        vocabulary_size: rows of the token table.
        num_layers: encoder layers.
        num_heads: attention heads; they divide `hidden_dim`.
        hidden_dim: width of the states.
        intermediate_dim: width of the feed-forward network.
        dropout: rate after the embeddings and after each half of a layer.
        max_sequence_length: rows of the position table.
        num_segments: rows of the segment table.
        hidden_activation: `"gelu"` (exact), `"gelu_tanh"` (the authors' TensorFlow
            code), `"relu"`, `"silu"` or `"tanh"`.
        layer_norm_epsilon: added to the variance in every LayerNorm.
        attention_dropout: rate on the attention probabilities.
        causal: a position sees only itself and what is left of it.
        rematerialize: training keeps each layer's input only and computes the layer again
            for the gradients: a third more work, for long rows or large models that memory
            has no room for. The results are the same.
        dtype: a Keras dtype or policy, such as `"mixed_bfloat16"`.
        preprocessor: a `BertPreprocessor` to be kept with the encoder, so that texts can be
            given and a preset of it has a vocabulary.

    Raises:
        ValueError: an argument is out of range; an id, a segment or the length is
            outside its table.

    Example:
        >>> backbone = BertBackbone(
        ...     vocabulary_size=100, num_layers=2, num_heads=2, hidden_dim=8, intermediate_dim=16)
        >>> outputs = backbone({
        ...     "token_ids": [[2, 5, 3, 0]],
        ...     "segment_ids": [[0, 0, 0, 0]],
        ...     "padding_mask": [[1, 1, 1, 0]],
        ... })
        >>> tuple(outputs["sequence_output"].shape), tuple(outputs["pooled_output"].shape)
        ((1, 4, 8), (1, 8))
    """

    def __init__(
        self,
        vocabulary_size: int,
        num_layers: int,
        num_heads: int,
        hidden_dim: int,
        intermediate_dim: int,
        dropout: float = 0.1,
        max_sequence_length: int = 512,
        num_segments: int = 2,
        hidden_activation: str = "gelu",
        layer_norm_epsilon: float = 1e-12,
        attention_dropout: float = 0.1,
        causal: bool = False,
        rematerialize: bool = False,
        dtype=None,
        preprocessor=None,
        name: str | None = None,
    ):
        check_heads(hidden_dim, num_heads)
        check_positive_int(num_layers=num_layers)

        # === Layers ===
        embeddings = BertEmbeddings(
            vocabulary_size,
            hidden_dim,
            max_sequence_length,
            num_segments,
            dropout,
            layer_norm_epsilon,
            dtype=dtype,
            name="embeddings",
        )
        encoder_layers = [
            BertEncoderBlock(
                hidden_dim,
                num_heads,
                intermediate_dim,
                hidden_activation,
                dropout,
                attention_dropout,
                layer_norm_epsilon,
                causal,
                rematerialize,
                dtype=dtype,
                name=f"encoder_layer_{i}",
            )
            for i in range(num_layers)
        ]
        attention_mask = AttentionMask(name="attention_mask")
        first_states = FirstStates(dtype=dtype, name="first_states")
        pooler = keras.layers.Dense(
            hidden_dim,
            activation="tanh",
            kernel_initializer=initializer(),
            dtype=dtype,
            name="pooler",
        )

        # === Functional Model ===
        inputs = {
            name: keras.Input(shape=(None,), dtype="int32", name=name)
            for name in ("token_ids", "segment_ids", "padding_mask")
        }
        example_starts, positions = (
            keras.Input((None,), dtype="int32", name=optional, optional=True)
            for optional in ("example_starts", "output_positions")
        )
        inputs |= {"example_starts": example_starts, "output_positions": positions}
        x = embeddings(inputs["token_ids"], inputs["segment_ids"], example_starts)
        mask = attention_mask(inputs["padding_mask"], example_starts)
        for encoder_layer in encoder_layers[:-1]:
            x = encoder_layer(x, mask)
        x = encoder_layers[-1](x, mask, positions)
        outputs = {
            "sequence_output": x,
            "pooled_output": pooler(first_states(x, example_starts, positions)),
        }
        super().__init__(inputs=inputs, outputs=outputs, name=name)

        # === Config ===
        # A functional model's own dtype is not its layers', unless it is told.
        self.dtype_policy = keras.dtype_policies.get(dtype)
        self.embeddings = embeddings
        self.attention_mask = attention_mask
        self.encoder_layers = encoder_layers
        self.pooler = pooler
        self.token_embedding = embeddings.token_embedding
        self.vocabulary_size = vocabulary_size
        self.num_layers = num_layers
        self.num_heads = num_heads
        self.hidden_dim = hidden_dim
        self.intermediate_dim = intermediate_dim
        self.dropout = dropout
        self.max_sequence_length = max_sequence_length
        self.num_segments = num_segments
        self.hidden_activation = hidden_activation
        self.layer_norm_epsilon = layer_norm_epsilon
        self.attention_dropout = attention_dropout
        self.causal = causal
        self.preprocessor = preprocessor
        self.lora = None

    @property
    def rematerialize(self) -> bool:
        """Whether training computes each layer again; it may be set before training begins."""
        return self.encoder_layers[0].rematerialize

    @rematerialize.setter
    def rematerialize(self, value: bool) -> None:
        for layer in self.encoder_layers:
            layer.rematerialize = value

    def example_inputs(self) -> dict:
        """Return the inputs that describe examples, for a task to be built on them."""
        return {name: x for name, x in self.input.items() if name != "output_positions"}

    def first_pooled_output(self, inputs: dict):
        """Return the pooled output of the inputs of a task that reads nothing else.

        Its last layer works at `[CLS]` alone. The result is (batch, hidden_dim), or (batch,
        examples, hidden_dim) of packed rows.
        """
        starts = inputs.get("example_starts")
        positions = FirstPositions(name="first_positions")(inputs["token_ids"], starts)
        pooled = self({**inputs, "output_positions": positions})["pooled_output"]
        return ExampleStates(name="example_states", dtype=self.dtype_policy)(pooled, starts)

    # === LoRA ===

    def enable_lora(
        self,
        rank: int,
        target_layer_names: Sequence[str] | None = None,
        lora_alpha: float | None = None,
    ) -> None:
        """Keep all weights as they are and learn changes of low rank of some (Hu et al. 2021).

        A target's output gets `(lora_alpha / rank) x A B` added, where `A` (inputs, rank) begins at
        random and `B` (rank, outputs) at 0; these are all that is trained in the encoder. Compile
        a task that is made already again afterwards; `training.train_only` does both.

        Args:
            rank: columns of `A`.
            target_layer_names: some of `"qkv"` (queries, keys and values), `"output"` (the
                layers that end attention and the feed-forward network) and `"intermediate"`;
                `("qkv",)` if None.
            lora_alpha: `rank` if None.

        Raises:
            ValueError: a name is none of these, or the encoder has LoRA already.

        Example:
            >>> backbone = BertBackbone(
            ...     vocabulary_size=100, num_layers=2, num_heads=2, hidden_dim=8,
            ...     intermediate_dim=16)
            >>> backbone.enable_lora(4)
            >>> [tuple(weight.shape) for weight in backbone.trainable_weights[:2]]
            [(8, 4), (4, 24)]
        """
        names = LORA_LAYERS if target_layer_names is None else tuple(target_layer_names)
        known = {layer.name for layer in self._dense_layers()}
        if isinstance(target_layer_names, str) or not names or not set(names) <= known:
            raise ValueError(
                f"`target_layer_names` must be a list of some of {sorted(known)}. "
                f"Received: {target_layer_names!r}."
            )
        check_positive_int(rank=rank)
        if self.lora is not None:
            raise ValueError(
                f"The encoder has LoRA already, of rank {self.lora['rank']}. `merge_lora` makes "
                "it a plain one."
            )
        for layer in self._flatten_layers(include_self=False):
            layer.trainable = layer.name in names and isinstance(layer, LoraDense)
        self._add_lora(rank, names, lora_alpha)

    def merge_lora(self) -> None:
        """Add what LoRA learnt to the kernels; the encoder is a plain one then, and frozen."""
        for layer in self.lora_layers():
            layer.merge_lora()
            layer.trainable = False
        self.lora = None
        self._tell_torch()

    def lora_layers(self) -> list:
        """Return the layers that have LoRA."""
        return [layer for layer in self._dense_layers() if layer.lora_enabled]

    def lora_shapes(self, rank: int, target_layer_names: Sequence[str]) -> dict[str, tuple]:
        """Return the shapes of the factors that LoRA would have, by their paths."""
        shapes = {}
        for layer in self._dense_layers():
            if layer.name in target_layer_names:
                inputs, outputs = layer.kernel.shape
                shapes[f"{layer.path}/lora_kernel_a"] = (inputs, rank)
                shapes[f"{layer.path}/lora_kernel_b"] = (rank, outputs)
        return shapes

    def _add_lora(self, rank, target_layer_names, lora_alpha):
        for layer in self._dense_layers():
            if layer.name in target_layer_names:
                layer.enable_lora(rank, lora_alpha)
        self.lora = {
            "rank": rank,
            "target_layer_names": list(target_layer_names),
            "lora_alpha": lora_alpha,
        }
        self._tell_torch()

    def _dense_layers(self):
        """Return the layers that LoRA can change."""
        layers = [layer for part in self.encoder_layers for layer in part._flatten_layers()]
        return [layer for layer in layers if isinstance(layer, LoraDense)]

    def _tell_torch(self):
        # PyTorch's module of the encoder does not see what is made inside its layers later, and
        # would not set the gradients of it back. This is Keras's, and waits while there are no
        # values yet.
        if keras.backend.backend() == "torch":
            self._post_build()

    # === What is inside ===

    def layer_states(self, inputs: dict) -> list:
        """Return the states after the embeddings and after each layer, for a model to be built on.

        `inputs` are those of a functional model; dropout is in force where that trains.
        """
        starts = inputs.get("example_starts")
        states = [self.embeddings(inputs["token_ids"], inputs["segment_ids"], starts)]
        mask = self.attention_mask(inputs["padding_mask"], starts)
        for layer in self.encoder_layers:
            states.append(layer(states[-1], mask))
        return states

    def hidden_states(self, inputs: dict) -> list:
        """Return the states after the embeddings and after each layer, in inference mode.

        `inputs` is what the backbone takes; each of the `num_layers + 1` results is a
        float tensor (batch, length, hidden_dim).
        """
        return [x for x, _, _ in self._walk(inputs)]

    def attention_scores(self, inputs: dict) -> list:
        """Return each layer's attention probabilities, in inference mode.

        `inputs` is what the backbone takes; each of the `num_layers` results is a float
        tensor (batch, num_heads, length, length) whose rows sum to 1.
        """
        return [
            layer.attention.attention_scores(x, mask)
            for x, layer, mask in self._walk(inputs)
            if layer
        ]

    def _walk(self, inputs):
        """Yield each state, the layer that reads it (None of the last) and what it may see."""
        self.input_rules().check(inputs)
        inputs = {name: keras.ops.convert_to_tensor(value) for name, value in inputs.items()}
        starts = inputs.get("example_starts")
        x = self.embeddings(inputs["token_ids"], inputs["segment_ids"], starts, training=False)
        mask = self.attention_mask(inputs["padding_mask"], starts)
        for layer in self.encoder_layers:
            yield x, layer, mask
            x = layer(x, mask, training=False)
        yield x, None, mask

    def get_config(self):
        """Return the constructor's arguments."""
        return {
            "vocabulary_size": self.vocabulary_size,
            "num_layers": self.num_layers,
            "num_heads": self.num_heads,
            "hidden_dim": self.hidden_dim,
            "intermediate_dim": self.intermediate_dim,
            "dropout": self.dropout,
            "max_sequence_length": self.max_sequence_length,
            "num_segments": self.num_segments,
            "hidden_activation": self.hidden_activation,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "attention_dropout": self.attention_dropout,
            "causal": self.causal,
            "rematerialize": self.rematerialize,
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
            "preprocessor": keras.saving.serialize_keras_object(self.preprocessor),
            **({} if self.lora is None else {"lora": dict(self.lora)}),
            **super().get_config(),
        }

    @classmethod
    def from_config(cls, config):
        """Make the encoder `get_config` described, with LoRA where it had it."""
        config = dict(config)
        lora = config.pop("lora", None)
        backbone = super().from_config(config)
        if lora is not None:
            backbone._add_lora(**lora)
        return backbone
