"""`ai_sdk`: a log as chunks of a UI message stream.

A step of the protocol is one answer of the model with the tools it calls, so whatever follows ended tools begins a new
step. A client looks at the last step to see whether it must send something by itself: if that step held calls that have
ended, the client would send requests without end.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Self, assert_never

import msgspec
from msgspec import Raw, Struct

from turnwire.core.contracts.wires import Encoder
from turnwire.core.errors import RestartedError
from turnwire.core.log.codec import LoggedEvent, ascii_json
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    ApprovalResponseEvent,
    CitationEvent,
    CustomEvent,
    DoneEvent,
    ErrorEvent,
    HandoffEvent,
    InputEvent,
    MessageEvent,
    QuestionEvent,
    ReasoningEvent,
    ReplyEvent,
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
from turnwire.core.log.state import TurnFold
from turnwire.core.log.turns import TurnState
from turnwire.wires.frames import (
    DONE,
    QUESTION_DECLINED,
    TOOL_UNFINISHED,
    TURN_FAILED,
    BaseEncoder,
    StatefulWire,
    answer_json,
    answer_text,
    as_object,
    frame,
    omit_none,
    text_or_json,
    usage_fields,
)
from turnwire.wires.turn_view import AgentPath, AnswerEvent, OpenText, OpenTexts, OpenWaits, ShownCalls, TurnView

VERSIONS = (5, 6, 7)
START_STEP = b'data: {"type":"start-step"}\n\n'
FINISH_STEP = b'data: {"type":"finish-step"}\n\n'
DATA = len(b"data: ")
QUESTION = "question"
"""The name of the tool call that stands for a question; a client answers it like a call of its own tools."""

_TEXT = "text/plain"
_MEDIA_TYPES = {
    "md": "text/markdown",
    "html": "text/html",
    "htm": "text/html",
    "pdf": "application/pdf",
    "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
}
_RESERVED_PARTS = frozenset({"status", "handoff", "search", "review", "citation", "approval", "agent", "agent-delta"})
"""The data parts that an application's own event must not pass for."""


class AiSdk(StatefulWire):
    """The wire for one version of the SDK's clients."""

    name = "ai_sdk"
    media_type = "text/event-stream"
    heartbeat = b": keep-alive\n\n"
    opening = b": stream-open\n\n"

    def __init__(self, sdk_version: int = 6) -> None:
        """Raise ValueError for an unknown version."""
        if sdk_version not in VERSIONS:
            raise ValueError("sdk_version: 5, 6 or 7")
        self.sdk_version = sdk_version
        self.key = f"ai_sdk?sdk_version={sdk_version}"

    @classmethod
    def of_query(cls, query: Mapping[str, str], default: int = 6) -> Self:
        version = query.get("sdk_version", str(default))
        return cls(int(version) if version.isascii() and version.isdecimal() and len(version) == 1 else 0)

    def encoder(self) -> Encoder:
        return ChatEncoder(self.sdk_version)


