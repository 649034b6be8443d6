"""Tests that are special to the OpenAI Agents SDK; the contract suite has the rest."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any, Literal

import pytest
from agents import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrail,
    Model,
    ModelSettings,
    OpenAIProvider,
    OutputGuardrail,
    RunConfig,
    RunContextWrapper,
    RunHooks,
    Runner,
    SQLiteSession,
    TracingProcessor,
    WebSearchTool,
    function_tool,
    handoff,
    set_trace_processors,
)
from agents.testing import ScriptedModel as SdkScript
from agents.testing import assistant_message, function_call
from agents.tool_guardrails import ToolGuardrailFunctionOutput, tool_input_guardrail
from openai import AsyncOpenAI
from pydantic import BaseModel

from tests.contracts.agent_cases.openai_agents import sdk_model
from tests.contracts.test_agent import (
    SECRET,
    check_calls_have_results,
    conversation_of,
    only,
    outcome,
    seen,
    text,
    tool_results_of,
)
from tests.contracts.turns import BOUND
from tests.core.desk import Desk, Gate, open_actor_desk
from tests.scripted_model import ScriptedModel, calls, fails, model_server, says, silent, thinks
from turnwire.agents.openai_agents import OpenAIAgentsAgent
from turnwire.core.log.emit import emit
from turnwire.core.log.events import (
    ErrorEvent,
    Event,
    HandoffEvent,
    ReasoningEvent,
    ResponseEvent,
    StatusEvent,
    TokenEvent,
    ToolCallEvent,
    ToolProgressEvent,
    ToolResultEvent,
    UsageEvent,
)
from turnwire.core.log.turns import Turn
from turnwire.core.people.budget import Limits
from turnwire.core.run.runner import TurnRunner
from turnwire.stores.memory import MemoryStore
from turnwire.testing.scripted_wires import chat_usage
from turnwire.tools import progress

__all__ = ["model_server"]

Api = Literal["chat", "responses"]


@pytest.fixture(params=["chat", "responses"])
def api(request: pytest.FixtureRequest) -> Api:
    return request.param


@pytest.fixture
async def model(model_server: ScriptedModel, api: Api) -> AsyncIterator[Model]:
    made: Any = sdk_model(model_server.url, api=api)
    yield made
    await made._client.close()


@asynccontextmanager
async def open_desk(agent: Agent[Any], **options: Any) -> AsyncIterator[Desk]:
    store = MemoryStore()
    runner = TurnRunner(store, {"agent": OpenAIAgentsAgent(agent, **options)}, Limits())
    await runner.open()
    try:
        yield Desk(store, runner)
    finally:
        await runner.close()


async def answered(agent: Agent[Any], message: str = "Hello", **options: Any) -> list[Event]:
    async with open_desk(agent, **options) as desk:
        return await desk.events(await desk.start(message))


@function_tool
async def weather(city: str) -> str:
    """Return the weather in a city."""
    emit(StatusEvent(f"asking about {city}"))
    return f"Sunny in {city}"


# Handoffs


async def test_a_handoff_is_told_and_the_other_agent_answers(model: Model, model_server: ScriptedModel) -> None:
    refunds = Agent(name="Refunds", model=model, tools=[weather])
    triage = Agent(name="Triage", model=model, handoffs=[refunds])
    model_server.plan(
        calls(("transfer_to_refunds", {}), text="One moment."),
        calls(("weather", {"city": "Oslo"}), ids=["call_2"]),
        says("Here is your money."),
    )
    events = await answered(triage)
    assert outcome(events) == ("completed", None)
    assert only(events, HandoffEvent) == [HandoffEvent("Refunds")]
    # A handoff is no tool call; and who has taken over is not a sub-agent.
    assert [(event.tool, event.agent_path) for event in only(events, ToolCallEvent)] == [("weather", ())]
    assert text(events) == "One moment.\n\nHere is your money."
    places = [events.index(only(events, kind)[0]) for kind in (HandoffEvent, ToolCallEvent)]
    assert places == sorted(places)


@pytest.mark.parametrize("keeps", [True, False])
async def test_next_turn_begins_with_the_agent_of_the_handoff(
    model: Model, model_server: ScriptedModel, keeps: bool
) -> None:
    seats = Agent(name="Seats", instructions="Seat people.", model=model)
    triage = Agent(name="Triage", instructions="Send people on.", model=model, handoffs=[handoff(seats)])
    seats.handoffs.append(triage)
    model_server.plan(
        calls(("transfer_to_seats", {})), says("Which?"), says("Sure?"), calls(("transfer_to_triage", {})), says("Yes?")
    )
    model_server.plan(says("Done."))
    async with open_desk(triage, keeps_last_agent=keeps) as desk:
        first = await desk.start("A seat")
        await desk.events(first)
        for message in ("12A", "Thanks", "Bye"):
            await desk.events(await desk.start(message, session_id=first.session_id))
    begun = [_instructions(body) for body in model_server.bodies]
    seat, send = "Seat people.", "Send people on."
    assert begun == ([send, seat, seat, seat, send, send] if keeps else [send, seat, send, send, send, send])


def _instructions(body: dict[str, Any]) -> str:
    return body["instructions"] if "instructions" in body else body["messages"][0]["content"]


async def test_context_can_be_kept_over_turns(model: Model, model_server: ScriptedModel) -> None:
    stored: dict[str, list[str]] = {}

    async def load(turn: Turn) -> list[str]:
        return list(stored.get(turn.session_id, []))

    async def save(turn: Turn, context: list[str]) -> None:
        stored[turn.session_id] = context

    @function_tool
    async def note(context: RunContextWrapper[list[str]], text: str) -> str:
        """Note something."""
        context.context.append(text)
        return ", ".join(context.context)

    agent = Agent(name="Helper", model=model, tools=[note])
    model_server.plan(calls(("note", {"text": "12A"})), says("Noted."), calls(("note", {"text": "tea"})), says("Too."))
    async with open_desk(agent, context=load, save_context=save) as desk:
        first = await desk.start("A seat")
        await desk.events(first)
        events = await desk.events(await desk.start("And tea", session_id=first.session_id))
    assert [event.result for event in only(events, ToolResultEvent)] == ["12A, tea"]


async def test_tools_may_write_to_the_default_context(model: Model, model_server: ScriptedModel) -> None:
    @function_tool
    async def book(context: RunContextWrapper[Any]) -> str:
        """Book a seat."""
        context.context.seat = "12A"
        return f"{context.context.principal}: {context.context.seat}"

    model_server.plan(calls(("book", {})), says("Done."))
    events = await answered(Agent(name="Helper", model=model, tools=[book]))
    assert [event.result for event in only(events, ToolResultEvent)] == ["ann: 12A"]


# Guardrails


async def _tripped(context: RunContextWrapper[Any], agent: Any, content: Any) -> GuardrailFunctionOutput:
    return GuardrailFunctionOutput(output_info=SECRET, tripwire_triggered=True)


@pytest.mark.parametrize(
    "guardrails",
    [
        {"input_guardrails": [InputGuardrail(_tripped)]},
        {"input_guardrails": [InputGuardrail(_tripped, run_in_parallel=False)]},
        {"output_guardrails": [OutputGuardrail(_tripped)]},
    ],
    ids=["input", "input before", "output"],
)
async def test_a_guardrail_that_trips_fails_the_turn(
    model: Model, model_server: ScriptedModel, guardrails: dict[str, Any]
) -> None:
    model_server.plan(says("No."))
    events = await answered(Agent(name="Helper", model=model, **guardrails))
    assert outcome(events) == ("failed", "guardrail")
    assert not only(events, ErrorEvent)[0].retryable
    assert "swordfish" not in repr(events)


class Verdict(BaseModel):
    is_homework: bool


async def test_json_of_a_guardrail_agent_is_not_shown(model: Model, model_server: ScriptedModel) -> None:
    checker = Agent(name="Checker", model=model, output_type=Verdict)

    async def check(context: RunContextWrapper[Any], agent: Any, content: Any) -> GuardrailFunctionOutput:
        result = await Runner.run(checker, content)
        return GuardrailFunctionOutput(result.final_output, tripwire_triggered=result.final_output.is_homework)

    guardrail = InputGuardrail(check, run_in_parallel=False)
    model_server.plan(says('{"is_homework": ', "false}"), says("Sunny."))
    events = await answered(Agent(name="Helper", model=model, input_guardrails=[guardrail]))
    assert outcome(events) == ("completed", None)
    assert [(event.content, event.agent_path) for event in only(events, TokenEvent)] == [("Sunny.", ())]
    assert [event.agent_path for event in only(events, UsageEvent)] == [("Checker",), ()]


@pytest.mark.parametrize("tool_is_stopped", ["reject", "raise"])
async def test_a_tool_that_a_guardrail_stops_is_told_as_failed(
    model: Model, model_server: ScriptedModel, tool_is_stopped: str
) -> None:
    @tool_input_guardrail
    def guard(data: Any) -> ToolGuardrailFunctionOutput:
        if tool_is_stopped == "raise":
            return ToolGuardrailFunctionOutput.raise_exception(SECRET)
        return ToolGuardrailFunctionOutput.reject_content("Not Oslo.")

    @function_tool(tool_input_guardrails=[guard])
    async def guarded(city: str) -> str:
        """A tool that must not be run."""
        raise AssertionError("it ran")

    model_server.plan(calls(("guarded", {"city": "Oslo"})))
    if tool_is_stopped == "reject":
        model_server.plan(says("Then not."))
    events = await answered(Agent(name="Helper", model=model, tools=[guarded]))
    if tool_is_stopped == "raise":
        assert outcome(events) == ("failed", "guardrail")
        return
    assert outcome(events) == ("completed", None)
    (call,), (result,) = only(events, ToolCallEvent), only(events, ToolResultEvent)
    assert (call.tool, call.args) == ("guarded", {"city": "Oslo"})
    assert (result.call_id, result.success, result.result) == (call.call_id, False, "Not Oslo.")


# Agents as tools


def team(model: Model, **options: Any) -> Agent[Any]:
    scout = Agent(name="Scout", instructions="Look.", model=model, tools=[weather])
    tool = scout.as_tool("ask_scout", "Asks the scout.", **options)
    return Agent(name="Chief", instructions="Lead.", model=model, tools=[tool])


@pytest.mark.parametrize("is_read", [False, True], ids=["alone", "with a reader of its own"])
async def test_what_an_agent_does_as_a_tool_has_its_path(
    model: Model, model_server: ScriptedModel, is_read: bool
) -> None:
    read: list[Any] = []
    model_server.plan(
        calls(("ask_scout", {"input": "Oslo?"}), ids=["call_1"]),
        calls(("weather", {"city": "Oslo"}), ids=["call_2"]),
        says(thinks("Hm."), "It is sunny."),
        says("The scout says it is sunny."),
    )
    events = await answered(team(model, on_stream=read.append) if is_read else team(model))
    assert outcome(events) == ("completed", None)
    check_calls_have_results(events)
    inside = [event for event in events if event.agent_path]
    assert {event.agent_path for event in inside} == {("Scout",)}
    assert [event.tool for event in only(inside, ToolCallEvent)] == ["weather"]
    assert [event.result for event in only(inside, ToolResultEvent)] == ["Sunny in Oslo"]
    assert text(inside) == "It is sunny."
    assert [event.content for event in only(inside, ReasoningEvent)] == ["Hm."]
    assert len(only(inside, UsageEvent)) == 2
    outside = [event for event in events if not event.agent_path]
    assert only(outside, ResponseEvent)[0].content == text(outside) == "The scout says it is sunny."
    assert [(event.tool, event.success) for event in only(outside, ToolResultEvent)] == [("ask_scout", True)]
    # What happens inside a call is told between its beginning and its end.
    begin, end = events.index(only(outside, ToolCallEvent)[0]), events.index(only(outside, ToolResultEvent)[0])
    assert all(begin < events.index(event) < end for event in inside)
    assert bool(read) == is_read


async def test_an_agent_asked_by_an_agent_that_is_asked_has_a_longer_path(
    model: Model, model_server: ScriptedModel
) -> None:
    boss = Agent(name="Boss", model=model, tools=[team(model).as_tool("ask_chief", "Asks the chief.")])
    model_server.plan(
        calls(("ask_chief", {"input": "Oslo?"}), ids=["call_1"]),
        calls(("ask_scout", {"input": "Oslo?"}), ids=["call_2"]),
        says("Sunny."),
        says("Sunny, says the scout."),
        says("Sunny, says the chief."),
    )
    events = await answered(boss)
    assert [event.agent_path for event in only(events, UsageEvent)] == [
        (),
        ("Chief",),
        ("Chief", "Scout"),
        ("Chief",),
        (),
    ]
    assert only(events, ResponseEvent)[0].content == "Sunny, says the chief."


async def test_an_agent_that_a_tool_runs_is_part_of_the_turn(model: Model, model_server: ScriptedModel) -> None:
    @function_tool
    async def consult(question: str) -> str:
        """Asks another agent."""
        result = await Runner.run(Agent(name="Scout", model=model), question)
        return f"Heard: {result.final_output}"

    model_server.plan(calls(("consult", {"question": "Oslo?"})), says("Sunny."), says("All is well."))
    events = await answered(Agent(name="Chief", model=model, tools=[consult]))
    assert outcome(events) == ("completed", None)
    assert text([event for event in events if event.agent_path == ("Scout",)]) == "Sunny."
    assert only(events, ToolResultEvent)[0].result == "Heard: Sunny."


@pytest.mark.parametrize("is_read", [False, True], ids=["alone", "with a reader of its own"])
async def test_an_agent_that_fails_as_a_tool_is_a_tool_that_failed(
    model: Model, model_server: ScriptedModel, is_read: bool
) -> None:
    options: dict[str, Any] = {"on_stream": lambda event: None} if is_read else {}
    model_server.plan(calls(("ask_scout", {"input": "Oslo?"})), fails(500, message=SECRET), says("He is gone."))
    events = await answered(team(model, **options))
    assert outcome(events) == ("completed", None)
    (result,) = only(events, ToolResultEvent)
    assert (result.tool, result.success) == ("ask_scout", False)
    assert "in trouble" in result.result
    assert "swordfish" not in repr(events)


async def test_stop_reaches_an_agent_that_is_used_as_a_tool(model: Model, model_server: ScriptedModel) -> None:
    model_server.plan(calls(("ask_scout", {"input": "Oslo?"})), silent("Half an"))
    async with open_desk(team(model)) as desk:
        turn = await desk.start()
        await seen(desk, turn, lambda event: isinstance(event, TokenEvent) and "an" in event.content)
        await desk.cancel(turn)
        await model_server.aborted()
        events = await desk.events(turn)
    assert outcome(events) == ("cancelled", None)


async def test_runs_outside_a_turn_are_left_alone() -> None:
    script = SdkScript([[assistant_message("Told.")], [assistant_message("Alone.")], [assistant_message("Streamed.")]])
    agent, config = Agent(name="Helper", model=script), RunConfig(tracing_disabled=True)
    turn = Turn(id="t", session_id="s", principal="ann", message="Hello")
    events = [event async for event in OpenAIAgentsAgent(agent).answer(turn)]
    assert "".join(event for event in events if isinstance(event, str)) == "Told."
    assert (await Runner.run(agent, "Hello", run_config=config)).final_output == "Alone."
    streamed = Runner.run_streamed(agent, "Hello", run_config=config)
    assert [event async for event in streamed.stream_events()]
    assert [call.streamed for call in script.calls] == [True, False, True]
    assert agent.model is script


# In an agent that is a plain function


@pytest.mark.parametrize("is_sync", [False, True], ids=["async", "in a thread"])
async def test_run_in_a_function_is_shown_and_counted(model: Model, model_server: ScriptedModel, is_sync: bool) -> None:
    gate = asyncio.Event()
    agent = Agent(name="Scout", model=model, tools=[weather])

    async def answer(turn: Turn) -> str:
        return (await Runner.run(agent, turn.message, run_config=RunConfig(tracing_disabled=True))).final_output

    model_server.plan(calls(("weather", {"city": "Oslo"})), says("It ", "is ", gate, "sunny."))
    async with open_actor_desk(MemoryStore(), answer) as desk:
        turn = await desk.start("Oslo?")
        early = await seen(desk, turn, lambda event: event == TokenEvent("is ", agent_path=("Scout",)))
        assert [event.tool for event in only(early, ToolResultEvent)] == ["weather"]
        gate.set()
        events = await desk.events(turn)
    assert outcome(events) == ("completed", None)
    (response,) = only(events, ResponseEvent)
    assert response.content == "It is sunny."
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (22, 14)


async def test_sync_run_in_a_thread_is_shown() -> None:
    agent = Agent(name="Scout", model=SdkScript([[assistant_message("Sunny.")]]))

    def run(message: str) -> str:
        # The SDK would leave a loop of its own open.
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        try:
            return Runner.run_sync(agent, message, run_config=RunConfig(tracing_disabled=True)).final_output
        finally:
            loop.close()

    async def answer(turn: Turn) -> str:
        return await asyncio.to_thread(run, turn.message)

    async with open_actor_desk(MemoryStore(), answer) as desk:
        events = await desk.events(await desk.start("Oslo?"))
    assert outcome(events) == ("completed", None)
    assert text([event for event in events if event.agent_path == ("Scout",)]) == "Sunny."


async def test_run_in_a_function_is_limited(model: Model, model_server: ScriptedModel) -> None:
    agent = Agent(name="Scout", model=model, tools=[weather])

    async def answer(turn: Turn) -> str:
        return (await Runner.run(agent, turn.message, run_config=RunConfig(tracing_disabled=True))).final_output

    model_server.plan(*(calls(("weather", {"city": "Oslo"}), ids=[f"call_{number}"]) for number in range(3)))
    async with open_actor_desk(MemoryStore(), answer, max_steps_per_turn=2) as desk:
        events = await desk.events(await desk.start("Oslo?"))
    assert outcome(events) == ("failed", "max_turns")
    assert len(only(events, ToolCallEvent)) == 2


# Conversations


async def test_the_sdks_own_session_remembers(model: Model, model_server: ScriptedModel) -> None:
    kept: dict[str, SQLiteSession] = {}

    def session(turn: Turn) -> SQLiteSession:
        return kept.setdefault(turn.session_id, SQLiteSession(turn.session_id))

    model_server.plan(calls(("weather", {"city": "Oslo"})), says("Sunny."), says("Oslo's."), says("Nothing."))
    async with open_desk(Agent(name="Helper", model=model, tools=[weather]), session=session) as desk:
        first = await desk.start("How is the weather?")
        await desk.events(first)
        await desk.events(await desk.start("Whose?", session_id=first.session_id))
        await desk.events(await desk.start("What have I said?"))
    assert conversation_of(model_server.bodies[2]) == [
        ("user", "How is the weather?"),
        ("call", ("call_1", "weather", {"city": "Oslo"})),
        ("result", ("call_1", "Sunny in Oslo")),
        ("assistant", "Sunny."),
        ("user", "Whose?"),
    ]
    assert conversation_of(model_server.bodies[3]) == [("user", "What have I said?")]
    for opened in kept.values():
        opened.close()


@pytest.fixture
def sessions() -> Iterator[Callable[[Turn], SQLiteSession]]:
    """The SDK's own memory, one for each session."""
    kept: dict[str, SQLiteSession] = {}
    yield lambda turn: kept.setdefault(turn.session_id, SQLiteSession(turn.session_id))
    for session in kept.values():
        session.close()


