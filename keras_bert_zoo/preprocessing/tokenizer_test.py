import copy
import json
import os
import pathlib
import pickle
import random
import re
import subprocess
import sys
import unicodedata

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_bert_zoo.preprocessing import wordpiece_rules as oracle
from keras_bert_zoo.preprocessing.tokenizer import BertTokenizer

pytestmark = pytest.mark.backend_free

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARY = [
    *SPECIALS,
    "caf",
    "##es",
    "!",
    "我",
    "喜",
    "欢",
    "吃",
    "mask",
    "[",
    "]",
    "hello",
    "ni",
]
VOCABULARY += ["##els", "world", "##world", ",", "i", "##i", "ς", "σ", "##ς", "##σ", "##mask"]
RELEASED = ["uncased", "cased", "chinese", "multilingual-cased"]
EVERY_CHARACTER = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
# Characters that a rule treats in a way of its own, or that Unicode libraries often disagree on.
HARD_CHARACTERS = [
    *"ΣσςİıſǅẞßÀªºⅧⓐΑά'’.·:-_#[]abAB0 \t\n\r\x00\x1c\x7f\x85\xa0\xad\u0301\u0345\u0387\u037e",
    *"\u200b\u200d\u2028\u2029\u3000\ufeff\ufffd\ufffe\u180e\ue5a7\U0001f600\U0010ffff",
    *"中國豈\U0002000b\U0002f800ガｶﾞ가각힣ᄀ\u115f\u0b47\u0b57\u0ebd\u0f71\u0f73\u0344\u1026",
    *"\u302e\u302f\u1b44\ua9c0\U00016ff0\U0001d15e\U0001d160\U0001d165\U0001d16d",
]


@pytest.fixture(scope="module")
def tokenizer():
    return BertTokenizer(VOCABULARY, lowercase=True)


def data_folder():
    folder = os.environ.get("KERAS_BERT_ZOO_DATA")
    if not folder:
        pytest.skip("the data are missing: KERAS_BERT_ZOO_DATA is not set")
    return pathlib.Path(folder)


def released_tokenizer(name, **arguments):
    path = data_folder() / "vocab" / f"bert-base-{name}-vocab.txt"
    return BertTokenizer(str(path), lowercase=name == "uncased", **arguments)


def corpus_lines():
    files = sorted(p for p in (data_folder() / "tokenizer_text").rglob("*") if p.is_file())
    lines = b"\n".join(path.read_bytes() for path in files).split(b"\n")
    return [line.decode("utf-8", "replace") for line in lines]


def random_texts(count, seed):
    generator = random.Random(seed)
    pools = [EVERY_CHARACTER, HARD_CHARACTERS, [chr(c) for c in range(32, 0x250)]]
    return [
        "".join(
            generator.choice(generator.choice(pools[first:]))
            for _ in range(generator.randint(0, 16))
        )
        for first in generator.choices([0, 1, 2], k=count)
    ]


def pieces_of_texts(texts, lowercase, strip_accents, seed=0):
    """Gives a vocabulary with short pieces of half the texts, and entries that nothing matches."""
    generator = random.Random(seed)
    entries = dict.fromkeys([*SPECIALS, "##", "", " ", "\t", "\u3000", "a b", "\0", "a\0", "\x01"])
    for text in texts[::2]:
        for word in oracle.clean(text).split():
            word = oracle.normalize(word, lowercase, strip_accents)
            for part in oracle.split_punctuation(word):
                start = 0
                while start < len(part):
                    end = start + generator.randint(1, 3)
                    entries["##" * (start > 0) + part[start:end]] = None
                    start = end
    return list(entries)


def assert_as_oracle(tokenizer, texts):
    ids = {token: number for number, token in enumerate(tokenizer.vocabulary)}
    for start in range(0, len(texts), 4096):
        batch = texts[start : start + 4096]
        for text, found in zip(batch, tokenizer(batch).to_list(), strict=True):
            expected = oracle.tokenize(
                text,
                ids,
                tokenizer.lowercase,
                tokenizer.strip_accents,
                tokenizer.split_on_cjk,
                tokenizer.max_word_length,
            )
            assert [tokenizer.id_to_token(number) for number in found] == expected, ascii(text)


