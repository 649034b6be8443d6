"""The FastAPI app: every route that is answered at once, and the OpenAPI page for all of them."""

from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.requests import Request

import turnwire.wires.ag_ui.routes as ag_ui
import turnwire.wires.ai_sdk.routes as ai_sdk
from turnwire.app import Turnwire
from turnwire.core.errors import TurnwireError
from turnwire.server import (
    sockets,
)
from turnwire.server.api import (
    account,
    documents,
    operations,
    sessions,
    turns,
)
from turnwire.server.errors import HttpError, http_error, internal_error, invalid_fields
from turnwire.server.messages import MessageBody, RagMessageBody
from turnwire.wires.openai import (
    responses_routes,
)

# The streaming routes for the OpenAPI page; they are not FastAPI's, so it does not know them.


def _body(model: type[MessageBody]) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"required": True, "content": {"application/json": {"schema": schema}}}


_MESSAGE = _body(MessageBody)
_ANSWER: dict[str, Any] = {"200": {"description": "The answer", "content": {"application/json": {}}}}
_STREAM: dict[str, Any] = {"200": {"description": "The turn's events", "content": {"text/event-stream": {}}}}


def _parameter(name: str, place: str, description: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": place,
        "required": place == "path",
        "description": description,
        "schema": {"type": "string"},
    }


_KEY = _parameter("Idempotency-Key", "header", "The same key again joins the same turn.")
_ID = _parameter("id", "path", "Our id, or your own.")
_SESSION = _parameter("session_id", "path", "Our id, or your own; one of your own is made when it is new.")
_FAILED: dict[str, Any] = {"500": {"description": "The turn failed: `chat_failed`"}}
_LAST = _parameter("Last-Event-ID", "header", "The last id received; the stream goes on after it.")

_PATHS: dict[str, Any] = {
    "/chat": {
        "post": {
            "tags": ["chat"],
            "summary": "Ask, and get the whole answer when it is there",
            "parameters": [_KEY],
            "requestBody": _MESSAGE,
            "responses": _ANSWER,
        }
    },
    "/chat/stream": {
        "post": {
            "tags": ["chat"],
            "summary": "Ask, and watch the answer being made",
            "parameters": [_KEY, _LAST],
            "requestBody": _MESSAGE,
            "responses": _STREAM,
        }
    },
    "/v1/turns/{id}/events": {
        "get": {
            "tags": ["turns"],
            "summary": "A turn's events from any position, live or finished",
            "parameters": [
                _ID,
                _LAST,
                _parameter("after", "query", "Where to go on from, if there is no Last-Event-ID."),
                _parameter("offset", "query", "How many bytes you have, on a text wire."),
                _parameter("wire", "query", "The protocol to write them in; `sse_chat` by default."),
                _parameter("wait", "query", "Answer with JSON; wait this many seconds if there is nothing yet."),
            ],
            "responses": {
                **_STREAM,
                "204": {"description": "The turn has ended and you have all of it"},
                "410": {"description": "On a text wire: its events are past their retention"},
                "416": {"description": "There are not so many bytes, or they are void"},
            },
        }
    },
    "/v1/rag/sessions/{session_id}/messages": {
        "post": {
            "tags": ["rag"],
            "summary": "Ask in a session, and get the whole answer when it is there",
            "parameters": [_SESSION, _KEY],
            "requestBody": _body(RagMessageBody),
            "responses": {**_ANSWER, **_FAILED},
        }
    },
    "/v1/rag/sessions/{session_id}/messages/stream": {
        "post": {
            "tags": ["rag"],
            "summary": "Ask in a session, and watch: events, the answer, its citations, as plain text",
            "parameters": [_SESSION, _KEY],
            "requestBody": _body(RagMessageBody),
            "responses": {
                "200": {"description": "`three_phase_text`", "content": {"text/plain": {}}},
                **_FAILED,
            },
        }
    },
    "/v1/sessions/{id}/events": {
        "get": {
            "tags": ["sessions"],
            "summary": "All turns of a session, as they happen",
            "parameters": [_ID, _LAST, _parameter("after", "query", "`<turn_id>:<position>`")],
            "responses": _STREAM,
        }
    },
}


def with_streams(schema: dict[str, Any]) -> dict[str, Any]:
    schema["paths"] = {
        **_PATHS,
        **ag_ui.PATHS,
        **ai_sdk.PATHS,
        **responses_routes.PATHS,
        **sockets.PATHS,
        **schema["paths"],
    }
    components = schema.setdefault("components", {}).setdefault("schemas", {})
    for model in (MessageBody, RagMessageBody):
        message = model.model_json_schema(ref_template="#/components/schemas/{model}")
        components.update(message.pop("$defs", {}))
        components[model.__name__] = message
    return schema


def build_api(turnwire: Turnwire) -> FastAPI:
    api = FastAPI(title="Turnwire", version="0.1.0", description=_DESCRIPTION, redoc_url=None)
    api.state.turnwire = turnwire
    for router in (
        operations.probes_router,
        account.logins_router,
        account.agents_router,
        sessions.router,
        turns.router,
        account.budget_router,
        documents.router,
        operations.keys_router,
        operations.operations_router,
    ):
        api.include_router(router)
    api.add_exception_handler(RequestValidationError, _invalid)
    api.add_exception_handler(HTTPException, _http)
    api.add_exception_handler(HttpError, _early)
    api.add_exception_handler(TurnwireError, _known)
    api.add_exception_handler(Exception, _unforeseen)
    make_schema = api.openapi

    def openapi() -> dict[str, Any]:
        if api.openapi_schema is None:
            api.openapi_schema = with_streams(make_schema())
        return api.openapi_schema

    api.openapi = openapi  # pyright: ignore[reportAttributeAccessIssue]
    return api


_DESCRIPTION = "Agents in, one durable log per turn, every wire out."


def _response(error: HttpError) -> Response:
    return Response(error.body, error.status, error.headers, "application/json")


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    details = [{**detail, "loc": detail["loc"][1:]} for detail in error.errors()]
    if any(detail["type"] == "json_invalid" for detail in details):
        return _response(HttpError(400, "invalid_json", "the body is not JSON"))
    return _response(invalid_fields(details))


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if isinstance(error.__cause__, HttpError):
        return _response(error.__cause__)  # Ours, raised while FastAPI read the body.
    if error.status_code == 400 and request.headers.get("content-type", "").startswith("multipart/"):
        return _response(HttpError(422, "invalid_request", "the body is not a form that can be read"))
    if error.status_code == 400:
        return _response(HttpError(400, "invalid_json", "the body is not JSON"))
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
    headers = dict(error.headers or {})
    return _response(HttpError(error.status_code, code, str(error.detail), headers=headers))


async def _early(request: Request, error: Exception) -> Response:
    assert isinstance(error, HttpError)
    return _response(error)


async def _unforeseen(request: Request, error: Exception) -> Response:
    return _response(internal_error())


async def _known(request: Request, error: Exception) -> Response:
    assert isinstance(error, TurnwireError)
    return _response(http_error(error))
