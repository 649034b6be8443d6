"""The FastAPI app: every route that is answered at once, and the OpenAPI page for all of them."""

from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.requests import Request

from turnwire.core.errors import TurnwireError
from turnwire.server.errors import HttpError, http_error, internal_error, invalid_fields
from turnwire.server.routes import agents, budget, documents, keys, logins, operations, probes, sessions, turns
from turnwire.server.routes.openapi import with_streams
from turnwire.server.turnwire import Turnwire


def build_api(turnwire: Turnwire) -> FastAPI:
    api = FastAPI(title="Turnwire", version="0.1.0", description=_DESCRIPTION, redoc_url=None)
    api.state.turnwire = turnwire
    for family in (probes, logins, agents, sessions, turns, budget, documents, keys, operations):
        api.include_router(family.router)
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
