"""The execution of one turn: its log and its end, whatever its agent does."""

import asyncio
import gc
from typing import Any

import pytest

from tests.contracts.turns import BOUND, followed, seized, types, whole_log, write
from tests.core.desk import AgentEvents, Gate, echo, event_types, failure, open_actor_desk, open_desk, settle
from turnwire.core.contracts.stores import Store
from turnwire.core.errors import AgentError, TurnEndedError
from turnwire.core.journal.turn_journal import journaled
from turnwire.core.log.codec import encode_event
from turnwire.core.log.emit import emit
from turnwire.core.log.events import (
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
from turnwire.core.log.turns import Turn
from turnwire.core.run.execution import Execution
from turnwire.stores.memory import MemoryStore

# Turns that complete


async def test_completed_turn_has_its_events_response_and_done(store: Store) -> None:
    async def agent(turn: Turn) -> AgentEvents:
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
    assert event_types(events[2:]) == [
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


@pytest.mark.parametrize("makes_calls", [False, True])
async def test_ended_execution_is_freed_without_the_garbage_collector(makes_calls: bool) -> None:
    async def agent(turn: Turn) -> AgentEvents:
        yield await journaled("greet", hello) if makes_calls else "Hello."

    async def hello() -> str:
        return "Hello."

    others = _live_executions()  # Something may still refer to those of other tests.
    gc.disable()
    try:
        async with open_actor_desk(MemoryStore(), agent) as desk:
            await desk.end(await desk.start())
            async with asyncio.timeout(BOUND):
                while len(_live_executions()) > len(others):  # noqa: ASYNC110 - nothing tells
                    await asyncio.sleep(0.01)
    finally:
        gc.enable()


def _live_executions() -> list[Execution]:
    return [each for each in gc.get_objects() if type(each) is Execution]


async def test_turn_without_an_answer_completes(store: Store) -> None:
    async def silent(turn: Turn) -> AgentEvents:
        for nothing in ():
            yield nothing

    async with open_desk(store, silent) as desk:
        turn = await desk.start()
        assert event_types(await desk.events(turn)) == ["session", "message", "response", "done"]


async def test_agents_response_adds_citations_mode_and_timings(store: Store) -> None:
    async def agent(turn: Turn) -> AgentEvents:
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


async def test_response_without_tokens_becomes_tokens(store: Store) -> None:
    async def agent(turn: Turn) -> AgentEvents:
        yield ResponseEvent("All at once", mode="direct")

    async with open_desk(store, agent) as desk:
        events = await desk.events(await desk.start())
    assert event_types(events) == ["session", "message", "token", "response", "done"]
    assert events[2] == TokenEvent("All at once")


async def test_tokens_of_sub_agents_are_not_part_of_the_answer(store: Store) -> None:
    async def agent(turn: Turn) -> AgentEvents:
        yield TokenEvent("inner", agent_path=("helper",))
        yield "outer"

    async with open_desk(store, agent) as desk:
        events = await desk.events(await desk.start())
    assert events[2] == TokenEvent("inner", agent_path=("helper",))
    assert isinstance(events[-2], ResponseEvent)
    assert events[-2].content == "outer"


async def test_message_is_cleaned_before_it_is_logged(store: Store) -> None:
    async with open_desk(store, echo) as desk:
        turn = await desk.start("a\x00b\ud800")
        events = await desk.events(turn)
    assert events[1] == MessageEvent("ab\ufffd", "ann", "http")
    assert events[2] == TokenEvent("You said: ab\ufffd")


async def test_many_tokens_with_a_small_buffer_are_all_written(store: Store) -> None:
    async def agent(turn: Turn) -> AgentEvents:
        for number in range(300):
            yield f"{number} "

    async with open_desk(store, agent, max_uncommitted_events=3) as desk:
        turn = await desk.start()
        assert (await desk.end(turn)).outcome == "completed"
        state = await store.turn_state(turn.id)
    assert state is not None
    assert state.text == "".join(f"{number} " for number in range(300))


# Turns that fail


async def test_exception_of_an_agent_shows_only_its_class(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    async def agent(turn: Turn) -> AgentEvents:
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
    assert "hunter2" in caplog.text, "the server's log must have the details"


async def test_agent_error_shows_its_message(store: Store) -> None:
    async def agent(turn: Turn) -> AgentEvents:
        yield "half"
        raise AgentError("The model is overloaded.", code="overloaded", retryable=True)

    async with open_desk(store, agent) as desk:
        turn = await desk.start()
        assert await failure(desk, turn) == ErrorEvent("The model is overloaded.", "overloaded", True)


async def test_agent_error_with_invalid_fields_ends_the_turn(store: Store) -> None:
    async def agent(turn: Turn) -> AgentEvents:
        yield "half"
        raise AgentError("Too many requests.\x00", code=429, retryable=1)  # type: ignore[arg-type]

    async with open_desk(store, agent) as desk:
        turn = await desk.start()
        assert await failure(desk, turn) == ErrorEvent("Too many requests.", "429", True)


class OddError(BaseException):
    """A BaseException, as the cancellation of some libraries and the outcomes of test runners are."""


@pytest.mark.parametrize("error", [OddError, SystemExit])
async def test_base_exception_of_an_agent_ends_the_turn(store: Store, error: type[BaseException]) -> None:
    async def agent(turn: Turn) -> AgentEvents:
        yield "half"
        raise error

    async with open_desk(store, agent) as desk:
        turn = await desk.start()
        assert (await failure(desk, turn)).code == "agent_failed"


async def test_invalid_response_ends_the_turn(store: Store) -> None:
    async def agent(turn: Turn) -> AgentEvents:
        yield ResponseEvent("half", mode=5)  # type: ignore[arg-type]

    async with open_desk(store, agent) as desk:
        turn = await desk.start()
        assert (await failure(desk, turn)).code == "event_refused"


async def test_error_event_of_an_agent_ends_the_turn(store: Store) -> None:
    reached_the_end = False

    async def agent(turn: Turn) -> AgentEvents:
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
async def test_reserved_event_of_an_agent_is_refused(store: Store, event: Event) -> None:
    async def agent(turn: Turn) -> AgentEvents:
        yield "half"
        yield event

    async with open_desk(store, agent) as desk:
        turn = await desk.start()
        assert (await failure(desk, turn)).code == "event_refused"
        assert event_types(await desk.events(turn)) == ["session", "message", "token", "error", "done"]


@pytest.mark.parametrize(
    "event",
    [None, 5, {"type": "done"}, b"bytes", TokenEvent(None), StatusEvent(5), CustomEvent("x", float)],  # type: ignore[arg-type]
    ids=repr,
)
async def test_invalid_event_of_an_agent_never_reaches_the_log(store: Store, event: Any) -> None:
    async def agent(turn: Turn) -> AgentEvents:
        yield "half"
        yield event
        yield "more"

    async with open_desk(store, agent) as desk:
        turn = await desk.start()
        events = await desk.events(turn)
        following = await desk.start("next", session_id=turn.session_id)
        assert (await desk.end(following)).reason == (await desk.end(turn)).reason
    if isinstance(event, CustomEvent):
        assert isinstance(events[3], CustomEvent)
        assert events[3].data in ("<type>", "<class 'float'>")
    else:
        assert event_types(events) == ["session", "message", "token", "error", "done"]


async def test_turn_over_its_timeout_fails(store: Store) -> None:
    async def slow(turn: Turn) -> AgentEvents:
        yield "half"
        await asyncio.Event().wait()

    async with open_desk(store, slow, turn_timeout=0.05) as desk:
        turn = await desk.start()
        error = await failure(desk, turn)
    assert (error.code, error.retryable) == ("turn_timeout", True)
    assert "0.05 seconds" in error.error


async def test_timeout_error_of_an_agent_is_an_agent_failure(store: Store) -> None:
    async def agent(turn: Turn) -> AgentEvents:
        yield "half"
        raise TimeoutError("of a tool")

    async with open_desk(store, agent) as desk:
        turn = await desk.start()
        assert (await failure(desk, turn)).code == "agent_failed"


async def test_cancelled_error_of_an_agents_library_is_an_agent_failure(store: Store) -> None:
    async def agent(turn: Turn) -> AgentEvents:
        yield "half"
        inner = asyncio.create_task(asyncio.Event().wait())
        inner.cancel()
        await inner

    async with open_desk(store, agent) as desk:
        turn = await desk.start()
        assert (await failure(desk, turn)).code == "agent_failed"


async def test_event_over_the_size_limit_ends_the_turn(store: Store) -> None:
    async def agent(turn: Turn) -> AgentEvents:
        yield "x" * 900
        yield "x" * 1_001

    async with open_desk(store, agent, max_event_bytes=1_000) as desk:
        turn = await desk.start()
        assert (await failure(desk, turn)).code == "event_too_large"
        assert event_types(await desk.events(turn)) == ["session", "message", "token", "error", "done"]


async def test_turn_over_its_limit_of_events_fails(store: Store) -> None:
    async def endless(turn: Turn) -> AgentEvents:
        while True:
            yield "x"

    async with open_desk(store, endless, max_events_per_turn=10) as desk:
        turn = await desk.start()
        assert (await failure(desk, turn)).code == "too_many_events"
        assert event_types(await desk.events(turn))[2:] == ["token"] * 8 + ["error", "done"]


async def test_turn_taken_over_by_another_worker_is_not_written_to(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()

    async def agent(turn: Turn) -> AgentEvents:
        yield "mine"
        await gate.wait()
        yield "late"
        await asyncio.Event().wait()

    async with open_desk(store, agent, echo) as desk:
        turn = await desk.start()
        await gate.reached()
        await followed(store, turn.id, count=3)
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


async def test_abandoned_turn_is_not_written_to(store: Store) -> None:
    # No other worker has claimed the turn, so that only the execution itself can refuse the late event.
    gate, refusal = Gate(), asyncio.get_running_loop().create_future()

    async def agent(turn: Turn) -> AgentEvents:
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
        desk.runner.worker.running[turn.id].abandon()
        async with asyncio.timeout(BOUND):
            assert isinstance(await refusal, TurnEndedError)
        await settle()
        assert types(await whole_log(store, turn.id)) == ["session", "message", "token"]
        assert (await store.find_turn("ann", turn.id)).phase == "running"


@pytest.mark.parametrize("piece", ["a word ", "\u8336"])
async def test_response_over_the_size_limit_ends_the_turn(store: Store, piece: str) -> None:
    async def talkative(turn: Turn) -> AgentEvents:
        for _ in range(100_000):
            yield piece

    async with open_desk(store, talkative, max_response_bytes=5_000) as desk:
        turn = await desk.start()
        assert (await failure(desk, turn)).code == "event_too_large"
        events = await desk.events(turn)
        text = "".join(event.content for event in events if isinstance(event, TokenEvent))
        assert 4_000 < len(encode_event(ResponseEvent(text))[1]) <= 5_200


async def test_response_with_many_citations_is_measured(store: Store) -> None:
    async def agent(turn: Turn) -> AgentEvents:
        yield "short"
        yield ResponseEvent("", citations=tuple(CitationEvent(n, "d", title="t" * 100) for n in range(100)))

    async with open_desk(store, agent, max_response_bytes=5_000) as desk:
        assert (await failure(desk, await desk.start())).code == "event_too_large"
