"""The scheduler over every store: each time is run once, by several processes and after kills."""

import asyncio
import itertools
from collections import Counter
from typing import Any

import pytest

from tests.contracts.turns import new_session_id, write
from turnwire.core.contracts.stores import Store, UnfinishedFilter
from turnwire.core.errors import AgentNotFoundError, StoreAwayError
from turnwire.core.ids import new_id
from turnwire.core.run.runner import TurnRequest, TurnRunner
from turnwire.scheduler.schedule import Schedule, ScheduleError, annotation_of
from turnwire.scheduler.scheduler import CONFIGURED, MAX_SCHEDULES, Scheduler

START = 1_800_000_000_000
MINUTE = 60_000
_CALLS = 14


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def schedule(**fields: Any) -> Schedule:
    times = {} if {"cron", "at", "every"} & fields.keys() else {"every": 60}
    return Schedule(**{"id": "", "principal": "ann", "message": "hello", "created_at": START, **times, **fields})


def scheduler(store: Store, clock: Clock) -> Scheduler:
    """Return a scheduler that starts turns as a server does; nothing runs them."""
    runner = TurnRunner(store, {"echo": object()})  # type: ignore[dict-item]

    async def start(schedule: Schedule, key: str) -> str | None:
        request = TurnRequest(
            principal=schedule.principal,
            message=schedule.message,
            session_id=schedule.session_id,
            agent=schedule.agent,
            idempotency_key=key,
        )
        return (await runner.start(request)).record.id

    return Scheduler(store, start, clock)


async def messages(store: Store, principal: str = "ann") -> list[str]:
    return [turn.message for turn in await store.list_turns(principal, limit=1000)]


async def test_turn_is_started_when_it_is_due_and_not_before(store: Store, clock: Clock) -> None:
    service = scheduler(store, clock)
    added = await service.add(schedule())
    clock.now += MINUTE - 1
    assert await service.start_due() == START + MINUTE
    assert await messages(store) == []
    clock.now += 1
    assert await service.start_due() == START + 2 * MINUTE
    assert await service.start_due() == START + 2 * MINUTE
    assert await messages(store) == ["hello"]
    run = await service.last_run(added)
    assert run is not None
    (turn,) = await store.list_turns("ann")
    assert (run.due, run.turn_id, run.error) == (START + MINUTE, turn.id, None)


async def test_time_is_run_once_by_processes_that_are_killed_at_any_store_call(store: Store, clock: Clock) -> None:
    await scheduler(store, clock).add(schedule(id="a", message="a"))
    await scheduler(store, clock).add(schedule(id="b", cron="* * * * *", message="b"))
    kills = minutes = survivals = 0
    for call, is_after in [*itertools.product(range(_CALLS), (False, True))] * 2:
        clock.now += MINUTE
        minutes += 1
        # One of two processes is killed at each of its calls in turn, and the other one call later.
        processes = [KilledStore(store, call, is_after=is_after), KilledStore(store, call + 1, is_after=not is_after)]
        ends = await asyncio.gather(*(run_until_killed(process, clock) for process in processes))
        kills += sum(ends)
        survivals += not any(ends)
        # What both have left is made up for in the same minute.
        await asyncio.gather(*(scheduler(store, clock).start_due() for _ in range(2)))
        await end_all(store)
    assert kills >= 50
    assert survivals  # No process makes more calls than are tried.
    assert Counter(await messages(store)) == {"a": minutes, "b": minutes}


async def run_until_killed(process: "KilledStore", clock: Clock) -> bool:
    try:
        await scheduler(process, clock).start_due()  # type: ignore[arg-type]
    except Killed:
        return True
    return False


async def end_all(store: Store) -> None:
    """End the queued turns, so that they do not reach the principal's limit."""
    await store.renew("worker")
    for record in await store.unfinished(where=UnfinishedFilter(principal="ann")):
        await write(store, await store.claim(record.id, "worker"), end="completed")


class Killed(BaseException):
    pass


