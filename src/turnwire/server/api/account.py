"""The caller's account: identity, login cookie, budget, agents to choose from, and notifications of the browser."""

from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response

from turnwire.core.contracts.agents import (
    attachment_types,
    description_of,
    starters_of,
    takes_attachments,
    takes_client_tools,
)
from turnwire.core.contracts.stores import Budget
from turnwire.core.log.codec import time_text
from turnwire.core.model_options import declared_options
from turnwire.retrieval.documents.parser import SUFFIXES
from turnwire.server.api.dependencies import Json, Reading, ServicesDep, Writing
from turnwire.server.auth import Caller, WrongKeyError
from turnwire.server.errors import HttpError
from turnwire.server.guard import header_map
from turnwire.server.messages import LoginBody, PushEndpointBody, PushSubscriptionBody
from turnwire.server.services import Services

if TYPE_CHECKING:
    from turnwire.server.push import PushNotifier

logins_router = APIRouter(tags=["login"])
budget_router = APIRouter(prefix="/v1/budget", tags=["budget"])
prices_router = APIRouter(prefix="/v1/prices", tags=["budget"])
agents_router = APIRouter(prefix="/v1/agents", tags=["agents"])
push_router = APIRouter(prefix="/v1/push", tags=["push"])

_NO_STORE = "no-store"


@logins_router.get("/v1/me", summary="Who you are here, and whether you have to log in")
async def me(services: ServicesDep, request: Request, response: Response) -> Json:
    response.headers["Cache-Control"] = _NO_STORE
    try:
        caller = services.auth.caller(dict(request.scope), header_map(dict(request.scope)))
    except HttpError as error:
        if error.status != 401:
            raise
        if isinstance(error, WrongKeyError):
            await services.auth.refusals.note(_address(request))
        caller = None
    return _identity(services, caller)


@logins_router.post("/login", summary="Exchange an API key for a login cookie, as the web page does")
async def login(services: ServicesDep, request: Request, response: Response, body: LoginBody) -> Json:
    if not services.auth.takes_logins:
        raise HttpError(404, "no_login", "nobody logs in here: there are no API keys, or another application knows you")
    headers = header_map(dict(request.scope))
    if b"origin" in headers:
        services.logins.check_origin(headers)  # Or a page could log somebody in as somebody else.
    key, address = services.keys.find(body.key), _address(request)
    if key is None:
        await services.auth.refusals.note(address)
        raise HttpError(401, "unauthorized", "this is not a valid API key")
    services.auth.refusals.forget(address)
    response.headers["Cache-Control"] = _NO_STORE
    response.headers["Set-Cookie"] = services.logins.cookie_for(key, dict(request.scope), headers)
    return _identity(services, Caller(key.principal, key.scopes, key.id, is_logged_in=True))


@logins_router.post("/logout", status_code=204, summary="Delete the login cookie")
async def logout(services: ServicesDep, request: Request, response: Response) -> None:
    headers = header_map(dict(request.scope))
    if b"origin" in headers:
        services.logins.check_origin(headers)
    response.headers["Set-Cookie"] = services.logins.expired_cookie(dict(request.scope), headers)


def _address(request: Request) -> str:
    return request.client.host if request.client else ""


def _identity(services: Services, caller: Caller | None) -> Json:
    has_documents = caller is not None and services.documents is not None
    return {
        "principal": caller.principal if caller else None,
        "scopes": list(caller.scopes) if caller else [],
        "login_required": caller is None and services.auth.takes_logins,
        "logged_in": caller is not None and caller.is_logged_in,
        "version": services.version,
        "documents": has_documents,
        "upload_suffixes": sorted(SUFFIXES) if has_documents else [],
    }


@budget_router.get("", summary="The tokens you have used today, and have left")
async def show(services: ServicesDep, caller: Reading) -> Json:
    return _budget_json(await services.runner.budget(caller.principal))


@prices_router.get("", summary="The prices of models, in US dollars per million tokens")
async def prices(services: ServicesDep, caller: Reading) -> Json:
    return {"prices": {model: price.model_dump() for model, price in services.settings.model_prices.items()}}


def _budget_json(budget: Budget) -> Json:
    has_limit = budget.limit > 0
    return {
        "limit": budget.limit if has_limit else None,
        "used": budget.used,
        "left": budget.left if has_limit else None,
        "resets_at": time_text(budget.resets_at),
    }


@agents_router.get("", summary="The agents by name; the first one answers by default")
async def list_agents(services: ServicesDep, caller: Reading) -> Json:
    default = next(iter(services.agents))
    return {
        "agents": [
            {
                "name": name,
                "is_default": name == default,
                "takes_attachments": takes_attachments(agent),
                **({"attachment_types": types} if (types := attachment_types(agent)) else {}),
                "takes_client_tools": takes_client_tools(agent),
                **({"model_options": sorted(names)} if (names := declared_options(agent)) else {}),
                "description": description_of(agent),
                "starters": starters_of(agent),
            }
            for name, agent in services.agents.items()
        ],
        "takes_documents": services.documents is not None,
    }


@push_router.get("", name="show", summary="The key that browsers subscribe to notifications with")
async def show_push_key(services: ServicesDep, caller: Reading) -> Json:
    return {"public_key": await _notifier(services).public_key()}


@push_router.post("/subscriptions", status_code=201, summary="Notify this browser when a turn of yours ends or asks")
async def subscribe(services: ServicesDep, caller: Writing, body: PushSubscriptionBody) -> Json:
    notifier = _notifier(services)
    from turnwire.server.push import PushSubscription

    subscription = PushSubscription(body.endpoint, body.keys.p256dh, body.keys.auth)
    try:
        subscription.check()
    except ValueError as error:
        raise HttpError(422, "invalid_request", str(error)) from None
    await notifier.subscribe(caller.principal, subscription)
    return {"endpoint": body.endpoint}


@push_router.delete("/subscriptions", status_code=204, summary="Notify this browser no more")
async def unsubscribe(services: ServicesDep, caller: Writing, body: PushEndpointBody) -> None:
    await _notifier(services).unsubscribe(caller.principal, body.endpoint)


def _notifier(services: Services) -> "PushNotifier":
    if services.push is None:
        raise HttpError(404, "no_push", "this server sends no notifications; its operator can set push_contact")
    return services.push
