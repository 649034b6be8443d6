"""How much of a question a text speaks about: words of one family count as one, telling words count more."""

import re
from collections.abc import Mapping

from turnwire.retrieval.index.terms import looks_english, stem, stems, telling_terms
from turnwire.retrieval.sentences import sentence_spans

_SPACE = re.compile(r"\s+")


class Matcher:
    """`weights` says how telling each term of the question is."""

    def __init__(self, question: str, weights: Mapping[str, float]) -> None:
        self.terms = telling_terms(question)
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
