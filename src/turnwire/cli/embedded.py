"""A server inside a command: its agents run in this process, and are spoken to like those of any other server."""

import asyncio
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import uvicorn

from turnwire.app import Turnwire
from turnwire.cli.options import Sections, load_agents
from turnwire.cli.server_errors import HostError
from turnwire.cli.web_server import listen, url_of, uvicorn_config
from turnwire.client import ServerAddress
from turnwire.settings import Settings

_HOST = "127.0.0.1"


def build_embedded(
    data: Path, agents: Sequence[str], sections: Sections, extensions: Sequence[Path] | None = None
) -> Turnwire:
    """Build a server for a command. Without `extensions` it runs none, not even installed ones. Raise HostError."""
    try:
        # The person has left the program, so no turn gets time to finish.
        settings = Settings(data=data, shutdown_grace=0, **sections)
        # No caller but this process, which has the control token.
        return Turnwire(
            agents=load_agents(agents), settings=settings, extensions=extensions, authenticate=lambda scope: None
        )
    except ValueError as error:
        raise HostError(str(error)) from error


@asynccontextmanager
async def embedded_server(turnwire: Turnwire) -> AsyncGenerator[ServerAddress]:
    """Open a server on a free port that only this process may use, and yield its address."""
    async with turnwire.lifespan():
        listening = listen(_HOST, 0)
        server = _Server(uvicorn_config(turnwire, lifespan="off"))
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            yield ServerAddress(url_of(_HOST, listening), turnwire.control_token, is_local=True)
        finally:
            server.should_exit = server.force_exit = True
            await serving


class _Server(uvicorn.Server):
    """A uvicorn server that leaves the signals to the command."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield
