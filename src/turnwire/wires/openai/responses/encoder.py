"""`openai_responses`: a turn as OpenAI's Responses API streams it, and as the Open Responses specification says.

Every frame but the last, `[DONE]`, has its index as `sequence_number`. The same log always gives the same frames,
so a client can resume after any of them. Events that the protocol does not know are sent in a `keepalive`, which every
OpenAI client accepts.

A turn that waits ends its response with what it waits for (a call of one of the client's functions, an approval
request, a question as text) and continues in another response. So a turn has one response more than it has waited
times, and the `segment` says which of them is sent.

A client runs every `function_call` that it gets. So a response to a request with functions has the calls that the
server runs as `mcp_call`; and so has any other response, if the setting or the request says so.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, Self

import msgspec
from msgspec import Raw

from turnwire.core.log.codec import SUSPENSION_EVENTS, LoggedEvent, ascii_json, begins_wait
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    ApprovalResponseEvent,
    CitationEvent,
    DoneEvent,
    ErrorEvent,
    MessageEvent,
    Outcome,
    QuestionEvent,
    ReasoningEvent,
    ReplyEvent,
    ResponseEvent,
    RestartEvent,
    SessionEvent,
    TokenEvent,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
)
from turnwire.wires.frames import DONE, TOKEN_BODY, TURN_FAILED, StatefulWire, answer_json
from turnwire.wires.openai.chat.encoder import is_cut_off, question_text, waiting_call_id
from turnwire.wires.openai.responses.frames import (
    SERVER_CALLS,
    Output,
    call_item,
    echoed_fields,
    ended_resource,
    new_resource,
    numbered_frame,
    request_item,
    result_item,
    server_call_item,
)
from turnwire.wires.turn_view import ReportEvent, TurnView

_ENDS: Mapping[Outcome, tuple[str, str]] = {
    "completed": ("response.completed", "completed"),
    "joined": ("response.completed", "completed"),
    "cancelled": ("response.incomplete", "cancelled"),
    "failed": ("response.failed", "failed"),
    "interrupted": ("response.failed", "failed"),
}
_UNKNOWN_ERROR = ErrorEvent(TURN_FAILED, "turn_failed")


class OpenAIResponses(StatefulWire):
    """The wire for one response of a turn. `echo` are the request's fields that the response repeats; see `ECHOED`."""

    name = "openai_responses"
    media_type = "text/event-stream; charset=utf-8"
    # With one line feed: an empty line would be an event without data, on which an OpenAI client may fail.
    heartbeat = b": hb\n"

    def __init__(self, echo: Mapping[str, Any] | None = None, segment: int = 1) -> None:
        if segment < 1:
            raise ValueError("segment: must be 1 or more")
        self.segment = segment
        self._echo = echoed_fields(echo or {})
        digest = hashlib.sha256(ascii_json([segment, self._echo])).hexdigest()
        self.key = f"{self.name}?{digest}" if self._echo or segment > 1 else self.name

    @classmethod
    def of_query(cls, query: Mapping[str, str]) -> Self:
        segment = query.get("segment", "1")
        if not segment.isascii() or not segment.isdecimal() or len(segment) > 9:
            raise ValueError("segment: not a number")
        return cls(segment=int(segment))

    def encoder(self) -> "ResponsesEncoder":
        return ResponsesEncoder(self._echo, self.segment)


