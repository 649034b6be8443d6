"""Citation markers such as `[1]` in a streamed answer: known ones become citations, unknown ones are removed."""

import re
from collections.abc import Callable

from turnwire.core.log.codec import clean_text
from turnwire.core.log.events import CitationEvent
from turnwire.core.sentences import MARKER, MARKERS, sentence_spans
from turnwire.retrieval.evidence import Evidence, cite
from turnwire.retrieval.index.terms import STOP_WORDS, stem, stems, words

_TOKEN = re.compile(rf"(?P<ticks>`+)|(?P<line>\n)|(?P<space>[ \t]{{0,8}})(?P<marker>{MARKER})")
_NUMBER = re.compile(r"\d+")
# A tail that may become a token with the next piece is held back until then.
_INCOMPLETE = re.compile(r"(?:`+|[ \t]{0,8}\[[\s\d,;]{0,160}|[ \t]{1,8})\Z")
_LETTER = re.compile(r"[^\W_]")
_FENCE = 3
_MAX_CLAIM = 1_000
_MAX_QUOTE = 600


class MarkerStream:
    """A filter over the model's text that returns the text to show, with a citation after each marker.

    `find` returns the evidence of a number, or None. `offset` is the length of the answer so far. Text in code
    is not changed.
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
        # The log removes the same characters, so that an offset means the same in both.
        pending = self._held + clean_text(piece)
        tail = _INCOMPLETE.search(pending)
        end = tail.start() if tail else len(pending)
        self._held = pending[end:]
        return self._scan(pending[:end])

    def finish(self) -> list[str | CitationEvent]:
        """Return the held-back text, at the end of the stream or before an event."""
        pending, self._held = self._held, ""
        return self._scan(pending)

    def close_fence(self) -> str:
        """Return the text that ends an open code fence, if there is one."""
        return f"\n{self._code}" if len(self._code) >= _FENCE else ""

    def _scan(self, text: str) -> list[str | CitationEvent]:
        out: list[str | CitationEvent] = []
        done = 0
        for token in _TOKEN.finditer(text):
            if token["marker"] is None or self._code:
                self._track_code(token)
                continue
            self._add_text(out, text[done : token.start()])
            done = token.end()
            self._add_citations(out, token["space"], token["marker"])
        self._add_text(out, text[done:])
        return out

    def _track_code(self, token: re.Match[str]) -> None:
        """Update `_code`, the backticks that opened the code at the end of the text, or an empty string."""
        ticks, opened = token["ticks"], len(self._code)
        if ticks and not opened:
            self._code = ticks
        elif (ticks and (len(ticks) == opened or len(ticks) > opened >= _FENCE)) or (token["line"] and opened < _FENCE):
            self._code = ""

    def _add_text(self, out: list[str | CitationEvent], text: str) -> None:
        if text:
            self.text += text
            self.has_prose = self.has_prose or _LETTER.search(text) is not None
            out.append(text)

    def _add_citations(self, out: list[str | CitationEvent], space: str, marker: str) -> None:
        numbers = dict.fromkeys(int(number) for number in _NUMBER.findall(marker))
        cited = {number: self._find(number) for number in numbers}
        evidences = [evidence for evidence in cited.values() if evidence is not None]
        self.unknown += [number for number, evidence in cited.items() if evidence is None]
        if not evidences:
            return
        start, end = self._claim()
        claim = self.text[start:end]
        markers = space + "".join(f"[{evidence.index}]" for evidence in evidences)
        self.text += markers
        out.append(markers)
        for evidence in evidences:
            quote = best_quote(evidence.passage.text, claim)
            out.append(cite(evidence, *quote, self._offset + start, self._offset + end))

    def _claim(self) -> tuple[int, int]:
        """Return the range of the sentence that the marker is in or follows."""
        base = max(0, len(self.text) - _MAX_CLAIM)
        # Earlier markers are blanked out, because they would hide the end of a sentence.
        spans = sentence_spans(MARKERS.sub(lambda match: " " * len(match[0]), self.text[base:]))
        if not spans:
            return len(self.text), len(self.text)
        return base + spans[-1][0], base + spans[-1][1]


def without_markers(text: str) -> str:
    """Return the text without markers, except in code."""
    markers = MarkerStream(lambda _: None)
    markers.feed(text)
    markers.finish()
    return markers.text


def best_quote(passage: str, claim: str) -> tuple[int, int]:
    """Return the range of the sentence in the passage that supports the claim best."""
    claim_stems = {stem(word) for word in words(claim) if word not in STOP_WORDS}
    spans = sentence_spans(passage) or [(0, len(passage))]

    def similarity(span: tuple[int, int]) -> float:
        span_stems = stems(passage[slice(*span)])
        return len(claim_stems & span_stems) / (len(span_stems) + 3) ** 0.5

    start, end = max(spans, key=lambda span: (similarity(span), -span[0]))
    return start, min(end, start + _MAX_QUOTE)
