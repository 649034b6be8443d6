"""Commands that serve agents on stdin and stdout, to editors and assistants that start programs."""

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnwire.cli.options import Sections, fail

if TYPE_CHECKING:
    from turnwire.client import ServerAddress
    from turnwire.server.services import Services

FAILED, USAGE = 1, 2

FindServer = Callable[[], "ServerAddress"]
"""Called again after a lost connection: a restarted server may listen elsewhere, with another token."""

Embedded = Annotated[bool, typer.Option("--embedded", help="Run the agents in this process, without a server.")]


def server_finder(data: Path, url: str | None, key: str | None) -> FindServer | None:
    """Return a function that finds the server at `url` or of the data folder; None if there is no such server."""
    from turnwire.cli.client import announced_server, find_server

    server = find_server(data, url, key)
    if server is None:
        return None
    return lambda: server if url is not None else announced_server(data, key)


def serve(
    find: FindServer | None,
    serve_remote: Callable[[FindServer], Coroutine[Any, Any, None]],
    serve_here: Callable[[], Coroutine[Any, Any, None]],
) -> None:
    """Serve the agents of a server, or without one those of this process, until stdin ends."""
    # The standard output belongs to the protocol.
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="turnwire: %(message)s")
    try:
        asyncio.run(serve_here() if find is None else serve_remote(find))
    except ConnectionError as error:
        fail(str(error), FAILED)


async def serve_embedded(
    data: Path,
    agents: list[str],
    sections: Sections,
    serve: Callable[["Services"], Coroutine[Any, Any, None]],
) -> None:
    from turnwire.app import Turnwire
    from turnwire.cli.options import load_agents
    from turnwire.settings import Settings

    try:
        # The client has left the program, so no turn gets time to finish.
        settings = Settings(data=data, shutdown_grace=0, **sections)
        turnwire = Turnwire(agents=load_agents(agents), settings=settings)
    except ValueError as error:
        fail(str(error), FAILED)
    async with turnwire.lifespan():
        await serve(turnwire.services)
