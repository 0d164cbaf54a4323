"""What every foreign format shares: rules between our variables and their tensors.

A format is one ordered table of rules. Read from right to left it loads a checkpoint, from
left to right it writes one, so the two can't drift apart.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_bert_zoo.models.first_values import build_with_values


class Rule(NamedTuple):
    """One of our variables, the tensors it is made of, and the ways between them.

    `read` takes their tensors and gives our value; `write` takes our value and gives their
    tensors, as a tuple.
    """

    ours: str
    theirs: tuple[str, ...]
    read: Callable[..., np.ndarray]
    write: Callable[[np.ndarray], tuple[np.ndarray, ...]]


def same(ours: str, theirs: str) -> Rule:
    """Return the rule of a variable that is their tensor as it stands.

    Example:
        >>> rule = same("pooler/bias", "pooler.dense.bias")
        >>> rule.write(np.ones(2))
        (array([1., 1.]),)
    """
    return Rule(ours, (theirs,), lambda tensor: tensor, lambda value: (value,))


def transposed(ours: str, theirs: str) -> Rule:
    """Return the rule of a matrix that they keep with its outputs first."""
    return Rule(ours, (theirs,), np.transpose, lambda value: (value.T,))


def merge_heads(tensors: Iterable[np.ndarray], num_heads: int) -> np.ndarray:
    """Return queries, keys and values, each (..., hidden_dim), in one array, as our layer has them.

    A head's query, key and value columns lie together: (..., num_heads * 3 * head_dim).

    Example:
        >>> merge_heads([np.array([1, 2]), np.array([3, 4]), np.array([5, 6])], num_heads=2)
        array([1, 3, 5, 2, 4, 6])
    """
    heads = [tensor.reshape(*tensor.shape[:-1], num_heads, -1) for tensor in tensors]
    merged = np.stack(heads, axis=-2)
    return merged.reshape(*merged.shape[:-3], -1)


def split_heads(value: np.ndarray, num_heads: int) -> list[np.ndarray]:
    """Return the queries, keys and values, each (..., hidden_dim), that `merge_heads` put together.

    Example:
        >>> [part.tolist() for part in split_heads(np.array([1, 3, 5, 2, 4, 6]), num_heads=2)]
        [[1, 2], [3, 4], [5, 6]]
    """
    heads = value.reshape(*value.shape[:-1], num_heads, 3, -1)
    return [heads[..., i, :].reshape(*value.shape[:-1], -1) for i in range(3)]


class Tensors(Mapping):
    """A checkpoint's tensors by name, each read from disk when it is asked for.

    Args:
        names: of the tensors there are.
        get: returns one of them.

    Example:
        >>> tensors = Tensors(["bias"], lambda name: np.zeros(2))
        >>> "bias" in tensors, tensors["bias"].shape
        (True, (2,))
    """

    def __init__(self, names: Iterable[str], get: Callable[[str], np.ndarray]):
        self._names = frozenset(names)
        self._get = get

    def __iter__(self) -> Iterator[str]:
        """Go through the names."""
        return iter(self._names)

    def __len__(self) -> int:
        """Return how many tensors there are."""
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        """Say whether there is the tensor, without reading it."""
        return name in self._names

    def __getitem__(self, name: str) -> np.ndarray:
        """Read one tensor."""
        if name not in self._names:
            raise KeyError(name)
        return self._get(name)


def assign(
    variables: Mapping[str, keras.Variable],
    rules: Iterable[Rule],
    tensors: Mapping[str, np.ndarray],
) -> list[str]:
    """Give our variables the tensors' values, one at a time; return the names that were read.

    Args:
        variables: our variables by path.
        rules: which tensors make which variable.
        tensors: their tensors by name, each read when it is asked for.

    Raises:
        ValueError: a tensor is missing or has another shape than its variable.
    """
    rules = list(rules)
    names = _names(rules, tensors)
    for rule in rules:
        variable = variables[rule.ours]
        # A copy: PyTorch keeps what it is given, which may be a view of a file, or turned.
        variable.assign(np.array(_value(rule, tensors, variable.shape), order="C"))
    return names


def build(
    make: Callable[[], keras.Model], rules: Iterable[Rule], tensors: Mapping[str, np.ndarray]
) -> tuple[keras.Model, list[str]]:
    """Make a model whose variables begin with the tensors' values; return it and the names read.

    Memory holds one copy of the weights and one tensor more. A variable without a rule begins
    as it always does.

    Args:
        make: makes the model.
        rules, tensors: as `assign` takes them.

    Raises:
        ValueError: as in `assign`.
    """
    rules = list(rules)
    names = _names(rules, tensors)

    def fill(model):
        assign({variable.path: variable for variable in model.variables}, rules, tensors)

    return build_with_values(make, fill), names


def _names(rules, tensors):
    """Return the names of all tensors that the rules read."""
    names = [name for rule in rules for name in rule.theirs]
    missing = [name for name in names if name not in tensors]
    if missing:
        raise ValueError(
            f"The checkpoint lacks {len(missing)} tensors of the model its config describes, "
            f"the first {missing[0]!r}."
        )
    return names


def _value(rule, tensors, shape):
    value = rule.read(*(tensors[name] for name in rule.theirs))
    if value.shape != tuple(shape):
        raise ValueError(
            f"The tensor {rule.theirs[0]!r} makes {rule.ours!r} of shape {value.shape}; "
            f"expected {tuple(shape)}. Do the weights belong to this config?"
        )
    return value


def their_tensors(
    variables: Mapping[str, keras.Variable], rules: Iterable[Rule]
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield their names and tensors as our variables make them, one variable at a time."""
    for rule in rules:
        value = keras.ops.convert_to_numpy(variables[rule.ours].value)
        yield from zip(rule.theirs, rule.write(value), strict=True)


