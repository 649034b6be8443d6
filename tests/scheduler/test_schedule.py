"""The times of schedules."""

from datetime import UTC, datetime
from typing import Any

import pytest

from turnwire.scheduler.schedule import Schedule, ScheduleError, annotation_of, read_schedules

MIDNIGHT = int(datetime(2027, 3, 27, tzinfo=UTC).timestamp() * 1000)
HOUR = 3_600_000


def schedule(**fields: Any) -> Schedule:
    return Schedule(**{"id": "s1", "principal": "ann", "message": "hello", "created_at": MIDNIGHT, **fields})


def times(of: Schedule, count: int, after: int = MIDNIGHT) -> list[str]:
    found: list[str] = []
    for _ in range(count):
        time = of.next_time(after)
        assert time is not None
        found.append(datetime.fromtimestamp(time / 1000, UTC).strftime("%d %H:%M"))
        after = time
    return found


def test_cron_times_are_those_of_the_time_zone_over_a_change_of_clocks() -> None:
    # In Berlin, the clocks are changed on 28 March 2027.
    assert times(schedule(cron="0 9 * * *", timezone="Europe/Berlin"), 3) == ["27 08:00", "28 07:00", "29 07:00"]


def test_interval_counts_from_the_making_of_the_schedule() -> None:
    every = schedule(every=5400)
    assert times(every, 3) == ["27 01:30", "27 03:00", "27 04:30"]
    assert every.next_time(MIDNIGHT + 5_399_999) == MIDNIGHT + 5_400_000
    assert every.next_time(MIDNIGHT + 5_400_000) == MIDNIGHT + 10_800_000
    assert every.last_time(MIDNIGHT + 5_399_999) is None


def test_single_time_comes_once_and_is_due_even_if_it_has_passed_already() -> None:
    once = schedule(at=MIDNIGHT - 1)
    assert once.next_time(MIDNIGHT) is None
    assert once.last_time(MIDNIGHT) == MIDNIGHT - 1
    assert schedule(at=MIDNIGHT + 1).last_time(MIDNIGHT) is None


@pytest.mark.parametrize("fields", [{"cron": "*/5 * * * *"}, {"every": 300}, {"at": MIDNIGHT + 300_000}], ids=str)
def test_last_time_is_the_one_that_came_next(fields: dict[str, Any]) -> None:
    of = schedule(**fields)
    time = of.next_time(MIDNIGHT)
    assert time is not None
    assert time == MIDNIGHT + 300_000
    assert of.last_time(time - 1) is None
    assert of.last_time(time) == time
    assert of.last_time(time + 1) == time


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "cron: give exactly one"),
        ({"every": 60, "at": MIDNIGHT}, "cron: give exactly one"),
        ({"every": 9}, "every: must be at least 10 seconds"),
        ({"every": -60}, "every: must be at least 10 seconds"),
        ({"cron": "61 * * * *"}, "cron: "),
        ({"cron": "0 0 30 2 *"}, "cron: "),
        ({"cron": "0 9 * * *", "timezone": "Mars/Olympus"}, "timezone: there is no"),
        ({"cron": "0 9 * * *", "timezone": "../../etc/passwd"}, "timezone: there is no"),
        ({"every": 60, "channel": "telegram"}, "user_id: "),
    ],
)
def test_unusable_times_are_refused_and_name_their_field(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        schedule(**fields).check()


def test_schedule_is_read_as_it_was_stored() -> None:
    stored = schedule(cron="0 9 * * *", message="Grüße 👋", session_id="x", missed="skip", paused=True)
    assert read_schedules([annotation_of(stored)]) == [stored]