async def test_sdk_session_has_what_a_stopped_turn_did(
    model: Model, model_server: ScriptedModel, sessions: Callable[[Turn], SQLiteSession]
) -> None:
    gate = Gate()

    @function_tool
    async def endless() -> str:
        """Never return."""
        await gate.wait()
        return ""

    agent = Agent(name="Helper", model=model, tools=[weather, endless])
    model_server.plan(calls(("weather", {"city": "Oslo"}), ("endless", {}), text="Let me look."), says("Then not."))
    async with open_desk(agent, session=sessions) as desk:
        first = await desk.start("How is the weather?")
        await gate.reached()
        await seen(desk, first, lambda event: isinstance(event, ToolResultEvent))
        await desk.cancel(first)
        await desk.events(await desk.start("And now?", session_id=first.session_id))
    entries = conversation_of(model_server.bodies[-1])
    assert entries[:5] == [
        ("user", "How is the weather?"),
        ("assistant", "Let me look."),
        ("call", ("call_1", "weather", {"city": "Oslo"})),
        ("call", ("call_2", "endless", {})),
        ("result", ("call_1", "Sunny in Oslo")),
    ]
    assert entries[5] == ("result", ("call_2", '{"error":"cancelled"}'))
    assert entries[-1] == ("user", "And now?")


