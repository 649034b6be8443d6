"""`/api/chat` over real sockets: messages, regeneration, resumption, stopping."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.server.chat_client import URL, answers, asks, body, chunks, kinds, post, posting, read
from tests.server.conftest import Serve, StoreKind
from tests.server.readers import by_user, user
from tests.server.test_auth import holder
from tests.serving import Puppet, Served, error_of, let_time_pass, saying, within
from tests.wires.ui_message import UIMessage
from turnwire import Turn
from turnwire.core.errors import AgentError
from turnwire.core.log.events import (
    CitationEvent,
    RestartEvent,
    SearchEvent,
    StatusEvent,
    ToolCallEvent,
    ToolResultEvent,
)
from turnwire.stores.postgres import PostgresStore

LINES = (
    StatusEvent("reading"),
    SearchEvent("r1", "started", "find", "tides"),
    SearchEvent("r1", "finished", "find", "tides"),
    ToolCallEvent("t1", "clock", {"zone": "é"}),
    ToolResultEvent("t1", "clock", True, "noon"),
    "High water ",
    CitationEvent(1, "tides.md"),
    "is at noon – 正午.",
)


async def recite(turn: Turn) -> AsyncIterator[str]:
    """Says what it was told before."""
    yield " ".join(f"{message.role}:{message.content}" for message in turn.history) or "nothing"


# Asking


async def test_message_is_answered_in_the_session_of_the_chat_id(serve: Serve, kind: StoreKind) -> None:
    async with serve(saying(*LINES), store=kind) as server:
        answer = await post(server, asks("When?"), chat="my-chat")
        message = read(answer)
        turn = await server.snapshot(answer.headers["x-turn-id"])
        session = (await server.http.get("/v1/sessions/my-chat")).json()
    assert (message.id, message.text, message.finish_reason) == (
        turn["turn_id"],
        "High water is at noon – 正午.",
        "stop",
    )
    assert (turn["message"], turn["session_id"]) == ("When?", session["id"])
    assert (answer.headers["x-session-id"], message.metadata["sessionId"]) == (session["id"], session["id"])


async def test_stream_has_the_headers_of_the_protocol_and_ours(serve: Serve) -> None:
    async with serve(saying("Hi")) as server:
        answer = await post(server, asks("Hello"))
        again = await server.http.get(answer.headers["location"])
    headers = answer.headers
    assert headers["content-type"] == "text/event-stream"
    assert headers["cache-control"] == "no-cache, no-transform"
    assert headers["connection"] == "keep-alive"
    assert headers["x-vercel-ai-ui-message-stream"] == "v1"
    assert headers["x-accel-buffering"] == "no"
    assert headers["x-workflow-run-id"] == headers["x-turn-id"]
    # The opening comment is the stream's, not the turn's.
    assert answer.content == b": stream-open\n\n" + again.content


@pytest.mark.parametrize("version", [5, 6, 7])
async def test_query_overrides_the_version_setting(serve: Serve, version: int) -> None:
    async with serve(saying("Hi"), ai_sdk={"version": version}) as server:
        answer = await post(server, asks("Hello"))
        assert answer.headers["location"].endswith(f"?wire=ai_sdk&sdk_version={version}")
        other = await post(server, asks("Hello"), query="?sdk_version=5")
        assert other.headers["location"].endswith("sdk_version=5")
        wrong = error_of(await post(server, asks("Hello"), query="?sdk_version=4"), 422)
        assert wrong["message"].startswith("sdk_version")


async def test_message_options_are_read_beside_the_client_fields(server: Served, puppet: Puppet) -> None:
    async with posting(server, asks("Look", "u1"), review=False, answer="direct", page={"path": "/basket"}):
        turn = (await puppet.part()).turn
    metadata = {"page": {"path": "/basket"}}
    assert turn.metadata == metadata
    assert turn.options == {"review": False, "answer": "direct", "message_id": "u1", "metadata": metadata}


async def test_the_newest_message_may_be_sent_alone(serve: Serve) -> None:
    async with serve(recite) as server:
        await post(server, asks("one"))
        sent = {"id": "c", "message": asks("two")}
        answer = await within(server.http.post(URL, json=sent))
    assert read(answer).text == "user:one assistant:nothing"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"{", 400),
        (b"[]", 422),
        (b"{}", 422),
        (b'{"messages": []}', 422),
        (b'{"messages": [{"role": "robot", "parts": []}]}', 422),
        (b'{"messages": [{"role": "user", "parts": []}]}', 422),
        (b'{"messages": [{"role": "user", "parts": [{"type": "text", "text": " "}]}]}', 422),
        (b'{"messages": [{"role": "user", "parts": [{"type": "file", "url": "data:,"}]}]}', 422),
        (b'{"messages": [{"role": "assistant", "parts": [{"type": "text", "text": "a"}]}]}', 422),
        (b'{"id": "a b", "messages": [{"role": "user", "parts": [{"type": "text", "text": "a"}]}]}', 422),
        (b'{"trigger": "resume", "messages": [{"role": "user", "parts": [{"type": "text", "text": "a"}]}]}', 422),
        (b'{"agent": "nobody", "messages": [{"role": "user", "parts": [{"type": "text", "text": "a"}]}]}', 422),
    ],
)
async def test_unanswerable_message_is_refused_and_starts_nothing(server: Served, sent: bytes, status: int) -> None:
    answer = await server.http.post(URL, content=sent, headers={"Content-Type": "application/json"})
    error_of(answer, status)
    assert await server.written() == (0, 0)


async def test_failure_is_an_error_chunk(server: Served, puppet: Puppet) -> None:
    async with posting(server, asks("Hello")) as stream:
        part = await puppet.part()
        part.say("Half")
        part.end(AgentError("it broke"))
        frames = await stream.rest()
    assert kinds(frames)[-4:] == ["error", "finish-step", "finish", "[DONE]"]
    assert UIMessage().read(stream.raw).error == "it broke"


async def test_an_idle_stream_is_kept_alive(serve: Serve, puppet: Puppet) -> None:
    async with serve(heartbeat=30) as server, posting(server, asks("Hello")) as stream:
        part = await puppet.part()
        blocks = [await within(stream.next_block()) for _ in range(3)]
        let_time_pass(server.turnwire, 30)
        blocks.append(await within(stream.next_block()))
        part.end()
        await stream.rest()
    assert [block.comment for block in blocks if block] == ["stream-open", None, None, "keep-alive"]
    assert UIMessage().read(stream.raw).finish_reason == "stop"


# What came before


async def test_chat_continues_the_messages_that_the_client_shows(serve: Serve, kind: StoreKind) -> None:
    async with serve(recite, store=kind) as server:
        question, follow_up = asks("one"), asks("two")
        first = read(await post(server, question))
        second = read(await post(server, question, answers(first.id or ""), follow_up))
        assert second.text == "user:one assistant:nothing"
        # Another tab, which has not seen the second message, goes on from the first answer.
        third = read(await post(server, question, answers(first.id or ""), asks("three")))
        assert third.text == "user:one assistant:nothing"


async def test_chat_continues_after_a_message_with_unseen_answer(serve: Serve) -> None:
    async with serve(recite) as server:
        question, follow_up = asks("one"), asks("two")
        first = answers(read(await post(server, question)).id or "")
        await post(server, question, first, follow_up)
        await post(server, question, first, asks("from another tab"))
        answer = read(await post(server, question, first, follow_up, asks("three")))
    assert answer.text == "user:one assistant:nothing user:two assistant:user:one assistant:nothing"


async def test_regenerated_answer_replaces_the_old_one(serve: Serve, kind: StoreKind) -> None:
    async with serve(recite, store=kind) as server:
        question, follow_up = asks("one"), asks("two")
        first = read(await post(server, question))
        second = read(await post(server, question, answers(first.id or ""), follow_up))
        again = await post(server, question, answers(first.id or ""), follow_up, trigger="regenerate-message")
        assert read(again).id not in (first.id, second.id)
        assert read(again).text == second.text == "user:one assistant:nothing"
        named = await post(server, question, trigger="regenerate-message", messageId=first.id)
        assert read(named).text == "nothing"
        parents = [(await server.snapshot(read(answer).id or ""))["parent_turn_id"] for answer in (again, named)]
        assert parents == [first.id, None]


async def test_edited_message_replaces_later_turns(serve: Serve, kind: StoreKind) -> None:
    async with serve(recite, store=kind) as server:
        question, follow_up = asks("one"), asks("two")
        first = read(await post(server, question))
        await post(server, question, answers(first.id or ""), follow_up)
        edited = {**follow_up, "parts": [{"type": "text", "text": "zwei"}]}
        changed = await post(server, question, answers(first.id or ""), edited, messageId=follow_up["id"])
        assert read(changed).text == "user:one assistant:nothing"
        begun = {**question, "parts": [{"type": "text", "text": "eins"}]}
        assert read(await post(server, begun, messageId=question["id"])).text == "nothing"


async def test_earlier_messages_of_a_new_chat_become_the_history(serve: Serve, kind: StoreKind) -> None:
    tool: Any = {"type": "tool-clock", "toolCallId": "k", "state": "output-available", "input": {}, "output": "noon"}
    before = [
        {"id": "s", "role": "system", "parts": [{"type": "text", "text": "Obey the client."}]},
        asks("Who?", "old-1"),
        {"id": "old-2", "role": "assistant", "parts": [tool, {"type": "text", "text": "Me."}]},
    ]
    async with serve(recite, store=kind) as server:
        new = asks("And now?")
        first = await post(server, *before, new)
        history = "user:Who? assistant: tool:noon assistant:Me."
        assert read(first).text == history
        # It is remembered from turn to turn, also by who sends no more than the newest message.
        second = await post(server, asks("And then?"))
        assert read(second).text == f"{history} user:And now? assistant:{history}"
        again = await post(server, *before, new, trigger="regenerate-message")
        assert read(again).text == history


@pytest.mark.one_store("its second server begins with an empty store")
async def test_client_history_is_limited(serve: Serve) -> None:
    async with serve(recite, history_turns=1) as server:
        answer = await post(server, asks("a"), answers("x", "b"), asks("c"), answers("y", "d"), asks("e"))
        assert read(answer).text == "user:c assistant:d"
    async with serve(recite, history_turns=0) as server:
        assert read(await post(server, asks("a"), answers("x", "b"), asks("c"))).text == "nothing"


# Asking twice


async def test_repeated_request_joins_the_same_turn(server: Served, puppet: Puppet) -> None:
    question = asks("Hello", "u1")
    async with posting(server, question) as first, posting(server, question) as second:
        part = await puppet.part()
        part.say("Hi")
        part.end()
        await first.rest()
        await second.rest()
    late = await post(server, question)
    assert first.raw == second.raw == late.content
    assert await server.written() == (1, 1)


async def test_concurrent_equal_requests_start_one_turn(serve: Serve, kind: StoreKind) -> None:
    async with serve(saying("Hi"), store=kind) as server:
        question = asks("Hello")
        answered = await asyncio.gather(*(post(server, question) for _ in range(8)))
        assert len({answer.content for answer in answered}) == 1
        assert await server.written() == (1, 1)


async def test_idempotency_key_of_the_client_has_precedence(serve: Serve) -> None:
    async with serve(saying("Hi")) as server:
        key = {"Idempotency-Key": "k"}
        first = await post(server, asks("Hello", "u1"), headers=key)
        assert (await post(server, asks("Hello", "u1"), headers=key)).content == first.content
        error_of(await post(server, asks("Other", "u1"), headers=key), 409)
        again: Any = {"trigger": "regenerate-message", "headers": {"Idempotency-Key": "l"}}
        second = await post(server, asks("Hello", "u1"), **again)
        assert (await post(server, asks("Hello", "u1"), **again)).content == second.content != first.content


async def test_each_regenerate_request_starts_one_turn(server: Served, puppet: Puppet) -> None:
    question = asks("Hello", "u1")
    async with posting(server, question) as stream:
        (await puppet.part()).end()
        await stream.rest()
    again: Any = {"trigger": "regenerate-message"}
    async with posting(server, question, **again) as regenerated, posting(server, question, **again) as same:
        assert regenerated.turn_id == same.turn_id != stream.turn_id
        part = await puppet.part()
        assert part.turn.options["regenerates"] == stream.turn_id
        part.end()
        await regenerated.rest()
        await same.rest()
    named: Any = {**again, "messageId": regenerated.turn_id}
    async with posting(server, question, **named) as other:
        (await puppet.part()).end()
        await other.rest()
    assert other.turn_id != regenerated.turn_id
    # With the answer's id it is known for a repeated request also when it has ended.
    assert (await post(server, question, **named)).headers["x-turn-id"] == other.turn_id


async def test_regenerate_interrupts_the_running_answer(server: Served, puppet: Puppet) -> None:
    question = asks("Hello")
    async with posting(server, question) as old:
        await puppet.part()
        async with posting(server, question, trigger="regenerate-message") as new:
            (await puppet.part()).end()
            await new.rest()
        await old.rest()
    assert UIMessage().read(old.raw).aborted
    assert UIMessage().read(new.raw).finish_reason == "stop"


# Coming back


async def test_running_turn_is_replayed_from_its_start(server: Served, puppet: Puppet) -> None:
    async with posting(server, asks("Hello")) as first:
        part = await puppet.part()
        part.say(*LINES)
        await first.until("source-document")
        async with server.stream("GET", f"{URL}/c/stream") as second:
            part.end()
            await first.rest()
            await second.rest()
    assert first.raw == second.raw
    assert UIMessage().read(second.raw).id == second.turn_id == first.turn_id


async def test_resume_of_an_unknown_chat_is_204(server: Served) -> None:
    assert (await server.http.get(f"{URL}/never-heard-of/stream")).status_code == 204


async def test_resume_after_the_end_replays_the_newest_turn(server: Served, puppet: Puppet) -> None:
    for message in ("one", "two"):
        async with posting(server, asks(message)) as stream:
            (await puppet.part()).end()
            await stream.rest()
    ended = await server.http.get(f"{URL}/c/stream")
    assert (ended.status_code, ended.content) == (200, stream.raw)
    assert ended.headers["x-turn-id"] == stream.turn_id


async def test_resume_after_the_log_has_expired_is_204(server: Served, puppet: Puppet) -> None:
    async with posting(server, asks("Hello")) as stream:
        (await puppet.part()).end()
        await stream.rest()
    await server.turnwire.store.maintain(expire_before=2**60)
    ended = await server.http.get(f"{URL}/c/stream")
    assert (ended.status_code, ended.content) == (204, b"")
    error_of(await server.http.get(f"{URL}/a b/stream"), 404)


async def test_resume_returns_the_newest_turn_of_several(server: Served, puppet: Puppet) -> None:
    async with posting(server, asks("one")) as running, posting(server, asks("two")) as queued:
        part = await puppet.part()
        async with server.stream("GET", f"{URL}/c/stream") as stream:
            assert stream.turn_id == queued.turn_id != running.turn_id
        part.end()
        (await puppet.part()).end()
        await queued.rest()


@pytest.mark.parametrize("query", ["", "?stream=text"])
async def test_restart_breaks_the_connection_and_replay_skips_void_events(
    server: Served, puppet: Puppet, query: str
) -> None:
    async with posting(server, asks("Hello"), query=query) as stream:
        part = await puppet.part()
        part.say("Void ")
        await server.reached(stream.turn_id, 3)
        part.say(RestartEvent(2, "worker_lost"))
        with pytest.raises(httpx.TransportError):
            await stream.rest()
    async with server.stream("GET", f"{URL}/c/stream{query}") as again:
        part.say("Good")
        part.end()
        await again.rest()
    assert (again.raw.decode() if query else UIMessage().read(again.raw).text) == "Good"


async def test_start_index_in_void_chunks_is_refused(server: Served, puppet: Puppet) -> None:
    async with posting(server, asks("Hello")) as stream:
        part = await puppet.part()
        part.say("Kept. ")
        part.say(StatusEvent("waiting"), "Void ")
        await server.reached(stream.turn_id, 5)
        part.say(RestartEvent(3, "worker_lost"))
        with pytest.raises(httpx.TransportError):
            await stream.rest()
        part.say("Good", "ness")
        part.end()
        await server.ended(stream.turn_id)
    run, kept = f"{URL}/{stream.turn_id}/stream", 4
    assert [chunk for chunk in chunks(stream.raw) if b"Kept" in chunk] == chunks(stream.raw)[kept - 1 : kept]
    assert error_of(await server.http.get(run, params={"startIndex": kept + 1}), 416)["size"] == kept
    rest = await server.http.get(run, params={"startIndex": kept})
    shared = b"".join(chunk + b"\n\n" for chunk in chunks(stream.raw)[:kept])
    assert UIMessage().read(shared + rest.content).text == "Kept. Goodness"
    # The end of the stream has nothing in common with what the client had.
    assert (await server.http.get(run, params={"startIndex": -2})).status_code == 200


# Stopping


async def test_running_turn_behind_many_ended_ones_is_found_and_stopped(server: Served, puppet: Puppet) -> None:
    async with posting(server, asks("running")) as running:
        await puppet.part()
        for number in range(12):
            async with posting(server, asks(f"queued {number}")) as queued:
                assert (await server.http.post(f"/v1/turns/{queued.turn_id}/cancel")).status_code == 200
        async with server.stream("GET", f"{URL}/c/stream") as resumed:
            assert resumed.turn_id == running.turn_id
        stopped = await within(server.http.post(f"{URL}/c/stop"))
        assert stopped.json() == {"stopped": [running.turn_id]}


async def test_stop_of_an_ended_run_reports_none(serve: Serve) -> None:
    async with serve(saying("Hi")) as server:
        answer = await post(server, asks("Hello"))
        stopped = await server.http.post(f"{URL}/{answer.headers['x-workflow-run-id']}/stop")
    assert (stopped.status_code, stopped.json()) == (200, {"stopped": []})


async def test_stop_cancels_all_unfinished_turns_of_the_chat(server: Served, puppet: Puppet) -> None:
    async with posting(server, asks("one")) as running, posting(server, asks("two")) as queued:
        part = await puppet.part()
        part.say("Half ")
        await running.until("text-delta")
        stopped = await within(server.http.post(f"{URL}/c/stop", json={"activeStreamId": "x"}))
        assert stopped.json() == {"stopped": [running.turn_id, queued.turn_id]}
        assert part.over.is_set()
        await running.rest()
        await queued.rest()
    message = UIMessage().read(running.raw)
    assert (message.aborted, message.text, message.finish_reason) == (True, "Half ", "other")
    assert UIMessage().read(queued.raw).aborted
    assert len(puppet.parts) == 1
    again = await server.http.post(f"{URL}/c/stop")
    assert (again.status_code, again.json()) == (200, {"stopped": []})


async def test_a_run_can_be_stopped_by_its_id(server: Served, puppet: Puppet) -> None:
    async with posting(server, asks("one"), chat=None) as stream:
        await puppet.part()
        stopped = await server.http.post(f"{URL}/{stream.headers['x-workflow-run-id']}/stop")
        assert stopped.json() == {"stopped": [stream.turn_id]}
        await stream.rest()


async def test_disconnect_does_not_cancel_the_turn(server: Served, puppet: Puppet) -> None:
    async with posting(server, asks("Hello")) as stream:
        part = await puppet.part()
        await stream.until("start-step")
    part.say("Hi")
    part.end()
    assert (await server.ended(stream.turn_id))["outcome"] == "completed"


async def test_disconnect_cancels_the_turn_with_that_policy(server: Served, puppet: Puppet) -> None:
    async with posting(server, asks("Hello"), on_disconnect="cancel") as stream:
        await puppet.part()
        await stream.until("start-step")
    assert (await server.ended(stream.turn_id))["outcome"] == "cancelled"


# Whose it is


async def test_chat_of_another_principal_is_not_found(serve: Serve, puppet: Puppet) -> None:
    async with (
        serve(authenticate=by_user) as server,
        user(server, "anna") as anna,
        user(server, "bob") as bob,
        posting(anna, asks("Hello", "u1")) as stream,
    ):
        part = await puppet.part()
        assert (await bob.http.get(f"{URL}/c/stream")).status_code == 204
        error_of(await bob.http.get(f"{URL}/{stream.turn_id}/stream"), 404)
        error_of(await bob.http.get(f"{URL}/{stream.turn_id}/stream", params={"startIndex": 0}), 404)
        error_of(await bob.http.post(f"{URL}/c/stop"), 404)
        error_of(await bob.http.post(f"{URL}/{stream.turn_id}/stop"), 404)
        async with posting(bob, asks("Hello", "u1")) as other:
            assert other.turn_id != stream.turn_id
            assert (await puppet.part()).turn.history == ()
        part.end()
        await stream.rest()


async def test_key_scopes_limit_the_routes(serve: Serve) -> None:
    async with serve(saying("Hi")) as server, holder(server, "anna", ("read",)) as reader:
        error_of(await post(reader, asks("Hello")), 403)
        error_of(await reader.http.post(f"{URL}/c/stop"), 403)
        assert (await reader.http.get(f"{URL}/c/stream")).status_code == 204
        error_of(await reader.http.get(f"{URL}/c/messages"), 404)
    async with serve(saying("Hi")) as server, holder(server, "anna", ("write",)) as writer:
        error_of(await writer.http.get(f"{URL}/c/messages"), 403)


# Bare text


async def test_answer_is_streamed_as_bare_text(server: Served, puppet: Puppet) -> None:
    question: Any = {"json": body(asks("Hello", "u1"))}
    async with server.http.stream("POST", f"{URL}?stream=text", **question) as stream:
        part = await puppet.part()
        part.say(*LINES)
        part.end()
        text = await within(stream.aread())
    assert stream.headers["content-type"] == "text/plain; charset=utf-8"
    assert stream.headers["x-turn-id"]
    assert text.decode() == "High water is at noon – 正午."
    error_of(await server.http.post(f"{URL}?stream=html", **question), 422)


async def test_bare_text_is_resumed_from_its_start(server: Served, puppet: Puppet) -> None:
    async with posting(server, asks("Hello"), query="?stream=text"):
        part = await puppet.part()
        part.say("One ")
    async with server.http.stream("GET", f"{URL}/c/stream?stream=text") as stream:
        part.say("two")
        part.end()
        assert await within(stream.aread()) == b"One two"


async def test_failure_breaks_the_connection_of_bare_text(server: Served, puppet: Puppet) -> None:
    async with server.http.stream("POST", f"{URL}?stream=text", json=body(asks("Hello"))) as stream:
        part = await puppet.part()
        part.say("Half")
        received = stream.aiter_raw()
        assert await within(anext(received)) == b"Half"
        part.end(AgentError("it broke"))
        with pytest.raises(httpx.RemoteProtocolError):
            await within(anext(received))


async def test_a_cancelled_answer_is_the_text_so_far(server: Served, puppet: Puppet) -> None:
    async with server.http.stream("POST", f"{URL}?stream=text", json=body(asks("Hello"))) as stream:
        (await puppet.part()).say("Half")
        received = stream.aiter_raw()
        await within(anext(received))
        await server.http.post(f"{URL}/c/stop")
        assert [chunk async for chunk in received] == []


# By chunk


async def test_run_is_resumed_from_every_chunk(server: Served, puppet: Puppet) -> None:
    async with posting(server, asks("Hello"), chat=None) as stream:
        part = await puppet.part()
        part.say(*LINES)
        part.end()
        await stream.rest()
    whole, run = chunks(stream.raw), f"{URL}/{stream.headers['x-workflow-run-id']}/stream"
    for index in range(len(whole) + 1):
        rest = await server.http.get(run, params={"startIndex": index})
        assert chunks(rest.content) == whole[index:]
        assert rest.content.endswith(b"data: [DONE]\n\n")
        assert rest.headers["x-workflow-run-id"] == stream.headers["x-workflow-run-id"]
    tail = await server.http.get(run, params={"startIndex": -3})
    assert chunks(tail.content) == whole[-3:]
    assert tail.headers["x-workflow-stream-tail-index"] == str(len(whole) - 1)
    assert chunks((await server.http.get(run, params={"startIndex": -999})).content) == whole
    assert error_of(await server.http.get(run, params={"startIndex": len(whole) + 1}), 416)["size"] == len(whole)
    for wrong in ("", "x", "1.5", "--1", "٣"):
        error_of(await server.http.get(run, params={"startIndex": wrong}), 422)


async def test_running_run_is_resumed_live(server: Served, puppet: Puppet) -> None:
    async with posting(server, asks("Hello"), chat=None) as stream:
        part = await puppet.part()
        part.say("One ")
        seen = await stream.until("text-delta")
        run = f"{URL}/{stream.turn_id}/stream"
        async with server.stream("GET", run, params={"startIndex": len(seen)}) as rest:
            part.say("two")
            part.end()
            await rest.rest()
            await stream.rest()
    assert chunks(stream.raw)[len(seen) :] == chunks(rest.raw)


async def test_chat_without_id_is_found_by_its_answers(serve: Serve) -> None:
    async with serve(recite) as server:
        question = asks("one")
        first = await post(server, question, chat=None)
        second = await post(server, question, answers(read(first).id or ""), asks("two"), chat=None)
        assert read(second).text == "user:one assistant:nothing"
        assert second.headers["x-session-id"] == first.headers["x-session-id"]


PLAIN = {"Content-Type": "text/plain;charset=UTF-8"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Origin": "http://{host}"}, 200),
        ({"Origin": "https://ours.example"}, 200),
        ({"Origin": "https://evil.example"}, 415),
        ({"Origin": "null"}, 415),
        ({"Origin": "https://ours.example.evil.example"}, 415),
        ({"Sec-Fetch-Site": "cross-site"}, 415),
        ({"Sec-Fetch-Site": "same-site"}, 415),
    ],
)
async def test_plain_text_body_is_accepted_from_allowed_origins(
    serve: Serve, headers: dict[str, str], status: int
) -> None:
    """A page of anybody's can send plain text with the cookies of whoever is logged in to a host application."""
    settings: Any = {"authenticate": lambda scope: "anna", "allowed_origins": ["https://ours.example"]}
    async with serve(saying("Hi"), **settings) as server:
        host = server.url.partition("://")[2]
        sent = {**PLAIN, **{name: value.format(host=host) for name, value in headers.items()}}
        message = httpx.Request("POST", server.url, json=body(asks("Hello"), chat=None)).content
        answer = await server.http.post(URL, content=message, headers=sent)
        assert answer.status_code == status
        assert await server.written("anna") == ((1, 1) if status == 200 else (0, 0))
        if answer.headers.get("access-control-allow-origin"):
            assert "X-Workflow-Run-Id" in answer.headers["access-control-expose-headers"]


