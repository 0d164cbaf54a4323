"""WordPiece as one TensorFlow graph: strings in, piece ids and their places out."""

import functools
from collections.abc import Sequence

from keras_bert_zoo.preprocessing import unicode_tables
from keras_bert_zoo.preprocessing.lazy_tensorflow import tf, tf_text
from keras_bert_zoo.preprocessing.vocabulary import SPECIAL_TOKENS, UNK

# Control characters never reach a word, so no word can match an entry that begins with one.
_NO_PIECE = "\x01"
_FINAL_SIGMA = 0x3C2
_CAPITAL_SIGMA = 0x3A3


class WordPieceGraph:
    """The rules of the BERT authors' tokenizer on a batch of strings.

    Rows of printable ASCII take tf-text's kernel for whole texts, which is exact and fast on
    them. In all others each character is looked up in tables made from Python's Unicode data
    (`unicode_tables`), and only the search for the longest pieces is left to tf-text.

    Args:
        vocabulary: the entries in the order of their ids.
        lowercase: whether to lower-case.
        strip_accents: whether to decompose characters and drop accents.
        split_on_cjk: whether each ideograph is a word.
        special_tokens_in_strings: whether `[MASK]` and its like are pieces when a text has them.
        max_word_length: the longest word, in characters, that is not `[UNK]` outright.
    """

    def __init__(
        self,
        vocabulary: Sequence[str],
        lowercase: bool,
        strip_accents: bool,
        split_on_cjk: bool,
        special_tokens_in_strings: bool,
        max_word_length: int,
    ):
        self.lowercase = lowercase
        self.strip_accents = strip_accents
        self.max_word_length = max_word_length
        self.specials = []
        if special_tokens_in_strings:
            self.specials = [token for token in SPECIAL_TOKENS if token in vocabulary]
        tables = unicode_tables.unicode_tables(lowercase, strip_accents, split_on_cjk)
        # The first call may come inside a graph, which must not own what the next graph needs.
        with tf.init_scope(), tf.device("CPU"):
            self.pages = tf.constant(tables.pages)
            self.codes = tf.constant(tables.codes)
            self.forms = tf.constant(tables.forms)
            self.late_marks = tf.constant(tables.late_marks)
            self.late_mark_classes = tf.constant(tables.late_mark_classes)
            entries = _buildable(vocabulary)
            self.ascii_tokenizer = tf_text.FastWordpieceTokenizer(
                entries,
                max_bytes_per_word=max_word_length,
                token_out_type=tf.int32,
                unknown_token=UNK,
            )
            self.word_tokenizer = tf_text.FastWordpieceTokenizer(
                entries,
                max_bytes_per_word=2**31 - 1,  # the kernel counts bytes, the rule characters
                token_out_type=tf.int32,
                unknown_token=UNK,
                no_pretokenization=True,
            )

    @functools.cached_property
    def ids(self):
        """Gives the ids, ragged (batch, pieces), of a vector of strings."""
        return _compiled(self._ids)

    @functools.cached_property
    def ids_and_offsets(self):
        """Gives the ids and the first and one-past-last character of each piece."""
        return _compiled(self._ids_and_offsets)

    def _ids(self, texts):
        ascii_rows, other_rows, order = self._split_rows(texts)
        ascii_ids = self.ascii_tokenizer.tokenize(self._ascii_texts(texts, ascii_rows))
        other_ids = self._tokenize_by_tables(tf.gather(texts, other_rows), with_offsets=False)[0]
        return tf.gather(tf.concat([ascii_ids, other_ids], axis=0), order)

    def _ids_and_offsets(self, texts):
        ascii_rows, other_rows, order = self._split_rows(texts)
        ids, starts, ends = self.ascii_tokenizer.tokenize_with_offsets(
            self._ascii_texts(texts, ascii_rows)
        )
        ascii_parts = (ids, tf.cast(starts, tf.int32), tf.cast(ends, tf.int32))
        other_parts = self._tokenize_by_tables(tf.gather(texts, other_rows), with_offsets=True)
        return tuple(
            tf.gather(tf.concat(parts, axis=0), order)
            for parts in zip(ascii_parts, other_parts, strict=True)
        )

    def _split_rows(self, texts):
        """Tells rows of printable ASCII from others, and how to put them together again."""
        is_ascii = tf.strings.regex_full_match(texts, r"[ -~\t\n\r]*")
        if self.specials:
            names = "|".join(token[1:-1] for token in self.specials)
            is_ascii &= ~tf.strings.regex_full_match(texts, rf"(?s).*\[(?:{names})\].*")
        ascii_rows, other_rows = tf.where(is_ascii)[:, 0], tf.where(~is_ascii)[:, 0]
        order = tf.math.invert_permutation(tf.concat([ascii_rows, other_rows], axis=0))
        return ascii_rows, other_rows, order

    def _ascii_texts(self, texts, rows):
        texts = tf.gather(texts, rows)
        return tf.strings.lower(texts) if self.lowercase else texts

    def _tokenize_by_tables(self, texts, with_offsets):
        """Applies the rules character by character."""
        # Bytes that are no UTF-8 become U+FFFD, which the rules drop.
        decoded = tf.strings.unicode_decode(texts, "UTF-8", errors="replace")
        characters, rows = decoded.flat_values, decoded.value_rowids()
        codes = self._look_up(characters)
        literal = tf.zeros_like(rows, tf.bool)
        edges = literal
        if self.specials:
            literal, edges = self._find_specials(characters, rows)
            codes = tf.where(literal, unicode_tables.STARTER, codes)

        # White space and ideographs part a row into tokens; spaces themselves vanish below.
        alone = _has(codes, unicode_tables.ALONE)
        breaks = edges | alone | _previous(alone, False) | (rows != _previous(rows, -1))
        breaks |= _has(codes, unicode_tables.SPACE)
        tokens = tf.cumsum(tf.cast(breaks, tf.int32))
        if self.lowercase:
            characters = self._mark_final_sigmas(characters, codes, tokens)
            codes = tf.where(characters == _FINAL_SIGMA, self._look_up(_FINAL_SIGMA), codes)

        # Each character becomes its normal form, none to several characters long.
        form_numbers = tf.bitwise.right_shift(codes, unicode_tables.FORM_SHIFT)
        forms = tf.gather(self.forms, form_numbers)
        forms += characters[:, tf.newaxis]
        places = tf.where(forms >= 0)
        sources = places[:, 0]
        normal = tf.gather_nd(forms, places)
        if self.strip_accents:
            starters = breaks | _has(codes, unicode_tables.STARTER)
            runs = tf.gather(tf.cumsum(tf.cast(starters, tf.int32)), sources)
            late = tf.reduce_any(_has(codes, unicode_tables.LATE_MARK))
            normal = tf.cond(late, lambda: self._canonical_order(normal, runs), lambda: normal)

        # Punctuation parts the tokens into words.
        tokens = tf.gather(tokens, sources)
        punctuation = tf.gather(_has(codes, unicode_tables.PUNCTUATION), sources)
        breaks = punctuation | _previous(punctuation, False) | (tokens != _previous(tokens, -1))
        word_starts = tf.where(breaks)[:, 0]
        words = tf.RaggedTensor.from_row_starts(normal, word_starts, validate=False)
        first_sources = tf.gather(sources, word_starts)
        too_long = words.row_lengths() > self.max_word_length
        too_long &= ~tf.gather(literal, first_sources)
        strings = tf.where(too_long, _NO_PIECE, tf.strings.unicode_encode(words, "UTF-8"))
        ids, starts, ends = self.word_tokenizer.tokenize_with_offsets(strings)

        words_of_rows = tf.RaggedTensor.from_value_rowids(
            too_long, tf.gather(rows, first_sources), decoded.nrows(), validate=False
        )
        row_splits = tf.gather(ids.row_splits, words_of_rows.row_splits)

        def by_row(values):
            return tf.RaggedTensor.from_row_splits(values, row_splits, validate=False)

        if not with_offsets:
            return (by_row(ids.flat_values),)

        # Bytes of a normalised word -> its characters -> characters of the text.
        lengths = _utf8_lengths(normal)
        byte_ends = tf.cumsum(lengths)
        words_of_pieces = ids.value_rowids()
        offset = tf.gather(tf.gather(byte_ends - lengths, word_starts), words_of_pieces)
        firsts = tf.searchsorted(
            byte_ends, offset + starts.flat_values, side="right", out_type=tf.int64
        )
        lasts = tf.searchsorted(
            byte_ends, offset + ends.flat_values, side="left", out_type=tf.int64
        )
        word_lasts = tf.gather(words.row_limits() - 1, words_of_pieces)
        lasts = tf.where(tf.gather(too_long, words_of_pieces), word_lasts, lasts)
        positions = tf.range(tf.size(rows, tf.int64)) - tf.gather(decoded.row_starts(), rows)
        positions = tf.cast(tf.gather(positions, sources), tf.int32)
        return (
            by_row(ids.flat_values),
            by_row(tf.gather(positions, firsts)),
            by_row(tf.gather(positions, lasts) + 1),
        )

    def _look_up(self, characters):
        """Gives the codes of characters, as `unicode_tables` defines them."""
        pages = tf.gather(self.pages, tf.bitwise.right_shift(characters, 8))
        return tf.gather(self.codes, pages * 256 + (characters & 255))

    def _find_specials(self, characters, rows):
        """Finds the characters of special tokens, and the places where a word must break."""
        width = max(map(len, self.specials))
        patterns = tf.constant([[ord(c) for c in token.ljust(width)] for token in self.specials])
        anything = patterns == ord(" ")
        count = tf.size(rows, tf.int64)
        heads = tf.where(characters == ord("["))[:, 0]
        places = heads[:, tf.newaxis] + tf.range(width, dtype=tf.int64)
        window = tf.gather(characters, tf.minimum(places, count - 1))
        same_row = tf.gather(rows, tf.minimum(places, count - 1)) == tf.gather(rows, heads)[:, None]
        window = tf.where(same_row & (places < count), window, -1)
        equal = tf.reduce_all((window[:, tf.newaxis] == patterns) | anything, axis=-1)
        found = tf.where(equal)
        heads = tf.gather(heads, found[:, 0])
        lengths = tf.constant([len(token) for token in self.specials], tf.int64)
        ends = heads + tf.gather(lengths, found[:, 1])
        one, shape = tf.ones_like(heads, tf.int32), (count + 1)[tf.newaxis]
        opened = tf.scatter_nd(heads[:, tf.newaxis], one, shape)
        closed = tf.scatter_nd(ends[:, tf.newaxis], one, shape)
        return (tf.cumsum(opened - closed) > 0)[:-1], (opened + closed > 0)[:-1]

    def _mark_final_sigmas(self, characters, codes, tokens):
        """Makes a capital sigma that ends a word the final one, which no table can tell.

        It ends a word when a cased letter stands before it and none after it in the token,
        case-ignorable characters (an apostrophe, an accent) being overlooked.
        """

        def mark():
            seen = tf.where(~_has(codes, unicode_tables.IGNORABLE))[:, 0]
            cased = tf.gather(_has(codes, unicode_tables.CASED), seen)
            token = tf.gather(tokens, seen)
            joined = token == _previous(token, -1)
            after_cased = joined & _previous(cased, False)
            before_cased = _next(joined & cased, False)
            final = after_cased & ~before_cased & (tf.gather(characters, seen) == _CAPITAL_SIGMA)
            places = tf.boolean_mask(seen, final)[:, tf.newaxis]
            sigmas = tf.fill(tf.shape(places)[:1], _FINAL_SIGMA)
            return tf.tensor_scatter_nd_update(characters, places, sigmas)

        return tf.cond(tf.reduce_any(characters == _CAPITAL_SIGMA), mark, lambda: characters)

    def _canonical_order(self, characters, runs):
        """Sorts the marks of each base letter by combining class, as NFD asks.

        Most marks are accents and gone by now; of those that stay two must stand together.
        """
        is_mark = characters[:, tf.newaxis] == self.late_marks
        classes = tf.reduce_max(tf.where(is_mark, self.late_mark_classes, 0), axis=1)
        order = tf.argsort(tf.cast(runs, tf.int64) * 256 + tf.cast(classes, tf.int64), stable=True)
        return tf.gather(characters, order)


