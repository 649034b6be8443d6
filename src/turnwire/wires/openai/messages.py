"""The bodies that clients of OpenAI's send, and the message to an agent that becomes of them."""

import hashlib
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Annotated, Any, TypeVar, cast

import msgspec
from msgspec import Meta, Struct
from pydantic import BaseModel, Field, ValidationError

from turnwire.core.codec import clean_text
from turnwire.core.turns import Message, ToolRequest
from turnwire.server.errors import HttpError, invalid_body
from turnwire.server.messages import MessageBody
from turnwire.wires.openai.chat_encoder import parse_call_id

# Errors as clients of OpenAI's know them: in that shape, with those statuses, on those routes.


_STATUSES = {
    "agent_not_found": 404,
    # A client takes a 409 for something that may go well the next time, and tries again.
    "approval_conflict": 400,
    "approval_not_found": 400,
    "idempotency_conflict": 400,
    "turn_not_waiting": 400,
}
_CODES = {"agent_not_found": "model_not_found", "unauthorized": "invalid_api_key"}
_PARAMS = {"agent_not_found": "model"}
_KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


def invalid(param: str, message: str, code: str = "invalid_request") -> HttpError:
    """A 400 that names the field, in the words of the protocol."""
    return HttpError(400, code, f"{param}: {message}", param=param)


def in_dialect(error: HttpError) -> HttpError:
    """Return an error as OpenAI's clients expect it."""
    status = _STATUSES.get(error.code, 400 if error.status in (416, 422) else error.status)
    more = dict(error.more)
    fields = more.pop("fields", None)
    param = more.pop("param", fields[0]["field"] if fields else _PARAMS.get(error.code))
    kind = _KINDS.get(status, "server_error" if status >= 500 else "invalid_request_error")
    code = _CODES.get(error.code, error.code)
    return HttpError(status, code, str(error), headers=error.headers, type=kind, param=param, **more)


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


# Conversations as clients of OpenAI's send them, in one of two spellings; the last message is the question.


_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_SAID_BY_THE_SERVER = ("reasoning", "mcp_approval_request", "item_reference")


class ApprovalItem(Struct, frozen=True):
    """A decision about a request that a response ended with."""

    request_id: str
    approved: bool
    reason: str | None = None


class _Verdict(Struct, frozen=True):
    approved: bool
    reason: Annotated[str, Meta(max_length=2_000)] | None = None


class ClientConversation(Struct, frozen=True, kw_only=True):
    """`message` is None where there is nothing new to answer but decisions."""

    message: str | None
    history: tuple[Message, ...] = ()
    instructions: tuple[str, ...] = ()
    approvals: tuple[ApprovalItem, ...] = ()


def read_input(given: Any) -> ClientConversation:
    """The `input` of a response. Raises HttpError 400."""
    if isinstance(given, str):
        return ClientConversation(message=given)
    reading = _InputParser()
    for param, item in _objects(given, "input"):
        kind = item.get("type") or "message"
        match kind:
            case "message":
                reading.say(item.get("role"), _text(item.get("content"), f"{param}.content"), param)
            case "function_call":
                reading.call([_call(item, item.get("call_id"), param)])
            case "function_call_output":
                reading.result(item.get("call_id"), _text(item.get("output"), f"{param}.output"), param)
            case "mcp_approval_response":
                reading.approvals.append(_approval(item, param))
            case _ if kind in _SAID_BY_THE_SERVER:
                pass
            case _:
                raise invalid(param, f"items of the type {kind!r} are not taken", "unsupported_content")
    return reading.conversation("input")


def read_messages(given: Any) -> ClientConversation:
    """The `messages` of a completion; results of calls that a turn waits for are decisions. Raises HttpError 400."""
    reading = _InputParser()
    for param, message in _objects(given, "messages"):
        role, content = message.get("role"), message.get("content")
        calls = message.get("tool_calls") if role == "assistant" else None
        text = "" if content is None and role == "assistant" else _text(content, f"{param}.content")
        if role == "tool":
            reading.result(message.get("tool_call_id"), text, param)
        elif calls:
            told = [
                _call(call.get("function"), call.get("id"), place)
                for place, call in _objects(calls, f"{param}.tool_calls")
            ]
            reading.call(told, text)
        else:
            reading.say(role, text, param)
    results = list(takewhile(lambda message: message.role == "tool", reversed(reading.messages)))
    if results and all(parse_call_id(result.call_id or "") for result in results):
        return ClientConversation(message=None, approvals=tuple(map(_verdict, reversed(results))))
    return reading.conversation("messages")


