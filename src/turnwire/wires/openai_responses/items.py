"""The items of a response's output: pieces of the answer, thoughts, tool calls and their results, requests."""

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct, field

from turnwire.core.events import (
    ApprovalRequestEvent,
    ApprovalResponseEvent,
    CitationEvent,
    ToolCallEvent,
    ToolResultEvent,
)
from turnwire.core.turns import Message, TurnRecord

Item = dict[str, Any]

_APPROVAL_PREFIX = "mcpr_"


class Speech(Struct, kw_only=True):
    """A message or a thought: an item that grows. `start` is how much of the answer stood before it."""

    id: str
    index: int
    is_thought: bool = False
    start: int = 0
    status: str = "in_progress"
    pieces: list[str] = field(default_factory=list[str])
    annotations: list[Item] = field(default_factory=list[Item])

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def part(self) -> Item:
        if self.is_thought:
            return {"type": "summary_text", "text": self.text}
        return {"type": "output_text", "text": self.text, "annotations": list(self.annotations), "logprobs": []}

    @property
    def item(self) -> Item:
        parts = [self.part] if self.pieces else []
        if self.is_thought:
            return {"id": self.id, "type": "reasoning", "summary": parts}
        return {"id": self.id, "type": "message", "role": "assistant", "status": self.status, "content": parts}

    def annotation(self, citation: CitationEvent) -> Item:
        """Its offsets count from the start of this message; a citation that has none stands where the text ends."""
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
        "arguments": arguments_text(call.args),
        "status": "completed",
    }


def result_item(item_id: str, call_id: str, result: ToolResultEvent) -> Item:
    told = result.result
    return {
        "id": item_id,
        "type": "function_call_output",
        "call_id": call_id,
        "output": told if isinstance(told, str) else msgspec.json.encode(told).decode(),
        "status": "completed" if result.success else "incomplete",
    }


def request_item(asked: ApprovalRequestEvent, agent: str) -> Item:
    return {
        "id": _APPROVAL_PREFIX + asked.call_id,
        "type": "mcp_approval_request",
        "server_label": agent,
        "name": asked.tool,
        "arguments": arguments_text(asked.args),
    }


def call_of_request(approval_request_id: str) -> str | None:
    """The call that a request for approval was about; None if this is no id of such a request."""
    prefix, _, call_id = approval_request_id.partition(_APPROVAL_PREFIX)
    return call_id if call_id and not prefix else None


def arguments_text(args: dict[str, Any]) -> str:
    return msgspec.json.encode(args).decode()


# What was sent


def input_items(record: TurnRecord) -> list[Item]:
    """The items that a turn was asked with, oldest first."""
    told = msgspec.convert(record.options.get("history") or [], list[Message])
    items = [item for message in [*told, Message("user", record.message)] for item in _sent(message)]
    return [{"id": f"in_{record.id}_{number}", **item} for number, item in enumerate(items, 1)]


def decision_item(turn_id: str, decision: ApprovalResponseEvent) -> Item:
    return {
        "id": f"mcpa_{turn_id}_{decision.call_id}",
        "type": "mcp_approval_response",
        "approval_request_id": _APPROVAL_PREFIX + decision.call_id,
        "approve": decision.approved,
        "reason": decision.reason,
    }


def _sent(message: Message) -> Iterator[Item]:
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
            "arguments": arguments_text(call.args),
            "status": "completed",
        }
