"""`turnwire acp` and `turnwire mcp`: agents on stdin and stdout, for editors and assistants that start programs."""

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnwire.cli.options import Data, Key, Url, fail

if TYPE_CHECKING:
    from turnwire.client import ServerAddress
    from turnwire.server.services import Services

_FAILED, _USAGE = 1, 2

FindServer = Callable[[], "ServerAddress"]
"""Called again after a lost connection: a restarted server may listen elsewhere, with another token."""

Docs = Annotated[
    list[Path] | None,
    typer.Option(metavar="<path>", help="Documents to answer from, without a server; may be repeated.", exists=True),
]
Embedded = Annotated[bool, typer.Option("--embedded", help="Run the agents in this process, without a server.")]


def acp(
    data: Data,
    url: Url = None,
    key: Key = None,
    agent: Annotated[
        list[str] | None,
        typer.Option(
            "--agent",
            metavar="<agent>",
            help="The agent's name, or one to import as [bold]\\[name=]module:name[/], without a server."
            " The latter may be repeated.",
        ),
    ] = None,
    docs: Docs = None,
    embedded: Embedded = False,
) -> None:
    """Serve the agents to an editor that speaks ACP, on stdin and stdout, until stdin ends.

    They are those of a running server, found by the data folder or --url; or of this process. Turns of a server go on
    when the editor leaves.
    """
    references = [name for name in agent or [] if ":" in name]
    name = next((name for name in agent or [] if ":" not in name), None)
    runs_here = embedded or bool(references or docs)
    if url is not None and runs_here:
        fail("--url asks a server; --embedded, --docs and --agent module:name run without one", _USAGE)
    _serve(
        None if runs_here else _find(data, url, key),
        lambda find: _serve_acp(find, name),
        lambda: _serve_embedded(data, references, docs, lambda services: _serve_acp_here(services, name)),
    )


def mcp(
    data: Data,
    url: Url = None,
    key: Key = None,
    agent: Annotated[
        list[str] | None,
        typer.Option(
            "--agent",
            metavar="<agent>",
            help="An agent to import as [bold]\\[name=]module:name[/], without a server. May be repeated.",
        ),
    ] = None,
    docs: Docs = None,
    embedded: Embedded = False,
) -> None:
    """Offer the agents as the tools of an MCP server on stdin and stdout, until stdin ends.

    They are those of a running server, found by the data folder or --url; or of this process.
    """
    runs_here = embedded or bool(agent or docs)
    if url is not None and runs_here:
        fail("--url asks a server; --embedded, --docs and --agent run without one", _USAGE)
    try:
        from turnwire.wires.mcp.stdio import serve_embedded
    except ImportError:
        fail("MCP needs an extra: pip install 'turnwire[mcp]'", _FAILED)
    _serve(
        None if runs_here else _find(data, url, key),
        _serve_mcp,
        lambda: _serve_embedded(data, agent or [], docs, serve_embedded),
    )


def _find(data: Path, url: str | None, key: str | None) -> FindServer | None:
    """Return a function that finds the server at `url` or of the data folder; None if there is no such server."""
    from turnwire.cli.client import announced_server, find_server

    server = find_server(data, url, key)
    if server is None:
        return None
    return lambda: server if url is not None else announced_server(data, key)


def _serve(
    find: FindServer | None,
    serve_remote: Callable[[FindServer], Coroutine[Any, Any, None]],
    serve_here: Callable[[], Coroutine[Any, Any, None]],
) -> None:
    """Serve the agents of a server, or without one those of this process, until stdin ends."""
    from turnwire.channels.console.host import HostError

    # The standard output belongs to the protocol.
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="turnwire: %(message)s")
    try:
        asyncio.run(serve_here() if find is None else serve_remote(find))
    except (ConnectionError, HostError) as error:
        fail(str(error), _FAILED)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


async def _serve_acp(find: FindServer, agent: str | None) -> None:
    from turnwire import __version__
    from turnwire.channels.console.host import HostError, client_finder
    from turnwire.client import AsyncClient
    from turnwire.wires.acp.hosts import HostFailure, ServerHost
    from turnwire.wires.acp.stdio import serve_stdio

    async with AsyncClient(client_finder(find)) as client:
        host = ServerHost(client)
        try:
            await host.agents()
        except HostFailure as error:
            raise HostError(str(error)) from error
        await serve_stdio(host, __version__, agent)


async def _serve_acp_here(services: "Services", agent: str | None) -> None:
    from turnwire import __version__
    from turnwire.wires.acp.hosts import EmbeddedSessions
    from turnwire.wires.acp.stdio import serve_stdio

    await serve_stdio(EmbeddedSessions(services), __version__, agent)


async def _serve_mcp(find: FindServer) -> None:
    from turnwire.channels.console.host import HostError
    from turnwire.wires.mcp.stdio import McpAddress, serve_relay

    def locate() -> McpAddress:
        try:
            server = find()
        except HostError as error:
            raise ConnectionError("the server has stopped; start it again with `turnwire serve`.") from error
        headers = {"Authorization": f"Bearer {server.key}"} if server.key else {}
        return McpAddress(f"{server.url}/mcp", headers)

    await serve_relay(locate)


async def _serve_embedded(
    data: Path,
    agents: list[str],
    docs: list[Path] | None,
    serve: Callable[["Services"], Coroutine[Any, Any, None]],
) -> None:
    from turnwire.app import Turnwire
    from turnwire.channels.console.host import HostError
    from turnwire.cli.options import load_agents
    from turnwire.core.errors import TurnwireError
    from turnwire.settings import Settings

    try:
        # The client has left the program, so no turn gets time to finish.
        settings = Settings(data=data, shutdown_grace=0)
        turnwire = Turnwire(agents=load_agents(agents), settings=settings, docs=docs or [])
        async with turnwire.lifespan():
            await serve(turnwire.services)
    except (TurnwireError, ValueError) as error:
        raise HostError(str(error)) from error
