"""The Chat Completions API: its requests, and the reader of its chunks.

Many servers implement it, each a little differently. The reader uses what their streams have in common: a missing field
is never an error, a field of the wrong type is.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from turnwire.core.log.codec import clean_text
from turnwire.core.log.events import ReasoningEvent
from turnwire.core.log.files import LoadedFile, LoadedFiles
from turnwire.core.log.model_options import ModelOptions, NamedTool
from turnwire.core.log.turns import Message
from turnwire.models.contract import Piece, ToolCallRequest, ToolSpec
from turnwire.models.openai_shared import (
    AnswerReader,
    TokenCounts,
    answer_schema,
    arguments_json,
    format_schema,
    function_json,
    sampling_options,
)

# The last two are what Hugging Face's server sends for "stop".
_COMPLETE = frozenset({"stop", "tool_calls", "function_call", "eos_token", "stop_sequence"})


def chat_request(
    model: str,
    instructions: str,
    messages: Sequence[Message],
    tools: Sequence[ToolSpec],
    schema: dict[str, Any] | None,
    files: LoadedFiles,
) -> dict[str, Any]:
    system = [{"role": "system", "content": clean_text(instructions)}] if instructions else []
    request: dict[str, Any] = {
        "model": model,
        "messages": [*system, *(_message(message, files) for message in messages)],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if tools:
        request["tools"] = [{"type": "function", "function": function_json(tool)} for tool in tools]
    if schema is not None:
        request["response_format"] = {"type": "json_schema", "json_schema": answer_schema(schema)}
    return request


def chat_options(options: ModelOptions, *, is_openai: bool) -> dict[str, Any]:
    """Return the fields of a request for a client's options. Only OpenAI's server has another name for `max_tokens`."""
    choice, form = options.tool_choice, options.response_format
    if isinstance(choice, NamedTool):
        choice = {"type": "function", "function": {"name": choice.name}}
    limit = "max_completion_tokens" if is_openai else "max_tokens"
    fields = sampling_options(options, max_tokens=limit)
    if form is not None:
        schema = None if form.schema is None else {"type": "json_schema", "json_schema": format_schema(form)}
        fields["response_format"] = schema or {"type": "json_object"}
    return fields if choice is None else {**fields, "tool_choice": choice}


def _message(message: Message, files: LoadedFiles) -> dict[str, Any]:
    content = clean_text(message.content)
    if message.attachments:
        return {"role": message.role, "content": [_part(part) for part in files.parts(message)]}
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": message.call_id or "", "content": content}
    if not message.tool_calls:
        return {"role": message.role, "content": content}
    calls = [
        {
            "id": call.call_id,
            "type": "function",
            "function": {"name": call.tool, "arguments": arguments_json(call)},
        }
        for call in message.tool_calls
    ]
    # Some servers refuse an empty text beside tool calls; all accept null.
    return {"role": message.role, "content": content or None, "tool_calls": calls}


def _part(part: str | LoadedFile) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": clean_text(part)}
    if part.is_image:
        return {"type": "image_url", "image_url": {"url": part.url}}
    return {"type": "file", "file": {"filename": part.name, "file_data": part.url}}


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


class _Chunk(Struct):
    choices: list[_Choice] | None = None
    usage: TokenCounts | None = None


class _OpenCall(Struct):
    """A tool call that is still being received."""

    index: int | None
    id: str = ""
    tool: str = ""
    arguments: str = ""


class ChatReader(AnswerReader):
    """Reader of the chunks of one answer."""

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self._open_calls: list[_OpenCall] = []

    def read(self, plain: object) -> Iterator[Piece]:
        """Yield the pieces of a chunk. Raise msgspec.ValidationError if it is malformed."""
        chunk = msgspec.convert(plain, _Chunk, strict=False)
        # Some servers send a running count, so the last one is the total.
        self.usage = chunk.usage or self.usage
        for choice in chunk.choices or ():
            if choice.delta is not None:
                yield from self._read_delta(choice.delta)
            if choice.finish_reason:
                self.reason = choice.finish_reason
                self.finished = choice.finish_reason in _COMPLETE

    def calls(self) -> list[ToolCallRequest]:
        return [self.call(each.id, each.tool, each.arguments) for each in self._open_calls]

    def _read_delta(self, delta: _Delta) -> Iterator[Piece]:
        if reasoning := delta.reasoning_content or delta.reasoning:
            yield ReasoningEvent(content=reasoning)
        if text := delta.content or delta.refusal:
            yield text
        for piece in delta.tool_calls or ():
            self._add_call_piece(piece)

    def _add_call_piece(self, piece: _CallPiece) -> None:
        function = piece.function or _Function()
        call = self._open_call(piece, function)
        call.id = call.id or piece.id or ""
        call.tool = call.tool or function.name or ""
        call.arguments += function.arguments or ""

    def _open_call(self, piece: _CallPiece, function: _Function) -> _OpenCall:
        """Return the call of a piece: by its index, or by its id where all calls have the same index."""
        for call in reversed(self._open_calls):
            if piece.index is not None and call.index != piece.index:
                continue
            is_another = piece.id and call.id and piece.id != call.id
            if not is_another and not (piece.index is None and function.name):
                return call
            break
        self._open_calls.append(_OpenCall(piece.index))
        return self._open_calls[-1]
