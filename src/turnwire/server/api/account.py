"""Who is calling, and the cookie that says so in a browser."""

from fastapi import APIRouter, Request, Response

from turnwire import __version__
from turnwire.app import Turnwire
from turnwire.core.contracts import takes_attachments
from turnwire.retrieval.documents.parser import SUFFIXES
from turnwire.server.api.dependencies import Json, Reading, Server
from turnwire.server.auth import Caller
from turnwire.server.errors import HttpError
from turnwire.server.guard import header_map
from turnwire.server.messages import LoginBody
from turnwire.server.payloads import budget_json

logins_router = APIRouter(tags=["login"])

_NEVER_KEPT = "no-store"


@logins_router.get("/v1/me", summary="Who you are here, and whether you have to log in")
async def me(server: Server, request: Request, response: Response) -> Json:
    response.headers["Cache-Control"] = _NEVER_KEPT
    try:
        caller = server.gatekeeper.caller(dict(request.scope), header_map(dict(request.scope)))
    except HttpError as error:
        if error.status != 401:
            raise
        caller = None
    return _told(server, caller)


@logins_router.post("/login", summary="Show a key once, for a cookie that stands for it; as the web page does")
async def login(server: Server, request: Request, response: Response, body: LoginBody) -> Json:
    if not server.gatekeeper.takes_logins:
        raise HttpError(404, "no_login", "nobody logs in here: there are no API keys, or another application knows you")
    headers = header_map(dict(request.scope))
    if b"origin" in headers:
        server.logins.check_origin(headers)  # Or a page could log somebody in as somebody else.
    key = server.keys.find(body.key)
    if key is None:
        raise HttpError(401, "unauthorized", "this is not a valid API key")
    response.headers["Cache-Control"] = _NEVER_KEPT
    response.headers["Set-Cookie"] = server.logins.cookie_for(key, dict(request.scope), headers)
    return _told(server, Caller(key.principal, key.scopes, key.id, is_logged_in=True))


@logins_router.post("/logout", status_code=204, summary="Forget the cookie")
async def logout(server: Server, request: Request, response: Response) -> None:
    headers = header_map(dict(request.scope))
    if b"origin" in headers:
        server.logins.check_origin(headers)
    response.headers["Set-Cookie"] = server.logins.no_cookie(dict(request.scope), headers)


def _told(server: Turnwire, caller: Caller | None) -> Json:
    has_documents = caller is not None and server.librarian is not None
    return {
        "principal": caller.principal if caller else None,
        "scopes": list(caller.scopes) if caller else [],
        "login_required": caller is None and server.gatekeeper.takes_logins,
        "logged_in": caller is not None and caller.is_logged_in,
        "version": __version__,
        "documents": has_documents,
        "upload_suffixes": sorted(SUFFIXES) if has_documents else [],
    }


# What a caller has used today, and has left.


budget_router = APIRouter(prefix="/v1/budget", tags=["budget"])


@budget_router.get("", summary="The tokens you have used today, and have left")
async def show(server: Server, caller: Reading) -> Json:
    return budget_json(await server.runner.budget(caller.principal))


# Who there is to ask.


agents_router = APIRouter(prefix="/v1/agents", tags=["agents"])


@agents_router.get("", summary="The agents by name; the first one answers who names none")
async def list_agents(server: Server, caller: Reading) -> Json:
    default = next(iter(server.agents))
    return {
        "agents": [
            {"name": name, "is_default": name == default, "takes_attachments": takes_attachments(agent)}
            for name, agent in server.agents.items()
        ],
        "takes_documents": server.librarian is not None,
    }
