"""Request bodies, ids and cursors, checked before a turn is started or anything is written."""

import hashlib
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError

from turnwire.core.contracts.stores import OnBusy, Scope
from turnwire.core.errors import BadCursorError
from turnwire.core.journal.waits import CLIENT_TOOLS
from turnwire.core.log.codec import ascii_json, clean_text
from turnwire.core.people.schemas import check_parameters
from turnwire.core.people.suspension import ClientResultAnswer, DecisionAnswer, ReplyAnswer
from turnwire.server.attachments import MAX_ATTACHMENTS, Attachment
from turnwire.server.errors import HttpError, invalid_body, invalid_request
from turnwire.tools.declaration import NAME

MAX_CLIENT_TOOLS = 64
_MAX_PARAMETERS_BYTES = 16_384
_MAX_TOOLS_BYTES = 131_072
_MAX_KEY_LENGTH = 255
_MAX_METADATA_BYTES = 16 * 1024
_MAX_SCHEMA_BYTES = 64 * 1024


class ClientToolBody(BaseModel):
    """A tool that the client runs. The model may call it, and the turn then waits for the client's result."""

    model_config = ConfigDict(title="ClientTool", extra="forbid")

    name: Annotated[str, StringConstraints(pattern=rf"^{NAME.pattern}$")] = Field(
        description="Letters, digits, `_` and `-`; not the name of one of the agent's own tools."
    )
    description: Annotated[str, StringConstraints(max_length=4_000)] = Field("", description="What the model reads.")
    parameters: dict[str, Any] = Field(
        default_factory=lambda: {"type": "object", "properties": {}},
        description="The JSON schema of the arguments, an object.",
    )

    @field_validator("parameters")
    @classmethod
    def _is_schema(cls, schema: dict[str, Any]) -> dict[str, Any]:
        check_parameters(schema)
        if len(ascii_json(schema)) > _MAX_PARAMETERS_BYTES:
            raise ValueError(f"the schema has more than {_MAX_PARAMETERS_BYTES:,} bytes")
        return schema


def _check_tools(tools: list[ClientToolBody]) -> list[ClientToolBody]:
    names = [tool.name for tool in tools]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"two tools are named {twice!r}")
    if sum(len(ascii_json(tool.model_dump())) for tool in tools) > _MAX_TOOLS_BYTES:
        raise ValueError(f"the tools have more than {_MAX_TOOLS_BYTES:,} bytes together")
    return tools


ClientTools = Annotated[list[ClientToolBody], Field(max_length=MAX_CLIENT_TOOLS), AfterValidator(_check_tools)]


class NamedToolBody(BaseModel):
    """The tool that the model has to call."""

    model_config = ConfigDict(title="NamedTool", extra="forbid")

    name: Annotated[str, StringConstraints(min_length=1, max_length=128)]


class AnswerSchemaBody(BaseModel):
    """A JSON schema of the answer, and what the model's server needs to know about it."""

    model_config = ConfigDict(title="AnswerSchema", extra="ignore", populate_by_name=True)

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")] = "answer"
    json_schema: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None

    @field_validator("json_schema")
    @classmethod
    def _is_small(cls, schema: dict[str, Any]) -> dict[str, Any]:
        if len(ascii_json(schema)) > _MAX_SCHEMA_BYTES:
            raise ValueError(f"the schema has more than {_MAX_SCHEMA_BYTES:,} bytes")
        return schema


class ResponseFormatBody(BaseModel):
    """The form of the answer: JSON of a schema, any JSON object, or text."""

    model_config = ConfigDict(title="ResponseFormat", extra="forbid")

    type: Literal["text", "json_object", "json_schema"]
    json_schema: AnswerSchemaBody | None = None

    @model_validator(mode="after")
    def _has_schema(self) -> "ResponseFormatBody":
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("send `json_schema` with the type `json_schema`, and with no other type")
        return self

    def to_option(self) -> dict[str, Any] | None:
        """Return the option of a turn; None for text."""
        if self.json_schema is None:
            return None if self.type == "text" else {"type": self.type}
        schema = self.json_schema.model_dump(exclude_none=True, by_alias=True)
        return {"type": self.type, "json_schema": schema}


