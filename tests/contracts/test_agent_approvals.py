"""The contract of agent adapters for tools that need approval, with the SDK's means and with Turnwire's tools."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.agents import CASES, AgentCase, case_fixture, case_params
from tests.contracts.stores import SqliteBackend
from tests.contracts.test_agent import (
    check_calls_have_results,
    check_history,
    conversation_of,
    only,
    outcome,
    text,
    tool_results_of,
)
from tests.contracts.turns import BOUND, whole_log
from tests.core.desk import Desk, settle
from tests.scripted_model import ScriptedModel, calls, model_server, says
from turnwire.core.errors import ApprovalConflictError, InvalidReplyError
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    ApprovalResponseEvent,
    Event,
    ResponseEvent,
    ToolCallEvent,
    ToolProgressEvent,
    ToolResultEvent,
)
from turnwire.core.log.turns import TurnRecord
from turnwire.core.people.budget import Limits
from turnwire.core.run.runner import ForkRequest
from turnwire.tools import progress, tool

__all__ = ["model_server"]

case = case_fixture("approvals")
TEAMS = case_params([case for case in CASES if case.can("nested") and hasattr(case.module, "delegate")])

BOB = {"to": "bob", "words": ["hi", "there"], "copies": 2}
EVE = {"to": "eve", "words": [], "copies": 1}
ANN = {"to": "ann", "words": ["you"], "copies": 3}


class Post:
    """Two tools, one of which needs approval, declared by the SDK's means or with Turnwire's `tool`."""

    def __init__(self, way: str, folder: Path) -> None:
        self.sent: list[dict[str, Any]] = []
        self.is_ours = way == "our tools"
        self.options: dict[str, Any] = {"folder": folder}

        async def send(to: str, words: list[str], copies: int) -> str:
            """Send a letter."""
            progress("at the post office", 0.5)
            self.sent.append({"to": to, "words": words, "copies": copies})
            return f"sent to {to}"

        async def weather(city: str) -> str:
            """Return the weather in a city."""
            return f"Sunny in {city}"

        self.tools: list[Callable[..., Any]] = [send, weather]
        if self.is_ours:
            self.tools = [tool(needs_approval=lambda args: args["to"] != "me")(send), tool(weather)]
        else:
            self.options["asks"] = ["send"]


@pytest.fixture(params=["the SDK's", "our tools"])
def post(request: pytest.FixtureRequest, tmp_path: Path) -> Post:
    return Post(request.param, tmp_path)


async def events_until_suspended(desk: Desk, turn: TurnRecord, count: int = 1) -> list[Event]:
    """Wait until the turn is suspended with this number of requests in its log, and return the log."""
    changed = asyncio.Event()
    unwatch = desk.store.watch(turn.id, lambda _: changed.set())
    try:
        async with asyncio.timeout(BOUND):
            while True:
                events = [logged.event for logged in await whole_log(desk.store, turn.id)]
                record = await desk.store.find_turn("ann", turn.id)
                if record.phase == "waiting" and len(only(events, ApprovalRequestEvent)) >= count:
                    return events
                assert record.phase != "ended", events
                await changed.wait()
                changed.clear()
    finally:
        unwatch()


def results(events: list[Event]) -> dict[str, tuple[bool, Any]]:
    return {event.call_id: (event.success, event.result) for event in only(events, ToolResultEvent)}


async def test_tool_that_needs_approval_runs_after_it(case: AgentCase, model_server: ScriptedModel, post: Post) -> None:
    model_server.plan(calls(("send", BOB), text="I shall write."), says(" Done."))
    async with case.desk(model_server, *post.tools, **post.options) as desk:
        turn = await desk.start("Write to Bob")
        events = await events_until_suspended(desk, turn)
        for kind in (ApprovalRequestEvent, ToolCallEvent):
            assert [(event.call_id, event.tool, event.args) for event in only(events, kind)] == [
                ("call_1", "send", BOB)
            ]
        assert not post.sent
        await settle()
        assert len(desk.runner.worker.running) == 0
        await desk.runner.decide(turn.id, "call_1", approved=True, by="ann", args=BOB)
        events = await desk.events(turn)
    assert outcome(events) == ("completed", None)
    assert post.sent == [BOB]
    assert len(only(events, ToolCallEvent)) == 1
    assert results(events) == {"call_1": (True, "sent to bob")}
    assert only(events, ToolProgressEvent) == [ToolProgressEvent("call_1", "at the post office", 0.5)]
    assert text(events).split() == ["I", "shall", "write.", "Done."]
    (response,) = only(events, ResponseEvent)
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (22, 14)
    assert response.tools_used == ("send",)
    assert conversation_of(model_server.bodies[1]) == [
        ("user", "Write to Bob"),
        ("assistant", "I shall write."),
        ("call", ("call_1", "send", BOB)),
        ("result", ("call_1", "sent to bob")),
    ]


async def test_denied_tool_never_runs_and_the_model_gets_the_reason(
    case: AgentCase, model_server: ScriptedModel, post: Post
) -> None:
    model_server.plan(calls(("send", BOB)), says("Then not."))
    async with case.desk(model_server, *post.tools, **post.options) as desk:
        turn = await desk.start()
        await events_until_suspended(desk, turn)
        await desk.runner.decide(turn.id, "call_1", approved=False, reason="not before noon", by="ann")
        events = await desk.events(turn)
    assert outcome(events) == ("completed", None)
    assert not post.sent
    check_calls_have_results(events)
    ((success, result),) = results(events).values()
    assert not success
    assert "not before noon" in result
    ((call_id, sent),) = [entry for kind, entry in conversation_of(model_server.bodies[1]) if kind == "result"]
    assert call_id == "call_1"
    assert "not before noon" in sent
    assert text(events) == "Then not."


async def test_denial_without_a_reason_is_reported_as_a_denial(
    case: AgentCase, model_server: ScriptedModel, post: Post
) -> None:
    model_server.plan(calls(("send", BOB)), says("Then not."))
    async with case.desk(model_server, *post.tools, **post.options) as desk:
        turn = await desk.start()
        await events_until_suspended(desk, turn)
        await desk.runner.decide(turn.id, "call_1", approved=False)
        events = await desk.events(turn)
    assert outcome(events) == ("completed", None)
    ((success, result),) = results(events).values()
    assert not success
    (sent,) = tool_results_of(model_server.bodies[1])
    for reply in (result, sent):
        assert "denied" in reply.casefold() or "rejected" in reply.casefold()


async def test_each_call_gets_its_own_decision(case: AgentCase, model_server: ScriptedModel, post: Post) -> None:
    requests = [("send", BOB), ("weather", {"city": "Oslo"}), ("send", EVE), ("send", ANN)]
    model_server.plan(calls(*requests), says(" Done."))
    async with case.desk(model_server, *post.tools, **post.options) as desk:
        turn = await desk.start()
        letters = {"call_1": BOB, "call_3": EVE, "call_4": ANN}
        # The letters whose requests are in the log when the turn is suspended, one time after the other.
        suspensions = [3] if post.is_ours or case.can("together") else [1, 2, 3]
        allowed: list[dict[str, Any]] = []
        for count in suspensions:
            events = await events_until_suspended(desk, turn, count=count)
            requested = {event.call_id: event.args for event in only(events, ApprovalRequestEvent)}
            assert requested == dict(list(letters.items())[:count])
            assert all(letter in allowed for letter in post.sent)
            for call_id in set(requested) - {event.call_id for event in only(events, ApprovalResponseEvent)}:
                approved = call_id != "call_3"
                allowed += [letters[call_id]] * approved
                await desk.runner.decide(
                    turn.id, call_id, approved=approved, reason=None if approved else "Eve listens"
                )
        events = await desk.events(turn)
    assert outcome(events) == ("completed", None)
    assert sorted(post.sent, key=lambda letter: letter["to"]) == [ANN, BOB]
    check_calls_have_results(events)
    by_id = results(events)
    assert by_id["call_1"] == (True, "sent to bob")
    assert by_id["call_2"] == (True, "Sunny in Oslo")
    assert by_id["call_4"] == (True, "sent to ann")
    assert not by_id["call_3"][0]
    assert "Eve listens" in by_id["call_3"][1]
    check_history(model_server.bodies[1])
    assert "Eve listens" in repr(conversation_of(model_server.bodies[1]))


async def test_agent_can_be_suspended_twice(case: AgentCase, model_server: ScriptedModel, post: Post) -> None:
    model_server.plan(
        calls(("send", BOB), ids=["call_1"], text="First."),
        calls(("send", EVE), ids=["call_2"], text=" Second."),
        says(" Done."),
    )
    async with case.desk(model_server, *post.tools, **post.options) as desk:
        turn = await desk.start()
        await events_until_suspended(desk, turn)
        await desk.runner.decide(turn.id, "call_1", approved=True)
        events = await events_until_suspended(desk, turn, count=2)
        assert post.sent == [BOB]
        assert results(events) == {"call_1": (True, "sent to bob")}
        await desk.runner.decide(turn.id, "call_2", approved=True)
        events = await desk.events(turn)
    assert outcome(events) == ("completed", None)
    assert post.sent == [BOB, EVE]
    check_calls_have_results(events)
    check_history(model_server.bodies[2])
    assert text(events).split() == ["First.", "Second.", "Done."]
    (response,) = only(events, ResponseEvent)
    assert response.usage is not None
    assert response.usage.input_tokens == 33


async def test_requests_survive_a_restart(
    case: AgentCase, model_server: ScriptedModel, post: Post, tmp_path: Path
) -> None:
    backend = SqliteBackend(tmp_path / "store")
    model_server.plan(calls(("send", BOB), ("weather", {"city": "Oslo"}), text="Let me."))
    async with case.desk(model_server, *post.tools, store=await backend.open(), **post.options) as desk:
        turn = await desk.start("Write to Bob")
        await events_until_suspended(desk, turn)
    backend.crash()
    model_server.plan(says(" Done."), says("You are welcome."))
    try:
        async with case.desk(model_server, *post.tools, store=await backend.open(), **post.options) as desk:
            await desk.runner.decide(turn.id, "call_1", approved=True)
            events = await desk.events(turn)
            after = await desk.events(await desk.start("Thanks", session_id=turn.session_id))
    finally:
        await backend.close()
    assert outcome(events) == ("completed", None)
    assert post.sent == [BOB]
    assert results(events) == {"call_1": (True, "sent to bob"), "call_2": (True, "Sunny in Oslo")}
    check_calls_have_results(events)
    assert text(events).split() == ["Let", "me.", "Done."]
    check_history(model_server.bodies[1])
    assert outcome(after) == ("completed", None)
    check_history(model_server.bodies[2])
    assert [entry for kind, entry in conversation_of(model_server.bodies[2]) if kind == "user"] == [
        "Write to Bob",
        "Thanks",
    ]


async def test_fork_at_a_request_waits_and_can_be_decided_otherwise(
    case: AgentCase, model_server: ScriptedModel, post: Post
) -> None:
    model_server.plan(calls(("send", BOB)), says("Sent."), says("Not sent."))
    async with case.desk(model_server, *post.tools, **post.options) as desk:
        turn = await desk.start("Write to Bob")
        await events_until_suspended(desk, turn)
        await desk.runner.decide(turn.id, "call_1", approved=True)
        await desk.events(turn)
        log = await whole_log(desk.store, turn.id)
        position = next(each.position for each in log if each.type == "approval_request")
        source = await desk.store.find_turn("ann", turn.id)
        forked = (await desk.runner.fork(ForkRequest(source=source, position=position))).record
        assert (forked.phase, forked.last_position) == ("waiting", position)
        await desk.runner.decide(forked.id, "call_1", approved=False)
        events = await desk.events(forked)
    assert outcome(events) == ("completed", None)
    assert results(events)["call_1"][0] is False
    assert text(events).endswith("Not sent.")
    assert post.sent == [BOB]


async def test_overdue_request_is_denied(case: AgentCase, model_server: ScriptedModel, post: Post) -> None:
    model_server.plan(calls(("send", BOB)), says("Then not."))
    limits = Limits(approval_timeout=0.05, lease=2)
    async with case.desk(model_server, *post.tools, limits=limits, **post.options) as desk:
        turn = await desk.start()
        events = await desk.events(turn)
    assert outcome(events) == ("completed", None)
    assert not post.sent
    (response,) = only(events, ApprovalResponseEvent)
    assert not response.approved
    assert "nobody decided" in repr(results(events))
    assert "nobody decided" in repr(conversation_of(model_server.bodies[1]))


async def test_session_continues_after_the_cancel_of_a_suspended_turn(
    case: AgentCase, model_server: ScriptedModel, post: Post
) -> None:
    model_server.plan(calls(("send", BOB), ("weather", {"city": "Oslo"})), says("Whole."))
    async with case.desk(model_server, *post.tools, **post.options) as desk:
        turn = await desk.start()
        await events_until_suspended(desk, turn)
        await desk.cancel(turn)
        assert outcome(await desk.events(turn)) == ("cancelled", None)
        again = await desk.start("And now?", session_id=turn.session_id)
        events = await desk.events(again)
    assert outcome(events) == ("completed", None)
    assert text(events) == "Whole."
    assert not post.sent
    check_history(model_server.bodies[1])
    assert conversation_of(model_server.bodies[1])[-1] == ("user", "And now?")


async def test_limit_of_model_calls_counts_across_a_suspension(
    case: AgentCase, model_server: ScriptedModel, tmp_path: Path
) -> None:
    post = Post("our tools", tmp_path)
    model_server.plan(calls(("send", BOB), ids=["call_1"]), calls(("send", {**BOB, "to": "me"}), ids=["call_2"]))
    if not case.can("bounded"):
        model_server.plan(says("Done."))
    async with case.desk(model_server, *post.tools, max_turns=2, **post.options) as desk:
        turn = await desk.start()
        await events_until_suspended(desk, turn)
        await desk.runner.decide(turn.id, "call_1", approved=True)
        events = await desk.events(turn)
    assert outcome(events) == (("failed", "max_turns") if case.can("bounded") else ("completed", None))


async def test_needs_approval_function_decides_by_the_arguments(
    case: AgentCase, model_server: ScriptedModel, tmp_path: Path
) -> None:
    post = Post("our tools", tmp_path)
    to_me = {**BOB, "to": "me"}
    model_server.plan(calls(("send", to_me), ("send", {"to": "bob"})), says(" Done."))
    async with case.desk(model_server, *post.tools, **post.options) as desk:
        events = await desk.events(await desk.start())
    assert outcome(events) == ("completed", None)
    assert post.sent == [to_me]
    by_id = results(events)
    assert by_id["call_1"][0]
    # Invalid arguments are reported to the model alone: nobody is asked to approve them.
    assert not by_id["call_2"][0]
    assert "words" in by_id["call_2"][1]


# Edited arguments


async def test_tool_runs_with_the_arguments_that_a_person_has_edited(
    case: AgentCase, model_server: ScriptedModel, tmp_path: Path
) -> None:
    sent: list[dict[str, Any]] = []

    @tool(needs_approval=True, editable=True)
    async def send(to: str, words: list[str], copies: int) -> str:
        """Send a letter."""
        sent.append({"to": to, "words": words, "copies": copies})
        return f"sent to {to}"

    model_server.plan(calls(("send", BOB), ids=["c1"]), says("Done."), says("Fine."))
    async with case.desk(model_server, send, folder=tmp_path) as desk:
        turn = await desk.start()
        (request,) = only(await events_until_suspended(desk, turn), ApprovalRequestEvent)
        if not case.can("edits"):
            assert not request.editable
            with pytest.raises(InvalidReplyError, match="cannot be edited"):
                await desk.runner.decide(turn.id, "c1", approved=True, edited_args=EVE)
            await desk.runner.decide(turn.id, "c1", approved=True)
            await desk.events(turn)
            assert sent == [BOB]
            return
        assert request.editable
        await desk.runner.decide(turn.id, "c1", approved=True, args=BOB, edited_args=EVE, by="ann")
        await desk.runner.decide(turn.id, "c1", approved=True, edited_args=EVE)
        with pytest.raises(ApprovalConflictError):
            await desk.runner.decide(turn.id, "c1", approved=True, edited_args={**EVE, "copies": 9})
        events = await desk.events(turn)
        await desk.events(await desk.start("Again?", session_id=turn.session_id))
    assert outcome(events) == ("completed", None)
    assert sent == [EVE]
    assert only(events, ApprovalRequestEvent)[0].args == BOB
    assert only(events, ApprovalResponseEvent) == [ApprovalResponseEvent("c1", True, by="ann", args=EVE)]
    assert results(events) == {"c1": (True, "sent to eve")}
    assert ("result", ("c1", "sent to eve")) in conversation_of(model_server.bodies[1])
    check_calls_have_results(events)


async def test_arguments_of_a_tool_that_is_not_editable_cannot_be_edited(
    case: AgentCase, model_server: ScriptedModel, tmp_path: Path
) -> None:
    post = Post("our tools", tmp_path)
    model_server.plan(calls(("send", BOB), ids=["c1"]), says("Done."))
    async with case.desk(model_server, *post.tools, **post.options) as desk:
        turn = await desk.start()
        await events_until_suspended(desk, turn)
        with pytest.raises(InvalidReplyError, match="cannot be edited"):
            await desk.runner.decide(turn.id, "c1", approved=True, edited_args=EVE)
        await desk.runner.decide(turn.id, "c1", approved=True, edited_args=BOB)
        await desk.events(turn)
    assert post.sent == [BOB]


@pytest.mark.parametrize("case", TEAMS)
@pytest.mark.parametrize("approved", [True, False])
async def test_approval_in_a_sub_agent_suspends_the_whole_turn(
    case: AgentCase, model_server: ScriptedModel, tmp_path: Path, approved: bool
) -> None:
    model_server.plan(calls(("ask_scout", {"question": "Write?"}), ids=["s1"]), calls(("send", BOB), ids=["p1"]))
    post = Post("our tools", tmp_path)
    async with case.desk(model_server, *post.tools, delegates=True) as desk:
        turn = await desk.start("Write to Bob")
        (request,) = only(await events_until_suspended(desk, turn), ApprovalRequestEvent)
        assert (request.call_id, request.agent_path) == ("p1", ("Scout",))
        model_server.plan(says("Well."), says("The scout is done."))
        await desk.runner.decide(turn.id, "p1", approved=approved)
        events = await desk.events(turn)
    assert outcome(events) == ("completed", None)
    assert post.sent == ([BOB] if approved else [])
    assert results(events)["p1"][0] is approved
    assert results(events)["s1"] == (True, "Well.")
    assert len(model_server.bodies) == 4
