"""The design "Streaming tool status events"."""

import asyncio
import inspect
from typing import Any

import pytest

from tests.designs.conftest import Serve
from tests.retrieval.shelf import MakeModel
from tests.scripted_model import ScriptedModel, calls, fails, says
from tests.serving import Puppet, within
from turnwire import AgentError, ChatCompletionsAgent, tool
from turnwire.core.log.events import ToolCallEvent, ToolResultEvent
from turnwire.core.log.turns import Message

Events = list[tuple[str, dict[str, Any]]]


@tool
def search_vault(query: str) -> str:
    """Search the notes."""
    return f"found {query}"


@pytest.fixture
def agent(make_model: MakeModel) -> ChatCompletionsAgent:
    return ChatCompletionsAgent(make_model(), tools=[search_vault])


def recorder(events: Events) -> Any:
    async def on_event(event_type: str, data: dict[str, Any]) -> None:
        events.append((event_type, data))

    return on_event


def test_agent_turn_takes_an_optional_callback() -> None:
    """Architecture, and changes to the agent: the callback defaults to None."""
    parameters = inspect.signature(ChatCompletionsAgent.agent_turn).parameters
    assert parameters["on_event"].default is None
    assert inspect.iscoroutinefunction(ChatCompletionsAgent.agent_turn)


async def test_callback_gets_type_and_data_of_each_event(
    agent: ChatCompletionsAgent, model_server: ScriptedModel
) -> None:
    """Event types tool_call, tool_result and response, the callback's signature, and the data flow."""
    model_server.plan(calls(("search_vault", {"query": "moss"})), says("Moss is green."))
    events: Events = []
    answer = await within(agent.agent_turn([], "What is moss?", on_event=recorder(events)))
    (call, called), (result, returned), (response, final) = events
    assert (call, called["tool"], called["args"]) == ("tool_call", "search_vault", {"query": "moss"})
    assert (result, returned["tool"]) == ("tool_result", "search_vault")
    assert (response, final) == ("response", {"content": "Moss is green."})
    assert answer == "Moss is green."


async def test_callback_gets_an_error_before_it_is_raised(
    agent: ChatCompletionsAgent, model_server: ScriptedModel
) -> None:
    """Event types error, and error handling."""
    model_server.plan(fails(401))
    events: Events = []
    session: list[Message] = []
    with pytest.raises(AgentError) as raised:
        await within(agent.agent_turn(session, "What is moss?", on_event=recorder(events)))
    assert events == [("error", {"error": str(raised.value)})]
    assert session == []


async def test_without_a_callback_the_turn_is_the_same(
    agent: ChatCompletionsAgent, model_server: ScriptedModel
) -> None:
    """Changes to the agent: nothing is called when there is no callback."""
    model_server.plan(calls(("search_vault", {"query": "moss"})), says("Moss is green."))
    session: list[Message] = []
    assert await within(agent.agent_turn(session, "What is moss?")) == "Moss is green."
    assert [message.role for message in session] == ["user", "assistant", "tool", "assistant"]


async def test_stream_has_the_events_in_order_and_then_done(
    serve: Serve, agent: ChatCompletionsAgent, model_server: ScriptedModel
) -> None:
    """Data flow: tool_call, tool_result, response, done."""
    model_server.plan(calls(("search_vault", {"query": "moss"})), says("Moss is green."))
    async with serve(agent) as server, server.ask() as stream:
        frames = await stream.rest()
    status = [frame.type for frame in frames if frame.type in ("tool_call", "tool_result", "response", "done", "error")]
    assert status == ["tool_call", "tool_result", "response", "done"]
    by_type = {frame.type: frame.event for frame in frames}
    assert by_type["tool_call"]["tool"] == by_type["tool_result"]["tool"] == "search_vault"
    assert by_type["tool_call"]["args"] == {"query": "moss"}
    assert by_type["response"]["content"] == "Moss is green."


async def test_tool_call_is_shown_before_the_tool_has_ended(serve: Serve, puppet: Puppet) -> None:
    """Problem: what the agent does is seen while it does it."""
    async with serve(puppet) as server, server.ask() as stream:
        part = await puppet.part()
        part.say(ToolCallEvent("c1", "search_vault", {"query": "moss"}))
        await stream.until("tool_call")
        assert not part.over.is_set()
        part.say(ToolResultEvent("c1", "search_vault", True, "moss.md"))
        part.end()
        await stream.rest()


async def test_exception_of_the_agent_is_an_error_event_and_then_done(serve: Serve, puppet: Puppet) -> None:
    """Error handling, exceptions."""
    async with serve(puppet) as server, server.ask() as stream:
        (await puppet.part()).end(AgentError("The vault is locked."))
        frames = await stream.rest()
    assert [frame.type for frame in frames][-2:] == ["error", "done"]
    assert frames[-2].event["error"] == "The vault is locked."


async def test_turn_goes_on_when_the_client_disconnects(serve: Serve, puppet: Puppet) -> None:
    """Error handling, client disconnect."""
    async with serve(puppet) as server:
        async with server.ask() as stream:
            part = await puppet.part()
        part.say("All of it.")
        part.end()
        assert (await server.ended(stream.turn_id))["state"]["text"] == "All of it."


async def test_chat_answers_whole_as_before(serve: Serve, puppet: Puppet) -> None:
    """Architecture: the route without a stream is unchanged."""
    async with serve(puppet) as server:
        asking = asyncio.create_task(server.http.post("/chat", json={"message": "Hello"}))
        part = await puppet.part()
        part.say(ToolCallEvent("c1", "search_vault", {}), ToolResultEvent("c1", "search_vault", True), "Whole.")
        part.end()
        body = (await within(asking)).json()
        assert body["content"] == "Whole."
        assert body["session_id"]


async def test_both_routes_share_their_sessions(serve: Serve) -> None:
    """Changes to the server: the same sessions as the route without a stream."""

    async def agent(turn: Any) -> Any:
        yield f"{len(turn.history)} messages before"

    async with serve(agent) as server:
        first = (await server.http.post("/chat", json={"message": "One"})).json()
        async with server.ask("Two", session_id=first["session_id"]) as stream:
            await stream.rest()
        assert (await server.snapshot(stream.turn_id))["state"]["text"] == "2 messages before"


async def test_client_data_reaches_the_agent(serve: Serve, puppet: Puppet) -> None:
    """Changes to the client: the file that the editor shows, and other data, come with the message."""
    async with serve(puppet) as server:
        body = {"message": "Summarise it", "active_file": "notes/a.md", "metadata": {"theme": "dark"}}
        asking = asyncio.create_task(server.http.post("/chat", json=body))
        part = await puppet.part()
        assert part.turn.metadata == {"active_file": "notes/a.md", "theme": "dark"}
        part.end()
        assert (await within(asking)).status_code == 200
