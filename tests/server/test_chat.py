"""`POST /chat` and `POST /chat/stream`: two dialects of one stream, and the answer as JSON."""

import asyncio

import pytest

from tests.server.conftest import Serve, StoreKind
from tests.serving import Puppet, Served, error_of, saying
from turnwire import AgentError
from turnwire.core.log.events import (
    CitationEvent,
    CustomEvent,
    ReasoningEvent,
    ResponseEvent,
    SearchEvent,
    StatusEvent,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
)

LINES = (
    StatusEvent("Looking"),
    ReasoningEvent("hm"),
    SearchEvent("s1", "started", "find", "wires"),
    SearchEvent("s1", "finished", "find", "wires", hits=()),
    ToolCallEvent("c1", "add", {"a": 1, "b": 2}),
    ToolResultEvent("c1", "add", True, 3, 0.5),
    "The answer ",
    "is ",
    "3.",
    CitationEvent(1, "doc", title="A document"),
    CustomEvent("ours", {"deep": [1, None, "x"]}),
    UsageEvent("m", 10, 3),
)


@pytest.fixture
def talkative() -> object:
    return saying(*LINES)


async def test_a_client_that_knows_only_session_token_and_done_gets_the_answer(
    serve: Serve, kind: StoreKind, talkative: object
) -> None:
    async with serve(talkative, kind) as server, server.ask() as stream:
        known = [frame.event for frame in await stream.rest() if frame.type in ("session", "token", "done")]
        assert known[0]["type"] == "session"
        assert known[0]["session_id"] == stream.session_id
        assert "".join(event["content"] for event in known[1:-1]) == "The answer is 3."
        assert known[-1] == {
            "type": "done",
            "outcome": "completed",
            "session_id": stream.session_id,
            "turn_id": stream.turn_id,
        }


async def test_a_client_that_knows_only_tools_response_error_and_done_gets_the_answer(
    serve: Serve, kind: StoreKind, talkative: object
) -> None:
    async with serve(talkative, kind) as server, server.ask() as stream:
        kinds = ("tool_call", "tool_result", "response", "error", "done")
        known = [frame.event for frame in await stream.rest() if frame.type in kinds]
        assert [event["type"] for event in known] == ["tool_call", "tool_result", "response", "done"]
        assert known[0] == {"type": "tool_call", "call_id": "c1", "tool": "add", "args": {"a": 1, "b": 2}}
        assert known[1]["success"] is True
        assert known[1]["result"] == 3
        assert known[2]["content"] == "The answer is 3."
        assert known[2]["tools_used"] == ["find", "add"]
        assert [citation["title"] for citation in known[2]["citations"]] == ["A document"]
        assert known[2]["usage"] == {"input_tokens": 10, "output_tokens": 3}


async def test_a_stream_has_every_event_once_in_order_with_its_position(
    serve: Serve, kind: StoreKind, talkative: object
) -> None:
    async with serve(talkative, kind) as server, server.ask("What is it?") as stream:
        frames = await stream.rest()
        assert [frame.position for frame in frames] == list(range(1, len(frames) + 1))
        types = [frame.type for frame in frames]
        assert types[:2] == ["session", "message"]
        assert types[2:-2] == [
            "status",
            "reasoning",
            "search",
            "search",
            "tool_call",
            "tool_result",
            "token",
            "token",
            "token",
            "citation",
            "custom",
            "usage",
        ]
        assert types[-2:] == ["response", "done"]
        assert frames[1].event == {"type": "message", "content": "What is it?", "by": "local", "channel": "http"}


async def test_a_failed_turn_has_its_error_before_done(server: Served, puppet: Puppet) -> None:
    async with server.ask() as stream:
        part = await puppet.part()
        part.say("Half an ")
        part.end(AgentError("The model is out to lunch.", code="model_away", retryable=True))
        frames = await stream.rest()
        assert [frame.type for frame in frames] == ["session", "message", "token", "error", "done"]
        assert frames[-2].event == {
            "type": "error",
            "error": "The model is out to lunch.",
            "code": "model_away",
            "retryable": True,
        }
        assert frames[-1].event["outcome"] == "failed"


