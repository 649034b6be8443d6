"""`[n]` in an answer, checked while it streams: what names evidence is cited, what names nothing is taken out."""

import re
from collections.abc import Callable

from turnwire.core.codec import clean_text
from turnwire.core.events import CitationEvent
from turnwire.retrieval.evidence import Evidence, cite
from turnwire.retrieval.index.terms import STOP_WORDS, stem, words
from turnwire.retrieval.sentences import sentence_spans

# Bounded, so that what is held back is bounded, and cut at the same places however the text comes.
MARKER = r"\[\s{0,3}\d{1,3}(?:\s{0,3}[,;]\s{0,3}\d{1,3}){0,15}\s{0,3}\]"
_TOKEN = re.compile(rf"(?P<ticks>`+)|(?P<line>\n)|(?P<space>[ \t]{{0,8}})(?P<marker>{MARKER})")
_MARKERS = re.compile(MARKER)
_NUMBER = re.compile(r"\d+")
# What may become a token with the next piece, and is held back until then.
_OPEN = re.compile(r"(?:`+|[ \t]{0,8}\[[\s\d,;]{0,160}|[ \t]{1,8})\Z")
_LETTER = re.compile(r"[^\W_]")
_FENCE = 3
_CLAIM_REACH = 1_000
_LONGEST_QUOTE = 600


class MarkerStream:
    """Give it the model's text as it comes; it gives back what to show, and a citation after each marker.

    `find` knows the evidence of a number, if there is any. `offset` is how much of the answer was written
    before. Inside code nothing is a marker.
    """

    def __init__(self, find: Callable[[int], Evidence | None], offset: int = 0) -> None:
        self.unknown: list[int] = []
        self.has_prose = False
        self.text = ""
        self._find = find
        self._offset = offset
        self._held = ""
        self._code = ""

    def feed(self, piece: str) -> list[str | CitationEvent]:
        # The log takes the same characters out, so that an offset means the same here and there.
        pending = self._held + clean_text(piece)
        held = _OPEN.search(pending)
        cut = held.start() if held else len(pending)
        self._held = pending[cut:]
        return self._scan(pending[:cut])

    def finish(self) -> list[str | CitationEvent]:
        """What was held back, at the end of the text."""
        pending, self._held = self._held, ""
        return self._scan(pending)

    def close_fence(self) -> str:
        """What must follow the text so that what comes next does not stand in its code."""
        return f"\n{self._code}" if len(self._code) >= _FENCE else ""

    def _scan(self, text: str) -> list[str | CitationEvent]:
        out: list[str | CitationEvent] = []
        done = 0
        for found in _TOKEN.finditer(text):
            if found["marker"] is None or self._code:
                self._follow_code(found)
                continue
            self._say(out, text[done : found.start()])
            done = found.end()
            self._cite(out, found["space"], found["marker"])
        self._say(out, text[done:])
        return out

    def _follow_code(self, found: re.Match[str]) -> None:
        """`_code` is what the code that the text stands in began with, and will end with."""
        ticks, opened = found["ticks"], len(self._code)
        if ticks and not opened:
            self._code = ticks
        elif (ticks and (len(ticks) == opened or len(ticks) > opened >= _FENCE)) or (found["line"] and opened < _FENCE):
            self._code = ""

    def _say(self, out: list[str | CitationEvent], text: str) -> None:
        if text:
            self.text += text
            self.has_prose = self.has_prose or _LETTER.search(text) is not None
            out.append(text)

    def _cite(self, out: list[str | CitationEvent], space: str, marker: str) -> None:
        numbers = dict.fromkeys(int(number) for number in _NUMBER.findall(marker))
        named = {number: self._find(number) for number in numbers}
        known = [evidence for evidence in named.values() if evidence is not None]
        self.unknown += [number for number, evidence in named.items() if evidence is None]
        if not known:
            return
        start, end = self._claim()
        claim = self.text[start:end]
        shown = space + "".join(f"[{evidence.index}]" for evidence in known)
        self.text += shown
        out.append(shown)
        for evidence in known:
            quote = best_quote(evidence.passage.text, claim)
            out.append(cite(evidence, *quote, self._offset + start, self._offset + end))

    def _claim(self) -> tuple[int, int]:
        """The sentence that the marker stands in or behind."""
        base = max(0, len(self.text) - _CLAIM_REACH)
        # Earlier markers are no part of a sentence, and must not hide where one ends.
        spans = sentence_spans(_MARKERS.sub(lambda found: " " * len(found[0]), self.text[base:]))
        if not spans:
            return len(self.text), len(self.text)
        return base + spans[-1][0], base + spans[-1][1]


def without_markers(text: str) -> str:
    """A text without what looks like a marker in it, code left as it is."""
    markers = MarkerStream(lambda _: None)
    markers.feed(text)
    markers.finish()
    return markers.text


def best_quote(passage: str, claim: str) -> tuple[int, int]:
    """The sentence of a passage that a claim most likely rests on."""
    wanted = {stem(word) for word in words(claim) if word not in STOP_WORDS}
    spans = sentence_spans(passage) or [(0, len(passage))]

    def likeness(span: tuple[int, int]) -> float:
        there = {stem(word) for word in words(passage[slice(*span)])}
        return len(wanted & there) / (len(there) + 3) ** 0.5

    start, end = max(spans, key=lambda span: (likeness(span), -span[0]))
    return start, min(end, start + _LONGEST_QUOTE)


def citation_coverage(answer: str) -> float:
    """The share of an answer's sentences that carry a marker."""
    bare = re.sub(rf"(?<=[.!?])(\s*{MARKER})+", lambda found: found[0].strip(), answer)
    sentences = [bare[slice(*span)] for span in sentence_spans(bare)]
    telling = [sentence for sentence in sentences if _LETTER.search(_MARKERS.sub("", sentence))]
    return sum(bool(_MARKERS.search(sentence)) for sentence in telling) / len(telling) if telling else 0.0
