"""The requests of A2A, in both versions, and its errors."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Struct
from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel

from turnwire.core.log.codec import ascii_json
from turnwire.core.log.turns import Question
from turnwire.server.errors import HttpError, invalid_request
from turnwire.server.messages import ClientId, ReplyBody, ToolResultBody, WireMessageBody, parse_fields
from turnwire.wires.frames import as_object, omit_none

_MAX_PARTS = 200
_YES = frozenset({"approve", "approved", "allow", "yes", "y", "ok"})
_NO = frozenset({"deny", "denied", "refuse", "refused", "reject", "rejected", "no", "n"})
_FILE = "application/octet-stream"
_NAMES = (
    *("UNSPECIFIED", "SUBMITTED", "WORKING", "COMPLETED", "FAILED", "CANCELED"),
    *("INPUT_REQUIRED", "REJECTED", "AUTH_REQUIRED"),
)
TASK_STATES = tuple(f"TASK_STATE_{name}" for name in _NAMES)
"""The states of the protocol; tasks of ours have some of them."""


_EMPTY_IS_NONE = BeforeValidator(lambda value: value or None)
OptionalId = Annotated[ClientId | None, _EMPTY_IS_NONE]


class _A2aModel(BaseModel):
    """Fields are in camel case or, as in any ProtoJSON, in snake case. Unknown ones are ignored."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore")


class Part(_A2aModel):
    """A piece of a message: text, data, or a file by its bytes or its address."""

    text: str | None = None
    data: Any = None
    raw: str | None = None
    url: str | None = None
    filename: str | None = None
    media_type: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _unwrap_file(cls, part: Any) -> Any:
        """Read a file as A2A 0.3 has it, in an object of its own."""
        file = as_object(part).get("file")
        if not isinstance(file, dict):
            return part
        known = as_object(file)
        content = {"raw": known.get("bytes"), "url": known.get("uri")}
        return omit_none(**content, filename=known.get("name"), mediaType=known.get("mimeType"))

    @model_validator(mode="after")
    def _has_one_content(self) -> "Part":
        if [self.text, self.data, self.raw, self.url].count(None) != 3:
            raise ValueError("a part has exactly one of `text`, `data`, `raw` and `url`")
        return self

    @property
    def attachment(self) -> dict[str, Any] | None:
        """Return a file as the attachment of a message; None for text and data."""
        if self.raw is None and self.url is None:
            return None
        fields = {"media_type": self.media_type or _FILE, "name": self.filename, "url": self.url}
        return omit_none(**fields, data=None if self.raw is None else _standard_base64(self.raw))


def _standard_base64(text: str) -> str:
    """Return base64 in the form that attachments have; ProtoJSON takes the alphabet of addresses and no padding too."""
    digits = "".join(text.split()).rstrip("=").translate(str.maketrans("-_", "+/"))
    return digits + "=" * (-len(digits) % 4)


class A2aMessage(_A2aModel):
    message_id: str = Field(min_length=1, max_length=200)
    context_id: OptionalId = None
    task_id: OptionalId = None
    role: Literal["ROLE_USER", "user"]
    parts: list[Part] = Field(min_length=1, max_length=_MAX_PARTS)
    metadata: dict[str, Any] | None = None

    @property
    def text(self) -> str:
        """Return the text for the agent; data is shown to it as JSON."""
        pieces = (part.text if part.text is not None else _json_text(part.data) for part in self.parts)
        return "\n".join(piece for piece in pieces if piece)


def _json_text(data: Any) -> str:
    return "" if data is None else msgspec.json.encode(data).decode()


class PushConfig(_A2aModel):
    """The address that is called when a task waits or has ended."""

    id: OptionalId = None
    url: str = Field(max_length=2_000)
    token: str | None = Field(None, max_length=1_000, pattern=r"^[\x21-\x7e]*$")
    authentication: "PushAuthentication | None" = None


class PushAuthentication(_A2aModel):
    """How the address authenticates the call. A2A 0.3 has a list of schemes, of which the first counts."""

    scheme: str = Field("", max_length=100, pattern="^[A-Za-z0-9-]*$")
    schemes: list[Annotated[str, StringConstraints(max_length=100, pattern="^[A-Za-z0-9-]*$")]] = []
    credentials: str | None = Field(None, max_length=4_000, pattern=r"^[\x20-\x7e]*$")

    @property
    def name(self) -> str | None:
        return self.scheme or next(iter(self.schemes), None)

    @property
    def header(self) -> str | None:
        """Return the `Authorization` header."""
        return f"{self.name} {self.credentials}" if self.name and self.credentials else None


class SendConfiguration(_A2aModel):
    history_length: int | None = Field(None, ge=0)
    return_immediately: bool = False
    blocking: bool | None = None
    push: PushConfig | None = Field(
        None,
        validation_alias=AliasChoices(
            "taskPushNotificationConfig", "task_push_notification_config", "pushNotificationConfig"
        ),
    )

    @property
    def waits(self) -> bool:
        """Return True if the answer is the settled task."""
        return not self.return_immediately and self.blocking is not False


