"""The contract of agent adapters for questions of tools, and for tools that the client runs."""

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.agents import CASES, AgentCase, case_fixture
from tests.contracts.test_agent import conversation_of, only, outcome, seen, text
from tests.contracts.test_continuation import slow_queues
from tests.contracts.turns import BOUND
from tests.core.desk import Desk, Gate, lose_worker, settle, wait_until_suspended
from tests.examples import some
from tests.lost_connections import IGNORED, lost_connections_are_collected
from tests.scripted_model import Answer, Request, ScriptedModel, calls, model_server, offered_tools, says
from turnwire import ask
from turnwire.core.errors import ClientToolConflictError
from turnwire.core.log.codec import begins_wait
from turnwire.core.log.events import (
    Event,
    QuestionEvent,
    ReplyEvent,
    RestartEvent,
    TokenEvent,
    ToolCallEvent,
    ToolResultEvent,
)
from turnwire.core.log.follow import fold_log, follow
from turnwire.core.log.turns import TurnRecord
from turnwire.core.run.runner import ForkRequest
from turnwire.recordings.recording import decode_recording, encode_recording, record_turn
from turnwire.recordings.replay import replay_turn
from turnwire.stores.memory import MemoryStore

__all__ = ["lost_connections_are_collected", "model_server", "slow_queues"]
pytestmark = IGNORED
case = case_fixture("waits")

SCHEMA = {"type": "object", "properties": {"account": {"type": "string", "enum": ["main", "spare"]}}}
LOCATE: dict[str, Any] = {
    "name": "locate",
    "description": "Find the user.",
    "parameters": {"type": "object", "properties": {"exact": {"type": "boolean"}}, "required": ["exact"]},
}
TOOLS = {"client_tools": [LOCATE]}
TEAMS = [case for case in CASES if hasattr(case.module, "delegate")]


