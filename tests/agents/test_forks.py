"""Forks of turns of real agents: at every position, the history is one that a strict provider accepts."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, function_tool

from tests.contracts.agent_cases import langgraph as langgraph_case
from tests.contracts.agent_cases import pydantic_ai as pydantic_case
from tests.contracts.agent_cases.openai_agents import sdk_model
from tests.contracts.agents import CASES, AgentCase
from tests.contracts.test_agent_steering import OSLO, Office, messages_of_user, steer
from tests.contracts.turns import BOUND, whole_log
from tests.core.desk import Desk, open_actor_desk
from tests.examples import some
from tests.lost_connections import IGNORED, lost_connections_are_collected
from tests.scripted_model import Reply, Request, ScriptedModel, calls, model_server, says
from turnwire.agents.chat_completions import ChatCompletionsAgent
from turnwire.agents.langgraph import LangGraphAgent
from turnwire.agents.openai_agents import OpenAIAgentsAgent
from turnwire.agents.pydantic_ai import PydanticAIAgent
from turnwire.core.log.emit import emit
from turnwire.core.log.events import CitationEvent, RestartEvent, TokenEvent
from turnwire.core.log.follow import fold_log
from turnwire.core.log.turns import TurnRecord, TurnState
from turnwire.core.run.fork import CALL_REPEATED, FORKED
from turnwire.core.run.runner import ForkRequest
from turnwire.stores.memory import MemoryStore
from turnwire.tools import tool

__all__ = ["lost_connections_are_collected", "model_server"]
pytestmark = IGNORED

QUESTION = "How is the tea?"
OTHER = "And the coffee?"


def scripted_reply(request: Request) -> Reply:
    """Look at two things at once, then send something, which needs approval, then answer."""
    items: list[dict[str, Any]] = request.body.get("messages") or request.body["input"]
    replies = 0
    for item in items:
        if item.get("role") == "user":
            replies, number = 0, items.index(item)
        elif item.get("tool_calls") or item.get("type") == "function_call":
            replies += 1
    if replies and request.path == "/v1/responses":
        replies = {1: 1, 2: 1, 3: 2}[replies]  # Each call is an item of its own.
    if replies == 0:
        wanted = (("look", {"city": "Oslo"}), ("count", {"word": "tea"}))
        return calls(*wanted, text="Let me look.", ids=[f"a{number}", f"b{number}"])
    if replies == 1:
        return calls(("send", {"to": "Ann"}), text="I send it.", ids=[f"s{number}"])
    return says("It is done [1].")


class Bench:
    """An agent with tools that count their runs, over a store, with a model that is strict about tool calls."""

    def __init__(self, server: ScriptedModel, kind: str, folder: Path) -> None:
        self.done: Counter[str] = Counter()
        self._begun: set[str] = set()
        self._both_begun = asyncio.Event()
        server.otherwise = scripted_reply
        server.is_strict = True

        async def look(city: str) -> str:
            """Look up the weather."""
            await self._begin_both("look")
            self.done["look"] += 1
            emit(CitationEvent(1, f"weather of {city}"))
            return "snow"

        async def count(word: str) -> int:
            """Count letters."""
            await self._begin_both("count")
            self.done["count"] += 1
            return len(word)

        async def send(to: str) -> str:
            """Send."""
            self.done["send"] += 1
            return f"sent to {to}"

        if kind == "chat completions":
            own = [look, tool(idempotent=True)(count), tool(needs_approval=True)(send)]
            self.agent: Any = ChatCompletionsAgent("small", base_url=server.url, tools=own, retries=0)
            self._close = self.agent.close
        elif kind == "pydantic ai":
            built = pydantic_case.build(server.url, [look, count, send], api="chat", timeout=BOUND, asks=["send"])
            self.agent, self._close = PydanticAIAgent(built, idempotent=["count"]), partial(pydantic_case.close, built)
        elif kind.startswith("langgraph"):
            threads = folder if kind == "langgraph with a checkpointer" else None
            graph = langgraph_case.build(
                server.url, [look, count, send], api="chat", timeout=BOUND, asks=["send"], folder=threads
            )
            self.agent, self._close = LangGraphAgent(graph, idempotent=["count"]), partial(langgraph_case.close, graph)
        else:
            model = sdk_model(server.url, api=kind)
            tools: list[Any] = [function_tool(look), function_tool(count), function_tool(send, needs_approval=True)]
            sdk_agent = Agent(name="Desk", instructions="Be kind.", model=model, tools=tools)
            self.agent = OpenAIAgentsAgent(sdk_agent, idempotent=["count"])
            self._close = model._client.close  # type: ignore[attr-defined]

    async def _begin_both(self, name: str) -> None:
        """Wait until both calls of the first turn have begun, so that both are open at some position of its log."""
        self._begun.add(name)
        if len(self._begun) == 2:
            self._both_begun.set()
        async with asyncio.timeout(BOUND):
            await self._both_begun.wait()

    @asynccontextmanager
    async def desk(self) -> AsyncIterator[Desk]:
        try:
            async with open_actor_desk(MemoryStore(), self.agent) as desk:
                yield desk
        finally:
            await self._close()


AGENTS = ["chat completions", "chat", "pydantic ai", "langgraph", "langgraph with a checkpointer"]


@pytest.fixture(params=AGENTS)
async def bench(request: pytest.FixtureRequest, model_server: ScriptedModel, tmp_path: Path) -> Bench:
    return Bench(model_server, request.param, tmp_path)


async def finish(desk: Desk, turn: TurnRecord, *, approves: bool = True) -> TurnState:
    """Decide all requests of a turn alike, and return its state when it has ended."""
    changed = asyncio.Event()
    unwatch = desk.store.watch(turn.id, lambda _: changed.set())
    try:
        async with asyncio.timeout(BOUND):
            while (state := await desk.store.turn_state(turn.id)) is None:
                changed.clear()
                if (await desk.store.find_turn("ann", turn.id)).phase == "waiting":
                    for request in (await fold_log(desk.store, turn.id)).requests.undecided:
                        await desk.runner.decide(turn.id, request.call_id, approved=approves, by="ann")
                await changed.wait() if await desk.store.turn_state(turn.id) is None else None
    finally:
        unwatch()
    return state


async def fork(desk: Desk, source: TurnRecord, position: int, **fields: Any) -> TurnRecord:
    return (await desk.runner.fork(ForkRequest(source=source, position=position, **fields))).record


async def ended_turn(desk: Desk) -> TurnRecord:
    turn = await desk.start(QUESTION)
    await finish(desk, turn)
    return await desk.store.find_turn("ann", turn.id)


@pytest.mark.long
async def test_fork_at_every_position_continues_the_work(bench: Bench, model_server: ScriptedModel) -> None:
    async with bench.desk() as desk:
        source = await ended_turn(desk)
        log, whole = await whole_log(desk.store, source.id), await desk.store.turn_state(source.id)
        assert whole is not None
        assert whole.outcome == "completed"
        journal = await desk.store.journal(source.id)
        results = {each.event.tool: each.position for each in log if each.type == "tool_result"}  # type: ignore[union-attr]
        replies = [each.position for each in journal if (each.kind, each.state) == ("model", "finished")]
        assert len(replies) == 3
        assert len(results) == 3
        for position in some(range(1, len(log) + 1), 5):
            bench.done.clear()
            before = len(model_server.requests)
            turn = await fork(desk, source, position)
            state = await finish(desk, turn)
            assert (state.outcome, state.text, state.message) == ("completed", whole.text, QUESTION), position
            # A tool that runs again cites again.
            assert {citation.document_id for citation in state.citations} == {"weather of Oslo"}, position
            assert state.forked_from == source.id
            shared = state.forked_at or 0
            assert shared == min(max(position, 2), len(log) - 2)
            copied = await whole_log(desk.store, turn.id)
            assert [each.body for each in copied[1:shared]] == [each.body for each in log[1:shared]]
            # What the shared log shows as finished is neither requested nor run again.
            assert bench.done == Counter({name: 1 for name, at in results.items() if at > position}), position
            assert len(model_server.requests) - before == sum(at > max(position, 2) for at in replies), position
            assert (await desk.store.find_turn("ann", turn.id)).parent_turn_id == ""


@pytest.mark.long
@pytest.mark.parametrize("bench", [*AGENTS, "responses"], indirect=True)
async def test_fork_at_every_position_goes_on_with_another_message(bench: Bench, model_server: ScriptedModel) -> None:
    async with bench.desk() as desk:
        source = await ended_turn(desk)
        log = await whole_log(desk.store, source.id)
        for position in some(range(1, len(log) + 1), 5):
            turn = await fork(desk, source, position, message=OTHER)
            assert turn.message == OTHER
            state = await finish(desk, turn)
            assert state.outcome == "completed", position
            body = model_server.bodies[-1]
            questions = [
                item["content"] for item in body.get("messages") or body["input"] if item.get("role") == "user"
            ]
            if position > 2:
                assert questions == [QUESTION, OTHER]
                assert (state.message, [each.content for each in state.follow_ups]) == (QUESTION, [OTHER])
            else:
                assert questions == [OTHER]
                assert (state.message, state.follow_ups) == (OTHER, ())
            # The next turn of the session, after the fork, has a history that is accepted too.
            if position % 6 == 0 or position == len(log):
                later = await desk.start("Thanks", session_id=turn.session_id, parent_turn_id=turn.id)
                assert (await finish(desk, later)).outcome == "completed"


@pytest.mark.parametrize("bench", ["chat completions"], indirect=True)
async def test_fork_of_a_fork_with_another_message_continues_in_either_part(
    bench: Bench, model_server: ScriptedModel
) -> None:
    async with bench.desk() as desk:
        source = await ended_turn(desk)
        middle = next(
            each.position for each in await whole_log(desk.store, source.id) if each.type == "approval_request"
        )
        first = await fork(desk, source, middle, message=OTHER)
        whole = await finish(desk, first)
        first = await desk.store.find_turn("ann", first.id)
        for position in range(3, first.last_position + 1, 3):
            turn = await fork(desk, first, position)
            state = await finish(desk, turn)
            assert state.outcome == "completed", position
            message = whole.follow_ups[0].position
            if position >= message:
                assert (turn.message, state.text) == (OTHER, whole.text), position
            else:
                assert (turn.message, len(state.follow_ups)) == (QUESTION, 0), position


async def test_open_call_that_is_not_idempotent_is_repeated_only_if_a_person_allows_it(bench: Bench) -> None:
    async with bench.desk() as desk:
        source = await ended_turn(desk)
        log = await whole_log(desk.store, source.id)
        # Parallel calls are logged in any order.
        names = (b'"look"', b'"count"')
        called = max(
            each.position for each in log if each.type == "tool_call" and any(name in each.body for name in names)
        )
        bench.done.clear()
        turn = await fork(desk, source, called)
        assert turn.phase == "waiting"
        requests = (await fold_log(desk.store, turn.id)).requests.undecided
        assert [(request.tool, request.reason) for request in requests] == [("look", CALL_REPEATED)]
        assert RestartEvent(called, FORKED) in [each.event for each in await whole_log(desk.store, turn.id)]
        state = await finish(desk, turn, approves=False)
        assert state.outcome == "completed"
        assert bench.done == {"count": 1}
        assert [step.state for step in state.steps] == ["failed", "succeeded", "failed"]


@pytest.mark.parametrize("bench", ["chat completions", "chat"], indirect=True)
async def test_fork_with_another_model_sends_the_message_to_it(bench: Bench, model_server: ScriptedModel) -> None:
    async with bench.desk() as desk:
        source = await ended_turn(desk)
        token = next(each.position for each in await whole_log(desk.store, source.id) if each.type == "token")
        before = len(model_server.requests)
        state = await finish(desk, await fork(desk, source, token, model="large"))
        assert state.outcome == "completed"
        assert {body["model"] for body in model_server.bodies[before:]} == {"large"}
        assert [each.content for each in state.follow_ups] == [QUESTION]


async def test_usage_of_the_shared_part_is_not_counted_again(bench: Bench) -> None:
    async with bench.desk() as desk:
        source = await ended_turn(desk)
        whole = await desk.store.turn_state(source.id)
        assert whole is not None
        assert whole.usage is not None
        last = max(e.position for e in await whole_log(desk.store, source.id) if isinstance(e.event, TokenEvent))
        state = await finish(desk, await fork(desk, source, last - 1))
        assert state.usage is not None
        assert whole.usage.input_tokens == 3 * (state.usage.input_tokens or 0)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.api == "chat" and case.can("steering")], ids=lambda case: case.id
)
async def test_fork_has_the_messages_that_had_entered_the_turn_before_its_position(
    case: AgentCase, model_server: ScriptedModel
) -> None:
    office = Office("Oslo")
    model_server.is_strict = True
    model_server.otherwise = lambda request: OSLO if len(model_server.requests) == 1 else says("Sunny.")
    async with case.desk(model_server, office.tool) as desk:
        turn = await desk.start(QUESTION)
        await office.gates["Oslo"].reached()
        for message in ("One.", "Two."):
            await steer(desk, turn, message)
        office.gates["Oslo"].open()
        await finish(desk, turn)
        source = await desk.store.find_turn("ann", turn.id)
        log = await whole_log(desk.store, turn.id)
        entered = [each.position for each in log if each.type == "input"]
        assert len(entered) == 2
        for position in range(entered[0] - 1, entered[1] + 2):
            before = len(model_server.requests)
            state = await finish(desk, await fork(desk, source, position))
            assert (state.outcome, state.text) == ("completed", "Sunny."), position
            assert len(model_server.requests) == before + 1, position
            shared = ["One.", "Two."][: sum(at <= position for at in entered)]
            assert "\n\n".join(messages_of_user(model_server.bodies[-1])) == "\n\n".join([QUESTION, *shared]), position
            assert [each.content for each in state.inputs] == shared, position
