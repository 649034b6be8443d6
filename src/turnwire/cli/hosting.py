"""Which host a terminal talks to: the server that was named, the one that serves the data folder, or this process."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from rich.text import Text

from turnwire.channels.console.hosts import Host, HostError
from turnwire.channels.console.screen import Screen
from turnwire.cli import running

if TYPE_CHECKING:
    from turnwire.channels.console.remote import Server


class Wanted(Struct, frozen=True):
    """What the command line says."""

    data: Path
    url: str | None = None
    key: str | None = None
    agents: tuple[str, ...] = ()
    docs: tuple[Path, ...] = ()
    embedded: bool = False
    extensions: tuple[Path, ...] = ()

    @property
    def brought(self) -> list[str]:
        """The agents that are to be loaded here."""
        return [one for one in self.agents if ":" in one]

    @property
    def agent_name(self) -> str | None:
        """Who is asked, of those that are there."""
        return next((one for one in self.agents if ":" not in one), None)

    @property
    def must_be_embedded(self) -> bool:
        return bool(self.embedded or self.docs or self.brought or self.extensions)


@asynccontextmanager
async def opened(wanted: Wanted, screen: Screen) -> AsyncGenerator[Host]:
    """Raises HostError."""
    if wanted.url is not None or (not wanted.must_be_embedded and _is_served(wanted.data)):
        from turnwire.channels.console.remote import RemoteHost

        host: Host = RemoteHost(lambda: find_server(wanted))
    else:
        from turnwire.cli.embedded import EmbeddedHost

        host = EmbeddedHost(wanted.data, wanted.brought, wanted.docs, wanted.extensions)
        logging.getLogger("turnwire").addHandler(_ScreenLog(screen))
        await host.open()
    try:
        yield host
    finally:
        await host.close()


def find_server(wanted: Wanted) -> "Server":
    """Raises HostError."""
    from turnwire.channels.console.remote import Server

    if wanted.url is not None:
        return Server(wanted.url.rstrip("/"), wanted.key)
    told = running.find(wanted.data)
    if told is None:
        raise HostError(f"a server is using {wanted.data}, but nothing there says where; restart it")
    return Server(told["url"], wanted.key or told["control_token"], is_local=True)


def _is_served(data: Path) -> bool:
    from turnwire.stores.sqlite.disk import is_locked

    return data.exists() and is_locked(data) and running.find(data) is not None


class _ScreenLog(logging.Handler):
    """Warnings of this process's own server part, where they do not run into the answer."""

    def __init__(self, screen: Screen) -> None:
        super().__init__(logging.WARNING)
        self._screen = screen
        self._loop = asyncio.get_running_loop()

    def emit(self, record: logging.LogRecord) -> None:
        line = Text(f"! {record.getMessage()}", "yellow")
        # From whatever thread it comes.
        self._loop.call_soon_threadsafe(self._screen.say, line)