def assert_offsets_hold(tokenizer, texts):
    """Checks that what a piece covers normalises to it, and nothing but blanks lies between.

    Pieces that share a character, because it becomes several, are counted and returned.
    """

    def normalize(part):
        words = oracle.clean(part).split()
        words = [oracle.normalize(w, tokenizer.lowercase, tokenizer.strip_accents) for w in words]
        # Whether a sigma is final shows in the word, not in the piece.
        return "".join(words).replace("ς", "σ")

    rows = [part.to_list() for part in tokenizer.tokenize_with_offsets(texts)]
    assert rows[0] == tokenizer(texts).to_list()
    shared = 0
    for text, ids, starts, ends in zip(texts, *rows, strict=True):
        covered = 0
        for place, (number, start, end) in enumerate(zip(ids, starts, ends, strict=True)):
            assert 0 <= start < end <= len(text)
            assert normalize(text[covered:start]) == ""
            piece = tokenizer.id_to_token(number).replace("ς", "σ")
            if place + 1 < len(ids) and starts[place + 1] < end or start < covered:
                shared += 1  # one character becomes several pieces
                assert piece.removeprefix("##") in normalize(text[start:end])
            elif piece == "[UNK]":
                assert len(oracle.clean(text[start:end]).split()) == 1
            else:
                piece = piece.removeprefix("##") if len(piece) > 2 else piece
                assert normalize(text[start:end]) == piece, ascii(text)
            covered = max(covered, end)
        assert normalize(text[covered:]) == ""
    return shared


# === Ids ===


@pytest.mark.parametrize("name", RELEASED)
def test_released_vocabularies_give_the_authors_ids(name):
    cases = data_folder().parent / "cases" / "wordpiece.json"
    if not cases.exists():
        pytest.skip(f"the cases are missing: {cases}")
    cases = json.loads(cases.read_text(encoding="utf-8"))["cases"]
    tokenizer = released_tokenizer(name)
    assert tokenizer([case["text"] for case in cases]).to_list() == [c[name]["ids"] for c in cases]
    ids = {token: number for number, token in enumerate(tokenizer.vocabulary)}
    for case in cases:
        assert oracle.tokenize(case["text"], ids, tokenizer.lowercase) == case[name]["tokens"]


@pytest.mark.parametrize("split_on_cjk, max_word_length", [(True, 200), (False, 3)])
@pytest.mark.parametrize("strip_accents", [True, False])
@pytest.mark.parametrize("lowercase", [True, False])
def test_random_texts_follow_the_rules(lowercase, strip_accents, split_on_cjk, max_word_length):
    texts = random_texts(2500, seed=1)
    vocabulary = pieces_of_texts(texts, lowercase, strip_accents)
    tokenizer = BertTokenizer(
        vocabulary, lowercase, strip_accents, split_on_cjk, max_word_length=max_word_length
    )
    assert_as_oracle(tokenizer, texts)


@pytest.mark.parametrize("lowercase", [True, False])
def test_every_character_alone_and_between_letters_follows_the_rules(lowercase):
    assigned = [c for c in EVERY_CHARACTER if unicodedata.category(c) not in ("Cn", "Co", "Lo")]
    texts = [f"{c} a{c}B" for c in assigned]
    vocabulary = pieces_of_texts(texts, lowercase, lowercase)
    assert_as_oracle(BertTokenizer(vocabulary, lowercase), texts)


@pytest.mark.slow
@pytest.mark.parametrize("name", RELEASED)
def test_a_corpus_and_a_million_random_texts_follow_the_rules(name):
    tokenizer = released_tokenizer(name)
    assert_as_oracle(tokenizer, corpus_lines())
    assert_as_oracle(tokenizer, random_texts(1_000_000, seed=2))


def test_a_sample_of_the_corpus_follows_the_rules():
    assert_as_oracle(released_tokenizer("uncased"), corpus_lines()[::20])


def test_a_sigma_is_final_where_the_word_ends():
    tokenizer = BertTokenizer([*SPECIALS, "##Σ", "##α", "α", "##σ", "##ς", "σ", "'"], True)
    texts = ["ΑΣ", "ΑΣ'", "ΑΣΑ", "Σ", "ΑΣ'Α", "ΑΣ\u0301Α ΑΣ", "ΑΣΣ", "ΑΣ\x00Α", "ς"]
    assert_as_oracle(tokenizer, texts)
    assert tokenizer("ΑΣ").numpy().tolist() == [7, 9]


def test_a_word_is_measured_in_characters():
    vocabulary = [*SPECIALS, "é", "##é", "e", "##e"]
    tokenizer = BertTokenizer(vocabulary, lowercase=False, max_word_length=4)
    assert tokenizer(["éééé", "ééééé", "eeee", "eeeee"]).to_list() == [
        [5, 6, 6, 6],
        [1],
        [7, 8, 8, 8],
        [1],
    ]


