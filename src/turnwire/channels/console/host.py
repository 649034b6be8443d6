"""The host of a terminal's turns: a named server, the server of the data folder, or one in this process."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, Unpack

import msgspec
from msgspec import Struct
from rich.text import Text

from turnwire.app import Turnwire
from turnwire.channels.console.channel import ConsoleChannel
from turnwire.channels.console.screen import Screen
from turnwire.cli.client import announced_server, find_server
from turnwire.cli.embedded import build_embedded, embedded_server
from turnwire.cli.options import Sections
from turnwire.cli.server_errors import HostError, client_finder, host_errors
from turnwire.client import (
    AsyncClient,
    AsyncTurnHandle,
    ClientError,
    MessageOptions,
    ReconnectLimits,
    ServerAddress,
    SessionSummary,
    TurnUpdate,
)

_CHAT_HINT = "start one with `turnwire serve`, or use --embedded to run without a server"


CHAT_LIMITS = ReconnectLimits(give_up_seconds=60)


class Host:
    """A server that runs turns and knows past sessions. Every method may raise HostError.

    A lost connection is resumed after the last event that was read.
    """

    def __init__(
        self, find: Callable[[], ServerAddress], limits: ReconnectLimits = CHAT_LIMITS, name: str | None = None
    ) -> None:
        """`find` is called again after a lost connection: a restarted server may listen on another address."""
        # Without retries, a person at a terminal learns at once that no server answers.
        with host_errors(_CHAT_HINT):
            self._client = AsyncClient(client_finder(find), limits=msgspec.structs.replace(limits, request_seconds=0))
        self.name = name or self._client.name
        """The host's name for a person to read."""

    async def converse(self, message: str, **options: Unpack[MessageOptions]) -> AsyncGenerator[TurnUpdate]:
        """Start a turn and yield its events to the end, each once. Closing the generator does not stop the turn."""
        turn = self._client.draft(message, **options)
        try:
            async with aclosing(turn.updates()) as updates:
                async for update in updates:
                    yield update
        except ClientError as error:
            with host_errors(_lost_hint(turn)):
                raise error

    async def cancel(self, turn_id: str) -> None:
        with host_errors(_CHAT_HINT):
            await self._client.cancel(turn_id)

    async def decide(self, turn_id: str, call_id: str, *, approved: bool, reason: str | None = None) -> None:
        with host_errors(_CHAT_HINT):
            await self._client.decide(turn_id, call_id, approved=approved, reason=reason)

    async def reply(
        self, turn_id: str, question_id: str, value: Any, *, declined: bool = False, reason: str | None = None
    ) -> None:
        with host_errors(_CHAT_HINT):
            await self._client.reply(turn_id, question_id, value, declined=declined, reason=reason)

    async def sessions(self, limit: int) -> list[SessionSummary]:
        """Return the sessions, newest first."""
        with host_errors(_CHAT_HINT):
            page = await self._client.sessions(limit=limit)
        return list(page.sessions)

    async def last_exchange(self, session_id: str) -> tuple[str, str] | None:
        """Return the last message of a session and its answer."""
        with host_errors(_CHAT_HINT):
            session = await self._client.session(session_id, limit=1)
            if not session.turns:
                return None
            turn = session.turns[-1]
            state = (await self._client.snapshot(turn.turn_id)).state
        return turn.message, state.text

    async def agents(self) -> list[str]:
        """Return the agents' names, the default one first."""
        with host_errors(_CHAT_HINT):
            return [agent["name"] for agent in (await self._client.request("GET", "/v1/agents"))["agents"]]

    async def aclose(self) -> None:
        await self._client.close()


def _lost_hint(turn: AsyncTurnHandle) -> str:
    """Return the hint for a server that does not answer: start one, or read the turn that it has begun."""
    if not turn.is_reached:
        return _CHAT_HINT
    return f"start the server again, then run `turnwire tail {turn.id if turn.is_started else ''}".rstrip() + "`"


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
        host = turnwire.extensions and turnwire.extensions.hosts.get("console")
        channel = host and host.extension
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
