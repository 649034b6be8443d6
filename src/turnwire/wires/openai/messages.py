"""The request bodies of OpenAI clients, the messages in them, and errors in OpenAI's format."""

import hashlib
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta, Struct
from pydantic import BaseModel, Field

from turnwire.core.errors import ModelOptionNotTakenError
from turnwire.core.log.codec import clean_text
from turnwire.core.log.turns import Message, ToolRequest
from turnwire.server.attachments import Attachment, file_fields, guess_type
from turnwire.server.errors import HttpError
from turnwire.server.messages import ModelOptionsBody, WireMessageBody, check_id, parse_fields, parse_json
from turnwire.server.turns import Place
from turnwire.wires.frames import as_object
from turnwire.wires.openai.chat.encoder import parse_call_id

_STATUSES = {
    "agent_not_found": 404,
    # OpenAI clients retry a 409.
    "approval_conflict": 400,
    "approval_not_found": 400,
    "idempotency_conflict": 400,
    "reply_conflict": 400,
    "turn_not_waiting": 400,
}
_CODES = {"agent_not_found": "model_not_found", "unauthorized": "invalid_api_key"}
_PARAMS = {"agent_not_found": "model"}
_ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_FILE_PARTS = ("image_url", "input_image", "file", "input_file", "input_audio")
_IGNORED_ITEMS = ("reasoning", "mcp_approval_request", "item_reference")


# Errors


def invalid(param: str, message: str, code: str = "invalid_request") -> HttpError:
    """Return a 400 that names the field."""
    return HttpError(400, code, f"{param}: {message}", param=param)


def check_client_id(param: str, text: str) -> str:
    """Return the client's id of a session. Raise HttpError 400."""
    try:
        return check_id(text)
    except HttpError:
        raise invalid(param, "an id has up to 128 letters, digits and . _ : @ -") from None


def option_not_taken(error: ModelOptionNotTakenError, body: "ResponseBody | CompletionBody") -> HttpError:
    """Return a 400 for a model option, under the name that the client has for it."""
    if isinstance(body, ResponseBody):
        names = {"max_tokens": "max_output_tokens", "response_format": "text.format"}
    else:
        names = {"instructions": "messages"}
        if body.max_tokens is None:
            names["max_tokens"] = "max_completion_tokens"
    code = "unsupported_content" if error.option == "response_format" else error.code
    return invalid(names.get(error.option, error.option), error.problem, code)


def openai_error(error: HttpError) -> HttpError:
    """Return an error as OpenAI's clients expect it."""
    status = _STATUSES.get(error.code, 400 if error.status in (416, 422) else error.status)
    more = dict(error.more)
    fields = more.pop("fields", None)
    param = more.pop("param", fields[0]["field"] if fields else _PARAMS.get(error.code))
    error_type = _ERROR_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    code = _CODES.get(error.code, error.code)
    return HttpError(status, code, str(error), headers=error.headers, type=error_type, param=param, **more)


# Bodies


class _PromptOptions(BaseModel):
    """The fields that both APIs have."""

    model: str | None = None
    stream: bool | None = None
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    metadata: dict[str, str] | None = Field(None, max_length=16)
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    user: str | None = None


class ResponseBody(_PromptOptions):
    """The body of `POST /v1/responses`; other fields are ignored."""

    input: Any = None
    instructions: str | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    include: list[Any] | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    parallel_tool_calls: bool | None = None
    top_logprobs: int | None = None
    truncation: str | None = None
    reasoning: dict[str, Any] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    store: bool | None = None


class CompletionBody(_PromptOptions):
    """The body of `POST /v1/chat/completions`; other fields are ignored."""

    messages: Any = None
    stream_options: dict[str, Any] | None = None
    n: int | None = None
    response_format: dict[str, Any] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    reasoning_effort: str | None = None
    stop: str | list[str] | None = None


class PromptBody(WireMessageBody):
    """A message from such a body. `sent` is the message with the conversation around it, as the client sent it."""

    sent: list[Any] = Field(default_factory=list[Any])

    def fingerprint(self) -> str:
        # Without the session: it may be found differently when a client repeats its request.
        fields = [self.agent, self.options, self.sent]
        if self.attachments:
            fields.append(msgspec.to_builtins([attachment.described() for attachment in self.attachments]))
        return hashlib.sha256(msgspec.json.encode(fields)).hexdigest()


def parse_response_body(data: bytes | Mapping[str, Any]) -> ResponseBody:
    """Parse the body of a request or a socket's message. Raise HttpError 4xx."""
    body = parse_json(ResponseBody, data) if isinstance(data, bytes) else parse_fields(ResponseBody, data)
    if body.store is False:
        raise invalid("store", "responses are kept in a log; leave it out, and delete the response when you have it")
    return body


