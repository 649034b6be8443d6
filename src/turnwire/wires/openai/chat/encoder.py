"""`openai_chat`: a turn as OpenAI's Chat Completions API streams it.

The protocol carries the answer, the model's reasoning (`reasoning_content`, as many servers call it), citations of web
pages and usage; tool calls of the agent are left out. A call of one of the client's tools, or one that waits for
approval, is sent as a tool call, whose id names the turn as well, and ends the segment. A question is sent as text.

A failed turn ends with an error, at which every OpenAI client raises. A cancelled turn ends with `length`, the
protocol's reason for an answer that was cut short.
"""

from collections.abc import Mapping
from typing import Any, Self

import msgspec

from turnwire.core.contracts.wires import Encoder
from turnwire.core.log.codec import SUSPENSION_EVENTS, LoggedEvent, ascii_json
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    CitationEvent,
    DoneEvent,
    ErrorEvent,
    MessageEvent,
    QuestionEvent,
    ReasoningEvent,
    ResponseEvent,
    RestartEvent,
    SessionEvent,
    TokenEvent,
    ToolCallEvent,
    Usage,
    UsageEvent,
)
from turnwire.core.log.turns import Step, TurnState
from turnwire.wires.frames import DONE, TOKEN_BODY, TURN_FAILED, StatefulWire, answer_json, frame
from turnwire.wires.progress import open_questions
from turnwire.wires.turn_view import AnswerEvent, ReportEvent, TurnView

_SkippedEvent = ReportEvent | AnswerEvent | MessageEvent | TokenEvent | UsageEvent | ErrorEvent | RestartEvent
NEXT_PARAGRAPH = "\n\n"
QUESTION_NOTE = (
    "\n\n[The agent waits for the answer to this question. This API has no form for it: "
    "answer on the page, or with `POST /v1/turns/{id}/replies`.]"
)
_MARK = "\x00"  # The log removes control characters, so no text contains it.


class OpenAIChat(StatefulWire):
    name = "openai_chat"
    media_type = "text/event-stream; charset=utf-8"
    # With one line feed: an empty line would be an event without data, on which an OpenAI client may fail.
    heartbeat = b": hb\n"

    def __init__(self, *, include_usage: bool = False, is_limited: bool = False) -> None:
        """With `is_limited` the client has set `max_tokens`, and an answer that is cut off there is no failure."""
        self._include_usage = include_usage
        self._is_limited = is_limited
        options = [*(["include_usage"] if include_usage else []), *(["is_limited"] if is_limited else [])]
        self.key = f"{self.name}?{'&'.join(options)}" if options else self.name

    @classmethod
    def of_query(cls, query: Mapping[str, str]) -> Self:
        return cls(include_usage=query.get("include_usage") == "true")

    def encoder(self) -> Encoder:
        return _CompletionEncoder(self._include_usage, self._is_limited)


class _CompletionEncoder:
    takes_heartbeat = True

    def __init__(self, include_usage: bool, is_limited: bool) -> None:
        self._include_usage = include_usage
        self._is_limited = is_limited
        self._turn = TurnView()
        self._head: dict[str, Any] = {}
        self._delta_prefix = self._delta_suffix = b""
        self._calls = 0
        self._length = self._start = 0
        self._waits = ""
        self._cited: list[CitationEvent] = []

    def frame(self, logged: LoggedEvent) -> bytes:
        resumed = b""
        if self._waits and logged.type not in SUSPENSION_EVENTS:
            resumed = self.pause() + self._chunk({"role": "assistant", "content": ""})
            self._turn.begin_segment()
            self._waits, self._calls, self._start = "", 0, self._length
        if logged.body.startswith(TOKEN_BODY):
            return resumed + self._token(logged)
        return resumed + self._event(logged)

    def pause(self) -> bytes:
        return self._finish(self._waits) if self._waits else b""

    def _token(self, logged: LoggedEvent) -> bytes:
        content = answer_json(logged.body)
        if not content:
            return b""
        self._length += len(msgspec.json.decode(content, type=str))
        # Nearly every event is a token, so all but its text is encoded once.
        return b"%b%b%b" % (self._delta_prefix, content, self._delta_suffix)

    def _event(self, logged: LoggedEvent) -> bytes:
        event = self._turn.read(logged)
        match event:
            case SessionEvent():
                kind, created = "chat.completion.chunk", logged.at // 1000
                self._head = {**_head(event.turn_id, event.agent, created), "object": kind}
                delta = self._chunk({"content": _MARK})
                self._delta_prefix, _, self._delta_suffix = delta.partition(ascii_json(_MARK))
                return self._chunk({"role": "assistant", "content": ""})
            case ReasoningEvent():
                return b"" if event.agent_path else self._chunk({"reasoning_content": event.content})
            case ApprovalRequestEvent():
                return self._call(event)
            case ToolCallEvent():
                return self._call(event) if event.runs_on == "client" else b""
            case QuestionEvent():
                self._waits = self._waits or "stop"
                return self._chunk({"content": question_text(event.prompt, after_text=self._length > self._start)})
            case CitationEvent():
                return self._cite(event)
            case ResponseEvent():
                return b"".join(map(self._cite, event.citations))
            case DoneEvent(outcome="completed" | "joined"):
                return self._finish("stop")
            case DoneEvent(outcome="cancelled"):
                return self._finish("length")
            case DoneEvent() if self._is_limited and is_cut_off(self._turn.error):
                return self._finish("length")
            case DoneEvent():
                return _error_frame(self._turn.error or ErrorEvent(TURN_FAILED, "turn_failed"))
            case _:
                return _skip(event)

    def _call(self, event: ApprovalRequestEvent | ToolCallEvent) -> bytes:
        """Return a call that the client has to answer, and wait for its answer."""
        self._waits = "tool_calls"
        self._calls += 1
        call = _call(self._turn.turn_id, event.call_id, event.tool, event.args)
        return self._chunk({"tool_calls": [{"index": self._calls - 1, **call}]})

    def _cite(self, citation: CitationEvent) -> bytes:
        if citation in self._cited or not citation.url:
            return b""
        self._cited.append(citation)
        return self._chunk({"annotations": [_annotation(citation, self._length, self._start)]})

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        usage = {"usage": None} if self._include_usage else {}
        return frame(ascii_json({**self._head, "choices": [choice], **usage}))

    def _finish(self, reason: str) -> bytes:
        usage, response = b"", self._turn.response
        if self._include_usage:
            counts = self._turn.usage or (response and response.usage) or Usage()
            usage = frame(ascii_json({**self._head, "choices": [], "usage": _usage_object(counts)}))
        return self._chunk({}, reason) + usage + DONE