class KilledStore:
    """A store whose process is killed before or after its n-th call takes effect."""

    def __init__(self, store: Store, calls: int, *, is_after: bool) -> None:
        self._store = store
        self._calls = calls
        self._is_after = is_after

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if not asyncio.iscoroutinefunction(method):
            return method

        async def call(*args: Any, **options: Any) -> Any:
            self._calls -= 1
            if self._calls < 0 and not self._is_after:
                raise Killed
            result = await method(*args, **options)
            if self._calls < 0:
                raise Killed
            return result

        return call


@pytest.mark.parametrize(("missed", "expected"), [("run_once", ["hello"]), ("skip", [])])
async def test_missed_times_are_made_up_for_once_or_skipped(
    store: Store, clock: Clock, missed: Any, expected: list[str]
) -> None:
    service = scheduler(store, clock)
    added = await service.add(schedule(cron="0 * * * *", missed=missed))
    clock.now += 5 * 60 * MINUTE + 10 * MINUTE
    await service.start_due()
    await service.start_due()
    assert await messages(store) == expected
    run = await service.last_run(added)
    assert run is not None
    assert (run.error is None) == bool(expected)


async def test_time_that_is_just_over_is_not_missed(store: Store, clock: Clock) -> None:
    service = scheduler(store, clock)
    await service.add(schedule(cron="0 * * * *", missed="skip"))
    clock.now = START - START % (60 * MINUTE) + 60 * MINUTE + 59_000
    await service.start_due()
    assert await messages(store) == ["hello"]


async def test_failing_store_is_tried_again_and_a_refusal_is_recorded(store: Store, clock: Clock) -> None:
    failures: list[Exception] = [StoreAwayError("away"), AgentNotFoundError("gone")]

    async def start(schedule: Schedule, key: str) -> str | None:
        raise failures[0]

    service = Scheduler(store, start, clock)
    added = await service.add(schedule())
    clock.now += MINUTE
    await service.start_due()
    assert await service.last_run(added) is None
    failures.pop(0)
    await service.start_due()
    run = await service.last_run(added)
    assert run is not None
    assert run.error == "no agent has the id 'gone'"


async def test_turn_that_another_process_has_to_start_stays_due(store: Store, clock: Clock) -> None:
    async def start(schedule: Schedule, key: str) -> str | None:
        return None

    added = await Scheduler(store, start, clock).add(schedule())
    clock.now += MINUTE
    await Scheduler(store, start, clock).start_due()
    await scheduler(store, clock).start_due()
    assert await messages(store) == ["hello"]
    assert await scheduler(store, clock).last_run(added) is not None


async def test_paused_schedule_is_not_run(store: Store, clock: Clock) -> None:
    service = scheduler(store, clock)
    await service.add(schedule(id="p", paused=True))
    clock.now += MINUTE
    assert await service.start_due() is None
    assert await messages(store) == []


@pytest.mark.parametrize("missed", ["run_once", "skip"])
@pytest.mark.parametrize(
    "times", [{"every": 60}, {"cron": "* * * * *"}, {"at": START + 2 * MINUTE}], ids=["every", "cron", "at"]
)
async def test_times_that_passed_while_a_schedule_was_paused_are_not_made_up_for(
    store: Store, clock: Clock, times: dict[str, Any], missed: Any
) -> None:
    service = scheduler(store, clock)
    added = await service.add(schedule(**times, missed=missed))
    clock.now += MINUTE
    await service.start_due()
    before = await messages(store)
    paused = await service.add(added.with_paused(True, clock.now))
    clock.now += 5 * MINUTE
    await service.start_due()
    resumed = await service.add(paused.with_paused(False, clock.now))
    assert resumed.next_time(clock.now) == (None if "at" in times else clock.now + MINUTE)
    await service.start_due()
    assert await messages(store) == before
    clock.now += MINUTE
    await service.start_due()
    assert len(await messages(store)) == len(before) + ("at" not in times)


async def test_resuming_a_schedule_that_is_not_paused_changes_nothing(store: Store, clock: Clock) -> None:
    service = scheduler(store, clock)
    added = await service.add(schedule())
    clock.now += MINUTE
    assert await service.add(added.with_paused(False, clock.now)) == added
    await service.start_due()
    assert await messages(store) == ["hello"]


