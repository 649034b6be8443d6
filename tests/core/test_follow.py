"""Followers of a log over a store whose wake-ups come late, twice, never or without events."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from tests.contracts.turns import BOUND, append, claimed, followed, positions, seized
from turnwire.core.contracts.stores import Wake
from turnwire.core.errors import EventsGoneError, LogRewoundError, StoreError, TurnNotFoundError
from turnwire.core.log import follow as follow_module
from turnwire.core.log.codec import LoggedEvent, log_event
from turnwire.core.log.events import DoneEvent, TokenEvent
from turnwire.core.log.follow import Follower, follow
from turnwire.stores.memory import MemoryStore

LENGTH = 9
LOG = [log_event(TokenEvent(str(n)), n, 1) for n in range(1, LENGTH)] + [
    log_event(DoneEvent("completed", "s1", "t1"), LENGTH, 1)
]


class Script:
    """A store whose log grows, and whose watchers wake, only when the test says so."""

    def __init__(self) -> None:
        self.length = 0
        self.reads = 0
        self.error: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self._wakes: list[Wake] = []

    async def read(self, turn_id: str, after: int, limit: int, epoch: int | None = None) -> list[LoggedEvent]:
        self.reads += 1
        events = LOG[after : min(self.length, after + limit)]
        # A read returns the events that were there when it began, however long it takes.
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return events

    def watch(self, key: str, wake: Wake) -> Callable[[], None]:
        self._wakes.append(wake)
        return lambda: self._wakes.remove(wake) if wake in self._wakes else None

    @property
    def is_watched(self) -> bool:
        return bool(self._wakes)

    def grow(self, count: int = 1) -> list[LoggedEvent]:
        self.length += count
        return LOG[self.length - count : self.length]

    def wake(self, events: Sequence[LoggedEvent] = ()) -> None:
        for wake in tuple(self._wakes):
            wake(events)


class Seen:
    """A `Follower` and a `follow` on one log, which must always see the same."""

    def __init__(self, script: Script, after: int = 0) -> None:
        self.delivered: list[LoggedEvent] = []
        self.iterated: list[LoggedEvent] = []
        self.has_ended = False
        self.failure: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self.follower = Follower(script, "t1", after, self._take, self.failure.set_result)
        self._script = script
        self._changed = asyncio.Event()
        self._task = asyncio.create_task(self._iterate(after))

    def _take(self, events: Sequence[LoggedEvent], is_last: bool) -> None:
        assert not self.has_ended
        self.delivered += events
        self.has_ended = is_last
        self._changed.set()

    async def _iterate(self, after: int) -> None:
        async for events in follow(self._script, "t1", after):
            self.iterated += events
            self._changed.set()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(BOUND):
            while len(self.delivered) < count or len(self.iterated) < count:
                self._changed.clear()
                await self._changed.wait()

    async def finished(self) -> None:
        async with asyncio.timeout(BOUND):
            await self._task
        assert self.has_ended

    def close(self) -> None:
        self.follower.close()
        self._task.cancel()


async def settle() -> None:
    """Run everything that can run without waiting."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_wake_up_with_events_delivers_them() -> None:
    script = Script()
    seen = Seen(script)
    await settle()
    script.wake(script.grow(3))
    await seen.until(3)
    script.wake(script.grow(6))
    await seen.finished()
    assert seen.delivered == seen.iterated == LOG
    assert not script.is_watched


async def test_follower_at_the_end_takes_committed_events_without_a_read() -> None:
    script = Script()
    seen: list[LoggedEvent] = []
    Follower(script, "t1", 0, lambda events, is_last: seen.extend(events), lambda error: None)
    await settle()
    assert script.reads == 1
    for _ in LOG:
        script.wake(script.grow())
    assert seen == LOG
    assert script.reads == 1


async def test_wake_up_without_events_leads_to_a_read() -> None:
    script = Script()
    seen = Seen(script)
    await settle()
    for position in range(1, LENGTH + 1):
        script.grow()
        script.wake()
        await seen.until(position)
    await seen.finished()
    assert seen.delivered == seen.iterated == LOG


async def test_next_wake_up_makes_up_for_lost_ones() -> None:
    script = Script()
    seen = Seen(script)
    await settle()
    script.grow(2)
    script.grow(3)
    await settle()
    assert seen.delivered == seen.iterated == []
    script.wake(script.grow())
    await seen.until(6)
    script.wake(script.grow(3))
    await seen.finished()
    assert seen.delivered == seen.iterated == LOG


