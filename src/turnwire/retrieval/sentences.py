"""Sentences of documents: their match with a question, and definitions among them."""

import re
from collections.abc import Mapping

from turnwire.core.sentences import sentence_spans
from turnwire.retrieval.index.terms import content_terms, key_terms, looks_english, stem, stems

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
