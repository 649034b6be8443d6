"""A client in this process: it sends messages to agents, over the same runner, log and journal as a server's.

async with open_client(agent) as client:
    turn = await client.send("What is the weather?")
    assert turn.text == "It is snowing."
    assert turn.tool_calls == [("weather", {"city": "Oslo"})]
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct, to_builtins

from turnwire.app import Turnwire
from turnwire.assembly import build_store, build_wires
from turnwire.core.log.codec import LoggedEvent, begins_wait
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    ErrorEvent,
    Event,
    Outcome,
    ResponseEvent,
    ToolCallEvent,
    Usage,
)
from turnwire.core.log.follow import follow
from turnwire.core.log.turns import Message, Question, TurnRecord, TurnState
from turnwire.core.run.runner import TurnRequest
from turnwire.recordings.recording import TurnRecording, encode_recording, record_turn, recorded_history
from turnwire.settings import Settings

PRINCIPAL = "test"


class AgentTurn(Struct, frozen=True):
    """A turn that has ended or waits for a person: its log, and the state that the log folds into."""

    record: TurnRecord
    log: tuple[LoggedEvent, ...]
    state: TurnState

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def session_id(self) -> str:
        return self.record.session_id

    @property
    def events(self) -> list[Event]:
        return [logged.event for logged in self.log]

    @property
    def text(self) -> str:
        """Return the answer."""
        return self.state.text

    @property
    def outcome(self) -> Outcome | None:
        """Return the outcome; None while the turn waits for a person."""
        return self.state.outcome

    @property
    def error(self) -> ErrorEvent | None:
        return self.state.error

    @property
    def response(self) -> ResponseEvent | None:
        return next((event for event in self.events if isinstance(event, ResponseEvent)), None)

    @property
    def usage(self) -> Usage | None:
        return self.state.usage

    @property
    def tool_calls(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the tools that were called, with their arguments, in order."""
        return [(event.tool, event.args) for event in self.events if isinstance(event, ToolCallEvent)]

    @property
    def approvals(self) -> list[ApprovalRequestEvent]:
        """Return the calls that a person has yet to decide about."""
        waiting = {step.id for step in self.state.steps if step.state == "waiting"}
        requests = {event.call_id: event for event in self.events if isinstance(event, ApprovalRequestEvent)}
        return [request for call_id, request in requests.items() if call_id in waiting]

    @property
    def questions(self) -> list[Question]:
        """Return the questions that nobody has answered yet."""
        return [question for question in self.state.questions if question.state == "open"]

    @property
    def client_calls(self) -> list[ToolCallEvent]:
        """Return the calls that the client has yet to run."""
        running = {step.id for step in self.state.steps if step.state == "running" and step.runs_on == "client"}
        calls = {event.call_id: event for event in self.events if isinstance(event, ToolCallEvent)}
        return [call for call_id, call in calls.items() if call_id in running]

    def wire(self, name: str) -> bytes:
        """Return the log as a client of this wire gets it, such as `sse_chat` or `ai_sdk`."""
        encoder = build_wires()[name]({}).encoder()
        return b"".join(map(encoder.frame, self.log))


class AgentClient:
    """Sends messages to the agents of an open `Turnwire`, and waits for the answers."""

    def __init__(self, turnwire: Turnwire) -> None:
        self.turnwire = turnwire

    async def send(
        self,
        message: str,
        *,
        session_id: str | None = None,
        agent: str | None = None,
        history: Sequence[Message] = (),
        options: Mapping[str, Any] | None = None,
        principal: str = PRINCIPAL,
    ) -> AgentTurn:
        """Start a turn and return it when it has ended or waits for a person.

        With the `session_id` of an earlier turn, the agent gets that conversation; `history` is for a new one.
        """
        chosen = {**(options or {}), **({"history": to_builtins(history)} if history else {})}
        request = TurnRequest(
            principal=principal, message=message, session_id=session_id, agent=agent, options=chosen, channel="test"
        )
        accepted = await self.turnwire.runner.start(request)
        return await self._settled(accepted.record)

    async def decide(self, turn: AgentTurn, *, approved: bool, reason: str | None = None) -> AgentTurn:
        """Decide about all calls that a turn waits for, and return the turn when it has gone on to its next stop."""
        for request in turn.approvals:
            await self.turnwire.runner.decide(
                turn.id, request.call_id, approved=approved, reason=reason, by=turn.record.principal
            )
        return await self._settled(turn.record, after=turn.log[-1].position)

    async def reply(self, turn: AgentTurn, value: Any = None, *, declined: bool = False) -> AgentTurn:
        """Answer the first question that a turn waits for, or decline to; return the turn when it has gone on.

        If it waits for more answers, it is returned at once.
        """
        question = turn.questions[0]
        await self.turnwire.runner.reply(turn.id, question.id, value, declined=declined, by=turn.record.principal)
        return await self._settled(turn.record, after=turn.log[-1].position)

    async def send_tool_result(self, turn: AgentTurn, output: Any, *, is_error: bool = False) -> AgentTurn:
        """Send the result of the first call that the client has to run, and return the turn when it has gone on."""
        await self.turnwire.runner.send_tool_result(turn.id, turn.client_calls[0].call_id, output, is_error=is_error)
        return await self._settled(turn.record, after=turn.log[-1].position)

    async def record(self, turn: AgentTurn, path: Path | str | None = None) -> TurnRecording:
        """Return the recording of an ended turn, and write it to a file if there is a path."""
        store, settings = self.turnwire.store, self.turnwire.settings
        history = await recorded_history(store, turn.record, settings.history_turns, settings.history_tokens)
        recording = await record_turn(store, turn.record, history)
        if path is not None:
            await asyncio.to_thread(Path(path).write_bytes, encode_recording(recording))
        return recording

    async def _settled(self, record: TurnRecord, after: int = 0) -> AgentTurn:
        store = self.turnwire.store
        if (await store.find_turn(record.principal, record.id)).phase == "waiting":
            return await self._read(record)
        following = follow(store, record.id, after)
        try:
            async for events in following:
                if not any(map(begins_wait, events)):
                    continue
                if (await store.find_turn(record.principal, record.id)).phase == "waiting":
                    break
        finally:
            await following.aclose()
        return await self._read(record)

    async def _read(self, record: TurnRecord) -> AgentTurn:
        store = self.turnwire.store
        record = await store.find_turn(record.principal, record.id)
        log = tuple(await store.read(record.id, 0, record.last_position))
        return AgentTurn(record, log, await self.turnwire.state(record))


@asynccontextmanager
async def open_client(
    agent: Any = None,
    *,
    agents: Mapping[str, Any] | None = None,
    settings: Settings | None = None,
    **options: Any,
) -> AsyncGenerator[AgentClient]:
    """Open a `Turnwire` that keeps its turns in memory, and yield a client of it. `options` go to `Turnwire`."""
    settings = settings or Settings(shutdown_grace=0)
    turnwire = Turnwire(agent, agents=agents, store=build_store("memory", settings), settings=settings, **options)
    async with turnwire.lifespan():
        for plugin in turnwire.services.plugins.values():
            await plugin.ready()
        yield AgentClient(turnwire)