async def test_schedule_of_a_session_goes_with_it(store: Store, clock: Clock) -> None:
    service = scheduler(store, clock)
    session_id = await new_session_id(store)
    added = await service.add(schedule(session_id=session_id))
    await store.delete_session("ann", session_id)
    assert await service.find("ann", added.id) is None
    clock.now += MINUTE
    await service.start_due()
    assert await messages(store) == []


async def test_schedules_belong_to_their_principal_and_are_limited(store: Store, clock: Clock) -> None:
    service = scheduler(store, clock)
    added = [await service.add(schedule()) for _ in range(3)]
    assert await service.list("ann") == sorted(added, key=lambda each: each.id, reverse=True)
    assert await service.list("bob") == []
    assert await service.find("bob", added[0].id) is None
    for _ in range(MAX_SCHEDULES - 3):
        await store.annotate(annotation_of(schedule(id=new_id())))
    with pytest.raises(ScheduleError, match="you have 100 schedules"):
        await service.add(schedule())


async def test_schedule_that_is_over_makes_room_for_another(store: Store, clock: Clock) -> None:
    service = scheduler(store, clock)
    over = await service.add(schedule(at=START))
    await service.start_due()
    for _ in range(MAX_SCHEDULES - 1):
        await store.annotate(annotation_of(schedule(id=new_id())))
    await service.add(schedule(at=START + MINUTE))
    assert await service.find("ann", over.id) is None
    assert await service.last_run(over) is None
    clock.now += MINUTE  # The other one is due, but has not run.
    with pytest.raises(ScheduleError, match="you have 100 schedules"):
        await service.add(schedule())


async def test_schedule_that_is_over_is_removed_later(store: Store, clock: Clock) -> None:
    service = scheduler(store, clock)
    once = await service.add(schedule(at=START))
    configured = await service.add(schedule(id=f"{CONFIGURED}once", at=START))
    hourly = await service.add(schedule(every=3_600))
    for days, kept in ((0, True), (7, True), (8, False)):
        clock.now = START + days * 24 * 60 * MINUTE
        await service.start_due()
        assert (await service.find("ann", once.id) is not None) is kept
    assert await service.find("ann", configured.id) == configured
    assert await service.find("ann", hourly.id) == hourly
    assert len(await messages(store)) == 4  # Twice the hourly one.


async def test_schedules_of_the_settings_are_kept_changed_and_removed(store: Store, clock: Clock) -> None:
    service = scheduler(store, clock)
    named = [schedule(id=f"{CONFIGURED}{name}", name=name, created_at=0, cron="* * * * *") for name in ("a", "b")]
    own = await service.add(schedule(cron="0 0 1 1 *"))
    await service.configure("ann", named)
    await service.start_due()
    assert await messages(store) == []  # A new one is not due for the past.
    clock.now += MINUTE
    await service.configure("ann", named[:1])
    await service.start_due()
    assert len(await messages(store)) == 1
    assert {each.id for each in await service.list("ann")} == {own.id, named[0].id}


async def test_schedule_of_the_settings_stays_paused_over_a_restart(store: Store, clock: Clock) -> None:
    service = scheduler(store, clock)
    configured = schedule(id=f"{CONFIGURED}a", created_at=0, cron="* * * * *")
    await service.configure("ann", [configured])
    (added,) = await service.list("ann")
    await service.add(added.with_paused(True, clock.now))
    clock.now += 5 * MINUTE
    await service.configure("ann", [configured])
    await service.start_due()
    (paused,) = await service.list("ann")
    assert paused.paused
    await service.add(paused.with_paused(False, clock.now))
    await service.configure("ann", [configured])
    await service.start_due()
    assert await messages(store) == []


async def test_schedule_of_the_settings_with_other_times_is_not_due_for_the_past(store: Store, clock: Clock) -> None:
    service = scheduler(store, clock)
    await service.configure("ann", [schedule(id=f"{CONFIGURED}a", created_at=0, cron="0 0 1 1 *")])
    clock.now += 5 * MINUTE
    await service.configure("ann", [schedule(id=f"{CONFIGURED}a", created_at=0, cron="* * * * *")])
    await service.start_due()
    assert await messages(store) == []
    clock.now += MINUTE
    await service.start_due()
    assert await messages(store) == ["hello"]
