"""The checks of the guards that every store has.

Each raises AssertionError if the promise is broken. They run on every store, and on stores without the guard
(`test_guards`), to prove that they fail there.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from tests.contracts.stores import StoreBackend
from tests.contracts.turns import append, claimed, done, positions, seized, texts, whole_log, write
from tests.core.desk import lose_worker, open_actor_desk, wait_for_events
from turnwire.agents.loader import as_agent
from turnwire.core.contracts.stores import JournalEntry, Store
from turnwire.core.errors import FencedError, PositionError, TurnEndedError
from turnwire.core.journal.turn_journal import current_journal, fingerprint
from turnwire.core.log.codec import LoggedEvent
from turnwire.core.log.events import TokenEvent
from turnwire.core.log.turn_log import TurnLog
from turnwire.core.log.turns import Turn, TurnRecord
from turnwire.core.people.budget import Limits
from turnwire.recordings.recording import record_turn
from turnwire.recordings.replay import replay_turn


async def assert_refused(error: type[Exception], write: Any) -> None:
    try:
        await write
    except error:
        return
    except Exception as other:
        raise AssertionError(f"refused with {other!r} instead of {error.__name__}") from other
    raise AssertionError(f"the events were written; {error.__name__} was due")


async def check_append_with_old_epoch_is_refused(store: Store) -> None:
    """The old owner writes before the new owner's first event, while the positions still agree."""
    zombie = await claimed(store, "zombie")
    await write(store, zombie, TokenEvent("mine"))
    owner = await seized(store, zombie, "owner")
    await assert_refused(
        FencedError, append(store, zombie.id, zombie.epoch, owner.last_position + 1, TokenEvent("late"))
    )
    await write(store, owner, TokenEvent(" ours"))
    log = await whole_log(store, zombie.id)
    assert texts(log) == ["mine", " ours"]
    assert [logged.epoch for logged in log] == [0, 0, zombie.epoch, owner.epoch]


async def check_append_at_a_wrong_position_is_refused(store: Store) -> None:
    """The epoch is right, the position is not."""
    record = await claimed(store)
    await write(store, record, TokenEvent("third"))
    for taken in (1, 2, 3):
        await assert_refused(PositionError, append(store, record.id, record.epoch, taken, TokenEvent("again")))
    await assert_refused(PositionError, append(store, record.id, record.epoch, 5, TokenEvent("a gap before")))
    await append(store, record.id, record.epoch, 4, TokenEvent("fourth"))
    log = await whole_log(store, record.id)
    assert positions(log) == [1, 2, 3, 4]
    assert texts(log) == ["third", "fourth"]


async def check_append_after_the_end_is_refused(store: Store) -> None:
    """The epoch and the position are right, but the log has its `done`."""
    record = await claimed(store)
    await append(store, record.id, record.epoch, 3, done(record), end=True)
    await assert_refused(TurnEndedError, append(store, record.id, record.epoch, 4, TokenEvent("late")))
    await assert_refused(TurnEndedError, append(store, record.id, record.epoch, 4, done(record, "failed"), end=True))
    log = await whole_log(store, record.id)
    assert [logged.is_last for logged in log] == [False, False, True]
    assert (await store.find_turn("ann", record.id)).outcome == "completed"


async def check_no_event_is_published_before_its_commit(backend: StoreBackend, store: Store) -> None:
    """When they are notified, a watcher and the writer each read with an independent reader."""
    record = await claimed(store)
    notified: list[tuple[str, bool]] = []

    def note(who: str, last: int) -> None:
        notified.append((who, last in positions(backend.committed(record.id))))

    def wake(events: Sequence[LoggedEvent]) -> None:
        note("watcher", events[-1].position if events else 0)

    unwatch = store.watch(record.id, wake)
    for position in (3, 4):
        token = TokenEvent(f"at {position}")
        await append(store, record.id, record.epoch, position, token, on_commit=lambda at=position: note("writer", at))
    await append(store, record.id, record.epoch, 5, done(record), end=True, on_commit=lambda: note("writer", 5))
    unwatch()
    assert all(is_committed for _, is_committed in notified), f"published too early: {notified}"
    assert sorted(who for who, _ in notified) == ["watcher"] * 3 + ["writer"] * 3


