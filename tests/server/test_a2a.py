"""The A2A server, with the official client over each binding and version."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import UTC
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from a2a.client.errors import A2AClientError
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    SubscribeToTaskRequest,
)
from a2a.utils.errors import (
    ContentTypeNotSupportedError,
    InvalidParamsError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Value

from tests.server.a2a_clients import (
    DIALECTS,
    Dialect,
    SeenTask,
    a2a_client,
    answer_of,
    message,
    plain,
    read,
    state_name,
)
from tests.server.conftest import Serve, StoreKind
from tests.server.test_approvals import careful
from tests.server.test_waits import CHOICE, curious, open_call
from tests.serving import Puppet, quick_settings, saying, serving, within
from tests.wires.a2a_rules import Task
from turnwire import Turn, Turnwire, approval, ask
from turnwire.core.errors import AgentError
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    CitationEvent,
    RestartEvent,
    StatusEvent,
    ToolCallEvent,
    ToolResultEvent,
)
from turnwire.wires.a2a.messages import ListTasksParams

EACH = pytest.mark.parametrize("dialect", DIALECTS)


def frame_ids(body: str) -> list[int]:
    return [int(line.removeprefix("id: ")) for line in body.splitlines() if line.startswith("id: ")]


def events_of(body: str) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in body.splitlines() if line.startswith("data: ")]


def decision(value: Any) -> Part:
    return Part(data=ParseDict(value, Value()))


def rpc(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}


def text_message(text: str = "Hello", **fields: Any) -> dict[str, Any]:
    return {"messageId": str(uuid4()), "role": "ROLE_USER", "parts": [{"text": text}], **fields}


# Messages and streams


@EACH
async def test_stream_is_a_task_with_steps_and_the_answer_as_artifact(serve: Serve, dialect: Dialect) -> None:
    lines = (
        StatusEvent("thinks"),
        ToolCallEvent("c1", "weather", {"city": "Oslo"}),
        ToolResultEvent("c1", "weather", True, "snow"),
        "Snow ",
        "in Oslo [1].",
        CitationEvent(1, "d1", title="Almanac"),
    )
    async with serve(saying(*lines)) as server, a2a_client(server.url, dialect) as client:
        seen = await read(client.send_message(message("How is it?", context_id="trip-1")))
        assert (seen.states[0], seen.state) == ("submitted", "completed")
        assert seen.lines == ["thinks", "weather: started", "weather: done"]
        assert seen.text == "Snow in Oslo [1]."
        assert seen.task.context_id == "trip-1"
        assert [part.text for part in seen.task.history[0].parts] == ["How is it?"]
        found = await client.get_task(GetTaskRequest(id=seen.task.id))
        assert (answer_of(found), state_name(found.status.state)) == ("Snow in Oslo [1].", "completed")
        assert plain(found)["artifacts"][0]["metadata"]["citations"][0]["title"] == "Almanac"
        assert found.history[0].message_id == seen.task.history[0].message_id
        again = await read(client.send_message(message("And now?", context_id="trip-1")))
        sessions = await server.turnwire.store.list_sessions("local")
        assert [session.turn_count for session in sessions] == [2]
        assert again.task.context_id == "trip-1"


@EACH
async def test_message_without_streaming_returns_the_settled_task(serve: Serve, dialect: Dialect) -> None:
    async with serve(saying("Yes.")) as server, a2a_client(server.url, dialect, streaming=False) as client:
        seen = await read(client.send_message(message()))
        assert (seen.states, seen.text) == (["completed"], "Yes.")


@EACH
async def test_polling_client_gets_the_task_at_once(serve: Serve, puppet: Puppet, dialect: Dialect) -> None:
    async with serve() as server, a2a_client(server.url, dialect, streaming=False, polling=True) as client:
        seen = await read(client.send_message(message()))
        assert seen.state in ("submitted", "working")
        part = await puppet.part()
        part.say("Later.")
        part.end()
        await server.ended(seen.task.id)
        found = await client.get_task(GetTaskRequest(id=seen.task.id, history_length=0))
        assert (answer_of(found), len(found.history)) == ("Later.", 0)


@EACH
async def test_message_sent_twice_starts_one_task(serve: Serve, dialect: Dialect) -> None:
    async with serve(saying("Once.")) as server, a2a_client(server.url, dialect) as client:
        request = message()
        first, second = await read(client.send_message(request)), await read(client.send_message(request))
        assert (first.task.id, first.text) == (second.task.id, second.text)
        assert await server.written() == (1, 1)


@EACH
async def test_dropped_client_resubscribes_and_gets_the_rest(
    serve: Serve, kind: StoreKind, puppet: Puppet, dialect: Dialect
) -> None:
    async with serve(store=kind) as server, a2a_client(server.url, dialect) as client:
        seen = SeenTask()
        stream = client.send_message(message())
        async with aclosing(stream):  # pyright: ignore[reportArgumentType]
            async for event in stream:
                seen.take(event)
                if event.HasField("task"):
                    part = await puppet.part()
                    part.say("One ", "two ")
                if seen.text == "One two ":
                    break
        part.say("three ")
        await server.reached(seen.task.id, 5)
        again, stream = SeenTask(), client.subscribe(SubscribeToTaskRequest(id=seen.task.id))
        async for event in stream:
            again.take(event)
            if event.HasField("task"):
                assert (again.text, again.state) == ("One two three ", "working")
                part.say("four.")
                part.end()
        assert (again.text, again.state) == ("One two three four.", "completed")
        with pytest.raises((UnsupportedOperationError, A2AClientError)):
            await read(client.subscribe(SubscribeToTaskRequest(id=seen.task.id)))


@pytest.mark.parametrize("binding", ["rest", "rpc", "rpc 0.3"])
async def test_stream_resumes_after_any_frame_by_last_event_id(serve: Serve, binding: str) -> None:
    steps = (StatusEvent("looks"), "A ", "b ", ToolCallEvent("c", "x", {}), ToolResultEvent("c", "x", True), "c.")
    async with serve(saying(*steps)) as server:
        if binding == "rest":
            whole = await server.http.post("/a2a/default/message:stream", json={"message": text_message()})
        else:
            method = "SendStreamingMessage" if binding == "rpc" else "message/stream"
            sent = text_message(role="ROLE_USER" if binding == "rpc" else "user")
            whole = await server.http.post("/a2a/default", json=rpc(method, message=sent))
        task_id = whole.headers["x-turn-id"]
        ids = frame_ids(whole.text)
        assert ids == list(range(1, len(ids) + 1))
        for last in (0, *ids):
            headers = {"Last-Event-ID": str(last)}
            if binding == "rest":
                rest = await server.http.get(f"/a2a/default/tasks/{task_id}:subscribe", headers=headers)
            else:
                name = "SubscribeToTask" if binding == "rpc" else "tasks/resubscribe"
                rest = await server.http.post("/a2a/default", json=rpc(name, id=task_id), headers=headers)
            assert events_of(rest.text) == events_of(whole.text)[last:]
        bad = await server.http.get(f"/a2a/default/tasks/{task_id}:subscribe", headers={"Last-Event-ID": "99"})
        assert bad.status_code == 400


async def test_restart_breaks_the_stream_and_the_next_one_has_no_void_text(serve: Serve, puppet: Puppet) -> None:
    async with serve() as server:
        body = {"message": text_message()}
        async with server.stream("POST", "/a2a/default/message:stream", json=body) as stream:
            part = await puppet.part()
            part.say("Void ")
            while "Void" not in stream.raw.decode():
                await stream.next()
            part.say(RestartEvent(2, "crashed"), "Whole.")
            with pytest.raises((httpx.HTTPError, AssertionError)):
                await stream.until("never")
        async with server.stream("POST", f"/a2a/default/tasks/{stream.turn_id}:subscribe") as again:
            task = Task()
            task.take((await again.next()).event)
            part.end()
            for frame in await again.rest():
                task.take(frame.event)
        assert (task.text, task.state) == ("Whole.", "TASK_STATE_COMPLETED")


# Ends


@EACH
async def test_failed_turn_is_a_failed_task_with_its_error(serve: Serve, dialect: Dialect) -> None:
    async def fails(turn: Turn) -> AsyncIterator[str]:
        yield "Half"
        raise AgentError("The oven is cold.")

    async with serve(fails) as server, a2a_client(server.url, dialect) as client:
        seen = await read(client.send_message(message()))
        assert (seen.state, seen.text, seen.lines[-1]) == ("failed", "Half", "The oven is cold.")


@EACH
async def test_cancel_stops_the_task_once(serve: Serve, puppet: Puppet, dialect: Dialect) -> None:
    async with serve() as server, a2a_client(server.url, dialect) as client:
        seen, stream = SeenTask(), client.send_message(message())
        reading = asyncio.create_task(read(stream, seen))
        part = await puppet.part()
        part.say("Part")
        await server.reached(part.turn.id, 3)
        cancelled = await within(client.cancel_task(CancelTaskRequest(id=part.turn.id)))
        assert (state_name(cancelled.status.state), answer_of(cancelled)) == ("canceled", "Part")
        await within(reading)
        assert (seen.state, seen.text) == ("canceled", "Part")
        with pytest.raises(TaskNotCancelableError):
            await client.cancel_task(CancelTaskRequest(id=part.turn.id))


# Approvals


@EACH
@pytest.mark.parametrize(
    ("reply", "approved", "reason"),
    [
        ([Part(text="Approve, go on.")], True, "go on"),
        ([Part(text="deny")], False, None),
        ([decision({"approved": False, "reason": "too dear"})], False, "too dear"),
        ([decision({"approvals": [{"call_id": "c1", "approved": True}]})], True, None),
    ],
)
async def test_approval_is_input_required_and_the_reply_continues_the_task(
    serve: Serve, dialect: Dialect, reply: list[Part], approved: bool, reason: str | None
) -> None:
    async with serve(careful) as server, a2a_client(server.url, dialect) as client:
        paused = await read(client.send_message(message("Buy it")))
        assert (paused.state, paused.text) == ("input_required", "May I? ")
        assert paused.lines[-1].startswith('Allow the call of pay with {"amount":40}? it costs money\n')
        waiting = await client.get_task(GetTaskRequest(id=paused.task.id))
        assert plain(waiting)["status"]["message"]["parts"][1]["data"]["approvals"][0]["call_id"] == "c1"
        answer = message("", *reply, task_id=paused.task.id, context_id=paused.task.context_id)
        done = await read(client.send_message(answer))
        # A stream that opens when the turn has ended again shows its end alone.
        assert done.states[0] in ("working", "completed")
        assert done.state == "completed"
        assert done.text == ("May I? Paid." if approved else done.text)
        assert ("Paid." in done.text) is approved
        frames = await server.whole(paused.task.id)
        (response,) = [frame.event for frame in frames if frame.type == "approval_response"]
        assert (response["approved"], response.get("reason"), response["by"]) == (approved, reason, "local")


async def test_two_requests_can_be_decided_one_by_one(serve: Serve) -> None:
    async def pays_twice(turn: Turn) -> AsyncIterator[str]:
        requests = [ApprovalRequestEvent(name, "pay", {}) for name in ("c1", "c2")]
        decisions = await asyncio.gather(*map(approval, requests))
        yield ", ".join(f"{each.call_id} {each.approved}" for each in decisions)

    async with serve(pays_twice) as server, a2a_client(server.url) as client:
        paused = await read(client.send_message(message("Buy both")))
        first = decision({"approvals": [{"call_id": "c1", "approved": True}]})
        half = await read(client.send_message(message("", first, task_id=paused.task.id)))
        assert half.state == "input_required"
        waiting = await client.get_task(GetTaskRequest(id=paused.task.id))
        calls = plain(waiting)["status"]["message"]["parts"][1]["data"]["approvals"]
        assert [call["call_id"] for call in calls] == ["c2"]
        done = await read(client.send_message(message("no", task_id=paused.task.id)))
        assert done.text == "c1 True, c2 False"


async def test_reply_that_decides_nothing_is_refused(serve: Serve) -> None:
    async with serve(careful) as server, a2a_client(server.url) as client:
        paused = await read(client.send_message(message("Buy it")))
        with pytest.raises(InvalidParamsError, match="approve"):
            await read(client.send_message(message("What for?", task_id=paused.task.id)))
        with pytest.raises(InvalidParamsError, match="reason"):
            await read(client.send_message(message(f"no {'x' * 2_001}", task_id=paused.task.id)))
        with pytest.raises(InvalidParamsError, match="contextId"):
            await read(client.send_message(message("yes", task_id=paused.task.id, context_id="other")))
        await read(client.send_message(message("yes", task_id=paused.task.id)))
        with pytest.raises(UnsupportedOperationError, match="ended"):
            await read(client.send_message(message("yes", task_id=paused.task.id)))


@EACH
@pytest.mark.parametrize(
    ("reply", "text"),
    [
        ([decision({"color": "blue"})], "Well. blue."),
        ([Part(text='{"color": "red"}')], "Well. red."),
    ],
)
async def test_question_is_input_required_and_the_reply_continues_the_task(
    serve: Serve, dialect: Dialect, reply: list[Part], text: str
) -> None:
    async with serve(curious) as server, a2a_client(server.url, dialect) as client:
        paused = await read(client.send_message(message("Paint it")))
        assert (paused.state, paused.text) == ("input_required", "Well. ")
        assert paused.lines[-1].startswith("Which colour?\n")
        waiting = plain(await client.get_task(GetTaskRequest(id=paused.task.id)))
        assert waiting["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        (question,) = waiting["status"]["message"]["parts"][1]["data"]["questions"]
        assert (question["prompt"], question["schema"]) == ("Which colour?", CHOICE)
        with pytest.raises(InvalidParamsError, match="color"):
            await read(client.send_message(message("", decision({"color": "pink"}), task_id=paused.task.id)))
        done = await read(client.send_message(message("", *reply, task_id=paused.task.id)))
        assert (done.states[0], done.state, done.text) == ("working", "completed", text)


@pytest.mark.parametrize(
    ("schema", "reply", "value"),
    [
        (None, "Ann", "Ann"),
        ({"type": "boolean"}, "Yes", True),
        ({"type": "integer"}, "7", 7),
        ({"type": "string", "enum": ["7", "8"]}, "7", "7"),
    ],
)
async def test_text_is_read_by_the_schema_of_the_question(
    serve: Serve, schema: dict[str, Any] | None, reply: str, value: Any
) -> None:
    async def asks(turn: Turn) -> AsyncIterator[str]:
        yield repr(await ask("Well?", schema))

    async with serve(asks) as server, a2a_client(server.url) as client:
        paused = await read(client.send_message(message()))
        answer = message(reply, task_id=paused.task.id)
        assert (await read(client.send_message(answer))).text == repr(value)


async def test_question_can_be_declined_by_its_id(serve: Serve) -> None:
    async with serve(curious) as server, a2a_client(server.url) as client:
        paused = await read(client.send_message(message("Paint it")))
        waiting = plain(await client.get_task(GetTaskRequest(id=paused.task.id)))
        (question,) = waiting["status"]["message"]["parts"][1]["data"]["questions"]
        reply = {"question_id": question["question_id"], "declined": True, "reason": "no paint"}
        done = await read(client.send_message(message("", decision({"replies": [reply]}), task_id=paused.task.id)))
        assert done.text == "Well. None: no paint."


async def test_call_of_a_client_tool_is_input_required_and_its_result_continues_the_task(serve: Serve) -> None:
    async with serve(curious) as server, a2a_client(server.url) as client:
        turn_id, call_id = await open_call(server)
        waiting = plain(await client.get_task(GetTaskRequest(id=turn_id)))
        assert waiting["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        (call,) = waiting["status"]["message"]["parts"][1]["data"]["tool_calls"]
        assert call == {"call_id": call_id, "tool": "locate", "args": {"exact": True}}
        with pytest.raises(InvalidParamsError, match="names each"):
            await read(client.send_message(message("Oslo", task_id=turn_id)))
        result = {"tool_results": [{"call_id": call_id, "output": "Oslo"}]}
        done = await read(client.send_message(message("", decision(result), task_id=turn_id)))
        assert done.text == "Well. Oslo."


# Tasks


async def test_tasks_are_listed_newest_first_in_pages(serve: Serve, puppet: Puppet) -> None:
    async with serve(saying("Ok.")) as server, a2a_client(server.url) as client:
        ids = [(await read(client.send_message(message(str(n), context_id=f"c{n % 2}")))).task.id for n in range(5)]
        listed, token = list[str](), ""
        while True:
            page = await client.list_tasks(ListTasksRequest(page_size=2, page_token=token))
            assert page.total_size == 5
            assert not any(task.artifacts for task in page.tasks)
            listed += [task.id for task in page.tasks]
            token = page.next_page_token
            if not token:
                break
        assert listed == ids[::-1]
        of_context = await client.list_tasks(ListTasksRequest(context_id="c1", include_artifacts=True))
        assert [(task.id, answer_of(task)) for task in of_context.tasks] == [(ids[3], "Ok."), (ids[1], "Ok.")]
        done = await client.list_tasks(ListTasksRequest(status="TASK_STATE_COMPLETED"))
        failed = await client.list_tasks(ListTasksRequest(status="TASK_STATE_FAILED"))
        assert (len(done.tasks), len(failed.tasks)) == (5, 0)
        assert not (await client.list_tasks(ListTasksRequest(context_id="nobody"))).tasks
        assert not (await client.list_tasks(ListTasksRequest(status="TASK_STATE_REJECTED"))).tasks


@pytest.mark.parametrize("text", ["2026-07-01T12:00:00", "2026-07-01T12:00:00Z", "2026-07-01T14:00:00+02:00"])
def test_time_without_a_zone_is_utc(text: str) -> None:
    params = ListTasksParams.model_validate({"statusTimestampAfter": text})
    assert params.status_timestamp_after is not None
    assert params.status_timestamp_after.astimezone(UTC).isoformat() == "2026-07-01T12:00:00+00:00"
    assert params.status_timestamp_after.tzinfo is not None


async def test_tasks_belong_to_their_principal_and_agent(tmp_path: Path) -> None:
    agents = {"one": saying("1"), "two": saying("2")}
    turnwire = Turnwire(agents=agents, store="memory", settings=quick_settings(tmp_path))
    async with serving(turnwire) as server:
        _, ann = await turnwire.keys.create("ann", ("read", "write"))
        _, bob = await turnwire.keys.create("bob", ("read", "write", "approve"))
        async with (
            a2a_client(server.url, key=ann) as of_ann,
            a2a_client(server.url, key=bob) as of_bob,
            a2a_client(server.url, key=ann, agent="two") as of_two,
        ):
            task = (await read(of_ann.send_message(message()))).task
            for stranger in (of_bob, of_two):
                for asking in (
                    stranger.get_task(GetTaskRequest(id=task.id)),
                    stranger.cancel_task(CancelTaskRequest(id=task.id)),
                    read(stranger.subscribe(SubscribeToTaskRequest(id=task.id))),
                    read(stranger.send_message(message("yes", task_id=task.id))),
                ):
                    with pytest.raises(TaskNotFoundError):
                        await asking
                assert not (await stranger.list_tasks(ListTasksRequest())).tasks
            assert (await read(of_two.send_message(message()))).text == "2"


async def test_files_reach_an_agent_that_takes_them_and_are_refused_by_others(serve: Serve, tmp_path: Path) -> None:
    class Viewer:
        takes_attachments = True

        async def answer(self, turn: Turn) -> AsyncIterator[str]:
            (file,) = turn.options["attachments"]
            yield f"{turn.message} {file['name']} {file['media_type']} {file['data']}"

    file = Part(raw=b"\xfb\xff", filename="a.png", media_type="image/png")
    turnwire = Turnwire(
        agents={"viewer": Viewer(), "blind": saying("no")}, store="memory", settings=quick_settings(tmp_path)
    )
    async with serving(turnwire) as server:
        for dialect in DIALECTS:
            async with a2a_client(server.url, dialect) as client:
                seen = await read(client.send_message(message("See", file)))
                assert seen.text == "See a.png image/png +/8="
            async with a2a_client(server.url, dialect, agent="blind") as client:
                with pytest.raises(ContentTypeNotSupportedError):
                    await read(client.send_message(message("See", file)))


async def test_agent_gets_data_as_json_and_the_metadata_of_the_message(serve: Serve) -> None:
    async def shows(turn: Turn) -> AsyncIterator[str]:
        yield f"{turn.message} {turn.options['metadata']}"

    async with serve(shows) as server, a2a_client(server.url) as client:
        sent = message("Sum:", decision({"of": ["x", "y"]}))
        sent.metadata["a"] = "b"  # pyright: ignore[reportIndexIssue]
        assert (await read(client.send_message(sent))).text == 'Sum:\n{"of":["x","y"]} {\'a\': \'b\'}'


# Cards


async def test_card_describes_the_agent_and_where_it_is(tmp_path: Path) -> None:
    class Cook:
        description, starters = "Cooks.", ("What is for dinner?",)

        async def answer(self, turn: Turn) -> AsyncIterator[str]:
            yield "Soup."

    turnwire = Turnwire(
        agents={"cook": Cook(), "my helper": saying("x")}, store="memory", settings=quick_settings(tmp_path)
    )
    async with serving(turnwire) as server:
        card = (await server.http.get("/.well-known/agent-card.json")).json()
        assert (card["name"], card["description"]) == ("cook", "Cooks.")
        assert {item["url"] for item in card["supportedInterfaces"]} == {f"{server.url}/a2a/cook"}
        assert card["skills"][0]["examples"] == ["What is for dinner?"]
        assert "securitySchemes" not in card
        async with a2a_client(server.url, agent="my%20helper") as client:
            assert (await read(client.send_message(message()))).text == "x"
        missing = await server.http.get("/a2a/nobody/.well-known/agent-card.json")
        assert missing.status_code == 404


async def test_card_that_has_not_changed_is_not_sent_again(serve: Serve) -> None:
    async with serve(saying("Ok.")) as server:
        first = await server.http.get("/.well-known/agent-card.json")
        again = await server.http.get("/.well-known/agent-card.json", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


async def test_address_of_an_agent_may_end_with_a_slash(serve: Serve) -> None:
    async with serve(saying("Ok.")) as server:
        answer = (await server.http.post("/a2a/default/", json=rpc("ListTasks"))).json()
    assert answer["result"]["tasks"] == []


async def test_rpc_request_that_is_not_declared_as_json_is_an_error_of_the_protocol(serve: Serve) -> None:
    async with serve(saying("Ok.")) as server:
        answer = await server.http.post("/a2a/default", content=b"{}", headers={"Content-Type": "text/plain"})
    assert answer.status_code == 415
    assert (answer.json()["jsonrpc"], answer.json()["error"]["code"]) == ("2.0", -32005)


@pytest.mark.parametrize("is_open", [True, False])
async def test_card_needs_a_key_unless_cards_are_open(serve: Serve, is_open: bool) -> None:
    async with serve(a2a={"open_cards": is_open}) as server:
        _, key = await server.turnwire.keys.create("ann", ("read",))
        for path in ("/.well-known/agent-card.json", "/a2a/default/.well-known/agent-card.json"):
            assert (await server.http.get(path)).status_code == (200 if is_open else 401)
            card = (await server.http.get(path, headers={"Authorization": f"Bearer {key}"})).json()
            assert card["securitySchemes"]["apiKey"]["httpAuthSecurityScheme"] == {"scheme": "Bearer"}
        assert (await server.http.get("/a2a/default/tasks")).status_code == 401
        assert (await server.http.post("/a2a/default", json=rpc("ListTasks"))).status_code == 401


# Errors

BAD_FILES = (
    {"url": "ftp://example.org/x"},
    {"raw": "a"},
    {"raw": "%%%%"},
    {"raw": ""},
    {"raw": "aGk=", "mediaType": "png"},
    {"raw": "aGk=", "mediaType": "image/png", "filename": "x" * 256},
)


async def test_json_rpc_errors_have_the_codes_of_the_protocol(serve: Serve) -> None:
    async with serve() as server:

        async def code(body: Any, **request: Any) -> Any:
            content = body if isinstance(body, bytes) else json.dumps(body)
            headers = {"Content-Type": "application/json", **request.pop("headers", {})}
            answer = await server.http.post("/a2a/default", content=content, headers=headers, **request)
            assert answer.status_code == 200
            error = answer.json()["error"]
            assert error["data"][0]["domain"] == "a2a-protocol.org"
            sent_id: Any = body.get("id") if isinstance(body, dict) else None
            assert answer.json()["id"] == (sent_id if isinstance(sent_id, int) else None)
            return error["code"]

        assert await code(b"{") == -32700
        assert await code([]) == -32600
        assert await code({"jsonrpc": "1.0", "id": 1, "method": "GetTask"}) == -32600
        assert await code({**rpc("GetTask", id="x"), "id": {}}) == -32600
        assert await code(rpc("Nothing")) == -32601
        assert await code({**rpc("GetTask"), "params": []}) == -32602
        assert await code(rpc("GetTask")) == -32602
        assert await code(rpc("SendMessage", message={"role": "ROLE_USER"})) == -32602
        assert await code(rpc("SendMessage", message=text_message(parts=[]))) == -32602
        assert await code(rpc("SendMessage", message=text_message(parts=[{}]))) == -32602
        for file in BAD_FILES:
            assert await code(rpc("SendMessage", message=text_message(parts=[file]))) == -32602
        assert await code(rpc("GetTask", id="unknown")) == -32001
        assert await code(rpc("SendMessage", message=text_message(taskId="unknown"))) == -32001
        assert await code(rpc("ListTasks", status="BUSY")) == -32602
        assert await code(rpc("ListTasks", pageToken="unknown")) == -32602
        assert await code(rpc("ListTasks", statusTimestampAfter="-1")) == -32602
        assert await code(rpc("GetExtendedAgentCard")) == -32004
        assert await code(rpc("GetTask", id="x"), headers={"A2A-Version": "0.5"}) == -32009
        assert await code(rpc("GetTask", id="x"), headers={"A2A-Version": "1.0.3"}) == -32001
        assert await server.written() == (0, 0)


async def test_rest_errors_have_the_status_and_reason_of_the_protocol(serve: Serve) -> None:
    async with serve() as server:

        async def failure(method: str, path: str, **request: Any) -> tuple[int, str]:
            answer = await server.http.request(method, f"/a2a/{path}", **request)
            error = answer.json()["error"]
            assert error["code"] == answer.status_code
            return answer.status_code, error["details"][0]["reason"]

        assert await failure("GET", "default/tasks/unknown") == (404, "TASK_NOT_FOUND")
        assert await failure("POST", "default/tasks/unknown:cancel") == (404, "TASK_NOT_FOUND")
        assert await failure("POST", "default/tasks/unknown:fly") == (404, "METHOD_NOT_FOUND")
        assert await failure("GET", "nobody/tasks") == (404, "TASK_NOT_FOUND")
        assert await failure("GET", "default/tasks?pageSize=0") == (400, "INVALID_PARAMS")
        assert await failure("POST", "default/message:send", json={}) == (400, "INVALID_PARAMS")
        for file in BAD_FILES:
            sent = {"message": text_message(parts=[file])}
            assert await failure("POST", "default/message:send", json=sent) == (400, "INVALID_PARAMS")
        old = {"A2A-Version": "0.2"}
        assert await failure("GET", "default/tasks", headers=old) == (400, "VERSION_NOT_SUPPORTED")
        assert await server.written() == (0, 0)


async def test_json_rpc_request_that_fails_unexpectedly_gets_an_error_with_its_id(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, errors_in_the_log: list[str]
) -> None:
    async def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a mistake")

    errors_in_the_log.append("a request to /a2a/default failed")
    async with serve() as server:
        monkeypatch.setattr(server.turnwire.services.store, "find_turn", fail)
        answer = (await server.http.post("/a2a/default", json=rpc("GetTask", id="x"))).json()
        assert (answer["id"], answer["error"]["code"]) == (7, -32603)
        assert "mistake" not in answer["error"]["message"]


async def test_caller_without_scopes_is_refused(serve: Serve) -> None:
    async with serve(careful) as server:
        _, reader = await server.turnwire.keys.create("ann", ("read",))
        _, writer = await server.turnwire.keys.create("ann", ("read", "write"))
        async with a2a_client(server.url, "HTTP+JSON 1.0", key=reader) as client:
            with pytest.raises(A2AClientError, match="403"):
                await read(client.send_message(message()))
        async with a2a_client(server.url, "HTTP+JSON 1.0", key=writer) as client:
            paused = await read(client.send_message(message()))
            with pytest.raises(A2AClientError, match="403"):
                await read(client.send_message(message("yes", task_id=paused.task.id)))


async def test_configuration_of_the_request_limits_the_history(serve: Serve) -> None:
    async with serve(saying("Ok.")) as server, a2a_client(server.url, streaming=False) as client:
        request = SendMessageRequest(
            message=Message(message_id="m1", role=Role.ROLE_USER, parts=[Part(text="Hi")]),
            configuration=SendMessageConfiguration(history_length=0),
        )
        seen = await read(client.send_message(request))
        assert not seen.task.history