StopWord = Annotated[str, StringConstraints(min_length=1, max_length=200)]


class ModelOptionsBody(BaseModel):
    """How the model answers, for agents that take it from clients; for others it is a 422."""

    model_config = ConfigDict(title="ModelOptions", extra="forbid")

    instructions: Annotated[str, StringConstraints(max_length=100_000)] | None = Field(
        None, description="Instructions after the agent's own; agents take them only if their operator allows it."
    )
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    max_tokens: int | None = Field(None, ge=1, description="The most tokens of one answer of the model.")
    stop: StopWord | Annotated[list[StopWord], Field(max_length=16)] | None = Field(
        None, description="Texts at which the model stops."
    )
    tool_choice: Literal["auto", "none", "required"] | NamedToolBody | None = Field(
        None, description="Whether the model must call a tool, or which, before it answers."
    )
    response_format: ResponseFormatBody | None = Field(None, description="The form of the answer, as OpenAI has it.")

    def to_options(self) -> dict[str, Any]:
        """Return the options of a turn."""
        options = self.model_dump(exclude_none=True, exclude={"response_format"})
        if options.get("tool_choice") == "auto":
            del options["tool_choice"]
        if self.response_format is not None and (answer_format := self.response_format.to_option()) is not None:
            options["response_format"] = answer_format
        return options


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse(value: Any) -> None:
    if value:  # Some clients always send an empty list.
        raise ValueError("this field is unknown, and its content would be lost; send files as `attachments`")


Misnamed = SkipJsonSchema[Annotated[Any, AfterValidator(_refuse)]]
"""A field that other servers take files in: unlike other unknown fields it must not be ignored silently."""


def check_is_text(message: Any) -> Any:
    """Refuse a list of content parts, which other servers accept instead of text."""
    if isinstance(message, list):
        raise ValueError("a list of content parts is not taken; send the text as a string, and files as `attachments`")
    return message


Model = TypeVar("Model", bound=BaseModel)
_ID = r"^[A-Za-z0-9._:@-]{1,128}$"
_BASE64URL = r"^[A-Za-z0-9_-]+=*$"
_CURSOR = re.compile(r"(\d{1,15})(?:\.(\d{1,15}))?")
LAST_MS = 253_402_300_799_999  # The end of the year 9999, the last that `datetime` knows.
ClientId = Annotated[str, StringConstraints(pattern=_ID)]
NO_NUL = r"^[^\x00]*$"
Title = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200, pattern=NO_NUL)]


class Grace(BaseModel):
    grace: float = Field(ge=0, le=86_400, description="Seconds without a reader after which the turn is cancelled.")


