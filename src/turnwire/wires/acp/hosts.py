"""The host of an editor's sessions: a server."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from msgspec import Struct

from turnwire.client import AsyncClient, Gap, ReceivedEvent, TurnSummary
from turnwire.core.contracts.stores import OnBusy
from turnwire.core.log.turns import TurnState
from turnwire.wires.acp.encoder import Positioned

_MAX_TURNS = 100
_PAGE = 50


class AgentChoice(Struct, frozen=True):
    """An agent that a session can use."""

    name: str
    description: str = ""
    takes_files: bool = False


class HostedTurn(Struct, frozen=True):
    """A turn of a session, and the last position of its log."""

    id: str
    phase: str
    last_position: int


class HostedSession(Struct, frozen=True):
    id: str
    title: str
    updated_at: str | None


class ServerHost:
    """A server. Its turns outlive the editor, and a lost connection is resumed. Every method may raise ClientError."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def agents(self) -> list[AgentChoice]:
        """Return the agents; the first one answers by default."""
        found = (await self._client.request("GET", "/v1/agents"))["agents"]
        return [
            AgentChoice(item["name"], item.get("description") or "", bool(item.get("takes_attachments")))
            for item in found
        ]

    async def create_session(self) -> str:
        return (await self._client.create_session()).id

    async def turns(self, session_id: str) -> list[HostedTurn]:
        """Return the last turns of a session, oldest first."""
        session = await self._client.session(session_id, limit=_MAX_TURNS)
        return [_hosted(turn) for turn in session.turns]

    async def sessions(self, before: str | None) -> tuple[list[HostedSession], str | None]:
        """Return a page of sessions, newest activity first, and the `before` of the next page, if there is one."""
        page = await self._client.sessions(before=before, limit=_PAGE)
        return [HostedSession(item.id, item.title or "", item.updated_at) for item in page.sessions], page.next

    async def start(
        self, session_id: str, message: str, attachments: Sequence[dict[str, Any]], agent: str | None, on_busy: OnBusy
    ) -> str:
        """Start a turn, and return its id."""
        turn = await self._client.enqueue(
            session_id, message, agent=agent, attachments=[*attachments] or None, on_busy=on_busy
        )
        return turn.id

    async def events(self, turn_id: str) -> AsyncGenerator[Positioned | TurnState]:
        """Yield the events of a turn from its start to its end; a state instead of events that are gone."""
        turn = self._client.turn(turn_id)
        async with aclosing(turn.updates()) as updates:
            async for update in updates:
                match update:
                    case ReceivedEvent(event=event):
                        yield turn.position, event
                    case Gap(state=state):
                        yield state
                    case _:
                        pass

    async def cancel(self, turn_id: str) -> None:
        """Stop a turn, and return when it has stopped."""
        await self._client.cancel(turn_id)

    async def decide(self, turn_id: str, call_id: str, *, approved: bool, args: dict[str, Any]) -> None:
        await self._client.decide(turn_id, call_id, approved=approved, args=args)

    async def reply(self, turn_id: str, question_id: str, value: Any, *, declined: bool) -> None:
        await self._client.reply(turn_id, question_id, value, declined=declined)


def _hosted(turn: TurnSummary) -> HostedTurn:
    return HostedTurn(turn.turn_id, turn.phase, turn.last_position)