async def test_sdk_session_has_the_text_of_a_stopped_turn(
    model: Model, model_server: ScriptedModel, sessions: Callable[[Turn], SQLiteSession]
) -> None:
    model_server.plan(silent("Half an"), says("Whole."), says("Third."))
    async with open_desk(Agent(name="Helper", model=model), session=sessions) as desk:
        first = await desk.start("one")
        await seen(desk, first, lambda event: isinstance(event, TokenEvent) and "an" in event.content)
        await desk.cancel(first)
        for message in ("two", "three"):
            await desk.events(await desk.start(message, session_id=first.session_id))
    users = [entry for kind, entry in conversation_of(model_server.bodies[-1]) if kind == "user"]
    texts = [entry for kind, entry in conversation_of(model_server.bodies[-1]) if kind == "assistant"]
    assert users == ["one", "two", "three"]
    assert texts[0].startswith("Half an\n\n[The user stopped")
    assert texts[1:] == ["Whole."]


async def test_sdk_session_follows_a_turn_that_continues_an_earlier_one(
    model: Model, model_server: ScriptedModel, sessions: Callable[[Turn], SQLiteSession]
) -> None:
    model_server.plan(*(says(f"Answer {number}.") for number in range(1, 7)))
    async with open_desk(Agent(name="Helper", model=model), session=sessions) as desk:
        first = await desk.start("one")
        await desk.events(first)

        async def ask(message: str, parent: str | None = None) -> list[str]:
            turn = await desk.start(message, session_id=first.session_id, parent_turn_id=parent)
            await desk.events(turn)
            return [entry for kind, entry in conversation_of(model_server.bodies[-1]) if kind == "user"]

        assert await ask("two") == ["one", "two"]
        assert await ask("three") == ["one", "two", "three"]
        assert await ask("other two", first.id) == ["one", "other two"]
        assert await ask("other three") == ["one", "other two", "other three"]
        assert await ask("from the start", "") == ["from the start"]


