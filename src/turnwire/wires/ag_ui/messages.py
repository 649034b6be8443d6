"""The request bodies of AG-UI clients: a thread, a run of it, its messages, and the answers that a turn waits for.

Turnwire's own message options are read from `forwardedProps`.
"""

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any, Literal, cast

import msgspec
from pydantic import BaseModel, ConfigDict, Field, field_validator

from turnwire.core.contracts.stores import OnBusy
from turnwire.core.log.turns import Message, ToolRequest
from turnwire.server.attachments import file_fields
from turnwire.server.errors import invalid_request
from turnwire.server.messages import ClientId, ClientTools, WireMessageBody, parse_fields
from turnwire.wires.conversation import ClientHistory, call_arguments
from turnwire.wires.frames import as_object, omit_none

_OPTIONS = ("agent", "on_busy", "on_disconnect", "review", "answer", "model_options")
_FILE_PARTS = ("image", "audio", "video", "document", "binary")
_IGNORED_ROLES = ("system", "developer", "activity", "reasoning")


class Function(BaseModel):
    name: str = ""
    arguments: str = ""


class ToolCall(BaseModel):
    id: str
    function: Function


class ThreadMessage(BaseModel):
    """A message of any role, with the fields that Turnwire reads."""

    model_config = ConfigDict(populate_by_name=True)

    id: str | None = Field(None, max_length=512)
    role: str
    content: Any = None
    tool_calls: list[ToolCall] | None = Field(None, alias="toolCalls")
    tool_call_id: str | None = Field(None, alias="toolCallId")
    error: str | None = None
    subagent_run_id: str | None = Field(None, alias="subagentRunId")

    @property
    def text(self) -> str:
        content = self.content
        if not isinstance(content, list):
            return content if isinstance(content, str) else ""
        pieces = (part.get("text", part.get("content")) for part in self._parts if part.get("type") == "text")
        return "\n".join(piece for piece in pieces if isinstance(piece, str))

    @property
    def files(self) -> list[dict[str, Any]]:
        """Return the files as fields of attachments."""
        return [_file_fields(part) for part in self._parts if part.get("type") in _FILE_PARTS]

    @property
    def _parts(self) -> list[dict[str, Any]]:
        content: Any = self.content
        parts = cast("list[Any]", content) if isinstance(content, list) else []
        return [cast("dict[str, Any]", part) for part in parts if isinstance(part, dict)]


class ResumeEntry(BaseModel):
    """A person's answer to an interrupt: a decision, or the reply to a question."""

    model_config = ConfigDict(populate_by_name=True)

    interrupt_id: str = Field(alias="interruptId", max_length=256)
    status: Literal["resolved", "cancelled"]
    payload: Any = None

    @property
    def approved(self) -> bool:
        """Raise HttpError 422 for a payload without a decision."""
        if self.status == "cancelled":
            return False
        approved = self.payload if isinstance(self.payload, bool) else self._fields.get("approved")
        if not isinstance(approved, bool):
            raise invalid_request('resume: a payload is {"approved": true or false, "reason"?}')
        return approved

    @property
    def reason(self) -> str | None:
        reason = self._fields.get("reason")
        return reason[:2_000] if isinstance(reason, str) and reason else None

    @property
    def args(self) -> dict[str, Any] | None:
        """Return the arguments that the person saw, or has changed."""
        args = self._fields.get("args", self._fields.get("editedArgs"))
        return as_object(args) if isinstance(args, dict) else None

    @property
    def _fields(self) -> dict[str, Any]:
        return as_object(self.payload)


