"""The Responses API: response ids, the items of a response's output, and the numbered frames about them."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct, field

from turnwire.core.journal.waits import client_tools
from turnwire.core.log.codec import ascii_json
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    ApprovalResponseEvent,
    CitationEvent,
    ErrorEvent,
    ToolCallEvent,
    ToolResultEvent,
    Usage,
)
from turnwire.core.log.turns import Message, TurnRecord
from turnwire.wires.frames import text_or_json
from turnwire.wires.openai.chat.encoder import waiting_call_id

Item = dict[str, Any]

ECHOED: Mapping[str, Any] = {
    "background": False,
    "conversation": None,
    "frequency_penalty": 0.0,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "presence_penalty": 0.0,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": None,
    "safety_identifier": None,
    "service_tier": "default",
    "temperature": 1.0,
    "tool_choice": "auto",
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
"""The fields of a request that its response repeats, with their defaults."""

SERVER_CALLS = "server_calls"
"""The option of a turn whose responses show the tools of the server as `mcp_call` in any case."""
_RESPONSE_ID = re.compile(r"resp_([A-Za-z0-9.:@-]{1,128}?)(?:_([2-9]|[1-9][0-9]{1,3}))?")
_INCOMPLETE = {"cancelled": "cancelled", "incomplete": "max_output_tokens"}
_APPROVAL_PREFIX = "mcpr_"
_DELTA = (
    b"event: response.output_text.delta\n"
    b'data: {"type":"response.output_text.delta","sequence_number":%d,%b,"delta":%b,"logprobs":[]}\n\n'
)


# Responses


def response_id(turn_id: str, segment: int = 1) -> str:
    return f"resp_{turn_id}" if segment == 1 else f"resp_{turn_id}_{segment}"


def parse_response_id(text: str) -> tuple[str, int] | None:
    """Return the turn and the segment that a response id names; None if it is no response id."""
    match = _RESPONSE_ID.fullmatch(text)
    return None if match is None else (match[1], int(match[2] or 1))


def new_resource(turn_id: str, agent: str, at: int, echo: Mapping[str, Any], segment: int) -> dict[str, Any]:
    """Return a response that has just begun, at `at` milliseconds.

    It has every field that the Open Responses specification requires, null where there is no value.
    """
    return {
        "id": response_id(turn_id, segment),
        "object": "response",
        "created_at": at // 1000,
        "completed_at": None,
        "status": "in_progress",
        "model": agent,
        "output": [],
        "error": None,
        "incomplete_details": None,
        "usage": None,
        **ECHOED,
        **{name: value for name, value in echo.items() if name in ECHOED},
        **({"previous_response_id": response_id(turn_id, segment - 1)} if segment > 1 else {}),
        "text": {"format": echo.get("format") or {"type": "text"}},
        "tools": echo.get("tools", []),
        "store": True,
    }


def ended_resource(
    resource: Mapping[str, Any], status: str, at: int, output: list[Any], usage: Usage | None, error: ErrorEvent | None
) -> dict[str, Any]:
    return {
        **resource,
        "status": status,
        "completed_at": at // 1000 if status == "completed" else None,
        "output": output,
        "usage": _usage_object(usage or Usage()),
        "error": {"code": error.code, "message": error.error} if error else None,
        "incomplete_details": {"reason": reason} if (reason := _INCOMPLETE.get(status)) else None,
    }


def _usage_object(usage: Usage) -> dict[str, Any]:
    """Return the token counts. The protocol has no value for an unknown count, so that is 0."""
    prompt, answer = usage.input_tokens or 0, usage.output_tokens or 0
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": usage.cached_input_tokens or 0, "cache_write_tokens": 0},
        "output_tokens": answer,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
        "total_tokens": prompt + answer,
    }


# Items


class TextItem(Struct, kw_only=True):
    """An item that grows: a message, or the model's reasoning. `start` is its offset in the answer."""

    id: str
    index: int
    is_reasoning: bool = False
    start: int = 0
    status: str = "in_progress"
    pieces: list[str] = field(default_factory=list[str])
    annotations: list[Item] = field(default_factory=list[Item])

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def part(self) -> Item:
        if self.is_reasoning:
            return {"type": "summary_text", "text": self.text}
        return {"type": "output_text", "text": self.text, "annotations": list(self.annotations), "logprobs": []}

    @property
    def item(self) -> Item:
        parts = [self.part] if self.pieces else []
        if self.is_reasoning:
            return {"id": self.id, "type": "reasoning", "summary": parts}
        return {"id": self.id, "type": "message", "role": "assistant", "status": self.status, "content": parts}

    def annotation(self, citation: CitationEvent) -> Item:
        """Return an annotation with offsets in this message; without offsets it is at the end of the text."""
        end = sum(map(len, self.pieces))
        start = end if citation.answer_start is None else max(citation.answer_start - self.start, 0)
        end = max(end if citation.answer_end is None else citation.answer_end - self.start, start)
        if citation.url:
            title = citation.title or citation.url
            return {
                "type": "url_citation",
                "url": citation.url,
                "title": title,
                "start_index": start,
                "end_index": end,
            }
        filename = citation.title or citation.document_id
        return {"type": "file_citation", "file_id": citation.document_id, "filename": filename, "index": end}


