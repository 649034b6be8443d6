"""Shared sessions: read by anybody who has the link, without the private parts, until the link is revoked."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.server.conftest import Serve, StoreKind
from tests.server.readers import by_user, user
from tests.serving import Client, Puppet, Served, error_of
from turnwire.core.log.events import CitationEvent, ToolCallEvent, ToolProgressEvent, ToolResultEvent, UsageEvent


@pytest.fixture
async def server(serve: Serve, kind: StoreKind) -> AsyncIterator[Served]:
    async with serve(store=kind, authenticate=by_user) as served:
        yield served


@pytest.fixture
async def anna(server: Served) -> AsyncIterator[Client]:
    async with user(server, "anna") as client:
        yield client


@pytest.fixture
async def anybody(server: Served) -> AsyncIterator[Client]:
    client = Client(server.url)
    yield client
    await client.http.aclose()


async def ended_turn(client: Client, puppet: Puppet, *lines: Any, **body: Any) -> str:
    async with client.ask(**{"session_id": "diary", **body}) as stream:
        part = await puppet.part()
        part.say(*(lines or ("Hi",)))
        part.end()
        await stream.rest()
        return stream.turn_id


async def share(client: Client, session_id: str = "diary") -> dict[str, Any]:
    response = await client.http.post(f"/v1/sessions/{session_id}/share")
    assert response.status_code == 201, response.text
    return response.json()


async def test_shared_session_is_read_without_a_key_or_private_parts(
    server: Served, anna: Client, anybody: Client, puppet: Puppet
) -> None:
    turn_id = await ended_turn(
        anna,
        puppet,
        ToolCallEvent("c1", "look_up", {"password": "private-argument"}),
        ToolProgressEvent("c1", "private-progress"),
        ToolResultEvent("c1", "look_up", True, "private-result"),
        CitationEvent(1, "private-document-id", "private-chunk-id", title="Tea", supporting_quote="Tea is hot."),
        UsageEvent("private-model", input_tokens=3),
        "Tea is hot [1].",
        message="What is tea?",
    )
    link = await share(anna)
    assert link["url"] == f"{server.url}/share/{link['token']}"
    response = await anybody.http.get(f"/v1/shared/{link['token']}")
    assert response.status_code == 200, response.text
    assert response.headers["cache-control"] == "no-store"
    assert response.headers["x-robots-tag"] == "noindex"
    shared = response.json()
    (turn,) = shared["turns"]
    assert shared["title"] == "What is tea?"
    assert (turn["message"], turn["content"], turn["outcome"]) == ("What is tea?", "Tea is hot [1].", "completed")
    assert turn["steps"] == [{"kind": "tool", "name": "look_up", "state": "succeeded"}]
    assert turn["citations"] == [{"index": 1, "title": "Tea", "supporting_quote": "Tea is hot."}]
    text = json.dumps(shared)
    for private in ("private", "anna", "diary", turn_id):
        assert private not in text


async def test_turns_after_the_link_stay_private(
    server: Served, anna: Client, anybody: Client, puppet: Puppet, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ended_turn(anna, puppet, message="Shared")
    link = await share(anna)
    monkeypatch.setattr("turnwire.core.run.runner.now_ms", lambda: 2**45)  # Accepted later, also on a fast machine.
    await ended_turn(anna, puppet, message="Private")
    shared = (await anybody.http.get(f"/v1/shared/{link['token']}")).json()
    assert [turn["message"] for turn in shared["turns"]] == ["Shared"]


async def test_revoked_links_are_not_found(anna: Client, anybody: Client, puppet: Puppet) -> None:
    await ended_turn(anna, puppet)
    links = [await share(anna), await share(anna)]
    assert links[0]["token"] != links[1]["token"]
    for link in links:
        assert (await anybody.http.get(f"/v1/shared/{link['token']}")).status_code == 200
    for _ in range(2):
        assert (await anna.http.delete("/v1/sessions/diary/share")).status_code == 204
    for link in links:
        response = await anybody.http.get(f"/v1/shared/{link['token']}")
        assert error_of(response, 404)["code"] == "share_not_found"


async def test_session_tells_its_owner_whether_it_is_shared(anna: Client, puppet: Puppet) -> None:
    async def times() -> set[str | None]:
        bodies = [(await anna.http.get(f"/v1/sessions/diary{path}")).json() for path in ("", "/export")]
        return {body["shared_at"] for body in bodies}

    await ended_turn(anna, puppet)
    assert await times() == {None}
    links = [await share(anna), await share(anna)]
    assert await times() == {max(link["shared_at"] for link in links)}
    await anna.http.delete("/v1/sessions/diary/share")
    assert await times() == {None}


async def test_link_ends_with_its_session(anna: Client, anybody: Client, puppet: Puppet) -> None:
    await ended_turn(anna, puppet)
    link = await share(anna)
    assert (await anna.http.delete("/v1/sessions/diary")).status_code == 204
    assert error_of(await anybody.http.get(f"/v1/shared/{link['token']}"), 404)["code"] == "share_not_found"


async def test_stored_link_does_not_contain_the_token(server: Served, anna: Client, puppet: Puppet) -> None:
    await ended_turn(anna, puppet)
    token = (await share(anna))["token"]
    (stored,) = await server.turnwire.store.list_annotations("share", None)
    assert token not in repr(stored)
    # The stored digest is no token either.
    assert error_of(await server.http.get(f"/v1/shared/{stored.key}"), 404)["code"] == "share_not_found"


async def test_only_the_owner_shares_and_revokes(server: Served, anna: Client, anybody: Client, puppet: Puppet) -> None:
    await ended_turn(anna, puppet)
    link = await share(anna)
    session_id = (await anna.http.get("/v1/sessions/diary")).json()["id"]
    assert error_of(await anybody.http.post(f"/v1/sessions/{session_id}/share"), 401)
    async with user(server, "bob") as bob:
        for method in ("POST", "DELETE"):
            response = await bob.http.request(method, f"/v1/sessions/{session_id}/share")
            assert error_of(response, 404)["code"] == "session_not_found"
    assert (await anybody.http.get(f"/v1/shared/{link['token']}")).status_code == 200


@pytest.mark.parametrize("path", ["/v1/shared/", "/v1/shared/x/y", "/v1/shared/%00", "/v1/shared/%ff", "/v1/shared/.."])
async def test_wrong_token_is_a_404_for_anybody(anybody: Client, path: str) -> None:
    assert error_of(await anybody.http.get(path)).get("code") in ("share_not_found", "not_found", "unauthorized")


async def test_public_prefix_opens_no_other_method(anybody: Client) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        assert error_of(await anybody.http.request(method, "/v1/shared/x"), 405)


async def test_link_names_the_host_of_the_request(puppet: Puppet, anna: Client) -> None:
    await ended_turn(anna, puppet)
    async with Client(anna.url, {"X-User": "anna", "Host": "chat.example:8443"}).http as http:
        link = (await http.post("/v1/sessions/diary/share")).json()
    assert link["url"] == f"http://chat.example:8443/share/{link['token']}"
