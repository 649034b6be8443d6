"""Chunks of a UI message stream: one server-sent event each.

The functions write chunks; the classes track what is open in a message, because a result, a progress or an approval
request must name a call that the client knows.
"""

from collections.abc import Iterator
from typing import Any, assert_never

import msgspec
from msgspec import Raw, Struct

from turnwire.core.log.codec import LoggedEvent, ascii_json
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    ApprovalResponseEvent,
    CitationEvent,
    DoneEvent,
    QuestionEvent,
    ReasoningEvent,
    ReplyEvent,
    ResponseEvent,
    TokenEvent,
    ToolCallEvent,
    ToolProgressEvent,
    ToolResultEvent,
)
from turnwire.core.log.turns import TurnState
from turnwire.wires.frames import (
    DONE,
    QUESTION_DECLINED,
    TOOL_UNFINISHED,
    TURN_FAILED,
    frame,
    omit_none,
    text_or_json,
    usage_fields,
)
from turnwire.wires.turn_view import ShownCalls

START_STEP = b'data: {"type":"start-step"}\n\n'
FINISH_STEP = b'data: {"type":"finish-step"}\n\n'
END = DONE
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


def chunk(kind: str, fields: dict[str, Any] | None = None) -> bytes:
    return frame(ascii_json({"type": kind, **(fields or {})}))


def chunks_of(body: bytes) -> Iterator[bytes]:
    """Yield the chunks that a client counts: every frame but the end mark."""
    for piece in body.split(b"\n\n"):
        if piece and piece + b"\n\n" != DONE:
            yield piece + b"\n\n"


def read_chunk(chunk: bytes) -> dict[str, Any]:
    return msgspec.json.decode(chunk[DATA:], type=dict[str, Any])


def event_part(logged: LoggedEvent, name: str, part_id: str | None = None, *, transient: bool = False) -> bytes:
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


# The end of a message


def metadata_chunk(done: DoneEvent, state: TurnState, response: ResponseEvent | None) -> bytes:
    usage = (response.usage if response else None) or state.usage
    metadata = omit_none(
        outcome=done.outcome,
        mode=response.mode if response else None,
        toolsUsed=list(response.tools_used if response else state.tools_used),
        usage=usage_fields(usage) if usage else None,
        timings=(response.timings if response else None) or state.timings or None,
    )
    return chunk("message-metadata", {"messageMetadata": metadata})


def outcome_chunks(done: DoneEvent, state: TurnState) -> bytes:
    """Return the last chunks. A client takes a stream that merely ends for success, so failures are explicit."""
    match done.outcome:
        case "completed" | "joined":
            return finish("stop")
        case "cancelled":
            return chunk("abort", omit_none(reason=done.reason)) + finish("other")
        case "failed" | "interrupted":
            error = chunk("error", {"errorText": (state.error.error if state.error else "") or TURN_FAILED})
            return error + finish("error")
        case _:
            assert_never(done.outcome)


def finish(reason: str) -> bytes:
    return FINISH_STEP + chunk("finish", {"finishReason": reason}) + DONE


# Tool calls


class ChatToolCalls(ShownCalls):
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


# Sub-agents


class _SubAgentText(Struct):
    part_id: str
    pieces: list[str]


class SubAgentTexts:
    """The texts of sub-agents, which are no part of the answer.

    Each piece is a transient `data-agent-delta`, and the whole text one `data-agent` when something else follows:
    repeating the whole text with every piece would cost the square of its length.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[tuple[str, ...], str], _SubAgentText] = {}

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
