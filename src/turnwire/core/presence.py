"""Turns that are not to go on without a reader. Leaving is not stopping: only one that asks for it is counted here."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from turnwire.core.contracts import Store
from turnwire.core.turns import TurnRecord

logger = logging.getLogger("turnwire.runner")

# A stream that the server itself closed (a deploy, a slow reader) is expected back within this time.
_RETURN_SECONDS = 30.0
# That somebody has begun to read in another process is noted in the store after this long at most.
_NOTED_SECONDS = 0.5


class Presence:
    """Counts the readers of such turns in this process. When the last one has been gone for the turn's grace, and it
    has none in another process, `leave` is called. A turn that nobody has begun to read is not left.
    """

    def __init__(self, store: Store, process: Callable[[], str], leave: Callable[[str], Awaitable[None]]) -> None:
        self._store = store
        self._process = process
        self._leave = leave
        self._read: dict[str, _TurnReaders] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def join(self, record: TurnRecord) -> None:
        if record.disconnect_grace is None or record.phase == "ended":
            return
        read = self._read.get(record.id)
        if read is None:
            read = self._read[record.id] = _TurnReaders(record.disconnect_grace)
            if self._store.is_shared:
                self._spawn(self._come(record.id))
        read.count += 1
        read.stop_clock()

    def depart(self, turn_id: str, *, by_client: bool) -> None:
        read = self._read.get(turn_id)
        if read is None:
            return
        read.count -= 1
        if read.count > 0:
            return
        grace = read.grace if by_client else max(read.grace, _RETURN_SECONDS)
        if self._store.is_shared:
            grace = max(grace, _NOTED_SECONDS)
        read.clock = asyncio.get_running_loop().call_later(grace, lambda: self._spawn(self._go(turn_id)))

    def forget(self, turn_id: str) -> None:
        """The turn has ended."""
        if read := self._read.pop(turn_id, None):
            read.stop_clock()

    def close(self) -> None:
        for turn_id in tuple(self._read):
            self.forget(turn_id)
        for task in self._tasks:
            task.cancel()

    async def _come(self, turn_id: str) -> None:
        await self._store.attend(turn_id, self._process(), present=True)

    async def _go(self, turn_id: str) -> None:
        self.forget(turn_id)
        if not await self._store.attend(turn_id, self._process(), present=False):
            await self._leave(turn_id)

    def _spawn(self, doing: Awaitable[None]) -> None:
        task = asyncio.ensure_future(doing)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Future[None]) -> None:
        self._tasks.discard(task)  # pyright: ignore[reportArgumentType]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the readers of a turn could not be counted: %s", error)


class _TurnReaders:
    def __init__(self, grace: float) -> None:
        self.grace = grace
        self.count = 0
        self.clock: asyncio.TimerHandle | None = None

    def stop_clock(self) -> None:
        if self.clock is not None:
            self.clock.cancel()
            self.clock = None