class ChatEncoder:
    takes_heartbeat = True

    def __init__(self, version: int) -> None:
        self._fold = TurnFold()
        self._calls = _ToolCalls(version)
        self._subagent_texts = _SubAgentTexts()
        self._turn = TurnView()
        self._texts = OpenTexts()
        self._waits = OpenWaits[bytes]()
        self._start = b""
        self._has_text = False
        self._sources: set[int] = set()

    def frame(self, logged: LoggedEvent) -> bytes:
        content = answer_json(logged.body)
        if content and not self._waits and (prefix := self._texts.answer_prefix):
            return b"%b%b}\n\n" % (prefix, content)
        resumed = self._resume() if self._waits.end_at(logged) else b""
        return resumed + (self._token(logged, content) if content else self._event(logged))

    def pause(self) -> bytes:
        return _finish("tool-calls") if self._waits else b""

    def _event(self, logged: LoggedEvent) -> bytes:
        event, position = self._turn.read(logged), logged.position
        if not isinstance(event, TokenEvent | ReasoningEvent):
            self._fold.add(logged)
        match event:
            case SessionEvent():
                metadata = {"turnId": event.turn_id, "sessionId": event.session_id, "agent": event.agent}
                self._start = chunk("start", {"messageId": event.turn_id, "messageMetadata": metadata}) + START_STEP
                return self._start
            case TokenEvent() | ReasoningEvent() if event.agent_path:
                return self._subagent_texts.add(event, position)
            case ReasoningEvent():
                return self._text(ascii_json(event.content), position, is_reasoning=True) if event.content else b""
            case StatusEvent():
                return _event_part(logged, "status", transient=True)
            case HandoffEvent():
                return self._close() + _event_part(logged, "handoff", f"handoff-{position}")
            case InputEvent():
                return self._close() + _event_part(logged, "input", f"input-{position}")
            case QuestionEvent():
                self._waits.begin(event)
                return self._close() + self._own_step() + self._calls.ask(event)
            case ReplyEvent():
                return self._answer(event, self._calls.reply(event))
            case SearchEvent():
                return self._close() + _event_part(logged, "search", _step_id(event))
            case ReviewEvent():
                return self._close() + _event_part(logged, "review", _step_id(event))
            case CustomEvent():
                return self._close() + _custom_part(event)
            case CitationEvent():
                # The text stays open: a citation may come in the middle of a sentence.
                return self._source(event) + _event_part(logged, "citation", f"citation-{position}")
            case ToolCallEvent():
                if self._calls.is_open(event.call_id):
                    return b""
                self._waits.begin(event)
                own_step = self._close() + self._own_step() if event.runs_on == "client" else b""
                return own_step + self._call(event, position)
            case ToolProgressEvent():
                return self._calls.progress(event)
            case ToolResultEvent():
                return self._close() + self._answer(event, self._calls.result(event, position))
            case ApprovalRequestEvent():
                self._waits.begin(event)
                called = b"" if self._calls.is_open_in_step(event.call_id) else self._call(event, position)
                return called + self._close() + self._calls.request(event)
            case ApprovalResponseEvent():
                return self._answer(event, self._calls.decide(event))
            case DoneEvent():
                return self._end(event)
            case TokenEvent() | MessageEvent() | UsageEvent() | ErrorEvent() | ResponseEvent() | RestartEvent():
                return b""
            case _:
                assert_never(event)

    # Texts

    def _token(self, logged: LoggedEvent, content: bytes) -> bytes:
        if not self._has_text:
            # The fold needs the time when the answer began, not its text.
            self._has_text = True
            self._fold.add_token("", logged.position, logged.at)
        return self._text(content, logged.position, is_reasoning=False)

    def _text(self, content: bytes, position: int, *, is_reasoning: bool) -> bytes:
        """Return a piece of a text, which is encoded as JSON, after the start of the text if it is new."""
        started, text = b"", self._texts.find((), is_reasoning=is_reasoning)
        if text is None:
            kind = "reasoning" if is_reasoning else "text"
            name = f"{kind}-{position}"
            started = self._close() + self._next_step() + chunk(f"{kind}-start", {"id": name})
            prefix = chunk(f"{kind}-delta", {"id": name}).removesuffix(b"}\n\n") + b',"delta":'
            text = OpenText(name, is_reasoning, prefix)
            self._texts.start((), text)
        return b"%b%b%b}\n\n" % (started, text.prefix, content)

    def _close(self) -> bytes:
        """End every open text, because another part follows."""
        closed, text = self._subagent_texts.close(), self._texts.end(())
        if text is None:
            return closed
        return closed + chunk("reasoning-end" if text.is_reasoning else "text-end", {"id": text.id})

    def _source(self, citation: CitationEvent) -> bytes:
        if citation.index in self._sources:
            return b""
        self._sources.add(citation.index)
        return source_chunk(citation)

    # Tool calls and approvals

    def _call(self, event: ToolCallEvent | ApprovalRequestEvent, position: int) -> bytes:
        return self._close() + self._next_step() + self._calls.call(event, event.args, position)

    def _next_step(self) -> bytes:
        if not self._calls.are_settled:
            return b""
        self._calls.in_step.clear()
        return FINISH_STEP + START_STEP

    def _own_step(self) -> bytes:
        """Begin a step for what the client answers, because a client waits until everything in the step has ended."""
        if not self._calls.needs_own_step:
            return b""
        self._calls.in_step.clear()
        return FINISH_STEP + START_STEP

    def _answer(self, event: AnswerEvent, chunks: bytes) -> bytes:
        """Keep the chunks of an answer until the last one that the turn waits for, with which it continues."""
        if not self._waits:
            return chunks
        return self._resume() if self._waits.answer(event, chunks) else b""

    def _resume(self) -> bytes:
        """Start the message again after a pause, with every answer that was given meanwhile."""
        paused = self.pause()
        self._calls.in_step.clear()
        return paused + self._start + b"".join(self._waits.end())

    def _end(self, done: DoneEvent) -> bytes:
        state = self._fold.state()
        ended = self._close() + self._calls.close_all() + self._next_step()
        response = self._turn.response
        usage = (response.usage if response else None) or state.usage
        metadata = omit_none(
            outcome=done.outcome,
            mode=response.mode if response else None,
            toolsUsed=list(response.tools_used if response else state.tools_used),
            usage=usage_fields(usage) if usage else None,
            timings=(response.timings if response else None) or state.timings or None,
        )
        return ended + chunk("message-metadata", {"messageMetadata": metadata}) + _outcome_chunks(done, state)


