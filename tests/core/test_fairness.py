"""Fair slots: bounded for each principal, fair between principals, refused before work is done."""

import asyncio
from collections.abc import Callable

import pytest

from tests.contracts.turns import BOUND
from tests.core.desk import settle
from turnwire.core.errors import TooManyRequestsError
from turnwire.core.people.fairness import FairSlots


class Desk:
    """Requests that hold a slot until they are let go."""

    def __init__(self, slots: FairSlots) -> None:
        self._slots = slots
        self.served: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._done: dict[str, asyncio.Event] = {}

    async def ask(self, name: str) -> None:
        self._done[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._hold(name))
        await settle()

    async def _hold(self, name: str) -> None:
        async with self._slots.slot(name[0]):
            self.served.append(name)
            await self._done[name].wait()

    async def finish(self, name: str) -> None:
        self._done[name].set()
        await asyncio.wait_for(self.tasks[name], BOUND)
        await settle()


@pytest.fixture
def make() -> Callable[..., Desk]:
    return lambda **limits: Desk(FairSlots("searches", **limits))


async def test_principal_with_many_requests_delays_another_by_one(make: Callable[..., Desk]) -> None:
    desk = make(slots=1, each=1, waiting=100)
    for number in range(20):
        await desk.ask(f"a{number}")
    await desk.ask("b0")
    await desk.ask("c0")
    assert desk.served == ["a0"]
    for name in ("a0", "a1", "b0", "c0"):
        await desk.finish(name)
    assert desk.served == ["a0", "a1", "b0", "c0", "a2"]


async def test_free_slots_are_not_taken_by_one_principal(make: Callable[..., Desk]) -> None:
    desk = make(slots=4, each=2, waiting=100)
    for name in ("a0", "a1", "a2", "b0"):
        await desk.ask(name)
    assert desk.served == ["a0", "a1", "b0"]
    await desk.finish("a1")
    assert desk.served == ["a0", "a1", "b0", "a2"]


async def test_too_many_waiting_requests_are_refused_for_their_principal_only(make: Callable[..., Desk]) -> None:
    desk = make(slots=1, each=1, waiting=2)
    for name in ("a0", "a1", "a2", "a3", "b0"):
        await desk.ask(name)
    with pytest.raises(TooManyRequestsError) as refused:
        await desk.tasks["a3"]
    assert refused.value.retry_after_seconds > 0
    for name in ("a0", "a1", "b0", "a2"):
        await desk.finish(name)
    assert desk.served == ["a0", "a1", "b0", "a2"]


async def test_cancelled_request_leaves_its_place_and_its_slot(make: Callable[..., Desk]) -> None:
    desk = make(slots=1, each=1, waiting=2)
    for name in ("a0", "a1", "b0"):
        await desk.ask(name)
    desk.tasks["a1"].cancel()
    await settle()
    # This one is cancelled in the moment in which it gets the slot.
    desk._done["a0"].set()
    desk.tasks["b0"].cancel()
    await settle()
    await desk.ask("c0")
    assert desk.served == ["a0", "c0"]
    await desk.finish("c0")


async def test_principal_rests_as_long_as_it_has_worked_and_others_do_not_wait_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slots = FairSlots("searches", slots=1, each=1, waiting=9, rests=True)
    loop, rests = asyncio.get_running_loop(), list[tuple[float, Callable[[str], None], str]]()
    async with slots.slot("a"):
        again = asyncio.create_task(slots.take("a"))
        await settle()
        now = loop.time()
        monkeypatch.setattr(loop, "time", lambda: now + 60)
        monkeypatch.setattr(loop, "call_later", lambda *arguments: rests.append(arguments))
    monkeypatch.undo()
    await asyncio.wait_for(slots.take("b"), BOUND)
    slots.give_back("b")
    await settle()
    assert not again.done()
    ((seconds, end_rest, principal),) = rests
    assert seconds >= 60
    end_rest(principal)
    await asyncio.wait_for(again, BOUND)