def test_lower_casing_and_accents_are_two_switches():
    vocabulary = [*SPECIALS, "É", "E", "é", "e"]
    found = {
        switches: BertTokenizer(vocabulary, *switches)("É").numpy().tolist()
        for switches in [(False, False), (False, True), (True, False), (True, True), (True, None)]
    }
    assert list(found.values()) == [[5], [6], [7], [8], [8]]


def test_texts_without_words_have_no_pieces(tokenizer):
    assert tokenizer(["", "  \t\u3000", "\x00\ufffd\u200b"]).to_list() == [[], [], []]
    assert tokenizer([]).to_list() == []
    assert tokenizer("").shape == (0,)


def test_bytes_that_are_no_utf8_are_dropped_and_nothing_else():
    generator = random.Random(5)
    alphabet = [*b"abc ", *"é中😀\ufffd".encode(), 0xED, 0xA0, 0x80, 0xC0, 0xF4, 0x90, 0xFF]
    raw = [bytes(generator.choices(alphabet, k=generator.randint(0, 12))) for _ in range(4000)]
    texts = [text.decode("utf-8", "replace") for text in raw]
    tokenizer = BertTokenizer(pieces_of_texts(texts, True, True), lowercase=True)
    assert_as_oracle(tokenizer, texts)
    for of_raw, of_text in zip(
        tokenizer.tokenize_with_offsets(raw), tokenizer.tokenize_with_offsets(texts), strict=True
    ):
        assert of_raw.to_list() == of_text.to_list()
    in_graph = tf.function(tokenizer.__call__)(tf.constant(raw))
    assert in_graph.to_list() == tokenizer(raw).to_list()


def test_half_a_surrogate_pair_is_dropped(tokenizer):
    assert tokenizer("caf\ud800es").numpy().tolist() == [5, 6]


# === Special tokens ===


def test_special_tokens_are_plain_text_by_default(tokenizer):
    assert tokenizer("[MASK]").numpy().tolist() == [13, 12, 14]


def test_special_tokens_are_recognised_wherever_they_stand():
    tokenizer = BertTokenizer(VOCABULARY, lowercase=True, special_tokens_in_strings=True)
    assert tokenizer("我喜欢[MASK]吃").numpy().tolist() == [8, 9, 10, 4, 11]
    assert tokenizer("hello[MASK]world").numpy().tolist() == [15, 4, 18]
    assert tokenizer("".join(SPECIALS)).numpy().tolist() == [0, 1, 2, 3, 4]
    assert tokenizer("[mask] [MASK").numpy().tolist() == [13, 12, 14, 13, 12]
    ids, starts, ends = tokenizer.tokenize_with_offsets("É[SEP][MASK] !")
    assert ids.numpy().tolist() == [1, 3, 4, 7]
    assert starts.numpy().tolist() == [0, 1, 6, 13]
    assert ends.numpy().tolist() == [1, 6, 12, 14]


def test_special_tokens_change_nothing_else_about_a_text():
    generator = random.Random(6)
    texts = [
        "".join(
            generator.choice([text[:4], text[4:], *SPECIALS, "[MASK", "]", "[["]) for _ in "123456"
        )
        for text in random_texts(3000, seed=7)
    ]
    vocabulary = pieces_of_texts(texts, True, True)
    tokenizer = BertTokenizer(
        vocabulary, lowercase=True, special_tokens_in_strings=True, max_word_length=5
    )
    ids = {token: number for number, token in enumerate(vocabulary)}
    for text, found in zip(texts, tokenizer(texts).to_list(), strict=True):
        expected = []
        for part in re.split(r"(\[(?:PAD|UNK|CLS|SEP|MASK)\])", text):
            known = part in SPECIALS
            expected += [part] if known else oracle.tokenize(part, ids, True, max_word_length=5)
        assert [vocabulary[number] for number in found] == expected, ascii(text)


# === Offsets ===


def test_offsets_are_characters_of_the_text_as_given(tokenizer):
    ids, starts, ends = tokenizer.tokenize_with_offsets(["Cafés", "😀 我\x00,CAFE\u0301S!"])
    assert ids.to_list() == [[5, 6], [1, 8, 20, 5, 6, 7]]
    assert starts.to_list() == [[0, 3], [0, 2, 4, 5, 8, 11]]
    assert ends.to_list() == [[3, 5], [1, 3, 5, 8, 11, 12]]


