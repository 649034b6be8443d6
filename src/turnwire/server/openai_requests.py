"""The bodies that clients of OpenAI's send, and the message to an agent that becomes of them."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

import msgspec
from pydantic import BaseModel, Field, ValidationError

from turnwire.core.encoding import clean_text
from turnwire.server.errors import HttpError, invalid_body
from turnwire.server.openai_errors import invalid
from turnwire.server.requests import MessageBody

Body = TypeVar("Body", bound=BaseModel)


class ResponseBody(BaseModel):
    """The body of `POST /v1/responses`; what is not here is not looked at."""

    model: str | None = None
    input: Any = None
    instructions: str | None = None
    stream: bool | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    metadata: dict[str, str] | None = Field(None, max_length=16)
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    parallel_tool_calls: bool | None = None
    top_logprobs: int | None = None
    truncation: str | None = None
    tool_choice: str | dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


class CompletionBody(BaseModel):
    """The body of `POST /v1/chat/completions`; what is not here is not looked at."""

    model: str | None = None
    messages: Any = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    n: int | None = None
    response_format: dict[str, Any] | None = None
    metadata: dict[str, str] | None = Field(None, max_length=16)
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    reasoning_effort: str | None = None
    user: str | None = None


class PromptBody(MessageBody):
    """A message that came in such a body: as it was `sent`, with the conversation around it.

    `told` is what else the body said, which the agent may read in its options.
    """

    told: dict[str, Any] = Field(default_factory=dict[str, Any])
    sent: list[Any] = Field(default_factory=list[Any])

    @property
    def options(self) -> dict[str, Any]:
        return self.told

    def fingerprint(self) -> str:
        # Of what was sent: where it belongs may look different the second time.
        return hashlib.sha256(msgspec.json.encode([self.agent, self.told, self.sent])).hexdigest()


def parse_response_body(given: bytes | Mapping[str, Any]) -> ResponseBody:
    """From a request, or from a message of a socket. Raises HttpError 4xx."""
    body = _parse(ResponseBody, given)
    _refuse_formats("text.format", (body.text or {}).get("format"))
    return body


def parse_completion_body(given: bytes) -> CompletionBody:
    """Raises HttpError 4xx."""
    body = _parse(CompletionBody, given)
    _refuse_formats("response_format", body.response_format)
    if body.n not in (None, 1):
        raise invalid("n", "there is one answer to a message")
    return body


def prompt_body(
    message: str, *, session_id: str | None, model: str | None, told: dict[str, Any], sent: Sequence[Any]
) -> PromptBody:
    """Raises HttpError 4xx."""
    if not clean_text(message).strip():
        raise invalid("input", "there is no text in the last message")
    try:
        return PromptBody.model_validate(
            {
                "message": message,
                "session_id": session_id,
                "agent": model,
                "told": told,
                "sent": msgspec.to_builtins(sent),
            }
        )
    except ValidationError as error:
        raise invalid_body(error) from None


def _parse(model: type[Body], given: bytes | Mapping[str, Any]) -> Body:
    try:
        return model.model_validate_json(given) if isinstance(given, bytes) else model.model_validate(given)
    except ValidationError as error:
        if error.errors(include_url=False, include_input=False)[0]["type"] == "json_invalid":
            raise HttpError(400, "invalid_json", "the body is not JSON") from None
        raise invalid_body(error) from None


def _refuse_formats(param: str, wanted: Any) -> None:
    kind = cast("dict[str, Any]", wanted).get("type", "text") if isinstance(wanted, dict) else "text"
    if kind != "text":
        raise invalid(param, "answers are text; an agent decides itself what it writes", "unsupported_content")