def check_all_written(library: str, model: keras.Model, rules: Iterable[Rule]) -> None:
    """Refuse to write a model that has weights of which no rule says what they are.

    Raises:
        ValueError: names the first of them.
    """
    left_over = sorted({weight.path for weight in model.weights} - {rule.ours for rule in rules})
    if left_over:
        raise ValueError(
            f"{library} has no place for {len(left_over)} of the model's weights, which come of "
            "quantisation, LoRA or layers of your own; `training.merge_lora` makes a plain model "
            f"of one with LoRA. The first is {left_over[0]!r}."
        )


def masked_lm_choices(
    model: keras.Model, activation: str, epsilon: float
) -> Iterator[tuple[str, Any, Collection]]:
    """Yield what `check_expressible` takes of a masked-LM head, which a library has in one form.

    Args:
        model: any model; where it has no such head nothing is yielded.
        activation, epsilon: the head's in that library.
    """
    head = getattr(model, "masked_lm_head", None)
    if head is not None:
        yield "the masked-LM head's activation", head.hidden_activation, [activation]
        yield "the masked-LM head's LayerNorm epsilon", head.layer_norm_epsilon, [epsilon]


def check_expressible(library: str, choices: Iterable[tuple[str, Any, Collection]]) -> None:
    """Refuse to write a model that a library would run otherwise than it is.

    Args:
        library: whose code will read the files.
        choices: what of the model it is, how the model has it, and what the library has.

    Raises:
        ValueError: names every choice that the library lacks.

    Example:
        >>> check_expressible("KerasHub", [("causal", True, [False])])
        Traceback (most recent call last):
        ValueError: KerasHub can't run this model: causal is True, and it has only False.
    """
    reasons = [
        f"{name} is {value!r}, and it has only {' or '.join(map(repr, supported))}"
        for name, value, supported in choices
        if value not in supported
    ]
    if reasons:
        raise ValueError(f"{library} can't run this model: {'; '.join(reasons)}.")
