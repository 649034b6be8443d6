"""Turns in this process: the same store, agents and log as a server has, without one."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path

from turnwire.assembly import load_agent
from turnwire.channels.console.hosts import Exchange, Found, Heard, HostError, Lost, Noted, PastSession
from turnwire.core.contracts import Agent
from turnwire.core.errors import TurnwireError
from turnwire.core.follow import follow
from turnwire.server import Turnwire
from turnwire.server.auth import LOCAL_PRINCIPAL
from turnwire.server.requests import MessageBody
from turnwire.settings import Settings


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
    ) -> AsyncGenerator[Heard | Lost | Found | Noted]:
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