async def test_tools_find_the_turn_or_what_the_application_makes_of_it(
    model: Model, model_server: ScriptedModel
) -> None:
    @function_tool
    async def who(context: RunContextWrapper[Any]) -> str:
        """Return the principal that asks."""
        return str(getattr(context.context, "principal", context.context))

    agent = Agent(name="Helper", model=model, tools=[who])
    model_server.plan(calls(("who", {})), says("You."), calls(("who", {})), says("You."))
    found = [*only(await answered(agent), ToolResultEvent)]
    found += only(await answered(agent, context=lambda turn: f"made for {turn.principal}"), ToolResultEvent)
    assert [event.result for event in found] == ["ann", "made for ann"]


# Tools


async def test_tools_tell_of_the_progress_of_their_own_call(model: Model, model_server: ScriptedModel) -> None:
    both = asyncio.Barrier(2)

    @function_tool
    async def stir(cup: int) -> str:
        """Stirs a cup of tea."""
        await both.wait()
        progress(f"stirring {cup}")
        return "stirred"

    @function_tool
    def pour(cup: int) -> str:
        """Pours one, in a thread."""
        progress(f"pouring {cup}")
        return "poured"

    wanted = [("stir", {"cup": 1}), ("stir", {"cup": 2}), ("pour", {"cup": 3})]
    model_server.plan(calls(*wanted), says("Tea."))
    events = await answered(Agent(name="Helper", model=model, tools=[stir, pour]))
    texts = {(event.call_id, event.text) for event in only(events, ToolProgressEvent)}
    assert texts == {("call_1", "stirring 1"), ("call_2", "stirring 2"), ("call_3", "pouring 3")}


