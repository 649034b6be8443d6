"""Which host a terminal talks to: the server that was named, the one that serves the data folder, or this process."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from rich.text import Text

from turnwire.app import Turnwire
from turnwire.assembly import load_agent
from turnwire.channels.console.hosts import Exchange, FoundTurn, Heard, Host, HostError, Lost, Noted, PastSession
from turnwire.channels.console.screen import Screen
from turnwire.cli import client
from turnwire.core.contracts import Agent
from turnwire.core.errors import TurnwireError
from turnwire.core.follow import follow
from turnwire.server.auth import LOCAL_PRINCIPAL
from turnwire.server.messages import MessageBody
from turnwire.settings import Settings

if TYPE_CHECKING:
    from turnwire.channels.console.hosts import Server


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
        from turnwire.channels.console.hosts import RemoteHost

        host: Host = RemoteHost(lambda: find_server(wanted))
    else:
        host = EmbeddedHost(wanted.data, wanted.brought, wanted.docs, wanted.extensions)
        logging.getLogger("turnwire").addHandler(_ScreenLog(screen))
        await host.open()
    try:
        yield host
    finally:
        await host.close()


def find_server(wanted: Wanted) -> "Server":
    """Raises HostError."""
    from turnwire.channels.console.hosts import Server

    if wanted.url is not None:
        return Server(wanted.url.rstrip("/"), wanted.key)
    told = client.find(wanted.data)
    if told is None:
        raise HostError(f"a server is using {wanted.data}, but nothing there says where; restart it")
    return Server(told["url"], wanted.key or told["control_token"], is_local=True)


def _is_served(data: Path) -> bool:
    from turnwire.stores.sqlite.disk import is_locked

    return data.exists() and is_locked(data) and client.find(data) is not None


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


# Turns in this process: the same store, agents and log as a server has, without one.


class EmbeddedHost:
    def __init__(
        self, data: Path, agents: Sequence[str] = (), docs: Sequence[Path] = (), extensions: Sequence[Path] = ()
    ) -> None:
        """Without `extensions` there are none, not even those that are installed. Raises HostError."""
        named: dict[str, Agent] = {}
        for reference in agents:
            name, equals, target = reference.rpartition("=")
            try:
                named[name if equals else target.rpartition(":")[2]] = load_agent(target)
            except ValueError as error:
                raise HostError(f"--agent: {error}") from error
        try:
            # Nobody waits for a program that was left.
            settings = Settings(data=data, shutdown_grace=0)
            self._turnwire = Turnwire(agents=named, settings=settings, docs=docs, extensions=extensions or None)
        except TurnwireError as error:
            raise HostError(str(error)) from error

    @property
    def name(self) -> str:
        return "this process"

    async def open(self) -> None:
        try:
            await self._turnwire.open()
        except TurnwireError as error:
            raise HostError(str(error)) from error

    async def converse(
        self, message: str, session_id: str | None, agent: str | None
    ) -> AsyncGenerator[Heard | Lost | FoundTurn | Noted]:
        try:
            body = MessageBody.model_validate({"message": message, "session_id": session_id, "agent": agent})
        except ValueError as error:
            raise HostError(f"this cannot be asked: {error}") from error
        try:
            accepted = await self._turnwire.start(LOCAL_PRINCIPAL, body)
            async with aclosing(follow(self._turnwire.store, accepted.record.id)) as batches:
                async for events in batches:
                    for logged in events:
                        yield Heard(logged.event, logged.body)
        except TurnwireError as error:
            raise HostError(str(error)) from error

    async def cancel(self, turn_id: str) -> None:
        try:
            await self._turnwire.runner.cancel(turn_id)
        except TurnwireError as error:
            raise HostError(str(error)) from error

    async def decide(self, turn_id: str, call_id: str, *, approved: bool, reason: str | None = None) -> None:
        try:
            await self._turnwire.runner.decide(turn_id, call_id, approved=approved, by=LOCAL_PRINCIPAL, reason=reason)
        except TurnwireError as error:
            raise HostError(str(error)) from error

    async def sessions(self, limit: int) -> list[PastSession]:
        found = await self._turnwire.store.list_sessions(LOCAL_PRINCIPAL, limit=limit)
        return [PastSession(one.id, one.title or "", one.turn_count) for one in found]

    async def last_exchange(self, session_id: str) -> Exchange | None:
        turns = await self._turnwire.store.list_turns(LOCAL_PRINCIPAL, session_id=session_id, limit=1)
        if not turns:
            return None
        state = await self._turnwire.state(turns[-1])
        return Exchange(turns[-1].message, state.text)

    async def agents(self) -> list[str]:
        return list(self._turnwire.agents)

    async def close(self) -> None:
        await asyncio.shield(self._turnwire.close())
