"""The read side of a log: one path for live, late and resumed readers.

A follower holds a position. It uses the events of a wake-up if they continue exactly there, and reads the log in every
other case. So a wake-up that is lost, late or doubled changes only the delay, and there is no seam between replay and
live. When the writer's epoch changes, the store checks that the log still contains what the reader has read.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from turnwire.core.contracts.stores import LogReader, is_short
from turnwire.core.log.codec import LoggedEvent
from turnwire.core.log.state import TurnFold

PAGE = 1_000


async def read_all(store: LogReader, turn_id: str, after: int = 0) -> AsyncGenerator[list[LoggedEvent]]:
    """Yield the committed events after a position, page by page, and stop at the end of what is committed.

    Raises TurnNotFoundError, EventsGoneError.
    """
    while events := await store.read(turn_id, after, PAGE):
        yield events
        after = events[-1].position


async def fold_log(store: LogReader, turn_id: str) -> TurnFold:
    """Fold the committed events of a log. Raises TurnNotFoundError, EventsGoneError."""
    fold = TurnFold()
    async with aclosing(read_all(store, turn_id)) as pages:
        async for events in pages:
            for logged in events:
                fold.add(logged)
            if is_short(events, PAGE):
                break
    return fold


class Follower:
    """Calls `deliver` with the events after a position, in order, each once, until the last one.

    `deliver(events, is_last)` is called on the event loop and must not block. `failed` is called with the error that
    ends the following early: EventsGoneError, LogRewoundError, StoreError.
    """

    __slots__ = (
        "_deliver",
        "_epoch",
        "_failed",
        "_has_missed_commit",
        "_is_closed",
        "_position",
        "_reading",
        "_store",
        "_turn_id",
        "_unwatch",
    )

    def __init__(
        self,
        store: LogReader,
        turn_id: str,
        after: int,
        deliver: Callable[[Sequence[LoggedEvent], bool], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._store = store
        self._turn_id = turn_id
        self._position = after
        self._epoch: int | None = None
        self._deliver = deliver
        self._failed = failed
        self._has_missed_commit = False
        self._is_closed = False
        # Watching begins before reading, so that no commit is lost in between.
        self._unwatch = store.watch(turn_id, self._on_commit)
        self._reading: asyncio.Task[None] | None = asyncio.create_task(self._read())

    def close(self) -> None:
        self._is_closed = True
        self._unwatch()
        # The owner and the watch refer to the follower: without its references to them, no cycle is left to collect.
        self._deliver = self._failed = self._unwatch = _ignore
        if self._reading is not None:
            self._reading.cancel()

    def _on_commit(self, events: Sequence[LoggedEvent]) -> None:
        if self._is_closed:
            return  # The wake-up was under way when the follower closed.
        if self._reading is not None:
            self._has_missed_commit = True
        elif events and events[0].position == self._position + 1 and self._epoch in (None, 0, events[0].epoch):
            # Events of epoch 0 were committed with the acceptance of the turn: while there is a turn, they are there.
            self._advance(events)
        elif not events or events[-1].position > self._position or self._is_newer(events[-1]):
            # A higher epoch at a lower position: the database has lost events that were committed.
            self._reading = asyncio.create_task(self._read())

    def _is_newer(self, logged: LoggedEvent) -> bool:
        return self._epoch is not None and logged.epoch > self._epoch

    async def _read(self) -> None:
        try:
            while True:
                self._has_missed_commit = False
                events = await self._store.read(self._turn_id, self._position, PAGE, self._epoch)
                if events and self._advance(events):
                    break
                if is_short(events, PAGE) and not self._has_missed_commit:
                    break
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self._unwatch()
            self._failed(error)
        finally:
            self._reading = None

    def _advance(self, events: Sequence[LoggedEvent]) -> bool:
        """Deliver events and return True if they are the last."""
        newest = events[-1]
        self._position, self._epoch = newest.position, newest.epoch
        is_last = newest.is_last
        if is_last:
            self._unwatch()
        self._deliver(events, is_last)
        return is_last


def _ignore(*_: object) -> None:
    pass


async def follow(store: LogReader, turn_id: str, after: int = 0) -> AsyncGenerator[list[LoggedEvent]]:
    """Yield the events after a position in batches, as they are committed, until the last one.

    Raises TurnNotFoundError, EventsGoneError, LogRewoundError. Close an iteration that you abandon with `aclose`.
    """
    start, epoch = after, None
    changed = asyncio.Event()
    unwatch = store.watch(turn_id, lambda _: changed.set())
    try:
        while True:
            changed.clear()
            events = await store.read(turn_id, after, PAGE, epoch)
            if events:
                after, epoch = events[-1].position, events[-1].epoch
                yield events
                if events[-1].is_last:
                    return
            elif after == start > 0 and any(last.is_last for last in await store.read(turn_id, after - 1, 1)):
                return  # A reader that has the last event already would wait for ever.
            else:
                await changed.wait()
    finally:
        unwatch()
