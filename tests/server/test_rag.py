"""The `/v1/rag` routes: live events, then the answer, then its citations; and how a failure is told."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from tests.server.conftest import Serve, StoreKind
from tests.server.text_client import ANSWER, LINES, SEARCH, ask, begun, messages, phases, resume
from tests.serving import Client, Puppet, Served, error_of, saying, until, within
from turnwire import AgentError
from turnwire.core.log.events import StatusEvent, ToolCallEvent


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as entered:
        yield entered


async def test_a_line_arrives_while_retrieval_still_runs(server: Served, puppet: Puppet, stack: AsyncExitStack) -> None:
    stream, part = await begun(stack, server, puppet, SEARCH[0])
    line = await stream.until(b"\n")
    assert line.startswith(b'{"event":"search","timestamp":"2')
    assert b'"phase":"started"' in line
    # The agent has been told nothing else yet: it still searches.
    assert part.lines.empty()
    assert not part.over.is_set()
    part.say(SEARCH[1])
    assert b"finished" in await stream.until(b"finished")
    part.say("Noon.")
    assert (await stream.until(b"Noon.")).endswith(b"\x1dNoon.")
    assert not part.over.is_set()
    part.end()
    lines, answer, trailer = phases(await stream.rest())
    assert [line["phase"] for line in lines] == ["started", "finished"]
    assert (answer, trailer["outcome"], trailer["tools_used"]) == ("Noon.", "completed", ["find"])


async def test_a_whole_turn_has_its_three_phases(serve: Serve, kind: StoreKind) -> None:
    async with serve(saying(*LINES), kind) as server, ask(server) as stream:
        lines, answer, trailer = phases(await stream.rest())
        assert [(line["event"], line["type"]) for line in lines] == [("search", "search")] * 2
        assert answer == ANSWER
        assert [citation["document_id"] for citation in trailer["citations"]] == ["tides.md"]
        assert [span["index"] for span in trailer["spans"]] == [1]
        assert [event["text"] for event in trailer["events"]] == ["checking"]
        assert (trailer["session_id"], trailer["turn_id"]) == (stream.session_id, stream.turn_id)
        assert set(trailer["timings"]) >= {"first_event_ms", "first_token_ms", "total_ms"}


async def test_stream_headers_have_turn_session_and_location(serve: Serve, kind: StoreKind) -> None:
    async with serve(saying("Noon."), kind) as server, ask(server, session="mine") as stream:
        body = await stream.rest()
        assert stream.headers["content-type"] == "text/plain; charset=utf-8"
        assert stream.headers["cache-control"] == "no-cache, no-transform"
        assert stream.headers["x-accel-buffering"] == "no"
        assert stream.headers["x-content-type-options"] == "nosniff"
        assert stream.headers["location"] == f"/v1/turns/{stream.turn_id}/events?wire=three_phase_text"
        again = await server.http.get(stream.headers["location"] + "&offset=3")
        assert again.content == body[3:]
        for name in ("x-turn-id", "x-session-id", "location", "cache-control", "content-type"):
            assert again.headers[name] == stream.headers[name]
        assert (await server.http.get("/v1/sessions/mine")).json()["id"] == stream.session_id


async def test_control_characters_in_an_answer_do_not_end_it(serve: Serve) -> None:
    async with serve(saying("a\x1db", "\x1e{}", "c\x00\r\n")) as server, ask(server) as stream:
        _, answer, trailer = phases(await stream.rest())
        assert (answer, trailer["outcome"]) == ("ab{}c\r\n", "completed")


async def test_empty_answer_is_a_whole_stream(serve: Serve) -> None:
    async with serve(saying()) as server, ask(server) as stream:
        assert phases(await stream.rest())[:2] == ([], "")


# Failures


@pytest.mark.parametrize("path", [messages(), messages(stream=False)])
async def test_a_failure_before_the_first_byte_is_a_500(server: Served, puppet: Puppet, path: str) -> None:
    asking = asyncio.create_task(server.http.post(path, json={"message": "Hello"}))
    part = await puppet.part()
    part.end(AgentError("The model is out to lunch.", code="model_away"))
    error = error_of(await within(asking), 500)
    assert error == {
        "code": "chat_failed",
        "message": "The model is out to lunch.",
        "cause": "model_away",
        "turn_id": part.turn.id,
        "session_id": part.turn.session_id,
        "outcome": "failed",
    }
    # A reader who comes later is told the same.
    again = await server.http.get(f"/v1/turns/{part.turn.id}/events?wire=three_phase_text")
    assert error_of(again, 500) == error
    assert again.headers["x-turn-id"] == part.turn.id


@pytest.mark.parametrize("events", [(SEARCH[0],), (SEARCH[0], "Half an")])
async def test_a_failure_after_the_first_byte_completes_the_stream(
    server: Served, puppet: Puppet, stack: AsyncExitStack, events: tuple
) -> None:
    stream, part = await begun(stack, server, puppet, *events)
    await stream.until(b"\n")
    part.end(AgentError("The model is out to lunch.", code="model_away"))
    lines, answer, trailer = phases(await stream.rest())
    assert len(lines) == 1
    assert answer == ("Half an\n\n" if len(events) == 2 else "") + "The model is out to lunch."
    assert (trailer["tools_used"], trailer["citations"], trailer["outcome"]) == (["chat_failed"], [], "failed")
    assert trailer["error"] == {"code": "model_away", "message": "The model is out to lunch."}


async def test_agent_exception_text_is_not_sent(
    server: Served, puppet: Puppet, stack: AsyncExitStack, errors_in_the_log: list[str]
) -> None:
    errors_in_the_log.append("the agent 'default' failed in turn")
    stream, part = await begun(stack, server, puppet, SEARCH[0])
    part.end(RuntimeError("password=hunter2"))
    assert b"hunter2" not in await stream.rest()
    assert b"RuntimeError" in stream.body


async def test_cancelled_turn_keeps_the_partial_text(server: Served, puppet: Puppet, stack: AsyncExitStack) -> None:
    stream, _ = await begun(stack, server, puppet, ToolCallEvent("c1", "slow", {}), "As far as ")
    await stream.until(b"As far as ")
    await server.http.post(f"/v1/turns/{stream.turn_id}/cancel")
    _, answer, trailer = phases(await stream.rest())
    assert (answer, trailer["outcome"], trailer["tools_used"]) == ("As far as ", "cancelled", ["slow"])


async def test_turn_cancelled_before_its_first_token_is_a_whole_stream(
    server: Served, puppet: Puppet, stack: AsyncExitStack
) -> None:
    asking = asyncio.create_task(stack.enter_async_context(ask(server)))
    part = await puppet.part()
    await server.http.post(f"/v1/turns/{part.turn.id}/cancel")
    lines, answer, trailer = phases(await (await within(asking)).rest())
    assert (lines, answer, trailer["outcome"]) == ([], "", "cancelled")


# The start


async def test_stream_without_frames_begins_after_the_timeout(
    serve: Serve, kind: StoreKind, puppet: Puppet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnwire.server.streams.stream.TEXT_START_SECONDS", 0.05)
    async with serve(store=kind) as server, ask(server) as stream:
        part = await puppet.part()
        assert stream.response.status_code == 200
        # Now that it has begun it can only be completed.
        part.end(AgentError("Too late for a 500."))
        lines, answer, trailer = phases(await stream.rest())
        assert (lines, answer, trailer["outcome"]) == ([], "Too late for a 500.", "failed")


async def test_stream_does_not_begin_before_the_first_frame(
    serve: Serve, puppet: Puppet, stack: AsyncExitStack
) -> None:
    async with serve(heartbeat=0.03) as server:
        asking = asyncio.create_task(stack.enter_async_context(ask(server)))
        part = await puppet.part()
        await until(lambda: server.turnwire.streams.open_count == 1)
        (connection,) = server.turnwire.streams.connections
        await until(lambda: connection.age_ticks > 10)  # Several heartbeats would have been due.
        assert not asking.done()
        part.say(StatusEvent("now"))
        part.end()
        stream = await within(asking)
        assert phases(await stream.rest())[0][0]["text"] == "now"
        assert stream.body.startswith(b"{")


async def test_a_queued_turn_is_waited_for(server: Served, puppet: Puppet, stack: AsyncExitStack) -> None:
    first, part = await begun(stack, server, puppet, "One", message="One")
    waiting = asyncio.create_task(stack.enter_async_context(ask(server, message="Two")))
    await until(lambda: server.turnwire.streams.open_count == 2)
    assert len(puppet.parts) == 1
    part.end()
    await first.rest()
    part = await puppet.part()
    assert part.turn.message == "Two"
    assert not waiting.done()
    part.say("Two it is.")
    part.end()
    assert phases(await (await within(waiting)).rest())[1] == "Two it is."


# Leaving


async def test_a_client_that_leaves_leaves_the_turn_running(
    server: Served, puppet: Puppet, stack: AsyncExitStack
) -> None:
    stream, part = await begun(stack, server, puppet, "The first half, ")
    await stream.until(b"half, ")
    await stack.aclose()
    part.say("and the second.")
    part.end()
    assert (await server.ended(stream.turn_id))["state"]["text"] == "The first half, and the second."


async def test_turn_with_cancel_policy_is_cancelled_when_its_reader_leaves(
    server: Served, puppet: Puppet, stack: AsyncExitStack
) -> None:
    stream, part = await begun(stack, server, puppet, "Half", on_disconnect="cancel")
    await stream.until(b"Half")
    await stack.aclose()
    await within(part.over.wait())
    assert (await server.ended(stream.turn_id))["state"]["reason"] == "disconnected"


@pytest.mark.parametrize("path", [messages(), messages(stream=False)])
async def test_disconnect_before_the_first_frame_counts_as_leaving(server: Served, puppet: Puppet, path: str) -> None:
    body = {"message": "Hello", "on_disconnect": "cancel"}
    asking = asyncio.create_task(server.http.post(path, json=body))
    part = await puppet.part()
    asking.cancel()
    await within(part.over.wait())
    assert (await server.ended(part.turn.id))["state"]["reason"] == "disconnected"
    await until(lambda: server.turnwire.streams.open_count == 0)


async def test_a_stream_that_waits_to_begin_is_counted(serve: Serve, puppet: Puppet) -> None:
    async with serve(max_open_streams=1) as server:
        asking = asyncio.create_task(server.http.post(messages(), json={"message": "Hello"}))
        part = await puppet.part()
        await until(lambda: server.turnwire.streams.open_count == 1)
        error = error_of(await server.http.post(messages("other"), json={"message": "Hello"}), 429)
        assert error["code"] == "too_many_streams"
        part.end()
        assert (await within(asking)).status_code == 200
        assert await server.written() == (1, 1)


async def test_a_stream_that_waits_to_begin_is_broken_when_the_server_shuts_down(serve: Serve, puppet: Puppet) -> None:
    async with serve() as server:
        asking = asyncio.create_task(server.http.post(messages(), json={"message": "Hello"}))
        await puppet.part()
        await until(lambda: server.turnwire.streams.open_count == 1)
        server.turnwire.drain()
        with pytest.raises(Exception, match="disconnected"):
            await within(asking)


# What is asked


async def test_the_json_route_answers_with_the_whole_turn(serve: Serve, kind: StoreKind) -> None:
    async with serve(saying(*LINES), kind) as server:
        response = await server.http.post(messages("mine", stream=False), json={"message": "When?"})
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
        assert (answer["content"], answer["outcome"]) == (ANSWER, "completed")
        assert answer["turn_id"] == response.headers["x-turn-id"]
        assert answer["session_id"] == response.headers["x-session-id"]
        assert (await server.http.get("/v1/sessions/mine")).json()["turn_count"] == 1


@pytest.mark.parametrize(
    ("body", "message", "options"),
    [
        ({"message": "A"}, "A", {}),
        ({"prompt": "B"}, "B", {}),
        ({"message": "A", "prompt": "B"}, "A", {}),
        ({"prompt": "B", "review_enabled": True}, "B", {"review": True}),
        ({"prompt": "B", "review_enabled": False, "answer": "direct"}, "B", {"review": False, "answer": "direct"}),
        ({"message": "A", "review": False, "review_enabled": True}, "A", {"review": False}),
        ({"prompt": "B", "retrieval_mode": "hybrid", "reasoning_effort": "low", "top_k": [3]}, "B", {}),
        ({"prompt": "B", "session_id": "s"}, "B", {}),
    ],
)
async def test_fields_are_taken_by_their_older_names_too(
    serve: Serve, puppet: Puppet, body: dict, message: str, options: dict
) -> None:
    async with serve() as server:
        for path in (messages(), messages(stream=False)):
            asking = asyncio.create_task(server.http.post(path, json=body))
            part = await puppet.part()
            assert (part.turn.message, part.turn.options) == (message, options)
            part.end()
            assert (await within(asking)).status_code == 200
        assert await server.written() == (1, 2)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "message"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": " \x00"}, "prompt"),
        ({"message": "A", "review_enabled": "perhaps"}, "review_enabled"),
        ({"message": "A", "session_id": "other"}, "session_id"),
    ],
)
async def test_invalid_field_is_named(serve: Serve, body: dict, field: str) -> None:
    async with serve() as server:
        for path in (messages(), messages(stream=False)):
            assert error_of(await server.http.post(path, json=body), 422)["message"].startswith(field)
        assert await server.written() == (0, 0)


async def test_other_routes_know_no_older_names(serve: Serve) -> None:
    async with serve() as server:
        error_of(await server.http.post("/chat", json={"prompt": "Hello"}), 422)


@pytest.mark.parametrize("path", [messages(), messages(stream=False)])
async def test_only_a_post_of_json_is_answered(serve: Serve, path: str) -> None:
    async with serve() as server:
        response = await server.http.get(path)
        assert error_of(response, 405)["code"] == "method_not_allowed"
        assert response.headers["allow"] == "POST"
        error_of(await server.http.post(path, content=b"{}", headers={"Content-Type": "text/plain"}), 415)
        error_of(await server.http.post(path, content=b"{", headers={"Content-Type": "application/json"}), 400)
        assert await server.written() == (0, 0)


async def test_a_session_of_ours_must_exist(server: Served) -> None:
    unknown = "01890000-0000-7000-8000-000000000000"
    for path in (messages(unknown), messages(unknown, stream=False)):
        assert error_of(await server.http.post(path, json={"message": "Hello"}), 404)["code"] == "session_not_found"
    error_of(await server.http.post(messages("a b"), json={"message": "Hello"}), 404)
    assert await server.written() == (0, 0)


async def test_the_same_key_joins_the_same_turn(server: Served, puppet: Puppet, stack: AsyncExitStack) -> None:
    key = {"Idempotency-Key": "once"}
    first, part = await begun(stack, server, puppet, "One", headers=key)
    second = await stack.enter_async_context(ask(server, headers=key))
    assert second.turn_id == first.turn_id
    part.end()
    assert await first.rest() == await second.rest()
    response = await server.http.post(messages(stream=False), json={"message": "Hello"}, headers=key)
    assert response.json()["turn_id"] == first.turn_id
    other = await server.http.post(messages(), json={"message": "Other"}, headers=key)
    assert error_of(other, 409)["code"] == "idempotency_conflict"
    assert len(puppet.parts) == 1


async def test_foreign_session_is_not_found(serve: Serve, kind: StoreKind, puppet: Puppet) -> None:
    def authenticate(scope: dict) -> str | None:
        return dict(scope["headers"]).get(b"x-user", b"").decode() or None

    async with serve(store=kind, authenticate=authenticate) as server, AsyncExitStack() as stack:
        anna, bob = (Client(server.url, {"X-User": name}) for name in ("anna", "bob"))
        asking = asyncio.create_task(stack.enter_async_context(ask(anna, session="diary")))
        part = await puppet.part()
        part.say("Dear diary")
        stream = await within(asking)
        for path in (messages(stream.session_id), messages(stream.session_id, stream=False)):
            assert error_of(await bob.http.post(path, json={"message": "Hi"}), 404)["code"] == "session_not_found"
        for query in ("", "&offset=1", "&offset=99999", "&after=1"):
            path = f"/v1/turns/{stream.turn_id}/events?wire=three_phase_text{query}"
            assert error_of(await bob.http.get(path), 404)["code"] == "turn_not_found"
        # A name of their own is their own session.
        theirs = asyncio.create_task(stack.enter_async_context(ask(bob, session="diary")))
        other = await puppet.part()
        other.say("Hello Bob")
        assert (await within(theirs)).session_id != stream.session_id
        async with resume(anna, stream.turn_id) as again:
            assert await again.until(b"diary") == b"\x1dDear diary"
        await stack.aclose()
        await anna.http.aclose()
        await bob.http.aclose()
