"""WordPiece, against what the tokenizer of the model's authors makes of the same texts."""

import pytest

from turnwire.retrieval.embedding.minilm import WordPiece, read_vocabulary

# Written down from the `tokenizers` library with the model's own tokenizer.json.
SPELT = {
    "": "",
    "  \t\n": "",
    "Hello, World!": "hello , world !",
    "unaffable": "una ##ffa ##ble",
    "café Ünïcödé naïve": "cafe unicode naive",
    "e\u0301\u0323": "e",
    "İstanbul ΟΔΟΣ": "istanbul ο ##δ ##ο ##σ",
    "don't re-enter": "don ' t re - enter",
    "x==y && a!=b": "x = = y & & a ! = b",
    "user_id=42;path=/tmp/a.b": "user _ id = 42 ; path = / t ##mp / a . b",
    "1,000.50€ $5 №7": "1 , 000 . 50 ##€ $ 5 № ##7",
    "≠ ½ ﬁ ②": "= ½ ﬁ [UNK]",
    "“quoted” – dash…": "“ quoted ” – dash …",
    "東京タワー": "東 京 タ ##ワ ##ー",
    "中文，标点。": "中 文 ， [UNK] [UNK] 。",
    "𠀋𪚥": "[UNK] [UNK]",
    "한국어": "ᄒ ##ᅡ ##ᆫ ##ᄀ ##ᅮ ##ᆨ ##ᄋ ##ᅥ",
    "ไทย नमस्ते": "[UNK] न ##म ##स ##त",
    "Привет مرحبا": "п ##р ##и ##в ##е ##т م ##ر ##ح ##ب ##ا",
    "a\u200bb\u00adc": "abc",
    "tab\tnew\nline\x00nul\x07bell": "tab new linen ##ul ##bell",
    "\ufffd\ufeffx \ue000private": "x private",
    "no\u00a0break\u2028line\u3000wide": "no break line wide",
    "I ♥ 😀 emoji👩\u200d💻": "i ♥ [UNK] [UNK]",
    "a" * 100: "aaa" + " ##aa" * 48 + " ##a",
    "a" * 101: "[UNK]",
}


@pytest.fixture(scope="module")
def tokenizer() -> WordPiece:
    return WordPiece()


@pytest.fixture(scope="module")
def vocabulary() -> dict[str, int]:
    return read_vocabulary()


@pytest.mark.parametrize("text", SPELT)
def test_a_text_is_spelt_as_the_model_learnt_it(tokenizer: WordPiece, vocabulary: dict[str, int], text: str) -> None:
    pieces = ["[CLS]", *SPELT[text].split(), "[SEP]"]
    assert tokenizer.encode(text, 256) == [vocabulary[piece] for piece in pieces]


def test_the_vocabulary_is_whole(vocabulary: dict[str, int]) -> None:
    assert len(vocabulary) == 30_522
    marks = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "##～")
    assert [vocabulary[piece] for piece in marks] == [0, 100, 101, 102, 1996, 30_521]


def test_a_long_text_is_cut_and_still_ends(tokenizer: WordPiece, vocabulary: dict[str, int]) -> None:
    numbers = tokenizer.encode("the " * 1_000, 8)
    assert numbers == [vocabulary["[CLS]"], *[vocabulary["the"]] * 6, vocabulary["[SEP]"]]


def test_the_marks_of_the_model_are_text_in_a_text(tokenizer: WordPiece, vocabulary: dict[str, int]) -> None:
    inner = tokenizer.encode("[SEP] [CLS]", 256)[1:-1]
    assert [vocabulary[piece] for piece in ("[", "sep", "]", "[", "cl", "##s", "]")] == inner


def test_what_no_encoding_can_hold_is_left_out(tokenizer: WordPiece) -> None:
    assert tokenizer.encode("a\ud800b", 256) == tokenizer.encode("ab", 256)
