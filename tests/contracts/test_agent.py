"""The contract of agent adapters: whole turns, through the real runner, against a real model server."""

import asyncio
import json
import threading
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from tests.contracts.agents import CASES, Ability, AgentCase, case_fixture
from tests.contracts.turns import BOUND
from tests.core.desk import Desk, Gate
from tests.scripted_model import (
    Answer,
    Failure,
    Request,
    ScriptedModel,
    breaks,
    calls,
    conversation_of,
    cuts,
    fails,
    filtered,
    garbles,
    hangs,
    model_server,
    says,
    silent,
    thinks,
    too_long,
    truncates,
)
from turnwire.core.errors import AttachmentsNotTakenError, ClientToolsNotTakenError, TurnEndedError
from turnwire.core.log.emit import emit
from turnwire.core.log.events import (
    AttachedFile,
    DoneEvent,
    ErrorEvent,
    Event,
    ReasoningEvent,
    ResponseEvent,
    StatusEvent,
    TokenEvent,
    ToolCallEvent,
    ToolProgressEvent,
    ToolResultEvent,
    Usage,
    UsageEvent,
)
from turnwire.core.log.follow import follow
from turnwire.core.log.turns import TurnRecord
from turnwire.core.people.budget import Limits
from turnwire.testing.scripted_wires import Ending
from turnwire.tools import progress

__all__ = ["model_server"]

SECRET = "the password is swordfish"
E = TypeVar("E", bound=Event)


case = case_fixture()


# Tools


async def weather(city: str) -> str:
    """Return the weather in a city."""
    emit(StatusEvent(f"asking about {city}"))
    await asyncio.sleep(0)
    progress("half way", 0.5)
    return f"Sunny in {city}"


def blocking_weather(city: str) -> str:
    """Return the weather in a city, with a library that blocks."""
    emit(StatusEvent(f"asking about {city}"))
    progress("half way", 0.5)
    return f"Sunny in {city}"


async def broken(city: str) -> str:
    """Raise an error."""
    raise LookupError(f"{city}: {SECRET}")


# Reading logs and requests


async def seen(desk: Desk, turn: TurnRecord, matches: Callable[[Event], bool]) -> list[Event]:
    """Return the log of a running turn up to the first event that matches."""
    events: list[Event] = []
    async with asyncio.timeout(BOUND), aclosing(follow(desk.store, turn.id, 0)) as batches:
        async for batch in batches:
            for logged in batch:
                events.append(logged.event)
                if matches(logged.event):
                    return events
    raise AssertionError(f"no event matches: {events}")


def only(events: list[Event], kind: type[E]) -> list[E]:
    return [event for event in events if isinstance(event, kind)]


def tokens(events: list[Event]) -> list[str]:
    return [event.content for event in only(events, TokenEvent)]


def text(events: list[Event]) -> str:
    return "".join(tokens(events))


def index_of(events: list[Event], kind: type[Event]) -> int:
    return next(index for index, event in enumerate(events) if isinstance(event, kind))


def outcome(events: list[Event]) -> tuple[str, str | None]:
    """Return the outcome of a turn and the code of its error."""
    done = events[-1]
    assert isinstance(done, DoneEvent), events[-1]
    errors = only(events, ErrorEvent)
    assert len(errors) <= 1
    return done.outcome, errors[0].code if errors else None


def check_calls_have_results(events: list[Event]) -> None:
    call_ids = [event.call_id for event in only(events, ToolCallEvent)]
    assert sorted(call_ids) == sorted(event.call_id for event in only(events, ToolResultEvent))
    assert len(set(call_ids)) == len(call_ids)


def tool_results_of(body: dict[str, Any]) -> list[str]:
    """Return the tool results in a model request."""
    return [entry[1] for kind, entry in conversation_of(body) if kind == "result"]


# Text


async def test_tokens_arrive_as_the_model_sends_them(case: AgentCase, model_server: ScriptedModel) -> None:
    gate = asyncio.Event()
    model_server.plan(says("Green ", "tea,\n", gate, " gladly", " 🍵."))
    async with case.desk(model_server) as desk:
        turn = await desk.start("What do you drink?")
        early = await seen(desk, turn, lambda event: event == TokenEvent("tea,\n"))
        assert tokens(early) == ["Green ", "tea,\n"]
        gate.set()
        events = await desk.events(turn)
    assert tokens(events) == ["Green ", "tea,\n", " gladly", " 🍵."]
    assert outcome(events) == ("completed", None)
    (response,) = only(events, ResponseEvent)
    assert response.content == "Green tea,\n gladly 🍵."
    assert conversation_of(model_server.bodies[0])[-1] == ("user", "What do you drink?")