def parse_completion_body(data: bytes) -> CompletionBody:
    """Raise HttpError 4xx."""
    body = parse_json(CompletionBody, data)
    if body.n not in (None, 1):
        raise invalid("n", "only one answer is supported; send 1 or leave it out")
    return body


def prompt_body(
    message: str,
    *,
    session_id: str | None,
    model: str | None,
    options: dict[str, Any],
    sent: Sequence[Any],
    attachments: Sequence[Attachment] = (),
    tools: Sequence[dict[str, Any]] = (),
) -> PromptBody:
    """Return the message to start a turn with. Raise HttpError 4xx."""
    if not clean_text(message).strip() and not attachments:
        raise invalid("input", "the last message has no text")
    return parse_fields(
        PromptBody,
        {
            "message": message,
            "attachments": list(attachments),
            "session_id": session_id,
            "agent": model,
            "extra_options": options,
            "tools": list(tools),
            "sent": msgspec.to_builtins(sent),
        },
    )


def format_options(body: ResponseBody | CompletionBody) -> dict[str, Any]:
    """Return the options of a turn for the form of its answer, its stop words and its choice of tools.

    The choice keeps the form in which the client sent it. Raise HttpError 400.
    """
    is_chat = isinstance(body, CompletionBody)
    param = "response_format" if is_chat else "text.format"
    sent: Any = body.response_format if is_chat else (body.text or {}).get("format")
    fields = {"response_format": sent if is_chat else _chat_format(sent), "stop": body.stop if is_chat else None}
    try:
        options = parse_fields(ModelOptionsBody, fields).to_options()
    except HttpError as error:
        is_stop = str(error).startswith("stop")
        raise invalid("stop" if is_stop else param, str(error), "unsupported_content") from None
    if body.tool_choice not in (None, "auto"):
        _check_choice(body.tool_choice)
        options["tool_choice"] = body.tool_choice
    return options


def _chat_format(answer_format: Any) -> Any:
    """Return the format of a response in the form of Chat Completions, which turns keep."""
    if not isinstance(answer_format, dict):
        return answer_format
    fields = cast("dict[str, Any]", answer_format)
    if fields.get("type") != "json_schema":
        return fields
    schema = {name: fields[name] for name in ("name", "schema", "strict") if name in fields}
    return {"type": "json_schema", "json_schema": schema}


def _check_choice(choice: Any) -> None:
    if isinstance(choice, dict):
        fields = cast("dict[str, Any]", choice)
        function = as_object(fields.get("function")) or fields
        if fields.get("type") == "function" and isinstance(function.get("name"), str):
            return
    elif choice in ("none", "required"):
        return
    message = "send `auto`, `none`, `required`, or one function by its name"
    raise invalid("tool_choice", message, "unsupported_content")


# Tools that the client runs


def client_functions(body: ResponseBody | CompletionBody) -> list[dict[str, Any]]:
    """Return the functions that a body declares, as a message declares tools. Raise HttpError 400."""
    functions = [_function(tool, f"tools[{index}]") for index, tool in enumerate(body.tools or [])]
    return [] if body.tool_choice == "none" else functions


def _function(tool: Any, param: str) -> dict[str, Any]:
    fields = as_object(tool)
    if fields.get("type") != "function":
        raise invalid(f"{param}.type", "only tools of the type `function` are supported", "unsupported_content")
    # Chat Completions has the function in a field of its own.
    function = fields.get("function", fields)
    if not isinstance(function, dict):
        raise invalid(f"{param}.function", "not an object")
    named = {name: cast("dict[str, Any]", function).get(name) for name in ("name", "description", "parameters")}
    return {name: value for name, value in named.items() if value}


# Conversations: `input` of a response, `messages` of a completion


class ApprovalItem(Struct, frozen=True):
    """A decision about an approval request."""

    request_id: str
    approved: bool
    reason: str | None = None


class _Verdict(Struct, frozen=True):
    approved: bool
    reason: Annotated[str, Meta(max_length=2_000)] | None = None


class ClientConversation(Struct, frozen=True, kw_only=True):
    """A conversation of a client. `message` is None if it has only answers that a turn waits for.

    `results` are the results of calls that the server has made, at the end of the conversation.
    """

    message: str | None
    attachments: tuple[Attachment, ...] = ()
    history: tuple[Message, ...] = ()
    history_files: tuple[Attachment, ...] = ()
    instructions: tuple[str, ...] = ()
    approvals: tuple[ApprovalItem, ...] = ()
    results: tuple[Message, ...] = ()

    @property
    def place(self) -> Place:
        """Return the place of the message in a new session, which keeps the earlier messages."""
        return Place(history=self.history, history_files=self.history_files)


