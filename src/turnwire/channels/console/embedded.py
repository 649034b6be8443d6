"""The host that `chat` and `ask` talk to: a named server, the server of the data folder, or this process."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct
from rich.text import Text

from turnwire.app import Turnwire
from turnwire.channels.console.channel import ConsoleChannel
from turnwire.channels.console.host import Exchange, Host, PastSession, RemoteHost
from turnwire.channels.console.screen import Screen
from turnwire.cli.client import announced_server, find_server
from turnwire.cli.options import Sections, load_agents
from turnwire.cli.server_errors import HostError
from turnwire.client import ReceivedEvent, ServerAddress, TurnUpdate
from turnwire.core.contracts.stores import OnBusy
from turnwire.core.errors import TurnwireError
from turnwire.core.log.follow import follow
from turnwire.server.auth import LOCAL_PRINCIPAL
from turnwire.server.messages import MessageBody
from turnwire.settings import Settings


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

    async def converse(
        self,
        message: str,
        session_id: str | None,
        agent: str | None,
        on_busy: OnBusy = "enqueue",
        attachments: list[dict[str, Any]] | None = None,
    ) -> AsyncGenerator[TurnUpdate]:
        fields: dict[str, Any] = {"message": message, "session_id": session_id, "agent": agent, "on_busy": on_busy}
        fields["attachments"] = attachments or []
        try:
            body = MessageBody.model_validate(fields)
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

    async def sessions(self, limit: int) -> list[PastSession]:
        sessions = await self._turnwire.store.list_sessions(LOCAL_PRINCIPAL, limit=limit)
        return [PastSession(session.id, session.title or "", session.turn_count) for session in sessions]

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


@contextmanager
def _host_errors() -> Generator[None]:
    """Raise every TurnwireError as a HostError."""
    try:
        yield
    except TurnwireError as error:
        raise HostError(str(error)) from error
