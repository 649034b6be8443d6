"""The request bodies of the AI SDK's clients: a chat and its messages, with the options of every other route."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal, cast

import msgspec
from pydantic import BaseModel, ConfigDict, Field, field_validator

from turnwire.core.contracts.stores import OnBusy
from turnwire.core.log.turns import Message, ToolRequest
from turnwire.server.attachments import file_fields
from turnwire.server.errors import HttpError, invalid_request
from turnwire.server.guard import allows_origin, is_from_own_page
from turnwire.server.messages import ClientId, ClientTools, Grace, ModelOptionsBody, WireMessageBody, parse_fields
from turnwire.server.request import Request, read_json
from turnwire.wires.conversation import ClientHistory, call_arguments
from turnwire.wires.frames import as_object, omit_none, text_or_json

_TOOL = "tool-"
_DYNAMIC = "dynamic-tool"
_OWN_FILE = re.compile(r"/(?:.*/)?v1/sessions/[^/]+/files/([0-9a-f]{64})")
_SAME_SITE = (b"", b"same-origin", b"none")


class ApprovalPart(BaseModel):
    id: str = Field(max_length=512)
    approved: bool | None = None
    reason: str | None = Field(None, max_length=2_000)


class UIPart(BaseModel):
    """A part of a message of any kind, with the fields that Turnwire reads."""

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
        """Return a decision that the client sends for the first time."""
        return self.approval if self.state == "approval-responded" else None

    @property
    def has_output(self) -> bool:
        """Return True for a call of one of the client's tools, or a question, that has an answer."""
        return self.type.startswith(_TOOL) and self.state in ("output-available", "output-error")

    @property
    def file(self) -> dict[str, Any]:
        """Return a file as fields of an attachment; one that the session has is named by its path on this server."""
        if (own := _OWN_FILE.fullmatch(self.url or "")) is not None:
            return omit_none(digest=own[1], media_type=self.media_type, name=self.filename)
        return file_fields(self.url or "", media_type=self.media_type, name=self.filename)

    @property
    def tool(self) -> str | None:
        if self.type == _DYNAMIC:
            return self.tool_name
        return self.type.removeprefix(_TOOL) if self.type.startswith(_TOOL) else None


class UIMessage(BaseModel):
    id: str | None = Field(None, max_length=256)
    role: Literal["system", "user", "assistant"]
    parts: list[UIPart] = []
    metadata: Any = None

    @property
    def text(self) -> str:
        return "\n".join(part.text for part in self.parts if part.type == "text" and part.text)

    @property
    def files(self) -> list[dict[str, Any]]:
        """Return the files as fields of attachments."""
        return [part.file for part in self.parts if part.type == "file"]

    @property
    def has_answers(self) -> bool:
        """Return True if the message may have what a turn waits for: decisions, or outputs of the client's tools."""
        return self.role == "assistant" and any(part.decision or part.has_output for part in self.parts)


class ChatBody(BaseModel):
    """A chat as the client has it. The newest message may come alone, in `messages` or as `message`."""

    model_config = ConfigDict(title="AiSdkChat", populate_by_name=True, extra="allow")

    id: ClientId | None = Field(None, description="The chat, a session; created if it is new.")
    messages: list[UIMessage] = Field(default=[], description="UI messages; the last one asks or decides.")
    message: UIMessage | None = Field(None, description="The newest message, if it comes alone.")
    trigger: Literal["submit-message", "regenerate-message"] = "submit-message"
    message_id: str | None = Field(
        None, alias="messageId", max_length=256, description="The message that is edited, regenerated or continued."
    )
    agent: str | None = Field(None, description="As in every message.")
    on_busy: OnBusy | None = Field(None, description="As in every message.")
    on_disconnect: Literal["continue", "cancel"] | Grace = Field("continue", description="As in every message.")
    review: bool | None = Field(None, description="As in every message.")
    answer: Literal["synthesis", "direct"] | None = Field(None, description="As in every message.")
    tools: ClientTools = Field(
        [], description="Tools that the client runs, as in every message; or an object of them by name."
    )

    model_options: ModelOptionsBody | None = Field(None, description="As in every message.")

    @field_validator("tools", mode="before")
    @classmethod
    def _named_tools(cls, tools: Any) -> Any:
        """Return tools by name as a list: some front ends send them in the form of the SDK's `ToolSet`."""
        if not isinstance(tools, dict):
            return tools
        return [_named_tool(name, tool) for name, tool in cast("dict[str, Any]", tools).items()]

    @property
    def metadata(self) -> dict[str, Any]:
        """Return the data of the application: the other fields of the body, and the metadata of the message."""
        return {**(self.model_extra or {}), **as_object(self.question.metadata)}

    @property
    def all_messages(self) -> list[UIMessage]:
        return [*self.messages, self.message] if self.message else self.messages

    @property
    def regenerates(self) -> bool:
        return self.trigger == "regenerate-message"

    @property
    def answered_message(self) -> UIMessage | None:
        """Return the message with the answers that a turn waits for: the last, or the one that `messageId` names."""
        if self.regenerates:
            return None
        messages = self.all_messages
        named = (message for message in messages if message.id == self.message_id and message.has_answers)
        return messages[-1] if messages and messages[-1].has_answers else next(named, None)

    @property
    def question(self) -> UIMessage:
        """Return the message to answer. Raise HttpError 422."""
        messages = self.all_messages
        if not messages or messages[-1].role != "user":
            raise invalid_request("messages: the last message must be the user's, or answer what a turn waits for")
        return messages[-1]