def _skip(event: _SkippedEvent) -> bytes:
    return b""


def completion(state: TurnState, created: int, start: int = 0) -> dict[str, Any]:
    """Return a turn that has completed, was cancelled or waits as one completion object.

    `created` is in seconds; `start` is the offset in the answer at which this completion begins.
    """
    waiting = [step for step in state.steps if _is_waiting(step)] if state.outcome is None else []
    calls = [_call(state.turn_id, step.id, step.name, step.args or {}) for step in waiting]
    text = state.text[start:]
    for question in open_questions(state):
        text += question_text(question.prompt, after_text=bool(state.text[start:]))
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
    cited = [citation for citation in state.citations if citation.url]
    if pages := [page for page in cited if page.answer_start is None or page.answer_start >= start]:
        message["annotations"] = [_annotation(page, len(state.text), start) for page in pages]
    if calls:
        message["tool_calls"] = calls
    reason = "tool_calls" if calls else {"completed": "stop", None: "stop"}.get(state.outcome, "length")
    return {
        **_head(state.turn_id, state.agent, created),
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": reason}],
        "usage": _usage_object(state.usage or Usage()),
    }


def is_cut_off(error: ErrorEvent | None) -> bool:
    """Return True for the error of a model's reply that reached its limit of tokens."""
    return error is not None and error.code == "truncated"


def parse_call_id(text: str) -> tuple[str, str] | None:
    """Return the turn and the call that the id of a waiting call names; None for an id of another form."""
    prefix, turn_id, call_id = (*text.split("_", 2), "", "")[:3]
    return (turn_id, call_id) if prefix == "call" and turn_id and call_id else None


def _usage_object(usage: Usage) -> dict[str, Any]:
    """Return the token counts. The protocol has no value for an unknown count, so that is 0."""
    prompt, answer = usage.input_tokens or 0, usage.output_tokens or 0
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": prompt + answer,
        "prompt_tokens_details": {"cached_tokens": usage.cached_input_tokens or 0},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
    }


def _error_frame(error: ErrorEvent) -> bytes:
    body = {"message": error.error, "type": "server_error", "param": None, "code": error.code}
    return frame(ascii_json({"error": body}))


def _head(turn_id: str, agent: str, created: int) -> dict[str, Any]:
    return {"id": f"chatcmpl-{turn_id}", "object": "chat.completion", "created": created, "model": agent}


def waiting_call_id(turn_id: str, call_id: str) -> str:
    """Return the id of a call that the client has to answer; it names the turn that waits for the answer."""
    return f"call_{turn_id}_{call_id}"


def question_text(prompt: str, *, after_text: bool) -> str:
    """Return a question as text, because the protocol has no form for it."""
    return f"{NEXT_PARAGRAPH if after_text else ''}{prompt}{QUESTION_NOTE}"


def _is_waiting(step: Step) -> bool:
    return step.state == "waiting" or (step.state == "running" and step.runs_on == "client")


def _call(turn_id: str, call_id: str, tool: str, args: dict[str, Any]) -> dict[str, Any]:
    function = {"name": tool, "arguments": msgspec.json.encode(args).decode()}
    return {"id": waiting_call_id(turn_id, call_id), "type": "function", "function": function}


def _annotation(citation: CitationEvent, length: int, offset: int) -> dict[str, Any]:
    """Return an annotation whose offsets count from the start of the completion, at `offset` in the answer."""
    start = (length if citation.answer_start is None else citation.answer_start) - offset
    end = start if citation.answer_end is None else citation.answer_end - offset
    page = {"url": citation.url, "title": citation.title or citation.url}
    return {"type": "url_citation", "url_citation": {**page, "start_index": start, "end_index": max(start, end)}}