class _ToolCalls(ShownCalls):
    """The tool calls of a turn, by the ids that the client knows them under; `in_step` are those of this step."""

    def __init__(self, version: int) -> None:
        super().__init__()
        self._version = version
        self._requests: dict[str, ApprovalRequestEvent] = {}
        self._denied: set[str] = set()
        # Calls of the client's tools, and questions: parts of a known type, with which a client calls `onToolCall`.
        self._static: set[str] = set()
        self.in_step: set[str] = set()

    @property
    def are_settled(self) -> bool:
        """Return True if the step has calls and all of them have ended."""
        return bool(self.in_step) and self.in_step.isdisjoint(self.open)

    @property
    def needs_own_step(self) -> bool:
        """Return True if calls that the server runs are open in this step, or if all calls of it have ended."""
        open_calls = self.in_step.intersection(self.open)
        return self.are_settled or any(call not in self._static and call not in self._requests for call in open_calls)

    def is_open_in_step(self, call_id: str) -> bool:
        """Return True for an open call of this step, the only step in which a client looks for approval requests."""
        return self.is_open(call_id) and self[call_id] in self.in_step

    def call(
        self, event: ToolCallEvent | ApprovalRequestEvent | ToolResultEvent, args: dict[str, Any], position: int
    ) -> bytes:
        ended = b""
        if self.is_open(event.call_id):
            # Requested again after a wait: the client would show the earlier part as running for ever.
            ended = self._output(self.end(event.call_id), "A person is asked about this call again.")
        call = self.start(event.call_id, position)
        self.in_step.add(call)
        if isinstance(event, ToolCallEvent) and event.runs_on == "client":
            self._static.add(call)
        return ended + self._input(call, event.tool, event.agent_path, args)

    def _input(self, call: str, tool: str, agent_path: tuple[str, ...], args: dict[str, Any]) -> bytes:
        metadata = {"turnwire": {"agentPath": list(agent_path)}} if agent_path else None
        fields = omit_none(toolCallId=call, toolName=tool, **self._kind(call), providerMetadata=metadata)
        return chunk("tool-input-start", fields) + chunk("tool-input-available", {**fields, "input": args})

    def _kind(self, call: str) -> dict[str, Any]:
        return {} if call in self._static else {"dynamic": True}

    def ask(self, event: QuestionEvent) -> bytes:
        """Return a question as the call of a tool of the client, under the id of the question."""
        self.open[event.id] = ()
        self._static.add(event.id)
        self.in_step.add(event.id)
        args = omit_none(prompt=event.prompt, schema=event.schema, callId=event.call_id)
        return self._input(event.id, QUESTION, event.agent_path, args)

    def reply(self, event: ReplyEvent) -> bytes:
        call = event.question_id
        if self.open.pop(call, None) is None:
            return b""
        if not event.declined:
            return self._output(call, event.value)
        return self._error(call, f"{QUESTION_DECLINED} {event.reason}" if event.reason else QUESTION_DECLINED)

    def progress(self, event: ToolProgressEvent) -> bytes:
        if not self.is_open(event.call_id):
            return b""
        output = omit_none(text=event.text, fraction=event.fraction, data=event.data)
        call = self[event.call_id]
        return chunk(
            "tool-output-available", {"toolCallId": call, "output": output, **self._kind(call), "preliminary": True}
        )

    def result(self, event: ToolResultEvent, position: int) -> bytes:
        started = self.call(event, {}, position) if event.call_id not in self else b""
        if self[event.call_id] in self._denied:
            return b""  # The tool never ran: this result is what the model was told about the denial.
        call = self.end(event.call_id)
        if event.success:
            return started + self._output(call, event.result)
        text = "The tool failed." if event.result in (None, "") else text_or_json(event.result)
        return started + self._error(call, text)

    def request(self, event: ApprovalRequestEvent) -> bytes:
        """Return the approval request of an open call, under the id of the call."""
        call = self[event.call_id]
        self._requests[call] = event
        if self._version == 5:
            return self._approval_part(call, {"state": "requested"})
        return chunk("tool-approval-request", omit_none(approvalId=call, toolCallId=call, reason=event.reason))

    def decide(self, event: ApprovalResponseEvent) -> bytes:
        call = self.find(event.call_id) or ""
        if call not in self._requests:
            return b""
        decision = b""
        if self._version == 5:
            state = "approved" if event.approved else "denied"
            decision = self._approval_part(call, omit_none(state=state, answer=event.reason, by=event.by))
        elif self._version >= 7:
            fields = omit_none(approvalId=call, approved=event.approved, reason=event.reason)
            decision = chunk("tool-approval-response", fields)
        if event.approved:
            return decision
        self._denied.add(self.end(event.call_id))
        if self._version == 5:
            return decision + self._error(call, f"Denied: {event.reason}" if event.reason else "Denied.")
        return decision + chunk("tool-output-denied", {"toolCallId": call})

    def close_all(self) -> bytes:
        """End the calls without a result: a client would show them as running for ever."""
        return b"".join(self._error(call, TOOL_UNFINISHED) for call in self.end_all())

    def _approval_part(self, call: str, fields: dict[str, Any]) -> bytes:
        request = self._requests[call]
        data = omit_none(
            call_id=request.call_id,
            tool=request.tool,
            args=request.args,
            reason=request.reason,
            editable=request.editable or None,
        )
        return chunk("data-approval", {"id": call, "data": {**data, **fields}})

    def _output(self, call: str, output: Any) -> bytes:
        return chunk("tool-output-available", {"toolCallId": call, "output": output, **self._kind(call)})

    def _error(self, call: str, text: str) -> bytes:
        return chunk("tool-output-error", {"toolCallId": call, "errorText": text, **self._kind(call)})