async def test_doubled_and_late_wake_ups_deliver_nothing_twice() -> None:
    script = Script()
    seen = Seen(script)
    await settle()
    first = script.grow(2)
    script.wake(first)
    script.wake(first)
    await seen.until(2)
    second = script.grow(2)
    script.wake(second)
    script.wake(first)
    script.wake(second)
    script.wake()
    script.wake([*first, *second])
    await settle()
    assert positions(seen.delivered) == positions(seen.iterated) == [1, 2, 3, 4]
    last = script.grow(5)
    script.wake([*second, *last])
    await seen.finished()
    script.wake(last)
    script.wake()
    await settle()
    assert seen.delivered == seen.iterated == LOG


async def test_commit_during_a_read_is_delivered() -> None:
    script = Script()
    script.grow(2)
    script.gate.clear()
    seen = Seen(script)
    await settle()
    script.wake(script.grow(2))
    script.gate.set()
    await seen.until(4)
    script.gate.clear()
    script.wake(script.grow())
    await settle()
    script.wake(script.grow(4))
    script.gate.set()
    await seen.finished()
    assert seen.delivered == seen.iterated == LOG


async def test_commit_during_an_empty_read_is_delivered() -> None:
    script = Script()
    script.gate.clear()
    seen = Seen(script)
    await settle()
    script.wake(script.grow(2))
    script.gate.set()
    await seen.until(2)
    script.wake(script.grow(7))
    await seen.finished()
    assert seen.delivered == seen.iterated == LOG


async def test_late_reader_gets_the_rest_of_the_log_from_every_position(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow_module, "PAGE", 2)
    for after in range(LENGTH):
        script = Script()
        script.grow(LENGTH)
        seen = Seen(script, after)
        await seen.until(LENGTH - after)
        await seen.finished()
        assert seen.delivered == seen.iterated == LOG[after:]
        assert not script.is_watched


async def test_reader_at_the_last_event_ends_at_once() -> None:
    script = Script()
    script.grow(LENGTH)
    assert await followed(script, "t1", LENGTH) == []


@pytest.mark.parametrize(
    "error", [TurnNotFoundError("t1"), EventsGoneError("t1", 0, 9), StoreError("x")], ids=lambda error: error.code
)
async def test_failed_read_ends_the_following(error: Exception) -> None:
    script = Script()
    script.error = error
    seen = Seen(script)
    async with asyncio.timeout(BOUND):
        assert await seen.failure is error
    with pytest.raises(type(error)):
        await followed(script, "t1")
    seen.close()
    assert not script.is_watched


async def test_closed_follower_delivers_nothing() -> None:
    script = Script()
    seen: list[LoggedEvent] = []
    follower = Follower(script, "t1", 0, lambda events, is_last: seen.extend(events), lambda error: None)
    await settle()
    wakes = tuple(script._wakes)
    follower.close()
    events = script.grow()
    for wake in wakes:
        wake(events)  # A wake-up that was under way when the follower closed.
        wake(())
    await settle()
    assert seen == []
    assert not script.is_watched


async def test_follower_closed_during_a_read_delivers_nothing() -> None:
    script = Script()
    script.grow(3)
    script.gate.clear()
    seen = Seen(script)
    await settle()
    seen.close()
    script.gate.set()
    await settle()
    assert seen.delivered == seen.iterated == []
    assert not script.is_watched


async def test_closed_iteration_stops_watching() -> None:
    script = Script()
    script.grow(1)
    iteration = follow(script, "t1")
    assert positions(await anext(iteration)) == [1]
    assert script.is_watched
    await iteration.aclose()  # type: ignore[attr-defined]
    assert not script.is_watched


async def test_rewound_log_ends_the_following() -> None:
    store = MemoryStore()
    record = await claimed(store)
    await append(store, record.id, record.epoch, 3, TokenEvent("a"), TokenEvent("lost in a failover"))
    failure: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
    seen: list[LoggedEvent] = []
    follower = Follower(store, record.id, 0, lambda events, _: seen.extend(events), failure.set_result)
    iterated = asyncio.create_task(followed(store, record.id))
    await settle()
    live = store._turns.by_id[record.id]
    del live.tail[3:]
    live.committed = live.head.position = 3
    owner = await seized(store, record, "owner")
    await append(store, record.id, owner.epoch, 4, TokenEvent("b"), TokenEvent("c"))
    async with asyncio.timeout(BOUND):
        assert isinstance(await failure, LogRewoundError)
        with pytest.raises(LogRewoundError):
            await iterated
    assert [logged.position for logged in seen] == [1, 2, 3, 4]
    follower.close()
