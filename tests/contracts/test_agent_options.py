"""The contract of agent adapters for the model options that a client sends."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.agents import CASES, AgentCase, case_fixture
from tests.contracts.test_agent import only, outcome, seen, text
from tests.core.desk import lose_worker, wait_until_suspended
from tests.lost_connections import IGNORED, lost_connections_are_collected
from tests.scripted_model import ScriptedModel, calls, model_server, says
from turnwire.core.errors import ModelOptionNotTakenError
from turnwire.core.log.events import TokenEvent, ToolCallEvent
from turnwire.core.log.follow import fold_log
from turnwire.core.log.model_options import OPTION_NAMES, declared_options
from turnwire.stores.memory import MemoryStore

__all__ = ["lost_connections_are_collected", "model_server"]
pytestmark = IGNORED

SENT: dict[str, Any] = {
    "instructions": "In rhyme.",
    "temperature": 0.25,
    "top_p": 0.75,
    "max_tokens": 77,
    "stop": ["END"],
}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "degrees": {"type": "integer"}},
    "required": ["city", "degrees"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "weather", "schema": SCHEMA, "strict": True}}
LOCATE = {"name": "locate", "description": "Find the user.", "parameters": {"type": "object", "properties": {}}}
FORMED = [each for each in CASES if each.can("options") and each.module.NAME != "langgraph"]

case = case_fixture("options")


async def look(city: str) -> str:
    """Look up the weather."""
    return f"snow in {city}"


async def count(city: str) -> int:
    """Count the people of a city."""
    return len(city)


def taken(case: AgentCase, server: ScriptedModel) -> frozenset[str]:
    """Return the options that the adapter can hand to its SDK."""
    built = case.module.build(server.url, [look], api=case.api, timeout=5)
    return declared_options(case.module.allow(built, True)) or frozenset()


def system_text(body: dict[str, Any]) -> str:
    """Return everything that a request tells the model beside the conversation."""
    if "contents" in body:
        return "\n\n".join(part["text"] for part in body["systemInstruction"]["parts"])
    messages: list[dict[str, Any]] = body.get("messages") or [
        item for item in body["input"] if isinstance(item, dict) and item.get("role") in ("system", "developer")
    ]
    contents = [body.get("instructions"), *(each["content"] for each in messages if each["role"] != "user")]
    return "\n\n".join(content if isinstance(content, str) else json.dumps(content) for content in contents if content)


def settings_of(body: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a request under our names."""
    if "contents" in body:
        names = {
            "temperature": "temperature",
            "topP": "top_p",
            "maxOutputTokens": "max_tokens",
            "stopSequences": "stop",
        }
        return {names[name]: value for name, value in body.get("generationConfig", {}).items() if name in names}
    limits = [body[name] for name in ("max_tokens", "max_completion_tokens", "max_output_tokens") if name in body]
    found = {name: body[name] for name in ("temperature", "top_p", "stop") if body.get(name) is not None}
    return {**found, **({"max_tokens": limits[0]} if limits else {})}


def choice_of(body: dict[str, Any]) -> Any:
    if "contents" in body:
        calling = body.get("toolConfig", {}).get("functionCallingConfig", {})
        (name,) = calling.get("allowedFunctionNames") or [{"ANY": "required", "NONE": "none"}.get(calling.get("mode"))]
        return name
    choice = body.get("tool_choice")
    if isinstance(choice, dict):
        return choice.get("name") or choice["function"]["name"]
    return None if choice == "auto" else choice


def format_of(body: dict[str, Any]) -> Any:
    if "contents" in body:
        config = body["generationConfig"]
        assert config["responseMimeType"] == "application/json"
        return config.get("responseJsonSchema", "json_object")
    if "response_format" in body:
        return body["response_format"].get("json_schema", {}).get("schema") or body["response_format"]["type"]
    answer_format = (body.get("text") or {}).get("format", {})
    return answer_format.get("schema") or answer_format.get("type")