def read_input(value: Any) -> ClientConversation:
    """Parse the `input` of a response. Raise HttpError 400."""
    if isinstance(value, str):
        return ClientConversation(message=value)
    parser = _InputParser()
    for param, item in _objects(value, "input"):
        kind = item.get("type") or "message"
        match kind:
            case "message":
                parser.add_message(item.get("role"), item.get("content"), param)
            case "function_call":
                parser.add_calls([_call(item, item.get("call_id"), param)])
            case "function_call_output":
                parser.add_result(item.get("call_id"), _text(item.get("output"), f"{param}.output"), param)
            case "mcp_approval_response":
                parser.approvals.append(_approval(item, param))
            case "mcp_call":
                parser.add_calls([_call(item, item.get("id"), param)])
                parser.add_result(item.get("id"), str(item.get("output") or _error_text(item.get("error"))), param)
            case _ if kind in _IGNORED_ITEMS:
                pass
            case _:
                raise invalid(param, f"items of type {kind!r} are not supported", "unsupported_content")
    return parser.conversation("input")


def _error_text(error: Any) -> str:
    """Return the text of the error of a call that the server has run: a string, or an object with parts of text."""
    parts: Any = as_object(error).get("content")
    if not isinstance(parts, list):
        return str(as_object(error).get("message") or error or "")
    return "".join(str(as_object(part).get("text") or "") for part in cast("list[Any]", parts))


def read_messages(value: Any) -> ClientConversation:
    """Parse the `messages` of a completion. Raise HttpError 400."""
    parser = _InputParser()
    for param, message in _objects(value, "messages"):
        role, content = message.get("role"), message.get("content")
        calls = message.get("tool_calls") if role == "assistant" else None
        content = "" if content is None and role == "assistant" else content
        if role == "tool":
            parser.add_result(message.get("tool_call_id"), _text(content, f"{param}.content"), param)
        elif calls:
            requests = [
                _call(call.get("function"), call.get("id"), call_param)
                for call_param, call in _objects(calls, f"{param}.tool_calls")
            ]
            parser.add_calls(requests, _text(content, f"{param}.content"))
        else:
            parser.add_message(role, content, param)
    return parser.conversation("messages")


class _InputParser:
    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.instructions: list[str] = []
        self.approvals: list[ApprovalItem] = []
        self.files: list[list[Attachment]] = []
        """The files of each message of the user."""

    def add_message(self, role: Any, content: Any, param: str) -> None:
        if role in ("system", "developer"):
            self.instructions.append(_text(content, f"{param}.content"))
        elif role == "assistant":
            self.messages.append(Message(role, _text(content, f"{param}.content")))
        elif role == "user":
            text, files = _text_and_files(content, f"{param}.content")
            self.messages.append(Message("user", text, attachments=tuple(file.described() for file in files)))
            self.files.append(files)
        else:
            raise invalid(f"{param}.role", "unknown role; send `system`, `developer`, `user`, `assistant` or `tool`")

    def add_calls(self, calls: Sequence[ToolRequest], text: str = "") -> None:
        last = self.messages[-1] if self.messages else None
        if last is not None and last.tool_calls and not text:
            # Calls in a row came from one answer of the model.
            self.messages[-1] = msgspec.structs.replace(last, tool_calls=(*last.tool_calls, *calls))
        else:
            self.messages.append(Message("assistant", text, tool_calls=tuple(calls)))

    def add_result(self, call_id: Any, text: str, param: str) -> None:
        if not isinstance(call_id, str):
            raise invalid(param, "a result must name its call")
        self.messages.append(Message("tool", text, call_id=call_id))

    def conversation(self, param: str) -> ClientConversation:
        message, attachments = None, list[Attachment]()
        if (results := self._last_results()) or (self.approvals and not self.messages):
            return ClientConversation(message=None, approvals=tuple(self.approvals), results=tuple(results))
        if self.messages and self.messages[-1].role == "user":
            message, attachments = self.messages.pop().content, self.files.pop()
        else:
            raise invalid(param, "the last message must be the user's")
        return ClientConversation(
            message=message,
            attachments=tuple(attachments),
            history=tuple(self.messages),
            history_files=tuple(file for files in self.files for file in files),
            instructions=tuple(self.instructions),
            approvals=tuple(self.approvals),
        )

    def _last_results(self) -> list[Message]:
        """Return the results at the end, if all of them are of calls that this server has made."""
        results = list(takewhile(lambda message: message.role == "tool", reversed(self.messages)))
        return results[::-1] if all(parse_call_id(result.call_id or "") for result in results) else []


