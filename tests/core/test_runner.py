"""How a turn lives and ends, whatever its agent, its readers and its process do."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any
from unittest.mock import ANY

import pytest

from tests.contracts.stores import Place
from tests.contracts.turns import BOUND, claimed, followed, seized, started, types, whole_log, write
from tests.core.desk import Desk, Gate, open_desk, settle
from turnwire.core.cancellation import WORKER_LOST
from turnwire.core.contracts import Store
from turnwire.core.emit import emit
from turnwire.core.errors import AgentError, AgentNotFoundError, SessionBusyError, ShuttingDownError, TurnEndedError
from turnwire.core.events import (
    CitationEvent,
    CustomEvent,
    DoneEvent,
    ErrorEvent,
    Event,
    MessageEvent,
    ResponseEvent,
    SessionEvent,
    StatusEvent,
    TokenEvent,
    ToolCallEvent,
    ToolResultEvent,
    Usage,
    UsageEvent,
)
from turnwire.core.runner import TurnRequest
from turnwire.core.turns import Message, Turn, TurnRecord

Said = AsyncIterator[Event | str]


async def echo(turn: Turn) -> Said:
    yield f"You said: {turn.message}"


def names(events: list[Event]) -> list[str]:
    return [str(type(event).__struct_config__.tag) for event in events]


async def failure(desk: Desk, turn: TurnRecord) -> ErrorEvent:
    """What a failed turn says before its `done`."""
    *_, error, done = await desk.events(turn)
    assert isinstance(error, ErrorEvent)
    assert done == DoneEvent("failed", turn.session_id, turn.id, reason=error.code)
    return error


# A turn that goes well


async def test_a_completed_turn(store: Store) -> None:
    async def agent(turn: Turn) -> Said:
        yield StatusEvent("thinking")
        yield "Hello, "
        yield ""
        yield ToolCallEvent("c1", "find", {"q": turn.message})
        yield ToolResultEvent("c1", "find", True, 3)
        yield TokenEvent("Ann.")
        yield UsageEvent(model="m1", output_tokens=2)

    async with open_desk(store, agent) as desk:
        turn = await desk.start("hi", by="Ann Smith", channel="console")
        events = await desk.events(turn)
    assert events[:2] == [SessionEvent(turn.session_id, turn.id, "agent"), MessageEvent("hi", "Ann Smith", "console")]
    assert names(events[2:]) == [
        *("status", "token", "tool_call", "tool_result", "token", "usage"),
        *("response", "done"),
    ]
    response = events[-2]
    assert isinstance(response, ResponseEvent)
    assert (response.content, response.tools_used, response.usage) == ("Hello, Ann.", ("find",), Usage(output_tokens=2))
    assert set(response.timings or {}) >= {"first_event_ms", "first_token_ms", "total_ms"}
    assert events[-1] == DoneEvent("completed", turn.session_id, turn.id)
    record = await store.find_turn("ann", turn.id)
    assert (record.phase, record.outcome, record.epoch) == ("ended", "completed", 1)


async def test_a_turn_with_no_answer_at_all_is_completed_too(store: Store) -> None:
    async def silent(turn: Turn) -> Said:
        for nothing in ():
            yield nothing

    async with open_desk(store, silent) as desk:
        turn = await desk.start()
        assert names(await desk.events(turn)) == ["session", "message", "response", "done"]


async def test_the_agent_s_own_response_brings_what_the_tokens_cannot(store: Store) -> None:
    async def agent(turn: Turn) -> Said:
        yield "The tokens"
        yield ResponseEvent(
            "something else", (CitationEvent(1, "d1"),), "synthesis", ("web",), Usage(1), {"search_ms": 5.0}
        )

    async with open_desk(store, agent) as desk:
        turn = await desk.start()
        *_, response, _ = await desk.events(turn)
    assert isinstance(response, ResponseEvent)
    assert (response.content, response.mode, response.tools_used) == ("The tokens", "synthesis", ("web",))
    assert (response.citations, response.usage) == ((CitationEvent(1, "d1"),), Usage(1))
    assert (response.timings or {})["search_ms"] == 5.0


async def test_a_response_without_tokens_becomes_tokens(store: Store) -> None:
    async def agent(turn: Turn) -> Said:
        yield ResponseEvent("All at once", mode="direct")

    async with open_desk(store, agent) as desk:
        events = await desk.events(await desk.start())
    assert names(events) == ["session", "message", "token", "response", "done"]
    assert events[2] == TokenEvent("All at once")


async def test_a_sub_agent_s_tokens_are_no_answer(store: Store) -> None:
    async def agent(turn: Turn) -> Said:
        yield TokenEvent("inner", agent_path=("helper",))
        yield "outer"

    async with open_desk(store, agent) as desk:
        events = await desk.events(await desk.start())
    assert events[2] == TokenEvent("inner", agent_path=("helper",))
    assert isinstance(events[-2], ResponseEvent)
    assert events[-2].content == "outer"


async def test_what_was_said_before_reaches_the_agent(store: Store) -> None:
    given: list[Turn] = []

    async def agent(turn: Turn) -> Said:
        given.append(turn)
        yield f"answer to {turn.message}"

    async with open_desk(store, agent, history_turns=2) as desk:
        session_id = await desk.session()
        for message in ("one", "two", "three"):
            await desk.end(await desk.start(message, session_id=session_id, options={"n": message}))
    assert [turn.message for turn in given] == ["one", "two", "three"]
    assert given[0].history == ()
    assert given[1].history == (Message("user", "one"), Message("assistant", "answer to one"))
    assert (given[2].principal, given[2].session_id, given[2].options) == ("ann", session_id, {"n": "three"})
    assert len(given[2].history) == 4


async def test_a_message_is_cleaned_before_anyone_sees_it(store: Store) -> None:
    async with open_desk(store, echo) as desk:
        turn = await desk.start("a\x00b\ud800")
        events = await desk.events(turn)
    assert events[1] == MessageEvent("ab\ufffd", "ann", "http")
    assert events[2] == TokenEvent("You said: ab\ufffd")


async def test_many_tokens_through_a_small_door(store: Store) -> None:
    async def agent(turn: Turn) -> Said:
        for number in range(300):
            yield f"{number} "

    async with open_desk(store, agent, max_uncommitted_events=3) as desk:
        turn = await desk.start()
        assert (await desk.end(turn)).outcome == "completed"
        state = await store.turn_state(turn.id)
    assert state is not None
    assert state.text == "".join(f"{number} " for number in range(300))


async def test_a_turn_may_begin_a_session(store: Store) -> None:
    async with open_desk(store, echo) as desk:
        turn = (await desk.runner.start(TurnRequest(principal="ann", message="a new subject"))).record
        await desk.end(turn)
        session = await store.find_session("ann", turn.session_id)
    assert (session.title, session.turn_count) == ("a new subject", 1)


async def test_an_unknown_agent_costs_nothing(store: Store) -> None:
    async with open_desk(store, echo) as desk:
        with pytest.raises(AgentNotFoundError):
            await desk.start(agent="nobody")
    assert await store.list_turns("ann") == []


async def test_a_turn_goes_on_when_whoever_asked_for_it_is_gone(store: Store) -> None:
    async with open_desk(store, echo) as desk:
        session_id = await desk.session()
        asking = asyncio.create_task(desk.start(session_id=session_id))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking], timeout=BOUND)
        await desk.end(await desk.start("another"))
        for turn in await store.list_turns("ann", session_id=session_id):
            assert (await desk.end(turn)).outcome == "completed"


# A turn that goes badly


async def test_of_an_exception_only_its_class_is_shown(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    async def agent(turn: Turn) -> Said:
        yield "half"
        raise ValueError("password=hunter2")

    async with open_desk(store, agent) as desk:
        turn = await desk.start()
        error = await failure(desk, turn)
        log = await whole_log(store, turn.id)
        state = await store.turn_state(turn.id)
    assert error.code == "agent_failed"
    assert "ValueError" in error.error
    assert not any(b"hunter2" in logged.body for logged in log)
    assert state is not None
    assert state.text == "half"
    assert "hunter2" in caplog.text, "the server's own log must tell what happened"


async def test_an_agent_error_is_shown_in_its_own_words(store: Store) -> None:
    async def agent(turn: Turn) -> Said:
        yield "half"
        raise AgentError("The model is overloaded.", code="overloaded", retryable=True)

    async with open_desk(store, agent) as desk:
        turn = await desk.start()
        assert await failure(desk, turn) == ErrorEvent("The model is overloaded.", "overloaded", True)


async def test_an_odd_agent_error_ends_the_turn_too(store: Store) -> None:
    async def agent(turn: Turn) -> Said:
        yield "half"
        raise AgentError("Too many requests.\x00", code=429, retryable=1)  # type: ignore[arg-type]

    async with open_desk(store, agent) as desk:
        turn = await desk.start()
        assert await failure(desk, turn) == ErrorEvent("Too many requests.", "429", True)


class OddError(BaseException):
    """Not an Exception, as the cancellation of some libraries and the outcomes of test runners are not."""


@pytest.mark.parametrize("error", [OddError, SystemExit])
async def test_whatever_an_agent_raises_the_turn_ends(store: Store, error: type[BaseException]) -> None:
    async def agent(turn: Turn) -> Said:
        yield "half"
        raise error

    async with open_desk(store, agent) as desk:
        turn = await desk.start()
        assert (await failure(desk, turn)).code == "agent_failed"


async def test_a_response_that_is_not_as_declared_ends_the_turn_too(store: Store) -> None:
    async def agent(turn: Turn) -> Said:
        yield ResponseEvent("half", mode=5)  # type: ignore[arg-type]

    async with open_desk(store, agent) as desk:
        turn = await desk.start()
        assert (await failure(desk, turn)).code == "event_refused"


async def test_an_error_event_of_the_agent_ends_the_turn(store: Store) -> None:
    reached_the_end = False

    async def agent(turn: Turn) -> Said:
        nonlocal reached_the_end
        yield ErrorEvent("No documents.", "no_documents")
        reached_the_end = True

    async with open_desk(store, agent) as desk:
        turn = await desk.start()
        assert await failure(desk, turn) == ErrorEvent("No documents.", "no_documents")
    assert not reached_the_end


@pytest.mark.parametrize(
    "event",
    [SessionEvent("s1", "t1", "x"), MessageEvent("m", "x", "http"), DoneEvent("completed", "s1", "t1")],
    ids=lambda event: type(event).__name__,
)
async def test_an_agent_cannot_begin_or_end_its_turn(store: Store, event: Event) -> None:
    async def agent(turn: Turn) -> Said:
        yield "half"
        yield event

    async with open_desk(store, agent) as desk:
        turn = await desk.start()
        assert (await failure(desk, turn)).code == "event_refused"
        assert names(await desk.events(turn)) == ["session", "message", "token", "error", "done"]


@pytest.mark.parametrize(
    "said",
    [None, 5, {"type": "done"}, b"bytes", TokenEvent(None), StatusEvent(5), CustomEvent("x", float)],  # type: ignore[arg-type]
    ids=repr,
)
async def test_what_is_no_event_never_reaches_the_log(store: Store, said: Any) -> None:
    async def agent(turn: Turn) -> Said:
        yield "half"
        yield said
        yield "more"

    async with open_desk(store, agent) as desk:
        turn = await desk.start()
        events = await desk.events(turn)
        following = await desk.start("next", session_id=turn.session_id)
        assert (await desk.end(following)).reason == (await desk.end(turn)).reason
    if isinstance(said, CustomEvent):
        assert isinstance(events[3], CustomEvent)
        assert events[3].data in ("<type>", "<class 'float'>")
    else:
        assert names(events) == ["session", "message", "token", "error", "done"]


async def test_a_turn_has_a_time_limit(store: Store) -> None:
    async def slow(turn: Turn) -> Said:
        yield "half"
        await asyncio.Event().wait()

    async with open_desk(store, slow, turn_timeout=0.05) as desk:
        turn = await desk.start()
        error = await failure(desk, turn)
    assert (error.code, error.retryable) == ("turn_timeout", True)
    assert "0.05 seconds" in error.error


async def test_a_time_out_of_the_agent_s_own_is_not_the_turn_s(store: Store) -> None:
    async def agent(turn: Turn) -> Said:
        yield "half"
        raise TimeoutError("of a tool")

    async with open_desk(store, agent) as desk:
        turn = await desk.start()
        assert (await failure(desk, turn)).code == "agent_failed"


async def test_an_agent_that_was_cancelled_by_its_own_library_has_failed(store: Store) -> None:
    async def agent(turn: Turn) -> Said:
        yield "half"
        inner = asyncio.create_task(asyncio.Event().wait())
        inner.cancel()
        await inner

    async with open_desk(store, agent) as desk:
        turn = await desk.start()
        assert (await failure(desk, turn)).code == "agent_failed"


async def test_one_event_has_a_size_limit(store: Store) -> None:
    async def agent(turn: Turn) -> Said:
        yield "x" * 900
        yield "x" * 1_001

    async with open_desk(store, agent, max_event_bytes=1_000) as desk:
        turn = await desk.start()
        assert (await failure(desk, turn)).code == "event_too_large"
        assert names(await desk.events(turn)) == ["session", "message", "token", "error", "done"]


async def test_a_turn_has_a_limit_of_events(store: Store) -> None:
    async def endless(turn: Turn) -> Said:
        while True:
            yield "x"

    async with open_desk(store, endless, max_events_per_turn=10) as desk:
        turn = await desk.start()
        assert (await failure(desk, turn)).code == "too_many_events"
        assert names(await desk.events(turn))[2:] == ["token"] * 8 + ["error", "done"]


async def test_a_turn_that_was_taken_over_is_left_to_its_new_owner(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()

    async def agent(turn: Turn) -> Said:
        yield "mine"
        await gate.wait()
        yield "late"
        await asyncio.Event().wait()

    async with open_desk(store, agent, echo) as desk:
        turn = await desk.start()
        await gate.reached()
        await settle()
        owner = await seized(store, await store.find_turn("ann", turn.id), "another worker")
        gate.open()
        await settle()
        next_turn = await desk.start("next", session_id=turn.session_id, agent="echo")
        await write(store, owner, TokenEvent(" and theirs"), end="completed")
        assert (await desk.end(next_turn)).outcome == "completed"
        assert [type(event) for event in await desk.events(turn)] == [
            *(SessionEvent, MessageEvent, TokenEvent, TokenEvent, DoneEvent),
        ]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "was taken over by another worker" in caplog.text


async def test_a_turn_that_was_let_go_is_not_written_to_any_more(store: Store) -> None:
    """Nobody has claimed it since, so that nothing but the worker itself is in the way of what its agent still says."""
    gate, refusal = Gate(), asyncio.get_running_loop().create_future()

    async def agent(turn: Turn) -> Said:
        yield "mine"
        try:
            await gate.wait()
        finally:
            try:
                emit(StatusEvent("one more thing"))
            except TurnEndedError as error:
                refusal.set_result(error)

    async with open_desk(store, agent) as desk:
        turn = await desk.start()
        await gate.reached()
        await followed(store, turn.id, count=3)
        desk.runner._worker.running[turn.id].abandon()
        async with asyncio.timeout(BOUND):
            assert isinstance(await refusal, TurnEndedError)
        await settle()
        assert types(await whole_log(store, turn.id)) == ["session", "message", "token"]
        assert (await store.find_turn("ann", turn.id)).phase == "running"


# Stopping


async def test_a_cancelled_turn_keeps_its_partial_answer_and_its_usage(store: Store) -> None:
    gate = Gate()

    async def agent(turn: Turn) -> Said:
        yield "The first half"
        yield UsageEvent(output_tokens=3)
        await gate.wait()
        yield " and the second"

    async with open_desk(store, agent) as desk:
        turn = await desk.start()
        await gate.reached()
        await desk.cancel(turn)
        state = await store.turn_state(turn.id)
        assert names(await desk.events(turn)) == ["session", "message", "token", "usage", "done"]
        assert await desk.end(turn) == DoneEvent("cancelled", turn.session_id, turn.id, reason="requested")
    assert state is not None
    assert (state.text, state.usage, state.outcome) == ("The first half", Usage(output_tokens=3), "cancelled")


async def test_an_agent_may_clean_up_when_it_is_cancelled(store: Store) -> None:
    gate = Gate()

    async def agent(turn: Turn) -> Said:
        try:
            yield "half"
            await gate.wait()
        finally:
            await asyncio.sleep(0)
            yield UsageEvent(output_tokens=9)

    async with open_desk(store, agent) as desk:
        turn = await desk.start()
        await gate.reached()
        await desk.cancel(turn)
        assert (await desk.end(turn)).outcome == "cancelled"


async def test_a_queued_turn_is_cancelled_without_being_run(store: Store) -> None:
    gate = Gate()
    asked: list[str] = []

    async def agent(turn: Turn) -> Said:
        asked.append(turn.message)
        await gate.wait()
        yield "x"

    async with open_desk(store, agent) as desk:
        first = await desk.start("first")
        second = await desk.start("second", session_id=first.session_id)
        third = await desk.start("third", session_id=first.session_id)
        await gate.reached()
        await desk.cancel(second)
        assert names(await desk.events(second)) == ["session", "message", "done"]
        assert (await desk.end(second)).reason == "requested"
        gate.open()
        assert (await desk.end(third)).outcome == "completed"
    assert asked == ["first", "third"]


async def test_an_ended_turn_is_left_as_it_is(store: Store) -> None:
    async with open_desk(store, echo) as desk:
        turn = await desk.start()
        before = await desk.events(turn)
        await desk.cancel(turn)
        assert await desk.events(turn) == before


async def test_stopping_twice_is_stopping_once(store: Store) -> None:
    gate = Gate()

    async def agent(turn: Turn) -> Said:
        await gate.wait()
        yield "x"

    async with open_desk(store, agent) as desk:
        turn = await desk.start()
        await gate.reached()
        await asyncio.gather(desk.cancel(turn), desk.cancel(turn), desk.cancel(turn))
        assert (await desk.end(turn)).outcome == "cancelled"


async def test_a_turn_can_be_cancelled_at_once(store: Store) -> None:
    async def agent(turn: Turn) -> Said:
        await asyncio.Event().wait()
        yield "never"

    async with open_desk(store, agent) as desk:
        turn = await desk.start()
        await desk.cancel(turn)
        assert names(await desk.events(turn)) == ["session", "message", "done"]


async def test_all_of_a_session_can_be_cancelled(store: Store) -> None:
    gate = Gate()

    async def agent(turn: Turn) -> Said:
        await gate.wait()
        yield "x"

    async with open_desk(store, agent) as desk:
        first = await desk.start()
        second = await desk.start(session_id=first.session_id)
        other = await desk.start()
        await gate.reached()
        async with asyncio.timeout(BOUND):
            await desk.runner.cancel_session(first.session_id)
        assert [(await desk.end(turn)).reason for turn in (first, second)] == ["session_deleted"] * 2
        await store.delete_session("ann", first.session_id)
        gate.open()
        assert (await desk.end(other)).outcome == "completed"


class Stubborn:
    """An agent that does not let itself be cancelled."""

    def __init__(self) -> None:
        self.gate = Gate()

    async def stubborn(self, turn: Turn) -> Said:
        yield "half"
        while True:
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                continue
            break
        yield " late"


@pytest.fixture
async def stubborn() -> AsyncIterator[Stubborn]:
    agent = Stubborn()
    yield agent
    agent.gate.open()


async def test_an_agent_that_ignores_cancellation_is_left_behind(
    store: Store, stubborn: Stubborn, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_desk(store, stubborn.stubborn, echo, cancel_patience=0.05) as desk:
        turn = await desk.start()
        await stubborn.gate.reached()
        following = await desk.start("next", session_id=turn.session_id, agent="echo")
        await desk.cancel(turn)
        assert (await desk.end(turn)).outcome == "cancelled"
        assert (await desk.end(following)).outcome == "completed"
        before = await desk.events(turn)
        stubborn.gate.open()
        await settle()
        assert await desk.events(turn) == before
    assert "is left behind" in caplog.text


async def test_an_agent_that_goes_on_after_its_cancellation_is_stopped_at_its_next_event(store: Store) -> None:
    gate = Gate()

    async def agent(turn: Turn) -> Said:
        with suppress(asyncio.CancelledError):
            await gate.wait()
        while True:
            yield "more "
            await asyncio.sleep(0)

    async with open_desk(store, agent, cancel_patience=10 * BOUND) as desk:
        turn = await desk.start()
        await gate.reached()
        await desk.cancel(turn)
        assert names(await desk.events(turn)) == ["session", "message", "token", "done"]


async def test_an_agent_that_ignores_its_time_limit_is_left_behind_too(store: Store, stubborn: Stubborn) -> None:
    async with open_desk(store, stubborn.stubborn, turn_timeout=0.05, cancel_patience=0.05) as desk:
        turn = await desk.start()
        assert (await failure(desk, turn)).code == "turn_timeout"


async def test_an_agent_that_ignores_everything_does_not_hold_up_the_shutdown(store: Store, stubborn: Stubborn) -> None:
    async with open_desk(store, stubborn.stubborn) as desk:
        turn = await desk.start()
        await stubborn.gate.reached()
        async with asyncio.timeout(BOUND / 2):
            await desk.runner.drain(0)
            await desk.runner.close()
        assert await desk.end(turn) == DoneEvent("interrupted", turn.session_id, turn.id, reason="shutdown")


# One turn at a time


async def test_turns_of_a_session_run_one_after_the_other_in_order(store: Store) -> None:
    running: list[str] = []
    order: list[str] = []

    async def agent(turn: Turn) -> Said:
        assert running == []
        running.append(turn.message)
        yield "half"
        await asyncio.sleep(0)
        running.remove(turn.message)
        order.append(turn.message)
        yield "whole"

    async with open_desk(store, agent) as desk:
        session_id = await desk.session()
        turns = [await desk.start(str(number), session_id=session_id) for number in range(5)]
        assert [(await desk.end(turn)).outcome for turn in turns] == ["completed"] * 5
    assert order == ["0", "1", "2", "3", "4"]


async def test_turns_of_different_sessions_run_side_by_side(store: Store) -> None:
    together = asyncio.Barrier(3)

    async def agent(turn: Turn) -> Said:
        async with asyncio.timeout(BOUND):
            await together.wait()
        yield "x"

    async with open_desk(store, agent) as desk:
        turns = [await desk.start() for _ in range(3)]
        assert [(await desk.end(turn)).outcome for turn in turns] == ["completed"] * 3


async def test_a_queued_turn_can_be_read_while_it_waits(store: Store) -> None:
    gate = Gate()

    async def agent(turn: Turn) -> Said:
        await gate.wait()
        yield "x"

    async with open_desk(store, agent) as desk:
        first = await desk.start("first")
        second = await desk.start("second", session_id=first.session_id)
        await gate.reached()
        assert types(await whole_log(store, second.id)) == ["session", "message"]
        assert (await store.find_turn("ann", second.id)).phase == "queued"
        gate.open()
        await desk.end(second)


async def test_a_busy_session_can_refuse_or_be_full(store: Store) -> None:
    gate = Gate()

    async def agent(turn: Turn) -> Said:
        await gate.wait()
        yield "x"

    async with open_desk(store, agent, max_queued_turns=1) as desk:
        first = await desk.start()
        with pytest.raises(SessionBusyError):
            await desk.start(session_id=first.session_id, on_busy="reject")
        second = await desk.start(session_id=first.session_id)
        with pytest.raises(SessionBusyError):
            await desk.start(session_id=first.session_id)
        gate.open()
        assert (await desk.end(second)).outcome == "completed"
        assert (await desk.end(await desk.start(session_id=first.session_id, on_busy="reject"))).outcome == "completed"


async def test_an_interrupting_turn_supersedes_all_before_it(store: Store) -> None:
    gate = Gate()
    ends_seen: list[str | None] = []

    async def agent(turn: Turn) -> Said:
        yield "half"
        await gate.wait()

    async def newest(turn: Turn) -> Said:
        ends_seen.append((await store.find_turn("ann", first.id)).outcome)
        yield "the newest"

    async with open_desk(store, agent, newest) as desk:
        first = await desk.start("first")
        await gate.reached()
        second = await desk.start("second", session_id=first.session_id)
        last = await desk.start("last", session_id=first.session_id, on_busy="interrupt", agent="newest")
        assert (await desk.end(last)).outcome == "completed"
        for turn in (first, second):
            done = await desk.end(turn)
            assert (done.outcome, done.reason) == ("cancelled", "superseded")
    assert ends_seen == ["cancelled"], "the new turn must not run before the old one's done"


async def test_a_repeated_interrupting_turn_does_not_interrupt_itself(store: Store) -> None:
    gate = Gate()

    async def agent(turn: Turn) -> Said:
        await gate.wait()
        yield "x"

    async with open_desk(store, agent) as desk:
        session_id = await desk.session()
        first = await desk.start(session_id=session_id, on_busy="interrupt", idempotency_key="k")
        await gate.reached()
        again = await desk.start(session_id=session_id, on_busy="interrupt", idempotency_key="k")
        assert again.id == first.id
        gate.open()
        assert (await desk.end(first)).outcome == "completed"


# Readers come and go


async def held(turn: Turn) -> Said:
    yield "half"
    await GATES[turn.message].wait()
    yield " whole"


GATES: dict[str, Gate] = {}


async def held_turn(desk: Desk, grace: float | None, **fields: Any) -> tuple[TurnRecord, Gate]:
    name = f"gate {len(GATES)}"
    gate = GATES[name] = Gate()
    return await desk.start(name, disconnect_grace=grace, **fields), gate


async def test_leaving_is_not_stopping(store: Store) -> None:
    async with open_desk(store, held) as desk:
        turn, gate = await held_turn(desk, None)
        await gate.reached()
        desk.runner.reader_joined(turn)
        desk.runner.reader_left(turn.id, by_client=True)
        await settle()
        gate.open()
        assert (await desk.end(turn)).outcome == "completed"


@pytest.mark.parametrize("grace", [0, 0.02])
async def test_a_turn_that_asks_for_it_is_cancelled_when_its_last_reader_has_been_gone(
    store: Store, grace: float
) -> None:
    async with open_desk(store, held) as desk:
        turn, gate = await held_turn(desk, grace)
        await gate.reached()
        desk.runner.reader_joined(turn)
        desk.runner.reader_joined(turn)
        desk.runner.reader_left(turn.id, by_client=True)
        await settle()
        assert (await store.find_turn("ann", turn.id)).phase == "running"
        desk.runner.reader_left(turn.id, by_client=True)
        assert await desk.end(turn) == DoneEvent("cancelled", turn.session_id, turn.id, reason="disconnected")


async def test_a_reader_that_comes_back_in_time_keeps_the_turn(store: Store) -> None:
    async with open_desk(store, held) as desk:
        turn, gate = await held_turn(desk, 0)
        await gate.reached()
        desk.runner.reader_joined(turn)
        desk.runner.reader_left(turn.id, by_client=True)
        desk.runner.reader_joined(turn)
        await settle()
        gate.open()
        assert (await desk.end(turn)).outcome == "completed"


async def test_a_stream_that_the_server_closed_is_expected_back(store: Store) -> None:
    async with open_desk(store, held) as desk:
        turn, gate = await held_turn(desk, 0)
        await gate.reached()
        desk.runner.reader_joined(turn)
        desk.runner.reader_left(turn.id, by_client=False)
        await settle()
        gate.open()
        assert (await desk.end(turn)).outcome == "completed"


async def test_a_turn_that_nobody_has_begun_to_read_is_not_left(store: Store) -> None:
    async with open_desk(store, held) as desk:
        turn, gate = await held_turn(desk, 0)
        await gate.reached()
        await settle()
        gate.open()
        assert (await desk.end(turn)).outcome == "completed"


async def test_readers_who_joined_while_it_was_queued_count(store: Store) -> None:
    async with open_desk(store, held) as desk:
        first, first_gate = await held_turn(desk, None)
        second, second_gate = await held_turn(desk, 0, session_id=first.session_id)
        desk.runner.reader_joined(second)
        desk.runner.reader_joined(second)
        first_gate.open()
        await second_gate.reached()
        desk.runner.reader_left(second.id, by_client=True)
        await settle()
        second_gate.open()
        assert (await desk.end(second)).outcome == "completed"


async def test_a_queued_turn_can_be_left_too(store: Store) -> None:
    async with open_desk(store, held) as desk:
        first, first_gate = await held_turn(desk, None)
        second, second_gate = await held_turn(desk, 0, session_id=first.session_id)
        desk.runner.reader_joined(second)
        desk.runner.reader_left(second.id, by_client=True)
        assert (await desk.end(second)).reason == "disconnected"
        first_gate.open()
        assert (await desk.end(first)).outcome == "completed"
    assert not second_gate.was_reached


# Going down and coming back


async def test_draining_lets_running_turns_finish(store: Store) -> None:
    async with open_desk(store, held) as desk:
        turn, gate = await held_turn(desk, None)
        queued = await desk.start("waiting", session_id=turn.session_id)
        await gate.reached()
        draining = asyncio.create_task(desk.runner.drain(BOUND))
        await settle()
        with pytest.raises(ShuttingDownError):
            await desk.start()
        gate.open()
        async with asyncio.timeout(BOUND):
            await draining
        assert (await desk.end(turn)).outcome == "completed"
        assert [record.id for record in await store.queued()] == [queued.id]


async def test_draining_ends_what_does_not_finish_in_time(store: Store) -> None:
    async with open_desk(store, held) as desk:
        turn, gate = await held_turn(desk, None)
        await gate.reached()
        async with asyncio.timeout(BOUND):
            await desk.runner.drain(0.02)
        *_, error, done = await desk.events(turn)
        assert isinstance(error, ErrorEvent)
        assert (error.code, error.retryable) == ("interrupted", True)
        assert done == DoneEvent("interrupted", turn.session_id, turn.id, reason="shutdown")
        assert desk.runner.running_count == 0


async def test_what_a_lost_process_left_running_is_closed_at_the_next_start(place: Place) -> None:
    store = await place.open()
    orphan = await claimed(store, "lost")
    await write(store, orphan, TokenEvent("half"), UsageEvent(output_tokens=1))
    place.crash()
    store = await place.open()
    async with open_desk(store, echo) as desk:
        assert (await store.find_turn("ann", orphan.id)).phase == "ended", "it must not wait for a lease"
        events = await desk.events(orphan)
        assert names(events) == ["session", "message", "token", "usage", "error", "done"]
        assert events[-2] == WORKER_LOST.error
        assert events[-1] == DoneEvent("interrupted", orphan.session_id, orphan.id, reason="worker_lost")
        state = await store.turn_state(orphan.id)
        assert state is not None
        assert (state.text, state.usage, state.outcome) == ("half", Usage(output_tokens=1), "interrupted")
        following = await desk.start(session_id=orphan.session_id)
        assert (await desk.end(following)).outcome == "completed"


async def test_what_a_lost_process_left_queued_runs_at_the_next_start(place: Place) -> None:
    store = await place.open()
    orphan = await claimed(store, "lost", message="first")
    waiting = [await started(store, message=message, session_id=orphan.session_id) for message in ("second", "third")]
    place.crash()
    store = await place.open()
    order: list[str] = []

    async def echo(turn: Turn) -> Said:
        order.append(turn.message)
        yield turn.message

    async with open_desk(store, echo) as desk:
        assert [(await desk.end(turn)).outcome for turn in waiting] == ["completed", "completed"]
    assert order == ["second", "third"]


async def test_a_queued_turn_whose_agent_is_gone_fails_in_clear_words(place: Place) -> None:
    store = await place.open()
    waiting = await started(store)
    place.crash()
    store = await place.open()

    async def another(turn: Turn) -> Said:
        yield "x"

    async with open_desk(store, another) as desk:
        assert (await failure(desk, waiting)).code == "agent_not_found"


async def test_a_living_worker_takes_over_from_a_dead_one(place: Place) -> None:
    now = 1_000.0
    store = await place.open(lease=10, clock=lambda: now)
    orphan = await claimed(store, "slow")
    async with open_desk(store, echo, lease=0.04) as desk:
        await settle()
        assert (await store.find_turn("ann", orphan.id)).phase == "running"
        now += 11
        done = await desk.end(orphan)
    assert (done.outcome, done.reason) == ("interrupted", "worker_lost")


async def test_a_cancelled_turn_leaves_nothing_behind(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with open_desk(store, held) as desk:
        for _ in range(3):
            turn, gate = await held_turn(desk, 0)
            await gate.reached()
            await desk.cancel(turn)
        await settle()
        assert desk.runner.running_count == 0
        assert not desk.runner._worker._tasks
        assert not desk.runner._presence._readers
        assert not await store.unfinished(turn.session_id)
    assert caplog.text == ""


# What came before


async def test_a_turn_may_continue_another_than_the_last(store: Store) -> None:
    async def recite(turn: Turn) -> Said:
        yield " ".join(message.content for message in turn.history) or "nothing"

    async with open_desk(store, recite) as desk:
        session_id = await desk.session()
        first = await desk.start("one", session_id=session_id)
        await desk.end(first)
        await desk.end(await desk.start("two", session_id=session_id))
        again = await desk.start("three", session_id=session_id, parent_turn_id=first.id)
        *_, response, _ = await desk.events(again)
        assert response == ResponseEvent("one nothing", timings=ANY)


async def test_what_was_said_elsewhere_comes_before_the_session(store: Store) -> None:
    async def recite(turn: Turn) -> Said:
        yield " ".join(f"{message.role}:{message.content}" for message in turn.history)

    told = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    async with open_desk(store, recite) as desk:
        *_, response, _ = await desk.events(await desk.start("go on", options={"history": told}))
        assert response == ResponseEvent("user:hi assistant:hello", timings=ANY)


async def test_what_was_said_elsewhere_is_known_to_the_later_turns_too(store: Store) -> None:
    async def recite(turn: Turn) -> Said:
        yield " ".join(message.content for message in turn.history)

    async with open_desk(store, recite) as desk:
        session_id = await desk.session()
        told = [{"role": "user", "content": "hi"}]
        await desk.end(await desk.start("one", session_id=session_id, options={"history": told}))
        *_, response, _ = await desk.events(await desk.start("two", session_id=session_id))
        assert response == ResponseEvent("hi one hi", timings=ANY)
