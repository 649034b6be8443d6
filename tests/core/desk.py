"""A runner with its agents over a store, as tests use it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.contracts.turns import BOUND, followed, new_session_id
from turnwire.agents.generator import Answer, GeneratorAgent
from turnwire.core.budget import Limits
from turnwire.core.contracts import Store
from turnwire.core.events import DoneEvent, Event
from turnwire.core.runner import TurnRequest, TurnRunner
from turnwire.core.turns import TurnRecord


class Desk:
    def __init__(self, store: Store, runner: TurnRunner) -> None:
        self.store = store
        self.runner = runner

    async def session(self) -> str:
        return await new_session_id(self.store)

    async def start(self, message: str = "hello", *, session_id: str | None = None, **fields: Any) -> TurnRecord:
        request = TurnRequest(principal="ann", message=message, session_id=session_id or await self.session(), **fields)
        return (await self.runner.start(request)).record

    async def events(self, turn: TurnRecord) -> list[Event]:
        """The whole log, once the turn has ended."""
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
    """Agents are known by the names of their functions; the first is the default."""
    agents = {each.__name__: GeneratorAgent(each) for each in (answer, *others)}
    runner = TurnRunner(store, agents, Limits(**limits))
    await runner.open()
    try:
        yield Desk(store, runner)
    finally:
        async with asyncio.timeout(BOUND):
            await runner.close()


class Gate:
    """Holds an agent at a place of the test's choosing."""

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

    def open(self) -> None:
        self._open.set()


async def settle() -> None:
    """Lets everything run that can run without waiting."""
    for _ in range(20):
        await asyncio.sleep(0)
