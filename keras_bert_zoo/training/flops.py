"""What one training step costs, from the model's shape alone."""

from keras_bert_zoo.layers.common import check_positive_int


def step_flops(backbone, batch: int, length: int, predictions: int = 0) -> int:
    """Return the floating-point operations of one training step, multiplications and additions.

    A matrix costs 2 operations a parameter at each position it is used at, and 4 more for the
    two gradients. The encoder's matrices are used at every position, but of the last layer's
    only the first, for queries, keys and values: its others, and its queries, at the positions
    that are read, `[CLS]` and the `predictions`. The pooler's and the next-sentence head's are
    used at one position a row, the masked-LM head's and the tied token table at `predictions`.
    The attention's two products have no parameters: they cost `12 * length * hidden_dim` a
    layer and query. Look-ups are no arithmetic. Normalisation, activations, dropout and the
    optimiser, a few percent together, are not counted, nor is what `rematerialize` computes
    again: divided by the step's time and the device's peak this is the model-FLOP utilisation
    of Chowdhery et al. 2022, appendix B.

    Args:
        backbone: a `BertBackbone`.
        batch: rows of a batch.
        length: positions of a row, padding too.
        predictions: masked positions of a row that are scored; 0 without masked LM.

    Raises:
        ValueError: a size is no integer, or too small.

    Example:
        >>> backbone = BertBackbone(
        ...     vocabulary_size=100, num_layers=2, num_heads=2, hidden_dim=8, intermediate_dim=16)
        >>> step_flops(backbone, batch=1, length=1)
        6816
    """
    check_positive_int(batch=batch, length=length)
    if predictions:
        check_positive_int(predictions=predictions)
    width = backbone.hidden_dim
    qkv, others = 3 * width**2, width**2 + 2 * width * backbone.intermediate_dim
    attention = 12 * length * width
    read = 1 + predictions
    encoder = length * (backbone.num_layers - 1) * (6 * (qkv + others) + attention)
    encoder += length * 6 * qkv + read * (6 * others + attention)
    pooled = 6 * (width**2 + 2 * width)
    masked = predictions * 6 * (width**2 + width * backbone.vocabulary_size)
    return batch * (encoder + pooled + masked)
