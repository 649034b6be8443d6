"""The contract of every store: turns and their logs."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tests.contracts import checks
from tests.contracts.stores import StoreBackend
from tests.contracts.turns import (
    BOUND,
    append,
    claimed,
    done,
    ended,
    followed,
    new_session_id,
    positions,
    queued_turns,
    seized,
    start,
    started,
    texts,
    types,
    whole_log,
    write,
)
from turnwire.core.contracts.stores import Admission, AppendRequest, Store, TurnFilter, is_short
from turnwire.core.errors import (
    EventsGoneError,
    FencedError,
    IdempotencyConflictError,
    SessionBusyError,
    SessionNotFoundError,
    TooManyTurnsError,
    TurnEndedError,
    TurnNotFoundError,
)
from turnwire.core.log.codec import LoggedEvent, log_event, now_ms
from turnwire.core.log.events import MessageEvent, SessionEvent, TokenEvent, ToolCallEvent, ToolResultEvent, UsageEvent
from turnwire.core.log.state import TurnFold
from turnwire.stores import lines

UNKNOWN = "01890000-0000-7000-8000-000000000000"
FAR_FUTURE = 2**45


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


# Order


async def test_log_begins_with_session_and_message_when_accepted(store: Store) -> None:
    record = await started(store, message="how are you?")
    first, second = await whole_log(store, record.id)
    assert first.event == SessionEvent(record.session_id, record.id, "echo")
    assert second.event == MessageEvent("how are you?", "ann", "http")


async def test_log_has_no_gap_and_no_duplicate(store: Store) -> None:
    pieces = [f"piece {number} " for number in range(700)]
    record = await ended(store, *map(TokenEvent, pieces))
    log = await whole_log(store, record.id, page=64)
    assert positions(log) == list(range(1, 704))
    assert texts(log) == pieces
    assert types(log)[-1] == "done"


async def test_read_returns_the_events_as_written(store: Store) -> None:
    record = await claimed(store)
    written = await append(
        store,
        record.id,
        record.epoch,
        3,
        ToolCallEvent("c1", "find", {"query": "größe \u2028 日本 😀", "deep": [1, 2.5, None, {"x": True}]}),
        ToolResultEvent("c1", "find", False, "not\nfound\r\n\ttabbed", 1.5),
        TokenEvent("é"),
    )
    assert (await whole_log(store, record.id))[2:] == list(written)


async def test_reading_can_be_resumed_at_every_position(store: Store) -> None:
    record = await ended(store, *[TokenEvent(str(number)) for number in range(10)])
    log = await whole_log(store, record.id)
    for after in range(len(log) + 1):
        for page in (1, 2, 100):
            assert await whole_log(store, record.id, after, page) == log[after:]


async def test_following_can_be_resumed_at_every_position_of_an_ended_turn(store: Store) -> None:
    record = await ended(store, *[TokenEvent(str(number)) for number in range(10)])
    log = await whole_log(store, record.id)
    for after in range(len(log) + 1):
        assert await followed(store, record.id, after) == log[after:]


async def test_following_can_be_resumed_at_every_position_of_a_running_turn(store: Store) -> None:
    record = await claimed(store)
    await write(store, record, *[TokenEvent(str(number)) for number in range(5)])
    readers = [asyncio.create_task(followed(store, record.id, after)) for after in range(8)]
    await asyncio.sleep(0)
    for position in range(8, 12):
        await append(store, record.id, record.epoch, position, TokenEvent(str(position)))
    await append(store, record.id, record.epoch, 12, done(record), end=True)
    log = await whole_log(store, record.id)
    assert positions(log) == list(range(1, 13))
    for after, reader in enumerate(readers):
        assert await reader == log[after:]


async def test_queued_turn_is_followed_from_its_acceptance_to_its_end(store: Store) -> None:
    record = await started(store)
    assert positions(await followed(store, record.id, count=2)) == [1, 2]
    reader = asyncio.create_task(followed(store, record.id))
    await asyncio.sleep(0)
    await write(store, await store.claim(record.id, "worker"), TokenEvent("at last"), end="completed")
    assert types(await reader) == ["session", "message", "token", "done"]


async def test_unknown_turn_is_not_found(store: Store) -> None:
    with pytest.raises(TurnNotFoundError):
        await followed(store, UNKNOWN)
    with pytest.raises(TurnNotFoundError):
        await store.read(UNKNOWN, 0, 10)
    with pytest.raises(TurnNotFoundError):
        await store.claim(UNKNOWN, "worker")
    with pytest.raises(TurnNotFoundError):
        await store.turn_state(UNKNOWN)
    with pytest.raises(TurnNotFoundError):
        await store.find_turn("ann", UNKNOWN)


async def test_events_of_concurrent_turns_do_not_mix(store: Store) -> None:
    records = [await claimed(store) for _ in range(5)]
    for position in range(3, 9):
        appends = (append(store, r.id, r.epoch, position, TokenEvent(f"{r.id} {position}")) for r in records)
        await asyncio.gather(*appends)
    for record in records:
        log = await whole_log(store, record.id)
        assert positions(log) == list(range(1, 9))
        assert texts(log) == [f"{record.id} {position}" for position in range(3, 9)]


# Watching


async def test_watcher_is_woken_by_every_commit_until_it_is_removed(store: Store) -> None:
    record = await claimed(store)
    woken: list[list[int]] = []
    unwatch = store.watch(record.id, lambda events: woken.append(positions(events)))
    await append(store, record.id, record.epoch, 3, TokenEvent("a"))
    await append(store, record.id, record.epoch, 4, TokenEvent("b"), TokenEvent("c"))
    unwatch()
    await append(store, record.id, record.epoch, 6, TokenEvent("d"))
    assert woken == [[3], [4, 5]]
    unwatch()  # A second call does nothing.


async def test_watcher_may_be_removed_while_it_is_woken(store: Store) -> None:
    record = await claimed(store)
    woken: list[str] = []

    def remove(events: Sequence[LoggedEvent]) -> None:
        woken.append("removed")
        unwatch()

    unwatch = store.watch(record.id, remove)
    store.watch(record.id, lambda events: woken.append("other"))
    await append(store, record.id, record.epoch, 3, TokenEvent("a"))
    await append(store, record.id, record.epoch, 4, TokenEvent("b"))
    assert woken == ["removed", "other", "other"]


async def test_failing_watcher_does_not_affect_others(store: Store) -> None:
    record = await claimed(store)
    woken: list[int] = []

    def fail(events: Sequence[LoggedEvent]) -> None:
        raise RuntimeError("a broken reader")

    store.watch(record.id, fail)
    store.watch(record.id, lambda events: woken.extend(positions(events)))
    await append(store, record.id, record.epoch, 3, TokenEvent("a"))
    assert woken == [3]


async def test_session_watcher_is_woken_by_a_new_turn(store: Store) -> None:
    session_id = await new_session_id(store)
    woken = 0

    def wake(events: Sequence[LoggedEvent]) -> None:
        nonlocal woken
        woken += 1

    store.watch(session_id, wake)
    record = await started(store, session_id=session_id, key="k")
    await start(store, session_id=session_id, key="k")
    assert woken == 1
    assert (await store.next_turn(session_id, None)) == await store.find_turn("ann", record.id)


async def test_no_event_is_published_before_its_commit(backend: StoreBackend, store: Store) -> None:
    await checks.check_no_event_is_published_before_its_commit(backend, store)


# Writing


async def test_append_with_old_epoch_is_refused(store: Store) -> None:
    await checks.check_append_with_old_epoch_is_refused(store)


async def test_append_at_a_wrong_position_is_refused(store: Store) -> None:
    await checks.check_append_at_a_wrong_position_is_refused(store)


async def test_append_after_the_end_is_refused(store: Store) -> None:
    await checks.check_append_after_the_end_is_refused(store)


async def test_append_in_flight_at_a_takeover_comes_before_the_new_owner_or_is_refused(store: Store) -> None:
    zombie = await claimed(store, "zombie")
    in_flight = asyncio.create_task(append(store, zombie.id, zombie.epoch, 3, TokenEvent("in flight")))
    await asyncio.sleep(0)
    owner = await seized(store, zombie, "owner")
    committed = ["in flight"]
    try:
        await in_flight
    except FencedError:
        committed = []
    assert owner.last_position == 2 + len(committed)
    await write(store, owner, TokenEvent("next"))
    assert texts(await whole_log(store, zombie.id)) == [*committed, "next"]


async def test_fenced_writer_cannot_end_the_turn(store: Store) -> None:
    zombie = await claimed(store, "zombie")
    owner = await seized(store, zombie, "owner")
    with pytest.raises(FencedError):
        await append(store, zombie.id, zombie.epoch, 3, done(zombie, "failed"), end=True)
    assert (await store.find_turn("ann", zombie.id)).phase == "running"
    await append(store, owner.id, owner.epoch, 3, done(owner), end=True)


async def test_append_with_unknown_epoch_is_refused(store: Store) -> None:
    record = await claimed(store)
    with pytest.raises(FencedError):
        await append(store, record.id, record.epoch + 1, 3, TokenEvent("from the future"))
    queued = await started(store)
    with pytest.raises(FencedError):
        await append(store, queued.id, 1, 3, TokenEvent("without a claim"))


async def test_ended_turn_cannot_be_claimed(store: Store) -> None:
    record = await ended(store)
    with pytest.raises(TurnEndedError):
        await store.claim(record.id, "worker")
    await store.maintain(expire_before=0)
    with pytest.raises(TurnEndedError):
        await store.claim(record.id, "worker")


async def test_append_to_a_sealed_or_deleted_turn_is_refused(store: Store) -> None:
    record = await ended(store)
    after_end = record.last_position + 1
    await store.maintain(expire_before=0)
    with pytest.raises(TurnEndedError):
        await append(store, record.id, record.epoch, after_end, TokenEvent("late"))
    await store.delete_session("ann", record.session_id)
    with pytest.raises(TurnEndedError):
        await append(store, record.id, record.epoch, after_end, TokenEvent("very late"))


async def test_claim_returns_worker_epoch_and_position(store: Store) -> None:
    record = await claimed(store, "first")
    assert (record.phase, record.worker, record.epoch, record.last_position) == ("running", "first", 1, 2)
    await write(store, record, TokenEvent("a"))
    again = await seized(store, record, "second")
    assert (again.phase, again.worker, again.epoch, again.last_position) == ("running", "second", 2, 3)
    assert again.started_at == record.started_at
    assert await store.find_turn("ann", record.id) == again


async def test_ending_sets_phase_outcome_and_state_with_the_last_event(store: Store) -> None:
    record = await claimed(store)
    assert await store.turn_state(record.id) is None
    await write(store, record, TokenEvent("an answer"), UsageEvent(output_tokens=2), end="completed")
    found = await store.find_turn("ann", record.id)
    assert (found.phase, found.outcome, found.last_position) == ("ended", "completed", 5)
    log = await whole_log(store, record.id)
    assert found.ended_at == log[-1].at
    fold = TurnFold()
    for logged in log:
        fold.add(logged)
    assert await store.turn_state(record.id) == fold.state()


async def test_events_added_until_the_request_is_taken_are_committed_with_it(store: Store) -> None:
    record = await claimed(store)
    settled: asyncio.Future[tuple[int, object]] = asyncio.get_running_loop().create_future()
    first, second = [log_event(TokenEvent(str(position)), position, record.epoch) for position in (3, 4)]
    request = AppendRequest(record.id, record.epoch, [first], lambda count, error: settled.set_result((count, error)))
    store.append(request)
    assert not request.is_taken
    request.events.append(second)
    async with asyncio.timeout(BOUND):
        assert await settled == (2, None)
    assert request.is_taken
    assert positions(await whole_log(store, record.id)) == [1, 2, 3, 4]


async def test_refused_request_is_taken_too(store: Store) -> None:
    record = await claimed(store)
    settled: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    event = log_event(TokenEvent("late"), 3, record.epoch - 1)
    request = AppendRequest(record.id, record.epoch - 1, [event], lambda count, error: settled.set_result(error))
    store.append(request)
    async with asyncio.timeout(BOUND):
        assert isinstance(await settled, FencedError)
    assert request.is_taken


# Starting


async def test_start_with_the_same_key_joins_the_turn(store: Store) -> None:
    session_id = await new_session_id(store)
    first = await start(store, session_id=session_id, key="k", fingerprint="f")
    again = await start(store, session_id=session_id, key="k", fingerprint="f")
    assert (first.created, again.created) == (True, False)
    assert again.record.id == first.record.id
    assert len(await store.list_turns("ann")) == 1


async def test_repeated_start_returns_the_current_record(store: Store) -> None:
    session_id = await new_session_id(store)
    record = await claimed(store, session_id=session_id, key="k")
    await write(store, record, TokenEvent("a"))
    running = (await start(store, session_id=session_id, key="k")).record
    assert (running.phase, running.last_position) == ("running", 3)
    await append(store, record.id, record.epoch, 4, done(record), end=True)
    for _ in range(2):
        joined = (await start(store, session_id=session_id, key="k")).record
        assert (joined.phase, joined.outcome, joined.last_position) == ("ended", "completed", 4)
        await store.maintain(expire_before=0)


async def test_start_with_the_id_of_a_turn_finds_that_turn(store: Store) -> None:
    first = await started(store, message="first", fingerprint="f")
    with pytest.raises(IdempotencyConflictError):
        await start(store, message="second", external_id=first.id, fingerprint="g")
    again = await start(store, message="first", external_id=first.id, fingerprint="f")
    assert (again.created, again.record.id) == (False, first.id)
    for_bob = await start(store, principal="bob", external_id=first.id, fingerprint="g")
    assert (for_bob.created, (await store.find_turn("bob", first.id)).id) == (True, for_bob.record.id)
    assert await store.find_turn("ann", first.id) == first
    await write(store, await store.claim(first.id, "worker"), end="completed")
    await store.maintain(expire_before=0)
    assert (await store.find_turn("ann", first.id)).message == "first"


async def test_start_with_the_same_key_and_another_request_is_a_conflict(store: Store) -> None:
    session_id = await new_session_id(store)
    await start(store, session_id=session_id, key="k", fingerprint="f")
    with pytest.raises(IdempotencyConflictError):
        await start(store, session_id=session_id, key="k", fingerprint="g")
    await start(store, session_id=session_id, external_id="mine", fingerprint="f")
    with pytest.raises(IdempotencyConflictError):
        await start(store, session_id=session_id, external_id="mine", fingerprint="g")
    assert len(await store.list_turns("ann")) == 2


async def test_start_with_the_same_external_id_joins_the_turn(store: Store) -> None:
    session_id = await new_session_id(store)
    first = await start(store, session_id=session_id, external_id="mine")
    again = await start(store, session_id=session_id, external_id="mine", key="another")
    assert (again.created, again.record.id) == (False, first.record.id)
    assert (await store.find_turn("ann", "mine")).id == first.record.id


async def test_keys_and_external_ids_of_two_principals_are_separate(store: Store) -> None:
    anns = await start(store, principal="ann", key="k", external_id="mine", fingerprint="a")
    bobs = await start(store, principal="bob", key="k", external_id="mine", fingerprint="b")
    assert bobs.created
    assert (await store.find_turn("ann", "mine")).id == anns.record.id
    assert (await store.find_turn("bob", "mine")).id == bobs.record.id


async def test_concurrent_starts_with_the_same_key_start_once(store: Store) -> None:
    session_id = await new_session_id(store)
    results = await asyncio.gather(*(start(store, session_id=session_id, key="k") for _ in range(5)))
    assert sorted(accepted.created for accepted in results) == [False] * 4 + [True]
    assert len({accepted.record.id for accepted in results}) == 1


async def test_repeated_start_in_a_busy_session_joins_the_turn(store: Store) -> None:
    session_id = await new_session_id(store)
    strict = Admission(on_busy="reject", max_unfinished=1)
    first = await start(store, session_id=session_id, key="k", admission=strict)
    again = await start(store, session_id=session_id, key="k", admission=strict)
    assert again.record.id == first.record.id


async def test_cancelled_start_leaves_a_whole_turn_or_none(store: Store) -> None:
    session_id = await new_session_id(store)
    starting = asyncio.create_task(start(store, session_id=session_id))
    await asyncio.sleep(0)
    starting.cancel()
    await asyncio.wait([starting])
    await ended(store)  # Everything that was appended before is committed now.
    await store.maintain(expire_before=0)
    for record in await store.list_turns("ann", session_id=session_id):
        assert [waiting.id for waiting in await queued_turns(store)] == [record.id]
        assert positions(await whole_log(store, record.id)) == [1, 2]
        await write(store, await store.claim(record.id, "worker"), end="completed")


async def test_start_in_a_busy_session_with_reject_is_refused(store: Store) -> None:
    session_id = await new_session_id(store)
    strict = Admission(on_busy="reject")
    first = await claimed(store, session_id=session_id, admission=strict)
    with pytest.raises(SessionBusyError):
        await start(store, session_id=session_id, admission=strict)
    await write(store, first, end="completed")
    assert (await start(store, session_id=session_id, admission=strict)).created


async def test_start_beyond_max_queued_is_refused(store: Store) -> None:
    session_id = await new_session_id(store)
    bounded = Admission(max_queued=2)
    await claimed(store, session_id=session_id, admission=bounded)
    for _ in range(2):
        await start(store, session_id=session_id, admission=bounded)
    with pytest.raises(SessionBusyError):
        await start(store, session_id=session_id, admission=bounded)
    interrupting = Admission(on_busy="interrupt", max_queued=2)
    assert (await start(store, session_id=session_id, admission=interrupting)).created


async def test_start_beyond_max_unfinished_is_refused(store: Store) -> None:
    bounded = Admission(max_unfinished=2)
    first = await claimed(store, admission=bounded)
    await start(store, admission=bounded)
    with pytest.raises(TooManyTurnsError):
        await start(store, admission=bounded)
    assert (await start(store, principal="bob", admission=bounded)).created
    await write(store, first, end="failed")
    assert (await start(store, admission=bounded)).created


async def test_refused_start_writes_nothing(store: Store) -> None:
    session_id = await new_session_id(store)
    await start(store, session_id=session_id)
    before = await store.find_session("ann", session_id)
    with pytest.raises(SessionBusyError):
        await start(store, session_id=session_id, key="k", admission=Admission(on_busy="reject"))
    assert await store.find_session("ann", session_id) == before
    assert len(await store.list_turns("ann")) == 1
    assert (await start(store, session_id=session_id, key="k", fingerprint="another")).created


# Finding


async def test_turns_are_listed_newest_last_and_limited(store: Store) -> None:
    session_id = await new_session_id(store)
    ids = [(await started(store, session_id=session_id)).id for _ in range(4)]
    elsewhere = await started(store)
    assert [record.id for record in await store.list_turns("ann")] == [*ids, elsewhere.id]
    assert [record.id for record in await store.list_turns("ann", session_id=session_id)] == ids
    assert [record.id for record in await store.list_turns("ann", session_id=session_id, limit=2)] == ids[2:]


async def test_turns_are_filtered_by_agent_status_and_message(store: Store) -> None:
    queued = await started(store, message="When does the FÄHRE leave?")
    running = await claimed(store, message="And the bus?")
    failed = await ended(store, outcome="failed", message="Which fähre?")
    done = await ended(store, message="100% sure?")

    async def found(**conditions: Any) -> list[str]:
        return [record.id for record in await store.list_turns("ann", where=TurnFilter(**conditions))]

    assert await found(agent="echo") == [queued.id, running.id, failed.id, done.id]
    assert await found(agent="other") == []
    for record, status in ((queued, "queued"), (running, "running"), (failed, "failed"), (done, "completed")):
        assert await found(status=status) == [record.id]
    assert await found(search="fähre") == [queued.id, failed.id]
    assert await found(search="%") == [done.id]
    assert await found(search="fähre", status="failed") == [failed.id]
    assert await store.list_turns("bob", where=TurnFilter(status="failed")) == []


async def test_list_of_turns_begins_before_or_after_a_turn(store: Store) -> None:
    session_id = await new_session_id(store)
    ids = [(await started(store, session_id=session_id)).id for _ in range(5)]
    foreign = await started(store, principal="bob")

    async def found(limit: int = 2, **conditions: Any) -> list[str]:
        where = TurnFilter(**conditions)
        return [record.id for record in await store.list_turns("ann", session_id=session_id, limit=limit, where=where)]

    assert await found(before=ids[3]) == ids[1:3]
    assert await found(after=ids[1]) == ids[2:4]
    assert await found(before=ids[0]) == await found(after=ids[4]) == []
    assert await found(9, after=ids[0], before=ids[3]) == ids[1:3]
    for name in (foreign.id, "nothing"):
        with pytest.raises(TurnNotFoundError):
            await found(before=name)
        with pytest.raises(TurnNotFoundError):
            await found(after=name)


async def test_next_turn_walks_a_session_in_order(store: Store) -> None:
    session_id = await new_session_id(store)
    ids = [(await started(store, session_id=session_id)).id for _ in range(3)]
    await started(store)
    walked: list[str] = []
    while (record := await store.next_turn(session_id, walked[-1] if walked else None)) is not None:
        walked.append(record.id)
    assert walked == ids


async def test_turn_of_another_principal_is_not_found(store: Store) -> None:
    record = await ended(store, principal="ann", external_id="mine")
    for name in (record.id, "mine"):
        with pytest.raises(TurnNotFoundError):
            await store.find_turn("bob", name)
    assert await store.list_turns("bob") == []
    assert await store.list_turns("bob", session_id=record.session_id) == []
    with pytest.raises(SessionNotFoundError):
        await start(store, principal="bob", session_id=record.session_id)
    await store.maintain(expire_before=0)
    with pytest.raises(TurnNotFoundError):
        await store.find_turn("bob", record.id)


async def test_external_id_equal_to_the_id_of_another_turn_is_separate(store: Store) -> None:
    anns = await started(store, principal="ann")
    bobs = await started(store, principal="bob", external_id=anns.id)
    assert (await store.find_turn("bob", anns.id)).id == bobs.id
    assert (await store.find_turn("ann", anns.id)).id == anns.id


# History


async def test_history_returns_the_chain_of_ended_turns_oldest_first(store: Store) -> None:
    session_id = await new_session_id(store)
    for message in ("one", "two", "three"):
        await ended(store, session_id=session_id, message=message)
    current = await started(store, session_id=session_id, message="four")
    assert [state.message for state in await store.history(current.id, 50)] == ["one", "two", "three"]
    assert [state.message for state in await store.history(current.id, 2)] == ["two", "three"]
    assert await store.history((await store.list_turns("ann"))[0].id, 50) == []


async def test_turn_may_continue_an_earlier_one(store: Store) -> None:
    session_id = await new_session_id(store)
    first = await ended(store, session_id=session_id, message="one")
    await ended(store, session_id=session_id, message="two")
    edited = await ended(store, session_id=session_id, message="two again", parent_turn_id=first.id)
    current = await started(store, session_id=session_id)
    assert current.parent_turn_id == edited.id
    assert [state.message for state in await store.history(current.id, 50)] == ["one", "two again"]


async def test_history_is_kept_when_the_events_expire(store: Store) -> None:
    session_id = await new_session_id(store)
    await ended(store, TokenEvent("the answer"), session_id=session_id)
    await store.maintain(expire_before=FAR_FUTURE)
    current = await started(store, session_id=session_id)
    assert [state.text for state in await store.history(current.id, 50)] == ["the answer"]


async def test_history_leaves_out_unfinished_turns(store: Store) -> None:
    session_id = await new_session_id(store)
    await ended(store, session_id=session_id, message="one")
    await claimed(store, session_id=session_id, message="two")
    current = await started(store, session_id=session_id)
    assert [state.message for state in await store.history(current.id, 50)] == ["one"]
    assert [state.message for state in await store.history(current.id, 1)] == ["one"]


# Crashes and leases


async def test_committed_events_survive_a_crash(backend: StoreBackend) -> None:
    store = await backend.open()
    over = await ended(store, TokenEvent("whole"), key="k")
    sealed = await ended(store, TokenEvent("sealed"))
    await store.maintain(expire_before=0)
    running = await claimed(store, message="unfinished")
    await write(store, running, TokenEvent("half"))
    queued = await started(store, message="waiting")
    logs = {record.id: await whole_log(store, record.id) for record in (over, sealed, running, queued)}
    records = await store.list_turns("ann")
    backend.crash()
    store = await backend.open()
    assert {turn_id: await whole_log(store, turn_id) for turn_id in logs} == logs
    assert await store.list_turns("ann") == records
    assert not (await start(store, session_id=over.session_id, key="k")).created


async def test_running_turns_of_a_dead_worker_are_taken_over_once(backend: StoreBackend) -> None:
    store = await backend.open()
    running = await claimed(store, "dead")
    await write(store, running, TokenEvent("half"))
    await ended(store)
    await started(store)
    backend.crash()
    store = await backend.open()
    await store.renew("alive")
    (taken,) = await store.take_over("alive")
    assert (taken.id, taken.worker, taken.epoch, taken.last_position) == (running.id, "alive", running.epoch + 1, 3)
    assert await store.take_over("alive") == []
    await write(store, taken, end="interrupted")
    epochs = [logged.epoch for logged in await whole_log(store, running.id)]
    assert epochs == [0, 0, running.epoch, taken.epoch]


@pytest.mark.parametrize("sealed", [False, True])
async def test_ended_turn_stays_ended_after_a_crash(backend: StoreBackend, sealed: bool) -> None:
    store = await backend.open()
    record = await ended(store)
    if sealed:
        await store.maintain(expire_before=0)
    backend.crash()
    store = await backend.open()
    assert await store.find_turn("ann", record.id) == record
    assert await store.take_over("worker") == []
    with pytest.raises(TurnEndedError):
        await store.claim(record.id, "worker")
    with pytest.raises(TurnEndedError):
        await append(store, record.id, record.epoch, record.last_position + 1, TokenEvent("late"))


async def test_epoch_grows_across_crashes(backend: StoreBackend) -> None:
    store = await backend.open()
    record = await started(store)
    for epoch in range(1, 4):
        assert (await store.claim(record.id, "worker")).epoch == epoch
        backend.crash()
        store = await backend.open()


async def test_queued_turns_keep_their_order_after_a_crash(backend: StoreBackend) -> None:
    store = await backend.open()
    session_id = await new_session_id(store)
    ids = [(await started(store, session_id=session_id, message=message)).id for message in "abc"]
    await claimed(store)
    backend.crash()
    store = await backend.open()
    waiting = await queued_turns(store)
    assert [(record.id, record.message, record.phase) for record in waiting] == [
        (turn_id, message, "queued") for turn_id, message in zip(ids, "abc", strict=True)
    ]


async def test_lease_protects_turns_until_it_expires(backend: StoreBackend) -> None:
    clock = Clock()
    store = await backend.open(lease=10, clock=clock)
    record = await claimed(store, "slow")
    await store.renew("eager")
    assert await store.take_over("eager") == []
    clock.now += 9
    await store.renew("slow")
    clock.now += 9
    assert await store.take_over("eager") == []
    clock.now += 2
    (taken,) = await store.take_over("eager")
    with pytest.raises(FencedError):
        await append(store, record.id, record.epoch, 3, TokenEvent("before the new owner's first event"))
    await write(store, taken, TokenEvent("taken over"), end="interrupted")


async def test_takeover_skips_turns_that_end_meanwhile(backend: StoreBackend) -> None:
    clock = Clock()
    store = await backend.open(lease=10, clock=clock)
    records = [await claimed(store, "slow") for _ in range(3)]
    clock.now += 11
    ending = [asyncio.create_task(write(store, record, end="completed")) for record in records[1:]]
    async with asyncio.timeout(BOUND):
        taken = await store.take_over("eager")
        results = await asyncio.gather(*ending, return_exceptions=True)
    assert records[0].id in [record.id for record in taken]
    for record, result in zip(records[1:], results, strict=True):
        assert (record.id in [turn.id for turn in taken]) == isinstance(result, FencedError)


# Retention


async def test_sealed_log_reads_the_same(store: Store) -> None:
    record = await ended(store, *[TokenEvent(f"{number}") for number in range(300)])
    log = await whole_log(store, record.id)
    state = await store.turn_state(record.id)
    found = await store.find_turn("ann", record.id)
    await store.maintain(expire_before=0)
    for after in (0, 1, 2, 150, 301, 302, 303, 304):
        assert await whole_log(store, record.id, after, page=50) == log[after:]
    assert await followed(store, record.id, 100) == log[100:]
    assert await store.turn_state(record.id) == state
    assert await store.find_turn("ann", record.id) == found


async def test_sealed_log_is_unsealed_once_for_all_of_its_pages(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    record = await ended(store, *[TokenEvent(f"{number}") for number in range(300)])
    log = await whole_log(store, record.id)
    await store.maintain(expire_before=0)
    unsealed: list[bytes] = []
    unseal = lines.unseal
    monkeypatch.setattr(lines, "unseal", lambda body: unsealed.append(body) or unseal(body))
    assert await whole_log(store, record.id, page=10) == log
    assert await followed(store, record.id, 100) == log[100:]
    assert len(unsealed) == 1


async def test_pages_that_end_inside_a_commit_are_whole(store: Store) -> None:
    record = await claimed(store)
    for position in range(3, 63, 20):
        tokens = [TokenEvent(str(at)) for at in range(position, position + 20)]
        await append(store, record.id, record.epoch, position, *tokens)
    for after in range(63):
        for limit in (1, 2, 19, 20, 21, 40, 100):
            read = positions(await store.read(record.id, after, limit))
            assert read == list(range(after + 1, min(after + limit, 62) + 1))


async def test_log_that_was_read_before_it_expired_is_gone(store: Store) -> None:
    record = await ended(store)
    await store.maintain(expire_before=0)
    log = await whole_log(store, record.id)
    await store.maintain(expire_before=FAR_FUTURE)
    with pytest.raises(EventsGoneError):
        await store.read(record.id, 0, 10)
    assert await store.read(record.id, len(log) - 1, 10) == log[-1:]


async def test_concurrent_maintenance_keeps_logs_intact(store: Store) -> None:
    records = [await ended(store) for _ in range(3)]
    running = await claimed(store)
    async with asyncio.timeout(BOUND):
        await asyncio.gather(
            store.maintain(expire_before=0),
            store.maintain(expire_before=0),
            append(store, running.id, running.epoch, 3, TokenEvent("meanwhile")),
        )
    for record in records:
        assert types(await whole_log(store, record.id))[-1] == "done"


async def test_reader_follows_across_sealing(store: Store) -> None:
    record = await claimed(store)
    reader = asyncio.create_task(followed(store, record.id))
    await asyncio.sleep(0)
    await store.maintain(expire_before=FAR_FUTURE)
    await write(store, record, *[TokenEvent(str(number)) for number in range(400)], end="completed")
    await store.maintain(expire_before=0)
    assert positions(await reader) == list(range(1, 404))


async def test_expired_events_are_gone_but_the_state_and_the_last_event_stay(store: Store) -> None:
    record = await ended(store, TokenEvent("an answer"), message="a question")
    log = await whole_log(store, record.id)
    state = await store.turn_state(record.id)
    await store.maintain(expire_before=FAR_FUTURE)
    for after in range(len(log) - 1):
        with pytest.raises(EventsGoneError) as gone:
            await store.read(record.id, after, 10)
        assert (gone.value.after, gone.value.first_kept) == (after, len(log))
    with pytest.raises(EventsGoneError):
        await followed(store, record.id)
    assert await followed(store, record.id, len(log) - 1) == log[-1:]
    assert await followed(store, record.id, len(log)) == []
    assert await store.turn_state(record.id) == state
    found = await store.find_turn("ann", record.id)
    assert (found.first_kept, found.last_position, found.outcome) == (len(log), len(log), "completed")


async def test_only_turns_ended_before_the_time_expire(store: Store) -> None:
    record = await ended(store)
    running = await claimed(store)
    await store.maintain(expire_before=now_ms() - 60_000)
    assert positions(await whole_log(store, record.id)) == list(range(1, record.last_position + 1))
    await store.maintain(expire_before=FAR_FUTURE)
    assert positions(await whole_log(store, running.id)) == [1, 2]
    with pytest.raises(EventsGoneError):
        await store.read(record.id, 0, 10)


async def test_expired_events_stay_gone_after_a_crash(backend: StoreBackend) -> None:
    store = await backend.open()
    record = await ended(store)
    await store.maintain(expire_before=FAR_FUTURE)
    backend.crash()
    store = await backend.open()
    with pytest.raises(EventsGoneError):
        await store.read(record.id, 0, 10)
    assert types(await whole_log(store, record.id, record.last_position - 1)) == ["done"]


# Files


async def test_attachments_are_kept_until_the_turn_has_ended(backend: StoreBackend) -> None:
    store = await backend.open()
    files = [{"media_type": "image/png", "data": "iVBORw=="}]
    record = await started(store, options={"review": True, "attachments": files})
    backend.crash()
    store = await backend.open()
    assert (await queued_turns(store))[0].options == {"review": True, "attachments": files}
    await store.renew("worker")
    await write(store, await store.claim(record.id, "worker"), end="completed")
    assert (await store.find_turn("ann", record.id)).options == {"review": True}
    await store.maintain(expire_before=0)
    backend.crash()
    store = await backend.open()
    assert (await store.find_turn("ann", record.id)).options == {"review": True}


async def check_short_page(store: Store, turn_id: str, after: int, last_position: int) -> None:
    """Read pages of several lengths: a short one ends where the log ends."""
    for limit in (1, 3, 1_000, 10_000):
        page = await store.read(turn_id, after, limit)
        end = page[-1].position if page else after
        assert end == last_position or not is_short(page, limit), (after, limit, end)


async def test_reader_after_the_last_event_of_a_large_commit_gets_the_events_that_follow(store: Store) -> None:
    record = await claimed(store)
    for position in (3, 1_203, 2_403):
        await append(store, record.id, record.epoch, position, *[TokenEvent("x" * 1_000)] * 1_200)
    for after in (1_202, 2_402):
        events = await store.read(record.id, after, 1_000, record.epoch)
        assert positions(events)[:2] == [after + 1, after + 2]
    assert await store.read(record.id, 3_602, 1_000, record.epoch) == []
    for after in (1_195, 1_202, 2_395, 2_402, 3_595):
        await check_short_page(store, record.id, after, 3_602)


async def test_page_of_a_log_is_bounded_in_bytes_and_leaves_nothing_out(store: Store) -> None:
    record = await claimed(store)
    large, huge = "x" * 200_000, "y" * 3_000_000
    position = record.last_position
    for content in (*[large] * 20, huge, "small", huge, huge):
        await append(store, record.id, record.epoch, position + 1, TokenEvent(content))
        position += 1
    await append(store, record.id, record.epoch, position + 1, *[TokenEvent(large)] * 20)
    for is_sealed in (False, True):
        log, epoch = list[LoggedEvent](), None
        while events := await store.read(record.id, log[-1].position if log else 0, 1_000, epoch):
            assert len(events) == 1 or sum(len(logged.body) for logged in events[:-1]) < 1024 * 1024
            log += events
            epoch = events[-1].epoch
        assert positions(log)[:46] == list(range(1, 47))
        for after in positions(log):
            await check_short_page(store, record.id, after, log[-1].position)
        if not is_sealed:
            await append(store, record.id, record.epoch, log[-1].position + 1, done(record), end=True)
            await store.maintain(expire_before=0)


async def test_ended_turns_of_all_principals_are_listed_by_ascending_ids(store: Store) -> None:
    first, second = await ended(store), await ended(store, principal="bob")
    await claimed(store)
    assert [turn.id for turn in await store.ended_turns("", 1)] == [first.id]
    assert [turn.id for turn in await store.ended_turns(first.id, 10)] == [second.id]
    assert await store.ended_turns(second.id, 10) == []