class Bank:
    """Tools of the server: one that asks before it pays, and one that waits at a gate."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.paid: list[str] = []
        self.looked = 0
        self.gate = Gate()
        self.gate.open()

        async def pay(to: str) -> str:
            """Pay somebody."""
            self.begun.append(to)
            answer = await ask(f"From which account to {to}?", SCHEMA)
            self.paid.append(f"{answer['account']} to {to}")
            return f"paid {to} from {answer['account']}"

        async def look(city: str) -> str:
            """Look up the weather."""
            await self.gate.wait()
            self.looked += 1
            return f"snow in {city}"

        self.tools = [pay, look]


async def open_questions(desk: Desk, turn: TurnRecord) -> dict[str, str]:
    await wait_until_suspended(desk, turn)
    return {each.prompt: each.id for each in (await fold_log(desk.store, turn.id)).requests.open_questions}


async def open_calls(desk: Desk, turn: TurnRecord) -> list[str]:
    await wait_until_suspended(desk, turn)
    return [call.call_id for call in (await fold_log(desk.store, turn.id)).requests.open_client_calls]


def results(body: dict[str, Any]) -> list[tuple[str, str]]:
    return [entry for kind, entry in conversation_of(body) if kind == "result"]


def check_written_once(events: list[Event]) -> None:
    """Check that no call, result, question or reply stands in the log twice, and that nothing was taken back."""
    for kind in (ToolCallEvent, ToolResultEvent):
        ids = [event.call_id for event in only(events, kind)]
        assert len(ids) == len(set(ids)), ids
    assert len(only(events, QuestionEvent)) == len(only(events, ReplyEvent))
    assert not only(events, RestartEvent)


async def test_tool_that_asks_goes_on_with_the_reply(case: AgentCase, model_server: ScriptedModel) -> None:
    model_server.plan(calls(("pay", {"to": "bob"}), text="I pay.", ids=["c1"]), says("Done."))
    bank = Bank()
    async with case.desk(model_server, *bank.tools) as desk:
        turn = await desk.start("Pay Bob.")
        questions = await open_questions(desk, turn)
        assert list(questions) == ["From which account to bob?"]
        await desk.runner.reply(turn.id, next(iter(questions.values())), {"account": "spare"}, by="ann")
        events = await desk.events(turn)
    assert outcome(events) == ("completed", None)
    check_written_once(events)
    (question,) = only(events, QuestionEvent)
    assert (question.schema, question.call_id) == (SCHEMA, "c1")
    assert text(events) == "I pay.\n\nDone."
    assert (bank.begun, bank.paid) == (["bob", "bob"], ["spare to bob"])
    _, second = model_server.bodies
    assert results(second) == [("c1", "paid bob from spare")]


async def test_client_tool_is_offered_beside_the_server_s_and_its_result_reaches_the_model_once(
    case: AgentCase, model_server: ScriptedModel
) -> None:
    model_server.plan(calls(("locate", {"exact": True}), text="Where?", ids=["c1"]), says("In Oslo."), says("Fine."))
    bank = Bank()
    async with case.desk(model_server, *bank.tools) as desk:
        turn = await desk.start("Where am I?", options=TOOLS)
        (call_id,) = await open_calls(desk, turn)
        await desk.runner.send_tool_result(turn.id, call_id, "Oslo, Karl Johans gate")
        events = await desk.events(turn)
        following = await desk.start("Thanks.", session_id=turn.session_id)
        await desk.events(following)
    assert outcome(events) == ("completed", None)
    check_written_once(events)
    assert only(events, ToolCallEvent) == [ToolCallEvent("c1", "locate", {"exact": True}, runs_on="client")]
    assert only(events, ToolResultEvent) == [ToolResultEvent("c1", "locate", True, "Oslo, Karl Johans gate")]
    assert text(events) == "Where?\n\nIn Oslo."
    first, second, later = model_server.bodies
    assert set(offered_tools(first)) == set(offered_tools(second)) == {"pay", "look", "locate"}
    assert offered_tools(first)["locate"]["description"] == "Find the user."
    assert offered_tools(first)["locate"]["parameters"]["properties"] == {"exact": {"type": "boolean"}}
    assert results(second) == [("c1", "Oslo, Karl Johans gate")]
    assert "locate" not in offered_tools(later)
    assert results(later) == [("c1", "Oslo, Karl Johans gate")]


async def test_failed_client_tool_is_told_to_the_model(case: AgentCase, model_server: ScriptedModel) -> None:
    model_server.plan(calls(("locate", {"exact": True}), ids=["c1"]), says("I do not know."))
    async with case.desk(model_server, *Bank().tools) as desk:
        turn = await desk.start("Where am I?", options=TOOLS)
        (call_id,) = await open_calls(desk, turn)
        await desk.runner.send_tool_result(turn.id, call_id, "no permission", is_error=True)
        events = await desk.events(turn)
    assert outcome(events) == ("completed", None)
    (result,) = only(events, ToolResultEvent)
    assert (result.success, result.result) == (False, "no permission")
    ((_, content),) = results(model_server.bodies[1])
    assert "no permission" in content


async def test_mixed_parallel_calls_finish_on_the_server_and_then_the_turn_waits_for_all_others(
    case: AgentCase, model_server: ScriptedModel
) -> None:
    wanted = [
        ("look", {"city": "Oslo"}),
        ("locate", {"exact": True}),
        ("pay", {"to": "bob"}),
        ("pay", {"to": "eve"}),
        ("locate", {"exact": False}),
    ]
    model_server.plan(calls(*wanted, ids=["c1", "c2", "c3", "c4", "c5"]), says("All done."))
    bank = Bank()
    bank.gate = Gate()
    async with case.desk(model_server, *bank.tools) as desk:
        turn = await desk.start("Do all.", options=TOOLS)
        await bank.gate.reached()
        async with asyncio.timeout(BOUND):
            while len({each.key for each in await desk.store.journal(turn.id) if each.kind == "tool"}) < 7:
                await settle()  # Until all five calls and both questions have begun.
        await settle()
        assert not (await fold_log(desk.store, turn.id)).requests.is_waiting
        bank.gate.open()
        assert await open_calls(desk, turn) == ["c2", "c5"]
        fold = await fold_log(desk.store, turn.id)
        assert not fold.is_running("c1")
        questions = {each.prompt: each.id for each in fold.requests.open_questions}
        # In another order than they were asked, and each still reaches its own call.
        await desk.runner.send_tool_result(turn.id, "c5", {"city": "Rome"})
        await desk.runner.reply(turn.id, questions["From which account to eve?"], {"account": "main"})
        await desk.runner.send_tool_result(turn.id, "c2", "Oslo")
        assert (await desk.store.find_turn("ann", turn.id)).phase == "waiting"
        await desk.runner.reply(turn.id, questions["From which account to bob?"], {"account": "spare"})
        events = await desk.events(turn)
    assert outcome(events) == ("completed", None)
    check_written_once(events)
    assert bank.looked == 1
    assert sorted(bank.paid) == ["main to eve", "spare to bob"]
    assert len(model_server.bodies) == 2
    assert dict(results(model_server.bodies[1])) == {
        "c1": "snow in Oslo",
        "c2": "Oslo",
        "c3": "paid bob from spare",
        "c4": "paid eve from main",
        "c5": '{"city":"Rome"}',
    }


async def test_answers_after_the_loss_of_the_server_continue_the_turn(
    case: AgentCase, model_server: ScriptedModel, tmp_path: Path
) -> None:
    wanted = [("locate", {"exact": True}), ("pay", {"to": "bob"})]
    model_server.plan(calls(*wanted, text="Well.", ids=["c1", "c2"]), says("Done."))
    data, bank = MemoryStore(), Bank()
    async with case.desk(model_server, *bank.tools, store=MemoryStore(data), folder=tmp_path) as desk:
        turn = await desk.start("Where am I?", options=TOOLS)
        await wait_until_suspended(desk, turn)
        await lose_worker(desk)
    async with case.desk(model_server, *bank.tools, store=MemoryStore(data), folder=tmp_path) as desk:
        (question,) = (await open_questions(desk, turn)).values()
        await desk.runner.reply(turn.id, question, {"account": "main"})
        await desk.runner.send_tool_result(turn.id, "c1", "Oslo")
        events = await desk.events(turn)
    assert outcome(events) == ("completed", None)
    check_written_once(events)
    assert text(events) == "Well.\n\nDone."
    assert bank.paid == ["main to bob"]
    assert len(model_server.bodies) == 2
    assert dict(results(model_server.bodies[1])) == {"c1": "Oslo", "c2": "paid bob from main"}


async def test_worker_lost_after_the_answers_makes_no_call_again(
    case: AgentCase, model_server: ScriptedModel, tmp_path: Path
) -> None:
    wanted = [("locate", {"exact": True}), ("pay", {"to": "bob"})]
    model_server.plan(calls(*wanted, ids=["c1", "c2"]), says("Do", asyncio.Event(), "ne."), says("Done."))
    data, bank = MemoryStore(), Bank()
    async with case.desk(model_server, *bank.tools, store=MemoryStore(data), folder=tmp_path) as desk:
        turn = await desk.start("Where am I?", options=TOOLS)
        (question,) = (await open_questions(desk, turn)).values()
        await desk.runner.reply(turn.id, question, {"account": "main"})
        await desk.runner.send_tool_result(turn.id, "c1", "Oslo")
        await seen(desk, turn, lambda event: event == TokenEvent("Do"))
        await lose_worker(desk)
    async with case.desk(model_server, *bank.tools, store=MemoryStore(data), folder=tmp_path) as desk:
        events = await desk.events(turn)
    assert outcome(events) == ("completed", None)
    assert len(only(events, RestartEvent)) == 1
    assert bank.paid == ["main to bob"]
    assert dict(results(model_server.bodies[2])) == {"c1": "Oslo", "c2": "paid bob from main"}


async def test_cancel_while_the_turn_waits_keeps_the_history_valid(
    case: AgentCase, model_server: ScriptedModel
) -> None:
    wanted = [("locate", {"exact": True}), ("pay", {"to": "bob"})]
    model_server.plan(calls(*wanted, text="Well.", ids=["c1", "c2"]), says("Fine."))
    async with case.desk(model_server, *Bank().tools) as desk:
        turn = await desk.start("Where am I?", options=TOOLS)
        await wait_until_suspended(desk, turn)
        await desk.cancel(turn)
        assert (await desk.end(turn)).outcome == "cancelled"
        events = await desk.events(await desk.start("Go on.", session_id=turn.session_id))
    assert outcome(events) == ("completed", None)
    sent = dict(results(model_server.bodies[1]))
    assert set(sent) == {"c1", "c2"}
    assert all("cancelled" in result for result in sent.values())


async def test_client_tool_with_the_name_of_a_server_tool_is_refused(
    case: AgentCase, model_server: ScriptedModel
) -> None:
    async with case.desk(model_server, *Bank().tools) as desk:
        with pytest.raises(ClientToolConflictError):
            await desk.start("Hi", options={"client_tools": [{**LOCATE, "name": "pay"}]})
    assert not model_server.bodies


@pytest.mark.parametrize("case", TEAMS, ids=lambda case: case.id)
async def test_question_of_a_sub_agent_s_tool_suspends_the_whole_turn(
    case: AgentCase, model_server: ScriptedModel
) -> None:
    model_server.plan(
        calls(("ask_scout", {"question": "Pay?"}), ids=["s1"]),
        calls(("pay", {"to": "bob"}), text="Paying.", ids=["p1"]),
        says("Paid."),
        says("The scout has paid."),
    )
    bank = Bank()
    async with case.desk(model_server, *bank.tools, delegates=True) as desk:
        turn = await desk.start("Pay Bob.", options=TOOLS)
        (question,) = (await open_questions(desk, turn)).values()
        await desk.runner.reply(turn.id, question, {"account": "main"})
        events = await desk.events(turn)
    assert outcome(events) == ("completed", None)
    check_written_once(events)
    (event,) = only(events, QuestionEvent)
    assert (event.call_id, event.agent_path) == ("p1", ("Scout",))
    assert bank.paid == ["main to bob"]
    assert len(model_server.bodies) == 4
    assert ["locate" in offered_tools(body) for body in model_server.bodies] == [True, False, False, True]


# Replays and forks


async def answered(desk: Desk, turn: TurnRecord) -> list[Event]:
    """Answer everything that a turn waits for until it has ended, and return its log."""
    async with asyncio.timeout(BOUND), aclosing(follow(desk.store, turn.id)) as batches:
        async for batch in batches:
            if not any(map(begins_wait, batch)):
                continue
            fold = await fold_log(desk.store, turn.id)
            for call in fold.requests.open_client_calls:
                await desk.runner.send_tool_result(turn.id, call.call_id, {"city": "Oslo"})
            for question in fold.requests.open_questions:
                await desk.runner.reply(turn.id, question.id, {"account": "main"})
            for request in fold.requests.undecided:
                await desk.runner.decide(turn.id, request.call_id, approved=True)
    return await desk.events(turn)


def reply_by_results(request: Request) -> Answer:
    """Look, locate and pay at once, then pay somebody else, then answer."""
    ended = {entry[0] for kind, entry in conversation_of(request.body) if kind == "result"}
    if not ended:
        wanted = [("look", {"city": "Oslo"}), ("locate", {"exact": True}), ("pay", {"to": "bob"})]
        return calls(*wanted, text="Well.", ids=["c1", "c2", "c3"])
    if "c4" not in ended:
        return calls(("pay", {"to": "eve"}), text="And Eve.", ids=["c4"])
    return says("Done.")


async def test_replay_of_a_turn_with_waits_is_the_same_and_calls_nothing(
    case: AgentCase, model_server: ScriptedModel
) -> None:
    model_server.otherwise = reply_by_results
    bank = Bank()
    async with case.desk(model_server, *bank.tools) as desk:
        turn = await desk.start("Pay.", options=TOOLS)
        await answered(desk, turn)
        record = await desk.store.find_turn("ann", turn.id)
        recording = decode_recording(encode_recording(await record_turn(desk.store, record, ())))
        requests, paid = len(model_server.requests), list(bank.paid)
        agent = desk.runner.agents["agent"]
        replayed = await replay_turn(recording, agent)
        assert replayed.divergence is None
        assert [logged.body for logged in replayed.events] == [logged.body for logged in recording.events]
    assert (len(model_server.requests), bank.paid) == (requests, paid)


async def test_fork_at_any_position_of_a_turn_with_waits_completes(
    case: AgentCase, model_server: ScriptedModel, tmp_path: Path
) -> None:
    model_server.otherwise = reply_by_results
    async with case.desk(model_server, *Bank().tools, folder=tmp_path) as desk:
        turn = await desk.start("Pay.", options=TOOLS)
        whole = await answered(desk, turn)
        source = await desk.store.find_turn("ann", turn.id)
        for position in some(range(2, len(whole) + 1), 4):
            accepted = await desk.runner.fork(ForkRequest(source=source, position=position))
            events = await answered(desk, accepted.record)
            assert outcome(events) == ("completed", None), position
            state = (await fold_log(desk.store, accepted.record.id)).state()
            assert state.text == "Well.\n\nAnd Eve.\n\nDone.", position
            assert {step.id: step.state for step in state.steps} == dict.fromkeys(["c1", "c2", "c3", "c4"], "succeeded")
            assert [each.state for each in state.questions] == ["answered", "answered"], position
