"""The WordPiece rules in plain Python: the graph is tested against them, `vocab` counts by them."""

import unicodedata

_IDEOGRAPHS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


def clean(text: str) -> str:
    """Drops control characters and makes every white space an ordinary space."""
    kept = []
    for character in text:
        category = unicodedata.category(character)
        if character in " \t\n\r" or category == "Zs":
            kept.append(" ")
        elif character not in "\0\ufffd" and category not in ("Cc", "Cf"):
            kept.append(character)
    return "".join(kept)


def space_ideographs(text: str) -> str:
    """Puts a space on both sides of every CJK ideograph."""
    return "".join(
        f" {character} "
        if any(first <= ord(character) <= last for first, last in _IDEOGRAPHS)
        else character
        for character in text
    )


def normalize(word: str, lowercase: bool, strip_accents: bool) -> str:
    """Lower-cases a word and takes its accents off, as the two switches say."""
    if lowercase:
        word = word.lower()
    if strip_accents:
        word = unicodedata.normalize("NFD", word)
        word = "".join(c for c in word if unicodedata.category(c) != "Mn")
    return word


def is_punctuation(character: str) -> bool:
    """Says whether a character is split off as punctuation."""
    in_ascii = any(a <= ord(character) <= b for a, b in ((33, 47), (58, 64), (91, 96), (123, 126)))
    return in_ascii or unicodedata.category(character).startswith("P")


def split_punctuation(word: str) -> list[str]:
    """Splits a word before and after each punctuation character."""
    parts = [""]
    for character in word:
        if is_punctuation(character):
            parts += [character, ""]
        else:
            parts[-1] += character
    return [part for part in parts if part]


def pieces(word: str, vocabulary: dict[str, int], max_word_length: int) -> list[str]:
    """Takes the longest piece that fits, again and again, or gives up with one `[UNK]`."""
    if len(word) > max_word_length:
        return ["[UNK]"]
    found, start = [], 0
    while start < len(word):
        mark = "##" if start else ""
        for end in range(len(word), start, -1):
            if mark + word[start:end] in vocabulary:
                break
        else:
            return ["[UNK]"]
        found.append(mark + word[start:end])
        start = end
    return found


def tokenize(
    text: str,
    vocabulary: dict[str, int],
    lowercase: bool,
    strip_accents: bool | None = None,
    split_on_cjk: bool = True,
    max_word_length: int = 200,
) -> list[str]:
    """Gives a text's pieces by the rules of the BERT authors."""
    strip_accents = lowercase if strip_accents is None else strip_accents
    text = clean(text)
    if split_on_cjk:
        text = space_ideographs(text)
    found = []
    for word in text.split():
        for part in split_punctuation(normalize(word, lowercase, strip_accents)):
            found += pieces(part, vocabulary, max_word_length)
    return found