class _SubAgentText(Struct):
    part_id: str
    pieces: list[str]


class _SubAgentTexts:
    """The texts of sub-agents, which are no part of the answer.

    Each piece is a transient `data-agent-delta`, and the whole text one `data-agent` when something else follows:
    repeating the whole text with every piece would cost the square of its length.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[AgentPath, str], _SubAgentText] = {}

    def add(self, event: TokenEvent | ReasoningEvent, position: int) -> bytes:
        kind = "text" if isinstance(event, TokenEvent) else "reasoning"
        text = self._open.setdefault((event.agent_path, kind), _SubAgentText(f"agent-{position}", []))
        text.pieces.append(event.content)
        data = {"agent_path": event.agent_path, "kind": kind, "delta": event.content}
        return chunk("data-agent-delta", {"data": data, "transient": True})

    def close(self) -> bytes:
        closed, self._open = self._open, {}
        return b"".join(
            chunk(
                "data-agent",
                {"id": text.part_id, "data": {"agent_path": path, "kind": kind, "text": "".join(text.pieces)}},
            )
            for (path, kind), text in closed.items()
        )


# Chunks


def chunk(kind: str, fields: dict[str, Any] | None = None) -> bytes:
    return frame(ascii_json({"type": kind, **(fields or {})}))


def chunks_of(body: bytes) -> Iterator[bytes]:
    """Yield the chunks that a client counts: every frame but the end mark."""
    for piece in body.split(b"\n\n"):
        if piece and piece + b"\n\n" != DONE:
            yield piece + b"\n\n"


def read_chunk(chunk: bytes) -> dict[str, Any]:
    return msgspec.json.decode(chunk[DATA:], type=dict[str, Any])


def _event_part(logged: LoggedEvent, name: str, part_id: str | None = None, *, transient: bool = False) -> bytes:
    """Return the event as the log has it, as a data part. It replaces a part of the same name and id."""
    fields = omit_none(id=part_id, data=Raw(logged.body), transient=transient or None)
    return chunk(f"data-{name}", fields)


def source_chunk(citation: CitationEvent) -> bytes:
    """Return the source of a citation; its `sourceId` is the number in the answer."""
    source_id, url = str(citation.index), citation.url
    # Only addresses that a browser may open become links.
    if url is not None and url.lower().startswith(("https://", "http://")):
        return chunk("source-url", omit_none(sourceId=source_id, url=url, title=citation.title or None))
    name = citation.document_id.rpartition("/")[2]
    ending = name.rpartition(".")[2].lower() if "." in name else ""
    fields = omit_none(
        sourceId=source_id,
        mediaType=_MEDIA_TYPES.get(ending, _TEXT),
        title=citation.title or citation.document_id,
        filename=name if ending else None,
    )
    return chunk("source-document", fields)


def _step_id(event: SearchEvent | ReviewEvent) -> str:
    return "/".join((*event.agent_path, event.step_id))


def _custom_part(event: CustomEvent) -> bytes:
    """Return an application's event as a data part; data with an `id` replaces the part of the same id."""
    name = f"custom-{event.name}" if event.name in _RESERVED_PARTS else event.name
    part_id = as_object(event.data).get("id")
    return chunk(f"data-{name}", {**omit_none(id=part_id if isinstance(part_id, str) else None), "data": event.data})