class _InputParser:
    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.instructions: list[str] = []
        self.approvals: list[ApprovalItem] = []

    def say(self, role: Any, text: str, param: str) -> None:
        if role in ("system", "developer"):
            self.instructions.append(text)
        elif role in ("user", "assistant"):
            self.messages.append(Message(role, text))
        else:
            raise invalid(f"{param}.role", "not the role of a message")

    def call(self, calls: Sequence[ToolRequest], text: str = "") -> None:
        last = self.messages[-1] if self.messages else None
        if last is not None and last.tool_calls and not text:
            # Calls in a row were one request of the model's.
            self.messages[-1] = msgspec.structs.replace(last, tool_calls=(*last.tool_calls, *calls))
        else:
            self.messages.append(Message("assistant", text, tool_calls=tuple(calls)))

    def result(self, call_id: Any, text: str, param: str) -> None:
        if not isinstance(call_id, str):
            raise invalid(param, "a result names its call")
        self.messages.append(Message("tool", text, call_id=call_id))

    def conversation(self, param: str) -> ClientConversation:
        message = None
        if self.messages and self.messages[-1].role == "user":
            message = self.messages.pop().content
        elif self.messages or not self.approvals:
            raise invalid(param, "the last message must be the user's: it is what is answered")
        return ClientConversation(
            message=message,
            history=tuple(self.messages),
            instructions=tuple(self.instructions),
            approvals=tuple(self.approvals),
        )


def _objects(given: Any, param: str) -> list[tuple[str, dict[str, Any]]]:
    if not isinstance(given, list) or not given:
        raise invalid(param, "missing, or not of the form that is known here")
    items = cast("list[Any]", given)
    for index, item in enumerate(items):
        if not isinstance(item, dict):
            raise invalid(f"{param}[{index}]", "not an object")
    return [(f"{param}[{index}]", item) for index, item in enumerate(items)]


def _text(content: Any, param: str) -> str:
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for place, part in _objects(content, param):
        name = _TEXT_PARTS.get(str(part.get("type")))
        if name is None:
            raise invalid(place, f"only text is taken here, not {part.get('type')!r}", "unsupported_content")
        text = part.get(name)
        if not isinstance(text, str):
            raise invalid(f"{place}.{name}", "not a text")
        texts.append(text)
    return "".join(texts)


def _call(function: Any, call_id: Any, param: str) -> ToolRequest:
    try:
        name, arguments = str(function["name"]), msgspec.json.decode(function.get("arguments") or "{}")
        if isinstance(arguments, dict) and isinstance(call_id, str):
            return ToolRequest(call_id, name, cast("dict[str, Any]", arguments))
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        pass
    raise invalid(param, "not a call of a function, with an id, a name and arguments as a JSON object")


def _verdict(result: Message) -> ApprovalItem:
    """Only what is said in so many words is a decision: a program that runs calls by itself must not take one."""
    words = {"approved": {"approved": True}, "denied": {"approved": False}}
    try:
        told = words.get(result.content.strip()) or msgspec.json.decode(result.content)
        verdict = msgspec.convert(told, _Verdict)
    except (ValueError, RecursionError):
        message = 'a call that waits is answered with `approved`, `denied` or {"approved": …, "reason": …}'
        raise invalid("messages", message) from None
    return ApprovalItem(result.call_id or "", verdict.approved, verdict.reason)


def _approval(item: dict[str, Any], param: str) -> ApprovalItem:
    request_id, approved, reason = item.get("approval_request_id"), item.get("approve"), item.get("reason")
    if not isinstance(request_id, str):
        raise invalid(f"{param}.approval_request_id", "missing")
    if not isinstance(approved, bool):
        raise invalid(f"{param}.approve", "neither true nor false")
    if reason is not None and (not isinstance(reason, str) or len(reason) > 2_000):
        raise invalid(f"{param}.reason", "not a text of at most 2,000 characters")
    return ApprovalItem(request_id, approved, reason)
