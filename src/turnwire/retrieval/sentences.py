"""Sentences: where they begin and end in a piece of text, in any script, without a model."""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

from msgspec import structs

from turnwire.retrieval.index.records import Passage
from turnwire.retrieval.index.terms import content_terms, key_terms, looks_english, stem, stems

_ABBREVIATIONS = frozenset(
    {"al", "approx", "art", "cf", "ch", "co", "corp", "dr", "e.g", "ed", "eds", "eq", "etc", "fig", "i.e", "inc", "jr"}
    | {"ltd", "mr", "mrs", "ms", "no", "nos", "p", "pp", "prof", "sec", "sr", "st", "u.s", "viz", "vol", "vs", "z.b"}
)
# The end of a sentence, or of what stands like one: a blank line, a list item, a table row, a heading.
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
# A fence of code or a row of a table, from its mark on.
_WHOLE = re.compile(r"^[ \t]*((`{3,}|~{3,}).*?(?:^[ \t]*\2[`~]*[ \t]*$\n?|\Z)|\|[^\n]*)", re.DOTALL | re.MULTILINE)
_LAST_WORD = re.compile(r"([^\s(\[\"'“]+?)\.+$")
# As far back as an abbreviation reaches. To look further would take hours for a text that somebody made for it.
_LOOK_BACK = 20


def sentence_starts(text: str) -> list[int]:
    """The offsets at which a sentence begins, all but the first. A fence of code is one sentence, and a row one."""
    starts: list[int] = []
    last = 0
    wholes = [found.span(1) for found in _WHOLE.finditer(text)]
    wholes.reverse()
    for found in _END.finditer(text):
        end = found.end()
        while wholes and wholes[-1][1] <= end:
            wholes.pop()
        if wholes and wholes[-1][0] < end:
            continue
        if end < len(text) and not _goes_on(text, last, found):
            starts.append(end)
            last = end
    return starts


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Start and end of each sentence, without the space around it."""
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
    """A text that may be part of a sentence, as one that stands alone."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def _goes_on(text: str, start: int, found: re.Match[str]) -> bool:
    """Whether a full stop is only an abbreviation's or an initial's."""
    if not found[0].startswith("."):
        return False
    following = text[found.end()]
    if following.islower():
        return True
    word = _LAST_WORD.search(text[max(start, found.start() - _LOOK_BACK) : found.start() + 1])
    if word is None:
        return False
    told = word[1].lower()
    return told in _ABBREVIATIONS or (len(told) == 1 and told.isalpha() and word[1].isupper())


# How much of a question a text speaks about: words of one family count as one, telling words count more.


_SPACE = re.compile(r"\s+")


class Matcher:
    """`weights` says how telling each term of the question is."""

    def __init__(self, question: str, weights: Mapping[str, float]) -> None:
        self.terms = key_terms(question)
        self._stems = {term: stem(term) for term in self.terms}
        self.weights = {term: weights.get(term, 1.0) for term in self.terms}
        self.is_english = looks_english(question)
        self._total = sum(self.weights.values()) or 1.0

    def knows(self, word: str) -> bool:
        """Whether the question has this word, or one of its family."""
        return stem(word) in self._stems.values()

    def matched(self, text: str) -> list[str]:
        there = stems(text)
        return [term for term in self.terms if self._stems[term] in there]

    def coverage(self, text: str) -> float:
        """From 0 to 1: the share of the question's weight that the text covers."""
        return sum(self.weights[term] for term in self.matched(text)) / self._total

    def snippet(self, text: str, longest: int) -> str:
        """The sentence that covers most, and what follows it, in one line."""
        spans = sentence_spans(text)
        if not spans:
            return ""
        best = max(range(len(spans)), key=lambda n: (self.coverage(text[slice(*spans[n])]), -n))
        piece = _SPACE.sub(" ", text[spans[best][0] :]).strip()
        return piece if len(piece) <= longest else piece[: longest - 1].rstrip() + "…"


# Questions that ask what a thing is, and sentences that say so.


_ASKS_WHAT = re.compile(r"^\s*(?:what(?:'s|’s| is| are| does)|define|who (?:is|are|was))\b", re.IGNORECASE)
_SAYS_WHAT = re.compile(r"\s(?:is|are|means|was|were|refers to|stands for)\s|[:|—–]\s", re.IGNORECASE)
_LIFT = 1.6


def asks_what(question: str) -> bool:
    return _ASKS_WHAT.match(question) is not None


def defines(matcher: Matcher, text: str) -> bool:
    """Whether it begins with what is asked about and nothing else, and goes on to say what that is."""
    verb = _SAYS_WHAT.search(text)
    if verb is None or not text[verb.end() :].strip():
        return False
    subject = text[: verb.start()]
    return matcher.coverage(subject) > 0.7 and all(matcher.knows(word) for word in content_terms(subject))


def lift_definitions(matcher: Matcher, passages: Sequence[Passage]) -> list[Passage]:
    """The same passages, those that define what is asked about further up."""
    lifted = [_lifted(matcher, passage) for passage in passages]
    return sorted(lifted, key=lambda passage: -passage.score)


def _lifted(matcher: Matcher, passage: Passage) -> Passage:
    sentences = (passage.text[slice(*span)].lstrip("|-*#> ") for span in sentence_spans(passage.text))
    if any(defines(matcher, sentence) for sentence in sentences):
        return structs.replace(passage, score=passage.score * _LIFT)
    return passage
