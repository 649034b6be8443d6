"""Questions and client tools over HTTP and the WebSocket: bodies, scopes, answers, and routes that wait for a turn."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.server.conftest import Serve, StoreKind
from tests.server.readers import by_user, user
from tests.server.socket_client import talking
from tests.server.test_auth import holder
from tests.serving import Client, Served, error_of, within
from turnwire import QuestionDeclinedError, ToolError, ask, call_client_tool
from turnwire.core.log.turns import Turn

CHOICE = {"type": "object", "properties": {"color": {"type": "string", "enum": ["red", "blue"]}}, "required": ["color"]}
LOCATE: dict[str, Any] = {
    "name": "locate",
    "description": "Find the user.",
    "parameters": {"type": "object", "properties": {"exact": {"type": "boolean"}}},
}


async def curious(turn: Turn) -> AsyncIterator[Any]:
    """Ask for a colour, or for the place if the client has a tool for that."""
    yield "Well. "
    if turn.options.get("client_tools"):
        try:
            yield f"{await call_client_tool('locate', {'exact': True})}."
        except ToolError as error:
            yield f"Failed: {error}."
        return
    try:
        yield f"{(await ask('Which colour?', CHOICE))['color']}."
    except QuestionDeclinedError as declined:
        yield f"None: {declined.reason}."


curious.on_crash = "resume"
curious.takes_client_tools = True


async def plain(turn: Turn) -> AsyncIterator[Any]:
    yield "Hello."


@pytest.fixture
async def server(serve: Serve, kind: StoreKind) -> AsyncIterator[Served]:
    async with serve(curious, store=kind) as served:
        yield served


async def reply(client: Client, turn_id: str, question_id: str, **body: Any) -> Any:
    return await client.http.post(f"/v1/turns/{turn_id}/replies", json={"question_id": question_id, **body})


async def send_result(client: Client, turn_id: str, call_id: str, **body: Any) -> Any:
    return await client.http.post(f"/v1/turns/{turn_id}/tool-results", json={"call_id": call_id, **body})


async def open_question(client: Client) -> tuple[str, str]:
    """Return a turn that waits for a reply, and its question."""
    async with client.ask() as stream:
        question = (await stream.until("question"))[-1].event
        return stream.turn_id, question["id"]


async def open_call(client: Client) -> tuple[str, str]:
    """Return a turn that waits for its client, and the call."""
    async with client.ask(tools=[LOCATE]) as stream:
        call = (await stream.until("tool_call"))[-1].event
        return stream.turn_id, call["call_id"]


async def test_stream_shows_the_question_stays_open_and_continues_with_the_reply(server: Served) -> None:
    async with server.ask() as stream:
        question = (await stream.until("question"))[-1].event
        assert question == {"type": "question", "id": question["id"], "prompt": "Which colour?", "schema": CHOICE}
        snapshot = await server.snapshot(stream.turn_id)
        assert snapshot["phase"] == "waiting"
        assert [(each["id"], each["schema"]) for each in snapshot["state"]["questions"]] == [(question["id"], CHOICE)]
        answer = await reply(server, stream.turn_id, question["id"], value={"color": "blue"})
        assert answer.status_code == 200
        assert answer.json()["state"]["questions"][0]["value"] == {"color": "blue"}
        frames = await stream.rest()
    assert [frame.type for frame in frames] == ["reply", "token", "response", "done"]
    assert frames[0].event == {
        "type": "reply",
        "question_id": question["id"],
        "value": {"color": "blue"},
        "by": "local",
    }
    assert frames[-2].event["content"] == "Well. blue."


async def test_stream_shows_the_client_s_call_and_continues_with_its_result(server: Served) -> None:
    async with server.ask(tools=[LOCATE]) as stream:
        call = (await stream.until("tool_call"))[-1].event
        assert call == {
            "type": "tool_call",
            "call_id": call["call_id"],
            "tool": "locate",
            "args": {"exact": True},
            "runs_on": "client",
        }
        (step,) = (await server.snapshot(stream.turn_id))["state"]["steps"]
        assert (step["runs_on"], step.get("state", "running")) == ("client", "running")
        assert (await send_result(server, stream.turn_id, call["call_id"], output=["Oslo"])).status_code == 200
        frames = await stream.rest()
    assert [frame.type for frame in frames] == ["tool_result", "token", "response", "done"]
    assert frames[0].event["result"] == ["Oslo"]


@pytest.mark.parametrize("route", ["/chat", "/v1/rag/sessions/shop/messages"])
async def test_json_route_answers_202_with_what_the_turn_waits_for(server: Served, route: str) -> None:
    asking: Any = {"json": {"message": "Paint it"}, "headers": {"Idempotency-Key": "k"}}
    body = (await within(server.http.post(route, **asking))).json()
    (question,) = body["questions"]
    assert (body["outcome"], body["approvals"], question["prompt"]) == (None, [], "Which colour?")
    await reply(server, body["turn_id"], question["id"], declined=True, reason="no")
    ended = await within(server.http.post(route, **asking))
    assert (ended.status_code, ended.json()["content"]) == (200, "Well. None: no.")
    asking["json"] = {"message": "Where?", "tools": [LOCATE]}
    error = await within(server.http.post(route, **asking))
    assert error_of(error, 409)["code"] == "idempotency_conflict"
    waiting = await within(server.http.post(route, json=asking["json"]))
    assert waiting.status_code == 202
    (call,) = waiting.json()["tool_calls"]
    assert (call["tool"], call["args"]) == ("locate", {"exact": True})


async def test_wrong_reply_is_refused_with_its_reason_and_the_same_one_again_is_accepted(server: Served) -> None:
    turn_id, question = await open_question(server)
    assert error_of(await reply(server, turn_id, "q_other", value=1), 404)["code"] == "question_not_found"
    assert error_of(await reply(server, "nobody-s", question, value=1), 404)["code"] == "turn_not_found"
    error = error_of(await reply(server, turn_id, question, value={"color": "green"}), 422)
    assert (error["code"], error["fields"][0]["field"]) == ("invalid_reply", "value.color")
    error = error_of(await reply(server, turn_id, question, value={}), 422)
    assert error["fields"] == [{"field": "value.color", "problem": "this is missing"}]
    wrong: list[dict[str, Any]] = [{}, {"declined": "yes"}, {"value": 1, "declined": True}, {"value": 1, "more": 2}]
    for body in wrong:
        assert error_of(await reply(server, turn_id, question, **body), 422)["code"] == "invalid_request"
    assert (await server.snapshot(turn_id))["phase"] == "waiting"
    for _ in range(2):
        assert (await reply(server, turn_id, question, value={"color": "red"})).status_code == 200
    assert error_of(await reply(server, turn_id, question, value={"color": "blue"}), 409)["code"] == "reply_conflict"
    await server.ended(turn_id)
    assert (await reply(server, turn_id, question, value={"color": "red"})).status_code == 200


async def test_wrong_result_is_refused_with_its_reason_and_the_same_one_again_is_accepted(server: Served) -> None:
    turn_id, call = await open_call(server)
    assert error_of(await send_result(server, turn_id, "c9", output=1), 404)["code"] == "tool_call_not_found"
    for body in ({}, {"output": 1, "is_error": "no"}):
        assert error_of(await send_result(server, turn_id, call, **body), 422)["code"] == "invalid_request"
    error = error_of(await send_result(server, turn_id, call, output="x" * 300_000), 422)
    assert (error["code"], error["fields"][0]["field"]) == ("invalid_reply", "output")
    for _ in range(2):
        assert (await send_result(server, turn_id, call, output="lost", is_error=True)).status_code == 200
    assert error_of(await send_result(server, turn_id, call, output="Oslo"), 409)["code"] == "reply_conflict"
    assert (await server.ended(turn_id))["state"]["text"] == "Well. Failed: lost."


@pytest.mark.parametrize(
    ("tools", "field"),
    [
        ([{**LOCATE, "name": "find me"}], "tools.0.name"),
        ([{**LOCATE, "parameters": {"type": "string"}}], "tools.0.parameters"),
        ([{**LOCATE, "parameters": {"type": "object", "properties": [1]}}], "tools.0.parameters"),
        ([{**LOCATE, "parameters": {"type": "object", "title": "x" * 20_000}}], "tools.0.parameters"),
        ([{**LOCATE, "run": "rm"}], "tools.0.run"),
        ([LOCATE, LOCATE], "tools"),
        ([{**LOCATE, "name": f"locate_{number}"} for number in range(65)], "tools"),
        ([{**LOCATE, "name": f"t{n}", "description": "x" * 3_900} for n in range(40)], "tools"),
        ("locate", "tools"),
    ],
)
async def test_invalid_tools_are_refused_and_start_no_turn(serve: Serve, tools: Any, field: str) -> None:
    async with serve(curious) as server:
        error = error_of(await server.http.post("/chat", json={"message": "Hi", "tools": tools}), 422)
        assert error["fields"][0]["field"] == field
        assert (await server.http.get("/v1/turns")).json()["turns"] == []


async def test_tools_for_an_agent_that_takes_none_are_refused(serve: Serve) -> None:
    async with serve(plain) as server:
        error = error_of(await server.http.post("/chat", json={"message": "Hi", "tools": [LOCATE]}), 422)
        assert error["code"] == "client_tools_not_taken"
        (agent,) = (await server.http.get("/v1/agents")).json()["agents"]
        assert agent["takes_client_tools"] is False
        assert (await server.http.get("/v1/turns")).json()["turns"] == []


async def test_answers_of_another_principal_are_not_found(serve: Serve) -> None:
    async with serve(curious, authenticate=by_user) as server, user(server, "anna") as anna, user(server, "bob") as bob:
        turn_id, question = await open_question(anna)
        answer = {"value": {"color": "red"}}
        assert error_of(await reply(bob, turn_id, question, **answer), 404)["code"] == "turn_not_found"
        assert (await reply(anna, turn_id, question, **answer)).status_code == 200
        turn_id, call = await open_call(anna)
        assert error_of(await send_result(bob, turn_id, call, output=1), 404)["code"] == "turn_not_found"
        assert (await send_result(anna, turn_id, call, output=1)).status_code == 200


async def test_reply_needs_the_scope_approve_and_a_result_the_scope_write(serve: Serve) -> None:
    async with (
        serve(curious) as server,
        holder(server, "anna", ("read", "write")) as writer,
        holder(server, "anna", ("approve",)) as approver,
    ):
        turn_id, question = await open_question(writer)
        answer = {"value": {"color": "red"}}
        assert error_of(await reply(writer, turn_id, question, **answer), 403)["code"] == "forbidden"
        assert (await reply(approver, turn_id, question, **answer)).status_code == 200
        turn_id, call = await open_call(writer)
        assert error_of(await send_result(approver, turn_id, call, output=1), 403)["code"] == "forbidden"
        assert (await send_result(writer, turn_id, call, output=1)).status_code == 200


async def test_cancelled_turn_takes_no_answer(server: Served) -> None:
    turn_id, question = await open_question(server)
    assert (await server.http.post(f"/v1/turns/{turn_id}/cancel")).json()["outcome"] == "cancelled"
    error = error_of(await reply(server, turn_id, question, value={"color": "red"}), 409)
    assert error["code"] == "turn_not_waiting"


async def test_socket_takes_tools_results_and_replies(serve: Serve) -> None:
    async with serve(curious) as server, talking(server) as talk:
        turn_id = (await talk.ask("start", message="Where?", tools=[LOCATE]))["turn_id"]
        call = (await talk.events(turn_id, "tool_call"))[-1]["event"]["call_id"]
        assert await talk.refused("tool_result", turn_id=turn_id, call_id="c9", output=1) == "tool_call_not_found"
        await talk.ask("tool_result", turn_id=turn_id, call_id=call, output="Oslo")
        assert (await talk.events(turn_id))[-2]["event"]["content"] == "Well. Oslo."
        turn_id = (await talk.ask("start", message="Paint"))["turn_id"]
        question = (await talk.events(turn_id, "question"))[-1]["event"]["id"]
        assert await talk.refused("reply", turn_id=turn_id, question_id=question, value="red") == "invalid_reply"
        await talk.ask("reply", turn_id=turn_id, question_id=question, value={"color": "red"})
        assert (await talk.events(turn_id))[-2]["event"]["content"] == "Well. red."
