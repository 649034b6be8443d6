"""Parts of requests and of answers that the Chat Completions and the Responses API have in common.

Texts are cleaned, because a lone surrogate would make the whole request unsendable.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, cast

from msgspec import Struct

from turnwire.core.ids import new_id
from turnwire.core.log.codec import clean_text
from turnwire.core.log.events import UsageEvent
from turnwire.core.log.model_options import AnswerFormat, ModelOptions
from turnwire.core.log.turns import ToolRequest
from turnwire.models.contract import Piece, ToolCallRequest, ToolSpec
from turnwire.models.errors import unfinished


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


def sampling_options(
    options: ModelOptions, *, max_tokens: str = "max_tokens", stop: str | None = "stop"
) -> dict[str, Any]:
    """Return the options for sampling that the client has sent, under an API's own names. None leaves out `stop`."""
    values: dict[str, Any] = {
        "temperature": options.temperature,
        "top_p": options.top_p,
        max_tokens: options.max_tokens,
    }
    if stop is not None:
        values[stop] = list(options.stop) or None
    return {name: value for name, value in values.items() if value is not None}


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


class _TokenDetails(Struct):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class TokenCounts(Struct):
    """The tokens of an answer, under the names of either API."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _TokenDetails | None = None
    completion_tokens_details: _TokenDetails | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _TokenDetails | None = None
    output_tokens_details: _TokenDetails | None = None

    def event(self, model: str) -> UsageEvent:
        taken = self.input_tokens_details or self.prompt_tokens_details or _TokenDetails()
        written = self.output_tokens_details or self.completion_tokens_details or _TokenDetails()
        return UsageEvent(
            model=model,
            input_tokens=self.prompt_tokens if self.input_tokens is None else self.input_tokens,
            output_tokens=self.completion_tokens if self.output_tokens is None else self.output_tokens,
            cached_input_tokens=taken.cached_tokens,
            reasoning_tokens=written.reasoning_tokens,
        )


class AnswerReader(ABC):
    """Reader of the stream of one answer. `finished` is True once the model has completed its answer."""

    def __init__(self, model: str) -> None:
        self.finished = False
        self.reason: str | None = None
        self.usage: TokenCounts | None = None
        self._model = model

    @abstractmethod
    def read(self, plain: object) -> Iterator[Piece]:
        """Yield the pieces of a chunk or an event. Raise ModelError or msgspec.ValidationError."""

    @abstractmethod
    def calls(self) -> list[ToolCallRequest]:
        """Return the tool calls of the answer, complete."""

    def end(self) -> Iterator[Piece]:
        """Yield tool calls and usage after the last chunk. Raise ModelError if the answer is not complete."""
        if self.finished:
            yield from self.calls()
        if self.usage is not None:
            yield self.usage.event(self._model)
        if not self.finished:
            raise unfinished(self.reason)

    def call(self, call_id: str | None, tool: str, arguments: str) -> ToolCallRequest:
        return ToolCallRequest(call_id or f"call_{new_id()}", tool, arguments)