class ChatMessageBody(WireMessageBody):
    """A message of a chat."""

    def fingerprint(self) -> str:
        # Like `on_busy`, `regenerates` follows from the state of the session.
        options = {name: value for name, value in self.extra_options.items() if name != "regenerates"}
        return WireMessageBody.fingerprint(self.model_copy(update={"extra_options": options}))


def chat_message_body(
    body: ChatBody, session_id: str | None, on_busy: OnBusy, options: dict[str, Any]
) -> ChatMessageBody:
    """Return the message that a chat asks to answer. Raise HttpError 422."""
    return parse_fields(
        ChatMessageBody,
        {
            "message": body.question.text,
            "attachments": body.question.files,
            "session_id": session_id,
            "agent": body.agent,
            "on_busy": on_busy,
            "on_disconnect": body.on_disconnect,
            "review": body.review,
            "answer": body.answer,
            "metadata": body.metadata or None,
            "tools": [tool.model_dump() for tool in body.tools],
            "model_options": body.model_options,
            "extra_options": options,
        },
    )


def _named_tool(name: str, tool: Any) -> Any:
    if not isinstance(tool, dict):
        return tool
    fields = cast("dict[str, Any]", tool)
    parameters = fields.get("parameters") or fields.get("inputSchema")
    return omit_none(name=name, description=fields.get("description"), parameters=parameters)


def history_of(messages: Sequence[UIMessage]) -> ClientHistory:
    """Return a conversation from elsewhere as an agent's history, without system messages."""
    history = ClientHistory()
    for message in messages:
        if message.role == "user":
            history.add_question(message.text, message.files)
        elif message.role == "assistant":
            history.messages += _answer(message)
    return history


def _answer(message: UIMessage) -> Iterator[Message]:
    ended = [part for part in message.parts if part.tool and part.call_id and (part.state or "").startswith("output-")]
    if ended:
        calls = tuple(ToolRequest(part.call_id or "", part.tool or "", call_arguments(part.input)) for part in ended)
        yield Message("assistant", "", tool_calls=calls)
        for part in ended:
            yield Message("tool", _result(part), call_id=part.call_id)
    if message.text or not ended:
        yield Message("assistant", message.text)


def _result(part: UIPart) -> str:
    if part.state != "output-available":
        return msgspec.json.encode({"error": part.error_text or "denied"}).decode()
    return text_or_json(part.output)


async def read_chat(request: Request) -> bytes:
    """Return the body of a chat request, which may be sent as plain text. Raise HttpError 400 or 415."""
    headers = request.headers
    media_type = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if media_type == b"text/plain":
        if not _may_be_plain(request):
            raise HttpError(
                415,
                "unsupported_media_type",
                "plain text is accepted from allowed origins only; send `Content-Type: application/json`",
            )
        headers = {**headers, b"content-type": b"application/json"}
    return await read_json(request.receive, headers, request.max_text_bytes)


def _may_be_plain(request: Request) -> bool:
    """Return True for an allowed origin: browsers send plain text to other sites without a preflight request."""
    if not request.header(b"origin"):
        return request.headers.get(b"sec-fetch-site", b"") in _SAME_SITE
    return allows_origin(request.added) or is_from_own_page(request.headers)