async def test_agent_exception_text_is_not_sent_to_the_client(
    server: Served, puppet: Puppet, errors_in_the_log: list[str]
) -> None:
    errors_in_the_log.append("the agent 'default' failed in turn")
    async with server.ask() as stream:
        (await puppet.part()).end(RuntimeError("password=hunter2"))
        frames = await stream.rest()
    assert b"hunter2" not in stream.raw
    assert frames[-2].event["code"] == "agent_failed"
    assert frames[-1].event["reason"] == "agent_failed"


async def test_a_client_that_leaves_leaves_the_turn_running(server: Served, puppet: Puppet) -> None:
    async with server.ask() as stream:
        part = await puppet.part()
        part.say("The first half, ")
        await stream.until("token")
    part.say("and the second.")
    part.end()
    snapshot = await server.ended(stream.turn_id)
    assert snapshot["outcome"] == "completed"
    assert snapshot["state"]["text"] == "The first half, and the second."
    session = (await server.http.get(f"/v1/sessions/{stream.session_id}/export")).json()
    assert [message["content"] for message in session["transcript"]] == ["Hello", "The first half, and the second."]


async def test_next_turn_of_a_session_has_the_history(server: Served, puppet: Puppet) -> None:
    async with server.ask("One?") as stream:
        part = await puppet.part()
        part.say("First.")
        part.end()
        await stream.rest()
    async with server.ask("Two?", session_id=stream.session_id):
        part = await puppet.part()
        assert [(message.role, message.content) for message in part.turn.history] == [
            ("user", "One?"),
            ("assistant", "First."),
        ]
        part.end()


async def test_chat_answers_with_the_whole_turn_as_json(serve: Serve, kind: StoreKind, talkative: object) -> None:
    async with serve(talkative, kind) as server:
        response = await server.http.post("/chat", json={"message": "Add", "session_id": "mine"})
        assert response.status_code == 200
        answer = response.json()
        assert set(answer) == {
            "session_id",
            "turn_id",
            "content",
            "citations",
            "mode",
            "tools_used",
            "usage",
            "timings",
            "outcome",
        }
        assert answer["session_id"] == response.headers["x-session-id"]
        assert answer["turn_id"] == response.headers["x-turn-id"]
        assert answer["content"] == "The answer is 3."
        assert answer["outcome"] == "completed"
        assert answer["tools_used"] == ["find", "add"]
        assert answer["usage"] == {"input_tokens": 10, "output_tokens": 3}
        assert answer["timings"]["total_ms"] >= 0
        assert answer["mode"] is None
        assert (await server.snapshot(answer["turn_id"]))["session_id"] == answer["session_id"]


async def test_a_response_that_an_agent_gives_keeps_its_mode(serve: Serve, kind: StoreKind) -> None:
    async with serve(saying(ResponseEvent("All of it.", mode="synthesis")), kind) as server:
        answer = (await server.http.post("/chat", json={"message": "Hello"})).json()
        assert (answer["content"], answer["mode"]) == ("All of it.", "synthesis")


async def test_chat_answers_a_failed_turn_with_a_500_that_names_the_turn(serve: Serve, kind: StoreKind) -> None:
    async def fail(turn: object):
        yield "Half"
        raise AgentError("No luck.", code="no_luck")

    async with serve(fail, kind) as server:
        error = error_of(await server.http.post("/chat", json={"message": "Hello"}), 500)
        assert (error["code"], error["message"], error["outcome"]) == ("no_luck", "No luck.", "failed")
        snapshot = await server.snapshot(error["turn_id"])
        assert snapshot["outcome"] == "failed"
        assert snapshot["session_id"] == error["session_id"]


async def test_chat_answers_a_cancelled_turn_with_the_partial_text(server: Served, puppet: Puppet) -> None:

    asking = asyncio.create_task(server.http.post("/chat", json={"message": "Hello"}))
    part = await puppet.part()
    part.say("As far as ")
    await server.reached(part.turn.id, 3)
    await server.http.post(f"/v1/turns/{part.turn.id}/cancel")
    response = await asking
    assert response.status_code == 200
    assert (response.json()["content"], response.json()["outcome"]) == ("As far as ", "cancelled")


async def test_a_client_of_chat_that_leaves_leaves_the_turn_running(server: Served, puppet: Puppet) -> None:

    asking = asyncio.create_task(server.http.post("/chat", json={"message": "Hello"}))
    part = await puppet.part()
    asking.cancel()
    part.say("Said to nobody.")
    part.end()
    assert (await server.ended(part.turn.id))["state"]["text"] == "Said to nobody."
