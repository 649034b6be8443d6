"""Sentences: their borders in any script, their match with a question, and definitions among them."""

import re
from collections.abc import Mapping
from itertools import pairwise

from turnwire.retrieval.index.terms import content_terms, key_terms, looks_english, stem, stems

_ABBREVIATIONS = frozenset(
    {"al", "approx", "art", "cf", "ch", "co", "corp", "dr", "e.g", "ed", "eds", "eq", "etc", "fig", "i.e", "inc", "jr"}
    | {"ltd", "mr", "mrs", "ms", "no", "nos", "p", "pp", "prof", "sec", "sr", "st", "u.s", "viz", "vol", "vs", "z.b"}
)
# The end of a sentence, or a border like it: a blank line, a list item, a table row, a heading.
_END = re.compile(
    r"""
      (?<! [.!?…] ) [.!?…]+ ["'”’)\]*_`]* \s+
    | [。！？｡]+ ["”’）」』]* \s*
    | \n [ \t]* \n \s*
    | \n (?= [ \t]* (?: [-*+•#>] | \d{1,3}[.)] ) [ \t] )
    | \n (?= [ \t]* (?: ``` | ~~~ | \| ) )
    """,
    re.VERBOSE,
)
# A fenced code block or a table row, from its first marker on.
_WHOLE = re.compile(r"^[ \t]*((`{3,}|~{3,}).*?(?:^[ \t]*\2[`~]*[ \t]*$\n?|\Z)|\|[^\n]*)", re.DOTALL | re.MULTILINE)
_LAST_WORD = re.compile(r"([^\s(\[\"'“]+?)\.+$")
# No abbreviation is longer; without the bound a hostile text would take hours.
_LOOK_BACK = 20


def sentence_starts(text: str) -> list[int]:
    """Return the offsets at which sentences begin, without the first. A fenced code block or a table row is one."""
    starts: list[int] = []
    last = 0
    wholes = [match.span(1) for match in _WHOLE.finditer(text)]
    wholes.reverse()
    for match in _END.finditer(text):
        end = match.end()
        while wholes and wholes[-1][1] <= end:
            wholes.pop()
        if wholes and wholes[-1][0] < end:
            continue
        if end < len(text) and not _is_abbreviation(text, last, match):
            starts.append(end)
            last = end
    return starts


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Return start and end of each sentence, without the white space around it."""
    borders = [0, *sentence_starts(text), len(text)]
    spans: list[tuple[int, int]] = []
    for start, end in pairwise(borders):
        piece = text[start:end]
        stripped = piece.strip()
        if stripped:
            first = start + piece.index(stripped[0])
            spans.append((first, first + len(stripped)))
    return spans


def as_sentence(text: str) -> str:
    """Return a clause as a sentence: capitalised, with a full stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def _is_abbreviation(text: str, start: int, border: re.Match[str]) -> bool:
    """Return True if a full stop belongs to an abbreviation or an initial and ends no sentence."""
    if not border[0].startswith("."):
        return False
    if text[border.end()].islower():
        return True
    match = _LAST_WORD.search(text[max(start, border.start() - _LOOK_BACK) : border.start() + 1])
    if match is None:
        return False
    word = match[1].lower()
    return word in _ABBREVIATIONS or (len(word) == 1 and word.isalpha() and match[1].isupper())


_DEFINING = r"(?:\s(?:is|are|means|was|were|refers to|stands for)\s|\s?[:|—–]\s)"


# Coverage: how many of a question's terms a text contains, by their stems and weighted by their rarity.

_SPACE = re.compile(r"\s+")


class Matcher:
    """The key terms of a question, to be matched with texts. `weights` has the weight of each term."""

    def __init__(self, question: str, weights: Mapping[str, float]) -> None:
        self.terms = key_terms(question)
        self._stems = {term: stem(term) for term in self.terms}
        self.weights = {term: weights.get(term, 1.0) for term in self.terms}
        self.is_english = looks_english(question)
        self._total = sum(self.weights.values()) or 1.0
        starts = "|".join(re.escape(each) for each in self._stems.values())
        # Stems have no accents, so only plain ones can be looked for in a text as it is.
        is_plain = bool(self.terms) and starts.isascii()
        self._defined = re.compile(rf"(?:{starts})[^\s|:]*{_DEFINING}", re.IGNORECASE) if is_plain else None

    def may_define(self, text: str) -> bool:
        """Return False, quickly, for a text in which no key term stands before a defining verb or mark."""
        return self._defined is None or self._defined.search(text) is not None

    def contains(self, word: str) -> bool:
        """Return True if the question has this word or another form of it."""
        return stem(word) in self._stems.values()

    def matched(self, text: str) -> list[str]:
        """Return the terms of the question that the text contains."""
        text_stems = stems(text)
        return [term for term in self.terms if self._stems[term] in text_stems]

    def coverage(self, text: str) -> float:
        """Return the share of the question's weight, from 0 to 1, that the text covers."""
        return sum(self.weights[term] for term in self.matched(text)) / self._total

    def snippet(self, text: str, max_length: int) -> str:
        """Return one line from the sentence with the best coverage on."""
        spans = sentence_spans(text)
        if not spans:
            return ""
        best = max(range(len(spans)), key=lambda n: (self.coverage(text[slice(*spans[n])]), -n))
        piece = _SPACE.sub(" ", text[spans[best][0] :]).strip()
        return piece if len(piece) <= max_length else piece[: max_length - 1].rstrip() + "…"


# Definitions: questions that ask for one, and sentences that give one.

_DEFINITION_QUESTION = re.compile(r"^\s*(?:what(?:'s|’s| is| are| does)|define|who (?:is|are|was))\b", re.IGNORECASE)
_CLAUSE = re.compile(
    r"\W*(?:after|as|because|before|if|once|since|so|than|that|unless|until|when|where|whether|which|while)\b",
    re.IGNORECASE,
)
_RELATIVE = re.compile(r"\b(?:that|which|who)\s*$", re.IGNORECASE)
_PASSIVE = re.compile(r"(?:also |always |never |not |only )*[a-z]+(?:ed|en|wn)\b", re.IGNORECASE)
_DEFINING_VERB = re.compile(_DEFINING, re.IGNORECASE)


def asks_for_definition(question: str) -> bool:
    return _DEFINITION_QUESTION.match(question) is not None


def defines(matcher: Matcher, text: str) -> bool:
    """Return True if the subject of the sentence is that of the question, followed by a defining verb."""
    verb = _DEFINING_VERB.search(text)
    if verb is None or not text[verb.end() :].strip():
        return False
    subject = text[: verb.start()]
    # "While a channel is busy", "A turn that is running", "A vault is indexed" and a row of three cells define nothing.
    if _CLAUSE.match(subject) or _RELATIVE.search(subject) or _PASSIVE.match(text, verb.end()):
        return False
    if "|" in verb[0] and "|" in text[verb.end() :].rstrip("| "):
        return False
    return matcher.coverage(subject) > 0.7 and all(matcher.contains(word) for word in content_terms(subject))
