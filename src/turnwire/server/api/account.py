"""The caller's account: identity, login cookie, budget, agents to choose from, and notifications of the browser."""

from typing import TYPE_CHECKING

from turnwire.core.contracts.agents import (
    attachment_types,
    description_of,
    starters_of,
    takes_attachments,
    takes_client_tools,
)
from turnwire.core.contracts.stores import Budget
from turnwire.core.log.codec import time_text
from turnwire.core.log.model_options import declared_options
from turnwire.server.auth import Caller, WrongKeyError
from turnwire.server.errors import HttpError
from turnwire.server.messages import LoginBody, PushEndpointBody, PushSubscriptionBody
from turnwire.server.request import Request
from turnwire.server.router import Json, Route, RouteGroup
from turnwire.server.services import Services

if TYPE_CHECKING:
    from turnwire.server.push import PushNotifier

_LOGIN = RouteGroup("login")
_AGENTS = RouteGroup("agents")
_BUDGET = RouteGroup("budget")
_PUSH = RouteGroup("push")


@_LOGIN.route("GET", "/v1/me", "Who you are here, and whether you have to log in", access="public", takes_slot=False)
async def me(request: Request, services: Services) -> Json:
    try:
        caller = services.auth.caller(request.scope, request.headers)
    except HttpError as error:
        if error.status != 401:
            raise
        if isinstance(error, WrongKeyError):
            await services.auth.refusals.note(request.address)
        caller = None
    return _identity(services, caller)


@_LOGIN.route(
    "POST", "/login", "Exchange an API key for a login cookie, as the web page does", access="public", body=LoginBody
)
async def login(request: Request, services: Services) -> None:
    body = await request.parse_body(LoginBody)
    if not services.auth.takes_logins:
        raise HttpError(404, "no_login", "nobody logs in here: there are no API keys, or another application knows you")
    if b"origin" in request.headers:
        services.logins.check_origin(request.headers)  # Or a page could log somebody in as somebody else.
    key = services.keys.find(body.key)
    if key is None:
        await services.auth.refusals.note(request.address)
        raise HttpError(401, "unauthorized", "this is not a valid API key")
    services.auth.refusals.forget(request.address)
    identity = _identity(services, Caller(key.principal, key.scopes, key.id, is_logged_in=True))
    cookie = services.logins.cookie_for(key, request.scope, request.headers)
    await request.respond_json(200, identity, [(b"set-cookie", cookie.encode())])


@_LOGIN.route("POST", "/logout", "Delete the login cookie", access="public", status=204)
async def logout(request: Request, services: Services) -> None:
    if b"origin" in request.headers:
        services.logins.check_origin(request.headers)
    cookie = services.logins.expired_cookie(request.scope, request.headers)
    await request.respond(204, headers=[(b"set-cookie", cookie.encode())])


def _identity(services: Services, caller: Caller | None) -> Json:
    documents = services.documents if caller is not None else None
    return {
        "principal": caller.principal if caller else None,
        "scopes": list(caller.scopes) if caller else [],
        "login_required": caller is None and services.auth.takes_logins,
        "logged_in": caller is not None and caller.is_logged_in,
        "version": services.version,
        "documents": documents is not None,
        "upload_suffixes": list(documents.upload_suffixes) if documents is not None else [],
    }


@_BUDGET.route("GET", "/v1/budget", "The tokens you have used today, and have left")
async def show_budget(request: Request, services: Services) -> Json:
    return _budget_json(await services.runner.budget(request.caller.principal))


@_BUDGET.route("GET", "/v1/prices", "The prices of models, in US dollars per million tokens")
async def list_prices(request: Request, services: Services) -> Json:
    return {"prices": {model: price.model_dump() for model, price in services.settings.model_prices.items()}}


def _budget_json(budget: Budget) -> Json:
    has_limit = budget.limit > 0
    return {
        "limit": budget.limit if has_limit else None,
        "used": budget.used,
        "left": budget.left if has_limit else None,
        "resets_at": time_text(budget.resets_at),
    }


@_AGENTS.route("GET", "/v1/agents", "The agents by name; the first one answers by default")
async def list_agents(request: Request, services: Services) -> Json:
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


@_PUSH.route("GET", "/v1/push", "The key that browsers subscribe to notifications with")
async def show_push_key(request: Request, services: Services) -> Json:
    return {"public_key": await _notifier(services).public_key()}


@_PUSH.route(
    "POST",
    "/v1/push/subscriptions",
    "Notify this browser when a turn of yours ends or asks",
    body=PushSubscriptionBody,
    status=201,
)
async def subscribe(request: Request, services: Services) -> Json:
    body, notifier = await request.parse_body(PushSubscriptionBody), _notifier(services)
    from turnwire.server.push import PushSubscription

    subscription = PushSubscription(body.endpoint, body.keys.p256dh, body.keys.auth)
    try:
        subscription.check()
    except ValueError as error:
        raise HttpError(422, "invalid_request", str(error)) from None
    await notifier.subscribe(request.caller.principal, subscription)
    return {"endpoint": body.endpoint}


@_PUSH.route("DELETE", "/v1/push/subscriptions", "Notify this browser no more", body=PushEndpointBody, status=204)
async def unsubscribe(request: Request, services: Services) -> None:
    body = await request.parse_body(PushEndpointBody)
    await _notifier(services).unsubscribe(request.caller.principal, body.endpoint)
    await request.respond(204)


def _notifier(services: Services) -> "PushNotifier":
    if services.push is None:
        raise HttpError(404, "no_push", "this server sends no notifications; its operator can set push_contact")
    return services.push


def routes() -> list[Route]:
    return [*_LOGIN.routes, *_AGENTS.routes, *_BUDGET.routes, *_PUSH.routes]