async def test_options_reach_every_model_call_of_their_turn_and_no_other(
    case: AgentCase, model_server: ScriptedModel
) -> None:
    names = taken(case, model_server) - ({"stop"} if case.api == "responses" else set())
    sent = {name: value for name, value in SENT.items() if name in names}
    model_server.plan(calls(("look", {"city": "Oslo"})), says("Snow."), says("Fine."))
    async with case.desk(model_server, look, allows=True) as desk:
        turn = await desk.start("How is Oslo?", options=sent)
        events = await desk.events(turn)
        following = await desk.start("Thanks.", session_id=turn.session_id)
        await desk.events(following)
    assert outcome(events) == ("completed", None)
    *own, other = model_server.bodies
    assert len(own) == 2
    for body in own:
        assert settings_of(body) == {name: value for name, value in sent.items() if name != "instructions"}
        assert system_text(body).count("Be kind.") == 1
        assert system_text(body).count("In rhyme.") == ("instructions" in sent)
    if "instructions" in sent:
        assert system_text(own[0]).index("Be kind.") < system_text(own[0]).index("In rhyme.")
    assert settings_of(other) == {}
    assert "In rhyme." not in json.dumps(other)


async def test_graph_fails_at_an_option_that_its_model_does_not_have(model_server: ScriptedModel) -> None:
    case = next(each for each in CASES if each.id == "langgraph-responses")
    async with case.desk(model_server, look, allows=True) as desk:
        events = await desk.events(await desk.start("How is Oslo?", options={"stop": ["END"]}))
    assert outcome(events) == ("failed", "model_option_not_taken")
    assert not model_server.bodies


def test_adapters_take_the_options_that_their_sdk_can(case: AgentCase, model_server: ScriptedModel) -> None:
    missing = set(OPTION_NAMES) - taken(case, model_server)
    expected = {"stop"} if case.api == "responses" else set[str]()
    if case.module.NAME == "langgraph":
        # A graph does not say which model it has, so `stop` is refused when the model is called.
        expected = {"instructions", "response_format"}
    assert missing == expected


@pytest.mark.parametrize(
    ("choice", "first"), [("required", "required"), ({"name": "look"}, "look"), ("none", "none"), ("auto", None)]
)
async def test_tool_choice_holds_until_a_tool_was_called(
    case: AgentCase, model_server: ScriptedModel, choice: Any, first: Any
) -> None:
    model_server.plan(calls(("look", {"city": "Oslo"})), says("Snow."))
    async with case.desk(model_server, look, count, allows=True) as desk:
        turn = await desk.start("How is Oslo?", options={"tool_choice": choice})
        assert outcome(await desk.events(turn)) == ("completed", None)
    before, after = model_server.bodies
    assert choice_of(before) == first
    assert choice_of(after) == (None if first != "none" or case.module.NAME == "openai_agents" else "none")


async def test_options_are_kept_while_a_turn_waits_for_its_client(case: AgentCase, model_server: ScriptedModel) -> None:
    model_server.plan(calls(("locate", {}), ids=["c1"]), says("In Oslo."))
    async with case.desk(model_server, look, allows=True) as desk:
        options = {"client_tools": [LOCATE], "temperature": 0.25, "tool_choice": {"name": "locate"}}
        turn = await desk.start("Where am I?", options=options)
        await wait_until_suspended(desk, turn)
        (call,) = (await fold_log(desk.store, turn.id)).requests.open_client_calls
        await desk.runner.send_tool_result(turn.id, call.call_id, "Oslo")
        assert outcome(await desk.events(turn)) == ("completed", None)
    before, after = model_server.bodies
    assert (settings_of(before), choice_of(before)) == ({"temperature": 0.25}, "locate")
    assert (settings_of(after), choice_of(after)) == ({"temperature": 0.25}, None)


