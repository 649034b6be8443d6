"""Ownership: another principal's sessions, turns, events and documents are a 404."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.server.conftest import Serve, StoreKind
from tests.server.readers import by_user, stored_counts, upload, user
from tests.serving import Client, Puppet, Served, error_of
from turnwire.server.router import Route

ANSWERS = {"/replies": {"question_id": "q1", "value": 1}, "/tool-results": {"call_id": "c1", "output": 1}}
BODIES = {
    "post": {"message": "Mine now", "approved": True, "position": 3},
    "put": {"value": "up"},
    "patch": {"title": "Mine now"},
}


@pytest.fixture
async def server(serve_documents: Serve, kind: StoreKind, puppet: Puppet) -> AsyncIterator[Served]:
    async with serve_documents(agent=puppet, store=kind, authenticate=by_user) as served:
        yield served


@pytest.fixture
async def anna(server: Served) -> AsyncIterator[Client]:
    async with user(server, "anna") as client:
        yield client


@pytest.fixture
async def bob(server: Served) -> AsyncIterator[Client]:
    async with user(server, "bob") as client:
        yield client


@pytest.mark.process
async def test_every_route_with_an_id_hides_foreign_objects(
    server: Served, anna: Client, bob: Client, puppet: Puppet
) -> None:
    async with anna.ask(session_id="diary", turn_id="entry") as stream:
        await puppet.part()
        await stream.until("message")
        ids = {
            "turns": [stream.turn_id, "entry"],
            "sessions": [stream.session_id, "diary"],
            "rag": [stream.session_id],  # A name of one's own begins a session of one's own there.
            "chat": [stream.turn_id, stream.session_id],
            "responses": [f"resp_{stream.turn_id}"],
            "schedules": [(await anna.http.post("/v1/schedules", json={"message": "x", "every": 60})).json()["id"]],
            "documents": [(await upload(anna, "diary.md", "The treasure is under the oak.")).json()["id"]],
        }
        documents = await stored_counts(server)
        table = [route for route in server.turnwire.asgi().routes if isinstance(route, Route)]
        # Models are the agents' names, and nobody's own; a shared session is for anybody who has its link.
        # Tasks of A2A have errors of their own; tests/server/test_a2a.py checks whose they are.
        # Keys are the operator's.
        others = ("/models/", "/shared/", "/a2a/", "/v1/keys/")
        named = [route for route in table if "{" in route.path and not any(part in route.path for part in others)]
        with_id = [(route.path, route.method.lower()) for route in named]
        assert len(with_id) >= 8
        requests = set()
        for path, method in with_id:
            family = path.split("/")[2]
            body = {"paused": True} if (family, method) == ("schedules", "patch") else BODIES.get(method)
            body = next((answer for end, answer in ANSWERS.items() if path.endswith(end)), body)
            for id in ids[family]:
                for query in ("", "?wait=1", "?wire=sse_chat", "?limit=5"):
                    url = path.format(id=id, session_id=id, call_id="c1", digest="0" * 64) + query
                    is_upload = path.endswith("/files") and method == "post"
                    content: Any = {"files": {"file": ("a.txt", b"a")}} if is_upload else {"json": body}
                    response = await bob.http.request(method, url, **content)
                    requests.add((path, method))
                    if path.endswith("/recording"):
                        error_of(response, 403)  # Without the scope `operate`, nobody is told whether the turn exists.
                        continue
                    error = error_of(response, 404)
                    kinds = ("turn_", "session_", "document_", "response_", "")
                    assert error["code"] in [f"{kind}not_found" for kind in kinds]
                    assert "anna" not in error["message"]
        assert requests == set(with_id)
        # And none of it did anything.
        snapshot = await anna.snapshot(stream.turn_id)
        assert (snapshot["phase"], snapshot["position"]) == ("running", 2)
        session = (await anna.http.get("/v1/sessions/diary")).json()
        assert (session["title"], session["turn_count"]) == ("Hello", 1)
        assert await stored_counts(server) == documents
    assert await server.written("bob") == (0, 0)


async def test_foreign_ids_in_body_query_or_cursor_are_not_found(
    server: Served, anna: Client, bob: Client, puppet: Puppet
) -> None:
    async with anna.ask(session_id="diary") as stream:
        await puppet.part()
        await bob.http.post("/v1/sessions", json={"id": "own"})
        for path in ("/chat", "/chat/stream"):
            response = await bob.http.post(path, json={"message": "Hi", "session_id": stream.session_id})
            assert error_of(response, 404)["code"] == "session_not_found"
        cursor = {"Last-Event-ID": f"{stream.turn_id}:1"}
        assert error_of(await bob.http.get("/v1/sessions/own/events", headers=cursor), 404)["code"] == "turn_not_found"
        assert error_of(await bob.http.get("/v1/sessions", params={"before": stream.session_id}), 404)
        assert await server.written("bob") == (1, 0)


async def test_client_ids_and_keys_are_per_principal(anna: Client, bob: Client, puppet: Puppet) -> None:
    key = {"Idempotency-Key": "same"}
    async with (
        anna.ask("Anna's", session_id="same", turn_id="same", headers=key) as hers,
        bob.ask("Bob's", session_id="same", turn_id="same", headers=key) as his,
    ):
        assert hers.turn_id != his.turn_id
        assert hers.session_id != his.session_id
        assert {(await puppet.part()).turn.principal for _ in range(2)} == {"anna", "bob"}
        assert (await anna.snapshot("same"))["message"] == "Anna's"
        assert (await bob.snapshot("same"))["message"] == "Bob's"


async def test_lists_and_searches_show_own_sessions_only(anna: Client, bob: Client, puppet: Puppet) -> None:
    async with anna.ask("The treasure is under the oak") as stream:
        part = await puppet.part()
        part.say("I will tell nobody about the treasure.")
        part.end()
        await stream.rest()
    for query in ({}, {"search": "treasure"}, {"search": "oak"}):
        assert (await bob.http.get("/v1/sessions", params=query)).json()["sessions"] == []
        assert len((await anna.http.get("/v1/sessions", params=query)).json()["sessions"]) == 1
