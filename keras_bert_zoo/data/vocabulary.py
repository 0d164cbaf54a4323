"""A WordPiece vocabulary trained on texts: counted words, then the `tokenizers` trainer."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from keras_bert_zoo.layers.common import check_positive_int
from keras_bert_zoo.preprocessing.texts import received
from keras_bert_zoo.preprocessing.vocabulary import SPECIAL_TOKENS, UNK
from keras_bert_zoo.preprocessing.wordpiece_rules import (
    clean,
    normalize,
    pieces,
    space_ideographs,
    split_punctuation,
)

# A longer word is one [UNK] to the tokenizer, whatever the vocabulary.
_MAX_WORD_LENGTH = 200
# The tokenizer takes entries of up to 256 bytes, and a character has up to four.
_MAX_PIECE_LENGTH = 64
# In the released vocabularies as many unused entries put [UNK] at 100; the rest follow [MASK].
_UNUSED_BEFORE_UNK = 99
# The trainer adds up how often pieces meet in 32 bits.
_MAX_CHARACTER_COUNT = 2**31 - 1
_MAX_TOKENS_HELD = 2**18
_TOKENS = re.compile(r"[^ \t\n\r]+")
_SURROGATES = re.compile("[\ud800-\udfff]")


def train_vocabulary(
    texts: Iterable[str],
    size: int,
    lowercase: bool = True,
    *,
    strip_accents: bool | None = None,
    min_frequency: int = 2,
    limit_alphabet: int | None = None,
    max_piece_length: int = _MAX_PIECE_LENGTH,
    num_unused: int = 0,
) -> list[str]:
    """Return a WordPiece vocabulary of at most `size` entries, the special tokens first.

    Texts are read once and not kept. They become words by `BertTokenizer`'s own rules, so
    that no entry crosses a space or a punctuation mark, and a special token that is typed in
    a text is not learnt. Then the vocabulary begins as single characters, and the two pieces
    that meet most often are joined, again and again (Sennrich et al. 2016, as the
    `tokenizers` library's WordPiece trainer has it). The same texts give the same vocabulary
    in every run: pieces that meet equally often are joined in the order of their ids.

    Args:
        texts: strings; may be a generator over files that do not fit in memory.
        size: the number of entries, the special ones included; fewer where the texts hold no
            more pieces that meet `min_frequency` times.
        lowercase: whether to lower-case, as for `BertTokenizer`.
        strip_accents: whether to drop accents; None is "as `lowercase`".
        min_frequency: how often two pieces must meet to be joined.
        limit_alphabet: how many characters to keep, the most frequent ones, equals in
            the order of their code points; None for all. A word with another one is not
            trained on, and is `[UNK]` to the tokenizer.
        max_piece_length: most characters of a piece, from 2 to 64; `##` is not counted.
        num_unused: how many entries `[unused1]`, `[unused2]`, ... to keep free. The first 99
            stand between `[PAD]` and `[UNK]`, the others behind `[MASK]`: from 99 on, `[UNK]`,
            `[CLS]`, `[SEP]` and `[MASK]` are 100 to 103 as in the released vocabularies.

    Returns:
        The entries in the order of their ids: the special ones; all single characters in the
        order of their code points; `##` and each of those that occur in words of several
        characters; then the longer pieces, the most frequent first.

    Raises:
        TypeError: a text is not a string; its index is named.
        ValueError: the texts hold no word, `size` leaves no room for the alphabet, or an
            option is outside its range.

    Example:
        >>> train_vocabulary(["Ab, abc"], size=20)[5:]
        [',', 'a', 'b', 'c', '##a', '##b', '##c', 'ab']
    """
    counts = count_words(texts, lowercase, strip_accents=strip_accents)
    return vocabulary_of_counts(
        counts,
        size,
        min_frequency=min_frequency,
        limit_alphabet=limit_alphabet,
        max_piece_length=max_piece_length,
        num_unused=num_unused,
    )


def count_words(
    texts: Iterable[str], lowercase: bool = True, *, strip_accents: bool | None = None
) -> Counter:
    """Return how often the texts have each word, by `BertTokenizer`'s rules.

    Raises:
        TypeError: a text is not a string; its index is named.

    Example:
        >>> count_words(["Cafés, cafes", "数学"])
        Counter({'cafes': 2, ',': 1, '数': 1, '学': 1})
    """
    if isinstance(texts, str):
        raise TypeError(f"`texts` must be a list or another iterable of strings. {received(texts)}")
    strip_accents = lowercase if strip_accents is None else strip_accents
    words, tokens = Counter(), Counter()

    def split_tokens():
        for token, count in tokens.items():
            for word in _words(token, lowercase, strip_accents):
                words[word] += count
        tokens.clear()

    # The rules are slow, so they see each distinct stretch between two blanks once.
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"`texts[{index}]` must be a string. {received(text)}")
        tokens.update(_TOKENS.findall(text))
        if len(tokens) > _MAX_TOKENS_HELD:
            split_tokens()
    split_tokens()
    return words


def vocabulary_of_counts(
    counts: Mapping[str, int],
    size: int,
    *,
    min_frequency: int = 2,
    limit_alphabet: int | None = None,
    max_piece_length: int = _MAX_PIECE_LENGTH,
    num_unused: int = 0,
) -> list[str]:
    """Return the vocabulary of words that `count_words` counted; see `train_vocabulary`."""
    check_positive_int(size=size, min_frequency=min_frequency)
    if limit_alphabet is not None:
        check_positive_int(limit_alphabet=limit_alphabet)
    if not isinstance(max_piece_length, int) or not 2 <= max_piece_length <= _MAX_PIECE_LENGTH:
        raise ValueError(
            f"`max_piece_length` must be an integer from 2 to {_MAX_PIECE_LENGTH}. "
            f"Received: {max_piece_length!r}."
        )
    if not isinstance(num_unused, int) or num_unused < 0:
        raise ValueError(
            f"`num_unused` must be an integer of at least 0. Received: {num_unused!r}."
        )
    counts = {word: count for word, count in counts.items() if len(word) <= _MAX_WORD_LENGTH}
    characters = Counter()
    for word, count in counts.items():
        for character in word:
            characters[character] += count
    if not characters:
        raise ValueError("`texts` hold no word.")
    if max(characters.values()) > _MAX_CHARACTER_COUNT:
        character, count = max(characters.items(), key=lambda item: item[1])
        raise ValueError(
            f"The texts have the character {character!r} {count:,} times; the trainer counts to "
            f"{_MAX_CHARACTER_COUNT:,}. Train on a sample of them."
        )
    by_frequency = sorted(characters, key=lambda c: (-characters[c], c))
    kept = set(by_frequency[:limit_alphabet])
    counts = {word: count for word, count in counts.items() if kept.issuperset(word)}
    inside = {character for word in counts if len(word) > 1 for character in word}
    first = special_entries(num_unused)
    first += [*sorted(kept), *(f"##{character}" for character in sorted(inside))]
    if size < len(first):
        raise ValueError(
            f"`size` must be at least {len(first)}: {len(special_entries(num_unused))} special "
            f"entries and an alphabet of {len(kept)} characters, {len(inside)} of them with ## "
            f"too. Received: {size}. `limit_alphabet` leaves rare characters out."
        )
    return _train(counts, first, size, min_frequency, max_piece_length)


def special_entries(num_unused: int = 0) -> list[str]:
    """Return the special tokens and the unused entries in the order of a vocabulary.

    Example:
        >>> special_entries(2)
        ['[PAD]', '[unused1]', '[unused2]', '[UNK]', '[CLS]', '[SEP]', '[MASK]']
    """
    unused = [f"[unused{i + 1}]" for i in range(num_unused)]
    pad, *others = SPECIAL_TOKENS
    return [pad, *unused[:_UNUSED_BEFORE_UNK], *others, *unused[_UNUSED_BEFORE_UNK:]]


def word_coverage(counts: Mapping[str, int], vocabulary: list[str]) -> dict[str, float]:
    """Return what a vocabulary makes of counted words.

    Returns:
        `unknown_share`, the share of the words that are `[UNK]`, and `pieces_per_word`, the
        mean number of pieces, `[UNK]` being one.

    Example:
        >>> word_coverage({"ab": 3, "c": 1}, ["[UNK]", "a", "##b"])
        {'unknown_share': 0.25, 'pieces_per_word': 1.75}
    """
    entries = {entry: number for number, entry in enumerate(vocabulary)}
    total = unknown = length = 0
    for word, count in counts.items():
        found = pieces(word, entries, _MAX_WORD_LENGTH)
        total += count
        unknown += count * (found == [UNK])
        length += count * len(found)
    return {"unknown_share": unknown / total, "pieces_per_word": length / total}


def _words(token, lowercase, strip_accents):
    # Half a surrogate pair is no character.
    text = space_ideographs(clean(_SURROGATES.sub("", token)))
    for word in text.split():
        yield from split_punctuation(normalize(word, lowercase, strip_accents))


def _train(counts, first, size, min_frequency, max_piece_length):
    """Return `first` and the pieces joined from it.

    The trainer gives characters ids in the order of a hash map, which differs from run to
    run, and joins pieces that meet equally often in the order of their ids. Given the whole
    alphabet as special tokens, it has no id left to choose.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(continuing_subword_prefix="##"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    # Under the name of BPE the WordPiece trainer takes a limit to the pieces' length as well:
    # what is as long as the limit is not joined.
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=min_frequency,
        special_tokens=first,
        continuing_subword_prefix="##",
        max_token_length=max_piece_length + 1,
        show_progress=False,
    )
    tokenizer.train_from_iterator(_repeated(counts), trainer)
    ids = tokenizer.get_vocab(with_added_tokens=False)
    return sorted(ids, key=ids.get)


def _repeated(counts, block=4096):
    """Give each word as often as it was counted; the trainer takes texts only."""
    for word, count in counts.items():
        for done in range(0, count, block):
            yield " ".join([word] * min(block, count - done))
