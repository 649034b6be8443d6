"""Chunks of a UI message stream: one server-sent event each.

What is absent is left out: a null is fatal to the client.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Raw, Struct

from turnwire.core.codec import LoggedEvent, ascii_json
from turnwire.core.events import (
    ApprovalRequestEvent,
    ApprovalResponseEvent,
    CitationEvent,
    DoneEvent,
    ReasoningEvent,
    ResponseEvent,
    TokenEvent,
    ToolCallEvent,
    ToolProgressEvent,
    ToolResultEvent,
    Usage,
)
from turnwire.core.turns import TurnState
from turnwire.wires.framing import frame

START_STEP = b'data: {"type":"start-step"}\n\n'
FINISH_STEP = b'data: {"type":"finish-step"}\n\n'
END = b"data: [DONE]\n\n"

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


def known(**fields: Any) -> dict[str, Any]:
    """The fields of which something is known."""
    return {name: value for name, value in fields.items() if value is not None}


def event_part(logged: LoggedEvent, name: str, part_id: str | None = None, *, transient: bool = False) -> bytes:
    """The event as the log has it, as a data part. One of the same name and id takes the place of the one before."""
    fields = known(id=part_id, data=Raw(logged.body), transient=transient or None)
    return chunk(f"data-{name}", fields)


def source_chunk(citation: CitationEvent) -> bytes:
    """Where a citation comes from; its `sourceId` is the number in the answer."""
    source_id, url = str(citation.index), citation.url
    # Only what a browser may follow is offered as a link.
    if url is not None and url.lower().startswith(("https://", "http://")):
        return chunk("source-url", known(sourceId=source_id, url=url, title=citation.title or None))
    name = citation.document_id.rpartition("/")[2]
    ending = name.rpartition(".")[2].lower() if "." in name else ""
    fields = known(
        sourceId=source_id,
        mediaType=_MEDIA_TYPES.get(ending, _TEXT),
        title=citation.title or citation.document_id,
        filename=name if ending else None,
    )
    return chunk("source-document", fields)


def chunks_of(said: bytes) -> Iterator[bytes]:
    """The chunks that a client counts: every frame but the mark of the end."""
    for piece in said.split(b"\n\n"):
        if piece and piece + b"\n\n" != END:
            yield piece + b"\n\n"


# How the tool calls of a turn stand: a result, a progress or a question must be about a call that the client knows.


_NO_RESULT = "The tool failed."
_AGAIN = "A person is asked about this call again."
_UNANSWERED = "The turn ended before this tool did."


class ChatToolCalls:
    """`in_step` are the calls that were made since the step began, by the ids that the client is given."""

    def __init__(self, version: int) -> None:
        self._version = version
        self._ids: dict[str, str] = {}
        self._open: dict[str, None] = {}
        self._asked: dict[str, ApprovalRequestEvent] = {}
        self._denied: set[str] = set()
        self.in_step: set[str] = set()

    @property
    def are_settled(self) -> bool:
        """Whether there are calls in the step, and all of them have ended."""
        return bool(self.in_step) and self.in_step.isdisjoint(self._open)

    def is_open(self, call_id: str) -> bool:
        return self._ids.get(call_id) in self._open

    def is_at_hand(self, call_id: str) -> bool:
        """Whether it is open and of this step, where a client looks for what a person has to decide."""
        return self.is_open(call_id) and self._ids[call_id] in self.in_step

    def call(self, event: ToolCallEvent | ApprovalRequestEvent, position: int) -> bytes:
        return self._announce(event.call_id, event.tool, event.args, event.agent_path, position)

    def progress(self, event: ToolProgressEvent) -> bytes:
        if not self.is_open(event.call_id):
            return b""
        output = known(text=event.text, fraction=event.fraction, data=event.data)
        fields = {"toolCallId": self._ids[event.call_id], "output": output, "dynamic": True, "preliminary": True}
        return chunk("tool-output-available", fields)

    def result(self, event: ToolResultEvent, position: int) -> bytes:
        begun = b""
        if event.call_id not in self._ids:
            begun = self._announce(event.call_id, event.tool, {}, event.agent_path, position)
        call = self._ids[event.call_id]
        if call in self._denied:
            return b""  # It never ran: what it "said" is what the model was told of the denial.
        self._open.pop(call, None)
        if event.success:
            return begun + _ended(call, event.result)
        return begun + _failed(call, _words(event.result))

    def ask(self, event: ApprovalRequestEvent) -> bytes:
        """A question about a call that is open; its id is that of the call."""
        call = self._ids[event.call_id]
        self._asked[call] = event
        if self._version == 5:
            return self._told(call, {"state": "requested"})
        return chunk("tool-approval-request", known(approvalId=call, toolCallId=call, reason=event.reason))

    def decide(self, event: ApprovalResponseEvent) -> bytes:
        call = self._ids.get(event.call_id, "")
        if call not in self._asked:
            return b""
        said = b""
        if self._version == 5:
            state = "approved" if event.approved else "denied"
            said = self._told(call, known(state=state, answer=event.reason, by=event.by))
        elif self._version >= 7:
            fields = known(approvalId=call, approved=event.approved, reason=event.reason)
            said = chunk("tool-approval-response", fields)
        if event.approved:
            return said
        self._denied.add(call)
        self._open.pop(call, None)
        if self._version == 5:
            return said + _failed(call, f"Denied: {event.reason}" if event.reason else "Denied.")
        return said + chunk("tool-output-denied", {"toolCallId": call})

    def give_up(self) -> bytes:
        """Ends what is still open: a client would show it as running for ever."""
        unanswered, self._open = self._open, {}
        return b"".join(_failed(call, _UNANSWERED) for call in unanswered)

    def _announce(self, call_id: str, tool: str, args: dict[str, Any], path: tuple[str, ...], position: int) -> bytes:
        # An agent may use an id again; to the client that would be news of the call that has ended.
        call = f"{call_id}-{position}" if call_id in self._ids else call_id
        ended = b""
        if self.is_open(call_id):
            # Asked about again, after a wait: the earlier part would be shown as running for ever.
            ended = _ended(self._ids[call_id], _AGAIN)
            del self._open[self._ids[call_id]]
        self._ids[call_id] = call
        self._open[call] = None
        self.in_step.add(call)
        within = {"turnwire": {"agentPath": list(path)}} if path else None
        named = known(toolCallId=call, toolName=tool, dynamic=True, providerMetadata=within)
        return ended + chunk("tool-input-start", named) + chunk("tool-input-available", {**named, "input": args})

    def _told(self, call: str, more: dict[str, Any]) -> bytes:
        asked = self._asked[call]
        what = known(call_id=asked.call_id, tool=asked.tool, args=asked.args, reason=asked.reason)
        return chunk("data-approval", {"id": call, "data": {**what, **more}})


def _ended(call: str, output: Any) -> bytes:
    return chunk("tool-output-available", {"toolCallId": call, "output": output, "dynamic": True})


def _failed(call: str, text: str) -> bytes:
    return chunk("tool-output-error", {"toolCallId": call, "errorText": text, "dynamic": True})


def _words(result: Any) -> str:
    if result is None or result == "":
        return _NO_RESULT
    return result if isinstance(result, str) else msgspec.json.encode(result).decode()


# What sub-agents say: shown as it comes, kept in one piece, and never a part of the answer.


class _SubAgentText(Struct):
    part_id: str
    pieces: list[str]


class SubAgentTexts:
    """Each piece is a transient `data-agent-delta`; when somebody else goes on, the whole is a `data-agent`.

    To repeat the whole with every piece would cost the square of its length.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[tuple[str, ...], str], _SubAgentText] = {}

    def say(self, event: TokenEvent | ReasoningEvent, position: int) -> bytes:
        kind = "text" if isinstance(event, TokenEvent) else "reasoning"
        aside = self._open.setdefault((event.agent_path, kind), _SubAgentText(f"agent-{position}", []))
        aside.pieces.append(event.content)
        told = {"agent_path": event.agent_path, "kind": kind, "delta": event.content}
        return chunk("data-agent-delta", {"data": told, "transient": True})

    def close(self) -> bytes:
        if not self._open:
            return b""
        ended, self._open = self._open, {}
        return b"".join(
            chunk(
                "data-agent",
                {
                    "id": aside.part_id,
                    "data": {"agent_path": path, "kind": kind, "text": "".join(aside.pieces)},
                },
            )
            for (path, kind), aside in ended.items()
        )


