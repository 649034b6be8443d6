"""`turnwire acp`: an agent of the Agent Client Protocol on stdin and stdout, for editors that start programs."""

import asyncio
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnwire.cli.options import Data, Key, Url, fail

if TYPE_CHECKING:
    from collections.abc import Callable

    from turnwire.client import ServerAddress

_FAILED, _USAGE = 1, 2


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
    """Serve the agents to an editor that speaks ACP, on stdin and stdout, until stdin ends.

    They are those of a running server, found by the data folder or --url; or of this process. Turns of a server go on
    when the editor leaves.
    """
    from turnwire.channels.console.host import HostError
    from turnwire.cli.client import announced_server, find_server

    references = [name for name in agent or [] if ":" in name]
    name = next((name for name in agent or [] if ":" not in name), None)
    runs_here = embedded or bool(references or docs)
    if url is not None and runs_here:
        fail("--url asks a server; --embedded, --docs and --agent module:name run without one", _USAGE)
    # The standard output belongs to the protocol.
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="turnwire: %(message)s")
    try:
        server = None if runs_here else find_server(data, url, key)
        if server is None:
            asyncio.run(_serve_embedded(data, references, docs or [], name))
            return

        def locate() -> "ServerAddress":
            # Called again after a lost connection: a restarted server may listen elsewhere, with another token.
            return server if url is not None else announced_server(data, key)

        asyncio.run(_serve_remote(locate, name))
    except HostError as error:
        fail(str(error), _FAILED)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


async def _serve_remote(find: "Callable[[], ServerAddress]", agent: str | None) -> None:
    from turnwire import __version__
    from turnwire.channels.console.host import HostError
    from turnwire.client import AsyncClient, ServerAddress, ServerUnreachableError
    from turnwire.wires.acp.hosts import HostFailure, ServerHost
    from turnwire.wires.acp.stdio import serve_stdio

    def locate() -> ServerAddress:
        try:
            return find()
        except HostError as error:
            raise ServerUnreachableError(str(error), reason=str(error), is_sent=False) from error

    async with AsyncClient(locate) as client:
        host = ServerHost(client)
        try:
            await host.agents()
        except HostFailure as error:
            raise HostError(str(error)) from error
        await serve_stdio(host, __version__, agent)


async def _serve_embedded(data: Path, agents: list[str], docs: list[Path], agent: str | None) -> None:
    from turnwire import __version__
    from turnwire.app import Turnwire
    from turnwire.channels.console.host import HostError
    from turnwire.cli.options import load_agents
    from turnwire.core.errors import TurnwireError
    from turnwire.settings import Settings
    from turnwire.wires.acp.hosts import EmbeddedSessions
    from turnwire.wires.acp.stdio import serve_stdio

    try:
        # Nobody waits for the turns of a program that was left.
        settings = Settings(data=data, shutdown_grace=0)
        turnwire = Turnwire(agents=load_agents(agents), settings=settings, docs=docs)
        async with turnwire.lifespan():
            await serve_stdio(EmbeddedSessions(turnwire.services), __version__, agent)
    except (TurnwireError, ValueError) as error:
        raise HostError(str(error)) from error
