"""The queue between an SDK's run and the generator of the turn's events."""

import asyncio
import gc

import pytest

from tests.serving import PATIENCE, within
from turnwire.agents.event_queue import EventQueue, run_events


async def test_run_that_fails_before_it_begins_ends_the_events_with_its_error() -> None:
    async def run(queue: EventQueue) -> None:
        raise RuntimeError("no tools")

    events = run_events(run)
    with pytest.raises(RuntimeError, match="no tools"):
        await within(anext(events))


async def test_run_whose_end_is_reached_ends_the_events() -> None:
    async def run(queue: EventQueue) -> None:
        queue.put("Hello")

    async with asyncio.timeout(PATIENCE):
        assert [event async for event in run_events(run)] == ["Hello"]


async def test_events_that_a_thread_adds_are_in_the_log_when_they_are_flushed() -> None:
    async def run(queue: EventQueue) -> None:
        def work() -> None:
            assert not queue.is_on_loop
            queue.put("from ")
            queue.put("a thread")

        await asyncio.to_thread(work)
        await queue.flush()
        seen.append("flushed")

    seen: list[object] = []
    async with asyncio.timeout(PATIENCE):
        async for event in run_events(run):
            seen.append(event)
    assert seen == ["from ", "a thread", "flushed"]


async def test_failure_of_a_run_that_is_stopped_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def run(queue: EventQueue) -> None:
        queue.put("Hello")
        try:
            await asyncio.Event().wait()
        finally:
            raise RuntimeError("the connection is lost")

    events = run_events(run)
    assert await within(anext(events)) == "Hello"
    await within(events.aclose())
    del events
    gc.collect()
    assert not caplog.records