async def test_usage_of_all_model_calls_is_reported(case: AgentCase, model_server: ScriptedModel) -> None:
    model_server.plan(calls(("weather", {"city": "Oslo"})), says("Sunny."))
    async with case.desk(model_server, weather) as desk:
        events = await desk.events(await desk.start())
    assert sum(event.input_tokens or 0 for event in only(events, UsageEvent)) == 22
    (response,) = only(events, ResponseEvent)
    assert isinstance(response.usage, Usage)
    assert (response.usage.input_tokens, response.usage.output_tokens) == (22, 14)


async def test_missing_usage_is_not_reported_as_zero(case: AgentCase, model_server: ScriptedModel) -> None:
    model_server.plan(says("Sunny.", usage=None))
    async with case.desk(model_server) as desk:
        events = await desk.events(await desk.start())
    assert outcome(events) == ("completed", None)
    for event in only(events, UsageEvent):
        assert (event.input_tokens, event.output_tokens) == (None, None)


async def test_reasoning_is_separate_from_the_answer(case: AgentCase, model_server: ScriptedModel) -> None:
    model_server.plan(says(thinks("Hm, "), thinks("tea."), "Tea."))
    async with case.desk(model_server) as desk:
        events = await desk.events(await desk.start())
    assert outcome(events) == ("completed", None)
    assert text(events) == "Tea."
    thought = "".join(event.content for event in only(events, ReasoningEvent))
    assert thought == ("Hm, tea." if case.can("reasoning") else "")


# Tools


@pytest.mark.parametrize("tool", [weather, blocking_weather], ids=["async", "sync"])
async def test_tool_call_progress_and_result_are_logged_in_order(
    case: AgentCase, model_server: ScriptedModel, tool: Callable[..., Any]
) -> None:
    model_server.plan(calls((tool.__name__, {"city": "Oslo"})), says("It is sunny."))
    async with case.desk(model_server, tool) as desk:
        events = await desk.events(await desk.start())
    assert outcome(events) == ("completed", None)
    (call,), (result,) = only(events, ToolCallEvent), only(events, ToolResultEvent)
    assert (call.call_id, call.tool, call.args) == ("call_1", tool.__name__, {"city": "Oslo"})
    assert (result.call_id, result.tool, result.success) == ("call_1", tool.__name__, True)
    assert result.result == "Sunny in Oslo"
    assert result.ms is not None
    assert 0 <= result.ms < 60_000
    assert only(events, StatusEvent) == [StatusEvent("asking about Oslo")]
    order = [index_of(events, kind) for kind in (ToolCallEvent, StatusEvent, ToolResultEvent, TokenEvent)]
    assert order == sorted(order)
    assert only(events, ToolProgressEvent) == [ToolProgressEvent("call_1", "half way", 0.5)]
    assert tool_results_of(model_server.bodies[1]) == ["Sunny in Oslo"]
    (response,) = only(events, ResponseEvent)
    assert response.tools_used == (tool.__name__,)


async def test_result_of_each_parallel_tool_is_logged_when_it_ends(
    case: AgentCase, model_server: ScriptedModel
) -> None:
    short_gate, long_gate = Gate(), Gate()

    async def short(city: str) -> str:
        """Return soon."""
        await short_gate.wait()
        return f"short {city}"

    async def long(city: str) -> str:
        """Return late."""
        await long_gate.wait()
        return f"long {city}"

    both = ("long", {"city": "Oslo"}), ("short", {"city": "Rome"})
    model_server.plan(calls(*both, woven=case.can("woven")), says("Both."))
    async with case.desk(model_server, short, long) as desk:
        turn = await desk.start()
        await long_gate.reached()
        await short_gate.reached()
        early = await seen(desk, turn, lambda event: isinstance(event, ToolCallEvent) and event.tool == "short")
        assert not only(early, ToolResultEvent)
        short_gate.open()
        early = await seen(desk, turn, lambda event: isinstance(event, ToolResultEvent))
        assert [(event.tool, event.result) for event in only(early, ToolResultEvent)] == [("short", "short Rome")]
        long_gate.open()
        events = await desk.events(turn)
    assert outcome(events) == ("completed", None)
    assert {event.call_id: event.args["city"] for event in only(events, ToolCallEvent)} == {
        "call_1": "Oslo",
        "call_2": "Rome",
    }
    assert [event.tool for event in only(events, ToolResultEvent)] == ["short", "long"]
    check_calls_have_results(events)
    assert sorted(tool_results_of(model_server.bodies[1])) == ["long Oslo", "short Rome"]


