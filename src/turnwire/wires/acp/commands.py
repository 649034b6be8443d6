"""`turnwire acp`: agents for an editor."""

from functools import partial
from typing import Annotated

import typer

from turnwire.cli.commands import TALK, Commands
from turnwire.cli.options import Data, Key, Sections, Url, fail, takes_plugin_options
from turnwire.cli.stdio import USAGE, Embedded, FindServer, serve_embedded, serve_server


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
    from turnwire import __version__
    from turnwire.cli.server_errors import HostError, client_finder
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
