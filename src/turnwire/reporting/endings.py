"""Follows turns to their end, for those who tell of them afterwards: spans, and lines in the server's log.

Nothing of this is on the path of a turn: that one has ended is noted in a queue, and read from the store in its own
time. What is left in the queue when the process dies is not told; a webhook, which must be, has an outbox.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from turnwire.core.contracts import TurnStore
from turnwire.core.errors import NotFoundError, TurnwireError

Tell = Callable[[str], Awaitable[None]]
"""Is called with a turn's id."""

logger = logging.getLogger("turnwire.reporting")
turn_logger = logging.getLogger("turnwire.turns")

_MOST_WAITING = 10_000
_CLOSE_SECONDS = 2.0


class Endings:
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
