"""The watchdog of the event loop: it names the turn, file and line of code that blocks, while it blocks."""

import asyncio
import logging
import threading
from collections.abc import Iterator

import pytest

from tests.contracts.agents import CASES, AgentCase
from tests.contracts.turns import BOUND
from tests.scripted_model import ScriptedModel, calls, model_server, says
from turnwire.core import metrics
from turnwire.reporting.watchdog import LoopWatchdog

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


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
async def test_blocking_tool_is_named_with_its_turn(
    case: AgentCase, model_server: ScriptedModel, reports: Reports
) -> None:
    async def look(city: str) -> str:
        """Block the event loop until that is reported."""
        assert reports.made.wait(BOUND)
        return f"Sunny in {city}"

    model_server.plan(calls(("look", {"city": "Oslo"})), says("Sunny."))
    async with case.desk(model_server, look) as desk:
        blocks = metrics.LOOP_BLOCKED.values[""]
        watchdog = LoopWatchdog(limit=0.5)
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


async def test_process_that_did_not_run_is_not_reported(reports: Reports, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine that is overloaded or was asleep: all its threads go on an hour later."""
    watchdog = LoopWatchdog(limit=0.2)
    looks = 0

    def wait(seconds: float) -> bool:
        nonlocal looks
        looks += 1
        return looks > 3  # Fewer than the limit has.

    monkeypatch.setattr("turnwire.reporting.watchdog.monotonic", lambda: 3600.0 * looks)
    monkeypatch.setattr(watchdog._stopped, "wait", wait)
    await asyncio.to_thread(watchdog._watch)
    assert reports.texts == []
