"""The retry delays: growth, cap, jitter, and the sleep they are waited with."""

import pytest

from turnwire.core.backoff import Backoff


def test_delays_grow_by_the_factor_up_to_the_longest() -> None:
    backoff = Backoff(first=0.5, longest=4)
    assert [backoff.delay(failures) for failures in (1, 2, 3, 4, 5)] == [0.5, 1, 2, 4, 4]


@pytest.mark.parametrize("failures", [0, 1])
def test_delay_without_a_second_failure_is_the_first(failures: int) -> None:
    assert Backoff(first=3, longest=10).delay(failures) == 3


def test_delay_after_very_many_failures_is_the_longest() -> None:
    assert Backoff(first=1, longest=60).delay(1_000_000) == 60


def test_jitter_spreads_a_delay_in_both_directions() -> None:
    backoff = Backoff(first=10, longest=10, jitter=0.3)
    assert backoff.delay(1, uniform=lambda low, high: low) == pytest.approx(7)
    assert backoff.delay(1, uniform=lambda low, high: high) == pytest.approx(13)
    assert all(7 <= backoff.delay(1) <= 13 for _ in range(100))


async def test_wait_sleeps_for_the_delay() -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    backoff = Backoff(first=1, longest=3, factor=2.5)
    for failures in (1, 2, 3):
        await backoff.wait(failures, sleep)
    assert slept == [1, 2.5, 3]
