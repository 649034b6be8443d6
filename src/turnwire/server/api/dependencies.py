"""What routes ask for: the server they belong to, and a caller who may do this."""

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Depends, Path
from starlette.requests import Request

from turnwire.app import Turnwire
from turnwire.core.contracts import Scope
from turnwire.server.auth import Caller
from turnwire.server.errors import HttpError
from turnwire.server.messages import check_id


def _turnwire(request: Request) -> Turnwire:
    return request.app.state.turnwire


def _with_scope(scope: Scope) -> Callable[[Request], Caller]:
    def caller(request: Request) -> Caller:
        found: Caller = request.scope["turnwire.caller"]
        found.needs(scope)
        return found

    return caller


def _operator(request: Request) -> Caller:
    found: Caller = request.scope["turnwire.caller"]
    if not found.is_operator:
        raise HttpError(403, "operator_only", "only who can read the server's data folder may do this")
    return found


def _path_id(id: Annotated[str, Path()]) -> str:
    return check_id(id)


Server = Annotated[Turnwire, Depends(_turnwire)]
Reading = Annotated[Caller, Depends(_with_scope("read"))]
Writing = Annotated[Caller, Depends(_with_scope("write"))]
Approving = Annotated[Caller, Depends(_with_scope("approve"))]
Operator = Annotated[Caller, Depends(_operator)]
PathId = Annotated[str, Depends(_path_id)]
Json = dict[str, Any]
