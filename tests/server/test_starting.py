"""Starting a turn: once per idempotency key, one at a time per session, and the policies of a busy session."""

import asyncio
from typing import Any

import pytest

from tests.server.conftest import Serve, StoreKind
from tests.serving import Puppet, Served, error_of


async def post(server: Served, path: str, body: dict, key: str | None = None):
    return await server.http.post(path, json=body, headers={} if key is None else {"Idempotency-Key": key})


async def new_session(server: Served, **body: object) -> str:
    return (await server.http.post("/v1/sessions", json=body)).json()["id"]


# Starting twice starts once


async def test_the_same_key_again_joins_the_running_turn(server: Served, puppet: Puppet) -> None:
    key = {"Idempotency-Key": "key-1"}
    async with server.ask("Hello", headers=key) as first:
        part = await puppet.part()
        part.say("One ")
        await first.until("token")
        async with server.ask("Hello", headers=key) as second:
            assert second.turn_id == first.turn_id
            part.say("answer.")
            part.end()
            whole = await second.rest()
        await first.rest()
        assert whole == first.seen
    assert len(puppet.parts) == 1


async def test_the_same_key_after_the_end_gives_the_finished_turn(server: Served, puppet: Puppet) -> None:
    key = {"Idempotency-Key": "key-1"}
    async with server.ask("Hello", headers=key) as first:
        (await puppet.part()).end()
        frames = await first.rest()
    async with server.ask("Hello", headers=key) as second:
        assert await second.rest() == frames
    answer = await post(server, "/chat", {"message": "Hello"}, "key-1")
    assert answer.json()["turn_id"] == first.turn_id
    assert len(puppet.parts) == 1


async def test_client_that_posts_again_with_last_event_id_continues(server: Served, puppet: Puppet) -> None:
    key = {"Idempotency-Key": "key-1"}
    async with server.ask("Hello", headers=key) as first:
        part = await puppet.part()
        part.say("a", "b")
        await first.until("token")
        last_id = first.seen[-1].id or ""
    part.end()
    async with server.ask("Hello", headers={**key, "Last-Event-ID": last_id}) as again:
        await again.rest()
    assert first.seen + again.seen == await server.whole(first.turn_id)


async def test_a_turn_id_of_the_clients_own_starts_one_turn(server: Served, puppet: Puppet) -> None:
    async with server.ask("Hello", turn_id="run-7") as first:
        part = await puppet.part()
        async with server.ask("Hello", turn_id="run-7") as second:
            assert second.turn_id == first.turn_id != "run-7"
            part.end()
            assert await second.rest() == await first.rest()
    assert (await server.snapshot("run-7"))["turn_id"] == first.turn_id
    assert (await server.snapshot("run-7"))["external_id"] == "run-7"


async def test_many_at_once_with_one_key_start_one_turn(server: Served, puppet: Puppet) -> None:
    session_id = await new_session(server)
    path = f"/v1/sessions/{session_id}/turns"
    answers = await asyncio.gather(*(post(server, path, {"message": "Hello"}, "all-of-us") for _ in range(20)))
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["turn_id"] for answer in answers}) == 1
    assert sorted(answer.json()["created"] for answer in answers) == [False] * 19 + [True]
    (await puppet.part()).end()
    assert len(puppet.parts) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"message": "Something else"},
        {"message": "Hello", "session_id": "elsewhere"},
        {"message": "Hello", "on_busy": "reject"},
        {"message": "Hello", "on_disconnect": "cancel"},
        {"message": "Hello", "review": True},
        {"message": "Hello", "agent": "default"},
    ],
)
async def test_the_same_key_with_another_body_is_a_conflict(server: Served, puppet: Puppet, other: dict) -> None:
    async with server.ask("Hello", headers={"Idempotency-Key": "key-1"}):
        await puppet.part()
        for path in ("/chat/stream", "/chat"):
            assert error_of(await post(server, path, other, "key-1"), 409)["code"] == "idempotency_conflict"
    assert len(puppet.parts) == 1