class MessageBody(BaseModel):
    """A message to an agent."""

    model_config = ConfigDict(title="Message")

    attachments: list[Attachment] = Field(
        [], max_length=MAX_ATTACHMENTS, description="Files, for agents that take them; for others they are a 422."
    )
    message: str = Field(
        description="The text to answer; it may be empty if there are attachments.", json_schema_extra={"minLength": 1}
    )
    session_id: ClientId | None = Field(None, description="The session to continue; without it a new one is created.")
    agent: str | None = Field(None, description="The agent that answers; the first configured one by default.")
    turn_id: ClientId | None = Field(None, description="An id of your own; the same one again joins the same turn.")
    parent_turn_id: ClientId | Literal[""] | None = Field(
        None,
        description="The turn to continue; by default the session's last one. An empty string continues none.",
    )
    on_busy: OnBusy = Field("enqueue", description="What happens if the session has a running turn.")
    on_disconnect: Literal["continue", "cancel"] | Grace = Field(
        "continue", description="What happens to the turn when its readers leave."
    )
    review: bool | None = Field(None, description="Whether evidence is reviewed, for agents that do.")
    answer: Literal["synthesis", "direct"] | None = Field(
        None, description="How to answer, for agents that can choose."
    )
    metadata: dict[str, Any] | None = Field(
        None, description="Data of your application for the agent, up to 16 KiB; it is in the log."
    )
    active_file: Any = Field(None, description="The file that an editor shows; the agent finds it in `metadata`.")
    tools: ClientTools = Field([], description="Tools that the client runs, for agents that take them.")
    model_options: ModelOptionsBody | None = Field(None, description="How the model answers, for agents that take it.")
    attachment: Misnamed = None
    image: Misnamed = None
    images: Misnamed = None
    image_url: Misnamed = None
    image_urls: Misnamed = None
    file: Misnamed = None
    files: Misnamed = None

    _is_text = field_validator("message", mode="before")(check_is_text)

    @field_validator("message")
    @classmethod
    def _has_text(cls, message: str, info: ValidationInfo) -> str:
        if not _is_unicode(message):
            raise PydanticCustomError("string_unicode", "contains lone surrogates, which are not valid Unicode")
        if info.data.get("attachments"):
            return message
        if not message:
            raise PydanticCustomError("string_too_short", "String should have at least 1 character")
        if not clean_text(message).strip():
            raise ValueError("contains no text")
        return message

    @field_validator("metadata", "active_file")
    @classmethod
    def _is_small(cls, value: Any) -> Any:
        if value is not None and len(ascii_json(value)) > _MAX_METADATA_BYTES:
            raise ValueError(f"larger than {_MAX_METADATA_BYTES:,} bytes as JSON")
        return value

    @property
    def disconnect_grace(self) -> float | None:
        if isinstance(self.on_disconnect, Grace):
            return self.on_disconnect.grace
        return 0 if self.on_disconnect == "cancel" else None

    @property
    def options(self) -> dict[str, Any]:
        chosen = {name: value for name in ("review", "answer") if (value := getattr(self, name)) is not None}
        if self.model_options is not None:
            chosen |= self.model_options.to_options()
        if self.tools:
            chosen[CLIENT_TOOLS] = [tool.model_dump() for tool in self.tools]
        metadata = {**(self.metadata or {}), **({} if self.active_file is None else {"active_file": self.active_file})}
        return {**chosen, "metadata": metadata} if metadata else chosen

    def fingerprint(self) -> str:
        """Return a hash that is equal for equal requests, to check a repeated idempotency key against."""
        fields = [self.session_id, self.message, self.agent, self.on_busy, self.disconnect_grace, self.options]
        if self.parent_turn_id is not None:
            fields.append(self.parent_turn_id)
        if self.attachments:
            fields.append(msgspec.to_builtins([attachment.described() for attachment in self.attachments]))
        return hashlib.sha256(msgspec.json.encode(fields)).hexdigest()


class SessionBody(BaseModel):
    """A new session; with an `id` of your own it is created only once."""

    id: ClientId | None = None
    title: Title | None = None


class TitleBody(BaseModel):
    title: Title


class ForkBody(BaseModel):
    """Where a turn is forked, and what it goes on with. Without the latter it continues as it is."""

    model_config = ConfigDict(title="Fork")

    position: int = Field(ge=1, strict=True, description="The last position of the log that the new turn shares.")
    message: str | None = Field(None, min_length=1, description="The message to go on with.")
    agent: str | None = Field(None, min_length=1, description="The agent that goes on; by default the same one.")
    model: Annotated[str, StringConstraints(min_length=1, max_length=200)] | None = Field(
        None, description="The model to go on with, for agents that can be run with another one."
    )
    on_busy: OnBusy = Field("enqueue", description="What happens if the session has a running turn.")

    @field_validator("message")
    @classmethod
    def _has_text(cls, message: str | None) -> str | None:
        if message is not None and not clean_text(message).strip():
            raise ValueError("contains no text")
        return message

    def fingerprint(self, turn_id: str) -> str:
        """Return a hash that is equal for equal forks of the turn, to check a repeated idempotency key against."""
        return hashlib.sha256(msgspec.json.encode([turn_id, self.model_dump()])).hexdigest()


