"""Terms of texts and questions, and their quoting in queries."""

import sqlite3
import unicodedata
from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from turnwire.retrieval.index.terms import (
    STOP_WORDS,
    TOKENIZER,
    content_terms,
    match_query,
    segment,
    stem,
    stems,
    words,
)


@pytest.fixture(scope="module")
def index() -> Iterator[sqlite3.Connection]:
    database = sqlite3.connect(":memory:")
    database.execute(f'CREATE VIRTUAL TABLE words USING fts5(body, tokenize="{TOKENIZER}")')
    yield database
    database.close()


def finds(index: sqlite3.Connection, text: str, query: str) -> bool:
    index.execute("DELETE FROM words")
    index.execute("INSERT INTO words VALUES (?)", (segment(text),))
    found = index.execute("SELECT 1 FROM words WHERE words MATCH ?", (match_query(content_terms(query)),))
    return found.fetchone() is not None


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("Green teas are brewed", "brewing tea"),
        ("the café in Zürich", "cafe zurich"),
        ("the cafe in Zurich", "CAFÉ ZÜRICH"),
        ("cafe\u0301", "café"),
        ("It doesn’t work", "why doesn't it?"),
        ("It doesn't work", "why doesn’t it?"),
        ("Anna's tea", "Anna"),
        ("set max_document_bytes first", "max_document_bytes"),
        ("call asyncio.to_thread here", "asyncio.to_thread()"),
        ("HTTP 404 in x86-64", "404"),
        ("error E0277 was found", "what is e0277?"),
        ("我喜欢喝绿茶。", "绿茶"),
        ("東京タワーは高い", "タワー"),
        ("서울은 한국의 수도이다", "한국의"),
        (unicodedata.normalize("NFD", "서울은 한국의 수도이다"), "한국의"),
        ("ガラスのコップ", unicodedata.normalize("NFD", "ガラス")),
        ("ที่นี่มีชาเขียวและกาแฟ", "ชาเขียว"),
        ("हिन्दी में समाचार", "समाचार क्या है"),
        ("তোমার নাম কী", "নাম"),
        ("தமிழ் மொழி", "மொழி"),
        ("المملكة العربية السعودية", "العربية"),
        ("Зелёный чай", "чай"),
        ("tea 绿茶 in one line", "绿茶 tea"),
        ("一", "一"),
    ],
)
def test_words_of_a_text_are_found(index: sqlite3.Connection, text: str, query: str) -> None:
    assert finds(index, text, query)
    assert not finds(index, text, "zebra 斑马 ม้าลาย")


@pytest.mark.parametrize(
    ("text", "query"), [("我喜欢喝绿茶", "红茶"), ("ชาเขียว", "กาแฟ"), ("हिन्दी", "हवा"), ("मकान", "मेज")]
)
def test_shared_letter_is_no_match(index: sqlite3.Connection, text: str, query: str) -> None:
    assert not finds(index, text, query)


def test_scripts_without_spaces_are_split_into_ngrams() -> None:
    assert segment("喝绿茶 now").split() == ["喝绿", "绿茶", "now"]
    assert segment("ชาเขียว").split() == ["ชาเ", "าเข", "เขี", "ขีย", "ียว"]
    assert list(words("喝绿茶")) == ["喝绿", "绿茶"]
    assert list(words("ชาเขียว")) == ["ชาเ", "าเข", "เขี", "ขีย", "ียว"]
    assert segment("茶").split() == ["茶"]
    assert segment("plain text, é") == "plain text, é"


def test_stop_words_are_no_content_terms() -> None:
    assert content_terms("What is the best time for tea?") == ["best", "time", "tea"]
    assert content_terms("Why doesn’t it boil? Don't ask.") == ["boil", "ask"]
    assert {"the", "is", "what", "don't"} <= STOP_WORDS


def test_text_of_stop_words_keeps_all_words() -> None:
    assert content_terms("What is it?") == ["what", "is", "it"]
    assert content_terms("?!") == content_terms("") == []


def test_content_terms_are_distinct_and_limited() -> None:
    assert content_terms("Tea tea TEA leaves") == ["tea", "leaves"]
    assert len(content_terms(" ".join(f"word{number}" for number in range(500)))) == 48


@pytest.mark.parametrize("text", ["snake_case", "a-b_c", "x.y"])
def test_identifier_is_split_into_its_parts(text: str) -> None:
    assert len(list(words(text))) == len(text.replace("-", "_").replace(".", "_").split("_"))


def test_marks_without_a_letter_are_no_word() -> None:
    assert content_terms("☕\ufe0f tea \u0301") == ["tea"]


def test_forms_of_a_word_share_a_stem() -> None:
    assert stem("brewing") == stem("brewin") != stem("brown")
    assert stem("café") == stem("cafe") == stem("cafe\u0301")
    assert stem("tea's") == stem("tea") == stem("tea’s")
    assert stems("Zürich’s Teas") == {"zurich", "teas"}


SYNTAX = [
    '"',
    "'",
    "*",
    "(",
    ")",
    "AND",
    "OR",
    "NOT",
    "NEAR(",
    "body:",
    "heading :",
    "-",
    "^",
    "+",
    "{a b}:",
    "\\",
    ";--",
]


@given(st.lists(st.sampled_from(SYNTAX) | st.text(max_size=8)).map(" ".join) | st.text())
@example('tea" OR "x')
@example("NEAR(tea leaves, 5) AND heading:* NOT ^x")
@example("\x00\ud800 tea")
@example("'\" ' ’ ´")
def test_no_text_is_parsed_as_fts_syntax(index: sqlite3.Connection, text: str) -> None:
    assert finds(index, "zebra", f"{text} x") == ("zebra" in content_terms(f"{text} x"))


@given(st.text(max_size=30).filter(lambda term: term < "\ud800" or term.isascii()))
def test_term_is_quoted_in_the_query(term: str) -> None:
    quoted = match_query([term, "tea"])
    assert quoted.startswith('"')
    assert quoted.endswith('" OR "tea"')
    assert quoted.removesuffix(' OR "tea"')[1:-1].replace('""', "").count('"') == 0


LETTERS = [
    ("a", "ž"),
    ("А", "ё"),
    ("α", "ω"),
    ("א", "ת"),
    ("ء", "ي"),
    ("अ", "्"),
    ("অ", "হ"),
    ("அ", "ஹ"),
    ("ก", "์"),
    ("가", "힣"),
    ("ぁ", "ゖ"),
    ("ァ", "ヺ"),
    ("一", "龥"),
]


def written(ends: tuple[str, str]) -> st.SearchStrategy[str]:
    """Return words of one script: a letter, then letters and marks."""
    signs = st.characters(min_codepoint=ord(ends[0]), max_codepoint=ord(ends[1]), exclude_categories=["Cn"])
    return st.tuples(signs.filter(str.isalpha), st.text(signs, max_size=6)).map("".join)


@given(
    st.lists(st.sampled_from(LETTERS).flatmap(written), max_size=6), st.sampled_from([" ", ". ", "_", "-", "’ ", "\n"])
)
def test_text_is_found_by_each_of_its_words(index: sqlite3.Connection, parts: list[str], between: str) -> None:
    text = between.join(parts)
    index.execute("DELETE FROM words")
    index.execute("INSERT INTO words VALUES (?)", (segment(text),))
    for word in words(text):
        found = index.execute("SELECT 1 FROM words WHERE words MATCH ?", (match_query([word]),))
        assert found.fetchone(), word
