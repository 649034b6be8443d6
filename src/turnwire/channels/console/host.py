"""The host of a terminal's turns: a server."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import msgspec
from msgspec import Struct

from turnwire.cli.server_errors import client_finder, host_errors
from turnwire.client import (
    AsyncClient,
    AsyncTurnHandle,
    ClientError,
    ReconnectLimits,
    ServerAddress,
    TurnUpdate,
)
from turnwire.core.contracts.stores import OnBusy
from turnwire.core.log.codec import clean_text

_CHAT_HINT = "start one with `turnwire serve`, or use --embedded to run without a server"


class PastSession(Struct, frozen=True):
    id: str
    title: str
    turn_count: int


class Exchange(Struct, frozen=True):
    """A message and its answer."""

    message: str
    answer: str


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

    async def converse(
        self,
        message: str,
        session_id: str | None,
        agent: str | None,
        on_busy: OnBusy = "enqueue",
        attachments: list[dict[str, Any]] | None = None,
    ) -> AsyncGenerator[TurnUpdate]:
        """Start a turn and yield its events to the end, each once. Closing the generator does not stop the turn."""
        turn = self._client.draft(
            message, session_id=session_id, agent=agent, on_busy=on_busy, attachments=attachments or None
        )
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

    async def sessions(self, limit: int) -> list[PastSession]:
        """Return the sessions, newest first."""
        with host_errors(_CHAT_HINT):
            page = await self._client.sessions(limit=limit)
        return [
            PastSession(session.id, clean_text(session.title or ""), session.turn_count) for session in page.sessions
        ]

    async def last_exchange(self, session_id: str) -> Exchange | None:
        with host_errors(_CHAT_HINT):
            session = await self._client.session(session_id, limit=1)
            if not session.turns:
                return None
            turn = session.turns[-1]
            state = (await self._client.snapshot(turn.turn_id)).state
        return Exchange(clean_text(turn.message), clean_text(state.text))

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
