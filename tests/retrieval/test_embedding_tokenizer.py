"""The tokenizer of MiniLM, compared with the token lists of the model's own tokenizer.json."""

import pytest
from tokenizers import Tokenizer

from turnwire.retrieval.embedding.minilm import MAX_TOKENS, load_tokenizer, token_ids

TOKENS = {
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
def tokenizer() -> Tokenizer:
    return load_tokenizer()


def ids_of(tokenizer: Tokenizer, pieces: list[str]) -> list[int | None]:
    return [tokenizer.token_to_id(piece) for piece in pieces]


@pytest.mark.parametrize("text", TOKENS)
def test_text_is_split_into_the_tokens_of_the_model(tokenizer: Tokenizer, text: str) -> None:
    assert token_ids(tokenizer, text) == ids_of(tokenizer, ["[CLS]", *TOKENS[text].split(), "[SEP]"])


def test_vocabulary_is_complete(tokenizer: Tokenizer) -> None:
    assert tokenizer.get_vocab_size() == 30_522
    markers = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "##～"]
    assert ids_of(tokenizer, markers) == [0, 100, 101, 102, 1996, 30_521]


def test_long_text_is_truncated_and_keeps_its_end_marker(tokenizer: Tokenizer) -> None:
    expected = ["[CLS]", *["the"] * (MAX_TOKENS - 2), "[SEP]"]
    assert token_ids(tokenizer, "the " * 1_000) == ids_of(tokenizer, expected)


def test_markers_in_a_text_are_tokenized_as_text(tokenizer: Tokenizer) -> None:
    inner = token_ids(tokenizer, "[SEP] [CLS]")[1:-1]
    assert inner == ids_of(tokenizer, ["[", "sep", "]", "[", "cl", "##s", "]"])


def test_lone_surrogate_is_dropped(tokenizer: Tokenizer) -> None:
    assert token_ids(tokenizer, "a\ud800b") == token_ids(tokenizer, "ab")
