"""The contract of agents that run other agents inside their tools: seen, counted and limited like the turn's own."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.contracts.agents import CASES, AgentCase, case_params
from tests.contracts.test_agent import check_calls_have_results, conversation_of, only, outcome, text
from tests.scripted_model import Answer, Request, ScriptedModel, calls, model_server, says
from turnwire.core.budget import Limits
from turnwire.core.events import Event, ResponseEvent, TokenEvent, ToolCallEvent, ToolResultEvent, UsageEvent

__all__ = ["model_server"]

TEAMS = [case for case in CASES if hasattr(case.module, "delegate")]


@pytest.fixture(params=case_params(TEAMS))
def case(request: pytest.FixtureRequest) -> AgentCase:
    return request.param


async def weather(city: str) -> str:
    """Return the weather in a city."""
    return f"Sunny in {city}"


def chief_asks(*cities: str) -> Answer:
    return calls(*(("ask_scout", {"question": city}) for city in cities), ids=[f"ask_{city}" for city in cities])


def scout_looks(city: str, ids: list[str] | None = None) -> Answer:
    return calls(("weather", {"city": city}), ids=ids or [f"look_{city}"])


async def events_of(case: AgentCase, server: ScriptedModel, *tools: Callable[..., Any], **options: Any) -> list[Event]:
    async with case.desk(server, *tools, delegates=True, **options) as desk:
        return await desk.events(await desk.start("How is the weather?"))


async def test_sub_agent_has_a_path_and_its_text_is_no_answer(case: AgentCase, model_server: ScriptedModel) -> None:
    model_server.plan(chief_asks("Oslo"), scout_looks("Oslo"), says("It is sunny."), says("The scout says: sunny."))
    events = await events_of(case, model_server, weather)
    assert outcome(events) == ("completed", None)
    check_calls_have_results(events)
    inside = [event for event in events if event.agent_path]
    assert {event.agent_path for event in inside} == {("Scout",)}
    assert [event.tool for event in only(inside, ToolCallEvent)] == ["weather"]
    assert [event.result for event in only(inside, ToolResultEvent)] == ["Sunny in Oslo"]
    assert text(inside) == "It is sunny."
    assert len(only(inside, UsageEvent)) == 2
    outside = [event for event in events if not event.agent_path]
    assert only(outside, ResponseEvent)[0].content == text(outside) == "The scout says: sunny."
    begin, end = (events.index(only(outside, kind)[0]) for kind in (ToolCallEvent, ToolResultEvent))
    assert all(begin < events.index(event) < end for event in inside)


async def test_usage_of_a_sub_agent_is_part_of_the_turns(case: AgentCase, model_server: ScriptedModel) -> None:
    model_server.plan(chief_asks("Oslo"), scout_looks("Oslo"), says("Sunny."), says("Sunny, he says."))
    events = await events_of(case, model_server, weather)
    usage = only(events, ResponseEvent)[0].usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens) == (44, 28)


async def test_tools_of_a_sub_agent_count_as_steps(case: AgentCase, model_server: ScriptedModel) -> None:
    looks = [scout_looks(f"city {number}") for number in range(3)]
    model_server.plan(chief_asks("Oslo"), *looks)
    events = await events_of(case, model_server, weather, limits=Limits(max_steps_per_turn=3))
    assert outcome(events) == ("failed", "max_turns")
    assert len(only(events, ToolCallEvent)) == 3


async def test_tokens_of_a_sub_agent_count_against_the_budget(case: AgentCase, model_server: ScriptedModel) -> None:
    model_server.plan(chief_asks("Oslo"), *(scout_looks(f"city {number}") for number in range(8)))
    events = await events_of(case, model_server, weather, limits=Limits(max_tokens_per_day=70))
    assert outcome(events) == ("failed", "budget_spent")
    assert len(model_server.requests) < 9


async def test_parallel_namesakes_have_different_paths(case: AgentCase, model_server: ScriptedModel) -> None:
    both = asyncio.Barrier(2)

    async def weather(city: str) -> str:
        """Return the weather in a city."""
        await both.wait()
        return f"Sunny in {city}"

    def scout(request: Request) -> Answer:
        kind, entry = conversation_of(request.body)[-1]
        return says(f"{entry[1]}.") if kind == "result" else scout_looks(entry)

    model_server.plan(chief_asks("Oslo", "Rome"), *[scout] * 4, says("Both are sunny."))
    events = await events_of(case, model_server, weather)
    assert outcome(events) == ("completed", None)
    paths = {event.args["city"]: event.agent_path for event in only(events, ToolCallEvent) if event.agent_path}
    assert set(paths) == {"Oslo", "Rome"}
    assert len(set(paths.values())) == 2
    for city, path in paths.items():
        assert text([event for event in events if event.agent_path == path]) == f"Sunny in {city}."
        assert path in {("Scout",), (f"Scout:ask_{city}",)}
    assert len({event.agent_path for event in only(events, UsageEvent)}) == 3


async def test_later_namesake_has_the_same_path(case: AgentCase, model_server: ScriptedModel) -> None:
    model_server.plan(chief_asks("Oslo"), says("Sunny."), chief_asks("Rome"), says("Rainy."), says("Mixed."))
    events = await events_of(case, model_server, weather)
    assert outcome(events) == ("completed", None)
    inside = [event for event in only(events, TokenEvent) if event.agent_path]
    assert {event.agent_path for event in inside} == {("Scout",)}
