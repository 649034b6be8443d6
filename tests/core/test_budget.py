"""Limits of a turn: steps and tokens, counted for every agent."""

import asyncio
from contextlib import suppress

import pytest

from tests.contracts.turns import ended
from tests.core.desk import AgentEvents, Desk, Gate, open_desk, settle, wait_until_suspended
from turnwire.core.contracts.stores import Store
from turnwire.core.errors import AgentError, BudgetSpentError, TurnwireError
from turnwire.core.journal.waits import approval
from turnwire.core.log.emit import emit
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    CitationEvent,
    ErrorEvent,
    Event,
    ReasoningEvent,
    ResponseEvent,
    SearchEvent,
    TokenEvent,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
)
from turnwire.core.log.turns import Turn, TurnRecord
from turnwire.core.people.budget import DAY_MS, Spending
from turnwire.stores.memory import MemoryStore


def call(number: int) -> ToolCallEvent:
    return ToolCallEvent(f"c{number}", "find", {})


def search(number: int, phase: str = "started") -> SearchEvent:
    return SearchEvent(f"s{number}", phase, "search", "tea")  # type: ignore[arg-type]


async def failure_code(desk: Desk, turn: TurnRecord) -> tuple[str, list[Event]]:
    """Return the error code of a failed turn, and the events before the error."""
    *events, error, done = await desk.events(turn)
    assert isinstance(error, ErrorEvent)
    assert getattr(done, "reason", None) == error.code
    return error.code, events[2:]


# Steps


async def test_turn_with_the_maximum_of_steps_completes(store: Store) -> None:
    async def agent(turn: Turn) -> AgentEvents:
        for number in range(2):
            yield call(number)
            yield ToolResultEvent(f"c{number}", "find", True)
        yield search(1)
        yield search(1, "finished")
        yield "Done."

    async with open_desk(store, agent, max_steps_per_turn=3) as desk:
        assert (await desk.end(await desk.start())).outcome == "completed"


@pytest.mark.parametrize("last", [call(3), search(2), search(3, "finished")], ids=["call", "search", "unannounced"])
async def test_step_over_the_limit_ends_the_turn_before_it_is_logged(store: Store, last: Event) -> None:
    went_on = False

    async def agent(turn: Turn) -> AgentEvents:
        nonlocal went_on
        yield "Let me see. "
        yield call(1)
        yield search(1)
        yield search(1, "failed")
        yield last
        went_on = True

    async with open_desk(store, agent, max_steps_per_turn=2) as desk:
        turn = await desk.start()
        code, events = await failure_code(desk, turn)
        assert (code, events) == ("max_turns", [TokenEvent("Let me see. "), call(1), search(1), search(1, "failed")])
        assert not went_on


async def test_repeated_call_id_counts_as_another_step(store: Store) -> None:
    async def agent(turn: Turn) -> AgentEvents:
        while True:
            yield call(1)
            yield ToolResultEvent("c1", "find", True)

    async with open_desk(store, agent, max_steps_per_turn=5) as desk:
        code, events = await failure_code(desk, await desk.start())
        assert (code, events.count(call(1))) == ("max_turns", 5)


async def test_emitted_step_over_the_limit_ends_an_agent_that_catches_everything(store: Store) -> None:
    caught: list[TurnwireError] = []

    async def agent(turn: Turn) -> AgentEvents:
        for number in range(100):
            try:
                emit(call(number))
            except TurnwireError as error:
                caught.append(error)
            await asyncio.sleep(0)
        yield "Done."

    async with open_desk(store, agent, max_steps_per_turn=2) as desk:
        code, events = await failure_code(desk, await desk.start())
        assert (code, events) == ("max_turns", [call(0), call(1)])
        assert isinstance(caught[0], AgentError)


async def test_step_emitted_from_a_thread_counts(store: Store) -> None:
    def work() -> None:
        for number in range(100):
            with suppress(AgentError):
                emit(call(number))

    async def agent(turn: Turn) -> AgentEvents:
        await asyncio.to_thread(work)
        yield "Done."

    async with open_desk(store, agent, max_steps_per_turn=2) as desk:
        assert await failure_code(desk, await desk.start()) == ("max_turns", [call(0), call(1)])


async def test_agent_over_its_limit_can_clean_up(store: Store) -> None:
    cleaned = False

    async def agent(turn: Turn) -> AgentEvents:
        nonlocal cleaned
        try:
            yield call(1)
            yield call(2)
        finally:
            await settle()
            cleaned = True

    async with open_desk(store, agent, max_steps_per_turn=1) as desk:
        await failure_code(desk, await desk.start())
        assert cleaned


# Tokens


def usage(tokens: int) -> UsageEvent:
    return UsageEvent(model="m", input_tokens=tokens - 1, output_tokens=1)


@pytest.mark.parametrize(
    "more",
    ["and more", TokenEvent("x"), ReasoningEvent("hm"), call(1), search(1)],
    ids=lambda more: type(more).__name__,
)
async def test_turn_that_continues_over_its_budget_fails_with_a_partial_answer(store: Store, more: Event | str) -> None:
    async def agent(turn: Turn) -> AgentEvents:
        yield "A start "
        yield usage(101)
        yield more

    async with open_desk(store, agent, max_tokens_per_day=100) as desk:
        turn = await desk.start()
        assert await failure_code(desk, turn) == ("budget_spent", [TokenEvent("A start "), usage(101)])
        state = await store.turn_state(turn.id)
        assert state is not None
        assert (state.outcome, state.text) == ("failed", "A start ")
        assert (await desk.runner.budget("ann")).used == 101


