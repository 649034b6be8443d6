"""The FastAPI app: the JSON routes, and the OpenAPI document of all routes."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request

from turnwire.core.errors import TurnwireError
from turnwire.server.api import account, documents, operations, schedules, sessions, turns
from turnwire.server.errors import HttpError, http_error, internal_error, invalid_fields
from turnwire.server.router import AnyRoute, Parameter, Route, response
from turnwire.server.services import Services

_SCHEMAS = "#/components/schemas/{model}"
_ERROR = {
    "description": "An error, in the shape of the protocol that the route speaks; here in Turnwire's own",
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["error"],
                "properties": {
                    "error": {
                        "type": "object",
                        "required": ["code", "message"],
                        "properties": {"code": {"type": "string"}, "message": {"type": "string"}},
                    }
                },
            }
        }
    },
}
_ERROR_RESPONSE = {"$ref": "#/components/responses/Error"}
_KEYS = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}
_DESCRIPTION = "Run your AI agent's answers on the server, and stream them to any client without losing an event."
_ROUTERS = (
    operations.probes_router,
    account.logins_router,
    account.agents_router,
    sessions.router,
    sessions.files_router,
    turns.router,
    turns.feedback_router,
    sessions.shares_router,
    account.push_router,
    schedules.router,
    account.budget_router,
    account.prices_router,
    documents.router,
    operations.keys_router,
    operations.operations_router,
)


def build_api(services: Services, routes: Sequence[AnyRoute]) -> FastAPI:
    """Build the FastAPI app; `routes` are only described by its OpenAPI document."""
    api = FastAPI(
        title="Turnwire",
        version=services.version,
        description=_DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        # Not `include_router`: it would analyse every endpoint again, in each app, at its first request.
        routes=[route for router in _ROUTERS for route in router.routes],
    )
    api.state.services = services
    api.add_exception_handler(RequestValidationError, _validation_error)
    api.add_exception_handler(HTTPException, _http_exception)
    api.add_exception_handler(HttpError, _http_error)
    api.add_exception_handler(TurnwireError, _turnwire_error)
    api.add_exception_handler(Exception, _unexpected_error)
    make_schema = api.openapi

    def openapi() -> dict[str, Any]:
        if api.openapi_schema is None:
            api.openapi_schema = _add_routes(make_schema(), routes)
        return api.openapi_schema

    api.openapi = openapi  # pyright: ignore[reportAttributeAccessIssue]
    return api


def _response(error: HttpError) -> Response:
    return Response(error.body, error.status, error.headers, "application/json")


async def _validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    details = [{**detail, "loc": detail["loc"][1:]} for detail in error.errors()]
    if any(detail["type"] == "json_invalid" for detail in details):
        return _response(HttpError(400, "invalid_json", "the body is not JSON"))
    return _response(invalid_fields(details))


async def _http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    match error.__cause__:  # Raised while FastAPI read the body.
        case HttpError() as cause:
            return _response(cause)
        case TurnwireError() as cause:
            return _response(http_error(cause))
        case _:
            pass
    if error.status_code == 400 and request.headers.get("content-type", "").startswith("multipart/"):
        return _response(HttpError(422, "invalid_request", "the body is not a form that can be read"))
    if error.status_code == 400:
        return _response(HttpError(400, "invalid_json", "the body is not JSON"))
    if error.status_code == 404:
        # Most clients that try unknown paths are OpenAI's, so the fields of OpenAI's errors are added.
        message = f"there is no {request.url.path} on this server"
        return _response(HttpError(404, "not_found", message, type="invalid_request_error", param=None))
    code = "method_not_allowed" if error.status_code == 405 else "http_error"
    headers = dict(error.headers or {})
    return _response(HttpError(error.status_code, code, str(error.detail), headers=headers))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HttpError)
    return _response(error)


async def _unexpected_error(request: Request, error: Exception) -> Response:
    return _response(internal_error())


async def _turnwire_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, TurnwireError)
    return _response(http_error(error))


# The OpenAPI document of the routes that are not FastAPI's


def _add_routes(document: dict[str, Any], routes: Iterable[AnyRoute]) -> dict[str, Any]:
    """Add routes, the schemas of their bodies, errors and keys to the document that FastAPI makes."""
    paths: dict[str, dict[str, Any]] = {}
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for route in routes:
        if isinstance(route, Route):
            path = route.path.replace(":path}", "}")
            paths.setdefault(path, {})[route.method.lower()] = _operation(route)
            if route.body is not None:
                _add_schema(schemas, route.body)
        elif route.summary:
            paths.setdefault(route.path, {})["get"] = {
                "operationId": _operation_id("get", route.path),
                "tags": [route.tag],
                "summary": route.summary,
                "responses": {"101": response("A WebSocket")},
            }
    document["paths"] = paths | document["paths"]
    for path in document["paths"].values():
        for operation in path.values():
            operation["responses"].setdefault("default", _ERROR_RESPONSE)
    document["components"].update(securitySchemes=_KEYS, responses={"Error": _ERROR})
    # A server without keys needs none.
    document["security"] = [{}, *({name: []} for name in _KEYS)]
    return document


def _operation_id(method: str, path: str) -> str:
    name = f"{method}{re.sub(r'[^A-Za-z0-9]+', '_', path)}".rstrip("_")
    return f"{name}_slash" if path.endswith("/") else name


def _operation(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": _operation_id(route.method.lower(), route.path),
        "tags": [route.tag],
        "summary": route.summary,
        "parameters": [_parameter(parameter) for parameter in route.parameters],
        "responses": dict(route.responses),
    }
    if route.body is not None:
        schema = {"$ref": _SCHEMAS.format(model=route.body.__name__)}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return operation


def _parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.location,
        "required": parameter.location == "path",
        "description": parameter.description,
        "schema": {"type": "string"},
    }


def _add_schema(schemas: dict[str, Any], model: type[BaseModel]) -> None:
    schema = model.model_json_schema(by_alias=True, ref_template=_SCHEMAS)
    schemas.update(schema.pop("$defs", {}))
    schemas[model.__name__] = schema
