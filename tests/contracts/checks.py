"""The checks that a store's guards exist for.

Each raises AssertionError when the promise is broken. They are run on every store, and on stores with
the guard taken out (`test_guards_matter`), to prove that they would notice.
"""

from collections.abc import Sequence
from typing import Any

from tests.contracts.stores import Place
from tests.contracts.turns import append, claimed, done, positions, seized, texts, whole_log, write
from turnwire.core.codec import LoggedEvent
from turnwire.core.contracts import Store
from turnwire.core.errors import FencedError, PositionError, TurnEndedError
from turnwire.core.events import TokenEvent


async def refused(error: type[Exception], write: Any) -> None:
    try:
        await write
    except error:
        return
    except Exception as other:
        raise AssertionError(f"refused with {other!r} instead of {error.__name__}") from other
    raise AssertionError(f"it was written; {error.__name__} was due")


async def check_a_writer_that_was_taken_over_is_fenced(store: Store) -> None:
    """In the window before the new owner's first event, where the positions still agree."""
    zombie = await claimed(store, "zombie")
    await write(store, zombie, TokenEvent("mine"))
    owner = await seized(store, zombie, "owner")
    await refused(FencedError, append(store, zombie.id, zombie.epoch, owner.last_position + 1, TokenEvent("late")))
    await write(store, owner, TokenEvent(" ours"))
    log = await whole_log(store, zombie.id)
    assert texts(log) == ["mine", " ours"]
    assert [logged.epoch for logged in log] == [0, 0, zombie.epoch, owner.epoch]


async def check_a_position_is_written_once(store: Store) -> None:
    """The epoch is right; only the position is not."""
    record = await claimed(store)
    await write(store, record, TokenEvent("third"))
    for taken in (1, 2, 3):
        await refused(PositionError, append(store, record.id, record.epoch, taken, TokenEvent("again")))
    await refused(PositionError, append(store, record.id, record.epoch, 5, TokenEvent("a gap before")))
    await append(store, record.id, record.epoch, 4, TokenEvent("fourth"))
    log = await whole_log(store, record.id)
    assert positions(log) == [1, 2, 3, 4]
    assert texts(log) == ["third", "fourth"]


async def check_a_log_ends_once(store: Store) -> None:
    """The epoch and the position are right, but the log has its `done`."""
    record = await claimed(store)
    await append(store, record.id, record.epoch, 3, done(record), end=True)
    await refused(TurnEndedError, append(store, record.id, record.epoch, 4, TokenEvent("late")))
    await refused(TurnEndedError, append(store, record.id, record.epoch, 4, done(record, "failed"), end=True))
    log = await whole_log(store, record.id)
    assert [logged.is_last for logged in log] == [False, False, True]
    assert (await store.find_turn("ann", record.id)).outcome == "completed"


async def check_nothing_is_told_before_it_is_committed(place: Place, store: Store) -> None:
    """A watcher and the writer both look with a reader of their own in the moment they are told."""
    record = await claimed(store)
    told: list[tuple[str, bool]] = []

    def look(who: str, last: int) -> None:
        told.append((who, last in positions(place.committed(record.id))))

    def wake(events: Sequence[LoggedEvent]) -> None:
        look("watcher", events[-1].position if events else 0)

    unwatch = store.watch(record.id, wake)
    for position in (3, 4):
        token = TokenEvent(f"at {position}")
        await append(store, record.id, record.epoch, position, token, told=lambda at=position: look("writer", at))
    await append(store, record.id, record.epoch, 5, done(record), end=True, told=lambda: look("writer", 5))
    unwatch()
    assert all(was_there for _, was_there in told), f"told too early: {told}"
    assert sorted(who for who, _ in told) == ["watcher"] * 3 + ["writer"] * 3
