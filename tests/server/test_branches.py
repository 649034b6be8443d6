"""Branches: a message can continue any turn of its session."""

from typing import Any

from tests.server.conftest import Serve
from tests.server.readers import by_user, user
from tests.server.socket_client import talking
from tests.serving import Puppet, Served, error_of


async def run_turn(server: Served, puppet: Puppet, message: str, answer: str, **body: Any) -> tuple[str, list[str]]:
    """A turn's id, and the conversation that its agent was given."""
    async with server.ask(message, **body) as stream:
        part = await puppet.part()
        part.say(answer)
        part.end()
        await stream.rest()
    return stream.turn_id, [message.content for message in part.turn.history]


async def test_message_continues_the_parent_turn_it_names(server: Served, puppet: Puppet) -> None:
    first, _ = await run_turn(server, puppet, "One?", "1", session_id="s")
    second, history = await run_turn(server, puppet, "Two?", "2", session_id="s")
    assert history == ["One?", "1"]
    # Asked again: after the same turn, and not after the answer that did not please.
    again, history = await run_turn(server, puppet, "Two?", "2!", session_id="s", parent_turn_id=first)
    assert history == ["One?", "1"]
    # The session is known by the turn.
    after, history = await run_turn(server, puppet, "Three?", "3", parent_turn_id=again)
    assert history == ["One?", "1", "Two?", "2!"]
    # And the very first message, otherwise.
    fresh, history = await run_turn(server, puppet, "Uno?", "1", session_id="s", parent_turn_id="")
    assert history == []
    turns = (await server.http.get("/v1/sessions/s")).json()["turns"]
    parents = {turn["turn_id"]: turn["parent_turn_id"] for turn in turns}
    assert parents == {first: None, second: first, again: first, after: again, fresh: None}


async def test_parent_turn_can_be_named_by_client_id(server: Served, puppet: Puppet) -> None:
    first, _ = await run_turn(server, puppet, "One?", "1", session_id="s", turn_id="mine")
    await run_turn(server, puppet, "Two?", "2", session_id="s")
    async with talking(server) as talk:
        started = await talk.ask("start", message="Two!", session_id="s", parent_turn_id="mine")
        part = await puppet.part()
        part.end()
        await talk.events(started["turn_id"])
    assert [message.content for message in part.turn.history] == ["One?", "1"]
    assert (await server.snapshot(started["turn_id"]))["parent_turn_id"] == first


async def test_unknown_or_foreign_parent_turn_is_not_found(serve: Serve, puppet: Puppet) -> None:
    async with serve(authenticate=by_user) as server, user(server, "anna") as anna, user(server, "bob") as bob:
        turn_id = await anna.start(session_id="s")
        (await puppet.part()).end()
        await server.reached(turn_id, 3)
        await anna.http.post("/v1/sessions", json={"id": "other"})
        for client, body in (
            (bob, {"parent_turn_id": turn_id}),
            (bob, {"parent_turn_id": turn_id, "session_id": "s"}),
            (anna, {"parent_turn_id": "nothing", "session_id": "s"}),
            (anna, {"parent_turn_id": turn_id, "session_id": "other"}),
            (anna, {"parent_turn_id": turn_id, "session_id": "new"}),
        ):
            for path in ("/chat", "/chat/stream"):
                answer = await client.http.post(path, json={"message": "Mine now", **body})
                assert error_of(answer, 404)["code"] == "turn_not_found"
        answer = await anna.http.post("/chat", json={"message": "Hi", "parent_turn_id": "a b"})
        assert error_of(answer, 422)["message"].startswith("parent_turn_id")
        assert await server.written("anna") == (2, 1)
        assert await server.written("bob") == (0, 0)


async def test_same_key_with_another_parent_is_a_conflict(server: Served, puppet: Puppet) -> None:
    first, _ = await run_turn(server, puppet, "One?", "1", session_id="s")
    key = {"Idempotency-Key": "k"}
    body = {"message": "Two?", "session_id": "s"}
    async with server.ask("Two?", session_id="s", parent_turn_id=first, headers=key) as stream:
        (await puppet.part()).end()
        await stream.rest()
    async with server.ask("Two?", session_id="s", parent_turn_id=first, headers=key) as again:
        assert again.turn_id == stream.turn_id
    for other in ({"parent_turn_id": ""}, {}):
        answer = await server.http.post("/chat/stream", json={**body, **other}, headers=key)
        assert error_of(answer, 409)["code"] == "idempotency_conflict"
