"""`/ag-ui` over real sockets: runs, resumption, decisions, thread messages, ownership."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.server.conftest import Serve, StoreKind
from tests.server.readers import by_user, user
from tests.server.test_auth import holder
from tests.serving import Client, Frame, Puppet, Served, Stream, error_of, saying, within
from tests.wires.ag_ui_rules import Rules, check
from turnwire.core.errors import AgentError
from turnwire.core.journal.waits import approval
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    CitationEvent,
    RestartEvent,
    TokenEvent,
    ToolCallEvent,
    ToolResultEvent,
)
from turnwire.core.log.turns import Message, ToolRequest, Turn

OPENING = b": stream-open\n\n"


def run_input(run_id: str = "r1", text: str = "Hello", *, thread: str = "th", **more: Any) -> dict[str, Any]:
    """Return the body that `HttpAgent` sends."""
    return {
        "threadId": thread,
        "runId": run_id,
        "protocolVersion": "1.0",
        "state": {},
        "messages": [{"id": f"u-{run_id}", "role": "user", "content": text}],
        "tools": [],
        "context": [],
        "forwardedProps": {},
        **more,
    }


def run(client: Client, run_id: str = "r1", text: str = "Hello", *, last: str | None = None, **more: Any) -> Any:
    headers = {"Accept": "text/event-stream", **({"Last-Event-ID": last} if last else {})}
    return client.stream("POST", "/ag-ui", json=run_input(run_id, text, **more), headers=headers)


def read(client: Client, run_id: str, *, last: str | None = None, **query: Any) -> Any:
    headers = {"Last-Event-ID": last} if last else {}
    return client.stream("GET", "/ag-ui", params={"runId": run_id, **query}, headers=headers)


async def whole(client: Client, run_id: str = "r1", text: str = "Hello", **more: Any) -> list[Frame]:
    async with run(client, run_id, text, **more) as stream:
        return await stream.rest()


async def thread_state(client: Client, thread: str = "th") -> dict[str, Any]:
    answer = await client.http.get("/ag-ui", params={"threadId": thread})
    assert answer.status_code == 200, answer.text
    return answer.json()


def kinds(frames: list[Frame]) -> list[str]:
    return [frame.type for frame in frames]


def text_of(frames: list[Frame]) -> str:
    return "".join(frame.event["delta"] for frame in frames if frame.type == "TEXT_MESSAGE_CONTENT")


def keep_the_rules(frames: list[Frame]) -> None:
    rules = Rules()
    for frame in frames:
        rules.take(frame.event)
    assert rules.state in ("finished", "failed")


# Runs


async def test_a_run_is_answered_with_its_events(server: Served, puppet: Puppet) -> None:
    async with run(server, "run-1", "Hello", thread="thread-1") as stream:
        assert stream.headers["content-type"] == "text/event-stream"
        assert stream.headers["cache-control"] == "no-cache, no-transform"
        assert stream.headers["x-accel-buffering"] == "no"
        assert stream.headers["x-run-id"] == "run-1"
        assert stream.headers["location"] == "/ag-ui?runId=run-1&version=1"
        begun = await stream.next()
        assert begun.event == {
            "type": "RUN_STARTED",
            "threadId": "thread-1",
            "runId": "run-1",
            "protocolVersion": "1.0",
        }
        part = await puppet.part()
        assert (part.turn.message, part.turn.channel, part.turn.history) == ("Hello", "ag_ui", ())
        part.say("Good ", "day.")
        part.end()
        frames = [begun, *await stream.rest()]
    keep_the_rules(frames)
    assert check(stream.raw.removeprefix(OPENING)) == [frame.event for frame in frames]
    assert text_of(frames) == "Good day."
    assert frames[-1].event["outcome"] == {"type": "success"}
    snapshot = await server.snapshot("run-1")
    assert (snapshot["external_id"], snapshot["outcome"]) == ("run-1", "completed")


async def test_last_user_message_is_answered_and_thread_continues(server: Served, puppet: Puppet) -> None:
    async with run(server, "r1", "One") as stream:
        (await puppet.part()).end()
        await stream.rest()
    messages = [
        {"id": "u-r1", "role": "user", "content": "One"},
        {"id": "s", "role": "system", "content": "Obey."},
        {"id": "u2", "role": "user", "content": [{"type": "text", "text": "Two"}, {"type": "other", "source": {}}]},
        {"id": "x", "role": "activity", "activityType": "search", "content": {"phase": "started"}},
    ]
    async with run(server, "r2", messages=messages) as stream:
        part = await puppet.part()
        assert part.turn.message == "Two"
        assert [message.content for message in part.turn.history] == ["One", ""]
        part.end()
        await stream.rest()


async def test_earlier_messages_of_a_new_thread_become_the_history(server: Served, puppet: Puppet) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"q":"x"}'}}
    lost = {"id": "c2", "type": "function", "function": {"name": "find", "arguments": "{"}}
    messages = [
        {"id": "s", "role": "system", "content": "Obey me."},
        {"id": "u1", "role": "user", "content": "One"},
        {"id": "a1", "role": "assistant", "toolCalls": [call, lost]},
        {"id": "t1", "role": "tool", "toolCallId": "c1", "content": "found"},
        {"id": "a2", "role": "assistant", "content": "inner", "subagentRunId": "x"},
        {"id": "a3", "role": "assistant", "content": "Here."},
        {"id": "u2", "role": "user", "content": "Two"},
    ]
    expected = (
        Message("user", "One"),
        Message("assistant", "", tool_calls=(ToolRequest("c1", "find", {"q": "x"}),)),
        Message("tool", "found", call_id="c1"),
        Message("assistant", "Here."),
    )
    async with run(server, "r1", messages=messages) as stream:
        part = await puppet.part()
        assert (part.turn.message, part.turn.history) == ("Two", expected)
        part.say("2")
        part.end()
        await stream.rest()
    # It stays the history of what follows, though it is not sent again.
    async with run(server, "r2", "Three") as stream:
        part = await puppet.part()
        assert part.turn.history == (*expected, Message("user", "Two"), Message("assistant", "2"))
        part.end()
        await stream.rest()
    assert [message["content"] for message in (await thread_state(server))["messages"]] == [
        "One",
        "Here.",
        "Two",
        "2",
        "Three",
    ]


@pytest.mark.one_store("its second server begins with an empty store")
async def test_repeated_question_in_a_thread_keeps_its_history(serve: Serve, puppet: Puppet) -> None:
    messages = [
        {"role": "user", "content": "Why?"},
        {"role": "assistant", "content": "Because."},
        {"role": "user", "content": [{"type": "text", "content": "Why?"}]},
    ]
    for sent_messages in (messages, [messages[0], messages[1], messages[0]]):
        async with serve() as server, run(server, messages=sent_messages) as stream:
            part = await puppet.part()
            assert (part.turn.message, [message.content for message in part.turn.history]) == (
                "Why?",
                ["Why?", "Because."],
            )
            part.end()
            await stream.rest()


async def test_regenerated_answer_continues_the_turn_before_it(server: Served, puppet: Puppet) -> None:
    async def answered(run_id: str, messages: list[dict[str, Any]], says: str) -> tuple[Any, list[Frame]]:
        async with run(server, run_id, messages=messages) as stream:
            part = await puppet.part()
            part.say(says)
            part.end()
            return part.turn.history, await stream.rest()

    question = {"id": "u1", "role": "user", "content": "One"}
    follow_up = {"id": "u2", "role": "user", "content": "Two"}
    _, frames = await answered("r1", [question], "first")
    answer_id = next(frame.event["messageId"] for frame in frames if frame.type == "TEXT_MESSAGE_START")
    answer = {"id": answer_id, "role": "assistant", "content": "first"}
    await answered("r2", [question, answer, follow_up], "second")
    history, _ = await answered("r3", [question, answer, follow_up], "again")
    assert [message.content for message in history] == ["One", "first"]
    history, _ = await answered("r4", [question], "anew")
    assert history == ()
    assert [message["content"] for message in (await thread_state(server))["messages"]] == ["One", "anew"]
    # An id that is used again, for other words, is another message.
    history, _ = await answered("r5", [{**question, "content": "Three"}], "third")
    assert [message.content for message in history] == ["One", "anew"]


async def test_message_options_are_read_from_forwarded_props(serve: Serve, puppet: Puppet) -> None:
    async with serve() as server:
        more: Any = {
            "forwardedProps": {"review": False, "on_busy": "reject", "model": "theirs"},
            "context": [{"description": "page", "value": "tides"}],
            "state": {"n": 1},
        }
        async with run(server, **more) as stream:
            part = await puppet.part()
            assert part.turn.options == {
                "metadata": {"model": "theirs"},
                "review": False,
                "message_id": "u-r1",
                "context": [{"description": "page", "value": "tides"}],
                "state": {"n": 1},
            }
            busy = await server.http.post("/ag-ui", json=run_input("r2", **more))
            assert error_of(busy, 409)["code"] == "session_busy"
            part.end()
            await stream.rest()
        wrong = await server.http.post("/ag-ui", json=run_input("r3", forwardedProps={"agent": "nobody"}))
        assert error_of(wrong, 422)["code"] == "agent_not_found"


@pytest.mark.parametrize(
    ("outcome", "agent"),
    [("failed", AgentError("no luck", code="out_of_luck")), ("broken", RuntimeError("a secret"))],
)
async def test_failure_is_a_run_error(
    serve: Serve, puppet: Puppet, outcome: str, agent: Exception, errors_in_the_log: list[str]
) -> None:
    errors_in_the_log.append("the agent")
    async with serve() as server, run(server) as stream:
        part = await puppet.part()
        part.say(ToolCallEvent("c1", "find", {}), "so f")
        part.end(agent)
        frames = await stream.rest()
    keep_the_rules(frames)
    assert frames[-1].type == "RUN_ERROR"
    assert frames[-1].event["code"] == ("out_of_luck" if outcome == "failed" else "agent_failed")
    assert "secret" not in stream.raw.decode()


# Joining and resuming


async def test_known_run_is_joined_and_never_started_twice(server: Served, puppet: Puppet) -> None:
    async with run(server) as first:
        part = await puppet.part()
        part.say("Good ")
        await first.until("TEXT_MESSAGE_CONTENT")
        async with run(server) as second:
            part.say("day.")
            part.end()
            assert text_of(await second.rest()) == "Good day."
        await first.rest()
    assert first.raw == second.raw
    assert (first.turn_id, await server.written()) == (second.turn_id, (1, 1))
    other = await server.http.post("/ag-ui", json=run_input("r1", "Something else"))
    assert error_of(other, 409)["code"] == "idempotency_conflict"


@pytest.mark.parametrize("how", ["post", "get", "offset"])
async def test_client_continues_after_any_frame(serve: Serve, kind: StoreKind, how: str) -> None:
    lines = [
        "Let me see. ",
        ToolCallEvent("c1", "find", {}),
        ToolResultEvent("c1", "find", True, "x"),
        TokenEvent("inner", agent_path=("web",)),
        "Good day.",
        CitationEvent(1, "d1"),
    ]
    async with serve(saying(*lines), store=kind) as server:
        frames = await whole(server)
        for seen in range(1, len(frames)):
            last = frames[seen - 1].id
            if how == "post":
                again = run(server, last=last)
            elif how == "get":
                again = read(server, "r1", last=last, offset="-1", version="1")
            else:
                again = read(server, "r1", offset=last, version="1")
            async with again as stream:
                assert await stream.rest() == frames[seen:]
        for query in ({}, {"offset": "-1"}):
            async with read(server, "r1", version="1", **query) as stream:
                assert await stream.rest() == frames
        ended = await server.http.get("/ag-ui", params={"runId": "r1", "offset": frames[-1].id, "version": "1"})
        assert ended.status_code == 204
        beyond = await server.http.get("/ag-ui", params={"runId": "r1", "offset": "999"})
        assert error_of(beyond, 416)["code"] == "bad_offset"


async def test_turn_events_route_resumes_ag_ui_by_frame_id(serve: Serve) -> None:
    async with serve(saying("Good ", ToolCallEvent("c1", "find", {}), "day.")) as server:
        await whole(server)
        path, query = "/v1/turns/r1/events", {"wire": "ag_ui", "run_id": "r1", "thread_id": "th"}
        async with server.stream("GET", path, params=query) as stream:
            frames = await stream.rest()
        assert frames == await whole(server)
        for seen in range(1, len(frames)):
            last = {"Last-Event-ID": frames[seen - 1].id or ""}
            async with server.stream("GET", path, params=query, headers=last) as stream:
                assert await stream.rest() == frames[seen:]
        last = {"Last-Event-ID": frames[-1].id or ""}
        assert (await server.http.get(path, params=query, headers=last)).status_code == 204


async def test_dropped_client_misses_no_event(server: Served, puppet: Puppet) -> None:
    async with run(server) as stream:
        part = await puppet.part()
        part.say("Good ")
        seen = await stream.until("TEXT_MESSAGE_CONTENT")
    part.say("day")
    async with run(server, last=seen[-1].id) as stream:
        seen += await stream.until("TEXT_MESSAGE_CONTENT")
        part.say(".")
        part.end()
        seen += await stream.rest()
    assert [frame.id for frame in seen] == [str(number) for number in range(1, len(seen) + 1)]
    keep_the_rules(seen)
    assert text_of(seen) == "Good day."


async def test_void_frames_are_left_out_and_their_reader_gets_409(serve: Serve) -> None:
    async with serve(saying("Good ", "n", "ight", RestartEvent(3, "worker_lost"), "day.")) as server:
        await server.ended(await server.start(turn_id="r1"))
        async with read(server, "r1") as stream:
            frames = await stream.rest()
        keep_the_rules(frames)
        assert text_of(frames) == "Good day."
        async with read(server, "r1", last="4") as stream:
            assert await stream.rest() == frames[4:]
        old = await server.http.get("/ag-ui", params={"runId": "r1"}, headers={"Last-Event-ID": "5"})
        assert error_of(old, 409)["code"] == "reset"


async def test_run_id_header_names_the_run_without_run_id_in_body(serve: Serve) -> None:
    async with serve(saying("a")) as server:
        body = {name: value for name, value in run_input().items() if name not in ("runId", "protocolVersion")}
        async with server.stream("POST", "/ag-ui", json=body, headers={"X-Run-Id": "mine"}) as stream:
            frames = await stream.rest()
        assert frames[0].event == {"type": "RUN_STARTED", "threadId": "th", "runId": "mine"}
        async with read(server, "mine", offset="-1") as stream:
            assert await stream.rest() == frames


async def test_allowed_origin_may_send_and_read_the_run_id_header(serve: Serve) -> None:
    async with serve(saying("a"), allowed_origins=["http://page.test"]) as server:
        origin = {"Origin": "http://page.test"}
        asking = {**origin, "Access-Control-Request-Method": "POST"}
        allowed = (await server.http.options("/ag-ui", headers=asking)).headers["access-control-allow-headers"]
        assert {"X-Run-Id", "Last-Event-ID"} <= set(allowed.split(", "))
        answer = await server.http.post("/ag-ui", json=run_input(), headers=origin)
        assert "X-Run-Id" in answer.headers["access-control-expose-headers"].split(", ")


async def test_run_without_client_id_has_the_turn_id(serve: Serve) -> None:
    async with serve(saying("a")) as server:
        async with server.stream("POST", "/ag-ui", json={"messages": run_input()["messages"]}) as stream:
            frames = await stream.rest()
        assert frames[0].event == {"type": "RUN_STARTED", "threadId": stream.session_id, "runId": stream.turn_id}


# Stopping


@pytest.mark.parametrize("what", [{"runId": "r1"}, {"threadId": "th"}])
async def test_stop_cancels_the_run(server: Served, puppet: Puppet, what: dict[str, str]) -> None:
    async with run(server) as stream:
        part = await puppet.part()
        part.say("so f")
        await stream.until("TEXT_MESSAGE_CONTENT")
        answer = await server.http.post("/ag-ui/stop", json=what)
        assert (answer.status_code, answer.json()) == (200, {"stopped": ["r1"]})
        frames = await stream.rest()
        assert part.over.is_set()
    assert frames[-1].event["outcome"] == {"type": "cancelled"}
    assert (await server.http.post("/ag-ui/stop", json=what)).json() == {"stopped": []}


async def test_running_turn_behind_many_ended_ones_is_shown_and_stopped(server: Served, puppet: Puppet) -> None:
    async with run(server, "running"):
        await puppet.part()
        for number in range(12):
            async with run(server, f"queued-{number}") as queued:
                assert (await server.http.post(f"/v1/turns/{queued.turn_id}/cancel")).status_code == 200
        assert (await thread_state(server))["activeRun"] == {"runId": "running"}
        answer = await within(server.http.post("/ag-ui/stop", json={"threadId": "th"}))
        assert answer.json() == {"stopped": ["running"]}


async def test_stop_without_run_or_thread_is_refused(server: Served) -> None:
    assert error_of(await server.http.post("/ag-ui/stop", json={}), 422)["code"] == "invalid_request"
    assert error_of(await server.http.post("/ag-ui/stop", json={"runId": "no"}), 404)["code"] == "turn_not_found"
    assert error_of(await server.http.post("/ag-ui/stop", json={"threadId": "no"}), 404)["code"] == "session_not_found"
    assert error_of(await server.http.post("/ag-ui/stop", json={"threadId": ""}), 422)["code"] == "invalid_request"


# Decisions


async def careful(turn: Turn) -> AsyncIterator[Any]:
    """Asks about two calls, and then about the first one again."""
    yield "May I? "
    pay = ApprovalRequestEvent("c1", "pay", {"amount": 40}, "it costs money")
    mail = ApprovalRequestEvent("c2", "mail", {}, agent_path=("clerk",))
    decisions = await asyncio.gather(approval(pay), approval(mail))
    for decision in decisions:
        yield ToolResultEvent(decision.call_id, decision.tool, decision.approved, decision.reason)
    last = decisions[0]
    if last.approved:
        yield "Once more? "
        yield ToolCallEvent("c1", "pay", {"amount": 50})
        last = await approval(ApprovalRequestEvent("c1", "pay", {"amount": 50}))
        yield ToolResultEvent("c1", "pay", last.approved, last.reason)
    yield "Paid." if last.approved else "Kept."


def resolved(interrupts: list[dict[str, Any]], **payload: Any) -> list[dict[str, Any]]:
    return [{"interruptId": interrupt["id"], "status": "resolved", "payload": payload} for interrupt in interrupts]


def interrupts_of(frames: list[Frame]) -> list[dict[str, Any]]:
    assert frames[-1].event["outcome"]["type"] == "interrupt"
    return frames[-1].event["outcome"]["interrupts"]


async def test_decisions_of_the_next_run_continue_the_turn(serve: Serve, kind: StoreKind) -> None:
    async with serve(careful, store=kind) as server:
        first = await whole(server)
        keep_the_rules(first)
        interrupts = interrupts_of(first)
        assert [interrupt["toolCallId"].rpartition(":")[2] for interrupt in interrupts] == ["c1", "c2"]
        second = await whole(server, "r2", resume=resolved(interrupts, approved=True, reason="fine"), parentRunId="r1")
        keep_the_rules(first + second)
        assert (second[0].event["runId"], second[0].event["parentRunId"]) == ("r2", "r1")
        new_interrupts = interrupts_of(second)
        assert new_interrupts[0]["metadata"]["input"] == {"amount": 50}
        # The old decision was about the old request, though it is for the same call.
        assert (
            await whole(server, "r2", resume=resolved(interrupts, approved=True, reason="fine"), parentRunId="r1")
            == second
        )
        assert (await server.snapshot("r1"))["phase"] == "waiting"
        cancelled = [{"interruptId": new_interrupts[0]["id"], "status": "cancelled"}]
        third = await whole(server, "r3", resume=cancelled, parentRunId="r2")
        keep_the_rules(first + second + third)
        assert (third[0].event["runId"], third[0].event["parentRunId"]) == ("r3", "r2")
        assert (text_of(third), third[-1].event["outcome"]) == ("Kept.", {"type": "success"})
        assert await server.written() == (1, 1)
        # The ids go on through all runs of the turn, and a request that is repeated gets the same.
        assert [frame.id for frame in first + second + third] == [
            str(number) for number in range(1, len(first + second + third) + 1)
        ]
        again = await whole(server, "r3", resume=cancelled, parentRunId="r2")
        assert again == third
        for seen in range(1, len(third)):
            assert await whole_after(server, third[seen - 1].id, cancelled) == third[seen:]
        # By the name it was resumed with, or by its number.
        for name in ("r3", "r1:3"):
            async with read(server, name, version="1") as stream:
                frames = await stream.rest()
            assert frames[0].event["runId"] == name
            assert [frame.data for frame in frames[1:-1]] == [frame.data for frame in third[1:-1]]
        async with read(server, "r1", version="1") as stream:
            replayed = await stream.rest()
        keep_the_rules(replayed)
        started = [frame.event["runId"] for frame in replayed if frame.type == "RUN_STARTED"]
        assert started == ["r1", "r1:2", "r1:3"]
        missing = await server.http.get("/ag-ui", params={"runId": "r1:4"})
        assert error_of(missing, 404)["code"] == "turn_not_found"


async def whole_after(server: Client, last: str | None, decisions: list[dict[str, Any]]) -> list[Frame]:
    async with run(server, "r3", last=last, resume=decisions, parentRunId="r2") as stream:
        return await stream.rest()


async def test_invalid_decision_is_refused_and_changes_nothing(serve: Serve) -> None:
    async with serve(careful) as server:
        interrupts = interrupts_of(await whole(server))

        async def refused(status: int, entries: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
            return error_of(await server.http.post("/ag-ui", json=run_input("r2", resume=entries, **more)), status)

        both = resolved(interrupts, approved=True)
        assert interrupts[1]["id"] in (await refused(422, both[:1]))["message"]
        assert (await refused(422, resolved(interrupts)))["code"] == "invalid_request"
        assert (await refused(422, resolved(interrupts, approved="yes")))["code"] == "invalid_request"
        assert (await refused(409, resolved(interrupts, approved=True, args={"amount": 9})))[
            "code"
        ] == "approval_conflict"
        turn_id = interrupts[0]["id"].partition(":")[0]
        for unknown in ("nonsense", f"{turn_id}:999", f"{turn_id}:x", ":7"):
            entry = {"interruptId": unknown, "status": "cancelled"}
            assert (await refused(404, [entry]))["code"] in ("approval_not_found", "turn_not_found")
        mixed = [*both, {"interruptId": "other:7", "status": "cancelled"}]
        assert (await refused(422, mixed))["code"] == "invalid_request"
        assert (await refused(404, both, thread="elsewhere"))["code"] == "session_not_found"
        await whole(server, "r9", thread="other")
        assert (await refused(404, both, thread="other"))["code"] == "turn_not_found"
        assert (await server.snapshot("r1"))["phase"] == "waiting"
        await whole(server, "r2", resume=both)
        assert (await refused(409, resolved(interrupts[1:], approved=False)))["code"] == "approval_conflict"


async def test_message_instead_of_decision_interrupts_the_waiting_turn(serve: Serve) -> None:
    async with serve(careful) as server:
        interrupts = interrupts_of(await whole(server))
        await within(whole(server, "r2", "Never mind"))
        assert (await server.snapshot("r1"))["outcome"] == "cancelled"
        late = await server.http.post("/ag-ui", json=run_input("r3", resume=resolved(interrupts, approved=True)))
        assert error_of(late, 409)["code"] == "turn_not_waiting"


async def test_turn_cancelled_while_waiting_is_replayed_as_two_runs(serve: Serve) -> None:
    async with serve(careful) as server:
        first = await whole(server)
        assert (await server.http.post("/ag-ui/stop", json={"threadId": "th"})).json() == {"stopped": ["r1"]}
        again = await whole(server)
    keep_the_rules(again)
    assert again[: len(first)] == first
    assert again[-1].event["outcome"] == {"type": "cancelled"}


async def test_key_without_approve_scope_cannot_decide(serve: Serve) -> None:
    async with serve(careful) as server, holder(server, "anna", ("read", "write")) as writer:
        interrupts = interrupts_of(await whole(writer))
        denied = await writer.http.post("/ag-ui", json=run_input("r2", resume=resolved(interrupts, approved=True)))
        assert error_of(denied, 403)["code"] == "forbidden"
        assert (await writer.snapshot("r1"))["phase"] == "waiting"


# What a thread holds


async def test_thread_messages_are_returned_to_a_reloaded_page(server: Served, puppet: Puppet) -> None:
    assert await thread_state(server) == {"messages": [], "activeRun": None}
    async with run(server, "r1", "One") as stream:
        part = await puppet.part()
        part.say("Wait. ", ToolCallEvent("c1", "find", {"q": 1}), ToolResultEvent("c1", "find", False, "no"), "Gone.")
        part.end()
        await stream.rest()
    turn_id = stream.turn_id
    async with run(server, "r2", "Two") as stream:
        await puppet.part()
        state = await thread_state(server)
        assert state["activeRun"] == {"runId": "r2"}
        assert "interrupts" not in state
        question, answer, follow_up = state["messages"]
        assert (question["id"], question["role"], question["content"]) == ("u-r1", "user", "One")
        assert (follow_up["id"], follow_up["parts"]) == ("u-r2", [{"type": "text", "content": "Two"}])
        arguments = {"name": "find", "arguments": '{"q":1}'}
        assert answer == {
            "id": f"{turn_id}:answer",
            "role": "assistant",
            "content": "Wait. Gone.",
            "parts": [
                {"type": "text", "content": "Wait. "},
                {"type": "tool-call", "id": f"{turn_id}:c1", **arguments, "input": {"q": 1}, "state": "error"},
                {
                    "type": "tool-result",
                    "toolCallId": f"{turn_id}:c1",
                    "content": '{"error":"no"}',
                    "state": "error",
                },
                {"type": "text", "content": "Gone."},
            ],
            "toolCalls": [{"id": f"{turn_id}:c1", "type": "function", "function": arguments}],
            "metadata": {"outcome": "completed"},
        }
        await server.http.post("/ag-ui/stop", json={"threadId": "th"})


async def test_pending_interrupts_are_returned_to_a_reloaded_page(serve: Serve) -> None:
    async with serve(careful) as server:
        interrupts = interrupts_of(await whole(server))
        state = await thread_state(server)
        assert state["activeRun"] is None
        assert state["interrupts"]["runId"] == "r1"
        assert [interrupt["id"] for interrupt in state["interrupts"]["pending"]] == [
            interrupt["id"] for interrupt in interrupts
        ]
        assert [part["type"] for part in state["messages"][1]["parts"]] == ["text", "tool-call"]
        assert state["messages"][1]["parts"][1]["state"] == "approval-requested"
        turn_id = interrupts[0]["id"].partition(":")[0]
        await server.http.post(f"/v1/turns/{turn_id}/approvals/c1", json={"approved": True})
        pending = (await thread_state(server))["interrupts"]["pending"]
        assert [interrupt["id"] for interrupt in pending] == [interrupts[1]["id"]]
        # Who comes now is still told of both, and may decide them as before.
        assert interrupts_of(await whole(server)) == interrupts
        second = await whole(server, "r2", resume=resolved(interrupts, approved=True))
        assert interrupts_of(second)[0]["metadata"]["input"] == {"amount": 50}
        assert (await thread_state(server))["interrupts"]["runId"] == "r1:2"


# Errors


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"[]", 422),
        (b"{}", 422),
        (b'{"messages":[]}', 422),
        (b'{"messages":[{"role":"user","content":"  "}]}', 422),
        (b'{"messages":[{"role":"user","content":null}]}', 422),
        (b'{"messages":[{"role":"user","content":{"a":1}}]}', 422),
        (b'{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}', 422),
        (b'{"messages":[{"role":"user","content":"a"},{"role":"tool","toolCallId":"c","content":"b"}]}', 422),
        (b'{"threadId":"a b","messages":[{"role":"user","content":"a"}]}', 422),
        (b'{"runId":"","messages":[{"role":"user","content":"a"}]}', 422),
        (b'{"messages":[{"role":"user","content":"a"}],"forwardedProps":{"on_busy":"maybe"}}', 422),
        (b'{"resume":[{"interruptId":"x","status":"maybe"}]}', 422),
        (b'{"resume":[{"status":"cancelled"}]}', 422),
    ],
)
async def test_bad_request_names_the_field_and_starts_nothing(serve: Serve, body: bytes, status: int) -> None:
    async with serve() as server:
        answer = await server.http.post("/ag-ui", content=body, headers={"Content-Type": "application/json"})
        assert error_of(answer, status)["code"] in ("invalid_json", "invalid_request")
        assert await server.written() == (0, 0)


async def test_bad_cursor_is_refused(serve: Serve) -> None:
    async with serve(saying("a")) as server:
        await whole(server)
        assert error_of(await server.http.get("/ag-ui"), 422)["code"] == "invalid_request"
        bad: list[dict[str, str]] = [{"offset": "x"}, {"offset": "-2"}, {"offset": "1.5"}, {"offset": "٣"}]
        for query in bad:
            answer = await server.http.get("/ag-ui", params={"runId": "r1", **query})
            assert error_of(answer, 400)["code"] == "bad_cursor"
        headers = {"Last-Event-ID": "abc"}
        assert error_of(await server.http.post("/ag-ui", json=run_input(), headers=headers), 400)
        plain = await server.http.post("/ag-ui", content=b"{}", headers={"Content-Type": "text/plain"})
        assert error_of(plain, 415)["code"] == "unsupported_media_type"
        for run_id in ("nobody", "nobody:2", ":2", "r1:x", "r1:0"):
            answer = await server.http.get("/ag-ui", params={"runId": run_id})
            assert error_of(answer, 404)["code"] == "turn_not_found"


async def test_thread_and_runs_of_another_principal_are_not_found(serve: Serve) -> None:
    async with serve(careful, authenticate=by_user) as server, user(server, "anna") as anna, user(server, "bob") as bob:
        first = await whole(anna)
        interrupts = interrupts_of(first)
        assert await thread_state(bob) == {"messages": [], "activeRun": None}
        for query in ({"runId": "r1"}, {"runId": "r1:2"}, {"runId": interrupts[0]["id"].partition(":")[0]}):
            assert error_of(await bob.http.get("/ag-ui", params=query), 404)["code"] == "turn_not_found"
        for what in ({"runId": "r1"}, {"threadId": "th"}):
            error_of(await bob.http.post("/ag-ui/stop", json=what), 404)
        stolen = await bob.http.post("/ag-ui", json=run_input("r2", resume=resolved(interrupts, approved=True)))
        assert error_of(stolen, 404)["code"] == "turn_not_found"
        # The same names are another thread and another run.
        mine: Stream
        async with run(bob) as mine:
            await mine.rest()
        assert mine.turn_id != interrupts[0]["id"].partition(":")[0]
        second = await whole(anna, "r2", resume=resolved(interrupts, approved=True))
        assert error_of(await bob.http.get("/ag-ui", params={"runId": "r2"}), 404)
        keep_the_rules(first + second)
