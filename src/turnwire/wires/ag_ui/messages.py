"""What AG-UI clients send: a thread, a run of it, its messages, and decisions.

Our own options of a message may stand in `forwardedProps`, or beside the rest.
"""

from collections.abc import Iterator
from typing import Any, Literal, TypeVar, cast

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from turnwire.core.contracts import OnBusy
from turnwire.core.turns import Message, ToolRequest
from turnwire.server.errors import HttpError, invalid_body
from turnwire.server.messages import ClientId, MessageBody

Body = TypeVar("Body", bound=BaseModel)
_OPTIONS = ("agent", "on_busy", "on_disconnect", "review", "answer")
_SILENT = ("system", "developer", "activity", "reasoning")


class Function(BaseModel):
    name: str = ""
    arguments: str = ""


class ToolCall(BaseModel):
    id: str
    function: Function


class ThreadMessage(BaseModel):
    """A message of any role; of each only what is needed here."""

    model_config = ConfigDict(populate_by_name=True)

    id: str | None = Field(None, max_length=512)
    role: str
    content: Any = None
    tool_calls: list[ToolCall] | None = Field(None, alias="toolCalls")
    tool_call_id: str | None = Field(None, alias="toolCallId")
    subagent_run_id: str | None = Field(None, alias="subagentRunId")

    @property
    def text(self) -> str:
        content = self.content
        if not isinstance(content, list):
            return content if isinstance(content, str) else ""
        told = cast("list[Any]", content)
        parts = (cast("dict[str, Any]", part) for part in told if isinstance(part, dict))
        pieces = (part.get("text", part.get("content")) for part in parts if part.get("type") == "text")
        return "\n".join(piece for piece in pieces if isinstance(piece, str))


class ResumeEntry(BaseModel):
    """What a person has decided about an interrupt."""

    model_config = ConfigDict(populate_by_name=True)

    interrupt_id: str = Field(alias="interruptId", max_length=256)
    status: Literal["resolved", "cancelled"]
    payload: Any = None

    @property
    def approved(self) -> bool:
        """Raises HttpError 422."""
        if self.status == "cancelled":
            return False
        said = self.payload if isinstance(self.payload, bool) else self._said.get("approved")
        if not isinstance(said, bool):
            raise HttpError(422, "invalid_request", 'resume: a payload is {"approved": true or false, "reason"?}')
        return said

    @property
    def reason(self) -> str | None:
        said = self._said.get("reason")
        return said[:2_000] if isinstance(said, str) and said else None

    @property
    def args(self) -> dict[str, Any] | None:
        said = self._said.get("args")
        return cast("dict[str, Any]", said) if isinstance(said, dict) else None

    @property
    def _said(self) -> dict[str, Any]:
        payload = self.payload
        return cast("dict[str, Any]", payload) if isinstance(payload, dict) else {}


class RunInput(BaseModel):
    """`RunAgentInput`. Tools of the client's own are not called, so `tools` is not read."""

    model_config = ConfigDict(title="RunAgentInput", populate_by_name=True)

    thread_id: ClientId | None = Field(None, alias="threadId", description="The session; made when it is new.")
    run_id: ClientId | None = Field(None, alias="runId", description="The turn; the same one again joins it.")
    protocol_version: str | None = Field(None, alias="protocolVersion", description="Left out before 1.0.")
    parent_run_id: ClientId | None = Field(None, alias="parentRunId", description="The run that was interrupted.")
    messages: list[ThreadMessage] = Field(default=[], description="The thread; the last of the user's asks.")
    context: list[dict[str, Any]] = Field(default=[], description="Handed to the agent as `turn.options`.")
    state: Any = Field(None, description="Likewise.")
    resume: list[ResumeEntry] | None = Field(None, description="What was decided about interrupts.")
    forwarded_props: dict[str, Any] | None = Field(
        None,
        alias="forwardedProps",
        description="May hold `agent`, `on_busy`, `on_disconnect`, `review`, `answer`, as of every message.",
    )

    @property
    def version(self) -> int:
        return 0 if self.protocol_version is None else 1

    @property
    def asked(self) -> ThreadMessage:
        """The message to answer. Raises HttpError 422."""
        return self.messages[self._place]

    @property
    def earlier(self) -> list[ThreadMessage]:
        return self.messages[: self._place]

    @property
    def _place(self) -> int:
        for place in reversed(range(len(self.messages))):
            role = self.messages[place].role
            if role == "user":
                return place
            if role not in _SILENT:
                break
        raise HttpError(
            422, "invalid_request", "messages: the last one is not the user's, and `resume` decides nothing"
        )


