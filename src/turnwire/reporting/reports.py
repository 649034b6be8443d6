"""All that tells the outside of turns that have ended, with one life from `open` to `close`."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from turnwire.core.contracts import TurnStore
from turnwire.core.errors import NotFoundError, TurnwireError
from turnwire.core.runner import TurnRunner

if TYPE_CHECKING:
    from turnwire.reporting.opentelemetry import Tracing
    from turnwire.reporting.webhooks import Webhooks

# Follows turns to their end, for those who tell of them afterwards: spans, and lines in the server's log.


Tell = Callable[[str], Awaitable[None]]
"""Is called with a turn's id."""

logger = logging.getLogger("turnwire.reporting")
turn_logger = logging.getLogger("turnwire.turns")

_MOST_WAITING = 10_000
_CLOSE_SECONDS = 2.0


class EndedTurns:
    def __init__(self, tells: Sequence[Tell]) -> None:
        self._tells = tells
        self._ended: asyncio.Queue[str] = asyncio.Queue(_MOST_WAITING)
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        self._task = asyncio.create_task(self._tell_all())

    def note(self, turn_id: str) -> None:
        """Never waits; more than can be told of are let go."""
        with suppress(asyncio.QueueFull):
            self._ended.put_nowait(turn_id)

    async def close(self) -> None:
        """Tells of what has ended so far, if that takes no longer than a moment."""
        if self._task is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._ended.join()
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _tell_all(self) -> None:
        while True:
            turn_id = await self._ended.get()
            for tell in self._tells:
                try:
                    await tell(turn_id)
                except NotFoundError:
                    pass  # It was erased meanwhile.
                except TurnwireError as error:
                    logger.warning("turn %s could not be told of: %s", turn_id, error)
                except Exception:
                    logger.exception("turn %s could not be told of", turn_id)
            self._ended.task_done()


def turn_lines(store: TurnStore, *, content: bool) -> Tell:
    """A line in the log for each turn that has ended: what came of it, and, if asked for, what was said."""

    async def tell(turn_id: str) -> None:
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
        told = (state.turn_id, state.outcome, total)
        turn_logger.info("turn %s has ended: %s after %d ms", *told, extra={"facts": facts})

    return tell


class Reports:
    def __init__(
        self, runner: TurnRunner, tells: list[Tell], webhooks: "Webhooks | None", tracing: "Tracing | None"
    ) -> None:
        self._runner = runner
        self._tells = tells if tracing is None else [*tells, tracing.tell]
        self._webhooks = webhooks
        self.tracing = tracing
        self._endings: EndedTurns | None = None

    def open(self) -> None:
        """Before the runner, which may find turns to end as soon as it is opened."""
        self._endings = EndedTurns(self._tells)
        self._endings.open()
        self._runner.on_ended = [self._endings.note]
        if self._webhooks is not None:
            self._webhooks.open()
            self._runner.on_ended.append(self._webhooks.wake)

    async def close(self) -> None:
        for reporter in (self._endings, self._webhooks, self.tracing):
            if reporter is not None:
                await reporter.close()
