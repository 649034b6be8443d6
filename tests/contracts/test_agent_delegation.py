"""The contract of agents that run other agents inside their tools: seen, counted and limited like the turn's own."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import replace as replaced
from typing import Any

import pytest
from msgspec.structs import replace

from tests.contracts.agents import CASES, AgentCase, case_params
from tests.contracts.test_agent import check_calls_have_results, conversation_of, only, outcome, text
from tests.contracts.test_continuation import standing
from tests.contracts.turns import BOUND, followed
from tests.core.desk import Desk, lose_worker, wait_for_request
from tests.lost_connections import IGNORED, lost_connections_are_collected
from tests.scripted_model import Answer, Request, ScriptedModel, calls, model_server, offered_tools, says
from turnwire.agents.event_queue import EventQueue
from turnwire.core.journal.turn_journal import current_journal
from turnwire.core.log.codec import LoggedEvent
from turnwire.core.log.emit import emit
from turnwire.core.log.events import (
    CustomEvent,
    Event,
    ResponseEvent,
    TokenEvent,
    ToolCallEvent,
    ToolProgressEvent,
    ToolResultEvent,
    UsageEvent,
)
from turnwire.core.log.follow import follow
from turnwire.core.log.turns import TurnRecord
from turnwire.core.people.budget import Limits
from turnwire.stores.memory import MemoryStore
from turnwire.tools import progress

__all__ = ["lost_connections_are_collected", "model_server"]
pytestmark = IGNORED

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


async def test_sub_agents_of_turns_at_the_same_time_write_to_their_own_turns(
    case: AgentCase, model_server: ScriptedModel
) -> None:
    both = asyncio.Barrier(2)

    async def weather(city: str) -> str:
        """Return the weather in a city."""
        await both.wait()
        return f"Sunny in {city}"

    def reply(request: Request) -> Answer:
        kind, entry = conversation_of(request.body)[-1]
        if kind == "result":
            return says(f"{entry[1]}.")
        return chief_asks(entry) if "ask_scout" in offered_tools(request.body) else scout_looks(entry)

    model_server.otherwise = reply
    async with case.desk(model_server, weather, delegates=True) as desk:
        turns = {city: await desk.start(city) for city in ("Oslo", "Rome")}
        logs = {city: await desk.events(turn) for city, turn in turns.items()}
    for city, events in logs.items():
        assert outcome(events) == ("completed", None)
        check_calls_have_results(events)
        inside = [event for event in events if event.agent_path]
        assert {event.agent_path for event in inside} == {("Scout",)}
        assert [event.args for event in only(inside, ToolCallEvent)] == [{"city": city}]
        assert text(inside).rstrip(".") == f"Sunny in {city}"
        assert len(only(inside, UsageEvent)) == 2


# Continuation


class Team:
    """A chief that asks two scouts at once. The one in Rome works when the other one's text is in the log."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.looks = 0
        self.oslo_has_written = asyncio.Event()

    async def weather(self, city: str) -> str:
        """Return the weather in a city."""
        self.looks += 1
        progress(f"on the way to {city}")
        emit(CustomEvent("map", {"city": city}))
        return f"Rain in {city}"

    def reply(self, request: Request) -> Answer:
        conversation = conversation_of(request.body)
        has_results = any(kind == "result" for kind, _ in conversation)
        if "ask_scout" in offered_tools(request.body):
            self.requests["chief"] += 1
            return says("Wet.") if has_results else chief_asks("Oslo", "Rome")
        city = next(entry for kind, entry in conversation if kind == "user")
        self.requests[city] += 1
        if city == "Oslo":
            return says("Sunny.")
        answer = says("Rainy.") if has_results else calls(("weather", {"city": city}), text="I look.", ids=["look"])
        return replaced(answer, pieces=(self.oslo_has_written, *answer.pieces))

    @contextmanager
    def stop_in_oslo(self) -> Iterator[None]:
        """Stop the first scout when its text is in the log and its model call is not recorded yet."""
        end = asyncio.Event()

        def stopping(flush: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
            async def flush_and_stop(*args: Any) -> None:
                await flush(*args)
                outer = journal.running_call() if (journal := current_journal()) is not None else None
                if outer is not None and outer.call_id == "ask_Oslo" and self.requests["Oslo"]:
                    self.oslo_has_written.set()
                    await end.wait()

            return flush_and_stop

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(EventQueue, "flush", stopping(EventQueue.flush))
            yield
        end.set()


def shown(log: list[LoggedEvent]) -> list[tuple[str, list[str]]]:
    """Return what a reader knows of each agent in the end: its text, and its other events.

    Which of two namesakes has the call id in its path, and which of their events is first, differs from run to run.
    """
    texts: defaultdict[tuple[str, ...], str] = defaultdict(str)
    others: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for event in standing(log):
        match event:
            case TokenEvent():
                texts[event.agent_path] += event.content
            case ToolCallEvent() | ToolProgressEvent() | CustomEvent():
                others[event.agent_path].append(repr(replace(event, agent_path=())))
            case ToolResultEvent():
                others[event.agent_path].append(repr(replace(event, agent_path=(), ms=None)))
            case _:
                pass
    return sorted((texts[path], sorted(others[path])) for path in {*texts, *others})


async def wait_for_result(desk: Desk, turn: TurnRecord, call_id: str) -> None:
    async with asyncio.timeout(BOUND), aclosing(follow(desk.store, turn.id)) as batches:
        async for events in batches:
            if any(isinstance(each.event, ToolResultEvent) and each.event.call_id == call_id for each in events):
                return


async def test_finished_sub_agent_keeps_all_that_it_has_shown_if_the_worker_of_another_is_lost(
    case: AgentCase, model_server: ScriptedModel
) -> None:
    team, store = Team(), MemoryStore()
    model_server.otherwise = team.reply
    team.oslo_has_written.set()
    async with case.desk(model_server, team.weather, delegates=True, store=store) as desk:
        undisturbed = await desk.start("How is the weather?")
        expected = shown(await followed(store, undisturbed.id))
    lost = Team()
    model_server.otherwise = lost.reply
    async with case.desk(model_server, lost.weather, delegates=True, store=store) as desk:
        with lost.stop_in_oslo():
            turn = await desk.start("How is the weather?")
            await wait_for_result(desk, turn, "ask_Rome")
            await lose_worker(desk)
    async with case.desk(model_server, lost.weather, delegates=True, store=store) as desk:
        await wait_for_request(desk, turn, "ask_Oslo")
        await desk.runner.decide(turn.id, "ask_Oslo", approved=True)
        log = await followed(store, turn.id)
    assert shown(log) == expected
    assert lost.requests == {"chief": 2, "Oslo": 2, "Rome": 2}
    assert lost.looks == 1
    usage = Counter(logged.agent_path for logged in log if isinstance(logged.event, UsageEvent))
    assert max(usage.values()) == 2
