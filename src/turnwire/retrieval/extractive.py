"""An answer without a model: the sentences that say most of what is asked, each as it stands in its source."""

import re
from collections.abc import Sequence

from msgspec import Struct

from turnwire.retrieval.citations import MARKER
from turnwire.retrieval.evidence import Evidence
from turnwire.retrieval.index.terms import stems, words
from turnwire.retrieval.sentences import Matcher, asks_what, defines, sentence_spans

_PRIOR = 0.5
_SAME = 0.7
_LONGEST = 600
_CODE_PENALTY = 0.35
_FENCE_PENALTY = 0.1
_LEAD_IN_PENALTY = 0.2
_DEFINITION_BONUS = 0.25
_FENCE = "```"
_SPACE = re.compile(r"\s+")
_LEADING = re.compile(r"^(?:[-*+•>]|#{1,6}|\d{1,3}[.)])\s+")
_HEADING = re.compile(r"#{1,6}\s")
_TABLE_HEADER = re.compile(r"^\|.*\|[ \t]*\n(?=\|[\s|:-]+$)", re.MULTILINE)
_ROW_RULE = re.compile(r"^[\s|:+=-]+$")
_LINK = re.compile(r"!?\[([^\]\n]*)\]\([^)\n]*\)")
_NUMBERED = re.compile(rf"(`[^`]+`)|\s?{MARKER}")
_CODE = re.compile(r"[{}();=<>\\]|::|->|[a-z]_[a-z]|```|~~~")


class Pick(Struct, frozen=True):
    """A sentence: where it stands in its passage, and how it is shown."""

    evidence: Evidence
    start: int
    end: int
    text: str
    score: float


def pick_sentences(question: str, matcher: Matcher, evidence: Sequence[Evidence], count: int) -> list[Pick]:
    """The best sentences, none of which says what another one says.

    Those of one passage come in their order, so that they read well; a definition that was asked for comes first.
    """
    candidates = [pick for one in evidence for pick in _candidates(question, matcher, one)]
    candidates.sort(key=lambda pick: (-pick.score, pick.evidence.index, pick.start))
    chosen: list[Pick] = []
    said: list[set[str]] = []
    for pick in candidates:
        # What says nothing, or has nothing to do with the question, is only shown if nothing else is there.
        if len(chosen) == count or (chosen and pick.score < 0):
            break
        says = stems(pick.text)
        if all(_overlap(says, other) < _SAME for other in said):
            chosen.append(pick)
            said.append(says)
    if asks_what(question):
        return chosen
    first = {pick.evidence.index: place for place, pick in reversed(list(enumerate(chosen)))}
    return sorted(chosen, key=lambda pick: (first[pick.evidence.index], pick.start))


def _candidates(question: str, matcher: Matcher, evidence: Evidence) -> list[Pick]:
    passage = evidence.passage
    is_definition_wanted = asks_what(question)
    header = _TABLE_HEADER.search(passage.text)
    picks: list[Pick] = []
    for start, end in sentence_spans(passage.text):
        raw = passage.text[start:end]
        text = shown(raw)
        length = len(list(words(text)))
        if not length:
            continue
        covered = matcher.coverage(raw)
        is_heading = _HEADING.match(raw) or (header and header.start() == start)
        is_telling = covered and length > 2
        score = (1 - _PRIOR) * covered + _PRIOR * evidence.strength - _penalty(raw)
        if is_definition_wanted and defines(matcher, text):
            score += _DEFINITION_BONUS
        score -= 2 if is_heading else 0 if is_telling else 1
        picks.append(Pick(evidence, start, end, text, score))
    return picks


def _penalty(raw: str) -> float:
    """For what seldom answers: code, unless it is a whole fence, which is meant to be read, and lead-ins."""
    if raw.startswith(_FENCE):
        return _FENCE_PENALTY if len(raw) <= _LONGEST else 1.0
    # What ends with a colon only announces something.
    lead_in = _LEAD_IN_PENALTY if raw.endswith(":") else 0.0
    return lead_in + _CODE_PENALTY * min(1.0, 6 * len(_CODE.findall(raw)) / len(raw))


def shown(raw: str) -> str:
    """A sentence on one line (code on its own), without the marks of a list or a table, or numbers like ours."""
    if _ROW_RULE.match(raw):
        return ""
    if raw.startswith(_FENCE):
        return f"\n\n{raw.rstrip()}\n\n"
    text = _LEADING.sub("", raw.strip())
    if text.startswith("|"):
        text = ": ".join(cell.strip() for cell in text.strip("| ").split("|") if cell.strip())
    text = _SPACE.sub(" ", _unnumbered(_LINK.sub(r"\1", text))).strip()
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1].rstrip() + "…"


def _unnumbered(text: str) -> str:
    """A sentence without numbers that look like ours, but for those in code."""
    bare = _NUMBERED.sub(lambda found: found[1] or "", text)
    if _LINK.search(bare) or any(found[1] is None for found in _NUMBERED.finditer(bare)):
        # Only who means to fool somebody puts one into another.
        return bare.replace("[", "(").replace("]", ")")
    return bare


def _overlap(one: set[str], other: set[str]) -> float:
    return len(one & other) / max(1, min(len(one), len(other)))
