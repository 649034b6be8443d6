"""The contract of agent adapters for messages that enter a running turn."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.agents import CASES, AgentCase, case_fixture
from tests.contracts.test_agent import conversation_of, only, outcome, seen, text
from tests.contracts.turns import BOUND
from tests.core.desk import Desk, Gate, lose_worker, wait_until_suspended
from tests.lost_connections import IGNORED, lost_connections_are_collected
from tests.scripted_model import ScriptedModel, calls, model_server, says
from turnwire.core.contracts.agents import resumes
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    DoneEvent,
    Event,
    InputEvent,
    Joined,
    TokenEvent,
    ToolResultEvent,
)
from turnwire.core.log.turns import TurnRecord
from turnwire.stores.memory import MemoryStore

__all__ = ["lost_connections_are_collected", "model_server"]
pytestmark = IGNORED
case = case_fixture("steering")

OSLO = calls(("weather", {"city": "Oslo"}), ids=["call_oslo"])
BERGEN = calls(("weather", {"city": "Bergen"}), ids=["call_bergen"])
SENT = "And Bergen, please."
TEAMS = [case for case in CASES if hasattr(case.module, "delegate")]


class Office:
    """A tool that waits at a gate in each city that has one."""

    def __init__(self, *cities: str) -> None:
        self.gates = {city: Gate() for city in cities}

    async def weather(self, city: str) -> str:
        """Return the weather in a city."""
        if city in self.gates:
            await self.gates[city].wait()
        return f"Sunny in {city}"

    @property
    def tool(self) -> Any:
        async def weather(city: str) -> str:
            """Return the weather in a city."""
            return await self.weather(city)

        return weather


async def steer(desk: Desk, turn: TurnRecord, message: str = SENT, **fields: Any) -> TurnRecord:
    return await desk.start(message, session_id=turn.session_id, on_busy="steer", **fields)


def messages_of_user(body: dict[str, Any]) -> list[str]:
    return [content for kind, content in conversation_of(body) if kind == "user"]


async def check_joined(desk: Desk, turn: TurnRecord, into: TurnRecord, events: list[Event]) -> None:
    """Check that a message is in the log of the turn that it has entered, once, and nowhere else."""
    (entered,) = [event for event in only(events, InputEvent) if event.turn_id == turn.id]
    assert (entered.content, entered.by, entered.mode) == (turn.message, "ann", "steer")
    joined = Joined(into.id, events.index(entered) + 1)
    done = DoneEvent("joined", turn.session_id, turn.id, reason="steer", joined=joined)
    assert (await desk.events(turn))[2:] == [done]


async def test_message_sent_while_a_tool_runs_is_in_the_next_model_call_once(
    case: AgentCase, model_server: ScriptedModel
) -> None:
    model_server.plan(OSLO, BERGEN, says("Sunny everywhere."), says("You are welcome."))
    office = Office("Oslo")
    async with case.desk(model_server, office.tool) as desk:
        turn = await desk.start("How is Oslo?")
        await office.gates["Oslo"].reached()
        sent = await steer(desk, turn, idempotency_key="once")
        assert (await steer(desk, turn, idempotency_key="once")).id == sent.id
        office.gates["Oslo"].open()
        events = await desk.events(turn)
        await check_joined(desk, sent, turn, events)
        await desk.events(await desk.start("Thanks.", session_id=turn.session_id))
    assert outcome(events) == ("completed", None)
    kinds = [type(event) for event in events if isinstance(event, ToolResultEvent | InputEvent | TokenEvent)]
    assert kinds[:3] == [ToolResultEvent, InputEvent, ToolResultEvent]
    _, second, third, later = model_server.bodies
    assert [kind for kind, _ in conversation_of(second)] == ["user", "call", "result", "user"]
    assert [kind for kind, _ in conversation_of(third)] == ["user", "call", "result", "user", "call", "result"]
    answers = ["user", "call", "result", "user", "call", "result", "assistant", "user"]
    assert [kind for kind, _ in conversation_of(later)] == answers
    for body in (second, third):
        assert messages_of_user(body) == ["How is Oslo?", SENT]
    assert messages_of_user(later) == ["How is Oslo?", SENT, "Thanks."]


async def test_messages_enter_in_the_order_they_were_sent(case: AgentCase, model_server: ScriptedModel) -> None:
    model_server.plan(OSLO, says("Fine."))
    office = Office("Oslo")
    async with case.desk(model_server, office.tool) as desk:
        turn = await desk.start("How is Oslo?")
        await office.gates["Oslo"].reached()
        sent = [await steer(desk, turn, message) for message in ("One.", "Two.")]
        office.gates["Oslo"].open()
        events = await desk.events(turn)
        for message in sent:
            await check_joined(desk, message, turn, events)
    assert "\n\n".join(messages_of_user(model_server.bodies[1])) == "How is Oslo?\n\nOne.\n\nTwo."
    assert [event.content for event in only(events, InputEvent)] == ["One.", "Two."]


async def test_message_after_the_last_model_call_becomes_the_next_turn(
    case: AgentCase, model_server: ScriptedModel
) -> None:
    gate = asyncio.Event()
    model_server.plan(says("Sunny", gate, "."), says("Rainy."))
    async with case.desk(model_server) as desk:
        turn = await desk.start("How is Oslo?")
        await seen(desk, turn, lambda event: event == TokenEvent("Sunny"))
        sent = await steer(desk, turn)
        gate.set()
        assert not only(await desk.events(turn), InputEvent)
        events = await desk.events(sent)
    assert outcome(events) == ("completed", None)
    assert text(events) == "Rainy."
    assert messages_of_user(model_server.bodies[1]) == ["How is Oslo?", SENT]


async def test_cancel_after_a_message_was_taken_keeps_it_in_the_history(
    case: AgentCase, model_server: ScriptedModel
) -> None:
    model_server.plan(OSLO, says("Rain", asyncio.Event(), "y."), says("Fine."))
    office = Office("Oslo")
    async with case.desk(model_server, office.tool) as desk:
        turn = await desk.start("How is Oslo?")
        await office.gates["Oslo"].reached()
        sent = await steer(desk, turn)
        office.gates["Oslo"].open()
        await seen(desk, turn, lambda event: event == TokenEvent("Rain"))
        await desk.cancel(turn)
        events = await desk.events(turn)
        await check_joined(desk, sent, turn, events)
        await desk.events(await desk.start("Go on.", session_id=turn.session_id))
    assert outcome(events) == ("cancelled", None)
    assert messages_of_user(model_server.bodies[2]) == ["How is Oslo?", SENT, "Go on."]


async def test_message_to_a_suspended_turn_is_in_the_model_call_after_the_decision(
    case: AgentCase, model_server: ScriptedModel, tmp_path: Path
) -> None:
    model_server.plan(BERGEN, calls(("look_up", {"city": "Oslo"}), ids=["call_look"]), OSLO, says("Fine."))
    office = Office("Bergen")
    async with case.desk(model_server, office.tool, look_up, asks=["look_up"], folder=tmp_path) as desk:
        turn = await desk.start("How is Oslo?")
        await office.gates["Bergen"].reached()
        first = await steer(desk, turn, "First.")
        office.gates["Bergen"].open()
        await wait_until_suspended(desk, turn)
        second = await steer(desk, turn, "Second.")
        log = await seen(desk, turn, lambda event: isinstance(event, ApprovalRequestEvent))
        (request,) = only(log, ApprovalRequestEvent)
        await desk.runner.decide(turn.id, request.call_id, approved=True)
        events = await desk.events(turn)
        for message in (first, second):
            await check_joined(desk, message, turn, events)
    assert outcome(events) == ("completed", None)
    assert [messages_of_user(body) for body in model_server.bodies] == [
        ["How is Oslo?"],
        ["How is Oslo?", "First."],
        ["How is Oslo?", "First.", "Second."],
        ["How is Oslo?", "First.", "Second."],
    ]


async def look_up(city: str) -> str:
    """Look a city up."""
    return f"{city} is a city"


@pytest.mark.parametrize("case", TEAMS, ids=lambda case: case.id)
async def test_message_is_taken_by_the_turn_s_agent_and_not_by_a_sub_agent(
    case: AgentCase, model_server: ScriptedModel
) -> None:
    model_server.plan(calls(("ask_scout", {"question": "Oslo?"})), OSLO, says("Sunny."), says("It is sunny."))
    office = Office("Oslo")
    async with case.desk(model_server, office.tool, delegates=True) as desk:
        turn = await desk.start("How is Oslo?")
        await office.gates["Oslo"].reached()
        sent = await steer(desk, turn)
        office.gates["Oslo"].open()
        events = await desk.events(turn)
        await check_joined(desk, sent, turn, events)
    assert outcome(events) == ("completed", None)
    assert [SENT in messages_of_user(body) for body in model_server.bodies] == [False, False, False, True]


async def test_message_survives_the_loss_of_the_worker_that_took_it(
    case: AgentCase, model_server: ScriptedModel, tmp_path: Path
) -> None:
    model_server.plan(OSLO, says("Rain", asyncio.Event(), "y."), says("Rainy."), says("Fine."))
    data, office = MemoryStore(), Office("Oslo")
    async with case.desk(model_server, office.tool, store=MemoryStore(data), folder=tmp_path) as desk:
        turn = await desk.start("How is Oslo?")
        await office.gates["Oslo"].reached()
        sent = await steer(desk, turn)
        office.gates["Oslo"].open()
        await seen(desk, turn, lambda event: event == TokenEvent("Rain"))
        await lose_worker(desk)
    async with case.desk(model_server, office.tool, store=MemoryStore(data), folder=tmp_path) as desk:
        events = await desk.events(turn)
        await check_joined(desk, sent, turn, events)
        is_continued = resumes(desk.runner.agents["agent"])
        if is_continued:
            assert outcome(events) == ("completed", None)
            assert messages_of_user(model_server.bodies[2]) == ["How is Oslo?", SENT]
        else:
            assert outcome(events) == ("interrupted", "interrupted")
        async with asyncio.timeout(BOUND):
            await desk.events(await desk.start("Go on.", session_id=turn.session_id))
    assert messages_of_user(model_server.bodies[-1]) == ["How is Oslo?", SENT, "Go on."]
