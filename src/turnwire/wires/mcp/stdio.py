"""MCP over stdio: a relay to the `/mcp` of a server."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

import mcp_types as types
from mcp import Client, MCPError
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp_types.version import LATEST_MODERN_VERSION, MODERN_PROTOCOL_VERSIONS

from turnwire.cli.server_errors import HostError
from turnwire.cli.stdio import FindServer
from turnwire.tools.mcp.transports import over_http
from turnwire.wires.mcp.encoder import turn_id_of
from turnwire.wires.mcp.messages import MAX_WAIT
from turnwire.wires.mcp.server import CallResult, can_elicit

logger = logging.getLogger("turnwire.wires.mcp")

Context = ServerRequestContext[Any, Any]
Result = TypeVar("Result")
# Errors that a server answers with. Any other one is made here, of a connection that was lost or refused.
_ANSWERS = {types.INVALID_PARAMS, types.INVALID_REQUEST, types.METHOD_NOT_FOUND}


async def serve_relay(find: FindServer) -> None:
    """Relay to a server until stdin ends. Raises ConnectionError if it does not answer."""
    server = await McpRelay(find).server()
    async with stdio_server() as (read_stream, write_stream):
        await server.run(read_stream, write_stream, server.create_initialization_options())


class McpRelay:
    """An MCP server that passes each request on to a running server.

    Each request finds the server and connects to it again, so that the relay outlives the server's restarts.
    """

    def __init__(self, find: FindServer) -> None:
        self._find = find

    async def server(self) -> Server[Any]:
        """Return the server for the host, with the abilities of the running one. Raises ConnectionError."""

        async def describe(client: Client) -> Server[Any]:
            has_resources = client.server_capabilities.resources is not None
            return Server(
                "turnwire",
                version=client.server_info.version if client.server_info else "",
                instructions=client.instructions,
                on_list_tools=self._list_tools,
                on_call_tool=self._call_tool,
                on_list_resources=self._list_resources if has_resources else None,
                on_read_resource=self._read_resource if has_resources else None,
            )

        return await self._pass_on(describe, mode="auto")

    async def _pass_on(self, request: Callable[[Client], Awaitable[Result]], **options: Any) -> Result:
        """Send a request to the server. Raises MCPError as the server answered it, or ConnectionError."""
        try:
            address = self._find()
        except HostError as error:
            raise ConnectionError("the server has stopped; start it again with `turnwire serve`.") from error
        url, answer = f"{address.url}/mcp", None
        headers = {"Authorization": f"Bearer {address.key}"} if address.key else {}
        options = {"mode": LATEST_MODERN_VERSION, **options}
        try:
            async with Client(over_http(url, headers, MAX_WAIT)(), **options) as client:
                try:
                    return await request(client)
                except MCPError as error:
                    if error.code not in _ANSWERS:
                        raise
                    answer = error  # Raised below, because the client would wrap it in groups.
        except Exception as error:
            raise ConnectionError(f"the server at {url} was not reached: {_first_cause(error)}") from error
        assert answer is not None
        raise answer

    async def _list_tools(self, context: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return await self._pass_on(lambda client: client.list_tools(cursor=params.cursor if params else None))

    async def _list_resources(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        return await self._pass_on(lambda client: client.list_resources(cursor=params.cursor if params else None))

    async def _read_resource(
        self, context: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        return await self._pass_on(lambda client: client.read_resource(params.uri))

    async def _call_tool(self, context: Context, params: types.CallToolRequestParams) -> CallResult:
        """Pass a call on, its progress back, and the server's questions to the host, in the way that the host takes."""
        turn_ids: list[str] = [(params.arguments or {}).get("turn_id", "")]

        async def report(progress: float, total: float | None, message: str | None) -> None:
            if message is not None and (turn_id := turn_id_of(message)) is not None:
                turn_ids.append(turn_id)
            await context.session.report_progress(progress, total, message)

        async def elicit(_: Any, question: types.ElicitRequestParams) -> types.ElicitResult:
            assert isinstance(question, types.ElicitRequestFormParams)
            return await context.session.elicit_form(question.message, question.requested_schema, context.request_id)

        async def call(client: Client) -> CallResult:
            if context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
                return await client.call_tool(params.name, params.arguments, progress_callback=report)
            return await client.session.call_tool(
                params.name,
                params.arguments,
                progress_callback=report,
                input_responses=params.input_responses,
                request_state=params.request_state,
                allow_input_required=True,
            )

        try:
            return await self._pass_on(call, elicitation_callback=elicit if can_elicit(context) else None)
        except ConnectionError as error:
            logger.warning("%s", error)
            return _lost_result(str(error), turn_ids[-1])


def _lost_result(problem: str, turn_id: str) -> types.CallToolResult:
    """Return the result of a call whose connection was lost; a turn that had started goes on."""
    text, content = problem, {"error": {"code": "server_lost", "message": problem}}
    if turn_id:
        text += f". The turn {turn_id} is in the server's log: call get_turn with this turn_id for the rest."
        content = {**content, "turn_id": turn_id}
    return types.CallToolResult(content=[types.TextContent(text=text)], structured_content=content, is_error=True)


def _first_cause(error: Exception) -> str:
    cause: Any = error
    while isinstance(cause, ExceptionGroup):
        cause = cast("ExceptionGroup[Exception]", cause).exceptions[0]
    return str(cause.message if isinstance(cause, MCPError) else cause) or type(cause).__name__