# How a turn ends in the words of this protocol, and what is told of it as the message's metadata.


_NO_WORDS = "The answer could not be completed."


def metadata_chunk(done: DoneEvent, state: TurnState, response: ResponseEvent | None) -> bytes:
    told = known(
        outcome=done.outcome,
        mode=response.mode if response else None,
        toolsUsed=list(response.tools_used if response else state.tools_used),
        usage=_usage((response.usage if response else None) or state.usage),
        timings=(response.timings if response else None) or state.timings or None,
    )
    return chunk("message-metadata", {"messageMetadata": told})


def last_words(done: DoneEvent, state: TurnState) -> bytes:
    """Nothing is left to a clean end: a client takes that for success."""
    match done.outcome:
        case "completed":
            return finish("stop")
        case "cancelled":
            return chunk("abort", known(reason=done.reason)) + finish("other")
        case "failed" | "interrupted":
            error = chunk("error", {"errorText": (state.error.error if state.error else "") or _NO_WORDS})
            return error + finish("error")


def finish(reason: str) -> bytes:
    return FINISH_STEP + chunk("finish", {"finishReason": reason}) + END


def _usage(usage: Usage | None) -> dict[str, Any] | None:
    """Under the SDK's names. Absent is not zero."""
    if usage is None:
        return None
    spent = usage.input_tokens, usage.output_tokens
    return known(
        inputTokens=usage.input_tokens,
        outputTokens=usage.output_tokens,
        totalTokens=None if None in spent else sum(number or 0 for number in spent),
        cachedInputTokens=usage.cached_input_tokens,
        reasoningTokens=usage.reasoning_tokens,
    )
