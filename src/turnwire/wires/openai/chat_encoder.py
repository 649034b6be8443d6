"""`openai_chat`: a turn as OpenAI's Chat Completions API streams it, for the many clients that know nothing else.

There is a place for the answer, the model's thinking (`reasoning_content`, as many servers call it), citations of web
pages and usage; what tools do is not told. A call that waits for a person is told as a tool call, whose id names the
turn too, and ends the segment.

A failed turn ends with an error, at which every client of OpenAI's raises. The protocol has no word for one that was
stopped; `length` is its word for an answer that was cut short.
"""

from typing import Any, assert_never

import msgspec

from turnwire.core.codec import SUSPENSION_EVENTS, LoggedEvent, ascii_json
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
    Usage,
    UsageEvent,
)
from turnwire.core.state import add_usage
from turnwire.core.turns import TurnState
from turnwire.wires.framing import DONE, TOKEN_BODY, answer_piece, frame

_MARK = "\x00"  # No text of a log has it.
_NO_WORDS = ErrorEvent("The answer could not be completed.", "turn_failed")


class OpenAIChat:
    name = "openai_chat"
    media_type = "text/event-stream; charset=utf-8"
    keeps_state = True
    # With one line feed: an empty line would be an event without data, on which a client of OpenAI's may fail.
    heartbeat = b": hb\n"
    opening = b""

    def __init__(self, *, include_usage: bool = False) -> None:
        self._include_usage = include_usage
        self.key = f"{self.name}?include_usage" if include_usage else self.name

    def encoder(self) -> Encoder:
        return _CompletionEncoder(self._include_usage)

    def control(self, control: Control) -> None:
        """There are no words for it: a reader is refused before the first byte, or the connection is broken."""


class _CompletionEncoder:
    takes_heartbeat = True

    def __init__(self, include_usage: bool) -> None:
        self._include_usage = include_usage
        self._turn_id = ""
        self._head: dict[str, Any] = {}
        self._around = b"", b""
        self._calls = 0
        self._length = self._begins = 0
        self._waits = False
        self._cited: list[CitationEvent] = []
        self._usage: Usage | None = None
        self._error: ErrorEvent | None = None

    def frame(self, logged: LoggedEvent) -> bytes:
        before = b""
        if self._waits and logged.type not in SUSPENSION_EVENTS:
            before = self.pause() + self._chunk({"role": "assistant", "content": ""})
            self._waits, self._calls, self._usage, self._begins = False, 0, None, self._length
        if logged.body.startswith(TOKEN_BODY):
            return before + self._token(logged)
        self._waits = self._waits or logged.type == "approval_request"
        return before + self._tell(logged)

    def pause(self) -> bytes:
        return self._finish("tool_calls") if self._waits else b""

    def _token(self, logged: LoggedEvent) -> bytes:
        encoded = answer_piece(logged.body)
        if not encoded:
            return b""
        self._length += len(msgspec.json.decode(encoded, type=str))
        # Nearly every event comes through here: all but the text is the same each time.
        before, after = self._around
        return b"%b%b%b" % (before, encoded, after)

    def _tell(self, logged: LoggedEvent) -> bytes:
        event = logged.event
        match event:
            case SessionEvent():
                self._turn_id = event.turn_id
                kind, created = "chat.completion.chunk", logged.at // 1000
                self._head = {**_head(event.turn_id, event.agent, created), "object": kind}
                before, _, after = self._chunk({"content": _MARK}).partition(ascii_json(_MARK))
                self._around = before, after
                return self._chunk({"role": "assistant", "content": ""})
            case ReasoningEvent():
                return b"" if event.agent_path else self._chunk({"reasoning_content": event.content})
            case ApprovalRequestEvent():
                self._calls += 1
                call = _call(self._turn_id, event)
                return self._chunk({"tool_calls": [{"index": self._calls - 1, **call}]})
            case CitationEvent():
                return self._cite(event)
            case UsageEvent():
                self._usage = add_usage(self._usage, event)
            case ResponseEvent():
                self._usage = self._usage or event.usage
                return b"".join(map(self._cite, event.citations))
            case ErrorEvent():
                self._error = event
            case DoneEvent(outcome="completed"):
                return self._finish("stop")
            case DoneEvent(outcome="cancelled"):
                return self._finish("length")
            case DoneEvent():
                return frame(ascii_json({"error": error_object(self._error or _NO_WORDS)}))
            case RestartEvent():
                raise RestartedError(event.from_position)
            case (
                MessageEvent()
                | StatusEvent()
                | HandoffEvent()
                | SearchEvent()
                | ReviewEvent()
                | ToolCallEvent()
                | ToolProgressEvent()
                | ToolResultEvent()
                | TokenEvent()
                | ApprovalResponseEvent()
                | CustomEvent()
            ):
                pass
            case _:
                assert_never(event)
        return b""

    def _cite(self, citation: CitationEvent) -> bytes:
        if citation in self._cited or not citation.url:
            return b""
        self._cited.append(citation)
        return self._chunk({"annotations": [_annotation(citation, self._length, self._begins)]})

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        usage = {"usage": None} if self._include_usage else {}
        return frame(ascii_json({**self._head, "choices": [choice], **usage}))

    def _finish(self, reason: str) -> bytes:
        usage = b""
        if self._include_usage and self._usage is not None:
            usage = frame(ascii_json({**self._head, "choices": [], "usage": usage_object(self._usage)}))
        return self._chunk({}, reason) + usage + DONE


