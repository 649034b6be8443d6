"""The hosts of an editor's sessions: a running server, or this process."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Protocol

from msgspec import Struct

from turnwire.client import AsyncClient, Gap, ReceivedEvent, TurnSummary
from turnwire.core.contracts.agents import description_of, takes_attachments
from turnwire.core.contracts.stores import OnBusy
from turnwire.core.errors import EventsGoneError
from turnwire.core.log.codec import time_text
from turnwire.core.log.follow import follow
from turnwire.core.log.turns import TurnState
from turnwire.server.auth import LOCAL_PRINCIPAL
from turnwire.server.messages import MessageBody, parse_fields
from turnwire.server.services import Services
from turnwire.server.turns import start_turn, turn_state
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


class SessionHost(Protocol):
    """Keeps sessions and runs their turns. Every method may raise TurnwireError or HttpError."""

    async def agents(self) -> list[AgentChoice]:
        """Return the agents; the first one answers by default."""
        ...

    async def create_session(self) -> str: ...

    async def turns(self, session_id: str) -> list[HostedTurn]:
        """Return the last turns of a session, oldest first."""
        ...

    async def sessions(self, before: str | None) -> tuple[list[HostedSession], str | None]:
        """Return a page of sessions, newest activity first, and the `before` of the next page, if there is one."""
        ...

    async def start(
        self, session_id: str, message: str, attachments: Sequence[dict[str, Any]], agent: str | None, on_busy: OnBusy
    ) -> str:
        """Start a turn, and return its id."""
        ...

    def events(self, turn_id: str) -> AsyncGenerator[Positioned | TurnState]:
        """Yield the events of a turn from its start to its end; a state instead of events that are gone."""
        ...

    async def cancel(self, turn_id: str) -> None:
        """Stop a turn, and return when it has stopped."""
        ...

    async def decide(self, turn_id: str, call_id: str, *, approved: bool, args: dict[str, Any]) -> None: ...

    async def reply(self, turn_id: str, question_id: str, value: Any, *, declined: bool) -> None: ...


class ServerHost:
    """A running server. Its turns outlive the editor, and a lost connection is resumed."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def agents(self) -> list[AgentChoice]:
        found = (await self._client.request("GET", "/v1/agents"))["agents"]
        return [
            AgentChoice(item["name"], item.get("description") or "", bool(item.get("takes_attachments")))
            for item in found
        ]

    async def create_session(self) -> str:
        return (await self._client.create_session()).id

    async def turns(self, session_id: str) -> list[HostedTurn]:
        session = await self._client.session(session_id, limit=_MAX_TURNS)
        return [_hosted(turn) for turn in session.turns]

    async def sessions(self, before: str | None) -> tuple[list[HostedSession], str | None]:
        page = await self._client.sessions(before=before, limit=_PAGE)
        return [HostedSession(item.id, item.title or "", item.updated_at) for item in page.sessions], page.next

    async def start(
        self, session_id: str, message: str, attachments: Sequence[dict[str, Any]], agent: str | None, on_busy: OnBusy
    ) -> str:
        turn = await self._client.enqueue(
            session_id, message, agent=agent, attachments=[*attachments] or None, on_busy=on_busy
        )
        return turn.id

    async def events(self, turn_id: str) -> AsyncGenerator[Positioned | TurnState]:
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
        await self._client.cancel(turn_id)

    async def decide(self, turn_id: str, call_id: str, *, approved: bool, args: dict[str, Any]) -> None:
        await self._client.decide(turn_id, call_id, approved=approved, args=args)

    async def reply(self, turn_id: str, question_id: str, value: Any, *, declined: bool) -> None:
        await self._client.reply(turn_id, question_id, value, declined=declined)


def _hosted(turn: TurnSummary) -> HostedTurn:
    return HostedTurn(turn.turn_id, turn.phase, turn.last_position)


class EmbeddedSessions:
    """The sessions of this process, of the local user."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def agents(self) -> list[AgentChoice]:
        return [
            AgentChoice(name, description_of(agent) or "", takes_attachments(agent))
            for name, agent in self._services.agents.items()
        ]

    async def create_session(self) -> str:
        session, _ = await self._services.store.ensure_session(LOCAL_PRINCIPAL, None, None)
        return session.id

    async def turns(self, session_id: str) -> list[HostedTurn]:
        session = await self._services.store.find_session(LOCAL_PRINCIPAL, session_id)
        turns = await self._services.store.list_turns(LOCAL_PRINCIPAL, session_id=session.id, limit=_MAX_TURNS)
        return [HostedTurn(turn.id, turn.phase, turn.last_position) for turn in turns]

    async def sessions(self, before: str | None) -> tuple[list[HostedSession], str | None]:
        found = await self._services.store.list_sessions(LOCAL_PRINCIPAL, before=before, limit=_PAGE)
        sessions = [HostedSession(item.id, item.title or "", time_text(item.updated_at)) for item in found]
        return sessions, found[-1].id if len(found) == _PAGE else None

    async def start(
        self, session_id: str, message: str, attachments: Sequence[dict[str, Any]], agent: str | None, on_busy: OnBusy
    ) -> str:
        fields = {"message": message, "session_id": session_id, "agent": agent, "on_busy": on_busy}
        body = parse_fields(MessageBody, {**fields, "attachments": attachments})
        accepted = await start_turn(self._services, LOCAL_PRINCIPAL, body, channel="acp")
        return accepted.record.id

    async def events(self, turn_id: str) -> AsyncGenerator[Positioned | TurnState]:
        store = self._services.store
        try:
            async with aclosing(follow(store, turn_id)) as batches:
                async for events in batches:
                    for logged in events:
                        yield logged.position, logged.event
        except EventsGoneError:
            record = await store.find_turn(LOCAL_PRINCIPAL, turn_id)
            yield await turn_state(store, record)

    async def cancel(self, turn_id: str) -> None:
        await self._services.runner.cancel(turn_id)

    async def decide(self, turn_id: str, call_id: str, *, approved: bool, args: dict[str, Any]) -> None:
        await self._services.runner.decide(turn_id, call_id, approved=approved, by=LOCAL_PRINCIPAL, args=args)

    async def reply(self, turn_id: str, question_id: str, value: Any, *, declined: bool) -> None:
        await self._services.runner.reply(turn_id, question_id, value, declined=declined, by=LOCAL_PRINCIPAL)
