"""The Responses API: its requests, and the reader of its events.

Nothing is stored at the server: every request carries the whole conversation, because the turn's log is authoritative.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from turnwire.core.errors import ModelError
from turnwire.core.log.codec import clean_text
from turnwire.core.log.events import ReasoningEvent
from turnwire.core.log.files import LoadedFile, LoadedFiles
from turnwire.core.log.model_options import ModelOptions, NamedTool
from turnwire.core.log.turns import Message
from turnwire.models.contract import Piece, ToolCallRequest, ToolSpec
from turnwire.models.errors import reported
from turnwire.models.openai_shared import (
    AnswerReader,
    TokenCounts,
    answer_schema,
    arguments_json,
    format_schema,
    function_json,
    sampling_options,
)


def responses_request(
    model: str,
    instructions: str,
    messages: Sequence[Message],
    tools: Sequence[ToolSpec],
    schema: dict[str, Any] | None,
    files: LoadedFiles,
) -> dict[str, Any]:
    request: dict[str, Any] = {
        "model": model,
        "input": [item for message in messages for item in _items(message, files)],
        "stream": True,
        "store": False,
    }
    if instructions:
        request["instructions"] = clean_text(instructions)
    if tools:
        # Unlike in Chat Completions, a tool is strict by default.
        request["tools"] = [{"type": "function", **function_json(tool), "strict": False} for tool in tools]
    if schema is not None:
        request["text"] = {"format": {"type": "json_schema", **answer_schema(schema)}}
    return request


def responses_options(options: ModelOptions) -> dict[str, Any]:
    """Return the fields of a request for a client's options. This API has no `stop`, so no agent takes it here."""
    choice, form = options.tool_choice, options.response_format
    if isinstance(choice, NamedTool):
        choice = {"type": "function", "name": choice.name}
    fields = sampling_options(options, max_tokens="max_output_tokens", stop=None)
    if form is not None:
        schema = None if form.schema is None else {"type": "json_schema", **format_schema(form)}
        fields["text"] = {"format": schema or {"type": "json_object"}}
    return fields if choice is None else {**fields, "tool_choice": choice}


def _items(message: Message, files: LoadedFiles) -> Iterator[dict[str, Any]]:
    content = clean_text(message.content)
    if message.attachments:
        parts = [input_part(part) for part in files.parts(message)]
        yield {"type": "message", "role": message.role, "content": parts}
        return
    if message.role == "tool":
        yield {"type": "function_call_output", "call_id": message.call_id or "", "output": content}
        return
    if content or not message.tool_calls:
        yield {"type": "message", "role": message.role, "content": content}
    for call in message.tool_calls:
        yield {
            "type": "function_call",
            "call_id": call.call_id,
            "name": call.tool,
            "arguments": arguments_json(call),
        }


def input_part(part: str | LoadedFile) -> dict[str, Any]:
    """Return a part of a message in the form of the Responses API."""
    if isinstance(part, str):
        return {"type": "input_text", "text": clean_text(part)}
    if part.is_image:
        return {"type": "input_image", "image_url": part.url, "detail": "auto"}
    return {"type": "input_file", "filename": part.name, "file_data": part.url}


class _DeltaEvent(Struct):
    delta: str = ""


class _Item(Struct):
    type: str = ""
    call_id: str | None = None
    name: str = ""
    arguments: str = ""


class _ItemEvent(Struct):
    item: _Item


class _ErrorDetails(Struct):
    code: str | None = None
    type: str | None = None
    message: str | None = None


class _Incomplete(Struct):
    reason: str | None = None


class _Response(Struct):
    usage: TokenCounts | None = None
    error: _ErrorDetails | None = None
    incomplete_details: _Incomplete | None = None


class _ResponseEvent(Struct):
    response: _Response


class _EventType(Struct):
    type: str = ""


class ResponsesReader(AnswerReader):
    """Reader of the events of one answer."""

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self._calls: list[ToolCallRequest] = []

    def read(self, plain: object) -> Iterator[Piece]:
        """Yield the pieces of an event. Raise ModelError for an error event, ValidationError for a malformed one."""
        match msgspec.convert(plain, _EventType).type:
            case "response.output_text.delta" | "response.refusal.delta":
                if text := msgspec.convert(plain, _DeltaEvent).delta:
                    yield text
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                if reasoning := msgspec.convert(plain, _DeltaEvent).delta:
                    yield ReasoningEvent(content=reasoning)
            case "response.output_item.done":
                item = msgspec.convert(plain, _ItemEvent).item
                if item.type == "function_call":
                    self._calls.append(self.call(item.call_id, item.name, item.arguments))
            case "response.completed" | "response.incomplete" as event_type:
                response = msgspec.convert(plain, _ResponseEvent).response
                self.finished = event_type == "response.completed"
                self.usage = response.usage
                self.reason = response.incomplete_details and response.incomplete_details.reason
            case "response.failed":
                raise _reported_error(msgspec.convert(plain, _ResponseEvent).response.error or _ErrorDetails())
            case "error":
                raise _reported_error(msgspec.convert(plain, _ErrorDetails))
            case _:
                pass  # Most of the dozens of other events repeat these.

    def calls(self) -> list[ToolCallRequest]:
        return self._calls


def _reported_error(details: _ErrorDetails) -> ModelError:
    return reported(details.code, details.type, details.message or "")