async def test_a_result_too_long_for_the_log_is_cut_there(model: Model, model_server: ScriptedModel) -> None:
    @function_tool
    async def read_all() -> str:
        """Reads a long book."""
        return "tea " * 500_000

    model_server.plan(calls(("read_all", {})), says("Read."))
    events = await answered(Agent(name="Helper", model=model, tools=[read_all]))
    assert outcome(events) == ("completed", None)
    assert len(only(events, ToolResultEvent)[0].result) < 50_000
    assert len(tool_results_of(model_server.bodies[1])[0]) == 2_000_000


async def test_a_tool_that_runs_at_the_provider_is_told(model_server: ScriptedModel) -> None:
    def item(kind: str, **fields: Any) -> bytes:
        search = {"id": "ws_1", "type": "web_search_call", **fields}
        return json.dumps({"type": kind, "output_index": 0, "sequence_number": 2, "item": search}).encode()

    action = {"type": "search", "query": "tea"}
    begun = item("response.output_item.added", status="in_progress")
    model_server.plan(says(begun, "Green tea.", item("response.output_item.done", status="completed", action=action)))
    model: Any = sdk_model(model_server.url, api="responses")
    events = await answered(Agent(name="Helper", model=model, tools=[WebSearchTool()]))
    await model._client.close()
    assert outcome(events) == ("completed", None)
    (call,), (result,) = only(events, ToolCallEvent), only(events, ToolResultEvent)
    assert (call.call_id, call.tool) == ("ws_1", "web_search")
    assert text(events) == "Green tea."
    assert (result.call_id, result.success, result.result["query"]) == ("ws_1", True, "tea")


