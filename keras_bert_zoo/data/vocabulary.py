"""A WordPiece vocabulary trained on texts."""

from collections.abc import Iterable

from keras_bert_zoo.preprocessing.vocabulary import SPECIAL_TOKENS


def train_vocabulary(texts: Iterable[str], size: int, lowercase: bool = True) -> list[str]:
    """Return a WordPiece vocabulary of at most `size` entries, the special tokens first.

    The `tokenizers` library's trainer does the work. Where two pieces are equally frequent it
    may choose either, so two runs can differ in a few entries and in their order.

    Raises:
        ValueError: `size` leaves no room beside the special tokens.

    Example:
        >>> train_vocabulary(["a b a"], size=7)
        ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', 'a', 'b']
    """
    if size <= len(SPECIAL_TOKENS):
        raise ValueError(
            f"`size` must be over {len(SPECIAL_TOKENS)}, the special tokens. Received: {size}."
        )
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=list(SPECIAL_TOKENS), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    pieces = tokenizer.get_vocab()
    return sorted(pieces, key=pieces.get)