class RunMessageBody(MessageBody):
    """The same as a message of ours. `told` goes to the agent with the other options."""

    told: dict[str, Any] = Field(default_factory=dict[str, Any])

    @property
    def options(self) -> dict[str, Any]:
        return {**super().options, **self.told}

    def fingerprint(self) -> str:
        # What follows from the state of the thread is not the client's to repeat.
        return MessageBody.fingerprint(self.model_copy(update={"on_busy": "enqueue"}))


class StopBody(BaseModel):
    """What to stop: a run, or all that runs, waits or is queued in a thread."""

    model_config = ConfigDict(title="AgUiStop", populate_by_name=True)

    thread_id: ClientId | None = Field(None, alias="threadId")
    run_id: ClientId | None = Field(None, alias="runId")


def parse_input(body: bytes) -> RunInput:
    """Raises HttpError 400 or 422."""
    return _parse(RunInput, body)


def parse_stop(body: bytes) -> StopBody:
    """Raises HttpError 400 or 422."""
    return _parse(StopBody, body)


def run_message_body(body: RunInput, on_busy: OnBusy) -> RunMessageBody:
    """Raises HttpError 422."""
    given = {name: value for name in _OPTIONS if (value := (body.forwarded_props or {}).get(name)) is not None}
    told = {"message_id": body.asked.id, "context": body.context or None, "state": body.state or None}
    fields = {
        "on_busy": on_busy,
        **given,
        "message": body.asked.text,
        "session_id": body.thread_id,
        "turn_id": body.run_id,
        "told": {name: value for name, value in told.items() if value is not None},
    }
    try:
        return RunMessageBody.model_validate(fields)
    except ValidationError as error:
        raise invalid_body(error) from None


def history_of(messages: list[ThreadMessage]) -> list[Message]:
    """A conversation that was not held here, as an agent is told of it. What a system is to do is not the client's."""
    results = {message.tool_call_id: message.text for message in messages if message.role == "tool"}
    return [message for told in messages for message in _messages(told, results)]


def _messages(told: ThreadMessage, results: dict[str | None, str]) -> Iterator[Message]:
    if told.subagent_run_id is not None:
        return
    if told.role == "user":
        yield Message("user", told.text)
    if told.role != "assistant":
        return
    # A call without a result would be refused by the model's provider.
    calls = tuple(
        ToolRequest(call.id, call.function.name, _arguments(call.function.arguments))
        for call in told.tool_calls or []
        if call.id in results
    )
    if told.text or calls or not told.tool_calls:
        yield Message("assistant", told.text, tool_calls=calls)
    for call in calls:
        yield Message("tool", results[call.call_id], call_id=call.call_id)


def _arguments(text: str) -> dict[str, Any]:
    try:
        given = msgspec.json.decode(text)
    except msgspec.DecodeError:
        given = None
    return cast("dict[str, Any]", given) if isinstance(given, dict) else {"input": text}


def _parse(model: type[Body], body: bytes) -> Body:
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        if error.errors(include_url=False, include_input=False)[0]["type"] == "json_invalid":
            raise HttpError(400, "invalid_json", "the body is not JSON") from None
        raise invalid_body(error) from None
