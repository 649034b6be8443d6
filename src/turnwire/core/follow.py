"""The read side of a log: one path for live, late and resumed readers.

A follower holds a position. What the store says it has just committed is used if it continues
exactly there; in every other case the follower reads the log. So a wake-up that is lost, late
or doubled changes nothing but the time, and there is no seam between replay and live. Where the
writer changes, the log is asked whether it still has what was read of it.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence

from turnwire.core.codec import LoggedEvent
from turnwire.core.contracts import LogReader
from turnwire.core.state import TurnFold

PAGE = 1_000


class Follower:
    """Hands the events after a position to `deliver`, in order, each once, until the last one.

    `deliver` is called on the event loop with some events and whether they are the last, and must not wait.
    `failed` is told what ended the following early: EventsGoneError, LogRewoundError, StoreError.
    """

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
        self._missed = False
        self._is_closed = False
        # Watching begins before reading, so nothing can fall between the two.
        self._unwatch = store.watch(turn_id, self._on_commit)
        self._reading: asyncio.Task[None] | None = asyncio.create_task(self._read())

    def close(self) -> None:
        self._is_closed = True
        self._unwatch()
        if self._reading is not None:
            self._reading.cancel()

    def _on_commit(self, events: Sequence[LoggedEvent]) -> None:
        if self._is_closed:
            return  # The store was waking it when it closed.
        if self._reading is not None:
            self._missed = True
        elif events and events[0].position == self._position + 1 and self._epoch in (None, events[0].epoch):
            self._hand_over(events)
        elif not events or events[-1].position > self._position:
            self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            while True:
                self._missed = False
                events = await self._store.read(self._turn_id, self._position, PAGE, self._epoch)
                if events:
                    if self._hand_over(events):
                        break
                elif not self._missed:
                    break
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self._unwatch()
            self._failed(error)
        finally:
            self._reading = None

    def _hand_over(self, events: Sequence[LoggedEvent]) -> bool:
        newest = events[-1]
        self._position, self._epoch = newest.position, newest.epoch
        is_last = newest.is_last
        if is_last:
            self._unwatch()
        self._deliver(events, is_last)
        return is_last


async def read_all(store: LogReader, turn_id: str, after: int = 0) -> AsyncGenerator[list[LoggedEvent]]:
    """Yield the committed events after a position, page by page, and stop at the end of what is committed.

    Raises TurnNotFoundError, EventsGoneError.
    """
    while events := await store.read(turn_id, after, PAGE):
        yield events
        after = events[-1].position


async def fold_log(store: LogReader, turn_id: str) -> TurnFold:
    """Fold what is committed of a log. Raises TurnNotFoundError, EventsGoneError."""
    fold = TurnFold()
    async for events in read_all(store, turn_id):
        for logged in events:
            fold.add(logged)
    return fold


async def follow(store: LogReader, turn_id: str, after: int = 0) -> AsyncGenerator[list[LoggedEvent]]:
    """The events after a position in batches, as they are committed, until the last one.

    Raises TurnNotFoundError, EventsGoneError, LogRewoundError. An iteration that is abandoned must be closed with
    `aclose`.
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
            elif after == start > 0 and any(at.is_last for at in await store.read(turn_id, after - 1, 1)):
                return  # Whoever has the last event already would wait for ever.
            else:
                await changed.wait()
    finally:
        unwatch()