def test_pieces_of_one_character_share_its_place():
    tokenizer = BertTokenizer([*SPECIALS, "ᄀ", "##ᅡ", "##ᆨ", "i", "##\u0307"], True)
    ids, starts, ends = tokenizer.tokenize_with_offsets("각")
    assert ids.numpy().tolist() == [5, 6, 7]
    assert starts.numpy().tolist() == [0, 0, 0] and ends.numpy().tolist() == [1, 1, 1]
    tokenizer = BertTokenizer([*SPECIALS, "i", "##\u0307"], lowercase=True, strip_accents=False)
    ids, starts, ends = tokenizer.tokenize_with_offsets("İ")
    assert ids.numpy().tolist() == [5, 6]
    assert starts.numpy().tolist() == [0, 0] and ends.numpy().tolist() == [1, 1]


def test_an_unknown_word_is_covered_whole():
    tokenizer = BertTokenizer([*SPECIALS, "é", "##é"], lowercase=False, max_word_length=3)
    ids, starts, ends = tokenizer.tokenize_with_offsets(["é éééé", "éüé!"])
    assert ids.to_list() == [[5, 1], [1, 1]]
    assert starts.to_list() == [[0, 2], [0, 3]] and ends.to_list() == [[1, 6], [3, 4]]


@pytest.mark.parametrize("lowercase", [True, False])
def test_random_texts_normalise_to_their_pieces(lowercase):
    texts = [text for text in random_texts(3000, seed=8) if not has_late_marks(text)]
    vocabulary = pieces_of_texts(texts, lowercase, lowercase)
    assert_offsets_hold(BertTokenizer(vocabulary, lowercase), texts)


def has_late_marks(text):
    """Finds marks whose order NFD may change, so that a piece need not be one stretch of text."""
    text = unicodedata.normalize("NFD", text)
    return any(unicodedata.combining(c) and unicodedata.category(c) != "Mn" for c in text)


@pytest.mark.slow
@pytest.mark.parametrize("name", RELEASED)
def test_the_corpus_normalises_to_its_pieces(name):
    tokenizer = released_tokenizer(name)
    shared = assert_offsets_hold(tokenizer, corpus_lines())
    assert bool(shared) == tokenizer.strip_accents  # Hangul syllables, which NFD takes apart


def test_a_sample_of_the_corpus_normalises_to_its_pieces():
    assert_offsets_hold(released_tokenizer("uncased"), corpus_lines()[::40])


# === Where it runs ===


def test_eager_function_and_dataset_give_the_same_ids():
    texts = ["Cafés!", "我\x00", "", "hello niels", "É"]
    expected = BertTokenizer(VOCABULARY, True)(texts)
    assert isinstance(expected, tf.RaggedTensor) and expected.dtype == tf.int32

    # Each tokenizer is called for the first time where it is tried.
    in_function = tf.function(BertTokenizer(VOCABULARY, True).__call__)(tf.constant(texts))
    assert in_function.to_list() == expected.to_list()
    dataset = tf.data.Dataset.from_tensor_slices(texts)
    batches = dataset.batch(5).map(BertTokenizer(VOCABULARY, True))
    assert next(iter(batches)).to_list() == expected.to_list()
    one_by_one = BertTokenizer(VOCABULARY, True)
    rows = [row.numpy().tolist() for row in dataset.map(one_by_one)]
    assert rows == expected.to_list() == one_by_one(texts).to_list()