def call_item(item_id: str, call_id: str, call: ToolCallEvent) -> Item:
    return {
        "id": item_id,
        "type": "function_call",
        "call_id": call_id,
        "name": call.tool,
        "arguments": _arguments(call.args),
        "status": "completed",
    }


def result_item(item_id: str, call_id: str, result: ToolResultEvent) -> Item:
    return {
        "id": item_id,
        "type": "function_call_output",
        "call_id": call_id,
        "output": text_or_json(result.result),
        "status": "completed" if result.success else "incomplete",
    }


def server_call_item(item_id: str, agent: str, args: dict[str, Any], result: ToolResultEvent) -> Item:
    """Return a call that the server has run, in a form that a client with functions of its own does not run again."""
    output = text_or_json(result.result)
    return {
        "id": item_id,
        "type": "mcp_call",
        "server_label": agent,
        "name": result.tool,
        "arguments": _arguments(args),
        "output": output if result.success else None,
        "error": None if result.success else _execution_error(output),
        "status": "completed" if result.success else "failed",
    }


def _execution_error(text: str) -> Item:
    return {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": text}]}


def output_item(turn_id: str, result: ToolResultEvent) -> Item:
    """Return the result of a client's function as the client sent it."""
    item = result_item(f"fco_{turn_id}_{result.call_id}", waiting_call_id(turn_id, result.call_id), result)
    return {**item, "status": "completed"}


def echoed_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a request that its response repeats, from the options of its turn."""
    echoed = {name: value for name, value in options.items() if name in ECHOED}
    if tools := client_tools(options):
        echoed["tools"] = [{"type": "function", **msgspec.to_builtins(tool), "strict": False} for tool in tools]
    # The protocol has no field of this name, so the response does not repeat it.
    if options.get(SERVER_CALLS) == "mcp_call" or "tools" in echoed:
        echoed[SERVER_CALLS] = "mcp_call"
    if isinstance(choice := echoed.get("tool_choice"), dict):
        echoed["tool_choice"] = {"type": "function", **choice}
    if answer_format := options.get("response_format"):
        echoed["format"] = {"type": answer_format["type"], **answer_format.get("json_schema", {})}
    return echoed


def request_item(request: ApprovalRequestEvent, agent: str) -> Item:
    return {
        "id": _APPROVAL_PREFIX + request.call_id,
        "type": "mcp_approval_request",
        "server_label": agent,
        "name": request.tool,
        "arguments": _arguments(request.args),
    }


def call_of_request(approval_request_id: str) -> str | None:
    """Return the call id in the id of an approval request; None if it is no such id."""
    prefix, _, call_id = approval_request_id.partition(_APPROVAL_PREFIX)
    return call_id if call_id and not prefix else None


def decision_item(turn_id: str, decision: ApprovalResponseEvent) -> Item:
    return {
        "id": f"mcpa_{turn_id}_{decision.call_id}",
        "type": "mcp_approval_response",
        "approval_request_id": _APPROVAL_PREFIX + decision.call_id,
        "approve": decision.approved,
        "reason": decision.reason,
    }


def input_items(record: TurnRecord) -> list[Item]:
    """Return the input items of a turn, oldest first."""
    history = msgspec.convert(record.options.get("history") or [], list[Message])
    items = [item for message in [*history, Message("user", record.message)] for item in _message_items(message)]
    return [{"id": f"in_{record.id}_{number}", **item} for number, item in enumerate(items, 1)]


def _message_items(message: Message) -> Iterator[Item]:
    if message.role == "tool":
        yield {
            "type": "function_call_output",
            "call_id": message.call_id,
            "output": message.content,
            "status": "completed",
        }
        return
    if message.content:
        kind = "input_text" if message.role == "user" else "output_text"
        part = {"type": kind, "text": message.content}
        yield {"type": "message", "role": message.role, "status": "completed", "content": [part]}
    for call in message.tool_calls:
        yield {
            "type": "function_call",
            "call_id": call.call_id,
            "name": call.tool,
            "arguments": _arguments(call.args),
            "status": "completed",
        }


def _arguments(args: dict[str, Any]) -> str:
    return msgspec.json.encode(args).decode()


# Output


class Output:
    """The output of one response and the frames about it.

    At most one item grows at a time; any other is complete when it is added.
    """

    def __init__(self) -> None:
        self._items: list[Item | TextItem] = []
        self._open: TextItem | None = None
        self._cited: list[CitationEvent] = []
        self._pending: list[CitationEvent] = []
        self._frames: list[bytes] = []
        self._delta_ids = b""
        self.number = 0
        """The number of the next frame."""

    @property
    def items(self) -> list[Item]:
        return [item.item if isinstance(item, TextItem) else item for item in self._items]

    def take_frames(self) -> bytes:
        frames, self._frames = self._frames, []
        return b"".join(frames)

    def emit(self, kind: str, **fields: Any) -> None:
        self.emit_raw(numbered_frame(kind, self.number, fields))
        self.number += 1

    def emit_raw(self, frame: bytes) -> None:
        self._frames.append(frame)

    # Complete items

    def add(self, item: Item) -> None:
        index = self._append(item)
        self.emit("response.output_item.added", output_index=index, item=item)
        self.emit("response.output_item.done", output_index=index, item=item)

    def add_call(self, item: Item) -> None:
        index, arguments = self._append(item), item["arguments"]
        ids = {"item_id": item["id"], "output_index": index}
        started = {**item, "arguments": "", "status": "in_progress"}
        self.emit("response.output_item.added", output_index=index, item=started)
        self.emit("response.function_call_arguments.delta", **ids, delta=arguments)
        self.emit("response.function_call_arguments.done", **ids, name=item["name"], arguments=arguments)
        self.emit("response.output_item.done", output_index=index, item=item)

    def _append(self, item: Item) -> int:
        self.close()
        self._items.append(item)
        return len(self._items) - 1

    # Growing items

    def add_text(self, text: str, encoded: bytes, item_id: str, start: int) -> None:
        """Add a piece of the answer, at the offset `start`; the id is for a message that begins with it.

        Nearly every event is such a piece, so its frame is built from the text as the log has it `encoded`.
        """
        item = self._open
        if item is None or item.is_reasoning:
            item = self._start(TextItem(id=item_id, index=len(self._items), start=start))
            self._delta_ids = ascii_json({"item_id": item_id, "output_index": item.index, "content_index": 0})[1:-1]
        item.pieces.append(text)
        self._frames.append(_DELTA % (self.number, self._delta_ids, encoded))
        self.number += 1

    def add_reasoning(self, text: str, item_id: str) -> None:
        item = self._open
        if item is None or not item.is_reasoning:
            item = self._start(TextItem(id=item_id, index=len(self._items), is_reasoning=True))
        item.pieces.append(text)
        self._emit_for(item, "response.reasoning_summary_text.delta", delta=text)

    def _start(self, item: TextItem) -> TextItem:
        self.close()
        item.index = len(self._items)
        self._items.append(item)
        self._open = item
        self.emit("response.output_item.added", output_index=item.index, item=item.item)
        kind = "reasoning_summary_part" if item.is_reasoning else "content_part"
        self._emit_for(item, f"response.{kind}.added", part=item.part)
        if not item.is_reasoning:
            self.place_pending()
        return item

    def close(self, status: str = "completed") -> None:
        """Complete the item that grows, if there is one."""
        item, self._open = self._open, None
        if item is None:
            return
        item.status = status
        if item.is_reasoning:
            self._emit_for(item, "response.reasoning_summary_text.done", text=item.text)
            self._emit_for(item, "response.reasoning_summary_part.done", part=item.part)
        else:
            self._emit_for(item, "response.output_text.done", text=item.text, logprobs=[])
            self._emit_for(item, "response.content_part.done", part=item.part)
        self.emit("response.output_item.done", output_index=item.index, item=item.item)

    def _emit_for(self, item: TextItem, kind: str, **fields: Any) -> None:
        part_index = "summary_index" if item.is_reasoning else "content_index"
        self.emit(kind, item_id=item.id, output_index=item.index, **{part_index: 0}, **fields)

    # Citations

    def cite(self, citation: CitationEvent, answer_length: int) -> None:
        """Annotate the message that is cited in, or the next one if that has not begun. Ignore a repetition."""
        if citation in self._cited:
            return
        self._cited.append(citation)
        start, messages = citation.answer_start, self._messages
        if start is not None and start < answer_length:
            messages = [message for message in messages if message.start <= start]
        elif self._open is None or self._open.is_reasoning:
            messages = []
        if messages:
            self._annotate(messages[-1], citation)
        else:
            self._pending.append(citation)

    def ignore_citation(self, citation: CitationEvent) -> None:
        """Skip this citation when the `response` event repeats it: it belongs to another response."""
        self._cited.append(citation)

    def place_pending(self) -> None:
        """Annotate the last message with the citations outside of all messages. A closed message changes silently."""
        messages = self._messages
        pending, self._pending = self._pending, []
        for citation in pending if messages else ():
            self._annotate(messages[-1], citation)

    @property
    def _messages(self) -> list[TextItem]:
        return [item for item in self._items if isinstance(item, TextItem) and not item.is_reasoning]

    def _annotate(self, message: TextItem, citation: CitationEvent) -> None:
        annotation = message.annotation(citation)
        message.annotations.append(annotation)
        if message is self._open:
            number = len(message.annotations) - 1
            kind = "response.output_text.annotation.added"
            self._emit_for(message, kind, annotation_index=number, annotation=annotation)


def numbered_frame(kind: str, number: int, fields: dict[str, Any]) -> bytes:
    data = ascii_json({"type": kind, "sequence_number": number, **fields})
    return b"event: %b\ndata: %b\n\n" % (kind.encode("ascii"), data)