class ResponsesEncoder:
    """The encoder of one segment of a log. It reads the other segments only for the ids and offsets that it needs."""

    takes_heartbeat = True

    def __init__(self, echo: Mapping[str, Any], segment: int) -> None:
        self._echo = echo
        self._segment = segment
        self._current = 0
        self._waits = False
        self._turn = TurnView()
        self._at = 0
        self._resource: dict[str, Any] = {}
        self._output = Output()
        self._answer_length = 0
        self._call_ids: dict[str, str] = {}
        self._server_calls: dict[str, dict[str, Any]] = {}
        self._client_calls: set[str] = set()
        self._used_ids: set[str] = set()
        self._end: tuple[str, str] | None = None

    @property
    def has_ended(self) -> bool:
        """Return True if all frames of the response have been sent, the last one too."""
        return self._end is not None

    def response(self) -> dict[str, Any]:
        """Return the response so far; one that waits for a person counts as completed."""
        ended = _ENDS["completed"] if self._is_pausing else self._end
        return self._as_ended(ended[1]) if ended else {**self._resource, "output": self._output.items}

    def frame(self, logged: LoggedEvent) -> bytes:
        if self._waits and logged.type not in SUSPENSION_EVENTS:
            self._next_segment(logged.at)
        if logged.body.startswith(TOKEN_BODY):
            self._token(logged)
        else:
            self._event(logged)
        return self._output.take_frames()

    def pause(self) -> bytes:
        if not self._is_pausing:
            return b""
        kind, status = _ENDS["completed"]
        return numbered_frame(kind, self._output.number, {"response": self._as_ended(status)}) + DONE

    # Segments

    @property
    def _is_current(self) -> bool:
        return self._current == self._segment and self._end is None

    @property
    def _is_pausing(self) -> bool:
        return self._waits and self._is_current

    def _start_segment(self, at: int) -> None:
        self._current += 1
        if self._current == self._segment:
            self._resource = new_resource(self._turn.turn_id, self._turn.agent, at, self._echo, self._segment)
            self._output.emit("response.created", response=self._resource)
            self._output.emit("response.in_progress", response=self._resource)

    def _next_segment(self, at: int) -> None:
        """End the response that has waited, and start the next one."""
        self._waits = False
        if self._is_current:
            self._finish("completed")
        self._start_segment(at)

    def _finish(self, outcome: Outcome) -> None:
        self._end = kind, status = _ENDS[outcome]
        if status == "failed" and "max_output_tokens" in self._echo and is_cut_off(self._turn.error):
            self._end = kind, status = "response.incomplete", "incomplete"
        self._output.emit(kind, response=self._as_ended(status))
        self._output.emit_raw(DONE)

    def _as_ended(self, status: str) -> dict[str, Any]:
        turn = self._turn
        error = (turn.error or _UNKNOWN_ERROR) if status == "failed" else None
        usage = turn.usage or (turn.response and turn.response.usage)
        return ended_resource(self._resource, status, self._at, self._output.items, usage, error)

    # Events

    def _token(self, logged: LoggedEvent) -> None:
        encoded = answer_json(logged.body)
        if not encoded:
            return
        text = msgspec.json.decode(encoded, type=str)
        if self._is_current:
            self._output.add_text(text, encoded, self._item_id("msg", logged.position), self._answer_length)
        self._answer_length += len(text)

    def _event(self, logged: LoggedEvent) -> None:
        event = logged.event
        if self._is_current or isinstance(event, SessionEvent | RestartEvent):
            self._turn.read(logged)
        if isinstance(event, SessionEvent):
            self._start_segment(logged.at)
        if isinstance(event, ToolCallEvent):
            self._add_call_id(event.call_id)
            if event.runs_on == "client":
                self._client_calls.add(event.call_id)
        self._waits = self._waits or begins_wait(logged)
        if self._is_current:
            self._at = logged.at
            self._add_event(logged)
        elif isinstance(event, CitationEvent):
            self._output.ignore_citation(event)

    def _add_event(self, logged: LoggedEvent) -> None:
        event, output = logged.event, self._output
        match event:
            case ReasoningEvent():
                if event.content and not event.agent_path:
                    output.add_reasoning(event.content, self._item_id("rs", logged.position))
            case ToolCallEvent():
                self._add_call(event, logged.position)
            case ToolResultEvent():
                self._add_result(event, logged.position)
            case QuestionEvent():
                self._ask(event, logged.position)
            case ApprovalRequestEvent():
                output.add(request_item(event, self._turn.agent))
                output.place_pending()
            case CitationEvent():
                output.cite(event, self._answer_length)
            case ResponseEvent():
                for citation in event.citations:
                    output.cite(citation, self._answer_length)
            case DoneEvent():
                output.close("completed" if event.outcome in ("completed", "joined") else "incomplete")
                output.place_pending()
                self._finish(event.outcome)
            case SessionEvent() | MessageEvent() | TokenEvent() | UsageEvent() | ErrorEvent() | RestartEvent():
                pass
            case _:
                self._report(logged, event)

    def _report(self, logged: LoggedEvent, event: ReportEvent | ApprovalResponseEvent | ReplyEvent) -> None:
        # OpenAI's helper for Node fails at an unknown type, and knows this one.
        self._output.emit("keepalive", event=Raw(logged.body))

    def _add_call(self, event: ToolCallEvent, position: int) -> None:
        if event.runs_on == "client":
            call_id = waiting_call_id(self._turn.turn_id, event.call_id)
        elif SERVER_CALLS in self._echo:
            self._server_calls[event.call_id] = event.args
            return
        else:
            call_id = self._call_ids[event.call_id]
        self._output.add_call(call_item(self._item_id("fc", position), call_id, event))

    def _add_result(self, event: ToolResultEvent, position: int) -> None:
        if event.call_id in self._client_calls:
            return  # The client has sent it.
        if SERVER_CALLS in self._echo:
            args = self._server_calls.pop(event.call_id, {})
            self._output.add(server_call_item(self._item_id("mcp", position), self._turn.agent, args, event))
            return
        call_id = self._call_ids.get(event.call_id, event.call_id)
        self._output.add(result_item(self._item_id("fco", position), call_id, event))

    def _ask(self, event: QuestionEvent, position: int) -> None:
        text = question_text(event.prompt, after_text=False)
        self._output.close()
        self._output.add_text(text, ascii_json(text), self._item_id("msg", position), self._answer_length)
        self._output.close()
        self._output.place_pending()

    def _add_call_id(self, call_id: str) -> None:
        """Give the call an id that is unique in the turn: an agent may use a call id twice."""
        unique_id, count = call_id, 1
        while unique_id in self._used_ids:
            count += 1
            unique_id = f"{call_id}-{count}"
        self._used_ids.add(unique_id)
        self._call_ids[call_id] = unique_id

    def _item_id(self, prefix: str, position: int) -> str:
        return f"{prefix}_{self._turn.turn_id}_{position}"
