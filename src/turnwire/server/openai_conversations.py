"""Conversations as clients of OpenAI's send them, in one of two spellings; the last message is the question.

Only text is taken. Everything that is refused is named with its place, as `input[2].content[0]`.
"""

from collections.abc import Sequence
from itertools import takewhile
from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta, Struct

from turnwire.core.turns import Message, ToolRequest
from turnwire.server.openai_errors import invalid
from turnwire.wires.openai_chat import parse_call_id

_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_SAID_BY_THE_SERVER = ("reasoning", "mcp_approval_request", "item_reference")


class Approval(Struct, frozen=True):
    """A decision about a request that a response ended with."""

    request_id: str
    approved: bool
    reason: str | None = None


class _Verdict(Struct, frozen=True):
    approved: bool
    reason: Annotated[str, Meta(max_length=2_000)] | None = None


class Conversation(Struct, frozen=True, kw_only=True):
    """`message` is None where there is nothing new to answer but decisions."""

    message: str | None
    history: tuple[Message, ...] = ()
    instructions: tuple[str, ...] = ()
    approvals: tuple[Approval, ...] = ()


def read_input(given: Any) -> Conversation:
    """The `input` of a response. Raises HttpError 400."""
    if isinstance(given, str):
        return Conversation(message=given)
    reading = _Reading()
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


def read_messages(given: Any) -> Conversation:
    """The `messages` of a completion; results of calls that a turn waits for are decisions. Raises HttpError 400."""
    reading = _Reading()
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
        return Conversation(message=None, approvals=tuple(map(_verdict, reversed(results))))
    return reading.conversation("messages")


class _Reading:
    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.instructions: list[str] = []
        self.approvals: list[Approval] = []

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

    def conversation(self, param: str) -> Conversation:
        message = None
        if self.messages and self.messages[-1].role == "user":
            message = self.messages.pop().content
        elif self.messages or not self.approvals:
            raise invalid(param, "the last message must be the user's: it is what is answered")
        return Conversation(
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


def _verdict(result: Message) -> Approval:
    """Only what is said in so many words is a decision: a program that runs calls by itself must not take one."""
    words = {"approved": {"approved": True}, "denied": {"approved": False}}
    try:
        told = words.get(result.content.strip()) or msgspec.json.decode(result.content)
        verdict = msgspec.convert(told, _Verdict)
    except (ValueError, RecursionError):
        message = 'a call that waits is answered with `approved`, `denied` or {"approved": …, "reason": …}'
        raise invalid("messages", message) from None
    return Approval(result.call_id or "", verdict.approved, verdict.reason)


def _approval(item: dict[str, Any], param: str) -> Approval:
    request_id, approved, reason = item.get("approval_request_id"), item.get("approve"), item.get("reason")
    if not isinstance(request_id, str):
        raise invalid(f"{param}.approval_request_id", "missing")
    if not isinstance(approved, bool):
        raise invalid(f"{param}.approve", "neither true nor false")
    if reason is not None and (not isinstance(reason, str) or len(reason) > 2_000):
        raise invalid(f"{param}.reason", "not a text of at most 2,000 characters")
    return Approval(request_id, approved, reason)
