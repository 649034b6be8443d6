"""`turnwire mcp`: an MCP server on stdin and stdout, for editors and assistants that start programs."""

import asyncio
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnwire.cli.options import Data, Key, Url, fail

if TYPE_CHECKING:
    from turnwire.client import ServerAddress
    from turnwire.wires.mcp.stdio import McpAddress

_FAILED, _USAGE = 1, 2


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
    docs: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="<path>", help="Documents to answer from, without a server; may be repeated.", exists=True
        ),
    ] = None,
    embedded: Annotated[
        bool, typer.Option("--embedded", help="Run the agents in this process, without a server.")
    ] = False,
) -> None:
    """Offer the agents as the tools of an MCP server on stdin and stdout, until stdin ends.

    They are those of a running server, found by the data folder or --url; or of this process.
    """
    from turnwire.channels.console.host import HostError
    from turnwire.cli.client import announced_server, find_server

    runs_here = embedded or bool(agent or docs)
    if url is not None and runs_here:
        fail("--url asks a server; --embedded, --docs and --agent run without one", _USAGE)
    try:
        import turnwire.wires.mcp.stdio as stdio
    except ImportError:
        fail("MCP needs an extra: pip install 'turnwire[mcp]'", _FAILED)
    # The standard output belongs to the protocol.
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="turnwire: %(message)s")
    try:
        server = None if runs_here else find_server(data, url, key)
        if server is None:
            asyncio.run(_serve_embedded(data, agent or [], docs or []))
            return

        def locate() -> "McpAddress":
            # Called again for each request: a restarted server may listen elsewhere, with another token.
            try:
                return _address(server if url is not None else announced_server(data, key))
            except HostError as error:
                raise ConnectionError("the server has stopped; start it again with `turnwire serve`.") from error

        asyncio.run(stdio.serve_relay(locate))
    except (ConnectionError, HostError) as error:
        fail(str(error), _FAILED)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _address(server: "ServerAddress") -> "McpAddress":
    from turnwire.wires.mcp.stdio import McpAddress

    headers = {"Authorization": f"Bearer {server.key}"} if server.key else {}
    return McpAddress(f"{server.url}/mcp", headers)


async def _serve_embedded(data: Path, agents: list[str], docs: list[Path]) -> None:
    from turnwire.app import Turnwire
    from turnwire.channels.console.host import HostError
    from turnwire.cli.options import load_agents
    from turnwire.core.errors import TurnwireError
    from turnwire.settings import Settings
    from turnwire.wires.mcp.stdio import serve_embedded

    try:
        # Nobody waits for the turns of a program that was left.
        settings = Settings(data=data, shutdown_grace=0)
        turnwire = Turnwire(agents=load_agents(agents), settings=settings, docs=docs)
        async with turnwire.lifespan():
            await serve_embedded(turnwire.services)
    except (TurnwireError, ValueError) as error:
        raise HostError(str(error)) from error