async def test_result_is_logged_as_a_value(case: AgentCase, model_server: ScriptedModel) -> None:
    async def forecast(city: str) -> dict[str, Any]:
        """Return the weather of tomorrow."""
        return {"city": city, "degrees": [3, 4.5], "sky": None}

    model_server.plan(calls(("forecast", {"city": "Oslo"})), says("Sunny."))
    async with case.desk(model_server, forecast) as desk:
        events = await desk.events(await desk.start())
    (result,) = only(events, ToolResultEvent)
    value = result.result if case.can("values") else json.loads(result.result)
    assert value == {"city": "Oslo", "degrees": [3, 4.5], "sky": None}
    (sent,) = tool_results_of(model_server.bodies[1])
    assert "Oslo" in sent
    assert "4.5" in sent


async def test_text_before_a_tool_call_is_part_of_the_answer(case: AgentCase, model_server: ScriptedModel) -> None:
    model_server.plan(calls(("weather", {"city": "Oslo"}), text="Let me look."), says("Sunny."))
    async with case.desk(model_server, weather) as desk:
        events = await desk.events(await desk.start())
    assert outcome(events) == ("completed", None)
    assert text(events[: index_of(events, ToolCallEvent)]) == "Let me look."
    assert text(events) == "Let me look.\n\nSunny."
    (response,) = only(events, ResponseEvent)
    assert response.content == text(events)


async def test_tool_that_raises_fails_without_its_message(case: AgentCase, model_server: ScriptedModel) -> None:
    model_server.plan(calls(("broken", {"city": "Oslo"})))
    if not case.tool_error_is_fatal:
        model_server.plan(says("It does not work."))
    async with case.desk(model_server, broken) as desk:
        turn = await desk.start()
        events = await desk.events(turn)
        assert outcome(events) == (("failed", "tool_failed") if case.tool_error_is_fatal else ("completed", None))
        (result,) = only(events, ToolResultEvent)
        assert (result.call_id, result.tool, result.success) == ("call_1", "broken", False)
        assert "LookupError" in str(result.result)
        assert "swordfish" not in repr(events)
        if not case.tool_error_is_fatal:
            assert all(tool_results_of(model_server.bodies[1]))
        model_server.plan(says("Still here."))
        again = await desk.events(await desk.start("And now?", session_id=turn.session_id))
    assert outcome(again) == ("completed", None)


async def test_tool_that_raises_does_not_affect_a_parallel_one(case: AgentCase, model_server: ScriptedModel) -> None:
    model_server.plan(calls(("weather", {"city": "Oslo"}), ("broken", {"city": "Rome"})))
    if not case.tool_error_is_fatal:
        model_server.plan(says("One of them works."))
    async with case.desk(model_server, weather, broken) as desk:
        turn = await desk.start()
        events = await desk.events(turn)
        failed = [event.tool for event in only(events, ToolResultEvent) if not event.success]
        assert failed == ["broken"]
        if not case.tool_error_is_fatal:
            check_calls_have_results(events)
            assert outcome(events) == ("completed", None)
        model_server.plan(says("Still here."))
        await desk.events(await desk.start("And now?", session_id=turn.session_id))
    check_history(model_server.bodies[-1])


async def test_call_of_an_unknown_tool_is_answered_or_ends_the_turn(
    case: AgentCase, model_server: ScriptedModel
) -> None:
    model_server.plan(calls(("delete_everything", {"sure": True})))
    if not case.unknown_tool_is_fatal:
        model_server.plan(says("Then not."))
    async with case.desk(model_server, weather) as desk:
        turn = await desk.start()
        events = await desk.events(turn)
        if case.unknown_tool_is_fatal:
            assert outcome(events) == ("failed", "bad_answer")
        else:
            assert outcome(events) == ("completed", None)
            check_calls_have_results(events)
            assert not [event for event in only(events, ToolResultEvent) if event.success]
        model_server.plan(says("Still here."))
        again = await desk.events(await desk.start("And now?", session_id=turn.session_id))
    assert outcome(again) == ("completed", None)
    check_history(model_server.bodies[-1])


