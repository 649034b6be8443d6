"""Rate limits, with a clock that only the test moves."""

import asyncio

import pytest

from turnwire.channels.telegram.client import Budgets, Clock


class ManualClock(Clock):
    """A clock that moves when a task sleeps, and when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.time = 1000.0

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.time += seconds
        await asyncio.sleep(0)


@pytest.fixture
def manual_clock() -> ManualClock:
    return ManualClock()


async def waits(manual_clock: ManualClock, budgets: Budgets, chat_id: int, count: int) -> list[float]:
    began = manual_clock.time
    times: list[float] = []
    for _ in range(count):
        await budgets.of(chat_id).wait()
        times.append(round(manual_clock.time - began, 1))
    return times


async def test_private_chat_gets_three_calls_at_once_then_one_a_second(manual_clock: ManualClock) -> None:
    assert await waits(manual_clock, Budgets(manual_clock), 7, 6) == [0, 0, 0, 1, 2, 3]


async def test_group_gets_twenty_calls_a_minute(manual_clock: ManualClock) -> None:
    times = await waits(manual_clock, Budgets(manual_clock), -1001, 21)
    assert times[19] == 0
    assert 60 <= times[20] < 64


async def test_all_chats_together_get_thirty_calls_a_second(manual_clock: ManualClock) -> None:
    budgets = Budgets(manual_clock)
    began = manual_clock.time
    for chat_id in range(1, 31):
        await budgets.of(chat_id).wait()
    assert manual_clock.time == began
    await budgets.of(31).wait()
    assert manual_clock.time - began >= 1


async def test_topics_and_kinds_of_calls_share_one_budget(manual_clock: ManualClock) -> None:
    budget = Budgets(manual_clock).of(7)
    assert budget.take()
    assert budget.take_typing()
    assert budget.take()
    assert not budget.take()
    assert not budget.take_typing()


async def test_drafts_have_their_own_limit(manual_clock: ManualClock) -> None:
    budget = Budgets(manual_clock).of(7)
    taken = sum(budget.take_draft() for _ in range(25))
    assert taken == 20
    manual_clock.time += 5.3
    assert sum(budget.take_draft() for _ in range(25)) == 20
    manual_clock.time += 5.3
    assert not budget.take_draft()
    manual_clock.time += 21
    assert budget.take_draft()
    # And leave that of messages alone.
    assert budget.take()


async def test_flood_wait_closes_its_chat_only(manual_clock: ManualClock) -> None:
    budgets = Budgets(manual_clock)
    budgets.of(7).close(30)
    assert not budgets.of(7).take()
    assert not budgets.of(7).take_typing()
    assert not budgets.of(7).take_draft()
    assert budgets.of(8).take()
    began = manual_clock.time
    await budgets.of(7).wait()
    assert 30 < manual_clock.time - began <= 31.1


async def test_shorter_flood_wait_does_not_end_a_longer_one(manual_clock: ManualClock) -> None:
    budget = Budgets(manual_clock).of(7)
    budget.close(30)
    budget.close(1)
    assert budget.closed_for > 29


async def test_cosmetic_call_yields_to_waiting_durable_calls(manual_clock: ManualClock) -> None:
    budget = Budgets(manual_clock).of(7)
    for _ in range(3):
        await budget.wait()
    order: list[int] = []

    async def durable(number: int) -> None:
        await budget.wait()
        order.append(number)

    waiting = [asyncio.create_task(durable(number)) for number in range(3)]
    await asyncio.sleep(0)
    # There may be room for one more call by now, but a durable one waits for it.
    manual_clock.time += 1.5
    assert not budget.take()
    await asyncio.gather(*waiting)
    assert order == [0, 1, 2]
