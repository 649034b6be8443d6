"""Hosts of a terminal's turns: a named server, the server of the data folder, or this process."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Protocol, Unpack

import msgspec
from msgspec import Struct
from rich.text import Text

from turnwire.app import Turnwire
from turnwire.channels.console.channel import ConsoleChannel
from turnwire.channels.console.screen import Screen
from turnwire.cli.client import announced_server, find_server
from turnwire.cli.options import Sections, load_agents
from turnwire.cli.server_errors import HostError, client_finder, host_errors
from turnwire.client import (
    AsyncClient,
    AsyncTurnHandle,
    ClientError,
    MessageOptions,
    ReceivedEvent,
    ReconnectLimits,
    ServerAddress,
    SessionSummary,
    TurnUpdate,
)
from turnwire.core.errors import TurnwireError
from turnwire.core.log.follow import follow
from turnwire.server.auth import LOCAL_PRINCIPAL
from turnwire.server.messages import MessageBody
from turnwire.settings import Settings

_CHAT_HINT = "start one with `turnwire serve`, or use --embedded to run without a server"


class Host(Protocol):
    """Runs turns and knows past sessions. Every method may raise HostError."""

    @property
    def name(self) -> str:
        """Return the host's name for a person to read."""
        ...

    def converse(self, message: str, **options: Unpack[MessageOptions]) -> AsyncGenerator[TurnUpdate]:
        """Start a turn and yield its events to the end, each once. Closing the generator does not stop the turn."""
        ...

    async def cancel(self, turn_id: str) -> None: ...

    async def decide(self, turn_id: str, call_id: str, *, approved: bool, reason: str | None = None) -> None: ...

    async def reply(
        self, turn_id: str, question_id: str, value: Any, *, declined: bool = False, reason: str | None = None
    ) -> None: ...

    async def sessions(self, limit: int) -> list[SessionSummary]:
        """Return the sessions, newest first."""
        ...

    async def last_exchange(self, session_id: str) -> tuple[str, str] | None:
        """Return the last message of a session and its answer."""
        ...

    async def agents(self) -> list[str]:
        """Return the agents' names; empty if the host does not publish them."""
        ...

    async def close(self) -> None: ...


CHAT_LIMITS = ReconnectLimits(give_up_seconds=60)


class RemoteHost:
    """A server, over HTTP. A lost connection is resumed after the last event that was read."""

    def __init__(self, find: Callable[[], ServerAddress], limits: ReconnectLimits = CHAT_LIMITS) -> None:
        """`find` is called again after a lost connection: a restarted server may listen on another address."""
        # Without retries, a person at a terminal learns at once that no server answers.
        with host_errors(_CHAT_HINT):
            self._client = AsyncClient(client_finder(find), limits=msgspec.structs.replace(limits, request_seconds=0))

    @property
    def name(self) -> str:
        return self._client.name

    async def converse(self, message: str, **options: Unpack[MessageOptions]) -> AsyncGenerator[TurnUpdate]:
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
        with host_errors(_CHAT_HINT):
            page = await self._client.sessions(limit=limit)
        return list(page.sessions)

    async def last_exchange(self, session_id: str) -> tuple[str, str] | None:
        with host_errors(_CHAT_HINT):
            session = await self._client.session(session_id, limit=1)
            if not session.turns:
                return None
            turn = session.turns[-1]
            state = (await self._client.snapshot(turn.turn_id)).state
        return turn.message, state.text

    async def agents(self) -> list[str]:
        return []

    async def close(self) -> None:
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
        host: Host = RemoteHost(lambda: _locate(options))
    else:
        extensions = options.extensions if options.extensions or options.channel else None
        host = EmbeddedHost(options.data, options.agent_references, options.sections, extensions)
        logging.getLogger("turnwire").addHandler(_ScreenLogHandler(screen))
        await host.open()
    try:
        yield host
    finally:
        await host.close()


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


class EmbeddedHost:
    """Turns in this process: the store, agents and log of a server, without its HTTP."""

    def __init__(
        self,
        data: Path,
        agents: Sequence[str] = (),
        sections: Sections | None = None,
        extensions: Sequence[Path] | None = None,
    ) -> None:
        """Without `extensions` it runs none, not even installed ones. Raise HostError."""
        try:
            # The person has left the program, so no turn gets time to finish.
            settings = Settings(data=data, shutdown_grace=0, **(sections or {}))
            self._turnwire = Turnwire(agents=load_agents(agents), settings=settings, extensions=extensions)
        except (TurnwireError, ValueError) as error:
            raise HostError(str(error)) from error

    @property
    def name(self) -> str:
        return "this process"

    async def open(self) -> None:
        with _host_errors():
            await self._turnwire.open()

    @property
    def console(self) -> ConsoleChannel:
        """Return the channel `console` of this process. Raise HostError if it does not run."""
        host = self._turnwire.extensions and self._turnwire.extensions.hosts.get("console")
        channel = host and host.extension
        if not isinstance(channel, ConsoleChannel):
            raise HostError("the channel `console` does not run; remove what replaces or disables it")
        return channel

    async def converse(self, message: str, **options: Unpack[MessageOptions]) -> AsyncGenerator[TurnUpdate]:
        chosen = {name: value for name, value in options.items() if value is not None}
        try:
            body = MessageBody.model_validate({"message": message, **chosen})
        except ValueError as error:
            raise HostError(f"the message is not valid: {error}") from error
        with _host_errors():
            accepted = await self._turnwire.start(LOCAL_PRINCIPAL, body)
            async with aclosing(follow(self._turnwire.store, accepted.record.id)) as batches:
                async for events in batches:
                    for logged in events:
                        yield ReceivedEvent(logged.event, logged.body)

    async def cancel(self, turn_id: str) -> None:
        with _host_errors():
            await self._turnwire.runner.cancel(turn_id)

    async def decide(self, turn_id: str, call_id: str, *, approved: bool, reason: str | None = None) -> None:
        with _host_errors():
            await self._turnwire.runner.decide(turn_id, call_id, approved=approved, by=LOCAL_PRINCIPAL, reason=reason)

    async def reply(
        self, turn_id: str, question_id: str, value: Any, *, declined: bool = False, reason: str | None = None
    ) -> None:
        with _host_errors():
            await self._turnwire.runner.reply(
                turn_id, question_id, value, declined=declined, reason=reason, by=LOCAL_PRINCIPAL
            )

    async def sessions(self, limit: int) -> list[SessionSummary]:
        sessions = await self._turnwire.store.list_sessions(LOCAL_PRINCIPAL, limit=limit)
        return [SessionSummary(id=item.id, title=item.title, turn_count=item.turn_count) for item in sessions]

    async def last_exchange(self, session_id: str) -> tuple[str, str] | None:
        turns = await self._turnwire.store.list_turns(LOCAL_PRINCIPAL, session_id=session_id, limit=1)
        if not turns:
            return None
        state = await self._turnwire.state(turns[-1])
        return turns[-1].message, state.text

    async def agents(self) -> list[str]:
        return list(self._turnwire.agents)

    async def close(self) -> None:
        await asyncio.shield(self._turnwire.close())


@contextmanager
def _host_errors() -> Generator[None]:
    """Raise every TurnwireError as a HostError."""
    try:
        yield
    except TurnwireError as error:
        raise HostError(str(error)) from error