def completion(state: TurnState, created: int, start: int = 0) -> dict[str, Any]:
    """The same as one object, of a turn that completed, was stopped or waits.

    `created` is in seconds; `start` is where in the answer this completion begins.
    """
    waiting = [step for step in state.steps if step.state == "waiting"] if state.outcome is None else []
    calls = [_call(state.turn_id, ApprovalRequestEvent(step.id, step.name, step.args or {})) for step in waiting]
    message: dict[str, Any] = {"role": "assistant", "content": state.text[start:], "refusal": None}
    cited = [citation for citation in state.citations if citation.url]
    if pages := [page for page in cited if page.answer_start is None or page.answer_start >= start]:
        message["annotations"] = [_annotation(page, len(state.text), start) for page in pages]
    if calls:
        message["tool_calls"] = calls
    reason = "tool_calls" if calls else {"completed": "stop"}.get(state.outcome or "", "length")
    return {
        **_head(state.turn_id, state.agent, created),
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": reason}],
        "usage": state.usage and usage_object(state.usage),
    }


def parse_call_id(text: str) -> tuple[str, str] | None:
    """The turn and the call that the id of a waiting call names; None for an id that is not of ours."""
    prefix, turn_id, call_id = (*text.split("_", 2), "", "")[:3]
    return (turn_id, call_id) if prefix == "call" and turn_id and call_id else None


def usage_object(usage: Usage) -> dict[str, Any]:
    """The protocol has no word for «not known» here, so that is 0."""
    taken, given = usage.input_tokens or 0, usage.output_tokens or 0
    return {
        "prompt_tokens": taken,
        "completion_tokens": given,
        "total_tokens": taken + given,
        "prompt_tokens_details": {"cached_tokens": usage.cached_input_tokens or 0},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
    }


def error_object(error: ErrorEvent) -> dict[str, Any]:
    return {"message": error.error, "type": "server_error", "param": None, "code": error.code}


def _head(turn_id: str, agent: str, created: int) -> dict[str, Any]:
    return {"id": f"chatcmpl-{turn_id}", "object": "chat.completion", "created": created, "model": agent}


def _call(turn_id: str, asked: ApprovalRequestEvent) -> dict[str, Any]:
    function = {"name": asked.tool, "arguments": msgspec.json.encode(asked.args).decode()}
    return {"id": f"call_{turn_id}_{asked.call_id}", "type": "function", "function": function}


def _annotation(citation: CitationEvent, length: int, begins: int = 0) -> dict[str, Any]:
    """Its offsets count from where the completion begins in the answer."""
    start = (length if citation.answer_start is None else citation.answer_start) - begins
    end = start if citation.answer_end is None else citation.answer_end - begins
    page = {"url": citation.url, "title": citation.title or citation.url}
    told = {**page, "start_index": start, "end_index": max(start, end)}
    return {"type": "url_citation", "url_citation": told}