async def test_turn_that_ends_over_its_budget_completes(store: Store) -> None:
    async def agent(turn: Turn) -> AgentEvents:
        yield "The answer."
        yield usage(101)
        yield CitationEvent(1, "d1")
        yield ResponseEvent("The answer.")

    async with open_desk(store, agent, max_tokens_per_day=100) as desk:
        assert (await desk.end(await desk.start())).outcome == "completed"
        with pytest.raises(BudgetSpentError):
            await desk.start()


async def test_use_of_the_exact_budget_is_allowed(store: Store) -> None:
    async def agent(turn: Turn) -> AgentEvents:
        yield usage(100)
        yield "The answer."

    async with open_desk(store, agent, max_tokens_per_day=100) as desk:
        assert (await desk.end(await desk.start())).outcome == "completed"


async def test_start_with_a_spent_budget_is_refused_and_writes_nothing(store: Store) -> None:
    async def agent(turn: Turn) -> AgentEvents:
        yield usage(100)

    async with open_desk(store, agent, max_tokens_per_day=100) as desk:
        session_id = await desk.session()
        await desk.end(await desk.start(session_id=session_id))
        with pytest.raises(BudgetSpentError) as caught:
            await desk.start(session_id=session_id)
        assert (caught.value.limit, caught.value.used, caught.value.left) == (100, 100, 0)
        assert len(await store.list_turns("ann")) == 1


async def test_usage_of_a_cancelled_turn_counts(store: Store) -> None:
    gate = Gate()

    async def agent(turn: Turn) -> AgentEvents:
        yield usage(60)
        await gate.wait()

    async with open_desk(store, agent, max_tokens_per_day=100) as desk:
        turn = await desk.start()
        await gate.reached()
        await desk.cancel(turn)
        assert (await desk.runner.budget("ann")).left == 40


async def test_concurrent_turns_share_one_budget(store: Store) -> None:
    gates = {"first": Gate(), "second": Gate()}

    async def agent(turn: Turn) -> AgentEvents:
        yield usage(60)
        await gates[turn.message].wait()
        yield "Done."

    async with open_desk(store, agent, max_tokens_per_day=100) as desk:
        first = await desk.start("first")
        await gates["first"].reached()
        second = await desk.start("second")
        await gates["second"].reached()
        assert (await desk.runner.budget("ann")).used == 120
        for gate in gates.values():
            gate.open()
        # A turn that was accepted before the budget was spent may complete.
        assert (await desk.end(first)).outcome == "completed"
        assert (await failure_code(desk, second))[0] == "budget_spent"


async def test_turn_that_continues_in_the_same_process_is_counted_once(store: Store) -> None:
    async def agent(turn: Turn) -> AgentEvents:
        for number in range(3):
            yield usage(10)
            await approval(ApprovalRequestEvent(f"c{number}", "send", {}))
        yield "Done."

    async with open_desk(store, agent, max_tokens_per_day=100) as desk:
        turn = await desk.start()
        for number in range(3):
            await wait_until_suspended(desk, turn)
            assert (await desk.runner.budget("ann")).used == 10 * (number + 1)
            await desk.runner.decide(turn.id, f"c{number}", approved=True)
        assert (await desk.end(turn)).outcome == "completed"
        assert (await desk.runner.budget("ann")).used == 30


async def test_queued_turn_with_a_spent_budget_fails_when_it_runs(store: Store) -> None:
    gate, answered = Gate(), list[str]()

    async def agent(turn: Turn) -> AgentEvents:
        answered.append(turn.message)
        await gate.wait()
        yield usage(100)

    async with open_desk(store, agent, max_tokens_per_day=100) as desk:
        session_id = await desk.session()
        await desk.start("first", session_id=session_id)
        await gate.reached()
        second = await desk.start("second", session_id=session_id)
        gate.open()
        assert await failure_code(desk, second) == ("budget_spent", [])
        assert answered == ["first"]


async def test_emitted_usage_counts(store: Store) -> None:
    async def agent(turn: Turn) -> AgentEvents:
        emit(usage(101))
        with suppress(BudgetSpentError):
            emit(call(1))
        await asyncio.sleep(0)
        yield CitationEvent(1, "d1")

    async with open_desk(store, agent, max_tokens_per_day=100) as desk:
        assert await failure_code(desk, await desk.start()) == ("budget_spent", [usage(101)])


async def test_turns_without_a_limit_are_not_refused(store: Store) -> None:
    async def agent(turn: Turn) -> AgentEvents:
        yield usage(10**9)
        yield "Done."

    async with open_desk(store, agent) as desk:
        for _ in range(2):
            assert (await desk.end(await desk.start())).outcome == "completed"
        assert (await desk.runner.budget("ann")).used == 2 * 10**9


class Clock:
    def __init__(self) -> None:
        self.now = 20_000 * DAY_MS + 1

    def __call__(self) -> int:
        return self.now


async def test_budget_resets_on_a_new_day() -> None:
    clock = Clock()
    spending = Spending(MemoryStore(), 100, clock)
    assert spending.spend("ann", "t1", 70).left == 30
    assert (await spending.budget("ann")).left == 30
    assert (await spending.budget("bob")).left == 100
    clock.now = 20_001 * DAY_MS - 1
    assert spending.spend("ann", "t2", 70).left == 0
    clock.now += 1
    budget = await spending.budget("ann")
    assert (budget.used, budget.left, budget.resets_at) == (0, 100, 20_002 * DAY_MS)
    # The tokens of a turn count for the day on which it ends.
    assert spending.spend("ann", "t2", 80).used == 80


async def test_budget_includes_turns_of_other_processes(store: Store) -> None:
    spending = Spending(store, 100)
    await ended(store, usage(60))
    assert (await spending.budget("ann")).used == 60
    assert spending.spend("ann", "t1", 5).used == 65
    await ended(store, usage(60))
    assert (await spending.budget("ann")).used == 120
