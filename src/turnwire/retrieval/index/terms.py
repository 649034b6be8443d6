"""Words: how text is cut into what the index knows, and a question into what to look for.

FTS5 does not know where words end in Chinese, Japanese or Thai, so runs of those are replaced by
overlapping pairs or triples of characters, in the same way before text is indexed and before it is asked for.
"""

import re
import unicodedata
from collections.abc import Iterator
from importlib import resources

TOKENIZER = "porter unicode61 remove_diacritics 2 categories 'L* N* Co Mn Mc'"
_CJK = re.compile("[\u2e80-\u9fff\uac00-\ud7af\u3040-\u30ff\uf900-\ufaff]+")
_THAI = re.compile("[\u0e00-\u0e7f]+")
_UNSPACED = re.compile("[\u0e00-\u0e7f\u2e80-\u9fff\uac00-\ud7af\u3040-\u30ff\uf900-\ufaff]")
# Vowel signs and accents are part of a word, as they are to the tokenizer, but no letters to `re`.
_MARKS = "".join(mark for mark in map(chr, range(0x300, 0x1AFF)) if unicodedata.category(mark) in ("Mn", "Mc"))
_WORD = re.compile(rf"[\u0e00-\u0e7f]+|[^\W_]+(?:[{_MARKS}]+[^\W_]*)*(?:['’][^\W\d_]+)?")
_MOST_TERMS = 48
_PREFIX = 6
_FEW_WORDS = 4
_STOP_SHARE = 0.25


def _word_list(name: str) -> frozenset[str]:
    return frozenset(resources.files("turnwire.retrieval.index").joinpath(name).read_text("utf-8").split())


STOP_WORDS = _word_list("stop_words.txt")
"""English words that say nothing about what is asked for."""
WEAK_WORDS = _word_list("weak_words.txt")
"""Words that may help to find a passage, but whose absence does not show that it is the wrong one."""


def segment(text: str) -> str:
    """The text as it is indexed."""
    if text.isascii():
        return text
    # A letter and its marks may be written as one character or as several.
    text = unicodedata.normalize("NFC", text)
    if not _UNSPACED.search(text):
        return text
    return _grams(_THAI, 3, _grams(_CJK, 2, text))


def _grams(run: re.Pattern[str], size: int, text: str) -> str:
    def spaced(found: re.Match[str]) -> str:
        whole = found[0]
        return f" {' '.join(whole[i : i + size] for i in range(max(1, len(whole) - size + 1)))} "

    return run.sub(spaced, text)


def words(text: str) -> Iterator[str]:
    """Every word, in lower case; of scripts without spaces, every pair or triple."""
    for found in _WORD.finditer(segment(text)):
        yield found[0].lower()


def content_terms(text: str) -> list[str]:
    """The words worth looking for, each once, in order; all of them if none is."""
    every = list(dict.fromkeys(words(text)))
    telling = [word for word in every if word not in STOP_WORDS and word.replace("’", "'") not in STOP_WORDS]
    return (telling or every)[:_MOST_TERMS]


def looks_english(text: str) -> bool:
    """Whether the stop words are this text's: a few words without any may be names in English as well."""
    every = list(words(text))
    known = sum(word in STOP_WORDS for word in every)
    return len(every) < _FEW_WORDS or known >= len(every) * _STOP_SHARE


def telling_terms(text: str) -> list[str]:
    """The content terms that a text must speak about to be an answer."""
    terms = content_terms(text)
    return [term for term in terms if term not in WEAK_WORDS] or terms


def match_query(terms: list[str]) -> str:
    """An FTS5 query for any of the terms. Each is quoted, so that no text is taken for syntax."""
    return " OR ".join('"{}"'.format(term.replace('"', '""')) for term in terms)


def stem(word: str) -> str:
    """What words of one family share: enough to compare a question with a sentence, in any language."""
    plain = word if word.isascii() else _without_marks(word)
    return plain.partition("'")[0].partition("’")[0][:_PREFIX]


def _without_marks(word: str) -> str:
    decomposed = unicodedata.normalize("NFD", word)
    kept = "".join(c for c in decomposed if not "\u0300" <= c <= "\u036f")
    return unicodedata.normalize("NFC", kept)


def stems(text: str) -> set[str]:
    return {stem(word) for word in words(text)}
