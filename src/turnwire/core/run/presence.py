"""The readers of turns: counted in this process, and recorded in a shared store for the other processes."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from turnwire.core.contracts.stores import Store
from turnwire.core.log.turns import TurnRecord

logger = logging.getLogger("turnwire.runner")

# A stream that the server itself closed (a deploy, a slow reader) is expected back within this time.
_RETURN_SECONDS = 30.0
# A reader that has moved to another process is recorded in the store within this time.
_RECORD_SECONDS = 0.5


class Presence:
    """Counts the readers of turns in this process.

    `leave` is called when the last reader of a turn has been gone for the turn's grace period and no other process has
    a reader. A turn without a grace period goes on, and so does one that nobody has begun to read. The readers of one
    that this process continues may have left while no process counted them, so `leave` is called for that turn too,
    unless a reader comes back in time.
    """

    def __init__(self, store: Store, process: Callable[[], str], leave: Callable[[str], Awaitable[None]]) -> None:
        self._store = store
        self._process = process
        self._leave = leave
        self._readers: dict[str, _TurnReaders] = {}
        self._tasks: set[asyncio.Task[object]] = set()

    def join(self, record: TurnRecord) -> None:
        if record.phase == "ended":
            return
        readers = self._readers.get(record.id)
        if readers is None:
            readers = self._readers[record.id] = _TurnReaders(record.disconnect_grace)
        self._record(record.id, readers)
        readers.count += 1
        readers.stop_timer()

    async def is_read(self, turn_id: str) -> bool:
        """Return True if the turn has a reader in any live process."""
        readers = self._readers.get(turn_id)
        if readers is not None and readers.count > 0:
            return True
        return self._store.is_shared and await self._store.attend(turn_id, self._process(), present=False)

    def record_again(self) -> None:
        """Record the readers again if the id of this process has changed."""
        for turn_id, readers in self._readers.items():
            if readers.recorded_for is not None:
                self._record(turn_id, readers)

    def _record(self, turn_id: str, readers: "_TurnReaders") -> None:
        process = self._process()
        if self._store.is_shared and readers.recorded_for != process:
            readers.recorded_for = process
            self._spawn(self._store.attend(turn_id, process, present=True))

    def expect(self, record: TurnRecord) -> None:
        """Expect the readers of a turn whose process was lost or stopped, and which this one continues."""
        if record.disconnect_grace is None or record.waiting_until is not None:
            return  # While a turn waits for a person, nobody need read it.
        if record.id not in self._readers:
            self._readers[record.id] = _TurnReaders(record.disconnect_grace)
            self._start_timer(record.id, max(record.disconnect_grace, _RETURN_SECONDS))

    def depart(self, turn_id: str, *, by_client: bool) -> None:
        readers = self._readers.get(turn_id)
        if readers is None:
            return
        readers.count -= 1
        if readers.count > 0:
            return
        if readers.grace is None:
            self.forget(turn_id)
            if self._store.is_shared:
                self._spawn(self._store.attend(turn_id, self._process(), present=False))
            return
        grace = readers.grace if by_client else max(readers.grace, _RETURN_SECONDS)
        if self._store.is_shared:
            grace = max(grace, _RECORD_SECONDS)
        self._start_timer(turn_id, grace)

    def _start_timer(self, turn_id: str, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        timer = loop.call_later(seconds, lambda: self._spawn(self._leave_if_unread(turn_id)))
        self._readers[turn_id].timer = timer

    def forget(self, turn_id: str) -> None:
        """Stop counting the readers of a turn."""
        if readers := self._readers.pop(turn_id, None):
            readers.stop_timer()

    def close(self) -> None:
        for turn_id in tuple(self._readers):
            self.forget(turn_id)
        for task in self._tasks:
            task.cancel()

    async def _leave_if_unread(self, turn_id: str) -> None:
        self.forget(turn_id)
        is_read = await self._store.attend(turn_id, self._process(), present=False)
        if not is_read and turn_id not in self._readers:  # A reader may have come back meanwhile.
            await self._leave(turn_id)

    def _spawn(self, action: Coroutine[Any, Any, object]) -> None:
        task = asyncio.create_task(action)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the readers of a turn could not be counted: %s", error)


class _TurnReaders:
    def __init__(self, grace: float | None) -> None:
        self.grace = grace
        self.count = 0
        self.recorded_for: str | None = None
        """The id of this process under which its readers are recorded, or about to be recorded, in the store."""
        self.timer: asyncio.TimerHandle | None = None

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
