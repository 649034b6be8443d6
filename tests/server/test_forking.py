"""Forks over HTTP: a turn that shares another one's log, with the checks of every start."""

from typing import Any

from tests.server.conftest import Serve, StoreKind
from tests.server.readers import by_user, user
from tests.serving import Client, Puppet, error_of
from turnwire.core.log.events import CitationEvent, ToolCallEvent, ToolResultEvent


async def answered(server: Client, puppet: Puppet, message: str = "Tea?", **body: Any) -> str:
    async with server.ask(message, **body) as stream:
        part = await puppet.part()
        part.say("Look: ", ToolCallEvent("c1", "find", {}), ToolResultEvent("c1", "find", True, "tin"))
        part.say(CitationEvent(1, "doc"), "green [1].")
        part.end()
        await stream.rest()
        return stream.turn_id


async def fork(server: Client, turn_id: str, **request: Any) -> Any:
    headers = request.pop("headers", {})
    return await server.http.post(f"/v1/turns/{turn_id}/fork", json=request, headers=headers)


async def test_fork_with_another_message_shows_the_shared_log_and_continues(
    serve: Serve, puppet: Puppet, kind: StoreKind
) -> None:
    async with serve(agent=puppet, store=kind) as server:
        turn_id = await answered(server, puppet, session_id="s")
        response = await fork(server, turn_id, position=6, message="Coffee?")
        assert response.status_code == 201
        body = response.json()
        assert (body["message"], body["parent_turn_id"]) == ("Coffee?", None)
        assert (body["state"]["forked_from"], body["state"]["forked_at"]) == (turn_id, 6)
        part = await puppet.part()
        assert part.turn.message == "Coffee?"
        assert [(message.role, message.content) for message in part.turn.history] == [
            ("user", "Tea?"),
            ("assistant", "Look: "),
            ("tool", "tin"),
        ]
        part.say("Black.")
        part.end()
        source, frames = await server.whole(turn_id), await server.whole(body["turn_id"])
        assert [frame.event for frame in frames[1:6]] == [frame.event for frame in source[1:6]]
        assert [frame.event for frame in frames[6:8]] == [
            {"type": "token", "content": "\n\n"},
            {"type": "message", "content": "Coffee?", "by": "local", "channel": "http"},
        ]
        assert frames[-2].event["content"] == "Look: \n\nBlack."
        session = (await server.http.get("/v1/sessions/s")).json()
        assert [turn["turn_id"] for turn in session["turns"]] == [turn_id, body["turn_id"]]


async def test_fork_without_a_message_sends_the_same_one_to_an_agent_without_a_journal(
    serve: Serve, puppet: Puppet
) -> None:
    async with serve(agent=puppet) as server:
        turn_id = await answered(server, puppet)
        body = (await fork(server, turn_id, position=3)).json()
        part = await puppet.part()
        assert (part.turn.message, len(part.turn.history)) == ("Tea?", 2)
        part.end()
        assert (await server.ended(body["turn_id"]))["state"]["message"] == "Tea?"


async def test_bad_fork_names_the_field_and_writes_nothing(serve: Serve, puppet: Puppet) -> None:
    async with serve(agent=puppet) as server:
        turn_id = await answered(server, puppet)
        last = (await server.snapshot(turn_id))["last_position"]
        before = await server.written()
        for request, code, field in (
            ({"position": last + 1}, "bad_position", "position"),
            ({"position": 0}, "invalid_request", "position"),
            ({"position": "3"}, "invalid_request", "position"),
            ({"position": True}, "invalid_request", "position"),
            ({}, "invalid_request", "position"),
            ({"position": 3, "message": " "}, "invalid_request", "message"),
            ({"position": 3, "agent": "nobody"}, "agent_not_found", "nobody"),
            ({"position": 3, "model": "large"}, "model_not_taken", "model"),
            ({"position": 3, "on_busy": "never"}, "invalid_request", "on_busy"),
        ):
            error = error_of(await fork(server, turn_id, **request), 422)
            assert error["code"] == code, request
            assert field in error["message"]
        error_of(await fork(server, "nothing", position=3), 404)
        assert await server.written() == before


async def test_fork_of_an_expired_log_is_gone(serve: Serve, puppet: Puppet, kind: StoreKind) -> None:
    async with serve(agent=puppet, store=kind) as server:
        turn_id = await answered(server, puppet)
        await server.turnwire.store.maintain(expire_before=2**42)
        assert error_of(await fork(server, turn_id, position=3), 410)["code"] == "events_gone"


async def test_fork_with_a_repeated_key_is_made_once(serve: Serve, puppet: Puppet, kind: StoreKind) -> None:
    async with serve(agent=puppet, store=kind) as server:
        turn_id = await answered(server, puppet)
        key = {"Idempotency-Key": "k1"}
        first = await fork(server, turn_id, position=3, message="Coffee?", headers=key)
        again = await fork(server, turn_id, position=3, message="Coffee?", headers=key)
        assert (first.status_code, again.status_code) == (201, 200)
        assert first.json()["turn_id"] == again.json()["turn_id"]
        error_of(await fork(server, turn_id, position=4, message="Coffee?", headers=key), 409)
        (await puppet.part()).end()


async def test_foreign_turn_is_not_forked(serve: Serve, puppet: Puppet, kind: StoreKind) -> None:
    async with (
        serve(agent=puppet, store=kind, authenticate=by_user) as server,
        user(server, "anna") as anna,
        user(server, "bob") as bob,
    ):
        turn_id = await answered(anna, puppet)
        before = await server.written("anna"), await server.written("bob")
        error_of(await fork(bob, turn_id, position=3), 404)
        assert (await server.written("anna"), await server.written("bob")) == before


async def test_running_turn_is_forked_and_the_fork_waits_for_it(serve: Serve, puppet: Puppet) -> None:
    async with serve(agent=puppet) as server:
        turn_id = await server.start("Tea?")
        part = await puppet.part()
        part.say("Green")
        await server.reached(turn_id, 3)
        body = (await fork(server, turn_id, position=3, message="Coffee?")).json()
        assert body["phase"] == "queued"
        part.end()
        (await puppet.part()).end()
        await server.ended(body["turn_id"])
