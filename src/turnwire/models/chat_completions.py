"""The Chat Completions API: how a conversation is put to it, and what its chunks say.

Many servers speak it, each a little differently. What is read here is what their streams have in common;
a field that is missing is never an error, one of the wrong kind is.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from turnwire.core.events import ReasoningEvent, UsageEvent
from turnwire.core.ids import new_id
from turnwire.core.turns import Message
from turnwire.models import tool_schema
from turnwire.models.contract import Piece, ToolSpec, ToolWish
from turnwire.models.errors import unfinished

# The last two are how Hugging Face's server says "stop".
_WHOLE = frozenset({"stop", "tool_calls", "function_call", "eos_token", "stop_sequence"})


def chat_request(
    model: str,
    instructions: str,
    messages: Sequence[Message],
    tools: Sequence[ToolSpec],
    schema: dict[str, Any] | None,
) -> dict[str, Any]:
    system = [{"role": "system", "content": tool_schema.text(instructions)}] if instructions else []
    request: dict[str, Any] = {
        "model": model,
        "messages": [*system, *map(_message, messages)],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if tools:
        request["tools"] = [{"type": "function", "function": tool_schema.function(tool)} for tool in tools]
    if schema is not None:
        request["response_format"] = {"type": "json_schema", "json_schema": tool_schema.json_schema(schema)}
    return request


def _message(message: Message) -> dict[str, Any]:
    content = tool_schema.text(message.content)
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": message.call_id or "", "content": content}
    if not message.tool_calls:
        return {"role": message.role, "content": content}
    calls = [
        {
            "id": call.call_id,
            "type": "function",
            "function": {"name": call.tool, "arguments": tool_schema.arguments(call)},
        }
        for call in message.tool_calls
    ]
    # Some servers refuse an empty text beside tool calls; all of them take null.
    return {"role": message.role, "content": content or None, "tool_calls": calls}


class _Function(Struct):
    name: str | None = None
    arguments: str | None = None


class _CallPiece(Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Delta(Struct):
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_CallPiece] | None = None


class _Choice(Struct):
    delta: _Delta | None = None
    finish_reason: str | None = None


class _ChatInputDetails(Struct):
    cached_tokens: int | None = None


class _ChatOutputDetails(Struct):
    reasoning_tokens: int | None = None


class _ChatUsage(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _ChatInputDetails | None = None
    completion_tokens_details: _ChatOutputDetails | None = None


class _Chunk(Struct):
    choices: list[_Choice] | None = None
    usage: _ChatUsage | None = None


class _OpenCall(Struct):
    """A tool call of which some pieces have come."""

    index: int | None
    id: str = ""
    tool: str = ""
    arguments: str = ""


class ChatReader:
    """Reads the chunks of one answer. `finished` when the model has said that there is no more to come."""

    def __init__(self, model: str) -> None:
        self.finished = False
        self._model = model
        self._calls: list[_OpenCall] = []
        self._usage: _ChatUsage | None = None
        self._reason: str | None = None

    def read(self, plain: object) -> Iterator[Piece]:
        """Raises msgspec.ValidationError for what is not a chunk."""
        chunk = msgspec.convert(plain, _Chunk, strict=False)
        # Some servers count along: the last count is the whole one.
        self._usage = chunk.usage or self._usage
        for choice in chunk.choices or ():
            if choice.delta is not None:
                yield from self._read_delta(choice.delta)
            if choice.finish_reason:
                self._reason = choice.finish_reason
                self.finished = choice.finish_reason in _WHOLE

    def end(self) -> Iterator[Piece]:
        """What can only be told when all chunks are read. Raises ModelError when the answer is not whole."""
        if self.finished:
            yield from (ToolWish(call.id or f"call_{new_id()}", call.tool, call.arguments) for call in self._calls)
        if self._usage is not None:
            yield _usage_event(self._model, self._usage)
        if not self.finished:
            raise unfinished(self._reason)

    def _read_delta(self, delta: _Delta) -> Iterator[Piece]:
        if thought := delta.reasoning_content or delta.reasoning:
            yield ReasoningEvent(content=thought)
        if said := delta.content or delta.refusal:
            yield said
        for piece in delta.tool_calls or ():
            self._add(piece)

    def _add(self, piece: _CallPiece) -> None:
        function = piece.function or _Function()
        call = self._open_call(piece, function)
        call.id = call.id or piece.id or ""
        call.tool = call.tool or function.name or ""
        call.arguments += function.arguments or ""

    def _open_call(self, piece: _CallPiece, function: _Function) -> _OpenCall:
        """The call that a piece belongs to: by its index, and where all calls have the same one, by its id."""
        for call in reversed(self._calls):
            if piece.index is not None and call.index != piece.index:
                continue
            is_another = piece.id and call.id and piece.id != call.id
            if not is_another and not (piece.index is None and function.name):
                return call
            break
        self._calls.append(_OpenCall(piece.index))
        return self._calls[-1]


def _usage_event(model: str, usage: _ChatUsage) -> UsageEvent:
    given, written = usage.prompt_tokens_details, usage.completion_tokens_details
    return UsageEvent(
        model=model,
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        cached_input_tokens=given.cached_tokens if given else None,
        reasoning_tokens=written.reasoning_tokens if written else None,
    )
