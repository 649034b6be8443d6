"""`emit()` from inside a tool, in any task or thread."""

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from tests.contracts.turns import BOUND
from tests.core.desk import open_desk
from turnwire.core.contracts.stores import Store
from turnwire.core.errors import EventRefusedError, EventTooLargeError, TurnEndedError
from turnwire.core.log.emit import emit
from turnwire.core.log.events import (
    DoneEvent,
    Event,
    MessageEvent,
    ResponseEvent,
    SessionEvent,
    StatusEvent,
    ToolProgressEvent,
)
from turnwire.core.log.turns import Turn


def progress(events: list[Event]) -> list[str | None]:
    return [event.text for event in events if isinstance(event, ToolProgressEvent)]


async def test_emit_works_from_a_function_a_task_and_a_thread(store: Store) -> None:
    def in_function() -> None:
        emit(ToolProgressEvent("c1", "function"))

    async def in_task() -> None:
        await asyncio.sleep(0)
        emit(ToolProgressEvent("c1", "task"))

    def in_thread() -> None:
        for number in range(3):
            emit(ToolProgressEvent("c1", f"thread {number}"))

    async def agent(turn: Turn) -> AsyncIterator[str]:
        yield "a"
        in_function()
        await asyncio.create_task(in_task())
        await asyncio.to_thread(in_thread)
        yield "b"

    async with open_desk(store, agent) as desk:
        events = await desk.events(await desk.start())
    assert progress(events) == ["function", "task", "thread 0", "thread 1", "thread 2"]
    assert [type(event).__name__ for event in events[2:4]] == ["TokenEvent", "ToolProgressEvent"]


async def test_emit_of_concurrent_turns_goes_to_their_own_logs(store: Store) -> None:
    both_run = asyncio.Barrier(2)

    async def agent(turn: Turn) -> AsyncIterator[str]:
        async with asyncio.timeout(BOUND):
            await both_run.wait()
        emit(ToolProgressEvent("c1", turn.message))
        await asyncio.to_thread(emit, ToolProgressEvent("c1", f"{turn.message} in a thread"))
        yield "x"

    async with open_desk(store, agent) as desk:
        turns = [await desk.start("one"), await desk.start("two")]
        assert [progress(await desk.events(turn)) for turn in turns] == [
            ["one", "one in a thread"],
            ["two", "two in a thread"],
        ]


async def test_emit_after_the_end_of_the_turn_raises(store: Store) -> None:
    has_ended = threading.Event()

    def slow_tool() -> str:
        assert has_ended.wait(BOUND)
        try:
            emit(StatusEvent("too late"))
        except TurnEndedError as error:
            return error.turn_id
        return "nothing was said"

    tool: asyncio.Future[str] | None = None

    async def slow_task() -> None:
        await asyncio.to_thread(has_ended.wait, BOUND)
        emit(StatusEvent("too late as well"))

    task: asyncio.Task[None] | None = None

    async def agent(turn: Turn) -> AsyncIterator[str]:
        nonlocal tool, task
        tool = asyncio.ensure_future(asyncio.to_thread(slow_tool))
        task = asyncio.create_task(slow_task())
        yield "done without it"

    async with open_desk(store, agent) as desk:
        turn = await desk.start()
        before = await desk.events(turn)
        has_ended.set()
        assert tool is not None
        assert task is not None
        async with asyncio.timeout(BOUND):
            assert await tool == turn.id
            with pytest.raises(TurnEndedError):
                await task
        assert await desk.events(turn) == before


async def test_emit_outside_a_turn_does_not_write_to_a_turn_that_runs(store: Store) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def agent(turn: Turn) -> AsyncIterator[str]:
        begun.set()
        await go_on.wait()
        yield "inside"

    async with open_desk(store, agent) as desk:
        turn = await desk.start()
        async with asyncio.timeout(BOUND):
            await begun.wait()
        emit(StatusEvent("nobody listens"))
        await asyncio.to_thread(emit, StatusEvent("nobody listens there either"))
        go_on.set()
        events = await desk.events(turn)
    assert StatusEvent not in map(type, events)


async def test_emit_of_a_refused_event_raises_in_the_tool(store: Store) -> None:
    refusals: list[str] = []

    def try_too_much() -> None:
        try:
            emit(StatusEvent("x" * 10_000))
        except EventTooLargeError as error:
            refusals.append(error.code)

    async def agent(turn: Turn) -> AsyncIterator[str]:
        try_too_much()
        await asyncio.to_thread(try_too_much)
        yield "still here"

    async with open_desk(store, agent, max_event_bytes=2_000) as desk:
        turn = await desk.start()
        assert (await desk.end(turn)).outcome == "completed"
    assert refusals == ["event_too_large"] * 2


@pytest.mark.parametrize(
    "event",
    [
        SessionEvent("s1", "t1", "echo"),
        MessageEvent("hello", "ann", "http"),
        ResponseEvent("all of it"),
        DoneEvent("completed", "s1", "t1"),
    ],
    ids=lambda event: type(event).__name__,
)
async def test_emit_of_a_reserved_event_is_refused(store: Store, event: Event) -> None:
    refusals: list[Exception | None] = []

    def try_it() -> None:
        try:
            emit(event)
        except EventRefusedError as error:
            refusals.append(error)

    async def agent(turn: Turn) -> AsyncIterator[str]:
        try_it()
        await asyncio.to_thread(try_it)
        yield "still here"

    async with open_desk(store, agent) as desk:
        turn = await desk.start()
        names = [type(each).__name__ for each in await desk.events(turn)]
    assert names == ["SessionEvent", "MessageEvent", "TokenEvent", "ResponseEvent", "DoneEvent"]
    assert len(refusals) == 2