def test_a_saved_model_needs_only_tensorflow_and_tensorflow_text(tmp_path):
    tokenizer = BertTokenizer(VOCABULARY, lowercase=True)
    module = tf.Module()
    module.serve = tf.function(
        lambda texts: tokenizer(texts).to_tensor(),
        input_signature=[tf.TensorSpec([None], tf.string)],
    )
    tf.saved_model.save(module, str(tmp_path / "saved"))
    script = (
        "import sys, tensorflow as tf, tensorflow_text\n"
        "model = tf.saved_model.load(sys.argv[1])\n"
        "print(model.serve(tf.constant(['Cafés!', '我', 'hello'])).numpy().tolist())\n"
        "assert 'keras_bert_zoo' not in sys.modules\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "saved")],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert json.loads(found.stdout) == [[5, 6, 7], [8, 0, 0], [15, 0, 0]]


def test_making_a_tokenizer_does_not_import_tensorflow():
    if keras.backend.backend() == "tensorflow":
        pytest.skip("Keras itself imports TensorFlow on this backend")
    script = (
        "import sys\n"
        "from keras_bert_zoo.preprocessing.tokenizer import BertTokenizer\n"
        "BertTokenizer(['[PAD]', '[UNK]', '[CLS]', '[SEP]'], True).detokenize([1])\n"
        "assert 'tensorflow' not in sys.modules and 'tensorflow_text' not in sys.modules\n"
    )
    root = pathlib.Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", script], check=True, cwd=root)


@pytest.mark.parametrize(
    "texts",
    [["Cafés", "!"], ("Cafés", b"!"), np.array(["Cafés", "!"]), tf.constant(["Cafés", "!"])],
)
def test_a_batch_may_be_a_list_an_array_or_a_tensor(tokenizer, texts):
    assert tokenizer(texts).to_list() == [[5, 6], [7]]
    assert tokenizer(np.array(["Cafés", "!"], object)).to_list() == [[5, 6], [7]]


@pytest.mark.parametrize(
    "text", ["Cafés", "Cafés".encode(), np.array("Cafés"), tf.constant("Cafés")]
)
def test_one_text_gives_a_vector(tokenizer, text):
    ids = tokenizer(text)
    assert ids.dtype == tf.int32 and ids.numpy().tolist() == [5, 6]
    assert [part.shape for part in tokenizer.tokenize_with_offsets(text)] == [(2,)] * 3


@pytest.mark.parametrize(
    "texts, message",
    [
        (["a", None], r"`texts\[1\]` must be a string. Received: None of type NoneType"),
        (["a", "b", 2.5], r"`texts\[2\]` must be a string. Received: 2.5 of type float"),
        (np.array([["a"]]), r"`texts\[0\]` must be a string"),
        (None, r"`texts` must be a string, or a list of strings. Received: None"),
        (tf.constant([1]), "must be a tensor of strings. Received: dtype int32"),
    ],
)
def test_what_is_no_text_is_refused_with_its_place(tokenizer, texts, message):
    with pytest.raises(TypeError, match=message):
        tokenizer(texts)


def test_a_tensor_of_rank_two_is_refused(tokenizer):
    with pytest.raises(ValueError, match=r"Received: shape \(1, 1\)"):
        tokenizer(tf.constant([["a"]]))


# === Words and back ===


def test_words_keep_their_numbers(tokenizer):
    words = [["hello", "niels"], [], ["", "Cafés!", "我喜"]]
    for given in (words, tf.ragged.constant(words)):
        ids, word_ids = tokenizer.tokenize_words(given)
        assert ids.to_list() == [[15, 16, 17], [], [5, 6, 7, 8, 9]]
        assert word_ids.to_list() == [[0, 1, 1], [], [1, 1, 1, 2, 2]]
    with pytest.raises(TypeError, match=r"`words\[1\]\[0\]` must be a string"):
        tokenizer.tokenize_words([["a"], [3]])
    with pytest.raises(TypeError, match="At index 0"):
        tokenizer.tokenize_words(["a"])


def test_pieces_are_joined_to_text(tokenizer):
    assert tokenizer.detokenize([2, 5, 6, 7, 3, 0, 0]) == "cafes !"
    assert tokenizer.detokenize(np.array([[2, 4, 16, 17], [0, 0, 1, 3]])) == [
        "[MASK] niels",
        "[UNK]",
    ]
    assert tokenizer.detokenize(tokenizer(["Cafés!", "", "hello"])) == ["cafes !", "", "hello"]
    assert tokenizer.detokenize(keras.ops.convert_to_tensor([15, 18])) == "hello world"
    assert tokenizer.detokenize([]) == ""
    with pytest.raises(ValueError, match="The id 999 is outside the vocabulary"):
        tokenizer.detokenize([999])


# === Vocabulary ===


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("last_line_end", [True, False])
def test_a_file_keeps_each_line_as_it_is(tmp_path, line_end, last_line_end):
    entries = ["\u3000", "\xa0", "a\u2028b", "\x85", " a", *SPECIALS, "\x0b", "##b"]
    content = line_end.join(entries) + line_end * last_line_end
    (tmp_path / "vocab.txt").write_bytes(content.encode())
    tokenizer = BertTokenizer(tmp_path / "vocab.txt", lowercase=True)
    assert tokenizer.vocabulary == entries and tokenizer.vocabulary_size == len(entries)
    assert tokenizer.unk_token_id == 6
    assert tokenizer("x \u3000").numpy().tolist() == [6]


def test_a_saved_vocabulary_is_read_back(tmp_path, tokenizer):
    tokenizer.save_vocabulary(tmp_path / "vocab.txt")
    assert BertTokenizer(str(tmp_path / "vocab.txt"), True).vocabulary == VOCABULARY
    broken = BertTokenizer([*SPECIALS, "a\nb"], True)
    with pytest.raises(ValueError, match="holds a line end"):
        broken.save_vocabulary(tmp_path / "broken.txt")


@pytest.mark.parametrize(
    "vocabulary, message",
    [
        ([*SPECIALS, "a", "b", "a"], "'a' twice, as ids 5 and 7"),
        (["[PAD]", "[CLS]", "[MASK]", "a"], r"lacks \[UNK\], \[SEP\]"),
        ([*SPECIALS, "x" * 257], "an entry of 257 bytes, number 5"),
        ([*SPECIALS, "\ud800"], "half a surrogate pair in entry 5"),
    ],
)
def test_a_faulty_vocabulary_is_refused_by_name(vocabulary, message):
    with pytest.raises(ValueError, match=message):
        BertTokenizer(vocabulary, lowercase=True)


def test_a_file_that_is_not_utf8_is_refused_with_its_line(tmp_path):
    (tmp_path / "vocab.txt").write_bytes(b"[PAD]\n\xff\n")
    with pytest.raises(ValueError, match="is not UTF-8: line 2"):
        BertTokenizer(tmp_path / "vocab.txt", lowercase=True)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"vocabulary": 3}, "`vocabulary` must be the path of a file or a list"),
        ({"vocabulary": [*SPECIALS, 7]}, "Received at place 5: 7 of type int"),
        ({"lowercase": "yes"}, "`lowercase` must be True or False. Received: 'yes' of type str"),
        ({"lowercase": None}, "`lowercase` must be True or False"),
        ({"strip_accents": 1}, "`strip_accents` must be True, False or None. Received: 1"),
        ({"split_on_cjk": None}, "`split_on_cjk`"),
        ({"special_tokens_in_strings": 0}, "`special_tokens_in_strings`"),
        ({"max_word_length": 2.0}, "`max_word_length` must be an integer. Received: 2.0"),
    ],
)
def test_an_argument_of_the_wrong_type_is_named(arguments, message):
    with pytest.raises(TypeError, match=message):
        BertTokenizer(**{"vocabulary": VOCABULARY, "lowercase": True, **arguments})


