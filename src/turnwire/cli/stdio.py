"""Commands that serve agents on stdin and stdout, to editors and assistants that start programs."""

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnwire.cli.client import announced_server, find_server
from turnwire.cli.options import Sections, fail

if TYPE_CHECKING:
    from turnwire.client import ServerAddress

FAILED, USAGE = 1, 2

FindServer = Callable[[], "ServerAddress"]
"""Called again after a lost connection: a restarted server may listen elsewhere, with another token."""
Serve = Callable[[FindServer], Coroutine[Any, Any, None]]

Embedded = Annotated[bool, typer.Option("--embedded", help="Run the agents in this process, without a server.")]


def serve_server(data: Path, url: str | None, key: str | None, serve: Serve) -> bool:
    """Serve the agents of the server at `url` or of the data folder until stdin ends. Return False without one."""
    server = find_server(data, url, key)
    if server is None:
        return False
    _run(serve(lambda: server if url is not None else announced_server(data, key)))
    return True


def serve_embedded(data: Path, agents: Sequence[str], sections: Sections, serve: Serve) -> None:
    """Serve the agents of this process until stdin ends."""
    from turnwire.cli.embedded import build_embedded, embedded_server

    async def work() -> None:
        async with embedded_server(build_embedded(data, agents, sections)) as address:
            await serve(lambda: address)

    _run(work())


def _run(work: Coroutine[Any, Any, None]) -> None:
    # The standard output belongs to the protocol.
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="turnwire: %(message)s")
    try:
        asyncio.run(work)
    except ConnectionError as error:
        fail(str(error), FAILED)
