"""`turnwire acp`: agents for an editor."""

import asyncio
import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from turnwire.cli.commands import TALK, Commands
from turnwire.cli.options import Data, Key, Sections, Url, fail, takes_plugin_options
from turnwire.cli.stdio import USAGE, Embedded, FindServer, serve_embedded, serve_server

if TYPE_CHECKING:
    from turnwire.wires.acp.hosts import ServerHost


def add_commands(commands: Commands) -> None:
    commands.add("acp", acp, TALK, "", "--url https://agents.example --key tw_…", "--agent my_module:agent")


@takes_plugin_options
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
    embedded: Embedded = False,
    *,
    sections: Sections,
) -> None:
    """Serve the agents to an editor that speaks ACP, on stdin and stdout, until stdin ends.

    They are those of a running server, found by the data folder or --url; or of this process. Turns of a server go on
    when the editor leaves.
    """
    references = [name for name in agent or [] if ":" in name]
    name = next((name for name in agent or [] if ":" not in name), None)
    runs_here = embedded or bool(references or sections)
    if url is not None and runs_here:
        fail("--url asks a server; --embedded, --docs and --agent module:name run without one", USAGE)
    serve = partial(_serve_acp, agent=name)
    if runs_here or not serve_server(data, url, key, serve):
        serve_embedded(data, references, sections, serve)


async def _serve_acp(find: FindServer, agent: str | None) -> None:
    from turnwire.cli.server_errors import HostError, client_finder
    from turnwire.client import AsyncClient, ClientError
    from turnwire.wires.acp.hosts import ServerHost

    async with AsyncClient(client_finder(find)) as client:
        host = ServerHost(client)
        try:
            await host.agents()
        except ClientError as error:
            raise HostError(str(error)) from error
        await _serve_stdio(host, agent)


async def _serve_stdio(host: "ServerHost", agent: str | None) -> None:
    """Serve the sessions of a host until stdin ends."""
    from turnwire import __version__
    from turnwire.wires.acp.connection import MAX_LINE, RpcConnection
    from turnwire.wires.acp.routes import AcpAgent

    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=MAX_LINE)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, sys.stdout)
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    answering = AcpAgent(host, __version__, agent)
    answering.peer = connection = RpcConnection(reader, writer, answering.handle)
    try:
        await connection.run()
    finally:
        await answering.close()