def _objects(value: Any, param: str) -> list[tuple[str, dict[str, Any]]]:
    if not isinstance(value, list) or not value:
        raise invalid(param, "missing, or not a list of objects")
    items = cast("list[Any]", value)
    for index, item in enumerate(items):
        if not isinstance(item, dict):
            raise invalid(f"{param}[{index}]", "not an object")
    return [(f"{param}[{index}]", item) for index, item in enumerate(items)]


def _text(content: Any, param: str) -> str:
    if isinstance(content, str):
        return content
    return "".join(_part_text(part, part_param) for part_param, part in _objects(content, param))


def _part_text(part: dict[str, Any], param: str) -> str:
    name = _TEXT_PARTS.get(str(part.get("type")))
    if name is None:
        raise invalid(param, f"only text is supported here, not {part.get('type')!r}", "unsupported_content")
    text = part.get(name)
    if not isinstance(text, str):
        raise invalid(f"{param}.{name}", "not a string")
    return text


def _text_and_files(content: Any, param: str) -> tuple[str, list[Attachment]]:
    """Return the text of a user's message, and its files."""
    if not isinstance(content, list):
        return _text(content, param), []
    texts: list[str] = []
    files: list[Attachment] = []
    for part_param, part in _objects(content, param):
        if part.get("type") in _FILE_PARTS:
            files.append(_file(part, part_param))
        else:
            texts.append(_part_text(part, part_param))
    return "".join(texts), files


def _file(part: dict[str, Any], param: str) -> Attachment:
    """Return the file of a part: an image, or a file by its data or its URL."""
    kind = str(part["type"])
    if kind in ("image_url", "input_image"):
        image = part.get("image_url")
        url = as_object(image).get("url", image)
        if not isinstance(url, str):
            raise invalid(f"{param}.image_url", "send a URL, which may be a data URL", "unsupported_content")
        fields = file_fields(url, kind="image")
    elif kind == "input_audio":
        audio = as_object(part.get("input_audio"))
        fields = {"data": audio.get("data"), "media_type": f"audio/{audio.get('format')}"}
    else:
        file = as_object(part.get("file")) if kind == "file" else part
        name, data, url = file.get("filename"), file.get("file_data"), file.get("file_url")
        if isinstance(data, str) and not data.startswith("data:"):
            guessed = guess_type(name) if isinstance(name, str) else None
            fields = {"data": data, "media_type": guessed or "application/pdf", "name": name}
        elif isinstance(address := data or url, str):
            fields = file_fields(address, name=name if isinstance(name, str) else None)
        else:
            raise invalid(param, "send the file itself as `file_data`, not a `file_id`", "unsupported_content")
    try:
        return parse_fields(Attachment, fields)
    except HttpError as error:
        raise invalid(param, str(error)) from None


def _call(function: Any, call_id: Any, param: str) -> ToolRequest:
    try:
        name, arguments = str(function["name"]), msgspec.json.decode(function.get("arguments") or "{}")
        if isinstance(arguments, dict) and isinstance(call_id, str):
            return ToolRequest(call_id, name, cast("dict[str, Any]", arguments))
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        pass
    raise invalid(param, "not a function call with an id, a name and arguments as a JSON object")


def verdict(result: Message) -> ApprovalItem:
    """Return the decision in a tool result. Only exact words count: a program that runs calls must not approve one."""
    decisions = {"approved": {"approved": True}, "denied": {"approved": False}}
    try:
        decision = decisions.get(result.content.strip()) or msgspec.json.decode(result.content)
        decided = msgspec.convert(decision, _Verdict)
    except (ValueError, RecursionError):
        message = 'answer a call that waits for approval with `approved`, `denied` or {"approved": …, "reason": …}'
        raise invalid("messages", message) from None
    return ApprovalItem(result.call_id or "", decided.approved, decided.reason)


def _approval(item: dict[str, Any], param: str) -> ApprovalItem:
    request_id, approved, reason = item.get("approval_request_id"), item.get("approve"), item.get("reason")
    if not isinstance(request_id, str):
        raise invalid(f"{param}.approval_request_id", "missing")
    if not isinstance(approved, bool):
        raise invalid(f"{param}.approve", "must be true or false")
    if reason is not None and (not isinstance(reason, str) or len(reason) > 2_000):
        raise invalid(f"{param}.reason", "must be a string of at most 2,000 characters")
    return ApprovalItem(request_id, approved, reason)
