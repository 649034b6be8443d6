"""`POST /mcp`: the protocol's streamable HTTP, without sessions.

The SDK's session manager has a task group that must be exited in the task that entered it. Without sessions it keeps
nothing between two requests, so each request has a manager of its own, which no mounted app and no workers share.
"""

import asyncio
from typing import TYPE_CHECKING, Any

from turnwire.server.errors import HttpError
from turnwire.server.messages import JsonRpcRequest
from turnwire.server.request import Request
from turnwire.server.router import Route, response
from turnwire.server.services import Services
from turnwire.server.streams.connection import Receive, Send
from turnwire.settings import Settings
from turnwire.wires.mcp.settings import McpSettings

if TYPE_CHECKING:
    # The SDK is an extra.
    from turnwire.wires.mcp.server import McpService


_PATH = "/mcp"
_METADATA = "/.well-known/oauth-protected-resource"


class McpEndpoint:
    """The endpoint of one server, which loads the SDK at the first request."""

    def __init__(self) -> None:
        self._service: McpService | None = None

    async def __call__(self, request: Request, services: Services) -> None:
        body = await request.json_body()
        if self._service is None:
            self._service = await asyncio.to_thread(_build, services)
        request.scope["turnwire.caller"] = request.caller
        receive, send = _replayed(body, request.receive), _with_headers(request)
        await self._service.answer(request.scope, receive, send)


def _build(services: Services) -> "McpService":
    try:
        from turnwire.wires.mcp.server import McpService
    except ImportError as error:
        message = "this server cannot speak MCP: pip install 'turnwire[mcp]', then restart it"
        raise HttpError(501, "mcp_not_installed", message) from error
    return McpService(services)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that first returns a body that was read already."""
    unread = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> dict[str, Any]:
        return unread.pop() if unread else await receive()

    return receive_again


def _with_headers(request: Request) -> Send:
    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *request.added]}
        await request.send(message)

    return send


async def resource_metadata(request: Request, services: Services) -> None:
    """Answer with the metadata of `/mcp` as a protected resource.

    Our API keys come from the operator. Without an authorization server in the settings there is no metadata, because
    a host would begin a login that cannot succeed.
    """
    servers = services.settings.of(McpSettings).authorization_servers
    if not servers:
        raise HttpError(404, "not_found", "no authorization server is configured; use an API key")
    metadata: dict[str, Any] = {
        "resource": f"{request.base_url}{_PATH}",
        "authorization_servers": servers,
        "bearer_methods_supported": ["header"],
        "resource_name": services.settings.brand_name,
    }
    await request.respond_json(200, metadata)


def _metadata_path(settings: Settings) -> str | None:
    return f"{_METADATA}{_PATH}" if settings.of(McpSettings).authorization_servers else None


def _metadata_route(path: str) -> Route:
    summary = "The metadata of `/mcp` as a protected resource (RFC 9728)"
    responses = {"200": response("The metadata", "application/json"), "404": response("There is none")}
    return Route("GET", path, resource_metadata, summary, "mcp", responses=responses, access="public")


def routes() -> list[Route]:
    return [
        _metadata_route(_METADATA),
        _metadata_route(f"{_METADATA}{_PATH}"),
        Route(
            "POST",
            _PATH,
            McpEndpoint(),
            "The agents as tools of an MCP server: one JSON-RPC message of the protocol's streamable HTTP",
            "mcp",
            body=JsonRpcRequest,
            responses={
                "200": response("The response, after the call's progress if there is any", "text/event-stream"),
                "202": response("A notification was taken"),
                "501": response("The extra `mcp` is not installed"),
            },
            resource_metadata=_metadata_path,
        ),
    ]
