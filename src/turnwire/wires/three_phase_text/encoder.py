r"""`three_phase_text`: plain text that a page can show as it comes; the answer stands in the middle of it.

    {"event":"search","timestamp":"…","type":"search",…}\n       phase 1: a line an event, while retrieval runs
    \x1d The answer's tokens …                                   phase 2: the answer
    \x1e {"citations":[…],"mode":…,"tools_used":[…],…}           phase 3: the trailer

The separators cannot stand in an answer: control characters are taken out at the log's entrance.
What was sent cannot be taken back here, and there is no word for a failure after the first byte; so
a failed turn is completed with a message to read, and a restart breaks the connection.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, assert_never

from msgspec import Raw

from turnwire.core.codec import LoggedEvent, ascii_json, decode_event
from turnwire.core.contracts import Control, Encoder
from turnwire.core.errors import RestartedError
from turnwire.core.events import (
    ApprovalRequestEvent,
    ApprovalResponseEvent,
    CitationEvent,
    CustomEvent,
    DoneEvent,
    ErrorEvent,
    HandoffEvent,
    Hit,
    MessageEvent,
    ReasoningEvent,
    ResponseEvent,
    RestartEvent,
    ReviewEvent,
    SearchEvent,
    SessionEvent,
    StatusEvent,
    TokenEvent,
    ToolCallEvent,
    ToolProgressEvent,
    ToolResultEvent,
    UsageEvent,
)
from turnwire.core.state import TurnFold
from turnwire.core.turns import TurnState

ANSWER = b"\x1d"
TRAILER = b"\x1e"

_TOKEN_BODY = b'{"type":"token"'
_TYPE_START = len(b'{"type":"')
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NO_WORDS = "The answer could not be completed."
_UNKNOWN = "unknown"
_NO_SOURCE = "No source is known for this number."
# An agent may number its evidence as it likes; a list that is as long as the highest number must end somewhere.
_MOST_CITATIONS = 1_000


class ThreePhaseText:
    name = key = "three_phase_text"
    media_type = "text/plain; charset=utf-8"
    keeps_state = True
    heartbeat = b"\n"
    opening = b""

    def encoder(self) -> Encoder:
        return _TextEncoder()

    def control(self, control: Control) -> None:
        """There are no words for it: a reader is refused before the first byte, or the connection is broken."""


class _TextEncoder:
    def __init__(self) -> None:
        self._fold = TurnFold()
        self._has_answer = False
        self._late: list[Raw] = []
        self._found: dict[int, tuple[Hit, str]] = {}
        self._response: ResponseEvent | None = None

    @property
    def takes_heartbeat(self) -> bool:
        return not self._has_answer

    def frame(self, logged: LoggedEvent) -> bytes:
        if logged.body.startswith(_TOKEN_BODY):
            return self._token(logged)
        event = logged.event
        if isinstance(event, RestartEvent):
            raise RestartedError(event.from_position)
        self._fold.add(logged)
        match event:
            case SearchEvent():
                for hit in event.hits or ():
                    self._found.setdefault(hit.index, (hit, event.tool))
                return self._line(logged)
            case (
                StatusEvent()
                | HandoffEvent()
                | ReviewEvent()
                | ToolCallEvent()
                | ToolProgressEvent()
                | ToolResultEvent()
                | ReasoningEvent()
                | ApprovalRequestEvent()
                | ApprovalResponseEvent()
                | CustomEvent()
            ):
                return self._line(logged)
            case ResponseEvent():
                self._response = event
                return b""
            case DoneEvent():
                return self._end(event)
            case SessionEvent() | MessageEvent() | TokenEvent() | CitationEvent() | UsageEvent() | ErrorEvent():
                return b""
            case _:
                assert_never(event)

    def pause(self) -> bytes:
        return b""

    def _token(self, logged: LoggedEvent) -> bytes:
        # Not `logged.event`, which would be kept with the event for as long as the store keeps that.
        event = decode_event(logged.body)
        assert isinstance(event, TokenEvent)
        if event.agent_path or not event.content:
            return b""
        if self._has_answer:
            return event.content.encode()
        self._has_answer = True
        # Of the answer the fold needs only when it began; the text itself is nothing to keep here.
        self._fold.add_token("", logged.position, logged.at)
        return ANSWER + event.content.encode()

    def _line(self, logged: LoggedEvent) -> bytes:
        body = logged.body
        kind = body[_TYPE_START : body.index(b'"', _TYPE_START)]
        line = b'{"event":"%b","timestamp":"%b",%b' % (kind, _timestamp(logged.at), body[1:])
        if self._has_answer:
            self._late.append(Raw(line))
            return b""
        return line + b"\n"

    def _end(self, done: DoneEvent) -> bytes:
        state = self._fold.state()
        has_failed = done.outcome in ("failed", "interrupted")
        error = _error(state) if has_failed else None
        begun = b"" if self._has_answer else ANSWER
        told = b""
        if error is not None:
            told = (b"\n\n" if self._has_answer else b"") + error["message"].encode()
        return begun + told + TRAILER + self._trailer(done, state, error)

    def _trailer(self, done: DoneEvent, state: TurnState, error: dict[str, str] | None) -> bytes:
        response = self._response or ResponseEvent("")
        cited = response.citations or state.citations
        trailer: dict[str, Any] = {
            "citations": [] if error else list(_citations(cited, self._found)),
            "mode": response.mode,
            "tools_used": ["chat_failed"] if error else response.tools_used or state.tools_used,
            "spans": list(map(_span, [*cited, *(self._uncited(cited) if error else ())])),
            "events": self._late,
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
        """What was found and not cited: of a turn that failed, all the evidence there was is told."""
        known = {citation.index for citation in cited}
        return [
            CitationEvent(hit.index, hit.document_id, hit.chunk_id, supporting_quote=hit.text, heading=hit.heading)
            for hit, _ in self._found.values()
            if hit.index not in known
        ]


def _timestamp(at: int) -> bytes:
    # With a Z: the front ends' date check takes no offset.
    moment = (_EPOCH + timedelta(milliseconds=at)).replace(tzinfo=None)
    return moment.isoformat(timespec="milliseconds").encode() + b"Z"


def _error(state: TurnState) -> dict[str, str]:
    told = state.error
    return {
        "code": told.code if told else "turn_failed",
        "message": _first_text(told.error if told else None, _NO_WORDS),
    }


def _citations(cited: Sequence[CitationEvent], found: dict[int, tuple[Hit, str]]) -> Iterator[dict[str, Any]]:
    """The source of every number up to the highest that is cited: a front end takes `[n]` for the n-th of them.

    So a number that was found but not cited has its place too, and one of which nothing is known has an
    entry that says so, rather than let the next one move into its place.
    """
    first = {citation.index: citation for citation in reversed(cited)}
    highest = max((index for index in first if index <= _MOST_CITATIONS), default=0)
    for number in range(1, highest + 1):
        if number in first:
            citation = first[number]
            yield _strict(citation, citation.supporting_quote, citation.source_tool)
        else:
            hit, tool = found.get(number) or (Hit(number, _UNKNOWN, text=_NO_SOURCE), None)
            yield _strict(hit, hit.text, tool)


def _strict(source: CitationEvent | Hit, quote: str | None, tool: str | None) -> dict[str, Any]:
    """A citation with just the fields that a strict front end knows, none of its texts empty."""
    document_id = _first_text(source.document_id, _UNKNOWN)
    known = {"title": source.title, "url": source.url}
    return {
        "document_id": document_id,
        "chunk_id": _first_text(source.chunk_id, document_id),
        "page_number": source.page_number,
        "supporting_quote": _first_text(quote, source.title, document_id),
        "source_tool": _first_text(tool, "search"),
        "score": source.score,
        **{name: text for name, text in known.items() if _first_text(text)},
    }


def _span(citation: CitationEvent) -> dict[str, Any]:
    """What a strict citation leaves out."""
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