class SendParams(_A2aModel):
    message: A2aMessage
    configuration: SendConfiguration = Field(default_factory=lambda: SendConfiguration.model_validate({}))
    metadata: dict[str, Any] | None = None


class TaskParams(_A2aModel):
    id: ClientId
    history_length: int | None = Field(None, ge=0)


class ListTasksParams(_A2aModel):
    context_id: OptionalId = None
    status: Annotated[str | None, _EMPTY_IS_NONE] = None
    page_size: int = Field(50, ge=1, le=100)
    page_token: OptionalId = None
    history_length: int | None = Field(None, ge=0)
    status_timestamp_after: datetime | None = None
    include_artifacts: bool = False

    @field_validator("status")
    @classmethod
    def _is_state(cls, status: str | None) -> str | None:
        if status is not None and status not in TASK_STATES:
            raise ValueError(f"must be one of {', '.join(TASK_STATES)}")
        return status

    @field_validator("status_timestamp_after", mode="before")
    @classmethod
    def _is_timestamp(cls, value: Any) -> Any:
        # A number would be taken for a Unix time.
        if isinstance(value, str) and not re.match(r"\d{4}-\d\d-\d\dT", value):
            raise ValueError("must be a time in ISO 8601")
        return value

    @field_validator("status_timestamp_after")
    @classmethod
    def _has_zone(cls, value: datetime | None) -> datetime | None:
        return value if value is None or value.tzinfo is not None else value.replace(tzinfo=UTC)


class SetPushParams(_A2aModel):
    """A new push configuration; A2A 0.3 has it in an object of its own."""

    task_id: ClientId
    config: PushConfig

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, fields: Any) -> Any:
        if not isinstance(fields, dict):
            return fields
        known = as_object(fields)
        config: Any = known.get("pushNotificationConfig", known)
        return {"taskId": known.get("taskId", known.get("task_id")), "config": config}


class PushParams(_A2aModel):
    """A task, and one of its push configurations. A2A 0.3 calls them `id` and `pushNotificationConfigId`."""

    task_id: ClientId
    id: ClientId | None = None

    @model_validator(mode="before")
    @classmethod
    def _rename(cls, fields: Any) -> Any:
        known = as_object(fields)
        if not known or "taskId" in known or "task_id" in known:
            return fields
        return omit_none(taskId=known.get("id"), id=known.get("pushNotificationConfigId"))


def prompt_body(params: SendParams, agent: str) -> WireMessageBody:
    """Return the message that begins a task. Raises HttpError 422."""
    sent = params.message
    metadata = {**(params.metadata or {}), **(sent.metadata or {})}
    return parse_fields(
        WireMessageBody,
        {
            "message": sent.text,
            "session_id": sent.context_id,
            "agent": agent,
            "attachments": [attachment for part in sent.parts if (attachment := part.attachment)],
            "extra_options": omit_none(
                message_id=sent.message_id, context_id=sent.context_id, metadata=metadata or None
            ),
        },
    )


# Answers


class CallDecision(BaseModel):
    """A person's decision about one call, or about all that wait."""

    call_id: str | None = None
    approved: bool
    reason: str | None = Field(None, max_length=2_000)


class TaskAnswers(BaseModel):
    """The answers in a message to a task that waits: decisions, replies to questions, results of tools."""

    approvals: list[CallDecision] = Field([], max_length=_MAX_PARTS)
    replies: list[ReplyBody] = Field([], max_length=_MAX_PARTS)
    tool_results: list[ToolResultBody] = Field([], max_length=_MAX_PARTS)


def read_answers(sent: A2aMessage, *, decides: bool, question: Question | None) -> TaskAnswers:
    """Return the answers in a message. Raises HttpError 422.

    Without ids, the message is a decision if the task waits for some (`decides`), and otherwise the reply to its
    question, if it has exactly one.
    """
    for part in sent.parts:
        data: Any = part.data
        fields = as_object(data)
        if fields.keys() & TaskAnswers.model_fields.keys():
            return parse_fields(TaskAnswers, fields)
        if isinstance(data, dict) and decides:
            return parse_fields(TaskAnswers, {"approvals": [fields]})
        if part.data is not None and question is not None:
            return _reply(question, part.data)
    if decides:
        return parse_fields(TaskAnswers, {"approvals": [_decision_of_text(sent.text)]})
    if question is not None:
        return _reply(question, _value_of_text(question.schema or {}, sent.text.strip()))
    raise invalid_request("message.parts: the task waits for several answers; send a data part that names each")


def _reply(question: Question, value: Any) -> TaskAnswers:
    return parse_fields(TaskAnswers, {"replies": [{"question_id": question.id, "value": value}]})


def _decision_of_text(text: str) -> dict[str, Any]:
    word, _, reason = text.strip().partition(" ")
    answer = re.sub(r"[^a-z]", "", word.lower())
    if answer not in _YES | _NO:
        raise invalid_request("message.parts: the task waits for a decision; begin with `approve` or `deny`")
    return {"approved": answer in _YES, "reason": reason.strip(" .,;:-") or None}


