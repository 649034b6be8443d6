"""A schedule: a message to an agent, and the times at which it is sent."""

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from cronsim import CronSim, CronSimError
from msgspec import Struct
from msgspec.structs import replace

from turnwire.core.contracts.stores import Annotation
from turnwire.core.log.codec import ascii_json

MIN_EVERY_SECONDS = 10
Missed = Literal["run_once", "skip"]


@cache
def time_zone(name: str) -> ZoneInfo:
    """Return a time zone; the first time, it is read from a file."""
    return ZoneInfo(name)


class ScheduleError(ValueError):
    """The times of a schedule cannot be used. The message names the field."""


class Schedule(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message that is sent at the times of a cron expression, at an interval, or once.

    Exactly one of `cron`, `every` (seconds) and `at` (ms) is set. Cron times are those of `timezone`. Without a
    `session_id` each run begins a new session. With a `channel`, the answer goes to its user `user_id`. `missed` says
    what happens to times at which no process ran: the newest of them is made up for, or none is. Times up to
    `resumed_at` passed while the schedule was paused: they are never made up for. Times are in ms.
    """

    id: str
    principal: str
    message: str
    created_at: int
    name: str = ""
    cron: str | None = None
    every: int | None = None
    at: int | None = None
    timezone: str = "UTC"
    agent: str | None = None
    session_id: str | None = None
    channel: str | None = None
    user_id: str | None = None
    missed: Missed = "run_once"
    paused: bool = False
    resumed_at: int = 0

    @property
    def times(self) -> tuple[str | int | None, ...]:
        return self.cron, self.every, self.at, self.timezone

    def with_paused(self, paused: bool, now: int) -> "Schedule":
        """Return the schedule paused, or resumed: then only times after now are due."""
        if paused == self.paused:
            return self
        return replace(self, paused=paused, resumed_at=self.resumed_at if paused else now)

    def check(self) -> None:
        """Raise ScheduleError if there are no times, or more than one kind of them."""
        if sum(value is not None for value in (self.cron, self.every, self.at)) != 1:
            raise ScheduleError("cron: give exactly one of cron, every and at")
        if self.every is not None and self.every < MIN_EVERY_SECONDS:
            raise ScheduleError(f"every: must be at least {MIN_EVERY_SECONDS} seconds")
        if (self.channel is None) != (self.user_id is None):
            raise ScheduleError("user_id: a channel and its user are given together")
        try:
            zone = time_zone(self.timezone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ScheduleError(f"timezone: there is no {self.timezone!r}; an example is Europe/Berlin") from None
        if self.cron is not None:
            try:
                next(CronSim(self.cron, datetime.now(zone)))
            except CronSimError as error:
                raise ScheduleError(f"cron: {error}; an example is 0 9 * * mon-fri") from None
            except StopIteration:
                raise ScheduleError("cron: there is no such time in the next 50 years") from None

    def next_time(self, after: int) -> int | None:
        """Return the first time after another, or None if there is none."""
        if self.at is not None:
            return self.at if self.at > after else None
        if self.every is not None:
            return self._nth(max(0, after - self.created_at) // (self.every * 1000) + 1)
        return self._cron_time(after, is_reverse=False)

    def last_time(self, until: int) -> int | None:
        """Return the last time up to another, or None if there is none since the schedule was made or resumed."""
        if self.at is not None:
            found = self.at if self.at <= until else None
        elif self.every is not None:
            number = (until - self.created_at) // (self.every * 1000)
            found = self._nth(number) if number > 0 else None
        else:
            found = self._cron_time(until + 1, is_reverse=True)
        if found is None or found <= self.resumed_at:
            return None
        # A time that had passed when the schedule was made is not due, unless it is the only one.
        return found if self.at is not None or found > self.created_at else None

    def _nth(self, number: int) -> int:
        assert self.every is not None
        return self.created_at + number * self.every * 1000

    def _cron_time(self, start: int, *, is_reverse: bool) -> int | None:
        assert self.cron is not None
        # Whole seconds, up for a search backwards: the expression has minutes only.
        seconds = -(-start // 1000) if is_reverse else start // 1000
        moment = datetime.fromtimestamp(seconds, time_zone(self.timezone))
        try:
            found = next(CronSim(self.cron, moment, reverse=is_reverse))
        except StopIteration:
            return None
        return int(found.astimezone(UTC).timestamp() * 1000)


class ScheduleRun(Struct, frozen=True, omit_defaults=True):
    """The result for the last due time of a schedule: the id of the turn that was started, or an error."""

    due: int
    turn_id: str | None = None
    error: str | None = None


def annotation_of(schedule: Schedule, run: ScheduleRun | None = None) -> Annotation:
    """Return a schedule, or its last run, as it is stored; both are erased with the schedule's session."""
    return Annotation(
        kind="schedule" if run is None else "schedule_run",
        key=schedule.id,
        principal=schedule.principal,
        at=schedule.created_at if run is None else run.due,
        value=ascii_json(msgspec.to_builtins(run or schedule)).decode("ascii"),
        session_id=schedule.session_id,
    )


def read_schedules(annotations: Sequence[Annotation]) -> list[Schedule]:
    """Return stored schedules. May read files: not for the event loop."""
    schedules = [msgspec.json.decode(annotation.value, type=Schedule) for annotation in annotations]
    for schedule in schedules:
        time_zone(schedule.timezone)
    return schedules
