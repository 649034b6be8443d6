"""What the AI SDK's clients send: a chat, its messages, and what the newest of them asks for.

Their fields have their own names; beside them stand those of a message on every other route.
"""

from collections.abc import Iterator
from typing import Any, Literal, cast

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from turnwire.core.contracts import OnBusy
from turnwire.core.turns import Message, ToolRequest
from turnwire.server.errors import HttpError, invalid_body
from turnwire.server.guard import Headers
from turnwire.server.messages import ClientId, Grace, MessageBody
from turnwire.server.request import read_json
from turnwire.server.streams.connection import Receive

_TOOL = "tool-"
_DYNAMIC = "dynamic-tool"


class ApprovalPart(BaseModel):
    id: str = Field(max_length=512)
    approved: bool | None = None
    reason: str | None = Field(None, max_length=2_000)


class UIPart(BaseModel):
    """A part of a message; of each kind only what is needed here."""

    model_config = ConfigDict(populate_by_name=True)

    type: str
    text: str | None = None
    state: str | None = None
    tool_name: str | None = Field(None, alias="toolName")
    call_id: str | None = Field(None, alias="toolCallId")
    input: Any = None
    output: Any = None
    error_text: str | None = Field(None, alias="errorText")
    approval: ApprovalPart | None = None
    url: str | None = None
    media_type: str | None = Field(None, alias="mediaType")
    filename: str | None = None

    @property
    def decision(self) -> ApprovalPart | None:
        """What a person has decided and the server has not been told."""
        return self.approval if self.state == "approval-responded" else None

    @property
    def tool(self) -> str | None:
        if self.type == _DYNAMIC:
            return self.tool_name
        return self.type.removeprefix(_TOOL) if self.type.startswith(_TOOL) else None


class UIMessage(BaseModel):
    id: str | None = Field(None, max_length=256)
    role: Literal["system", "user", "assistant"]
    parts: list[UIPart] = []

    @property
    def text(self) -> str:
        return "\n".join(part.text for part in self.parts if part.type == "text" and part.text)

    @property
    def files(self) -> list[dict[str, str]]:
        named = (
            {"media_type": part.media_type, "url": part.url, "filename": part.filename}
            for part in self.parts
            if part.type == "file"
        )
        return [{name: value for name, value in file.items() if value is not None} for file in named]

    @property
    def decides(self) -> bool:
        return self.role == "assistant" and any(part.decision for part in self.parts)


class ChatBody(BaseModel):
    """A chat as the client has it. `messages` may be left to the newest one, which may be `message` too."""

    model_config = ConfigDict(title="AiSdkChat", populate_by_name=True)

    id: ClientId | None = Field(None, description="The chat; our session of that name, made when it is new.")
    messages: list[UIMessage] = Field(default=[], description="UI messages; the last one asks, or decides.")
    message: UIMessage | None = Field(None, description="The newest message, if it is sent alone.")
    trigger: Literal["submit-message", "regenerate-message"] = "submit-message"
    message_id: str | None = Field(
        None, alias="messageId", max_length=256, description="The message that is edited, made anew or gone on with."
    )
    agent: str | None = Field(None, description="As of every message.")
    on_busy: OnBusy | None = Field(None, description="As of every message.")
    on_disconnect: Literal["continue", "cancel"] | Grace = Field("continue", description="As of every message.")
    review: bool | None = Field(None, description="As of every message.")
    answer: Literal["synthesis", "direct"] | None = Field(None, description="As of every message.")

    @property
    def all(self) -> list[UIMessage]:
        return [*self.messages, self.message] if self.message else self.messages

    @property
    def decided(self) -> UIMessage | None:
        """The message with decisions for the server, if this is what is sent."""
        said = self.all
        named = (message for message in said if message.id == self.message_id and message.decides)
        return said[-1] if said and said[-1].decides else next(named, None)

    @property
    def asked(self) -> UIMessage:
        """The message to answer. Raises HttpError 422."""
        if not self.all or self.all[-1].role != "user":
            raise HttpError(422, "invalid_request", "messages: the last one is not the user's, and decides nothing")
        return self.all[-1]