# Answers that are not said by a model


async def test_an_answer_that_a_tool_gives_is_the_answer(model: Model, model_server: ScriptedModel) -> None:
    agent = Agent(name="Helper", model=model, tools=[weather], tool_use_behavior="stop_on_first_tool")
    model_server.plan(calls(("weather", {"city": "Oslo"}), text="Let me look. "))
    events = await answered(agent)
    assert outcome(events) == ("completed", None)
    assert only(events, ResponseEvent)[0].content == "Let me look. Sunny in Oslo"


async def test_an_answer_with_a_type_is_its_json(model: Model, model_server: ScriptedModel) -> None:
    class Report(BaseModel):
        sunny: bool

    model_server.plan(says('{"sunny": ', "true}"), says("Sunny!"))
    agent = Agent(name="Helper", model=model, output_type=Report)
    assert text(await answered(agent)) == '{"sunny": true}'
    # One that does not fit is not an answer.
    assert outcome(await answered(agent)) == ("failed", "bad_answer")


async def test_a_tool_whose_errors_are_fatal_fails_the_turn(model: Model, model_server: ScriptedModel) -> None:
    @function_tool(failure_error_function=None)
    async def fatal(city: str) -> str:
        """A tool that must work."""
        raise LookupError(SECRET)

    model_server.plan(calls(("fatal", {"city": "Oslo"})))
    events = await answered(Agent(name="Helper", model=model, tools=[fatal]))
    assert outcome(events) == ("failed", "tool_failed")
    assert [event.success for event in only(events, ToolResultEvent)] == [False]
    assert "LookupError" in repr(events)
    assert "swordfish" not in repr(events)


