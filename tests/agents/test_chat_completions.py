"""Turnwire's own tool loop, beyond what every agent promises."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from tests.contracts.turns import BOUND, whole_log
from tests.core.desk import Desk, Gate
from tests.scripted_model import ScriptedModel, calls, model_server, says, truncates
from tests.serving import within
from turnwire.agents.chat_completions import ChatCompletionsAgent
from turnwire.core.errors import AgentError, ModelError, ModelUnusableError, ToolError
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    ErrorEvent,
    Event,
    ResponseEvent,
    TokenEvent,
    ToolCallEvent,
    ToolResultEvent,
)
from turnwire.core.log.follow import follow
from turnwire.core.log.turns import Message, ToolRequest, TurnRecord
from turnwire.core.people.budget import Limits
from turnwire.core.run.runner import TurnRunner
from turnwire.stores.memory import MemoryStore
from turnwire.tools import tool

__all__ = ["model_server"]

CALL = '{"name": "weather", "arguments": {"city": "Oslo"}}'


async def weather(city: str) -> str:
    """Return the weather in a city."""
    return f"Sunny in {city}"


def agent_for(server: ScriptedModel, *tools: Any, **options: Any) -> ChatCompletionsAgent:
    return ChatCompletionsAgent("small", base_url=server.url, tools=tools, retries=0, **options)


@asynccontextmanager
async def open_agent(server: ScriptedModel, *tools: Any, **options: Any) -> AsyncIterator[Desk]:
    agent, store = agent_for(server, *tools, **options), MemoryStore()
    runner = TurnRunner(store, {"agent": agent}, Limits())
    await runner.open()
    try:
        yield Desk(store, runner)
    finally:
        async with asyncio.timeout(BOUND):
            await runner.close()
            await agent.close()


async def answered(server: ScriptedModel, *tools: Any, **options: Any) -> list[Event]:
    async with open_agent(server, *tools, **options) as desk:
        return await desk.events(await desk.start("How is the weather?"))


def text(events: list[Event]) -> str:
    return "".join(event.content for event in events if isinstance(event, TokenEvent))


def results(events: list[Event]) -> list[ToolResultEvent]:
    return [event for event in events if isinstance(event, ToolResultEvent)]


# How a model is asked


async def test_a_model_is_asked_with_its_instructions_and_its_tools(model_server: ScriptedModel) -> None:
    model_server.plan(says("Hello."))
    await answered(model_server, weather, instructions="Be kind.")
    (body,) = model_server.bodies
    assert body["messages"][0] == {"role": "system", "content": "Be kind."}
    (offered,) = body["tools"]
    assert offered["function"] == {
        "name": "weather",
        "description": "Return the weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    }


async def test_it_speaks_the_responses_api_when_told_to(model_server: ScriptedModel) -> None:
    model_server.plan(says("Hello."))
    assert text(await answered(model_server, weather, api="responses")) == "Hello."
    assert model_server.requests[0].path == "/v1/responses"


def test_two_tools_of_one_name_are_refused(model_server: ScriptedModel) -> None:
    with pytest.raises(ValueError, match="two tools are named 'weather'"):
        agent_for(model_server, weather, tool(weather))


def test_a_model_that_cannot_be_used_is_refused_at_once() -> None:
    with pytest.raises(ModelUnusableError):
        ChatCompletionsAgent("small", base_url="localhost")


# Tools


async def test_ids_that_come_again_in_every_answer_are_made_new(model_server: ScriptedModel) -> None:
    model_server.plan(*[calls(("weather", {"city": city})) for city in ("Oslo", "Rome")], says("Both."))
    async with open_agent(model_server, weather) as desk:
        turn = await desk.start()
        events = await desk.events(turn)
        model_server.plan(calls(("weather", {"city": "Lima"})), says("That too."))
        events += await desk.events(await desk.start("And?", session_id=turn.session_id))
    ids = [event.call_id for event in events if isinstance(event, ToolCallEvent)]
    assert len(set(ids)) == 3
    assert [event.call_id for event in results(events)] == ids
    call_ids = [call["id"] for message in model_server.bodies[-1]["messages"] for call in message.get("tool_calls", ())]
    assert call_ids == ids


async def test_many_tools_at_once_take_turns_and_none_is_lost(model_server: ScriptedModel) -> None:
    most = running = 0

    async def count(number: int) -> int:
        """Counts on."""
        nonlocal most, running
        running += 1
        most = max(most, running)
        for _ in range(5):
            await asyncio.sleep(0)
        running -= 1
        return number + 1

    model_server.plan(calls(*[("count", {"number": number}) for number in range(30)]), says("All."))
    events = await answered(model_server, count)
    assert sorted(event.result for event in results(events)) == list(range(1, 31))
    messages = [message for message in model_server.bodies[1]["messages"] if message["role"] == "tool"]
    assert [int(message["content"]) for message in messages] == list(range(1, 31))
    assert 1 < most <= 8


async def test_what_a_tool_says_went_wrong_reaches_the_model(model_server: ScriptedModel) -> None:
    def find(city: str) -> str:
        """Finds a city."""
        raise ToolError(f"there is no city {city!r}")

    model_server.plan(calls(("find", {"city": "Osl"})), says("Sorry."))
    (result,) = results(await answered(model_server, find))
    assert (result.success, result.result) == (False, "Error: there is no city 'Osl'")
    assert model_server.bodies[1]["messages"][-1]["content"] == "Error: there is no city 'Osl'"


async def test_a_tool_has_its_own_time_limit(model_server: ScriptedModel) -> None:
    @tool(timeout=0.01)
    async def hang() -> None:
        """Never ends."""
        await asyncio.Event().wait()

    model_server.plan(calls(("hang", {})), says("It hangs."))
    (result,) = results(await answered(model_server, hang))
    assert not result.success
    assert "longer than 0.01 seconds" in result.result


async def test_tools_of_an_answer_that_broke_off_do_not_run(model_server: ScriptedModel) -> None:
    whole = truncates()
    model_server.plan(type(whole)(calls(("weather", {"city": "Oslo"})).pieces, whole.ending))
    events = await answered(model_server, weather)
    assert not [event for event in events if isinstance(event, ToolCallEvent)]
    assert [event.code for event in events if isinstance(event, ErrorEvent)] == ["truncated"]


async def test_tools_whose_results_nobody_would_read_do_not_run(model_server: ScriptedModel) -> None:
    model_server.plan(calls(("weather", {"city": "Oslo"})))
    events = await answered(model_server, weather, max_steps=1)
    (error,) = (event for event in events if isinstance(event, ErrorEvent))
    assert error.code == "max_turns"
    assert not results(events)
    assert not [event for event in events if isinstance(event, ToolCallEvent)]


async def test_what_is_said_before_and_after_a_tool_are_two_paragraphs(model_server: ScriptedModel) -> None:
    model_server.plan(calls(("weather", {"city": "Oslo"}), text="Let me look."), says("Sunny."))
    assert text(await answered(model_server, weather)) == "Let me look.\n\nSunny."


# Calls that are written out


@pytest.mark.parametrize("reply", [CALL, f"```json\n{CALL}\n```"], ids=["bare", "fenced"])
async def test_a_call_that_is_written_out_is_called(model_server: ScriptedModel, reply: str) -> None:
    model_server.plan(says(*reply), says("Sunny."))
    events = await answered(model_server, weather)
    assert text(events) == "Sunny."
    (result,) = results(events)
    assert (result.tool, result.result) == ("weather", "Sunny in Oslo")
    call, returned = model_server.bodies[1]["messages"][-2:]
    assert call["content"] is None
    assert json.loads(call["tool_calls"][0]["function"]["arguments"]) == {"city": "Oslo"}
    assert (returned["tool_call_id"], returned["content"]) == (call["tool_calls"][0]["id"], "Sunny in Oslo")


async def test_json_that_is_an_answer_is_one(model_server: ScriptedModel) -> None:
    reply = '{"name": "delete_everything", "arguments": {}}'
    model_server.plan(says(*reply))
    events = await answered(model_server, weather)
    assert text(events) == reply
    assert isinstance(events[-2], ResponseEvent)


# agent_turn


async def test_agent_turn_tells_of_tools_and_the_answer_in_order(model_server: ScriptedModel) -> None:
    received: list[tuple[str, dict[str, Any]]] = []
    gate = Gate()

    async def held_weather(city: str) -> str:
        """Return the weather in a city."""
        assert received == [("tool_call", {"tool": "held_weather", "args": {"city": "Oslo"}, "call_id": "call_1"})]
        await gate.wait()
        return f"Sunny in {city}"

    async def on_event(event_type: str, data: dict[str, Any]) -> None:
        received.append((event_type, data))

    agent = agent_for(model_server, held_weather)
    session: list[Message] = []
    model_server.plan(calls(("held_weather", {"city": "Oslo"})), says("Sunny."))
    running = asyncio.create_task(agent.agent_turn(session, "How is the weather?", on_event=on_event))
    await gate.reached()
    gate.open()
    assert await within(running) == "Sunny."
    assert [kind for kind, _ in received] == ["tool_call", "tool_result", "response"]
    assert received[1][1]["tool"] == "held_weather"
    assert received[1][1]["result"] == "Sunny in Oslo"
    assert received[2][1] == {"content": "Sunny."}
    assert session == [
        Message("user", "How is the weather?"),
        Message("assistant", "", tool_calls=(ToolRequest("call_1", "held_weather", {"city": "Oslo"}),)),
        Message("tool", "Sunny in Oslo", call_id="call_1"),
        Message("assistant", "Sunny."),
    ]
    await agent.close()


async def test_agent_turn_needs_nobody_to_listen_and_goes_on_with_a_session(model_server: ScriptedModel) -> None:
    agent = agent_for(model_server)
    session: list[Message] = []
    model_server.plan(says("One."), says("Two."))
    assert [await within(agent.agent_turn(session, question)) for question in ("1?", "2?")] == ["One.", "Two."]
    assert [message["content"] for message in model_server.bodies[1]["messages"]] == ["1?", "One.", "2?"]
    assert [message.content for message in session] == ["1?", "One.", "2?", "Two."]
    await agent.close()


async def test_agent_turn_that_fails_leaves_the_session_as_it_was(model_server: ScriptedModel) -> None:
    agent = agent_for(model_server, weather, max_steps=2)
    session = [Message("user", "1?"), Message("assistant", "One.")]
    before = list(session)
    model_server.plan(truncates("Half an"))
    with pytest.raises(ModelError):
        await within(agent.agent_turn(session, "2?"))
    ask = ("weather", {"city": "Oslo"})
    model_server.plan(calls(ask), calls(ask))
    with pytest.raises(AgentError, match="called 2 times"):
        await within(agent.agent_turn(session, "2?"))

    async def leave(event_type: str, data: dict[str, Any]) -> None:
        raise ConnectionError

    model_server.plan(calls(ask))
    with pytest.raises(ConnectionError):
        await within(agent.agent_turn(session, "2?", on_event=leave))
    assert session == before
    await agent.close()


# Tools that need a person's word


async def test_a_tool_that_needs_approval_waits_while_the_others_run(model_server: ScriptedModel) -> None:
    ran: list[str] = []

    @tool(needs_approval=True)
    async def send(to: str) -> str:
        ran.append(to)
        return "sent"

    model_server.plan(calls(("send", {"to": "bob"}), ("weather", {"city": "Oslo"})), says("It is sunny."))
    async with open_agent(model_server, send, weather) as desk:
        turn = await desk.start("Tell Bob how the weather is")
        (request,) = await requests_of(desk, turn)
        assert (request.tool, request.args) == ("send", {"to": "bob"})
        assert ran == []
        log = [logged.event for logged in await whole_log(desk.store, turn.id)]
        assert [event.result for event in results(log)] == ["Sunny in Oslo"]
        await desk.runner.decide(turn.id, request.call_id, approved=True)
        events = await desk.events(turn)
    assert ran == ["bob"]
    assert [event.call_id for event in events if isinstance(event, ToolCallEvent)].count(request.call_id) == 1
    contents = {message["tool_call_id"]: message["content"] for message in model_server.bodies[1]["messages"][2:]}
    assert contents[request.call_id] == "sent"
    assert text(events) == "It is sunny."


async def test_a_denied_tool_does_not_run_and_the_model_is_told_why(model_server: ScriptedModel) -> None:
    @tool(needs_approval=True)
    async def send(to: str) -> str:
        raise AssertionError("it ran")

    model_server.plan(calls(("send", {"to": "bob"})), says("As you wish."))
    async with open_agent(model_server, send) as desk:
        turn = await desk.start("Write to Bob")
        (request,) = await requests_of(desk, turn)
        await desk.runner.decide(turn.id, request.call_id, approved=False, reason="he is asleep")
        events = await desk.events(turn)
        assert [(event.success, event.result) for event in results(events)] == [(False, "Denied: he is asleep")]
        assert model_server.bodies[1]["messages"][-1]["content"] == "Denied: he is asleep"
        model_server.plan(says("Nothing was sent."))
        await desk.events(await desk.start("And?", session_id=turn.session_id))
        assert [message["role"] for message in model_server.bodies[2]["messages"]] == [
            "user", "assistant", "tool", "assistant", "user",
        ]  # fmt: skip


async def test_a_function_of_the_arguments_says_whom_to_ask_for(model_server: ScriptedModel) -> None:
    @tool(needs_approval=lambda args: args["amount"] > 10)
    async def pay(amount: int) -> str:
        return f"paid {amount}"

    @tool(needs_approval=lambda args: args["unknown"])
    async def guess(amount: int) -> str:
        return "never"

    model_server.plan(
        calls(("pay", {"amount": 5}), ("pay", {"amount": 50}), ("pay", {"amount": "x"}), ("guess", {"amount": 1}))
    )
    async with open_agent(model_server, pay, guess) as desk:
        turn = await desk.start("Pay")
        # What cannot run anyway is not asked about; what cannot be judged is.
        assert [request.args["amount"] for request in await requests_of(desk, turn)] == [50, 1]


async def test_steps_before_a_wait_count_after_it(model_server: ScriptedModel) -> None:
    @tool(needs_approval=True)
    async def again() -> str:
        return "again"

    model_server.plan(calls(("again", {})), calls(("again", {})))
    async with open_agent(model_server, again, max_steps=2) as desk:
        turn = await desk.start("Go")
        (request,) = await requests_of(desk, turn)
        await desk.runner.decide(turn.id, request.call_id, approved=True)
        assert (await desk.end(turn)).reason == "max_turns"


async def test_agent_turn_asks_its_caller_or_denies(model_server: ScriptedModel) -> None:
    requested_args: list[Any] = []

    @tool(needs_approval=True)
    async def send(to: str) -> str:
        return "sent"

    async def approve(request: Any) -> bool:
        requested_args.append(request.args)
        return True

    model_server.plan(calls(("send", {"to": "bob"})), says("Done."), calls(("send", {"to": "eve"})), says("Not done."))
    agent = agent_for(model_server, send)
    session: list[Message] = []
    assert await within(agent.agent_turn(session, "Write to Bob", approve=approve)) == "Done."
    assert requested_args == [{"to": "bob"}]
    assert [message.content for message in session] == ["Write to Bob", "", "sent", "Done."]
    assert await within(agent.agent_turn(session, "Write to Eve")) == "Not done."
    assert session[-2].content == "Denied: no approval callback was passed"
    await agent.close()


async def requests_of(desk: Desk, turn: TurnRecord) -> list[ApprovalRequestEvent]:
    """Return the approval requests of a turn, when it has made them."""
    async with asyncio.timeout(BOUND), aclosing(follow(desk.store, turn.id)) as batches:
        async for events in batches:
            if requests := [logged.event for logged in events if isinstance(logged.event, ApprovalRequestEvent)]:
                return requests
    raise AssertionError("it did not wait")
