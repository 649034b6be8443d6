r"""`three_phase_text`: status lines, answer text and a JSON trailer in one plain-text body.

    {"event":"search","timestamp":"…","type":"search",…}\n       phase 1: one line per event, while retrieval runs
    \x1d The answer's tokens …                                   phase 2: the answer
    \x1e {"citations":[…],"mode":…,"tools_used":[…],…}           phase 3: the trailer

The separators cannot occur in an answer: the log removes control characters. The protocol cannot retract text and has
no error after the first byte, so a failed turn ends with a readable message, and a restart breaks the connection.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import Raw

from turnwire.core.contracts.wires import Encoder
from turnwire.core.log.codec import LoggedEvent, ascii_json
from turnwire.core.log.events import (
    CitationEvent,
    DoneEvent,
    ErrorEvent,
    Hit,
    MessageEvent,
    ReasoningEvent,
    ResponseEvent,
    RestartEvent,
    SearchEvent,
    SessionEvent,
    TokenEvent,
    UsageEvent,
)
from turnwire.core.log.state import TurnFold
from turnwire.core.log.turns import TurnState
from turnwire.wires.frames import TOKEN_BODY, TURN_FAILED, StatefulWire, answer_text
from turnwire.wires.turn_view import AnswerEvent, ReportEvent, TurnView, WaitEvent

_LineEvent = ReportEvent | WaitEvent | AnswerEvent | ReasoningEvent
ANSWER = b"\x1d"
TRAILER = b"\x1e"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNKNOWN = "unknown"
_NO_SOURCE = "No source is known for this number."
# The list is as long as the highest number, and an agent may number its evidence as it likes.
_MAX_CITATIONS = 1_000


class ThreePhaseText(StatefulWire):
    name = key = "three_phase_text"
    media_type = "text/plain; charset=utf-8"
    heartbeat = b"\n"

    def encoder(self) -> Encoder:
        return _TextEncoder()


class _TextEncoder:
    def __init__(self) -> None:
        self._turn = TurnView()
        self._fold = TurnFold()
        self._has_answer = False
        self._late_lines: list[Raw] = []
        self._evidence: dict[int, tuple[Hit, str]] = {}

    @property
    def takes_heartbeat(self) -> bool:
        return not self._has_answer

    def frame(self, logged: LoggedEvent) -> bytes:
        if logged.body.startswith(TOKEN_BODY):
            return self._token(logged)
        event = self._turn.read(logged)
        self._fold.add(logged)
        match event:
            case SearchEvent():
                for hit in event.hits or ():
                    self._evidence.setdefault(hit.index, (hit, event.tool))
                return self._line(logged, event)
            case DoneEvent():
                return self._end(event)
            case SessionEvent() | MessageEvent() | TokenEvent() | CitationEvent() | UsageEvent():
                return b""
            case ErrorEvent() | ResponseEvent() | RestartEvent():
                return b""
            case _:
                return self._line(logged, event)

    def pause(self) -> bytes:
        return b""

    def _token(self, logged: LoggedEvent) -> bytes:
        text = answer_text(logged.body).encode()
        if not text or self._has_answer:
            return text
        self._has_answer = True
        # The fold needs the time when the answer began, not its text.
        self._fold.add_token("", logged.position, logged.at)
        return ANSWER + text

    def _line(self, logged: LoggedEvent, event: _LineEvent) -> bytes:
        kind = logged.type.encode("ascii")
        line = b'{"event":"%b","timestamp":"%b",%b' % (kind, _timestamp(logged.at), logged.body[1:])
        if self._has_answer:
            self._late_lines.append(Raw(line))
            return b""
        return line + b"\n"

    def _end(self, done: DoneEvent) -> bytes:
        state = self._fold.state()
        error = _error(state) if done.outcome in ("failed", "interrupted") else None
        end = b"" if self._has_answer else ANSWER
        if error is not None:
            end += (b"\n\n" if self._has_answer else b"") + error["message"].encode()
        return end + TRAILER + self._trailer(done, state, error)

    def _trailer(self, done: DoneEvent, state: TurnState, error: dict[str, str] | None) -> bytes:
        response = self._turn.response or ResponseEvent("")
        cited = response.citations or state.citations
        trailer: dict[str, Any] = {
            "citations": [] if error else list(_citations(cited, self._evidence)),
            "mode": response.mode,
            "tools_used": ["chat_failed"] if error else response.tools_used or state.tools_used,
            "spans": list(map(_span, [*cited, *(self._uncited(cited) if error else ())])),
            "events": self._late_lines,
            "usage": response.usage or state.usage,
            "timings": response.timings or state.timings,
            "outcome": done.outcome,
            "session_id": done.session_id,
            "turn_id": done.turn_id,
        }
        if error:
            trailer["error"] = error
        return ascii_json(trailer)

    def _uncited(self, cited: Sequence[CitationEvent]) -> list[CitationEvent]:
        """Return the evidence that was found and not cited; a failed turn reports all of it."""
        indexes = {citation.index for citation in cited}
        return [
            CitationEvent(hit.index, hit.document_id, hit.chunk_id, supporting_quote=hit.text, heading=hit.heading)
            for hit, _ in self._evidence.values()
            if hit.index not in indexes
        ]


def _timestamp(at: int) -> bytes:
    # With a Z, because the front ends' date check accepts no offset.
    moment = (_EPOCH + timedelta(milliseconds=at)).replace(tzinfo=None)
    return moment.isoformat(timespec="milliseconds").encode() + b"Z"


def _error(state: TurnState) -> dict[str, str]:
    error = state.error
    return {
        "code": error.code if error else "turn_failed",
        "message": _first_text(error.error if error else None, TURN_FAILED),
    }


def _citations(cited: Sequence[CitationEvent], evidence: dict[int, tuple[Hit, str]]) -> Iterator[dict[str, Any]]:
    """Yield the source of every number up to the highest cited one, because a front end reads `[n]` as the n-th entry.

    A number that was not cited gets its evidence, and a number without evidence gets an entry that says so.
    """
    first = {citation.index: citation for citation in reversed(cited)}
    highest = max((index for index in first if index <= _MAX_CITATIONS), default=0)
    for number in range(1, highest + 1):
        if number in first:
            citation = first[number]
            yield _strict(citation, citation.supporting_quote, citation.source_tool)
        else:
            hit, tool = evidence.get(number) or (Hit(number, _UNKNOWN, text=_NO_SOURCE), None)
            yield _strict(hit, hit.text, tool)


def _strict(source: CitationEvent | Hit, quote: str | None, tool: str | None) -> dict[str, Any]:
    """Return a citation with only the fields that a strict front end accepts, and no empty text."""
    document_id = _first_text(source.document_id, _UNKNOWN)
    optional = {"title": source.title, "url": source.url}
    return {
        "document_id": document_id,
        "chunk_id": _first_text(source.chunk_id, document_id),
        "page_number": source.page_number,
        "supporting_quote": _first_text(quote, source.title, document_id),
        "source_tool": _first_text(tool, "search"),
        "score": source.score,
        **{name: text for name, text in optional.items() if _first_text(text)},
    }


def _span(citation: CitationEvent) -> dict[str, Any]:
    """Return the fields that a strict citation leaves out."""
    heading = {"heading": citation.heading} if citation.heading else {}
    return {
        "index": citation.index,
        "document_id": citation.document_id,
        "chunk_id": citation.chunk_id,
        "source_start": citation.source_start,
        "source_end": citation.source_end,
        "answer_start": citation.answer_start,
        "answer_end": citation.answer_end,
        **heading,
        "quote": citation.supporting_quote,
    }


def _first_text(*texts: str | None) -> str:
    return next((text for text in texts if text and text.strip()), "")