async def test_the_same_turn_id_with_another_body_is_a_conflict(server: Served, puppet: Puppet) -> None:
    async with server.ask("Hello", turn_id="run-7"):
        await puppet.part()
        response = await post(server, "/chat/stream", {"message": "Bye", "turn_id": "run-7"})
        assert error_of(response, 409)["code"] == "idempotency_conflict"


async def test_empty_idempotency_key_is_ignored(server: Served, puppet: Puppet) -> None:
    session_id = await new_session(server)
    path = f"/v1/sessions/{session_id}/turns"
    answers = [await post(server, path, {"message": message}, "") for message in ("One", "Two")]
    answers.append(await post(server, path, {"message": "Three"}))
    assert [answer.status_code for answer in answers] == [202, 202, 202]
    assert len({answer.json()["turn_id"] for answer in answers}) == 3


@pytest.mark.parametrize("path", ["/chat", "/chat/stream", "/v1/sessions/mine/turns"])
async def test_a_key_that_is_too_long_is_refused(server: Served, path: str) -> None:
    await new_session(server, id="mine")
    written = await server.written()
    error = error_of(await post(server, path, {"message": "Hello"}, "k" * 256), 422)
    assert error["code"] == "invalid_request"
    assert "idempotency" in error["message"].lower()
    assert await server.written() == written


# Sessions


async def test_session_with_a_client_id_is_created_by_its_first_message(server: Served, puppet: Puppet) -> None:
    async with server.ask("Hello", session_id="notes/2024".replace("/", ":")) as stream:
        (await puppet.part()).end()
        await stream.rest()
    session = (await server.http.get("/v1/sessions/notes:2024")).json()
    assert (session["id"], session["external_id"], session["turn_count"]) == (stream.session_id, "notes:2024", 1)
    assert session["title"] == "Hello"


async def test_unknown_own_session_id_is_not_found(server: Served) -> None:
    unknown = "01890000-0000-7000-8000-000000000000"
    for path in ("/chat", "/chat/stream"):
        response = await post(server, path, {"message": "Hello", "session_id": unknown})
        assert error_of(response, 404)["code"] == "session_not_found"
    assert error_of(await post(server, f"/v1/sessions/{unknown}/turns", {"message": "Hello"}), 404)
    assert await server.written() == (0, 0)


async def test_unknown_agent_is_refused_before_anything_is_written(server: Served) -> None:
    for path in ("/chat", "/chat/stream"):
        response = await post(server, path, {"message": "Hello", "agent": "nobody", "session_id": "new"})
        assert error_of(response, 422)["code"] == "agent_not_found"
    assert await server.written() == (0, 0)


async def test_a_turn_started_in_a_session_says_where_to_follow_it(server: Served, puppet: Puppet) -> None:
    session_id = await new_session(server)
    response = await post(server, f"/v1/sessions/{session_id}/turns", {"message": "Hello"})
    assert response.status_code == 202
    turn = response.json()
    assert (turn["session_id"], turn["message"], turn["created"]) == (session_id, "Hello", True)
    (await puppet.part()).end()
    async with server.stream("GET", response.headers["location"]) as stream:
        assert (await stream.rest())[-1].event["turn_id"] == turn["turn_id"]


# A busy session


async def test_turns_of_one_session_run_one_after_the_other(server: Served, puppet: Puppet) -> None:
    async with server.ask("One", session_id="s") as first, server.ask("Two", session_id="s") as second:
        part = await puppet.part()
        assert part.turn.message == "One"
        # It exists from the moment it was accepted, also while it waits.
        assert [frame.type for frame in await second.until("message")] == ["session", "message"]
        assert (await server.snapshot(second.turn_id))["phase"] == "queued"
        assert len(puppet.parts) == 1
        part.end()
        await first.rest()
        part = await puppet.part()
        assert part.turn.message == "Two"
        part.end()
        assert (await second.rest())[-1].event["outcome"] == "completed"


async def test_turns_of_different_sessions_run_at_once(server: Served, puppet: Puppet) -> None:
    async with server.ask("One"), server.ask("Two"):
        assert {(await puppet.part()).turn.message for _ in range(2)} == {"One", "Two"}