# Settings, hooks, traces, cost


class _Recorder(TracingProcessor):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_trace_start(self, trace: Any) -> None:
        self.seen.append("trace")

    def on_span_start(self, span: Any) -> None:
        self.seen.append("span")

    def on_trace_end(self, trace: Any) -> None: ...

    def on_span_end(self, span: Any) -> None: ...

    def shutdown(self) -> None: ...

    def force_flush(self) -> None: ...


@pytest.fixture
def traces() -> Iterator[list[str]]:
    recorder = _Recorder()
    set_trace_processors([recorder])
    yield recorder.seen
    set_trace_processors([])


@pytest.mark.parametrize("config", [None, RunConfig()], ids=["ours", "given"])
async def test_nothing_is_traced_unless_asked_for(
    model: Model, model_server: ScriptedModel, traces: list[str], config: RunConfig | None
) -> None:
    plan = (calls(("ask_scout", {"input": "Oslo?"})), says("Sunny."), says("Sunny, he says."))
    model_server.plan(*plan, *plan)
    assert outcome(await answered(team(model, run_config=RunConfig()), run_config=config)) == ("completed", None)
    assert traces == []
    assert outcome(await answered(team(model), tracing=True)) == ("completed", None)
    assert "trace" in traces


async def test_a_model_is_found_by_its_name_with_the_settings_that_implies(
    model_server: ScriptedModel, api: Api
) -> None:
    client = AsyncOpenAI(base_url=model_server.url, api_key="none", max_retries=0)
    provider = OpenAIProvider(openai_client=client, use_responses=api == "responses")
    config = RunConfig(model_provider=provider, tracing_disabled=True)
    agent = Agent(name="Helper", model="gpt-5.2")
    model_server.plan(says("By us."), says("By the SDK."))
    events = await answered(agent, run_config=config)
    async with aclosing(Runner.run_streamed(agent, "Hello", run_config=config).stream_events()) as stream:  # type: ignore
        assert [event async for event in stream]
    await client.close()
    assert [event.model for event in only(events, UsageEvent)] == ["gpt-5.2"]
    ours, theirs = model_server.bodies
    assert {**theirs, "stream_options": None} == {**ours, "stream_options": None}
    assert "gpt-5.2" in ours["model"]
    assert any("reasoning" in key for key in ours)