def _compiled(function):
    def on_cpu(texts):
        # Strings live on the CPU: integers between them would only travel to the GPU and back.
        with tf.device("CPU"):
            return function(texts)

    signature = [tf.TensorSpec([None], tf.string)]
    with tf.init_scope():
        return tf.function(on_cpu, signature, autograph=False).get_concrete_function()


def _buildable(vocabulary):
    """Replaces entries with control characters or blanks: tf-text would fail on or match them.

    One such entry more stands at the end, as tf-text takes no vocabulary of special tokens alone.
    """
    return [
        f"{_NO_PIECE}{number}" if any(c <= " " or c == "\x7f" for c in entry) else entry
        for number, entry in enumerate([*vocabulary, _NO_PIECE])
    ]


def _has(codes, flag):
    return (codes & flag) != 0


def _previous(values, first):
    """Shifts values right by one; `first` comes before them."""
    return tf.concat([tf.constant([first], values.dtype), values], axis=0)[:-1]


def _next(values, last):
    """Shifts values left by one; `last` comes after them."""
    return tf.concat([values, tf.constant([last], values.dtype)], axis=0)[1:]


def _utf8_lengths(characters):
    longer = [tf.cast(characters > limit, tf.int64) for limit in (0x7F, 0x7FF, 0xFFFF)]
    return 1 + tf.add_n(longer)