def _value_of_text(schema: Mapping[str, Any], text: str) -> Any:
    """Return the value that a text stands for; the text itself if it stands for none, which is then refused."""
    kind = schema.get("type", "string")
    if kind == "string":
        return text
    if kind == "boolean" and text.lower() in _YES | _NO:
        return text.lower() in _YES
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


# Errors


class ErrorKind(Struct, frozen=True):
    """An error of the protocol: its code in JSON-RPC, its status in HTTP, and its name in both."""

    code: int
    status: int
    grpc: str
    reason: str


TASK_NOT_FOUND = ErrorKind(-32001, 404, "NOT_FOUND", "TASK_NOT_FOUND")
NOT_CANCELABLE = ErrorKind(-32002, 400, "FAILED_PRECONDITION", "TASK_NOT_CANCELABLE")
PUSH_NOT_SUPPORTED = ErrorKind(-32003, 400, "FAILED_PRECONDITION", "PUSH_NOTIFICATION_NOT_SUPPORTED")
UNSUPPORTED = ErrorKind(-32004, 400, "FAILED_PRECONDITION", "UNSUPPORTED_OPERATION")
CONTENT_TYPE = ErrorKind(-32005, 400, "INVALID_ARGUMENT", "CONTENT_TYPE_NOT_SUPPORTED")
UNSUPPORTED_BODY = ErrorKind(-32005, 415, "INVALID_ARGUMENT", "CONTENT_TYPE_NOT_SUPPORTED")
VERSION_NOT_SUPPORTED = ErrorKind(-32009, 400, "FAILED_PRECONDITION", "VERSION_NOT_SUPPORTED")
INVALID_JSON = ErrorKind(-32700, 400, "INVALID_ARGUMENT", "INVALID_JSON")
INVALID_REQUEST = ErrorKind(-32600, 400, "INVALID_ARGUMENT", "INVALID_REQUEST")
METHOD_NOT_FOUND = ErrorKind(-32601, 404, "NOT_FOUND", "METHOD_NOT_FOUND")
INVALID_PARAMS = ErrorKind(-32602, 400, "INVALID_ARGUMENT", "INVALID_PARAMS")
INTERNAL = ErrorKind(-32603, 500, "INTERNAL", "INTERNAL_ERROR")

_KINDS: Mapping[str, ErrorKind] = {
    "turn_not_found": TASK_NOT_FOUND,
    "session_not_found": TASK_NOT_FOUND,
    "not_found": TASK_NOT_FOUND,
    "attachments_not_taken": CONTENT_TYPE,
    "unsupported_media_type": UNSUPPORTED_BODY,
    "invalid_json": INVALID_JSON,
    "invalid_request": INVALID_PARAMS,
    "method_not_found": METHOD_NOT_FOUND,
    "invalid_reply": INVALID_PARAMS,
    "bad_cursor": INVALID_PARAMS,
    "bad_offset": INVALID_PARAMS,
    "idempotency_conflict": INVALID_PARAMS,
    "turn_not_waiting": UNSUPPORTED,
}
_GRPC = {401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 409: "ABORTED", 429: "RESOURCE_EXHAUSTED"}


class A2aError(HttpError):
    """An error of the protocol itself."""

    def __init__(self, kind: ErrorKind, message: str) -> None:
        super().__init__(kind.status, kind.reason.lower(), message)
        self.kind = kind


def error_kind(error: HttpError) -> ErrorKind:
    if isinstance(error, A2aError):
        return error.kind
    known = _KINDS.get(error.code)
    if known is not None:
        return known
    grpc = _GRPC.get(error.status, "INTERNAL" if error.status >= 500 else "FAILED_PRECONDITION")
    code = INTERNAL.code if error.status >= 500 else UNSUPPORTED.code
    return ErrorKind(code, error.status, grpc, error.code.upper())


def error_details(error: HttpError) -> list[dict[str, Any]]:
    info = {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": error_kind(error).reason,
        "domain": "a2a-protocol.org",
        "metadata": {"code": error.code},
    }
    fields: list[dict[str, str]] = error.more.get("fields", [])
    if not fields:
        return [info]
    violations = [{"field": item["field"], "description": item["problem"]} for item in fields]
    return [info, {"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": violations}]


def rpc_error(request_id: bytes, error: HttpError) -> bytes:
    """Return an error as a JSON-RPC response."""
    body = {"code": error_kind(error).code, "message": str(error), "data": error_details(error)}
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (request_id, ascii_json(body))


def rest_error(error: HttpError) -> HttpError:
    """Return an error in the shape of the REST binding."""
    kind = error_kind(error)
    answer = HttpError(kind.status, error.code, str(error), headers=error.headers)
    body = {"code": kind.status, "status": kind.grpc, "message": str(error), "details": error_details(error)}
    answer.body = ascii_json({"error": body})
    return answer