class RunInput(BaseModel):
    """`RunAgentInput`."""

    model_config = ConfigDict(title="RunAgentInput", populate_by_name=True)

    thread_id: ClientId | None = Field(None, alias="threadId", description="The session; created if it is new.")
    run_id: ClientId | None = Field(None, alias="runId", description="The turn; a repeated id joins it.")
    protocol_version: str | None = Field(None, alias="protocolVersion", description="Absent before 1.0.")
    parent_run_id: ClientId | None = Field(None, alias="parentRunId", description="The interrupted run.")
    messages: list[ThreadMessage] = Field(default=[], description="The thread; the user's last message is answered.")
    context: list[dict[str, Any]] = Field(default=[], description="Passed to the agent in `turn.options`.")
    state: Any = Field(None, description="Passed to the agent in `turn.options`.")
    tools: ClientTools = Field(default=[], description="Tools that the client runs.")
    resume: list[ResumeEntry] | None = Field(None, description="The answers to interrupts.")
    forwarded_props: dict[str, Any] | None = Field(
        None,
        alias="forwardedProps",
        description="May have the message options `agent`, `on_busy`, `on_disconnect`, `review`, `answer`,"
        " `model_options`.",
    )

    @field_validator("tools", mode="before")
    @classmethod
    def _declared_tools(cls, tools: Any) -> Any:
        """Keep the fields of a tool that Turnwire reads; clients add others, and send empty ones."""
        if not isinstance(tools, list):
            return tools
        return [_declared_tool(tool) for tool in cast("list[Any]", tools)]

    @property
    def version(self) -> int:
        return 0 if self.protocol_version is None else 1

    @property
    def question(self) -> ThreadMessage:
        """Return the message to answer. Raise HttpError 422."""
        return self.messages[self._question_index]

    @property
    def earlier(self) -> list[ThreadMessage]:
        return self.messages[: self._question_index]

    @property
    def results(self) -> list[ThreadMessage]:
        """Return the tool messages at the end, of the server's tools too."""
        shown = (message for message in reversed(self.messages) if message.role not in _IGNORED_ROLES)
        return list(takewhile(lambda message: message.role == "tool", shown))[::-1]

    @property
    def _question_index(self) -> int:
        for index in reversed(range(len(self.messages))):
            role = self.messages[index].role
            if role == "user":
                return index
            if role not in _IGNORED_ROLES:
                break
        raise invalid_request("messages: the last message must be the user's, or answer what a turn waits for")


def _declared_tool(tool: Any) -> Any:
    if not isinstance(tool, dict):
        return tool
    fields = cast("dict[str, Any]", tool)
    return {name: fields[name] for name in ("name", "description", "parameters") if fields.get(name)}


class StopBody(BaseModel):
    """The run to stop, or the thread whose unfinished runs are stopped."""

    model_config = ConfigDict(title="AgUiStop", populate_by_name=True)

    thread_id: ClientId | None = Field(None, alias="threadId")
    run_id: ClientId | None = Field(None, alias="runId")


def run_message_body(body: RunInput, on_busy: OnBusy) -> WireMessageBody:
    """Return the message that a run input asks to answer. Raise HttpError 422."""
    options = body.forwarded_props or {}
    fields = {
        "on_busy": on_busy,
        **omit_none(**{name: options.get(name) for name in _OPTIONS}),
        "message": body.question.text,
        "attachments": body.question.files,
        "metadata": {name: value for name, value in options.items() if name not in _OPTIONS} or None,
        "session_id": body.thread_id,
        "turn_id": body.run_id,
        "tools": [tool.model_dump() for tool in body.tools],
        "extra_options": omit_none(message_id=body.question.id, context=body.context or None, state=body.state or None),
    }
    return parse_fields(WireMessageBody, fields)


def _file_fields(part: dict[str, Any]) -> dict[str, Any]:
    """Return a file part as fields of an attachment: one with a `source`, or a `binary` one of before 1.0."""
    source = as_object(part["source"]) if isinstance(part.get("source"), dict) else part
    value = source.get("value")
    data = value if source.get("type") == "data" else source.get("data")
    media_type, name = source.get("mimeType"), part.get("filename")
    if isinstance(data, str):
        return {"data": data, "media_type": media_type, "name": name}
    url = value if source.get("type") == "url" else source.get("url")
    if isinstance(url, str):
        return file_fields(url, media_type=media_type, name=name, kind=str(part.get("type")))
    return {"digest": value if source.get("type") == "file" else source.get("id"), "name": name}


def history_of(messages: Sequence[ThreadMessage]) -> ClientHistory:
    """Return a conversation from elsewhere as an agent's history, without system messages and sub-agents."""
    results = {message.tool_call_id: message.text for message in messages if message.role == "tool"}
    history = ClientHistory()
    for message in messages:
        if message.subagent_run_id is not None:
            continue
        if message.role == "user":
            history.add_question(message.text, message.files)
        elif message.role == "assistant":
            history.messages += _answer(message, results)
    return history


def _answer(message: ThreadMessage, results: dict[str | None, str]) -> Iterator[Message]:
    # Model providers refuse a call without a result.
    calls = tuple(
        ToolRequest(call.id, call.function.name, _arguments(call.function.arguments))
        for call in message.tool_calls or []
        if call.id in results
    )
    if message.text or calls or not message.tool_calls:
        yield Message("assistant", message.text, tool_calls=calls)
    for call in calls:
        yield Message("tool", results[call.call_id], call_id=call.call_id)


def _arguments(text: str) -> dict[str, Any]:
    try:
        args = msgspec.json.decode(text)
    except msgspec.DecodeError:
        args = None
    return call_arguments(args if isinstance(args, dict) else text)
