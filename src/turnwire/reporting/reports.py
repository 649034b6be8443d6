"""Reports about ended turns: a queue of turn ids, log lines, spans and webhooks with one life cycle."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from turnwire.core.contracts.stores import TurnStore
from turnwire.core.errors import NotFoundError, TurnwireError
from turnwire.core.run.runner import TurnRunner

if TYPE_CHECKING:
    from turnwire.reporting.opentelemetry import Tracing
    from turnwire.reporting.webhooks import Webhooks

Reporter = Callable[[str], Awaitable[None]]
"""A function that reports an ended turn, by its id."""

logger = logging.getLogger("turnwire.reporting")
turn_logger = logging.getLogger("turnwire.turns")

_MAX_QUEUED = 10_000
_CLOSE_SECONDS = 2.0


class EndedTurnQueue:
    """Calls every reporter for each ended turn, outside of the turn's own path."""

    def __init__(self, reporters: Sequence[Reporter]) -> None:
        self._reporters = reporters
        self._turn_ids: asyncio.Queue[str] = asyncio.Queue(_MAX_QUEUED)
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        self._task = asyncio.create_task(self._report_all())

    def add(self, turn_id: str) -> None:
        """Queue a turn without waiting; drop it if the queue is full."""
        with suppress(asyncio.QueueFull):
            self._turn_ids.put_nowait(turn_id)

    async def close(self) -> None:
        """Report the queued turns within a short time, then stop."""
        if self._task is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._turn_ids.join()
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _report_all(self) -> None:
        while True:
            turn_id = await self._turn_ids.get()
            for report in self._reporters:
                try:
                    await report(turn_id)
                except NotFoundError:
                    pass  # The turn was erased meanwhile.
                except TurnwireError as error:
                    logger.warning("turn %s could not be reported: %s", turn_id, error)
                except Exception:
                    logger.exception("turn %s could not be reported", turn_id)
            self._turn_ids.task_done()


def turn_lines(store: TurnStore, *, content: bool) -> Reporter:
    """Return a reporter that logs a line with the outcome of each turn; with `content`, also message and answer."""

    async def report(turn_id: str) -> None:
        if not turn_logger.isEnabledFor(logging.INFO):
            return
        state = await store.turn_state(turn_id)
        if state is None:
            return
        facts: dict[str, Any] = {
            "turn_id": state.turn_id,
            "session_id": state.session_id,
            "agent": state.agent,
            "outcome": state.outcome,
            "reason": state.reason,
            "events": state.position,
            "timings": state.timings,
            "usage": msgspec.to_builtins(state.usage),
        }
        if content:
            facts |= {"asked": state.message, "answer": state.text}
        total = state.timings.get("total_ms", 0)
        turn_logger.info(
            "turn %s has ended: %s after %d ms", state.turn_id, state.outcome, total, extra={"facts": facts}
        )

    return report


class Reports:
    """All reports of a server, from `open` to `close`."""

    def __init__(
        self, runner: TurnRunner, reporters: list[Reporter], webhooks: "Webhooks | None", tracing: "Tracing | None"
    ) -> None:
        self._queue = EndedTurnQueue(reporters if tracing is None else [*reporters, tracing.report])
        self._webhooks = webhooks
        self.tracing = tracing
        runner.on_ended.append(self._queue.add)
        if webhooks is not None:
            runner.on_settled.append(webhooks.wake)

    def open(self) -> None:
        """Start reporting. Call it before the runner opens, because that may end turns of a lost process."""
        self._queue.open()
        if self._webhooks is not None:
            self._webhooks.open()

    async def close(self) -> None:
        for reporter in (self._queue, self._webhooks, self.tracing):
            if reporter is not None:
                await reporter.close()