def _outcome_chunks(done: DoneEvent, state: TurnState) -> bytes:
    """Return the last chunks. A client takes a stream that merely ends for success, so failures are explicit."""
    match done.outcome:
        case "completed" | "joined":
            return _finish("stop")
        case "cancelled":
            return chunk("abort", omit_none(reason=done.reason)) + _finish("other")
        case "failed" | "interrupted":
            error = chunk("error", {"errorText": (state.error.error if state.error else "") or TURN_FAILED})
            return error + _finish("error")
        case _:
            assert_never(done.outcome)


def _finish(reason: str) -> bytes:
    return FINISH_STEP + chunk("finish", {"finishReason": reason}) + DONE


# The bare text


class AnswerText(StatefulWire):
    """The answer's text and nothing else, as the SDK's `TextStreamChatTransport` reads it."""

    name = key = "answer_text"
    media_type = "text/plain; charset=utf-8"
    heartbeat = b""

    def encoder(self) -> Encoder:
        return _AnswerEncoder()


class _AnswerEncoder(BaseEncoder):
    takes_heartbeat = False

    def frame(self, logged: LoggedEvent) -> bytes:
        if logged.type == "restart":
            assert isinstance(logged.event, RestartEvent)
            raise RestartedError(logged.event.from_position)
        return answer_text(logged.body).encode()