async def _record(store: Store, record: TurnRecord, position: int) -> None:
    log = TurnLog(store, record, Limits())
    log.record(JournalEntry(kind="tool", key="call", state="finished", position=position))
    await log.flush()


async def check_entry_with_old_epoch_is_refused(store: Store) -> None:
    """The old owner records a call that has ended, after another worker has claimed the turn."""
    zombie = await claimed(store, "zombie")
    owner = await seized(store, zombie, "owner")
    await assert_refused(FencedError, _record(store, zombie, 2))
    assert await store.journal(zombie.id) == []
    await _record(store, owner, 2)
    assert len(await store.journal(zombie.id)) == 1


async def check_entry_ahead_of_its_events_is_refused(store: Store) -> None:
    """The entry names a position that the log does not have yet: its events could be lost while it stays."""
    record = await claimed(store)
    log = TurnLog(store, record, Limits())
    log.append(TokenEvent("third"))
    log.record(JournalEntry(kind="model", key="call", state="finished", position=4))
    await assert_refused(PositionError, log.flush())
    assert positions(await whole_log(store, record.id)) == [1, 2]
    assert await store.journal(record.id) == []


async def check_entries_are_committed_with_their_events(backend: StoreBackend, store: Store) -> None:
    """When the event is published, an independent reader finds the entry that was recorded with it."""
    record = await claimed(store)
    found: list[int] = []

    def look(events: Sequence[LoggedEvent]) -> None:
        found.append(len(backend.recorded(record.id)))

    unwatch = store.watch(record.id, look)
    log = TurnLog(store, record, Limits())
    for count in (1, 2):
        log.append(TokenEvent("seen"))
        log.record(JournalEntry(kind="model", key=f"call {count}", state="finished", position=log.position))
        await log.flush()
    unwatch()
    assert found == [1, 2], f"the event was ahead of the journal: {found}"


class ModelCaller:
    """An agent that calls a model three times, and shows the replies. `answers` are those that were not live."""

    on_crash = "resume"

    def __init__(self, prompt: str, *, stops: bool = False) -> None:
        self.answers: list[str] = []
        self._prompt = prompt
        self._stops = stops

    async def answer(self, turn: Turn) -> AsyncIterator[str]:
        journal = current_journal()
        assert journal is not None
        place = journal.place("run")
        for text in ("One.", "Two.", "Three."):
            request = fingerprint([self._prompt, text])
            with await journal.begin_model(place, names=("caller", "small"), fingerprint=request) as call:
                if not call.is_live:
                    self.answers.append(call.result)
                    continue
                yield text
                if self._stops and text == "Three.":
                    await asyncio.Event().wait()
                call.finish(text)


async def check_calls_are_answered_in_their_order(store: Store) -> None:
    """The worker is lost in the third of three calls of one run."""
    async with open_actor_desk(store, ModelCaller("Hello", stops=True)) as desk:
        turn = await desk.start()
        await wait_for_events(desk, turn, TokenEvent("Three."))
        await lose_worker(desk)
    caller = ModelCaller("Hello")
    async with open_actor_desk(store, caller) as desk:
        await desk.end(turn)
    assert caller.answers == ["One.", "Two."], f"wrong answers: {caller.answers}"


async def check_changed_request_is_named(store: Store) -> None:
    """The recorded turn of an agent is replayed with another prompt."""
    async with open_actor_desk(store, ModelCaller("Hello")) as desk:
        turn = await desk.start()
        await desk.end(turn)
    recording = await record_turn(store, await store.find_turn("ann", turn.id), ())
    assert (await replay_turn(recording, as_agent(ModelCaller("Hello")))).divergence is None
    divergence = (await replay_turn(recording, as_agent(ModelCaller("Bye")))).divergence
    assert divergence is not None, "the changed request was not noticed"
    assert (divergence.what, divergence.position) == ("prompt", 3)