@pytest.mark.parametrize(
    "arguments", ['{"city": "Os', '{"town": "Oslo"}', "[1]"], ids=["cut", "wrong", "not an object"]
)
async def test_invalid_arguments_are_reported_to_the_model(
    case: AgentCase, model_server: ScriptedModel, arguments: str
) -> None:
    ran: list[str] = []

    async def weather(city: str) -> str:
        """Return the weather in a city."""
        ran.append(city)
        return f"Sunny in {city}"

    continues = case.can("lists") if arguments == "[1]" else not arguments.endswith("Os") or case.can("fragments")
    model_server.plan(calls(("weather", arguments)))
    if continues:
        model_server.plan(calls(("weather", {"city": "Rome"}), ids=["call_9"]), says("Done."))
    async with case.desk(model_server, weather) as desk:
        turn = await desk.start()
        events = await desk.events(turn)
        assert outcome(events)[0] == ("completed" if continues else "failed")
        assert ran == (["Rome"] if continues else [])
        check_calls_have_results(events)
        results = {event.call_id: event.success for event in only(events, ToolResultEvent)}
        assert results.get("call_9", False) is continues
        assert results.get("call_1", False) is False
        model_server.plan(says("Still here."))
        await desk.events(await desk.start("And now?", session_id=turn.session_id))
    check_history(model_server.bodies[-1])


# Several turns


def check_history(body: dict[str, Any]) -> None:
    """Check that every tool call has exactly one result, after it, as model providers demand."""
    steps = [(kind, entry[0]) for kind, entry in conversation_of(body) if kind in ("call", "result")]
    for call_id in {call_id for _, call_id in steps}:
        assert [kind for kind, id_ in steps if id_ == call_id] == ["call", "result"]


async def test_second_turn_has_the_first_in_its_history(case: AgentCase, model_server: ScriptedModel) -> None:
    model_server.plan(calls(("weather", {"city": "Oslo"})), says("Sunny."), says("Oslo's."))
    async with case.desk(model_server, weather) as desk:
        first = await desk.start("How is the weather?")
        await desk.events(first)
        second = await desk.events(await desk.start("Whose weather?", session_id=first.session_id))
    assert outcome(second) == ("completed", None)
    assert text(second) == "Oslo's."
    body = model_server.bodies[2]
    assert conversation_of(body) == [
        ("user", "How is the weather?"),
        ("call", ("call_1", "weather", {"city": "Oslo"})),
        ("result", ("call_1", "Sunny in Oslo")),
        ("assistant", "Sunny."),
        ("user", "Whose weather?"),
    ]


async def test_concurrent_turns_do_not_mix(case: AgentCase, model_server: ScriptedModel) -> None:
    def answer(request: Request) -> Answer:
        kind, entry = conversation_of(request.body)[-1]
        return says(f"For {entry[1]}.") if kind == "result" else calls(("weather", {"city": entry}))

    cities = ["Oslo", "Rome", "Lima"]
    model_server.plan(*[answer] * 2 * len(cities))
    async with case.desk(model_server, weather) as desk:
        turns = [await desk.start(city) for city in cities]
        logs = [await desk.events(turn) for turn in turns]
    for city, events in zip(cities, logs, strict=True):
        assert text(events) == f"For Sunny in {city}."
        assert only(events, StatusEvent) == [StatusEvent(f"asking about {city}")]
        assert [event.args for event in only(events, ToolCallEvent)] == [{"city": city}]


# Failures of the model


FAILURES: list[tuple[str, Answer | Failure, str]] = [
    ("truncated", truncates("Half an"), "truncated"),
    ("at its limit", too_long("Half an"), "truncated"),
    ("filtered", filtered("Half an"), "content_filtered"),
    ("cut", cuts("Half an"), "model_unavailable"),
    ("not JSON", garbles("Half an"), "model_unavailable"),
    ("broken", breaks("Half an"), "model_unavailable"),
    ("429", fails(429), "rate_limited"),
    ("500", fails(500, message=SECRET), "model_unavailable"),
    ("401", fails(401, message=SECRET), "model_refused"),
    ("too long", fails(400, code="context_length_exceeded", message=SECRET), "context_too_long"),
]


