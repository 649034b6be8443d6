"""Feedback on turns: given, changed, withdrawn, listed, counted; the log stays as it ended."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.server.conftest import Serve, StoreKind
from tests.server.readers import by_user, user
from tests.serving import Client, Puppet, Served, error_of


@pytest.fixture
async def server(serve: Serve, kind: StoreKind) -> AsyncIterator[Served]:
    async with serve(store=kind, authenticate=by_user) as served:
        yield served


@pytest.fixture
async def anna(server: Served) -> AsyncIterator[Client]:
    async with user(server, "anna") as client:
        yield client


@pytest.fixture
async def bob(server: Served) -> AsyncIterator[Client]:
    async with user(server, "bob") as client:
        yield client


async def ended_turn(client: Client, puppet: Puppet, **body: Any) -> str:
    async with client.ask(**body) as stream:
        part = await puppet.part()
        part.say("Hi")
        part.end()
        await stream.rest()
        return stream.turn_id


async def rate(client: Client, turn_id: str, value: str | None, note: str | None = None) -> dict[str, Any]:
    response = await client.http.put(f"/v1/turns/{turn_id}/feedback", json={"value": value, "note": note})
    assert response.status_code == 200, response.text
    assert response.json()["turn_id"] == turn_id
    return response.json()["feedback"]


async def test_feedback_is_shown_with_the_turn_and_its_log_stays(anna: Client, puppet: Puppet) -> None:
    turn_id = await ended_turn(anna, puppet, session_id="diary")
    assert (await anna.snapshot(turn_id))["feedback"] is None
    log = await anna.whole(turn_id)
    feedback = await rate(anna, turn_id, "down", "  wrong \x00 <b>year</b>  ")
    assert (feedback["value"], feedback["note"]) == ("down", "wrong \x00 <b>year</b>")
    assert (await anna.snapshot(turn_id))["feedback"] == feedback
    for path in ("/v1/sessions/diary", "/v1/sessions/diary/export"):
        (turn,) = (await anna.http.get(path)).json()["turns"]
        assert turn["feedback"] == feedback
    assert await anna.whole(turn_id) == log


async def test_feedback_is_changed_and_withdrawn(anna: Client, puppet: Puppet) -> None:
    turn_id = await ended_turn(anna, puppet)
    await rate(anna, turn_id, "down", "no")
    feedback = await rate(anna, turn_id, "up")
    assert (feedback["value"], feedback["note"]) == ("up", None)
    assert await rate(anna, turn_id, None) is None
    assert await rate(anna, turn_id, None) is None
    assert (await anna.snapshot(turn_id))["feedback"] is None
    assert (await anna.http.get("/v1/feedback")).json() == {"feedback": [], "next": None}


async def test_feedback_is_listed_in_pages_newest_turn_first(anna: Client, bob: Client, puppet: Puppet) -> None:
    turns = [await ended_turn(anna, puppet) for _ in range(3)]
    for turn_id in turns:
        await rate(anna, turn_id, "up", turn_id)
    first = (await anna.http.get("/v1/feedback", params={"limit": 2})).json()
    assert [entry["turn_id"] for entry in first["feedback"]] == turns[:0:-1]
    rest = (await anna.http.get("/v1/feedback", params={"before": first["next"]})).json()
    assert [entry["note"] for entry in rest["feedback"]] == turns[:1]
    assert rest["next"] is None
    assert (await bob.http.get("/v1/feedback")).json()["feedback"] == []


async def test_session_shows_the_feedback_of_its_newest_turns(anna: Client, puppet: Puppet) -> None:
    turns = [await ended_turn(anna, puppet, session_id="diary") for _ in range(3)]
    for turn_id in turns:
        await rate(anna, turn_id, "up", turn_id)
    shown = (await anna.http.get("/v1/sessions/diary", params={"limit": 2})).json()["turns"]
    assert [turn["feedback"]["note"] for turn in shown] == turns[1:]


async def test_operator_sees_the_feedback_of_everybody(server: Served, anna: Client, puppet: Puppet) -> None:
    await rate(anna, await ended_turn(anna, puppet), "down", "slow")
    operator = {"Authorization": f"Bearer {server.turnwire.control_token}"}
    (entry,) = (await server.http.get("/v1/feedback", headers=operator)).json()["feedback"]
    assert (entry["principal"], entry["value"], entry["note"]) == ("anna", "down", "slow")


async def test_feedback_is_counted(server: Served, anna: Client, puppet: Puppet) -> None:
    async def count() -> int:
        operator = {"Authorization": f"Bearer {server.turnwire.control_token}"}
        lines = (await server.http.get("/metrics", headers=operator)).text.splitlines()
        return int(next(line for line in lines if line.startswith('turnwire_feedback_total{value="down"}')).split()[-1])

    before = await count()
    await rate(anna, await ended_turn(anna, puppet), "down")
    assert await count() == before + 1


async def test_feedback_on_another_principals_turn_is_not_found(anna: Client, bob: Client, puppet: Puppet) -> None:
    turn_id = await ended_turn(anna, puppet)
    response = await bob.http.put(f"/v1/turns/{turn_id}/feedback", json={"value": "down"})
    assert error_of(response, 404)["code"] == "turn_not_found"
    assert (await anna.snapshot(turn_id))["feedback"] is None


@pytest.mark.parametrize("body", [{}, {"value": "great"}, {"value": 1}, {"value": "up", "note": "x" * 2_001}, []])
async def test_feedback_that_is_not_valid_is_refused(anna: Client, puppet: Puppet, body: Any) -> None:
    turn_id = await ended_turn(anna, puppet)
    assert error_of(await anna.http.put(f"/v1/turns/{turn_id}/feedback", json=body), 422)
    assert (await anna.snapshot(turn_id))["feedback"] is None


async def test_feedback_is_erased_with_its_session(anna: Client, puppet: Puppet) -> None:
    await rate(anna, await ended_turn(anna, puppet, session_id="diary"), "up")
    assert (await anna.http.delete("/v1/sessions/diary")).status_code == 204
    assert (await anna.http.get("/v1/feedback")).json()["feedback"] == []