async def test_settings_of_the_application_are_kept(model: Model, model_server: ScriptedModel, api: Api) -> None:
    model_server.plan(says("Yes."))
    settings = ModelSettings(temperature=0.25, include_usage=False)
    events = await answered(Agent(name="Helper", model=model, model_settings=settings))
    assert model_server.bodies[0]["temperature"] == 0.25
    assert bool(only(events, UsageEvent)) == (api == "responses")


async def test_hooks_of_the_application_are_called(model: Model, model_server: ScriptedModel) -> None:
    called: list[str] = []

    class Listening(RunHooks[Any]):
        async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
            called.append(f"{tool.name} begins")

        async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
            called.append(f"{tool.name}: {result}")

        async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
            called.append(agent.name)

    model_server.plan(calls(("weather", {"city": "Oslo"})), says("Sunny."))
    await answered(Agent(name="Helper", model=model, tools=[weather]), hooks=Listening())
    assert called == ["Helper", "weather begins", "weather: Sunny in Oslo", "Helper"]


async def test_a_line_that_is_lost_after_the_last_word_costs_nothing(model_server: ScriptedModel) -> None:
    finish = {"index": 0, "delta": {}, "finish_reason": "stop"}
    chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [finish]}
    model_server.plan(replace(says("Whole", " answer.", json.dumps(chunk).encode()), ending="cut"))
    model: Any = sdk_model(model_server.url, api="chat")
    events = await answered(Agent(name="Helper", model=model))
    await model._client.close()
    assert outcome(events) == ("completed", None)
    assert text(events) == "Whole answer."


async def test_what_a_stopped_answer_cost_is_told_where_the_server_counts_along(model_server: ScriptedModel) -> None:
    counted = b'{"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [], "usage": %b}'
    usage = json.dumps(chat_usage({"input": 5, "output": 2})).encode()
    model_server.plan(says("Half ", counted % usage, "an", asyncio.Event()))
    model: Any = sdk_model(model_server.url, api="chat")
    async with open_desk(Agent(name="Helper", model=model)) as desk:
        turn = await desk.start()
        await seen(desk, turn, lambda event: event == TokenEvent("an"))
        await desk.cancel(turn)
        events = await desk.events(turn)
    await model._client.close()
    assert outcome(events) == ("cancelled", None)
    assert [(event.input_tokens, event.output_tokens) for event in only(events, UsageEvent)] == [(5, 2)]


# Without a turn around it


async def test_whoever_leaves_hangs_up(model: Model, model_server: ScriptedModel) -> None:
    model_server.plan(silent("Half an answer"))
    turn = Turn(id="t", session_id="s", principal="ann", message="Hello")
    async with aclosing(OpenAIAgentsAgent(Agent(name="Helper", model=model)).answer(turn)) as answer:  # type: ignore
        assert await anext(answer) == "Half"
    await model_server.aborted()


async def test_a_tool_waits_until_what_came_before_it_is_taken() -> None:
    gate = Gate()

    @function_tool
    async def patient() -> str:
        """Says when it runs."""
        await gate.wait()
        return "done"

    steps = [
        [assistant_message("First."), function_call("patient", {}, call_id="call_1")],
        [assistant_message("Last.")],
    ]
    agent = OpenAIAgentsAgent(Agent(name="Helper", model=SdkScript(steps), tools=[patient]))
    turn = Turn(id="t", session_id="s", principal="ann", message="Hello")
    async with asyncio.timeout(BOUND), aclosing(agent.answer(turn)) as answer:  # type: ignore
        while not isinstance(await anext(answer), ToolCallEvent):
            pass
        for _ in range(50):
            await asyncio.sleep(0)
        # Its call has been handed out, and nobody has asked for what comes next: it may not be written yet.
        assert not gate.was_reached
        gate.open()
        assert isinstance(await anext(answer), ToolResultEvent)
