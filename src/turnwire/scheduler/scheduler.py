"""The service that starts the turns of schedules when they are due, and the tool by which an agent adds one.

Every process runs it. A turn is started with an idempotency key that is made of the schedule and the time, so it is
started once however many processes find it due, and however often one of them is killed in between. Afterwards the
time and its turn are recorded beside the schedule. If a process dies before that, the next one finds the time due
again, and gets the turn that was started.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Annotated

import msgspec
from msgspec.structs import replace
from pydantic import Field

from turnwire.core.contracts.stores import Store
from turnwire.core.errors import NotFoundError, ShuttingDownError, StoreError, ToolError, TurnwireError
from turnwire.core.ids import new_id
from turnwire.core.log.codec import now_ms, time_text
from turnwire.core.log.scope import current_turn
from turnwire.scheduler.schedule import Schedule, ScheduleError, ScheduleRun, annotation_of, read_schedules
from turnwire.tools import Tool, tool

logger = logging.getLogger("turnwire.scheduler")

MAX_SCHEDULES = 100
"""The most schedules of one principal."""
_LONGEST_WAIT_SECONDS = 15.0
"""The longest time between two looks at the store: another process may have added a schedule meanwhile."""
_LATE_MS = 60_000
"""A time that is older counts as missed."""
_KEEP_MS = 7 * 86_400_000
"""A schedule that is over is shown for this long."""
_PAGE = 200
_MAX_FOLLOW_UP_MINUTES = 60 * 24 * 365

CONFIGURED = "settings:"
"""The prefix of the ids of schedules that come from the settings."""

StartTurn = Callable[[Schedule, str], Awaitable[str | None]]
"""Start the turn of a schedule with an idempotency key, and return its id; None if another process has to."""


class Scheduler:
    """Keeps schedules in the store, and starts their turns with `start`."""

    def __init__(self, store: Store, start: StartTurn, clock: Callable[[], int] = now_ms) -> None:
        self._store = store
        self._start = start
        self._clock = clock
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        self._task = asyncio.create_task(self._run(), name="scheduler")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    # Schedules

    async def add(self, schedule: Schedule) -> Schedule:
        """Keep a schedule, with a new id unless it has one. Raises ScheduleError, SessionNotFoundError, StoreError."""
        await asyncio.to_thread(schedule.check)
        if not schedule.id:
            await self._make_room(schedule.principal)
            schedule = replace(schedule, id=new_id())
        await self._store.annotate(annotation_of(schedule))
        self._changed.set()
        return schedule

    async def _make_room(self, principal: str) -> None:
        """Remove the oldest schedule that is over, if a principal has as many as possible. Raises ScheduleError."""
        known = await self.list(principal)
        if len(known) < MAX_SCHEDULES:
            return
        for schedule in reversed(known):
            if await self._is_over(schedule, self._clock()):
                return await self.remove(schedule)
        raise ScheduleError(f"message: you have {MAX_SCHEDULES} schedules already; remove one")

    async def _is_over(self, schedule: Schedule, now: int) -> bool:
        """Return True if a schedule has run for the last time; one of the settings would be added and run again."""
        if schedule.next_time(now) is not None or schedule.id.startswith(CONFIGURED):
            return False
        due, run = schedule.last_time(now), await self.last_run(schedule)
        return due is None or (run is not None and run.due >= due)

    async def configure(self, principal: str, schedules: Sequence[Schedule]) -> None:
        """Keep these schedules of the settings, and remove those that are not there any more. Raises StoreError."""
        known = {schedule.id: schedule for schedule in await self.list(principal) if schedule.id.startswith(CONFIGURED)}
        for schedule in schedules:
            await self.add(_with_progress(schedule, known.get(schedule.id), self._clock()))
        for schedule_id in known.keys() - {schedule.id for schedule in schedules}:
            await self.remove(known[schedule_id])

    async def list(self, principal: str) -> list[Schedule]:
        """Return the schedules of a principal, newest first."""
        found = await self._store.list_annotations("schedule", principal, limit=MAX_SCHEDULES)
        return await asyncio.to_thread(read_schedules, found)

    async def find(self, principal: str, schedule_id: str) -> Schedule | None:
        annotation = await self._store.find_annotation("schedule", schedule_id)
        if annotation is None or annotation.principal != principal:
            return None
        return (await asyncio.to_thread(read_schedules, [annotation]))[0]

    async def remove(self, schedule: Schedule) -> None:
        for kind in ("schedule", "schedule_run"):
            await self._store.remove_annotations(kind, schedule.principal, key=schedule.id)

    async def last_run(self, schedule: Schedule) -> ScheduleRun | None:
        annotation = await self._store.find_annotation("schedule_run", schedule.id)
        return msgspec.json.decode(annotation.value, type=ScheduleRun) if annotation else None

    # Due times

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            seconds = _LONGEST_WAIT_SECONDS
            try:
                next_due = await self.start_due()
                if next_due is not None:
                    seconds = min(seconds, max(0.0, (next_due - self._clock()) / 1000))
            except StoreError as error:
                logger.warning("schedules could not be read: %s", error)
            except Exception:
                logger.exception("schedules could not be run")
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._changed.wait()

    async def start_due(self) -> int | None:
        """Start the turns that are due, and return the next time at which one is. Raises StoreError."""
        next_times: list[int] = []
        async for schedule in self._all():
            if schedule.paused:
                continue
            now = self._clock()
            await self._start_if_due(schedule, now)
            if (next_time := schedule.next_time(now)) is not None:
                next_times.append(next_time)
        return min(next_times, default=None)

    async def _all(self) -> AsyncIterator[Schedule]:
        before: str | None = None
        while page := await self._store.list_annotations("schedule", None, before=before, limit=_PAGE):
            for schedule in await asyncio.to_thread(read_schedules, page):
                yield schedule
            before = page[-1].key

    async def _start_if_due(self, schedule: Schedule, now: int) -> None:
        due = schedule.last_time(now)
        if due is None:
            return
        run = await self.last_run(schedule)
        if run is not None and run.due >= due:
            if now - due > _KEEP_MS and await self._is_over(schedule, now):
                await self.remove(schedule)
            return
        if schedule.missed == "skip" and now - due > _LATE_MS:
            await self._record(schedule, ScheduleRun(due, error="no process ran at that time"))
            return
        try:
            turn_id = await self._start(schedule, f"schedule:{schedule.id}:{due}")
        except (StoreError, ShuttingDownError) as error:
            logger.warning("the schedule %s is tried again: %s", schedule.id, error)
        except TurnwireError as error:
            logger.warning("the schedule %s could not be run: %s", schedule.id, error)
            await self._record(schedule, ScheduleRun(due, error=str(error)))
        else:
            if turn_id is not None:
                await self._record(schedule, ScheduleRun(due, turn_id))

    async def _record(self, schedule: Schedule, run: ScheduleRun) -> None:
        with suppress(NotFoundError):  # The session was deleted, and the schedule with it.
            await self._store.annotate(annotation_of(schedule, run))


def _with_progress(schedule: Schedule, known: Schedule | None, now: int) -> Schedule:
    """Return a schedule of the settings with the state of the stored one: its creation time, and whether it is paused.

    A new schedule, or one with other times, counts as created now, so that no earlier time is due.
    """
    if known is None or known.times != schedule.times:
        return replace(schedule, created_at=now, paused=known is not None and known.paused)
    return replace(schedule, created_at=known.created_at, paused=known.paused, resumed_at=known.resumed_at)


def follow_up_tool(scheduler: Scheduler, store: Store) -> Tool:
    """Return the tool `schedule_follow_up`, which sends a message into the session of the turn that calls it.

    A person must approve each call.
    """

    @tool(needs_approval=True)
    async def schedule_follow_up(
        message: Annotated[str, Field(min_length=1, max_length=10_000)],
        in_minutes: Annotated[float, Field(gt=0, le=_MAX_FOLLOW_UP_MINUTES)],
    ) -> str:
        """Send yourself a message in this conversation later, for example to check on something."""
        turn = current_turn()
        records = await store.unfinished(turn.session_id) if turn else []
        record = next((record for record in records if turn and record.id == turn.turn_id), None)
        if record is None:
            raise ToolError("a follow-up can be scheduled in a running turn only")
        now = now_ms()
        at = now + int(in_minutes * 60_000)
        try:
            await scheduler.add(
                Schedule(
                    id="",
                    principal=record.principal,
                    message=message,
                    created_at=now,
                    name="follow-up",
                    at=at,
                    agent=record.agent,
                    session_id=record.session_id,
                )
            )
        except ScheduleError as error:
            raise ToolError(str(error)) from error
        return f"The message will be sent at {time_text(at)}."

    return schedule_follow_up