async def test_foreign_origin_is_refused_without_key(serve: Serve) -> None:
    async with serve(saying("Hi")) as server:
        for kind in ("text/plain", "application/json"):
            sent = {"Content-Type": kind, "Origin": "https://evil.example"}
            message = httpx.Request("POST", server.url, json=body(asks("Hello"))).content
            error_of(await server.http.post(URL, content=message, headers=sent), 403)
        error_of(await server.http.post(URL, content=message, headers={"Content-Type": "text/html"}), 415)
        assert await server.written() == (0, 0)


async def test_message_interrupts_a_turn_that_nobody_reads(server: Served, puppet: Puppet) -> None:
    if isinstance(server.turnwire.store, PostgresStore):
        # A server that does not hear of the readers of other servers yet would let the message wait.
        hints = server.turnwire.store._notifier._hints
        assert hints is not None
        await within(hints.is_listening.wait())
    async with posting(server, asks("one")) as left:
        (await puppet.part()).say("Unwanted")
        await left.until("text-delta")
    async with posting(server, asks("two", "m2")) as stream:
        (await puppet.part()).end()
        await stream.rest()
    assert (await server.ended(left.turn_id))["outcome"] == "cancelled"


async def test_message_waits_for_a_turn_that_somebody_reads(server: Served, puppet: Puppet) -> None:
    async with posting(server, asks("one")) as left:
        part = await puppet.part()
        part.say("Wanted")
        await left.until("text-delta")
        async with server.events(left.turn_id), posting(server, asks("two", "m2")) as stream:
            part.end()
            (await puppet.part()).end()
            await stream.rest()
    assert (await server.ended(left.turn_id))["outcome"] == "completed"
