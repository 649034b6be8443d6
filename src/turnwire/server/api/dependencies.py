"""Dependencies of the FastAPI routes: the services, and a caller with the scope that a route needs."""

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Depends, Path
from starlette.requests import Request

from turnwire.core.contracts.stores import Scope
from turnwire.server.auth import Caller
from turnwire.server.errors import HttpError
from turnwire.server.messages import check_id
from turnwire.server.services import Services


def _services(request: Request) -> Services:
    return request.app.state.services


def _with_scope(scope: Scope) -> Callable[[Request], Caller]:
    def dependency(request: Request) -> Caller:
        caller: Caller = request.scope["turnwire.caller"]
        caller.needs(scope)
        return caller

    return dependency


def _operator(request: Request) -> Caller:
    caller: Caller = request.scope["turnwire.caller"]
    if not caller.is_operator:
        raise HttpError(403, "operator_only", "this needs the operator's token, which is in the server's data folder")
    return caller


def _path_id(id: Annotated[str, Path()]) -> str:
    return check_id(id)


ServicesDep = Annotated[Services, Depends(_services)]
Reading = Annotated[Caller, Depends(_with_scope("read"))]
Writing = Annotated[Caller, Depends(_with_scope("write"))]
Approving = Annotated[Caller, Depends(_with_scope("approve"))]
Operating = Annotated[Caller, Depends(_with_scope("operate"))]
Operator = Annotated[Caller, Depends(_operator)]
PathId = Annotated[str, Depends(_path_id)]
Json = dict[str, Any]
