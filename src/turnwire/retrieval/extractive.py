"""Answers without a model: the sentences that match the question best, quoted from their sources."""

import re
from collections.abc import Sequence

from msgspec import Struct

from turnwire.retrieval.citations import MARKER
from turnwire.retrieval.evidence import Evidence
from turnwire.retrieval.index.terms import stems, words
from turnwire.retrieval.sentences import Matcher, asks_for_definition, defines, sentence_spans

_STRENGTH_SHARE = 0.5
_DUPLICATE_OVERLAP = 0.7
_MAX_SENTENCE = 600
_CODE_PENALTY = 0.35
_FENCE_PENALTY = 0.1
_LEAD_IN_PENALTY = 0.2
_DEFINITION_BONUS = 0.25
_FENCE = "```"
_SPACE = re.compile(r"\s+")
_LIST_MARKER = re.compile(r"^(?:[-*+•>]|#{1,6}|\d{1,3}[.)])\s+")
_HEADING = re.compile(r"#{1,6}\s")
_TABLE_HEADER = re.compile(r"^\|.*\|[ \t]*\n(?=\|[\s|:-]+$)", re.MULTILINE)
_ROW_RULE = re.compile(r"^[\s|:+=-]+$")
_LINK = re.compile(r"!?\[([^\]\n]*)\]\([^)\n]*\)")
_MARKER_OR_CODE = re.compile(rf"(`[^`]+`)|\s?{MARKER}")
_CODE = re.compile(r"[{}();=<>\\]|::|->|[a-z]_[a-z]|```|~~~")


class Pick(Struct, frozen=True):
    """A chosen sentence: its range in the passage and the text to show."""

    evidence: Evidence
    start: int
    end: int
    text: str
    score: float


def pick_sentences(question: str, matcher: Matcher, evidence: Sequence[Evidence], count: int) -> list[Pick]:
    """Return the best sentences without duplicates.

    Sentences of one passage keep their order, so that they read well. For a definition question the best comes first.
    """
    candidates = [pick for item in evidence for pick in _candidates(question, matcher, item)]
    candidates.sort(key=lambda pick: (-pick.score, pick.evidence.index, pick.start))
    chosen: list[Pick] = []
    chosen_stems: list[set[str]] = []
    for pick in candidates:
        # A sentence with a negative score is shown only if there is no other.
        if len(chosen) == count or (chosen and pick.score < 0):
            break
        pick_stems = stems(pick.text)
        if all(_overlap(pick_stems, other) < _DUPLICATE_OVERLAP for other in chosen_stems):
            chosen.append(pick)
            chosen_stems.append(pick_stems)
    if asks_for_definition(question):
        return chosen
    first = {pick.evidence.index: rank for rank, pick in reversed(list(enumerate(chosen)))}
    return sorted(chosen, key=lambda pick: (first[pick.evidence.index], pick.start))


def _candidates(question: str, matcher: Matcher, evidence: Evidence) -> list[Pick]:
    passage = evidence.passage
    wants_definition = asks_for_definition(question)
    header = _TABLE_HEADER.search(passage.text)
    picks: list[Pick] = []
    for start, end in sentence_spans(passage.text):
        raw = passage.text[start:end]
        text = sentence_text(raw)
        length = len(list(words(text)))
        if not length:
            continue
        covered = matcher.coverage(raw)
        is_heading = _HEADING.match(raw) or (header and header.start() == start)
        is_relevant = covered and length > 2
        score = (1 - _STRENGTH_SHARE) * covered + _STRENGTH_SHARE * evidence.strength - _penalty(raw)
        if wants_definition and defines(matcher, text):
            score += _DEFINITION_BONUS
        score -= 2 if is_heading else 0 if is_relevant else 1
        picks.append(Pick(evidence, start, end, text, score))
    return picks


def _penalty(raw: str) -> float:
    """Return the penalty for a sentence that seldom answers: code outside a fence, or a lead-in."""
    if raw.startswith(_FENCE):
        return _FENCE_PENALTY if len(raw) <= _MAX_SENTENCE else 1.0
    # A sentence that ends with a colon only announces something.
    lead_in = _LEAD_IN_PENALTY if raw.endswith(":") else 0.0
    return lead_in + _CODE_PENALTY * min(1.0, 6 * len(_CODE.findall(raw)) / len(raw))


def sentence_text(raw: str) -> str:
    """Return a sentence as one line, without markup of lists and tables and without citation markers of its source."""
    if _ROW_RULE.match(raw):
        return ""
    if raw.startswith(_FENCE):
        return f"\n\n{raw.rstrip()}\n\n"
    text = _LIST_MARKER.sub("", raw.strip())
    if text.startswith("|"):
        text = ": ".join(cell.strip() for cell in text.strip("| ").split("|") if cell.strip())
    text = _SPACE.sub(" ", _without_markers(_LINK.sub(r"\1", text))).strip()
    return text if len(text) <= _MAX_SENTENCE else text[: _MAX_SENTENCE - 1].rstrip() + "…"


def _without_markers(text: str) -> str:
    """Return a sentence without citation markers, except in code."""
    bare = _MARKER_OR_CODE.sub(lambda match: match[1] or "", text)
    if _LINK.search(bare) or any(match[1] is None for match in _MARKER_OR_CODE.finditer(bare)):
        # Only a forged text nests one marker in another.
        return bare.replace("[", "(").replace("]", ")")
    return bare


def _overlap(left: set[str], right: set[str]) -> float:
    return len(left & right) / max(1, min(len(left), len(right)))
