"""The test desk: a runner with agents over a store, and the helpers that tests of turns share."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

from tests.contracts.turns import BOUND, followed, new_session_id, whole_log
from turnwire.agents.loader import Answer, GeneratorAgent, as_agent
from turnwire.core.contracts.agents import Agent
from turnwire.core.contracts.stores import Store
from turnwire.core.log.events import ApprovalRequestEvent, DoneEvent, ErrorEvent, Event, ResponseEvent
from turnwire.core.log.follow import follow
from turnwire.core.log.turns import Turn, TurnRecord
from turnwire.core.people.budget import Limits
from turnwire.core.run.runner import TurnRequest, TurnRunner

AgentEvents = AsyncIterator[Event | str]


class Desk:
    """Starts turns of the principal "ann", and reads them back."""

    def __init__(self, store: Store, runner: TurnRunner) -> None:
        self.store = store
        self.runner = runner

    async def session(self) -> str:
        return await new_session_id(self.store)

    async def start(self, message: str = "hello", *, session_id: str | None = None, **fields: Any) -> TurnRecord:
        request = TurnRequest(principal="ann", message=message, session_id=session_id or await self.session(), **fields)
        return (await self.runner.start(request)).record

    async def events(self, turn: TurnRecord) -> list[Event]:
        """Return the whole log, once the turn has ended."""
        return [logged.event for logged in await followed(self.store, turn.id)]

    async def end(self, turn: TurnRecord) -> DoneEvent:
        *rest, done = await self.events(turn)
        assert isinstance(done, DoneEvent)
        assert not any(isinstance(event, DoneEvent) for event in rest)
        return done

    async def cancel(self, turn: TurnRecord) -> None:
        async with asyncio.timeout(BOUND):
            await self.runner.cancel(turn.id)


@asynccontextmanager
async def open_desk(store: Store, answer: Answer, *others: Answer, **limits: Any) -> AsyncIterator[Desk]:
    """Open a desk with agents that have the names of their functions; the first is the default."""
    agents = {each.__name__: GeneratorAgent(each) for each in (answer, *others)}
    async with _open_desk(store, agents, limits) as desk:
        yield desk


@asynccontextmanager
async def open_actor_desk(store: Store, agent: Any, **limits: Any) -> AsyncIterator[Desk]:
    """Open a desk with one agent named "actor", so that a turn can continue at another desk with another agent."""
    async with _open_desk(store, {"actor": as_agent(agent)}, limits) as desk:
        yield desk


@asynccontextmanager
async def _open_desk(store: Store, agents: Mapping[str, Agent], limits: dict[str, Any]) -> AsyncIterator[Desk]:
    runner = TurnRunner(store, agents, Limits(**limits))
    await runner.open()
    try:
        yield Desk(store, runner)
    finally:
        async with asyncio.timeout(BOUND):
            await runner.close()


class Gate:
    """Holds an agent until the test opens the gate."""

    def __init__(self) -> None:
        self._reached = asyncio.Event()
        self._open = asyncio.Event()

    async def wait(self) -> None:
        self._reached.set()
        await self._open.wait()

    async def reached(self) -> None:
        async with asyncio.timeout(BOUND):
            await self._reached.wait()

    @property
    def was_reached(self) -> bool:
        return self._reached.is_set()

    @property
    def is_open(self) -> bool:
        return self._open.is_set()

    def open(self) -> None:
        self._open.set()


async def settle() -> None:
    """Run everything that can run without waiting."""
    for _ in range(20):
        await asyncio.sleep(0)


# Agents


async def echo(turn: Turn) -> AgentEvents:
    yield f"You said: {turn.message}"


GATES: dict[str, Gate] = {}


async def held(turn: Turn) -> AgentEvents:
    """Answer in two halves, with a gate in between that the message names."""
    yield "half"
    await GATES[turn.message].wait()
    yield " whole"


async def start_held_turn(desk: Desk, grace: float | None, **fields: Any) -> tuple[TurnRecord, Gate]:
    name = f"gate {len(GATES)}"
    gate = GATES[name] = Gate()
    return await desk.start(name, disconnect_grace=grace, **fields), gate


# Reading turns


def event_types(events: list[Event]) -> list[str]:
    return [str(type(event).__struct_config__.tag) for event in events]


async def failure(desk: Desk, turn: TurnRecord) -> ErrorEvent:
    """Return the error of a failed turn."""
    *_, error, done = await desk.events(turn)
    assert isinstance(error, ErrorEvent)
    assert done == DoneEvent("failed", turn.session_id, turn.id, reason=error.code)
    return error


async def completed_answer(desk: Desk, turn: TurnRecord) -> str:
    """Return the answer of a completed turn."""
    *_, response, done = await desk.events(turn)
    assert isinstance(response, ResponseEvent)
    assert isinstance(done, DoneEvent)
    assert done.outcome == "completed"
    return response.content


async def wait_until_suspended(desk: Desk, turn: TurnRecord) -> TurnRecord:
    changed = asyncio.Event()
    unwatch = desk.store.watch(turn.id, lambda _: changed.set())
    try:
        async with asyncio.timeout(BOUND):
            while (record := await desk.store.find_turn("ann", turn.id)).phase != "waiting":
                await changed.wait()
                changed.clear()
        return record
    finally:
        unwatch()


async def wait_for_request(desk: Desk, turn: TurnRecord, call_id: str) -> None:
    """Wait until the log has an approval request for a call."""
    async with asyncio.timeout(BOUND), aclosing(follow(desk.store, turn.id)) as batches:
        async for events in batches:
            for logged in events:
                if isinstance(logged.event, ApprovalRequestEvent) and logged.event.call_id == call_id:
                    return


async def wait_for_events(desk: Desk, turn: TurnRecord, *events: Event) -> None:
    """Wait until the log ends with these events."""
    changed = asyncio.Event()
    unwatch = desk.store.watch(turn.id, lambda _: changed.set())
    try:
        async with asyncio.timeout(BOUND):
            while [logged.event for logged in await whole_log(desk.store, turn.id)][-len(events) :] != list(events):
                await changed.wait()
                changed.clear()
    finally:
        unwatch()


# Losing and draining a worker


async def lose_worker(desk: Desk) -> None:
    """Make the desk's worker look like one of a dead process: it writes nothing more, and its lease is over."""
    worker = desk.runner.worker
    for loop in worker._loops:
        loop.cancel()
    await asyncio.wait(worker._loops, timeout=BOUND)
    for execution in list(worker.running.values()):
        execution.abandon()
    await desk.store.retire(worker.id)


async def drain(desk: Desk, grace: float = BOUND) -> None:
    async with asyncio.timeout(BOUND):
        await desk.runner.drain(grace)


async def start_drain(desk: Desk) -> asyncio.Task[None]:
    draining = asyncio.create_task(drain(desk))
    async with asyncio.timeout(BOUND):
        while not any(worker.draining for worker in await desk.store.workers()):
            await settle()
    return draining
