"""Running a tool: results, limits, threads and errors."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel

from tests.core.desk import open_desk
from tests.serving import PATIENCE, within
from turnwire.core.contracts.stores import Store
from turnwire.core.errors import ToolError, TurnEndedError
from turnwire.core.log.emit import emit
from turnwire.core.log.events import Event, StatusEvent, ToolProgressEvent, ToolResultEvent
from turnwire.core.log.turns import Turn
from turnwire.stores.memory import MemoryStore
from turnwire.tools import ToolOutcome, progress, run_tool, tool


@pytest.fixture
def store() -> Store:
    return MemoryStore()


async def run(function: Any, args: dict[str, Any] | None = None, **limits: Any) -> ToolOutcome:
    return await within(run_tool(tool(**limits)(function), {} if args is None else args))


# Results


class Model(BaseModel):
    at: datetime


@dataclass
class Pair:
    left: int
    right: Any


@pytest.mark.parametrize(
    ("value", "result", "text"),
    [
        ("plain", "plain", "plain"),
        ("", "", ""),
        (3, 3, "3"),
        (None, None, "null"),
        (["a", {"b": [1, 2.5]}], ["a", {"b": [1, 2.5]}], '["a", {"b": [1, 2.5]}]'),
        ({1: "one"}, {"1": "one"}, '{"1": "one"}'),
        (Pair(1, {2}), {"left": 1, "right": [2]}, '{"left": 1, "right": [2]}'),
        (Model(at=datetime(2026, 1, 1, tzinfo=UTC)), {"at": "2026-01-01T00:00:00Z"}, '{"at": "2026-01-01T00:00:00Z"}'),
        (ValueError("odd"), "odd", "odd"),
        (["half \ud800"], ["half \ud800"], '["half \ud800"]'),
    ],
    ids=ascii,
)
async def test_result_is_json_for_the_log_and_text_for_the_model(value: Any, result: Any, text: str) -> None:
    def return_value() -> Any:
        return value

    outcome = await run(return_value)
    assert (outcome.success, outcome.result, outcome.text) == (True, result, text)
    assert outcome.ms >= 0


@pytest.mark.parametrize("value", ["x" * 50, ["x"] * 50], ids=["text", "JSON"])
async def test_long_result_is_clipped_with_a_note(value: Any) -> None:
    async def return_value() -> Any:
        return value

    outcome = await run(return_value, max_output=20)
    assert outcome.success
    assert outcome.result == outcome.text
    assert outcome.text[:5] in ("xxxxx", '["x",')
    assert "cut here" in outcome.text
    assert len(outcome.text) < 80


async def test_clipped_result_fits_into_an_event(store: Store) -> None:
    async def answer(turn: Turn) -> AsyncIterator[Event | str]:
        outcome = await run_tool(tool(name="shout")(lambda: "🍵" * 50_000), {})
        yield ToolResultEvent("c1", "shout", outcome.success, outcome.result)

    async with open_desk(store, answer) as desk:
        assert (await desk.end(await desk.start())).outcome == "completed"


# Threads and turns


async def test_blocking_tool_runs_in_a_thread() -> None:
    go_on = threading.Event()

    def block() -> str:
        assert go_on.wait(PATIENCE)
        return threading.current_thread().name

    running = asyncio.create_task(run(block))
    await asyncio.sleep(0)
    go_on.set()
    assert (await running).text.startswith("turnwire-tool")


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_emit_and_progress_work_inside_a_tool(store: Store, kind: str) -> None:
    def emit_event() -> str:
        emit(StatusEvent("inside"))
        progress("half way", 0.5)
        emit(ToolProgressEvent("c1", "nearly"))
        return "done"

    async def emit_async() -> str:
        await asyncio.sleep(0)
        return emit_event()

    async def answer(turn: Turn) -> AsyncIterator[Event | str]:
        outcome = await run_tool(tool(emit_event if kind == "sync" else emit_async), {}, call_id="c1")
        yield outcome.text

    async with open_desk(store, answer) as desk:
        events = await desk.events(await desk.start())
    assert events[2:5] == [
        StatusEvent("inside"),
        ToolProgressEvent("c1", "half way", 0.5),
        ToolProgressEvent("c1", "nearly"),
    ]


async def test_progress_outside_a_call_does_not_write_to_a_turn(store: Store) -> None:
    async def answer(turn: Turn) -> AsyncIterator[Event | str]:
        progress("nobody listens")
        yield "inside"

    async with open_desk(store, answer) as desk:
        events = await desk.events(await desk.start())
    assert ToolProgressEvent not in map(type, events)


async def test_tool_of_an_ended_turn_is_stopped_by_emit(store: Store) -> None:
    outcome: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
    go_on = asyncio.Event()

    async def late() -> None:
        await go_on.wait()
        emit(StatusEvent("too late"))

    async def run_late() -> None:
        try:
            await run_tool(tool(late), {})
        except TurnEndedError as error:
            outcome.set_result(error)

    tasks: list[asyncio.Task[None]] = []

    async def answer(turn: Turn) -> AsyncIterator[Event | str]:
        tasks.append(asyncio.create_task(run_late()))
        yield "over"

    async with open_desk(store, answer) as desk:
        await desk.events(await desk.start())
        go_on.set()
        assert isinstance(await within(outcome), TurnEndedError)


# Errors


async def test_unexpected_exception_is_reported_by_name_only(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise LookupError("the password is swordfish")

    outcome = await run(fail)
    assert not outcome.success
    assert outcome.result == outcome.text == "Error: the tool failed (LookupError)"
    assert "swordfish" in caplog.text
    assert caplog.records[-1].levelno == logging.ERROR


@pytest.mark.parametrize("kind", [StopIteration, StopAsyncIteration, TimeoutError, RuntimeError])
@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
async def test_any_exception_is_an_outcome(kind: type[Exception], is_async: bool) -> None:
    def fail() -> None:
        raise kind("odd")

    async def fail_async() -> None:
        raise kind("odd")

    outcome = await run(fail_async if is_async else fail)
    assert not outcome.success
    assert "Error" in outcome.text


async def test_tool_error_is_reported_with_its_message(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise ToolError("there is no city 'Osl'; did you mean Oslo?")

    outcome = await run(fail)
    assert not outcome.success
    assert outcome.text == "Error: there is no city 'Osl'; did you mean Oslo?"
    assert not caplog.records


@pytest.mark.parametrize("args", [{"number": "many"}, {}, {"number": 1, "more": 2}], ids=str)
async def test_wrong_arguments_do_not_reach_the_tool(args: dict[str, Any]) -> None:
    def count(number: int) -> int:
        raise AssertionError

    outcome = await run(count, args)
    assert not outcome.success
    assert outcome.text.startswith("Error: the arguments of count are wrong: ")


async def test_arguments_that_are_not_json_do_not_reach_the_tool() -> None:
    def count() -> int:
        raise AssertionError

    outcome = await within(run_tool(tool(count), None))
    assert outcome.text == "Error: the arguments of count are wrong: they are not a JSON object"


async def test_slow_tool_times_out() -> None:
    ended = asyncio.Event()

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    outcome = await run(hang, timeout=0.01)
    assert not outcome.success
    assert "longer than 0.01 seconds" in outcome.text
    assert ended.is_set()


async def test_slow_thread_is_abandoned() -> None:
    go_on = threading.Event()
    outcome = await run(lambda: go_on.wait(PATIENCE), name="hang", timeout=0.01)
    assert "longer than 0.01 seconds" in outcome.text
    go_on.set()


async def test_cancelled_call_cancels_the_tool() -> None:
    reached, ended = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        reached.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    running = asyncio.create_task(run(hang))
    await within(reached.wait())
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ended.is_set()