class ChatMessageBody(MessageBody):
    """The same as a message of ours. `told` goes to the agent with the other options."""

    told: dict[str, Any] = Field(default_factory=dict[str, Any])

    @property
    def options(self) -> dict[str, Any]:
        return {**super().options, **self.told}

    def fingerprint(self) -> str:
        # What follows from the state of the chat is not the client's to repeat.
        told = {name: value for name, value in self.told.items() if name != "regenerates"}
        return MessageBody.fingerprint(self.model_copy(update={"told": told, "on_busy": "enqueue"}))


def parse_chat(body: bytes) -> ChatBody:
    """Raises HttpError 400 or 422."""
    try:
        return ChatBody.model_validate_json(body)
    except ValidationError as error:
        if error.errors(include_url=False, include_input=False)[0]["type"] == "json_invalid":
            raise HttpError(400, "invalid_json", "the body is not JSON") from None
        raise invalid_body(error) from None


def chat_message_body(body: ChatBody, session_id: str | None, on_busy: OnBusy, told: dict[str, Any]) -> ChatMessageBody:
    """Raises HttpError 422."""
    fields = {
        "message": body.asked.text,
        "session_id": session_id,
        "agent": body.agent,
        "on_busy": on_busy,
        "on_disconnect": body.on_disconnect,
        "review": body.review,
        "answer": body.answer,
        "told": told,
    }
    try:
        return ChatMessageBody.model_validate(fields)
    except ValidationError as error:
        raise invalid_body(error) from None


def history_of(messages: list[UIMessage]) -> list[Message]:
    """A conversation that was not held here, as an agent is told of it. What a system is to do is not the client's."""
    return [message for told in messages for message in _messages(told)]


def _messages(told: UIMessage) -> Iterator[Message]:
    if told.role == "system":
        return
    if told.role == "user":
        yield Message("user", told.text)
        return
    ended = [part for part in told.parts if part.tool and part.call_id and (part.state or "").startswith("output-")]
    if ended:
        calls = tuple(ToolRequest(part.call_id or "", part.tool or "", _arguments(part.input)) for part in ended)
        yield Message("assistant", "", tool_calls=calls)
        for part in ended:
            yield Message("tool", _result(part), call_id=part.call_id)
    if told.text or not ended:
        yield Message("assistant", told.text)


def _arguments(given: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", given) if isinstance(given, dict) else {"input": given}


def _result(part: UIPart) -> str:
    if part.state != "output-available":
        return msgspec.json.encode({"error": part.error_text or "denied"}).decode()
    return part.output if isinstance(part.output, str) else msgspec.json.encode(part.output).decode()


# Reading a chat's body, also one that does not say what it is.


_PLAIN = b"text/plain"
_OWN_SITES = (b"", b"same-origin", b"none")


async def read_chat(receive: Receive, headers: dict[bytes, bytes], added: Headers) -> bytes:
    """Raises HttpError 400 or 415."""
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind == _PLAIN:
        if not _may_be_plain(headers, added):
            raise HttpError(
                415,
                "unsupported_media_type",
                "send the body as `Content-Type: application/json`; plain text is taken from allowed origins alone",
            )
        headers = {**headers, b"content-type": b"application/json"}
    return await read_json(receive, headers)


def _may_be_plain(headers: dict[bytes, bytes], added: Headers) -> bool:
    origin = headers.get(b"origin", b"").lower()
    if not origin:
        return headers.get(b"sec-fetch-site", b"") in _OWN_SITES
    is_allowed = any(name == b"access-control-allow-origin" for name, _ in added)
    return is_allowed or origin.partition(b"://")[2] == headers.get(b"host", b"").lower()