def test_a_word_length_below_one_is_refused():
    with pytest.raises(ValueError, match="`max_word_length` must be at least 1. Received: 0"):
        BertTokenizer(VOCABULARY, lowercase=True, max_word_length=0)


def test_ids_of_the_special_tokens(tokenizer):
    assert tokenizer.special_token_ids == [0, 1, 2, 3, 4]
    assert (tokenizer.pad_token_id, tokenizer.unk_token_id) == (0, 1)
    assert (tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.mask_token_id) == (2, 3, 4)
    without_mask = BertTokenizer(SPECIALS[:4], lowercase=True, special_tokens_in_strings=True)
    assert without_mask.mask_token_id is None and without_mask.special_token_ids == [0, 1, 2, 3]
    assert without_mask("[SEP]").numpy().tolist() == [3]
    assert tokenizer.token_to_id("caf") == 5 and tokenizer.id_to_token(5) == "caf"
    with pytest.raises(ValueError, match="no entry 'xyz'"):
        tokenizer.token_to_id("xyz")


def test_the_config_holds_every_switch():
    tokenizer = BertTokenizer(VOCABULARY, False, True, False, True, 100)
    tokenizer("a")
    for again in (
        keras.saving.deserialize_keras_object(
            json.loads(json.dumps(keras.saving.serialize_keras_object(tokenizer)))
        ),
        BertTokenizer.from_config(tokenizer.get_config()),
        pickle.loads(pickle.dumps(tokenizer)),
        copy.deepcopy(tokenizer),
    ):
        assert again.get_config() == tokenizer.get_config()
        assert again("HÉLLO [MASK]").numpy().tolist() == tokenizer("HÉLLO [MASK]").numpy().tolist()
    assert tokenizer.get_config() == {
        "vocabulary": VOCABULARY,
        "lowercase": False,
        "strip_accents": True,
        "split_on_cjk": False,
        "special_tokens_in_strings": True,
        "max_word_length": 100,
    }