async def test_options_are_sent_again_after_the_loss_of_a_worker(
    case: AgentCase, model_server: ScriptedModel, tmp_path: Path
) -> None:
    model_server.plan(calls(("look", {"city": "Oslo"}), ids=["c1"]), says("Sn", asyncio.Event(), "ow."), says("Snow."))
    data, options = MemoryStore(), {"temperature": 0.25, "tool_choice": "required"}
    sent = {"store": MemoryStore(data), "folder": tmp_path, "allows": True}
    async with case.desk(model_server, look, **sent) as desk:
        turn = await desk.start("How is Oslo?", options=options)
        await seen(desk, turn, lambda event: event == TokenEvent("Sn"))
        await lose_worker(desk)
    async with case.desk(model_server, look, **{**sent, "store": MemoryStore(data)}) as desk:
        events = await desk.events(turn)
        state = await desk.store.turn_state(turn.id)
    assert outcome(events) == ("completed", None)
    assert state is not None
    assert state.text == "Snow."
    assert [settings_of(body) for body in model_server.bodies] == [{"temperature": 0.25}] * 3
    assert [choice_of(body) for body in model_server.bodies] == ["required", None, None]


async def test_message_with_options_does_not_enter_a_running_turn(case: AgentCase, model_server: ScriptedModel) -> None:
    gate = asyncio.Event()

    async def hold(city: str) -> str:
        """Wait for the test."""
        await gate.wait()
        return city

    model_server.plan(calls(("hold", {"city": "Oslo"})), says("One."), says("Two."))
    async with case.desk(model_server, hold, allows=True) as desk:
        turn = await desk.start("First.")
        await seen(desk, turn, lambda event: isinstance(event, ToolCallEvent))
        options = {"temperature": 0.25}
        steering = await desk.start("Second.", session_id=turn.session_id, on_busy="steer", options=options)
        gate.set()
        events = await desk.events(steering)
    assert (outcome(events), text(events)) == (("completed", None), "Two.")
    assert [settings_of(body) for body in model_server.bodies] == [{}, {}, {"temperature": 0.25}]


async def test_option_that_is_not_allowed_is_refused_by_its_name(case: AgentCase, model_server: ScriptedModel) -> None:
    sent: dict[str, Any] = {**SENT, "tool_choice": "required", "response_format": FORMAT}
    async with case.desk(model_server, look, allows=False) as desk:
        for name, value in sent.items():
            with pytest.raises(ModelOptionNotTakenError) as refused:
                await desk.start("Hello.", options={name: value})
            assert refused.value.option == name
            assert str(refused.value).startswith(f"{name}: the agent 'agent' ")
    async with case.desk(model_server, look) as desk:  # As an operator who decides nothing has it.
        with pytest.raises(ModelOptionNotTakenError, match=r"^instructions: "):
            await desk.start("Hello.", options={"instructions": "Obey me."})
    assert not model_server.bodies


@pytest.mark.parametrize("case", FORMED, ids=lambda case: case.id)
async def test_answer_in_a_schema_is_streamed_as_its_json(case: AgentCase, model_server: ScriptedModel) -> None:
    pieces = ('{"city": "Os', 'lo", "degrees"', ": -3}")
    model_server.plan(calls(("look", {"city": "Oslo"})), says(*pieces))
    async with case.desk(model_server, look) as desk:
        turn = await desk.start("How is Oslo?", options={"response_format": FORMAT})
        events = await desk.events(turn)
    assert outcome(events) == ("completed", None)
    assert json.loads(text(events)) == {"city": "Oslo", "degrees": -3}
    assert len(only(events, TokenEvent)) > 1
    for body in model_server.bodies:
        assert format_of(body) == SCHEMA


@pytest.mark.parametrize("case", FORMED, ids=lambda case: case.id)
async def test_answer_may_be_any_json_object(case: AgentCase, model_server: ScriptedModel) -> None:
    model_server.plan(says('{"any":', ' "thing"}'))
    async with case.desk(model_server, look) as desk:
        turn = await desk.start("How is Oslo?", options={"response_format": {"type": "json_object"}})
        events = await desk.events(turn)
    assert outcome(events) == ("completed", None)
    assert json.loads(text(events)) == {"any": "thing"}
    assert format_of(model_server.bodies[0]) == "json_object"
