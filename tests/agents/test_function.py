"""A plain function as an agent, async or not."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from tests.contracts.turns import BOUND
from tests.core.desk import Desk, wait_for_events
from turnwire.agents.loader import as_agent
from turnwire.core.contracts.agents import Agent, description_of
from turnwire.core.log.emit import emit
from turnwire.core.log.events import DoneEvent, Event, ResponseEvent, StatusEvent, TokenEvent
from turnwire.core.log.turns import Turn
from turnwire.core.people.budget import Limits
from turnwire.core.run.runner import TurnRunner
from turnwire.stores.memory import MemoryStore


@asynccontextmanager
async def serving(agents: Mapping[str, Agent]) -> AsyncIterator[Desk]:
    store = MemoryStore()
    runner = TurnRunner(store, agents, Limits())
    await runner.open()
    try:
        yield Desk(store, runner)
    finally:
        await runner.close()


async def answered(agent: Agent) -> list[Event]:
    async with serving({"agent": agent}) as desk:
        return await desk.events(await desk.start("good morning"))


async def test_what_it_returns_is_the_answer() -> None:
    async def answer(turn: Turn) -> str:
        emit(StatusEvent("thinking"))
        return f"You said: {turn.message}"

    events = await answered(as_agent(answer))
    assert events[2:4] == [StatusEvent("thinking"), TokenEvent("You said: good morning")]
    assert isinstance(events[4], ResponseEvent)


async def test_it_may_say_everything_on_the_way() -> None:
    async def answer(turn: Turn) -> None:
        for word in turn.message.split():
            emit(TokenEvent(word))

    events = await answered(as_agent(answer))
    assert events[2:4] == [TokenEvent("good"), TokenEvent("morning")]
    response = events[4]
    assert isinstance(response, ResponseEvent)
    assert response.content == "goodmorning"


async def test_an_object_may_have_it_as_its_method() -> None:
    class Greeter:
        async def answer(self, turn: Turn) -> str:
            return "hello"

    assert (await answered(as_agent(Greeter())))[2] == TokenEvent("hello")


# Functions that block


async def test_blocking_function_runs_in_a_thread_of_its_turn() -> None:
    def answer(turn: Turn) -> str:
        emit(StatusEvent(threading.current_thread().name.rpartition("_")[0]))
        return f"You said: {turn.message}"

    events = await answered(as_agent(answer))
    assert events[2:4] == [StatusEvent("turnwire-tool"), TokenEvent("You said: good morning")]


async def test_blocking_generator_yields_text_and_events_from_a_thread() -> None:
    class Greeter:
        description = "Greets."

        def answer(self, turn: Turn) -> Iterator[Event | str]:
            yield StatusEvent(threading.current_thread().name.rpartition("_")[0])
            yield from turn.message.split()

    agent = as_agent(Greeter())
    assert description_of(agent) == "Greets."
    assert (await answered(agent))[2:5] == [StatusEvent("turnwire-tool"), TokenEvent("good"), TokenEvent("morning")]


async def test_blocking_agent_does_not_delay_another_turn() -> None:
    proceed = threading.Event()

    def blocking(turn: Turn) -> Iterator[str]:
        yield "Well, "
        assert proceed.wait(BOUND)
        yield "done."

    async def quick(turn: Turn) -> str:
        return "hello"

    async with serving({"blocking": as_agent(blocking), "quick": as_agent(quick)}) as desk:
        blocked = await desk.start("good morning", agent="blocking")
        await wait_for_events(desk, blocked, TokenEvent("Well, "))
        assert TokenEvent("hello") in await desk.events(await desk.start("hi", agent="quick"))
        proceed.set()
        assert TokenEvent("done.") in await desk.events(blocked)


async def test_stopped_blocking_generator_is_closed_once_it_yields_and_the_turn_does_not_wait_for_it() -> None:
    blocks, proceed, closed = threading.Event(), threading.Event(), threading.Event()

    def blocking(turn: Turn) -> Iterator[str]:
        try:
            yield "Well, "
            blocks.set()
            assert proceed.wait(BOUND)
            yield "too late"
        finally:
            closed.set()

    async with serving({"blocking": as_agent(blocking)}) as desk:
        turn = await desk.start("good morning")
        await wait_for_events(desk, turn, TokenEvent("Well, "))
        assert await asyncio.to_thread(blocks.wait, BOUND)
        await desk.runner.cancel(turn.id)
        end = (await desk.events(turn))[-1]
        assert isinstance(end, DoneEvent)
        assert end.outcome == "cancelled"
        assert not closed.is_set()
        proceed.set()
        assert await asyncio.to_thread(closed.wait, BOUND)


async def test_blocking_function_that_returns_no_text_fails_its_turn() -> None:
    def answer(turn: Turn) -> Any:
        return turn

    end = (await answered(as_agent(answer)))[-1]
    assert isinstance(end, DoneEvent)
    assert end.outcome == "failed"