async def test_busy_session_rejects_a_turn_with_that_policy(server: Served, puppet: Puppet) -> None:
    async with server.ask("One", session_id="s") as first:
        part = await puppet.part()
        response = await post(server, "/chat/stream", {"message": "Two", "session_id": "s", "on_busy": "reject"})
        assert error_of(response, 409)["code"] == "session_busy"
        assert await server.written() == (1, 1)
        part.end()
        await first.rest()
    async with server.ask("Two", session_id="s", on_busy="reject") as second:
        (await puppet.part()).end()
        assert (await second.rest())[-1].event["outcome"] == "completed"


async def test_message_with_interrupt_cancels_the_running_turn(server: Served, puppet: Puppet) -> None:
    async with server.ask("One", session_id="s") as first, server.ask("Waiting", session_id="s") as waiting:
        part = await puppet.part()
        part.say("Half an")
        await first.until("token")
        async with server.ask("Two", session_id="s", on_busy="interrupt") as second:
            assert (await first.rest())[-1].event["outcome"] == "cancelled"
            assert (await waiting.rest())[-1].event["reason"] == "superseded"
            assert first.seen[-1].event["reason"] == "superseded"
            newest = await puppet.part()
            assert newest.turn.message == "Two"
            # The stopped answer is in the history, as far as it came.
            assert "Half an" in newest.turn.history[1].content
            newest.end()
            assert (await second.rest())[-1].event["outcome"] == "completed"
    assert len(puppet.parts) == 2


async def test_a_session_whose_queue_is_full_is_busy(serve: Serve, kind: StoreKind, puppet: Puppet) -> None:
    async with serve(store=kind, max_queued_turns=2) as server:
        session_id = await new_session(server)
        path = f"/v1/sessions/{session_id}/turns"
        for message in ("running", "waiting", "waiting too"):
            assert (await post(server, path, {"message": message})).status_code == 202
        error = error_of(await post(server, path, {"message": "one too many"}), 409)
        assert error["code"] == "session_busy"
        assert await server.written() == (1, 3)
        (await puppet.part()).end()
        (await puppet.part()).end()
        (await puppet.part()).end()


DATA = {"page": "/basket", "items": [1, 2]}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/chat/stream", {"message": "Hi", "metadata": DATA}),
        ("/chat/stream", {"message": "Hi", "metadata": {"page": "/basket"}, "active_file": "notes/a.md"}),
        ("/api/chat", {"messages": [{"role": "user", "parts": [{"type": "text", "text": "Hi"}]}], **DATA}),
        ("/api/chat", {"messages": [{"role": "user", "parts": [{"type": "text", "text": "Hi"}], "metadata": DATA}]}),
        ("/ag-ui", {"messages": [{"role": "user", "content": "Hi"}], "forwardedProps": {"review": True, **DATA}}),
        ("/v1/responses", {"input": "Hi", "stream": True, "metadata": {"page": "/basket"}}),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "Hi"}], "stream": True, "metadata": {"page": "/basket"}},
        ),
    ],
)
async def test_data_of_the_application_reaches_the_agent_and_the_log(
    serve: Serve, puppet: Puppet, path: str, body: dict[str, Any]
) -> None:
    async with serve() as server, server.stream("POST", path, json=body):
        part = await puppet.part()
        assert part.turn.metadata["page"] == "/basket"
        assert part.turn.metadata.keys() <= {"page", "items", "active_file"}
        part.end()
        log = await server.whole(part.turn.id)
        assert log[1].event["metadata"] == part.turn.metadata


async def test_too_much_data_of_the_application_is_a_422(serve: Serve) -> None:
    async with serve() as server:
        for name in ("metadata", "active_file"):
            sent = {"message": "Hi", name: {"text": "x" * 17_000}}
            assert error_of(await server.http.post("/chat", json=sent), 422)["message"].startswith(f"{name}: ")
        assert await server.written() == (0, 0)
