"""The Responses API: how a conversation is put to it, and what its events say.

Nothing is stored at the server: every request carries the whole conversation, because the log is the only truth.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from turnwire.core.errors import ModelError
from turnwire.core.events import ReasoningEvent, UsageEvent
from turnwire.core.ids import new_id
from turnwire.core.turns import Message
from turnwire.models import tool_schema
from turnwire.models.contract import Piece, ToolSpec, ToolWish
from turnwire.models.errors import reported, unfinished


def responses_request(
    model: str,
    instructions: str,
    messages: Sequence[Message],
    tools: Sequence[ToolSpec],
    schema: dict[str, Any] | None,
) -> dict[str, Any]:
    request: dict[str, Any] = {
        "model": model,
        "input": [item for message in messages for item in _items(message)],
        "stream": True,
        "store": False,
    }
    if instructions:
        request["instructions"] = tool_schema.text(instructions)
    if tools:
        # Here, unlike in Chat Completions, a tool is strict unless it says that it is not.
        request["tools"] = [{"type": "function", **tool_schema.function(tool), "strict": False} for tool in tools]
    if schema is not None:
        request["text"] = {"format": {"type": "json_schema", **tool_schema.json_schema(schema)}}
    return request


def _items(message: Message) -> Iterator[dict[str, Any]]:
    content = tool_schema.text(message.content)
    if message.role == "tool":
        yield {"type": "function_call_output", "call_id": message.call_id or "", "output": content}
        return
    if content or not message.tool_calls:
        yield {"type": "message", "role": message.role, "content": content}
    for call in message.tool_calls:
        wish = {"call_id": call.call_id, "name": call.tool, "arguments": tool_schema.arguments(call)}
        yield {"type": "function_call", **wish}


class _DeltaEvent(Struct):
    delta: str = ""


class _Item(Struct):
    type: str = ""
    call_id: str | None = None
    name: str = ""
    arguments: str = ""


class _ItemEvent(Struct):
    item: _Item


class _ResponseInputDetails(Struct):
    cached_tokens: int | None = None


class _ResponseOutputDetails(Struct):
    reasoning_tokens: int | None = None


class _ResponseUsage(Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _ResponseInputDetails | None = None
    output_tokens_details: _ResponseOutputDetails | None = None


class _Trouble(Struct):
    code: str | None = None
    type: str | None = None
    message: str | None = None


class _Incomplete(Struct):
    reason: str | None = None


class _Response(Struct):
    usage: _ResponseUsage | None = None
    error: _Trouble | None = None
    incomplete_details: _Incomplete | None = None


class _ResponseEvent(Struct):
    response: _Response


class _Kind(Struct):
    type: str = ""


class ResponsesReader:
    """Reads the events of one answer. `finished` when the model has said that there is no more to come."""

    def __init__(self, model: str) -> None:
        self.finished = False
        self._model = model
        self._wishes: list[ToolWish] = []
        self._usage: _ResponseUsage | None = None
        self._reason: str | None = None

    def read(self, plain: object) -> Iterator[Piece]:
        """Raises ModelError when the server gives up, and msgspec.ValidationError for what is not an event."""
        match msgspec.convert(plain, _Kind).type:
            case "response.output_text.delta" | "response.refusal.delta":
                if said := msgspec.convert(plain, _DeltaEvent).delta:
                    yield said
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                if thought := msgspec.convert(plain, _DeltaEvent).delta:
                    yield ReasoningEvent(content=thought)
            case "response.output_item.done":
                item = msgspec.convert(plain, _ItemEvent).item
                if item.type == "function_call":
                    self._wishes.append(ToolWish(item.call_id or f"call_{new_id()}", item.name, item.arguments))
            case "response.completed" | "response.incomplete" as kind:
                response = msgspec.convert(plain, _ResponseEvent).response
                self.finished = kind == "response.completed"
                self._usage = response.usage
                self._reason = response.incomplete_details and response.incomplete_details.reason
            case "response.failed":
                raise _given_up(msgspec.convert(plain, _ResponseEvent).response.error or _Trouble())
            case "error":
                raise _given_up(msgspec.convert(plain, _Trouble))
            case _:
                pass  # There are dozens of events, and most repeat what others have said.

    def end(self) -> Iterator[Piece]:
        """What can only be told when all events are read. Raises ModelError when the answer is not whole."""
        if self.finished:
            yield from self._wishes
        if self._usage is not None:
            yield _usage_event(self._model, self._usage)
        if not self.finished:
            raise unfinished(self._reason)


def _given_up(trouble: _Trouble) -> ModelError:
    return reported(trouble.code, trouble.type, trouble.message or "")


def _usage_event(model: str, usage: _ResponseUsage) -> UsageEvent:
    given, written = usage.input_tokens_details, usage.output_tokens_details
    return UsageEvent(
        model=model,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_input_tokens=given.cached_tokens if given else None,
        reasoning_tokens=written.reasoning_tokens if written else None,
    )
