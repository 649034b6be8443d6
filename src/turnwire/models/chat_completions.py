"""The Chat Completions API: its requests, with the parts that the Responses API shares, and the reader of its chunks.

Many servers implement it, each a little differently. The reader uses what their streams have in common: a missing field
is never an error, a field of the wrong type is.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any, cast

import msgspec
from msgspec import Struct

from turnwire.core.ids import new_id
from turnwire.core.log.codec import clean_text
from turnwire.core.log.events import ReasoningEvent, UsageEvent
from turnwire.core.log.files import LoadedFile, LoadedFiles
from turnwire.core.log.turns import Message, ToolRequest
from turnwire.core.model_options import AnswerFormat, ModelOptions, NamedTool
from turnwire.models.contract import Piece, ToolCallRequest, ToolSpec
from turnwire.models.errors import unfinished

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
    fields = {**sampling_options(options), limit: options.max_tokens, "stop": list(options.stop) or None}
    if form is not None:
        schema = None if form.schema is None else {"type": "json_schema", "json_schema": format_schema(form)}
        fields["response_format"] = schema or {"type": "json_object"}
    return {name: value for name, value in {**fields, "tool_choice": choice}.items() if value is not None}


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


# What both APIs share. Texts are cleaned, because a lone surrogate would make the whole request unsendable.


def function_json(tool: ToolSpec) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "parameters": tool.parameters}


def arguments_json(call: ToolRequest) -> str:
    return clean_text(json.dumps(call.args, ensure_ascii=False))


def answer_schema(schema: dict[str, Any]) -> dict[str, Any]:
    # Servers guarantee a `strict` schema, but refuse one that is not closed.
    return {"name": "answer", "schema": schema, "strict": _is_closed(schema)}


def format_schema(form: AnswerFormat) -> dict[str, Any]:
    """Return the schema of an answer as the client sent it."""
    strict = {} if form.strict is None else {"strict": form.strict}
    return {"name": form.name, "schema": form.schema, **strict}


def sampling_options(options: ModelOptions) -> dict[str, Any]:
    return {"temperature": options.temperature, "top_p": options.top_p}


def _is_closed(schema: Any) -> bool:
    """Return True if every object allows only its own properties and requires all of them."""
    if isinstance(schema, list):
        return all(map(_is_closed, cast("list[Any]", schema)))
    if not isinstance(schema, dict):
        return True
    node = cast("dict[str, Any]", schema)
    if node.get("type") == "object" or "properties" in node:
        if node.get("additionalProperties") is not False:
            return False
        if set(node.get("required", ())) != set(node.get("properties", ())):
            return False
    return all(map(_is_closed, node.values()))


class InputDetails(Struct):
    cached_tokens: int | None = None


class OutputDetails(Struct):
    reasoning_tokens: int | None = None


def usage_event(
    model: str,
    input_tokens: int | None,
    output_tokens: int | None,
    input_details: InputDetails | None,
    output_details: OutputDetails | None,
) -> UsageEvent:
    return UsageEvent(
        model=model,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cached_input_tokens=input_details.cached_tokens if input_details else None,
        reasoning_tokens=output_details.reasoning_tokens if output_details else None,
    )


# The reader.


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


class _ChatUsage(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: InputDetails | None = None
    completion_tokens_details: OutputDetails | None = None


class _Chunk(Struct):
    choices: list[_Choice] | None = None
    usage: _ChatUsage | None = None


class _OpenCall(Struct):
    """A tool call that is still being received."""

    index: int | None
    id: str = ""
    tool: str = ""
    arguments: str = ""


class ChatReader:
    """Reader of the chunks of one answer. `finished` is True once the model has completed its answer."""

    def __init__(self, model: str) -> None:
        self.finished = False
        self._model = model
        self._calls: list[_OpenCall] = []
        self._usage: _ChatUsage | None = None
        self._reason: str | None = None

    def read(self, plain: object) -> Iterator[Piece]:
        """Yield the pieces of a chunk. Raise msgspec.ValidationError if it is malformed."""
        chunk = msgspec.convert(plain, _Chunk, strict=False)
        # Some servers send a running count, so the last one is the total.
        self._usage = chunk.usage or self._usage
        for choice in chunk.choices or ():
            if choice.delta is not None:
                yield from self._read_delta(choice.delta)
            if choice.finish_reason:
                self._reason = choice.finish_reason
                self.finished = choice.finish_reason in _COMPLETE

    def end(self) -> Iterator[Piece]:
        """Yield tool calls and usage after the last chunk. Raise ModelError if the answer is not complete."""
        if self.finished:
            yield from (
                ToolCallRequest(call.id or f"call_{new_id()}", call.tool, call.arguments) for call in self._calls
            )
        if self._usage is not None:
            usage = self._usage
            details = usage.prompt_tokens_details, usage.completion_tokens_details
            yield usage_event(self._model, usage.prompt_tokens, usage.completion_tokens, *details)
        if not self.finished:
            raise unfinished(self._reason)

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
        for call in reversed(self._calls):
            if piece.index is not None and call.index != piece.index:
                continue
            is_another = piece.id and call.id and piece.id != call.id
            if not is_another and not (piece.index is None and function.name):
                return call
            break
        self._calls.append(_OpenCall(piece.index))
        return self._calls[-1]
