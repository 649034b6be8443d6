"""The watchdog of the event loop: it names the turn, file and line of code that blocks, while it blocks."""

import asyncio
import logging
import threading
from collections.abc import Iterator

import pytest

from tests.contracts.agents import AgentCase, case_params
from tests.contracts.turns import BOUND
from tests.scripted_model import ScriptedModel, calls, model_server, says
from tests.serving import until
from turnwire.core import metrics
from turnwire.reporting.watchdog import LoopBlock, LoopWatchdog

__all__ = ["model_server"]


class Reports(logging.Handler):
    """Collects the reports. `made` is set while the tool blocks the event loop, `ended` after that."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.made = threading.Event()
        self.ended = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        self.texts.append(text)
        if "(look)" in text:
            self.made.set()
        elif "runs again" in text and self.made.is_set():
            self.ended.set()  # On the event loop.


@pytest.fixture
def reports() -> Iterator[Reports]:
    handler, logger = Reports(), logging.getLogger("turnwire.server")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


@pytest.mark.parametrize("case", case_params())
async def test_blocking_tool_is_named_with_its_turn(
    case: AgentCase, model_server: ScriptedModel, reports: Reports
) -> None:
    async def look(city: str) -> str:
        """Block the event loop until that is reported."""
        assert reports.made.wait(BOUND)
        return f"Sunny in {city}"

    model_server.plan(calls(("look", {"city": "Oslo"})), says("Sunny."))
    async with case.desk(model_server, look) as desk:
        blocks, ended_blocks = metrics.LOOP_BLOCKED.values[""], list[LoopBlock]()
        watchdog = LoopWatchdog(limit=0.5, on_block=ended_blocks.append)
        watchdog.start()
        try:
            turn = await desk.start()
            await desk.events(turn)
            async with asyncio.timeout(BOUND):
                await reports.ended.wait()
        finally:
            watchdog.stop()
    assert metrics.LOOP_BLOCKED.values[""] > blocks
    report = next(text for text in reports.texts if "(look)" in text)
    assert f"turn {turn.id}" in report
    assert "test_watchdog.py:" in report
    block = next(block for block in ended_blocks if block.location in report)
    assert block.turn_id == turn.id
    assert block.seconds >= 0.5


async def test_block_by_a_callback_is_reported_without_a_turn(reports: Reports) -> None:
    def look() -> None:
        assert reports.made.wait(BOUND)

    watchdog = LoopWatchdog(limit=0.2)
    watchdog.start()
    try:
        asyncio.get_running_loop().call_soon(look)
        async with asyncio.timeout(BOUND):
            await reports.ended.wait()
    finally:
        watchdog.stop()
    assert any("(look), by a callback" in text for text in reports.texts)


async def test_block_that_lets_no_thread_run_is_reported_afterwards(reports: Reports) -> None:
    """A call in C that keeps the interpreter's lock also stops the thread that watches."""
    ended = list[LoopBlock]()
    watchdog = LoopWatchdog(limit=0.1, on_block=ended.append)
    # As on a machine on which the watching thread gets no time during the call.
    watchdog.thread = threading.Thread(target=lambda: None)
    watchdog.start()
    size = 1_000_000
    try:
        async with asyncio.timeout(BOUND):
            while not ended:
                sum(range(size))
                size *= 2
                beat = watchdog.last_beat
                await until(lambda: watchdog.last_beat != beat)  # noqa: B023 -- waited for at once
    finally:
        watchdog.stop()
    assert ended[0].turn_id == ""
    assert any("a single call that let no thread run" in text for text in reports.texts)


async def test_process_that_did_not_run_is_not_reported(reports: Reports, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine that is overloaded or was asleep: all its threads go on an hour later."""
    watchdog = LoopWatchdog(limit=0.2)
    looks = 0

    def wait(seconds: float) -> bool:
        nonlocal looks
        looks += 1
        return looks > 3  # Fewer than the limit has.

    monkeypatch.setattr("turnwire.reporting.watchdog.monotonic", lambda: 3600.0 * looks)
    monkeypatch.setattr(watchdog.stopped, "wait", wait)
    await asyncio.to_thread(watchdog.watch)
    assert reports.texts == []
