"""What the WordPiece rules do with each character, as arrays that a graph can look up.

The rules are stated in the words of Python's `unicodedata` and `str.lower`. TensorFlow
carries three Unicode libraries of three versions, and all of them differ from Python's
somewhere, so the graph asks none of them: it looks each character up in arrays made from
the running Python's tables. A SavedModel carries the arrays it was made with.
"""

import dataclasses
import functools
import unicodedata

import numpy as np

SPACE = 1  # separates words
ALONE = 2  # an ideograph: a word of its own
PUNCTUATION = 4  # a word of its own, split off after normalisation
CASED = 8  # decides, beside a capital sigma, whether that is the last letter of a word
IGNORABLE = 16  # is overlooked in that decision
STARTER = 32  # combining marks are not reordered across it
LATE_MARK = 64  # a combining mark that is kept when accents are stripped
FORM_SHIFT = 8  # the bits above the flags number the character's normal form

ABSENT = -(1 << 30)  # fills the rows of normal forms that have fewer characters

_PAGE = 256
_IDEOGRAPHS = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)
_ASCII_PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")


@dataclasses.dataclass(frozen=True)
class UnicodeTables:
    """One character's `code` is `codes[pages[character // 256] * 256 + character % 256]`.

    `code & 255` are its flags and `forms[code >> 8]` its normal form: what to add to the
    character to get each character that it becomes, then `ABSENT`. `late_marks` are the
    combining marks that survive the stripping of accents, `late_mark_classes` their
    canonical combining classes.
    """

    pages: np.ndarray
    codes: np.ndarray
    forms: np.ndarray
    late_marks: np.ndarray
    late_mark_classes: np.ndarray


@functools.lru_cache(maxsize=8)
def unicode_tables(lowercase: bool, strip_accents: bool, split_on_cjk: bool) -> UnicodeTables:
    """Makes the arrays for one setting of the tokenizer's switches.

    Args:
        lowercase: whether characters become lower-case ones.
        strip_accents: whether characters are decomposed (NFD) and lose their accents (Mn).
        split_on_cjk: whether ideographs are words of their own.

    Returns:
        The `UnicodeTables`; all arrays are int32.
    """
    flags = np.full(0x110000, STARTER, np.int32)
    form_numbers = np.zeros(0x110000, np.int32)
    forms = {(0,): 0}
    late_marks = set()
    for code_point in range(0x110000):
        character = chr(code_point)
        category = unicodedata.category(character)
        if category in ("Cn", "Co", "Cs") or _is_plain_letter(character, category):
            continue
        if character in "\t\n\r" or category in ("Zs", "Zl", "Zp"):
            flags[code_point] = SPACE
            form = ""
        elif category in ("Cc", "Cf") or character == "\ufffd":
            flags[code_point] = IGNORABLE
            form = ""
        else:
            form = _normal_form(character, lowercase, strip_accents)
            flags[code_point] = _order_flags(character)
            if len(form) == 1 and _is_punctuation(form):
                flags[code_point] |= PUNCTUATION
            if lowercase:
                flags[code_point] |= _sigma_context(character)
            if flags[code_point] & LATE_MARK:
                late_marks.update(unicodedata.normalize("NFD", character))
        deltas = tuple(ord(c) - code_point for c in form)
        form_numbers[code_point] = forms.setdefault(deltas, len(forms))
    if split_on_cjk:
        for first, last in _IDEOGRAPHS:
            flags[first : last + 1] |= ALONE
    late_marks = sorted(c for c in late_marks if _is_late_mark(c))

    width = max(map(len, forms))
    form_rows = np.full((len(forms), width), ABSENT, np.int32)
    for deltas, number in forms.items():
        form_rows[number, : len(deltas)] = deltas
    rows, pages = np.unique(
        (flags | form_numbers << FORM_SHIFT).reshape(-1, _PAGE), axis=0, return_inverse=True
    )
    return UnicodeTables(
        pages=pages.reshape(-1).astype(np.int32),
        codes=rows.reshape(-1),
        forms=form_rows,
        late_marks=np.array([ord(c) for c in late_marks], np.int32),
        late_mark_classes=np.array([unicodedata.combining(c) for c in late_marks], np.int32),
    )


def _normal_form(character: str, lowercase: bool, strip_accents: bool) -> str:
    """Gives the characters that a character of a word becomes, all but the final sigma's."""
    form = character.lower() if lowercase else character
    if strip_accents:
        form = unicodedata.normalize("NFD", form)
        form = "".join(c for c in form if unicodedata.category(c) != "Mn")
    return form


def _is_punctuation(character: str) -> bool:
    return character in _ASCII_PUNCTUATION or unicodedata.category(character).startswith("P")


def _is_plain_letter(character: str, category: str) -> bool:
    """Finds letters without case and parts, mostly ideographs, which no rule here changes."""
    return (
        category == "Lo" and not character.islower() and unicodedata.is_normalized("NFD", character)
    )


def _is_late_mark(character: str) -> bool:
    return unicodedata.combining(character) != 0 and unicodedata.category(character) != "Mn"


def _order_flags(character: str) -> int:
    """Says what a character means for the order of combining marks."""
    decomposed = unicodedata.normalize("NFD", character)
    starter = STARTER if any(unicodedata.combining(c) == 0 for c in decomposed) else 0
    return starter | (LATE_MARK if any(map(_is_late_mark, decomposed)) else 0)


def _sigma_context(character: str) -> int:
    """Finds a character's part in the rule of the final sigma, by asking `str.lower`.

    Python keeps the two properties to itself, but they show in the sigma beside the character.
    """
    if (character + "Σ").lower().endswith("ς"):
        return CASED
    return IGNORABLE if ("A" + character + "Σ").lower().endswith("ς") else 0
