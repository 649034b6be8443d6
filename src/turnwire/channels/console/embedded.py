"""The host that `chat` and `ask` talk to: a named server, the server of the data folder, or this process."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

from msgspec import Struct
from rich.text import Text

from turnwire.app import Turnwire
from turnwire.channels.console.channel import ConsoleChannel
from turnwire.channels.console.host import Host
from turnwire.channels.console.screen import Screen
from turnwire.cli.client import announced_server, find_server
from turnwire.cli.embedded import build_embedded, embedded_server
from turnwire.cli.options import Sections
from turnwire.cli.server_errors import HostError
from turnwire.client import ServerAddress


class HostOptions(Struct, frozen=True):
    """The command line options that choose a host."""

    data: Path
    url: str | None = None
    key: str | None = None
    agents: tuple[str, ...] = ()
    sections: Sections = {}
    """Settings of plugins."""
    embedded: bool = False
    extensions: tuple[Path, ...] = ()
    channel: bool = False

    @property
    def agent_references(self) -> list[str]:
        """Return the agents to import into this process."""
        return [agent for agent in self.agents if ":" in agent]

    @property
    def agent_name(self) -> str | None:
        """Return the name of the agent to ask; None for the host's default."""
        return next((agent for agent in self.agents if ":" not in agent), None)

    @property
    def must_be_embedded(self) -> bool:
        return bool(self.embedded or self.sections or self.agent_references or self.extensions or self.channel)


@asynccontextmanager
async def open_host(options: HostOptions, screen: Screen) -> AsyncGenerator[Host]:
    """Open the host that the options choose. Raise HostError."""
    if not options.must_be_embedded and find_server(options.data, options.url, options.key) is not None:
        async with aclosing(Host(lambda: _locate(options))) as host:
            yield host
        return
    turnwire = build_for(options, screen)
    async with embedded_server(turnwire) as address:
        name = f"this process ({', '.join(turnwire.agents)})"
        async with aclosing(Host(lambda: address, name=name)) as host:
            yield host


def build_for(options: HostOptions, screen: Screen) -> Turnwire:
    """Build the server of this process, whose warnings are shown on the screen."""
    extensions = options.extensions if options.extensions or options.channel else None
    logging.getLogger("turnwire").addHandler(_ScreenLogHandler(screen))
    return build_embedded(options.data, options.agent_references, options.sections, extensions)


@asynccontextmanager
async def open_channel(options: HostOptions, screen: Screen) -> AsyncGenerator[tuple[ConsoleChannel, str]]:
    """Run the channel `console` in this process; yield it and the names of the agents. Raise HostError."""
    turnwire = build_for(options, screen)
    async with turnwire.lifespan():
        kernel = turnwire.kernel
        channel = kernel.extensions["console"].extension if kernel and "console" in kernel.extensions else None
        if not isinstance(channel, ConsoleChannel):
            raise HostError("the channel `console` does not run; remove what replaces or disables it")
        yield channel, ", ".join(turnwire.agents)


def _locate(options: HostOptions) -> ServerAddress:
    # Called while a server restarts: a test of the folder's lock takes the lock, and the new server could not start.
    if options.url is None:
        return announced_server(options.data, options.key)
    return ServerAddress(options.url.rstrip("/"), options.key)


class _ScreenLogHandler(logging.Handler):
    """Shows the warnings of the embedded server on the screen, outside of the answer."""

    def __init__(self, screen: Screen) -> None:
        super().__init__(logging.WARNING)
        self._screen = screen
        self._loop = asyncio.get_running_loop()

    def emit(self, record: logging.LogRecord) -> None:
        line = Text(f"! {record.getMessage()}", "yellow")
        # A record may come from any thread.
        self._loop.call_soon_threadsafe(self._screen.print, line)
