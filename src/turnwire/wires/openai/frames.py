"""The output of one response while it is told: its items, and the numbered frames about them."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct, field

from turnwire.core.codec import ascii_json
from turnwire.core.events import (
    ApprovalRequestEvent,
    ApprovalResponseEvent,
    CitationEvent,
    ErrorEvent,
    ToolCallEvent,
    ToolResultEvent,
    Usage,
)
from turnwire.core.turns import Message, TurnRecord

# The items of a response's output: pieces of the answer, thoughts, tool calls and their results, requests.


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


_DELTA = (
    b"event: response.output_text.delta\n"
    b'data: {"type":"response.output_text.delta","sequence_number":%d,%b,"delta":%b,"logprobs":[]}\n\n'
)


class Output:
    """At most one item grows at a time; any other is whole when it is told."""

    def __init__(self) -> None:
        self._items: list[Item | Speech] = []
        self._open: Speech | None = None
        self._cited: list[CitationEvent] = []
        self._unplaced: list[CitationEvent] = []
        self._frames: list[bytes] = []
        self._delta_place = b""
        self.number = 0
        """Of the next frame."""

    @property
    def items(self) -> list[Item]:
        return [one.item if isinstance(one, Speech) else one for one in self._items]

    def take_frames(self) -> bytes:
        frames, self._frames = self._frames, []
        return b"".join(frames)

    def tell(self, kind: str, **fields: Any) -> None:
        self.tell_raw(numbered_frame(kind, self.number, fields))
        self.number += 1

    def tell_raw(self, frame: bytes) -> None:
        self._frames.append(frame)

    # Items that are whole

    def add(self, item: Item) -> None:
        index = self._append(item)
        self.tell("response.output_item.added", output_index=index, item=item)
        self.tell("response.output_item.done", output_index=index, item=item)

    def add_call(self, item: Item) -> None:
        index, arguments = self._append(item), item["arguments"]
        place = {"item_id": item["id"], "output_index": index}
        begun = {**item, "arguments": "", "status": "in_progress"}
        self.tell("response.output_item.added", output_index=index, item=begun)
        self.tell("response.function_call_arguments.delta", **place, delta=arguments)
        self.tell("response.function_call_arguments.done", **place, name=item["name"], arguments=arguments)
        self.tell("response.output_item.done", output_index=index, item=item)

    def _append(self, item: Item) -> int:
        self.close()
        self._items.append(item)
        return len(self._items) - 1

    # Items that grow

    def say(self, text: str, encoded: bytes, item_id: str, start: int) -> None:
        """More of the answer, of which so much stood before this; the id is for a message that begins here.

        Nearly every event comes through here, so its frame is put together from the text as the log has it `encoded`.
        """
        speech = self._open
        if speech is None or speech.is_thought:
            speech = self._begin(Speech(id=item_id, index=len(self._items), start=start))
            self._delta_place = ascii_json({"item_id": item_id, "output_index": speech.index, "content_index": 0})[1:-1]
        speech.pieces.append(text)
        self._frames.append(_DELTA % (self.number, self._delta_place, encoded))
        self.number += 1

    def think(self, text: str, item_id: str) -> None:
        speech = self._open
        if speech is None or not speech.is_thought:
            speech = self._begin(Speech(id=item_id, index=len(self._items), is_thought=True))
        speech.pieces.append(text)
        self._tell_of(speech, "response.reasoning_summary_text.delta", delta=text)

    def _begin(self, speech: Speech) -> Speech:
        self.close()
        speech.index = self._append(speech.item)
        self._items[speech.index] = self._open = speech
        self.tell("response.output_item.added", output_index=speech.index, item=speech.item)
        kind = "reasoning_summary_part" if speech.is_thought else "content_part"
        self._tell_of(speech, f"response.{kind}.added", part=speech.part)
        if not speech.is_thought:
            self.place_rest()
        return speech

    def close(self, status: str = "completed") -> None:
        """What grew is whole now."""
        speech, self._open = self._open, None
        if speech is None:
            return
        speech.status = status
        if speech.is_thought:
            self._tell_of(speech, "response.reasoning_summary_text.done", text=speech.text)
            self._tell_of(speech, "response.reasoning_summary_part.done", part=speech.part)
        else:
            self._tell_of(speech, "response.output_text.done", text=speech.text, logprobs=[])
            self._tell_of(speech, "response.content_part.done", part=speech.part)
        self.tell("response.output_item.done", output_index=speech.index, item=speech.item)

    def _tell_of(self, speech: Speech, kind: str, **fields: Any) -> None:
        place = "summary_index" if speech.is_thought else "content_index"
        self.tell(kind, item_id=speech.id, output_index=speech.index, **{place: 0}, **fields)

    # Citations

    def cite(self, citation: CitationEvent, answer_length: int) -> None:
        """Annotates the message that it is about; where that has not begun yet, the next one. Once is enough."""
        if citation in self._cited:
            return
        self._cited.append(citation)
        start, messages = citation.answer_start, self._messages
        if start is not None and start < answer_length:
            messages = [message for message in messages if message.start <= start]
        elif self._open is None or self._open.is_thought:
            messages = []
        if messages:
            self._annotate(messages[-1], citation)
        else:
            self._unplaced.append(citation)

    def pass_over(self, citation: CitationEvent) -> None:
        """It is of another response; the whole answer's citations will have it again."""
        self._cited.append(citation)

    def place_rest(self) -> None:
        """What was cited outside of all messages is of the last one. If that is told already, only its item knows."""
        messages = self._messages
        unplaced, self._unplaced = self._unplaced, []
        for citation in unplaced if messages else ():
            self._annotate(messages[-1], citation)

    @property
    def _messages(self) -> list[Speech]:
        return [one for one in self._items if isinstance(one, Speech) and not one.is_thought]

    def _annotate(self, message: Speech, citation: CitationEvent) -> None:
        annotation = message.annotation(citation)
        message.annotations.append(annotation)
        if message is self._open:
            number = len(message.annotations) - 1
            kind = "response.output_text.annotation.added"
            self._tell_of(message, kind, annotation_index=number, annotation=annotation)


def numbered_frame(kind: str, number: int, fields: dict[str, Any]) -> bytes:
    data = ascii_json({"type": kind, "sequence_number": number, **fields})
    return b"event: %b\ndata: %b\n\n" % (kind.encode("ascii"), data)


# The response object: all the fields that the Open Responses specification requires, null where there is nothing.


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
"""The fields of a request that its response repeats, and what they are where the request does not say."""

_RESPONSE_ID = re.compile(r"resp_([A-Za-z0-9.:@-]{1,128}?)(?:_([2-9]|[1-9][0-9]{1,3}))?")


def response_id(turn_id: str, segment: int = 1) -> str:
    return f"resp_{turn_id}" if segment == 1 else f"resp_{turn_id}_{segment}"


def parse_response_id(text: str) -> tuple[str, int] | None:
    """The turn and the segment that an id names; None for what is no id of a response."""
    found = _RESPONSE_ID.fullmatch(text)
    return None if found is None else (found[1], int(found[2] or 1))


def new_resource(turn_id: str, agent: str, at: int, echo: Mapping[str, Any], segment: int) -> dict[str, Any]:
    """A response that has just begun, at this time in milliseconds."""
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
        **echo,
        **({"previous_response_id": response_id(turn_id, segment - 1)} if segment > 1 else {}),
        "text": {"format": {"type": "text"}},
        "tools": [],
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
        "usage": usage and usage_object(usage),
        "error": {"code": error.code, "message": error.error} if error else None,
        "incomplete_details": {"reason": "cancelled"} if status == "cancelled" else None,
    }


def usage_object(usage: Usage) -> dict[str, Any]:
    """The protocol has no word for «not known» here, so that is 0."""
    taken, given = usage.input_tokens or 0, usage.output_tokens or 0
    return {
        "input_tokens": taken,
        "input_tokens_details": {"cached_tokens": usage.cached_input_tokens or 0, "cache_write_tokens": 0},
        "output_tokens": given,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
        "total_tokens": taken + given,
    }
