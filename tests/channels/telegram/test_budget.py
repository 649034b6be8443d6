"""The budget of a chat, with a clock that the test drives."""

import asyncio

import pytest

from turnwire.channels.telegram.rate_limits import Budgets, Clock


class Driven(Clock):
    """Time passes when somebody sleeps, and when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.time = 1000.0

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.time += seconds
        await asyncio.sleep(0)


@pytest.fixture
def driven() -> Driven:
    return Driven()


async def waits(driven: Driven, budgets: Budgets, chat_id: int, count: int) -> list[float]:
    began = driven.time
    times: list[float] = []
    for _ in range(count):
        await budgets.of(chat_id).wait()
        times.append(round(driven.time - began, 1))
    return times


async def test_a_person_gets_three_at_once_and_then_one_a_second(driven: Driven) -> None:
    assert await waits(driven, Budgets(driven), 7, 6) == [0, 0, 0, 1, 2, 3]


async def test_a_group_gets_twenty_a_minute(driven: Driven) -> None:
    times = await waits(driven, Budgets(driven), -1001, 21)
    assert times[19] == 0
    assert 60 <= times[20] < 64


async def test_all_chats_together_get_thirty_a_second(driven: Driven) -> None:
    budgets = Budgets(driven)
    began = driven.time
    for chat_id in range(1, 31):
        await budgets.of(chat_id).wait()
    assert driven.time == began
    await budgets.of(31).wait()
    assert driven.time - began >= 1


async def test_topics_and_kinds_of_calls_share_one_budget(driven: Driven) -> None:
    budget = Budgets(driven).of(7)
    assert budget.take()
    assert budget.take_typing()
    assert budget.take()
    assert not budget.take()
    assert not budget.take_typing()


async def test_drafts_have_a_bucket_of_their_own(driven: Driven) -> None:
    budget = Budgets(driven).of(7)
    taken = sum(budget.take_draft() for _ in range(25))
    assert taken == 20
    driven.time += 5.3
    assert sum(budget.take_draft() for _ in range(25)) == 20
    driven.time += 5.3
    assert not budget.take_draft()
    driven.time += 21
    assert budget.take_draft()
    # And leave that of messages alone.
    assert budget.take()


async def test_a_flood_wait_closes_the_chat_for_everything_and_other_chats_for_nothing(driven: Driven) -> None:
    budgets = Budgets(driven)
    budgets.of(7).close(30)
    assert not budgets.of(7).take()
    assert not budgets.of(7).take_typing()
    assert not budgets.of(7).take_draft()
    assert budgets.of(8).take()
    began = driven.time
    await budgets.of(7).wait()
    assert 30 < driven.time - began <= 31.1


async def test_a_shorter_flood_wait_does_not_end_a_longer_one(driven: Driven) -> None:
    budget = Budgets(driven).of(7)
    budget.close(30)
    budget.close(1)
    assert budget.closed_for > 29


async def test_what_must_arrive_goes_first(driven: Driven) -> None:
    budget = Budgets(driven).of(7)
    for _ in range(3):
        await budget.wait()
    order: list[int] = []

    async def durable(number: int) -> None:
        await budget.wait()
        order.append(number)

    waiting = [asyncio.create_task(durable(number)) for number in range(3)]
    await asyncio.sleep(0)
    # There may be room for one more by now, but somebody waits for it.
    driven.time += 1.5
    assert not budget.take()
    await asyncio.gather(*waiting)
    assert order == [0, 1, 2]