class ApprovalBody(BaseModel):
    """A person's decision about a tool call. With `args` it applies only to these arguments."""

    model_config = ConfigDict(title="Approval")

    approved: StrictBool = Field(description="Whether the tool may run.")
    reason: Annotated[str, StringConstraints(max_length=2_000)] | None = Field(None, description="The agent sees it.")
    args: dict[str, Any] | None = Field(None, description="The arguments that the person saw.")
    edited_args: dict[str, Any] | None = Field(
        None, description="The arguments that the tool gets instead, if its request is `editable`."
    )

    def answer(self, call_id: str, by: str) -> DecisionAnswer:
        return DecisionAnswer(
            call_id=call_id,
            approved=self.approved,
            reason=self.reason,
            by=by,
            args=self.args,
            edited_args=self.edited_args,
        )


class ReplyBody(BaseModel):
    """The answer to a question of a turn: a `value` that fits its schema, or `declined`."""

    model_config = ConfigDict(title="Reply", extra="forbid")

    question_id: Annotated[str, StringConstraints(min_length=1, max_length=256)]
    value: Any = Field(None, description="The answer, a JSON value.")
    declined: StrictBool = Field(False, description="True declines the question.")
    reason: Annotated[str, StringConstraints(max_length=2_000)] | None = Field(
        None, description="Why it is not answered; the agent sees it."
    )

    @model_validator(mode="after")
    def _is_one_answer(self) -> "ReplyBody":
        if self.declined and self.value is not None:
            raise ValueError("give either `value` or `declined`")
        if not self.declined and "value" not in self.model_fields_set:
            raise ValueError("give a `value`, or `declined: true`")
        return self

    def answer(self, by: str) -> ReplyAnswer:
        return ReplyAnswer(
            question_id=self.question_id, value=self.value, declined=self.declined, reason=self.reason, by=by
        )


class ToolResultBody(BaseModel):
    """The result of a tool that the client has run."""

    model_config = ConfigDict(title="ToolResult", extra="forbid")

    call_id: Annotated[str, StringConstraints(min_length=1, max_length=256)]
    output: Any = Field(description="What the tool returned, a JSON value; the model gets it.")
    is_error: StrictBool = Field(False, description="Whether the tool failed; then `output` says why.")

    def answer(self) -> ClientResultAnswer:
        return ClientResultAnswer(call_id=self.call_id, output=self.output, is_error=self.is_error)


class FeedbackBody(BaseModel):
    """A user's feedback on a turn. A null `value` withdraws it."""

    model_config = ConfigDict(title="Feedback")

    value: Literal["up", "down"] | None
    note: Annotated[str, StringConstraints(strip_whitespace=True, max_length=2_000)] | None = None


class PushKeys(BaseModel):
    p256dh: Annotated[str, StringConstraints(pattern=_BASE64URL, max_length=200)]
    auth: Annotated[str, StringConstraints(pattern=_BASE64URL, max_length=100)]


class PushSubscriptionBody(BaseModel):
    """A browser's push subscription, as `PushSubscription.toJSON()` returns it."""

    model_config = ConfigDict(title="PushSubscription")

    endpoint: Annotated[str, StringConstraints(min_length=1, max_length=2_000)]
    keys: PushKeys


class PushEndpointBody(BaseModel):
    """The subscription to remove."""

    endpoint: Annotated[str, StringConstraints(min_length=1, max_length=2_000)]


class LoginBody(BaseModel):
    """An API key, to be exchanged for a cookie."""

    model_config = ConfigDict(title="Login")

    key: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=500)]


class KeyBody(BaseModel):
    """A new API key."""

    principal: ClientId
    scopes: list[Scope] = Field(["read", "write", "approve"], min_length=1)
    expires_at: int | None = Field(None, ge=0, le=LAST_MS, description="Unix time in milliseconds.")