async def check_continued(case: AgentCase, model_server: ScriptedModel, answer: Answer) -> None:
    """Check that the SDK requests the rest of an answer, and that both are one text."""
    model_server.plan(answer, says(" answer."))
    async with case.desk(model_server) as desk:
        events = await desk.events(await desk.start())
    assert outcome(events) == ("completed", None)
    assert text(events) == "Half an answer."


@pytest.mark.parametrize(
    ("answer", "code"), [(answer, code) for _, answer, code in FAILURES], ids=[name for name, _, _ in FAILURES]
)
async def test_partial_answer_fails_the_turn(
    case: AgentCase, model_server: ScriptedModel, answer: Answer | Failure, code: str
) -> None:
    if isinstance(answer, Answer) and answer.ending == "length" and not case.can("limits"):
        await check_continued(case, model_server, answer)
        return
    code = case.truncated if isinstance(answer, Answer) and answer.ending == "unfinished" else code
    shown = asyncio.Event()
    if isinstance(answer, Answer) and answer.ending == "cut" and not case.can("tail"):
        answer = replace(answer, pieces=(*answer.pieces, shown))
    model_server.plan(answer)
    async with case.desk(model_server) as desk:
        turn = await desk.start()
        if isinstance(answer, Answer) and shown in answer.pieces:
            await seen(desk, turn, lambda event: isinstance(event, TokenEvent) and event.content.endswith("an"))
            shown.set()
        events = await desk.events(turn)
        assert outcome(events) == ("failed", code)
        assert text(events) == ("Half an" if isinstance(answer, Answer) else "")
        (error,) = only(events, ErrorEvent)
        assert error.retryable == (code in ("model_unavailable", "rate_limited"))
        assert "swordfish" not in repr(events)
        model_server.plan(says("Whole."))
        again = await desk.events(await desk.start("Again", session_id=turn.session_id))
    assert outcome(again) == ("completed", None)
    assert text(again) == "Whole."


async def test_partial_answer_after_a_tool_fails_the_turn(case: AgentCase, model_server: ScriptedModel) -> None:
    model_server.plan(calls(("weather", {"city": "Oslo"})), truncates("Half an"))
    async with case.desk(model_server, weather) as desk:
        events = await desk.events(await desk.start())
    assert outcome(events) == ("failed", case.truncated)
    check_calls_have_results(events)
    assert text(events).endswith("Half an")


@pytest.mark.parametrize("ending", ["unfinished", "length", "cut"])
async def test_tool_call_of_a_partial_answer_never_runs(
    case: AgentCase, model_server: ScriptedModel, ending: Ending
) -> None:
    ran: list[str] = []

    async def delete(city: str) -> str:
        """Delete a city."""
        ran.append(city)
        return "gone"

    answer = replace(calls(("delete", {"city": "Oslo"})), ending=ending)
    model_server.plan(answer)
    async with case.desk(model_server, delete) as desk:
        events = await desk.events(await desk.start())
    codes = {"unfinished": case.truncated, "length": "truncated", "cut": "model_unavailable"}
    assert outcome(events) == ("failed", codes[ending])
    assert not ran
    assert not only(events, ToolCallEvent)


@pytest.mark.parametrize("answer", [silent("Half an"), hangs()], ids=["midway", "from the start"])
async def test_silent_model_fails_after_the_timeout(
    case: AgentCase, model_server: ScriptedModel, answer: Answer | Failure
) -> None:
    sent = "Half an" if isinstance(answer, Answer) else ""
    # A slow machine may need more time for what is sent before the silence.
    for seconds in (0.2, 2, 20):
        model_server.plan(answer)
        async with case.desk(model_server, timeout=seconds) as desk:
            events = await desk.events(await desk.start())
            assert outcome(events) == ("failed", "model_unavailable")
            await model_server.aborted()
        if text(events) == sent:
            break
    assert text(events) == sent


