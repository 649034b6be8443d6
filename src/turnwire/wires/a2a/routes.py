"""The routes of A2A: `/a2a/{agent}` speaks JSON-RPC, the paths below it are the REST binding, and agents have cards."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from typing import Any, cast

import msgspec
from msgspec import Struct
from pydantic import BaseModel

from turnwire.core.errors import TurnwireError
from turnwire.core.log.codec import ascii_json
from turnwire.server.errors import HttpError, http_error, internal_error, invalid_request
from turnwire.server.messages import JsonRpcRequest, parse_fields, parse_json
from turnwire.server.request import Request, body_headers
from turnwire.server.router import Endpoint, Json, Parameter, Route, response
from turnwire.server.services import Services
from turnwire.server.streams.stream import Stream
from turnwire.wires.a2a import tasks
from turnwire.wires.a2a.frames import PREFIX, VERSIONS, WELL_KNOWN, Version, agent_card, rpc_result
from turnwire.wires.a2a.messages import (
    INVALID_JSON,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    UNSUPPORTED,
    VERSION_NOT_SUPPORTED,
    A2aError,
    ListTasksParams,
    PushConfig,
    PushParams,
    SendParams,
    SetPushParams,
    TaskParams,
    rest_error,
    rpc_error,
)
from turnwire.wires.a2a.settings import A2aSettings
from turnwire.wires.a2a.tasks import TaskCall

logger = logging.getLogger("turnwire.wires.a2a")

_CANCEL, _SUBSCRIBE = ":cancel", ":subscribe"
_CARD_SECONDS = 300


class _NoParams(BaseModel):
    """The parameters of an operation that has none."""


class _Operation(Struct, frozen=True):
    """An operation: its name in each version of the protocol, its parameters, and the function that does it."""

    names: Mapping[Version, str]
    params: type[BaseModel]
    function: Callable[[TaskCall, Any], Awaitable[Any]]


async def _extended_card(call: TaskCall, params: _NoParams) -> None:
    raise A2aError(UNSUPPORTED, "there is no extended card; the public one has everything")


_PUSH = "tasks/pushNotificationConfig/"
_OPERATIONS = (
    _Operation({"1.0": "SendMessage", "0.3": "message/send"}, SendParams, tasks.send),
    _Operation({"1.0": "SendStreamingMessage", "0.3": "message/stream"}, SendParams, tasks.send_streaming),
    _Operation({"1.0": "GetTask", "0.3": "tasks/get"}, TaskParams, tasks.get_task),
    _Operation({"1.0": "ListTasks"}, ListTasksParams, tasks.list_tasks),
    _Operation({"1.0": "CancelTask", "0.3": "tasks/cancel"}, TaskParams, tasks.cancel_task),
    _Operation({"1.0": "SubscribeToTask", "0.3": "tasks/resubscribe"}, TaskParams, tasks.subscribe),
    _Operation({"1.0": "CreateTaskPushNotificationConfig", "0.3": f"{_PUSH}set"}, SetPushParams, tasks.set_push),
    _Operation({"1.0": "GetTaskPushNotificationConfig", "0.3": f"{_PUSH}get"}, PushParams, tasks.get_push),
    _Operation({"1.0": "ListTaskPushNotificationConfigs", "0.3": f"{_PUSH}list"}, PushParams, tasks.list_push),
    _Operation({"1.0": "DeleteTaskPushNotificationConfig", "0.3": f"{_PUSH}delete"}, PushParams, tasks.delete_push),
    _Operation({"1.0": "GetExtendedAgentCard", "0.3": "agent/getAuthenticatedExtendedCard"}, _NoParams, _extended_card),
)
_METHODS: Mapping[str, tuple[_Operation, Version]] = {
    name: (operation, version) for operation in _OPERATIONS for version, name in operation.names.items()
}


# JSON-RPC


async def rpc(request: Request, services: Services) -> Stream | None:
    """Answer one JSON-RPC request: with its result, its error, or the stream of a task."""
    request_id = b"null"
    try:
        body = await _rpc_body(request)
        request_id = _request_id(body)
        _check_request(body)
        operation, version = _method(request, body.get("method"))
        call = TaskCall(request, services, _agent(request, services), version, request_id)
        result = await operation.function(call, parse_fields(operation.params, body.get("params") or {}))
    except TurnwireError as error:
        await request.respond_json_bytes(200, rpc_error(request_id, http_error(error)))
    except HttpError as error:
        status = 415 if error.status == 415 else 200
        await request.respond_json_bytes(status, rpc_error(request_id, error))
    except Exception:
        logger.exception("a request to %s failed", request.path)
        await request.respond_json_bytes(200, rpc_error(request_id, internal_error()))
    else:
        if isinstance(result, Stream):
            return result
        if result is not None or operation.function is not tasks.send:
            await request.respond_json_bytes(200, rpc_result(request_id, ascii_json(result)))
    return None


async def _rpc_body(request: Request) -> dict[str, Any]:
    try:
        body = msgspec.json.decode(await request.json_body())
    except msgspec.DecodeError:
        raise A2aError(INVALID_JSON, "the body is not JSON") from None
    if not isinstance(body, dict):
        raise A2aError(INVALID_REQUEST, "the body is not one request of JSON-RPC 2.0")
    return cast("dict[str, Any]", body)


def _request_id(body: dict[str, Any]) -> bytes:
    """Return the id of a request as JSON, which errors of the request have too."""
    value = body.get("id")
    if not isinstance(value, str | int | None) or isinstance(value, bool):
        raise A2aError(INVALID_REQUEST, "id: must be a string or an integer")
    return ascii_json(value)


def _check_request(body: dict[str, Any]) -> None:
    if body.get("jsonrpc") != "2.0" or not isinstance(body.get("method"), str):
        raise A2aError(INVALID_REQUEST, "a request of JSON-RPC 2.0 has `jsonrpc` and `method`")
    if not isinstance(body.get("params", {}), dict):
        raise invalid_request("params: must be an object")


def _method(request: Request, name: Any) -> tuple[_Operation, Version]:
    """Return the operation of a method, and the version of the protocol that has this name for it."""
    _check_version(request)
    if name not in _METHODS:
        raise A2aError(METHOD_NOT_FOUND, f"there is no method {name!r}")
    return _METHODS[name]


def _check_version(request: Request) -> None:
    text = request.header(b"a2a-version") or request.query.get("A2A-Version", "")
    if text and ".".join(text.split(".")[:2]) not in VERSIONS:
        raise A2aError(VERSION_NOT_SUPPORTED, f"this server speaks A2A {' and '.join(VERSIONS)}")


def _agent(request: Request, services: Services) -> str:
    """Return the agent of a path. Raises HttpError 404."""
    name = request.params["agent"]
    if name not in services.agents:
        raise HttpError(404, "not_found", f"there is no agent {name!r}")
    return name


# REST


def _rest(
    function: Callable[[TaskCall, Any], Awaitable[Any]], read: Callable[[Request], Awaitable[BaseModel]]
) -> Endpoint:
    """Return the endpoint of an operation, with the function that reads its parameters."""

    async def endpoint(request: Request, services: Services) -> Stream | None:
        _check_version(request)
        call = TaskCall(request, services, _agent(request, services))
        result = await function(call, await read(request))
        if isinstance(result, Stream):
            return result
        if result is not None:
            body = ascii_json(result)
            headers = [(b"content-type", b"application/a2a+json"), *body_headers(body)[1:]]
            await request.respond(200, body, headers)
        return None

    return endpoint


async def _send_params(request: Request) -> SendParams:
    return parse_json(SendParams, await request.json_body())


async def _query_task(request: Request) -> TaskParams:
    return parse_fields(TaskParams, {**request.query, "id": request.params["id"]})


async def _list_params(request: Request) -> ListTasksParams:
    return parse_fields(ListTasksParams, request.query)


async def _push_params(request: Request) -> PushParams:
    return parse_fields(PushParams, {"taskId": request.params["id"], "id": request.params.get("config")})


async def _set_push_params(request: Request) -> SetPushParams:
    body = await request.json_body()
    try:
        fields = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError:
        raise HttpError(400, "invalid_json", "the body is not a JSON object") from None
    return parse_fields(SetPushParams, {**fields, "taskId": request.params["id"]})


async def _read_task(request: Request, services: Services) -> Stream | Json | None:
    """Answer with a task, or with its stream: `GET .../tasks/{id}` or `GET .../tasks/{id}:subscribe`."""
    if request.params["id"].endswith(_SUBSCRIBE):
        return await _act(request, services)
    return await _rest(tasks.get_task, _query_task)(request, services)


async def _act(request: Request, services: Services) -> Stream | Json | None:
    """Act on a task: `.../tasks/{id}:cancel` or `.../tasks/{id}:subscribe`."""
    name = request.params["id"]
    for suffix, function in ((_CANCEL, tasks.cancel_task), (_SUBSCRIBE, tasks.subscribe)):
        if name.endswith(suffix):
            request.params = {**request.params, "id": name.removesuffix(suffix)}
            return await _rest(function, _query_task)(request, services)
    raise A2aError(METHOD_NOT_FOUND, f"unknown action; use {_CANCEL} or {_SUBSCRIBE}")


# Cards


async def card(request: Request, services: Services) -> None:
    """Answer with the card of an agent; without a name in the path, with that of the default agent."""
    name = _agent(request, services) if "agent" in request.params else next(iter(services.agents), None)
    if name is None:
        raise HttpError(404, "not_found", "there is no agent")
    needs_key = not services.auth.is_local_only
    body = ascii_json(agent_card(name, services.agents[name], request.base_url, services.version, needs_key=needs_key))
    tag = f'"{sha256(body).hexdigest()[:32]}"'.encode()
    caching = [(b"cache-control", f"private, max-age={_CARD_SECONDS}".encode()), (b"etag", tag)]
    if tag in request.headers.get(b"if-none-match", b""):
        await request.respond(304, headers=caching)
        return
    await request.respond(200, body, [(b"content-type", b"application/json"), *caching])


# The routes

_AGENT = Parameter("agent", "path", "The name of the agent.")
_VERSION = Parameter("A2A-Version", "header", "`1.0` or `0.3`.")
_TASK = Parameter("id", "path", "The id of the task, which is that of the turn.")
_CONFIG = Parameter("config", "path", "The id of the configuration.")
_LAST_ID = Parameter("Last-Event-ID", "header", "The last id received; the stream continues after it.")
_JSON = {"200": response("As A2A 1.0 has it", "application/a2a+json")}
_EVENTS = {"200": response("The task and its updates", "text/event-stream")}


def _route(
    method: str,
    path: str,
    endpoint: Endpoint,
    summary: str,
    *parameters: Parameter,
    body: type[BaseModel] | None = None,
    responses: Mapping[str, Mapping[str, Any]] = _JSON,
) -> Route:
    takes_files = body in (SendParams, JsonRpcRequest)
    return Route(
        method, path, endpoint, summary, "a2a", (_AGENT, *parameters), body, responses, rest_error, takes_files
    )


def _card_route(path: str, summary: str, *parameters: Parameter) -> Route:
    responses = {"200": response("The card", "application/json")}
    return Route(
        "GET",
        path,
        card,
        summary,
        "a2a",
        parameters,
        responses=responses,
        dialect=rest_error,
        access=lambda settings: "public" if settings.of(A2aSettings).open_cards else "any key",
    )


def _rpc_route(path: str, summary: str) -> Route:
    content: dict[str, Any] = {"application/json": {}, "text/event-stream": {}}
    responses: dict[str, dict[str, Any]] = {"200": {"description": "The response, or a stream", "content": content}}
    return _route("POST", path, rpc, summary, _VERSION, _LAST_ID, body=JsonRpcRequest, responses=responses)


def routes() -> list[Route]:
    base = f"{PREFIX}{{agent}}"
    configs = f"{base}/tasks/{{id}}/pushNotificationConfigs"
    return [
        _card_route(WELL_KNOWN, "The A2A card of the default agent"),
        _card_route(f"{base}{WELL_KNOWN}", "The A2A card of an agent", _AGENT),
        _rpc_route(base, "An agent as an A2A agent: one JSON-RPC request of A2A 1.0 or 0.3"),
        _rpc_route(f"{base}/", "The same, for clients that end the address of an agent with a slash"),
        _route(
            "POST",
            f"{base}/message:send",
            _rest(tasks.send, _send_params),
            "Start or answer an A2A task, and get it when it has settled",
            body=SendParams,
        ),
        _route(
            "POST",
            f"{base}/message:stream",
            _rest(tasks.send_streaming, _send_params),
            "Start or answer an A2A task, and stream it",
            body=SendParams,
            responses=_EVENTS,
        ),
        _route("GET", f"{base}/tasks", _rest(tasks.list_tasks, _list_params), "The A2A tasks of the caller"),
        _route(
            "GET", f"{base}/tasks/{{id}}", _read_task, "An A2A task; its stream at `{id}:subscribe`", _TASK, _LAST_ID
        ),
        _route(
            "POST",
            f"{base}/tasks/{{id}}",
            _act,
            "Stop an A2A task at `{id}:cancel`, or stream it at `{id}:subscribe`",
            _TASK,
            _LAST_ID,
        ),
        _route("POST", configs, _rest(tasks.set_push, _set_push_params), "Set a push address", _TASK, body=PushConfig),
        _route("GET", configs, _rest(tasks.list_push, _push_params), "The push addresses", _TASK),
        _route("GET", f"{configs}/{{config}}", _rest(tasks.get_push, _push_params), "One push address", _TASK, _CONFIG),
        _route(
            "DELETE",
            f"{configs}/{{config}}",
            _rest(tasks.delete_push, _push_params),
            "Remove a push address",
            _TASK,
            _CONFIG,
        ),
    ]