class JsonRpcRequest(BaseModel):
    """A request of JSON-RPC 2.0, as the OpenAPI document has it; MCP and A2A read it themselves."""

    jsonrpc: Literal["2.0"]
    method: str
    id: str | int | None = None
    params: dict[str, Any] = {}


class WireMessageBody(MessageBody):
    """A message of a protocol with fields of its own, which the agent finds in its options."""

    extra_options: dict[str, Any] = Field(default_factory=dict[str, Any])

    @property
    def options(self) -> dict[str, Any]:
        return {**super().options, **self.extra_options}

    def fingerprint(self) -> str:
        # `on_busy` follows from the state of the session, which may change before a client repeats its request; so may
        # the data of its application.
        return MessageBody.fingerprint(self.model_copy(update={"on_busy": "enqueue", "metadata": None}))


def parse_json(model: type[Model], data: str | bytes, name: str = "body") -> Model:
    """Return the object in a body or a socket's message. Raises HttpError 400 or 422."""
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        if first["type"] == "json_invalid":
            raise HttpError(400, "invalid_json", f"the {name} is not JSON: {first['msg']}") from None
        raise invalid_body(error) from None


def parse_fields(model: type[Model], fields: Mapping[str, Any]) -> Model:
    """Return the object with these fields. Raises HttpError 422."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise invalid_body(error) from None


class Cursor(msgspec.Struct, frozen=True):
    """The last position that a client has, and the epoch it saw there, if it knows."""

    position: int = 0
    epoch: int | None = None


def parse_cursor(query: dict[str, str], headers: dict[bytes, bytes]) -> Cursor:
    """Return the cursor of a request. Raises BadCursorError.

    `Last-Event-ID` comes before `after`, because a browser that reconnects keeps the URL and adds the header.
    """
    for field, text in (
        ("Last-Event-ID", headers.get(b"last-event-id", b"").decode("latin-1")),
        ("after", query.get("after", "")),
    ):
        if text:
            match = _CURSOR.fullmatch(text)
            if match is None:
                raise BadCursorError(field)
            return Cursor(int(match[1]), int(match[2]) if match[2] else None)
    return Cursor()


def parse_count(text: str) -> int | None:
    """Parse a decimal number of at most 15 digits. Return None for any other text."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 15 else None


def parse_frame_number(text: str, field: str) -> int:
    """Return the number of the last frame that a client has. Raises BadCursorError."""
    number = parse_count(text)
    if number is None:
        raise BadCursorError(field)
    return number


def parse_offset(query: dict[str, str]) -> int | None:
    """Return how many bytes of a text stream a client has. Raises HttpError 422."""
    text = query.get("offset")
    if text is None:
        return None
    offset = parse_count(text)
    if offset is None:
        raise invalid_request("offset: not a number of bytes")
    return offset


def parse_session_cursor(query: dict[str, str], headers: dict[bytes, bytes]) -> tuple[str, int] | None:
    """Return the turn and position of a session stream's id, `<turn_id>:<position>`. Raises BadCursorError."""
    text = headers.get(b"last-event-id", b"").decode("latin-1") or query.get("after", "")
    if not text:
        return None
    turn_id, _, number = text.rpartition(":")
    position = parse_count(number)
    if not re.fullmatch(_ID, turn_id) or position is None:
        raise BadCursorError("Last-Event-ID" if b"last-event-id" in headers else "after")
    return turn_id, position


def check_key(text: str) -> str | None:
    """Return an idempotency key; None for an empty one. Raises HttpError 422."""
    key = text.strip()
    if "\x00" in key:
        raise invalid_request("Idempotency-Key: must not contain the character NUL")
    if len(key) > _MAX_KEY_LENGTH:
        raise invalid_request(f"Idempotency-Key: longer than {_MAX_KEY_LENGTH} characters")
    return key or None


def check_id(text: str) -> str:
    """Return an id of a path. Raises HttpError 404 for text that cannot be an id."""
    if not re.fullmatch(_ID, text):
        raise HttpError(404, "not_found", "nothing has this id")
    return text
