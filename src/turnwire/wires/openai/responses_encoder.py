"""`openai_responses`: a turn as OpenAI's Responses API streams it, and as the Open Responses specification says.

Every frame but the last has its index as `sequence_number`, and the same log always gives the same frames, so a client
goes on after any of them. The last is `[DONE]`. What the protocol has no event for goes out in a `keepalive`,
which every client of OpenAI's takes for a sign of life.

A turn that waits for a person ends its response with a request for approval, and goes on in another one: the
`segment` says which of them is told. So a turn has as many responses as it has waited times, and one more.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, assert_never

import msgspec
from msgspec import Raw

from turnwire.core.codec import SUSPENSION_EVENTS, LoggedEvent, ascii_json
from turnwire.core.contracts import Control
from turnwire.core.errors import RestartedError
from turnwire.core.events import (
    ApprovalRequestEvent,
    ApprovalResponseEvent,
    CitationEvent,
    CustomEvent,
    DoneEvent,
    ErrorEvent,
    HandoffEvent,
    MessageEvent,
    Outcome,
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
    Usage,
    UsageEvent,
)
from turnwire.core.state import add_usage
from turnwire.wires.framing import DONE, TOKEN_BODY, answer_piece
from turnwire.wires.openai.frames import (
    ECHOED,
    Output,
    call_item,
    ended_resource,
    new_resource,
    numbered_frame,
    request_item,
    result_item,
)

# From events to the frames of one response.


_ENDS: Mapping[Outcome, tuple[str, str]] = {
    "completed": ("response.completed", "completed"),
    "cancelled": ("response.incomplete", "cancelled"),
    "failed": ("response.failed", "failed"),
    "interrupted": ("response.failed", "failed"),
}
_NO_WORDS = ErrorEvent("The answer could not be completed.", "turn_failed")


class ResponsesEncoder:
    """Tells one segment of a log; of the others it only takes what it needs to tell that one."""

    takes_heartbeat = True

    def __init__(self, echo: Mapping[str, Any], segment: int) -> None:
        self._echo = echo
        self._segment = segment
        self._current = 0
        self._waits = False
        self._turn_id = self._agent = ""
        self._at = 0
        self._resource: dict[str, Any] = {}
        self._output = Output()
        self._answer_length = 0
        self._call_ids: dict[str, str] = {}
        self._used_ids: set[str] = set()
        self._usage: Usage | None = None
        self._error: ErrorEvent | None = None
        self._end: tuple[str, str] | None = None

    @property
    def takes_part(self) -> bool:
        """Whether the log has come to this response."""
        return bool(self._resource)

    @property
    def is_over(self) -> bool:
        """Whether all of the response has been told, its last frame too."""
        return self._end is not None

    def response(self) -> dict[str, Any]:
        """The response as far as the log tells it; one that waits for a person is over."""
        ended = _ENDS["completed"] if self._is_pausing else self._end
        return self._as_ended(ended[1]) if ended else {**self._resource, "output": self._output.items}

    def frame(self, logged: LoggedEvent) -> bytes:
        if self._waits and logged.type not in SUSPENSION_EVENTS:
            self._go_on(logged.at)
        if logged.body.startswith(TOKEN_BODY):
            self._tell_token(logged)
        else:
            self._take(logged)
        return self._output.take_frames()

    def pause(self) -> bytes:
        if not self._is_pausing:
            return b""
        kind, status = _ENDS["completed"]
        return numbered_frame(kind, self._output.number, {"response": self._as_ended(status)}) + DONE

    # Segments

    @property
    def _is_telling(self) -> bool:
        return self._current == self._segment and self._end is None

    @property
    def _is_pausing(self) -> bool:
        return self._waits and self._is_telling

    def _begin(self, at: int) -> None:
        self._current += 1
        if self._current == self._segment:
            self._resource = new_resource(self._turn_id, self._agent, at, self._echo, self._segment)
            self._output.tell("response.created", response=self._resource)
            self._output.tell("response.in_progress", response=self._resource)

    def _go_on(self, at: int) -> None:
        """The turn does not wait any more: one response has ended, another one begins."""
        self._waits = False
        if self._is_telling:
            self._finish("completed")
        self._begin(at)

    def _finish(self, outcome: Outcome) -> None:
        self._end = kind, status = _ENDS[outcome]
        self._output.tell(kind, response=self._as_ended(status))
        self._output.tell_raw(DONE)

    def _as_ended(self, status: str) -> dict[str, Any]:
        error = (self._error or _NO_WORDS) if status == "failed" else None
        return ended_resource(self._resource, status, self._at, self._output.items, self._usage, error)

    # Events

    def _tell_token(self, logged: LoggedEvent) -> None:
        encoded = answer_piece(logged.body)
        if not encoded:
            return
        text = msgspec.json.decode(encoded, type=str)
        if self._is_telling:
            self._output.say(text, encoded, self._item_id("msg", logged.position), self._answer_length)
        self._answer_length += len(text)

    def _take(self, logged: LoggedEvent) -> None:
        event = logged.event
        if isinstance(event, RestartEvent):
            raise RestartedError(event.from_position)
        if isinstance(event, SessionEvent):
            self._turn_id, self._agent = event.turn_id, event.agent
            self._begin(logged.at)
        if isinstance(event, ToolCallEvent):
            self._name_call(event.call_id)
        self._waits = self._waits or logged.type == "approval_request"
        if self._is_telling:
            self._at = logged.at
            self._tell_event(logged)
        elif isinstance(event, CitationEvent):
            self._output.pass_over(event)

    def _tell_event(self, logged: LoggedEvent) -> None:
        event, output = logged.event, self._output
        match event:
            case ReasoningEvent():
                if event.content and not event.agent_path:
                    output.think(event.content, self._item_id("rs", logged.position))
            case ToolCallEvent():
                output.add_call(call_item(self._item_id("fc", logged.position), self._call_ids[event.call_id], event))
            case ToolResultEvent():
                call_id = self._call_ids.get(event.call_id, event.call_id)
                output.add(result_item(self._item_id("fco", logged.position), call_id, event))
            case ApprovalRequestEvent():
                output.add(request_item(event, self._agent))
                output.place_rest()
            case CitationEvent():
                output.cite(event, self._answer_length)
            case UsageEvent():
                self._usage = add_usage(self._usage, event)
            case ResponseEvent():
                for citation in event.citations:
                    output.cite(citation, self._answer_length)
                self._usage = self._usage or event.usage
            case ErrorEvent():
                self._error = event
            case DoneEvent():
                output.close("completed" if event.outcome == "completed" else "incomplete")
                output.place_rest()
                self._finish(event.outcome)
            case (
                StatusEvent()
                | HandoffEvent()
                | SearchEvent()
                | ReviewEvent()
                | ToolProgressEvent()
                | ApprovalResponseEvent()
                | CustomEvent()
            ):
                # OpenAI's helper for Node fails at a type that it does not know, and knows this one.
                output.tell("keepalive", event=Raw(logged.body))
            case SessionEvent() | MessageEvent() | TokenEvent() | RestartEvent():
                pass
            case _:
                assert_never(event)

    def _name_call(self, call_id: str) -> None:
        """Clients tell calls apart by their ids; an agent that uses one twice must not confuse them."""
        name, times = call_id, 1
        while name in self._used_ids:
            times += 1
            name = f"{call_id}-{times}"
        self._used_ids.add(name)
        self._call_ids[call_id] = name

    def _item_id(self, prefix: str, position: int) -> str:
        return f"{prefix}_{self._turn_id}_{position}"


class OpenAIResponses:
    """`echo` is what the client asked for and is told again; see `ECHOED`."""

    name = "openai_responses"
    media_type = "text/event-stream; charset=utf-8"
    keeps_state = True
    # With one line feed: an empty line would be an event without data, on which a client of OpenAI's may fail.
    heartbeat = b": hb\n"
    opening = b""

    def __init__(self, echo: Mapping[str, Any] | None = None, segment: int = 1) -> None:
        if segment < 1:
            raise ValueError("segment: the first is 1")
        self.segment = segment
        self._echo = {name: value for name, value in (echo or {}).items() if name in ECHOED}
        told = ascii_json([segment, self._echo])
        self.key = f"{self.name}?{hashlib.sha256(told).hexdigest()}" if self._echo or segment > 1 else self.name

    def encoder(self) -> ResponsesEncoder:
        return ResponsesEncoder(self._echo, self.segment)

    def control(self, control: Control) -> None:
        """There are no words for it: a reader is refused before the first byte, or the connection is broken."""
