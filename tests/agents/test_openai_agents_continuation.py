"""Turns of unmodified agents of the OpenAI Agents SDK that lose their worker and continue on another one."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, RunContextWrapper, SQLiteSession, function_tool

from tests.contracts.agent_cases.openai_agents import sdk_model
from tests.contracts.stores import StoreBackend
from tests.contracts.turns import BOUND
from tests.core.desk import (
    Desk,
    Gate,
    completed_answer,
    failure,
    lose_worker,
    open_actor_desk,
    wait_for_events,
    wait_until_suspended,
)
from tests.lost_connections import IGNORED, lost_connections_are_collected
from tests.scripted_model import ScriptedModel, calls, model_server, says
from turnwire.agents.openai_agents import OpenAIAgentsAgent
from turnwire.core.contracts.agents import resumes
from turnwire.core.contracts.stores import Store
from turnwire.core.log.events import Event, HandoffEvent, RestartEvent, TokenEvent, ToolCallEvent, ToolResultEvent
from turnwire.core.log.turn_log import LogLimits
from turnwire.core.log.turns import Turn, TurnRecord
from turnwire.stores.memory import MemoryStore

__all__ = ["lost_connections_are_collected", "model_server"]
pytestmark = IGNORED


class Office:
    """Agents with tools that count their runs; the tool that `stops_at` names waits at the gate, once."""

    def __init__(self, server: ScriptedModel, api: str, stops_at: str = "") -> None:
        self.done: Counter[str] = Counter()
        self.gate = Gate()
        self.stops_at = stops_at
        model = sdk_model(server.url, api=api)

        @function_tool
        async def look(city: str) -> dict[str, str]:
            """Look up the weather."""
            await self.do(f"look {city}")
            return {"weather": f"snow in {city}"}

        @function_tool
        def count(word: str) -> int:
            """Count letters, in a thread."""
            self.done[f"count {word}"] += 1
            return len(word)

        @function_tool
        async def pay(amount: int) -> str:
            """Pay."""
            await self.do(f"pay {amount}")
            if amount > 100:
                raise ValueError("too much")
            return "paid"

        @function_tool(needs_approval=True)
        async def send(to: str) -> str:
            """Send."""
            await self.do(f"send {to}")
            return f"sent to {to}"

        helper = Agent(name="Helper", instructions="Help.", model=model, tools=[look])
        boss = Agent(name="Boss", instructions="Decide.", model=model, tools=[look, count, pay, send])
        self.agent = Agent(
            name="Desk",
            instructions="Be kind.",
            model=model,
            tools=[look, count, pay, send, helper.as_tool("ask_helper", "Ask the helper.")],
            handoffs=[boss],
        )
        self._client: Any = model._client  # type: ignore[attr-defined]

    async def close(self) -> None:
        await self._client.close()

    async def do(self, what: str) -> None:
        self.done[what] += 1
        if what == self.stops_at:
            self.stops_at = ""
            await self.gate.wait()


@asynccontextmanager
async def open_office(store: Store, office: Office, **options: Any) -> AsyncIterator[Desk]:
    async with open_actor_desk(store, OpenAIAgentsAgent(office.agent, **options)) as desk:
        yield desk


MakeOffice = Callable[..., Office]


@pytest.fixture
async def make_office(model_server: ScriptedModel) -> AsyncIterator[MakeOffice]:
    offices: list[Office] = []

    def make(api: str = "chat", stops_at: str = "") -> Office:
        offices.append(Office(model_server, api, stops_at))
        return offices[-1]

    yield make
    for office in offices:
        await office.close()


@pytest.fixture(params=["chat", "responses"])
def api(request: pytest.FixtureRequest) -> str:
    return request.param


async def commit(desk: Desk, turn: TurnRecord) -> None:
    async with asyncio.timeout(BOUND):
        await desk.runner.worker.running[turn.id]._log.flush()


async def lose_in_tool(store: Store, office: Office, **options: Any) -> TurnRecord:
    async with open_office(store, office, **options) as desk:
        turn = await desk.start("Go")
        await office.gate.reached()
        await commit(desk, turn)
        await lose_worker(desk)
    return turn


async def lose_in_text(store: Store, office: Office, text: str) -> TurnRecord:
    async with open_office(store, office) as desk:
        turn = await desk.start("Go")
        await wait_for_events(desk, turn, TokenEvent(text))
        await lose_worker(desk)
    return turn


async def finish(store: Store, office: Office, turn: TurnRecord, **options: Any) -> tuple[str, list[Event]]:
    async with open_office(store, office, **options) as desk:
        return await completed_answer(desk, turn), await desk.events(turn)


def count(events: list[Event], kind: type[Event]) -> int:
    return sum(isinstance(event, kind) for event in events)


async def test_finished_calls_are_not_repeated(
    model_server: ScriptedModel, make_office: MakeOffice, store: Store, api: str
) -> None:
    never = asyncio.Event()
    model_server.plan(
        calls(("look", {"city": "Oslo"}), ("count", {"word": "tea"}), text="One moment. ", ids=["a1", "a2"]),
        calls(("pay", {"amount": 1}), ids=["b1"]),
        says("It is sn", never),
        says("It is snowing."),
    )
    office = make_office(api)
    turn = await lose_in_text(store, office, "It is sn")
    reply = next(entry for entry in await store.journal(turn.id) if entry.state == "finished")
    requested_at = next(
        logged.position for logged in await store.read(turn.id, 0, 1_000) if isinstance(logged.event, ToolCallEvent)
    )
    assert reply.position == requested_at - 1  # The text and the usage of a reply come before its entry.
    answer, events = await finish(store, office, turn)
    assert answer == "One moment. \n\nIt is snowing."
    assert office.done == {"look Oslo": 1, "count tea": 1, "pay 1": 1}
    assert len(model_server.bodies) == 4
    # The repeated request is the one that broke off: results of tools came from the journal as they were.
    key = "messages" if api == "chat" else "input"
    assert model_server.bodies[3][key] == model_server.bodies[2][key]
    assert (count(events, ToolCallEvent), count(events, ToolResultEvent), count(events, RestartEvent)) == (3, 3, 1)


async def test_running_tool_is_repeated_if_idempotent_and_otherwise_asked_about(
    model_server: ScriptedModel, make_office: MakeOffice, store: Store
) -> None:
    for idempotent in (("pay",), ()):
        first = len(model_server.bodies)
        model_server.plan(calls(("look", {"city": "Oslo"}), ("pay", {"amount": 1}), ids=["a1", "a2"]), says("Done."))
        office = make_office(stops_at="pay 1")
        options = {"idempotent": idempotent}
        async with open_office(store, office, **options) as desk:
            turn = await desk.start("Go")
            await office.gate.reached()
            result = ToolResultEvent("a1", "look", True, {"weather": "snow in Oslo"})
            await _wait_for_result(desk, turn, result)
            await lose_worker(desk)
        async with open_office(store, office, **options) as desk:
            if not idempotent:
                await wait_until_suspended(desk, turn)
                assert office.done["pay 1"] == 1
                await desk.runner.decide(turn.id, "a2", approved=False, reason="no")
            assert await completed_answer(desk, turn) == "Done."
        assert office.done == {"look Oslo": 1, "pay 1": 2 if idempotent else 1}
        assert len(model_server.bodies) - first == 2
        results = [message["content"] for message in model_server.bodies[-1]["messages"] if message["role"] == "tool"]
        assert results[1] == "paid" if idempotent else results[1].startswith("Outcome unknown")


async def _wait_for_result(desk: Desk, turn: TurnRecord, result: ToolResultEvent) -> None:
    changed = asyncio.Event()
    unwatch = desk.store.watch(turn.id, lambda _: changed.set())
    async with asyncio.timeout(BOUND):
        while not any(
            isinstance(logged.event, ToolResultEvent) and logged.event.call_id == result.call_id
            for logged in await desk.store.read(turn.id, 0, 1_000)
        ):
            await changed.wait()
            changed.clear()
    unwatch()


async def test_agent_as_a_tool_runs_again_and_its_finished_calls_are_answered(
    model_server: ScriptedModel, make_office: MakeOffice, store: Store, api: str
) -> None:
    never = asyncio.Event()
    model_server.plan(
        calls(("ask_helper", {"input": "weather?"}), ids=["a1"]),
        calls(("look", {"city": "Oslo"}), ids=["h1"]),
        says("Helper: sn", never),
        says("Helper: snow."),
        says("It snows."),
    )
    office = make_office(api)
    async with open_office(store, office) as desk:
        turn = await desk.start("Go")
        await wait_for_events(desk, turn, TokenEvent("Helper: sn", agent_path=("Helper",)))
        await lose_worker(desk)
    answer, events = await finish(store, office, turn)
    assert answer == "It snows."
    assert office.done == {"look Oslo": 1}
    assert len(model_server.bodies) == 5
    assert (count(events, ToolCallEvent), count(events, ToolResultEvent)) == (2, 2)


async def test_handoff_is_repeated_without_a_second_event(
    model_server: ScriptedModel, make_office: MakeOffice, store: Store, api: str
) -> None:
    never = asyncio.Event()
    model_server.plan(
        calls(("transfer_to_boss", {}), ids=["a1"]),
        calls(("pay", {"amount": 2}), ids=["b1"]),
        says("Pa", never),
        says("Paid."),
    )
    office = make_office(api)
    turn = await lose_in_text(store, office, "Pa")
    answer, events = await finish(store, office, turn)
    assert answer == "Paid."
    assert (count(events, HandoffEvent), office.done) == (1, {"pay 2": 1})
    assert len(model_server.bodies) == 4


async def test_failed_tool_is_told_in_the_same_words_and_does_not_run_again(
    model_server: ScriptedModel, make_office: MakeOffice, store: Store
) -> None:
    never = asyncio.Event()
    model_server.plan(calls(("pay", {"amount": 200}), ids=["a1"]), says("Fa", never), says("Failed."))
    office = make_office()
    turn = await lose_in_text(store, office, "Fa")
    _, events = await finish(store, office, turn)
    (result,) = [event for event in events if isinstance(event, ToolResultEvent)]
    assert not result.success
    assert office.done == {"pay 200": 1}
    assert model_server.bodies[2]["messages"] == model_server.bodies[1]["messages"]


async def test_approved_tool_that_has_run_does_not_run_again(
    model_server: ScriptedModel, make_office: MakeOffice, store: Store
) -> None:
    never = asyncio.Event()
    model_server.plan(calls(("send", {"to": "bob"}), ids=["a1"]), says("Se", never), says("Sent."))
    office = make_office()
    async with open_office(store, office) as desk:
        turn = await desk.start("Go")
        await wait_until_suspended(desk, turn)
        await desk.runner.decide(turn.id, "a1", approved=True)
        await wait_for_events(desk, turn, TokenEvent("Se"))
        await lose_worker(desk)
    answer, _ = await finish(store, office, turn)
    assert (answer, office.done) == ("Sent.", {"send bob": 1})
    assert len(model_server.bodies) == 3


async def test_turn_is_lost_again_and_again_and_still_repeats_nothing(
    model_server: ScriptedModel, make_office: MakeOffice, backend: StoreBackend
) -> None:
    store = await backend.open()
    steps = [calls(("pay", {"amount": number}), ids=[f"c{number}"]) for number in range(4)]
    model_server.plan(*steps, says("Done."))
    office, turn = make_office(), None
    for number in range(4):
        office.stops_at, office.gate = f"pay {number}", Gate()
        async with open_office(store, office, idempotent=["pay"]) as desk:
            turn = turn or await desk.start("Go")
            await office.gate.reached()
            await lose_worker(desk)
    assert turn is not None
    answer, _ = await finish(store, office, turn, idempotent=["pay"])
    assert answer == "Done."
    assert len(model_server.bodies) == 5
    assert office.done == {f"pay {number}": 2 for number in range(4)}


@pytest.mark.parametrize("keeps", ["file", "memory"])
async def test_session_of_the_sdk_has_every_item_once(
    model_server: ScriptedModel, make_office: MakeOffice, tmp_path: Path, keeps: str
) -> None:
    """An in-memory session is lost with its process, and restored from the journal."""
    path = tmp_path / "memory.db" if keeps == "file" else ":memory:"
    sessions: list[SQLiteSession] = []

    def open_session(turn: Turn) -> SQLiteSession:
        sessions.append(SQLiteSession(turn.session_id, path))
        return sessions[-1]

    never = asyncio.Event()
    for first in (says("It", never), None):
        before = len(model_server.bodies)
        replies = [
            *(
                says("Hi."),
                calls(("pay", {"amount": 1}), text="I pay.", ids=["a1"]),
                calls(("pay", {"amount": 2}), ids=["a2"]),
            ),
            *([first] if first else []),
            *(says("It is."), says("Bye.")),
        ]
        model_server.plan(*replies)
        office, store = make_office(), MemoryStore()
        async with open_office(store, office, session=open_session) as desk:
            hello = await desk.start("Hello")
            await completed_answer(desk, hello)
            if keeps == "memory" and first:
                sessions[-1].close()
            turn = await desk.start("Go", session_id=hello.session_id)
            if first:
                await wait_for_events(desk, turn, TokenEvent("It"))
                await lose_worker(desk)
        async with open_office(store, office, session=open_session) as desk:
            assert await completed_answer(desk, turn) == "I pay.\n\nIt is."
            items = [_bare(item) for item in await sessions[-1].get_items()]
            await completed_answer(desk, await desk.start("Bye", session_id=hello.session_id))
        assert office.done == {"pay 1": 1, "pay 2": 1}
        if first:
            killed, last_request = items, model_server.bodies[-1]["messages"]
            repeated, broken_off = model_server.bodies[before + 4], model_server.bodies[before + 3]
            assert repeated["messages"] == broken_off["messages"]
        else:
            assert (killed, last_request) == (items, model_server.bodies[-1]["messages"])
    for session in sessions:
        session.close()


@pytest.mark.parametrize("changes", [False, True], ids=["unchanged", "changed"])
async def test_turn_with_a_session_that_is_too_large_for_the_journal_continues_unless_that_has_changed(
    model_server: ScriptedModel, make_office: MakeOffice, tmp_path: Path, changes: bool
) -> None:
    sessions: list[SQLiteSession] = []

    def open_session(turn: Turn | None) -> SQLiteSession:
        sessions.append(SQLiteSession("large", tmp_path / "memory.db"))
        return sessions[-1]

    large = {"role": "user", "content": "x" * LogLimits().max_entry_bytes}
    await open_session(None).add_items([large, {"role": "assistant", "content": "I see."}])  # type: ignore[list-item]
    model_server.plan(calls(("pay", {"amount": 1}), ids=["a1"]), says("It", asyncio.Event()), says("It is."))
    office, store = make_office(), MemoryStore()
    async with open_office(store, office, session=open_session) as desk:
        turn = await desk.start("Go")
        await wait_for_events(desk, turn, TokenEvent("It"))
        await lose_worker(desk)
    if changes:
        await sessions[0].clear_session()
    async with open_office(store, office, session=open_session) as desk:
        if changes:
            assert (await failure(desk, turn)).code == "diverged"
        else:
            assert await completed_answer(desk, turn) == "It is."
            assert model_server.bodies[2]["messages"] == model_server.bodies[1]["messages"]
            roles = [item.get("role") or item.get("type") for item in await sessions[0].get_items()]
            assert roles == ["user", "assistant", "user", "function_call", "function_call_output", "assistant"]
    assert office.done == {"pay 1": 1}
    for session in sessions:
        session.close()


async def test_context_has_the_changes_of_finished_tools(model_server: ScriptedModel, make_office: MakeOffice) -> None:
    """Parallel tools change the same value; the last change counts, also if the tools are answered in another order."""
    seen: list[Any] = []
    first_ends = asyncio.Event()

    @function_tool
    async def add(context: RunContextWrapper[Any], number: int) -> str:
        if number == 1:
            await first_ends.wait()
        context.context.total = getattr(context.context, "total", 0) + number
        context.context.secret = object()
        first_ends.set()
        return "added"

    @function_tool
    async def show(context: RunContextWrapper[Any]) -> str:
        seen.append((context.context.total, hasattr(context.context, "secret")))
        return "shown"

    office = make_office()
    office.agent.tools = [add, show]
    never = asyncio.Event()
    model_server.plan(
        calls(("add", {"number": 1}), ("add", {"number": 2}), ids=["a1", "a2"]),
        *(says("So", never), calls(("show", {}), ids=["b1"]), says("Done.")),
    )
    store = MemoryStore()
    turn = await lose_in_text(store, office, "So")
    answer, _ = await finish(store, office, turn)
    assert (answer, seen) == ("Done.", [(3, False)])


def _bare(item: Any) -> dict[str, Any]:
    """Return an item of a session without the ids that differ in every run."""
    return {name: value for name, value in item.items() if name not in ("id", "provider_data")}


def test_agent_resumes_unless_it_says_otherwise() -> None:
    agent = Agent(name="Plain")
    plain = OpenAIAgentsAgent(agent)
    assert resumes(plain)
    closing = OpenAIAgentsAgent(agent, on_crash="close")
    assert not resumes(closing)
    with_session = OpenAIAgentsAgent(agent, session=lambda turn: SQLiteSession(turn.session_id))
    assert resumes(with_session)
