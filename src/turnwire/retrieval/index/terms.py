"""Terms: how text is split into words for the index, and a question into the terms of a query.

FTS5 cannot split Chinese, Japanese or Thai into words, so runs of those are replaced by overlapping pairs or triples
of characters, in the indexed text and in queries alike.
"""

import re
import unicodedata
from collections.abc import Iterator
from importlib import resources

TOKENIZER = "porter unicode61 remove_diacritics 2 categories 'L* N* Co Mn Mc'"
_CJK = re.compile("[\u2e80-\u9fff\uac00-\ud7af\u3040-\u30ff\uf900-\ufaff]+")
_THAI = re.compile("[\u0e00-\u0e7f]+")
_UNSPACED = re.compile("[\u0e00-\u0e7f\u2e80-\u9fff\uac00-\ud7af\u3040-\u30ff\uf900-\ufaff]")
# Vowel signs and accents are part of a word for the tokenizer, but no letters for `re`.
_MARKS = "".join(mark for mark in map(chr, range(0x300, 0x1AFF)) if unicodedata.category(mark) in ("Mn", "Mc"))
_WORD = re.compile(rf"[\u0e00-\u0e7f]+|[^\W_]+(?:[{_MARKS}]+[^\W_]*)*(?:['’][^\W\d_]+)?")
_APOSTROPHE = re.compile("['’]")
_MAX_TERMS = 48
_PREFIX = 6
_FEW_WORDS = 4
_STOP_SHARE = 0.25


def _word_list(name: str) -> frozenset[str]:
    return frozenset(resources.files("turnwire.retrieval.index").joinpath(name).read_text("utf-8").split())


STOP_WORDS = _word_list("stop_words.txt")
"""English words that say nothing about the subject of a question."""
WEAK_WORDS = _word_list("weak_words.txt")
"""Words that help to find a passage, but that a good passage need not contain."""


def segment(text: str) -> str:
    """Return the text as it is indexed."""
    if text.isascii():
        return text
    # A letter and its marks may be written as one character or as several.
    text = unicodedata.normalize("NFC", text)
    if not _UNSPACED.search(text):
        return text
    return _grams(_THAI, 3, _grams(_CJK, 2, text))


def _grams(run: re.Pattern[str], size: int, text: str) -> str:
    def spaced(match: re.Match[str]) -> str:
        characters = match[0]
        return f" {' '.join(characters[i : i + size] for i in range(max(1, len(characters) - size + 1)))} "

    return run.sub(spaced, text)


def words(text: str) -> Iterator[str]:
    """Yield every word in lower case; in scripts without spaces, every pair or triple of characters."""
    for match in _WORD.finditer(segment(text)):
        yield match[0].lower()


def plain_words(text: str) -> Iterator[str]:
    """Yield every word as FTS5's tokenizer splits it: in lower case, without accents, and in parts at an apostrophe."""
    for word in words(text):
        for part in _APOSTROPHE.split(word if word.isascii() else _without_marks(word)):
            if part:
                yield part


def content_terms(text: str) -> list[str]:
    """Return the distinct words that are no stop words, in order; all words if there are only stop words."""
    distinct = list(dict.fromkeys(words(text)))
    content = [word for word in distinct if word not in STOP_WORDS and word.replace("’", "'") not in STOP_WORDS]
    return (content or distinct)[:_MAX_TERMS]


def looks_english(text: str) -> bool:
    """Return True if the text has enough English stop words, or too few words to tell."""
    all_words = list(words(text))
    stop_words = sum(word in STOP_WORDS for word in all_words)
    return len(all_words) < _FEW_WORDS or stop_words >= len(all_words) * _STOP_SHARE


def key_terms(text: str) -> list[str]:
    """Return the content terms of a question that a passage must contain to answer it."""
    terms = content_terms(text)
    return [term for term in terms if term not in WEAK_WORDS] or terms


def match_query(terms: list[str]) -> str:
    """Return an FTS5 query for any of the terms, each quoted so that none is parsed as syntax."""
    return " OR ".join('"{}"'.format(term.replace('"', '""')) for term in terms)


def stem(word: str) -> str:
    """Return the prefix that the forms of a word share, without accents; crude, but the same for every language."""
    plain = word if word.isascii() else _without_marks(word)
    return plain.partition("'")[0].partition("’")[0][:_PREFIX]


def _without_marks(word: str) -> str:
    decomposed = unicodedata.normalize("NFD", word)
    letters = "".join(c for c in decomposed if not "\u0300" <= c <= "\u036f")
    return unicodedata.normalize("NFC", letters)


def stems(text: str) -> set[str]:
    return {stem(word) for word in words(text)}
