"""Questions that ask what a thing is, and sentences that say so.

By words alone, a term is found wherever it is used most; who asks what it is wants the place that defines it.
"""

import re
from collections.abc import Sequence

from msgspec import structs

from turnwire.retrieval.index.records import Passage
from turnwire.retrieval.index.terms import content_terms
from turnwire.retrieval.matching import Matcher
from turnwire.retrieval.sentences import sentence_spans

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