async def test_turn_over_its_limit_of_model_calls_fails(case: AgentCase, model_server: ScriptedModel) -> None:
    call = ("weather", {"city": "Oslo"})
    model_server.plan(calls(call, ids=["call_1"]), calls(call, ids=["call_2"]))
    async with case.desk(model_server, weather, max_turns=2) as desk:
        turn = await desk.start()
        events = await desk.events(turn)
        assert outcome(events) == ("failed", "max_turns")
        assert len(model_server.requests) == 2
        model_server.plan(says("Whole."))
        again = await desk.events(await desk.start("Again", session_id=turn.session_id))
    assert outcome(again) == ("completed", None)
    check_history(model_server.bodies[-1])


async def test_turn_within_its_limit_of_model_calls_completes(case: AgentCase, model_server: ScriptedModel) -> None:
    model_server.plan(calls(("weather", {"city": "Oslo"})), says("Sunny."))
    async with case.desk(model_server, weather, max_turns=2) as desk:
        events = await desk.events(await desk.start())
    assert outcome(events) == ("completed", None)


async def test_turn_over_its_limit_of_steps_fails(case: AgentCase, model_server: ScriptedModel) -> None:
    cities: list[str] = []

    async def look(city: str) -> str:
        """Look out of the window."""
        cities.append(city)
        return "sunny"

    model_server.plan(*(calls(("look", {"city": f"city {number}"}), ids=[f"call_{number}"]) for number in (1, 2, 3)))
    async with case.desk(model_server, look, limits=Limits(max_steps_per_turn=2)) as desk:
        turn = await desk.start()
        events = await desk.events(turn)
        assert outcome(events) == ("failed", "max_turns")
        assert [event.call_id for event in events if isinstance(event, ToolCallEvent)] == ["call_1", "call_2"]
        # Pydantic AI starts a tool while it reports the call, so a tool that does not wait has ended by then.
        begun = ["city 1", "city 2", *(["city 3"] if case.module.NAME == "pydantic_ai" else [])]
        assert cities in (begun, begun[:2])
        model_server.plan(says("Whole."))
        again = await desk.events(await desk.start("Again", session_id=turn.session_id))
    assert outcome(again) == ("completed", None)
    check_history(model_server.bodies[-1])


async def test_turn_that_continues_over_its_budget_fails(case: AgentCase, model_server: ScriptedModel) -> None:
    call = ("weather", {"city": "Oslo"})
    model_server.plan(
        calls(call, ids=["call_1"], usage={"input": 90, "output": 20}),
        calls(call, ids=["call_2"], usage={"input": 90, "output": 20}),
    )
    async with case.desk(model_server, weather, limits=Limits(max_tokens_per_day=100)) as desk:
        assert outcome(await desk.events(await desk.start())) == ("failed", "budget_spent")
        used = (await desk.runner.budget("ann")).used
    assert used == 110 * len(model_server.requests)


# Cancelling


async def cancel_and_check_session(desk: Desk, turn: TurnRecord, server: ScriptedModel) -> list[Event]:
    """Cancel the turn, check that the session still works, and return the log of the cancelled turn."""
    await desk.cancel(turn)
    events = await desk.events(turn)
    assert outcome(events) == ("cancelled", None)
    server.plan(says("Whole."))
    again = await desk.events(await desk.start("Again", session_id=turn.session_id))
    assert outcome(again) == ("completed", None)
    assert text(again) == "Whole."
    check_history(server.bodies[-1])
    return events


async def test_cancel_during_an_answer_closes_the_model_connection(
    case: AgentCase, model_server: ScriptedModel
) -> None:
    model_server.plan(silent("Half an"))
    async with case.desk(model_server) as desk:
        turn = await desk.start()
        await seen(desk, turn, lambda event: isinstance(event, TokenEvent) and "an" in event.content)
        await desk.cancel(turn)
        await model_server.aborted()
        events = await cancel_and_check_session(desk, turn, model_server)
    assert text(events) == "Half an"
    assert any("Half an" in str(entry) for _, entry in conversation_of(model_server.bodies[-1]))


async def test_cancel_of_a_silent_model_closes_the_connection(case: AgentCase, model_server: ScriptedModel) -> None:
    model_server.plan(hangs())
    async with case.desk(model_server) as desk:
        turn = await desk.start()
        await model_server.request()
        await desk.cancel(turn)
        await model_server.aborted()
        await cancel_and_check_session(desk, turn, model_server)


