"""`turnwire mcp`: agents as the tools of an MCP server on stdin and stdout."""

from typing import Annotated

import typer

from turnwire.cli.commands import TALK, Commands
from turnwire.cli.options import Data, Key, Sections, Url, fail, takes_plugin_options
from turnwire.cli.stdio import FAILED, USAGE, Embedded, serve_embedded, serve_server


def add_commands(commands: Commands) -> None:
    commands.add("mcp", mcp, TALK, "", "--url https://agents.example --key tw_…", "--agent my_module:agent")


@takes_plugin_options
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
    embedded: Embedded = False,
    *,
    sections: Sections,
) -> None:
    """Offer the agents as the tools of an MCP server on stdin and stdout, until stdin ends.

    They are those of a running server, found by the data folder or --url; or of this process.
    """
    runs_here = embedded or bool(agent or sections)
    if url is not None and runs_here:
        fail("--url asks a server; --embedded, --docs and --agent run without one", USAGE)
    try:
        from turnwire.wires.mcp.stdio import serve_relay
    except ImportError:
        fail("MCP needs an extra: pip install 'turnwire[mcp]'", FAILED)
    if runs_here or not serve_server(data, url, key, serve_relay):
        serve_embedded(data, agent or [], sections, serve_relay)