async def test_cancel_during_a_tool_stops_the_tool(case: AgentCase, model_server: ScriptedModel) -> None:
    reached, ended = asyncio.Event(), asyncio.Event()

    async def endless(city: str) -> str:
        """Never return."""
        reached.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return city

    model_server.plan(calls(("endless", {"city": "Oslo"}), ("weather", {"city": "Rome"}), text="Let me look."))
    async with case.desk(model_server, endless, weather) as desk:
        turn = await desk.start()
        async with asyncio.timeout(BOUND):
            await reached.wait()
        await seen(desk, turn, lambda event: isinstance(event, ToolResultEvent) and event.tool == "weather")
        events = await cancel_and_check_session(desk, turn, model_server)
        async with asyncio.timeout(BOUND):
            await ended.wait()
    assert text(events).strip() == "Let me look."
    assert [event.tool for event in only(events, ToolCallEvent)] == ["endless", "weather"]
    assert [event.tool for event in only(events, ToolResultEvent)] == ["weather"]
    results = [entry for kind, entry in conversation_of(model_server.bodies[-1]) if kind == "result"]
    assert results == [("call_1", '{"error":"cancelled"}'), ("call_2", "Sunny in Rome")]


async def test_cancel_does_not_wait_for_a_thread(case: AgentCase, model_server: ScriptedModel) -> None:
    reached, proceed, stopped = asyncio.Event(), threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def blocking(city: str) -> str:
        """Block, then emit an event."""
        loop.call_soon_threadsafe(reached.set)
        assert proceed.wait(BOUND)
        try:
            emit(StatusEvent("too late"))
        except TurnEndedError:
            loop.call_soon_threadsafe(stopped.set)
            raise
        return city

    model_server.plan(calls(("blocking", {"city": "Oslo"})))
    async with case.desk(model_server, blocking) as desk:
        turn = await desk.start()
        try:
            async with asyncio.timeout(BOUND):
                await reached.wait()
            events = await cancel_and_check_session(desk, turn, model_server)
        finally:
            proceed.set()
        async with asyncio.timeout(BOUND):
            await stopped.wait()
    assert not only(events, StatusEvent)


# What an adapter cannot do


def cases_without(ability: Ability) -> pytest.MarkDecorator:
    cases = [each for each in CASES if not each.can(ability)]
    return pytest.mark.parametrize("case", [pytest.param(each, id=each.id, marks=each.needs) for each in cases])


@cases_without("files")
async def test_agent_that_takes_no_files_refuses_a_message_with_one(
    case: AgentCase, model_server: ScriptedModel
) -> None:
    picture = AttachedFile(media_type="image/png", url="https://example.org/cat.png")
    async with case.desk(model_server) as desk:
        with pytest.raises(AttachmentsNotTakenError):
            await desk.start("See?", attachments=[picture])
        assert await desk.store.list_turns("ann") == []


@cases_without("waits")
async def test_agent_without_a_journal_refuses_tools_of_the_client(
    case: AgentCase, model_server: ScriptedModel
) -> None:
    async with case.desk(model_server) as desk:
        with pytest.raises(ClientToolsNotTakenError):
            await desk.start("Where am I?", options={"client_tools": [{"name": "locate"}]})
        assert await desk.store.list_turns("ann") == []


@cases_without("steering")
async def test_message_to_a_running_agent_that_takes_none_begins_the_next_turn(
    case: AgentCase, model_server: ScriptedModel
) -> None:
    gate = asyncio.Event()
    model_server.plan(says("Sun", gate, "ny."), says("Rainy."))
    async with case.desk(model_server) as desk:
        turn = await desk.start("How is Oslo?")
        await seen(desk, turn, lambda event: isinstance(event, TokenEvent))
        sent = await desk.start("And Bergen?", session_id=turn.session_id, on_busy="steer")
        gate.set()
        assert text(await desk.events(turn)) == "Sunny."
        assert text(await desk.events(sent)) == "Rainy."
    assert [entry for _, entry in conversation_of(model_server.bodies[1])] == ["How is Oslo?", "Sunny.", "And Bergen?"]


def test_every_limitation_of_a_case_has_a_reason() -> None:
    for case in CASES:
        assert all(len(reason) > 10 for reason in case.module.CANNOT.values())
