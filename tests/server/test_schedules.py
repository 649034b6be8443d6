"""`/v1/schedules`, and the schedules of the settings."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.server.conftest import Serve, StoreKind
from tests.server.readers import by_user, user
from tests.serving import Client, Served, error_of, saying
from turnwire.core.log.codec import now_ms
from turnwire.scheduler.schedule import time_zone

HOUR = 3_600_000
time_zone("UTC")  # Read from its file here, not in an event loop.


@pytest.fixture
async def server(serve: Serve, kind: StoreKind) -> AsyncIterator[Served]:
    async with serve(saying("Done."), store=kind, authenticate=by_user) as served:
        yield served


@pytest.fixture
async def anna(server: Served) -> AsyncIterator[Client]:
    async with user(server, "anna") as client:
        yield client


async def add(client: Client, **body: Any) -> dict[str, Any]:
    response = await client.http.post("/v1/schedules", json={"message": "hello", **body})
    assert response.status_code == 201, response.text
    return response.json()


async def test_time_that_is_over_is_run_at_once_and_recorded(anna: Client) -> None:
    added = await add(anna, at=now_ms() - 1000, name="once")
    assert (added["next_at"], added["last_run"], added["name"]) == (None, None, "once")
    turn_id = await run_of(anna, added["id"])
    message = (await anna.whole(turn_id))[1].event
    assert (message["content"], message["by"], message["channel"]) == ("hello", "anna", "schedule")


async def run_of(client: Client, schedule_id: str) -> str:
    """Wait until a schedule has run, and return the id of its turn."""
    found: list[str] = []

    async def look() -> bool:
        for each in (await client.http.get("/v1/schedules")).json()["schedules"]:
            if each["id"] == schedule_id and each["last_run"]:
                found.append(each["last_run"]["turn_id"])
        return bool(found)

    while not await look():
        pass
    return found[0]


async def test_schedule_continues_its_session(anna: Client) -> None:
    session_id = (await anna.http.post("/v1/sessions", json={})).json()["id"]
    added = await add(anna, at=now_ms() - 1000, session_id=session_id)
    turn_id = await run_of(anna, added["id"])
    assert (await anna.http.get(f"/v1/turns/{turn_id}")).json()["session_id"] == session_id


async def test_schedule_is_paused_resumed_and_removed(anna: Client) -> None:
    added = await add(anna, cron="0 9 * * mon-fri", timezone="Europe/Berlin")
    assert added["next_at"]
    path = f"/v1/schedules/{added['id']}"
    paused = (await anna.http.patch(path, json={"paused": True})).json()
    assert (paused["paused"], paused["next_at"]) == (True, None)
    assert (await anna.http.patch(path, json={"paused": False})).json() == added
    assert (await anna.http.delete(path)).status_code == 204
    assert (await anna.http.get("/v1/schedules")).json() == {"schedules": []}


async def test_another_principal_does_not_see_a_schedule(server: Served, anna: Client) -> None:
    added = await add(anna, every=3600)
    async with user(server, "bob") as bob:
        path = f"/v1/schedules/{added['id']}"
        assert (await bob.http.get("/v1/schedules")).json() == {"schedules": []}
        error_of(await bob.http.patch(path, json={"paused": True}), 404)
        error_of(await bob.http.delete(path), 404)
        session_id = (await anna.http.post("/v1/sessions", json={})).json()["id"]
        error_of(
            await bob.http.post("/v1/schedules", json={"message": "x", "every": 60, "session_id": session_id}), 404
        )


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "cron"),
        ({"every": 1}, "every"),
        ({"cron": "never"}, "cron"),
        ({"cron": "* * * * *", "timezone": "Nowhere"}, "timezone"),
        ({"every": 60, "user_id": "7"}, "user_id"),
        ({"every": 60, "when": "now"}, "when"),
        ({"at": -1}, "at"),
    ],
)
async def test_bad_times_are_a_422_that_names_the_field(anna: Client, body: dict[str, Any], field: str) -> None:
    error = error_of(await anna.http.post("/v1/schedules", json={"message": "hello", **body}), 422)
    assert error["message"].startswith(field)
    assert (await anna.http.get("/v1/schedules")).json() == {"schedules": []}


async def test_schedule_for_a_channel_needs_the_scope_of_operators(server: Served, anna: Client) -> None:
    body = {"message": "hello", "every": 60, "channel": "telegram", "user_id": "7"}
    error_of(await anna.http.post("/v1/schedules", json=body), 403)
    assert (await anna.http.get("/v1/schedules")).json() == {"schedules": []}


async def test_unknown_agent_is_refused(anna: Client) -> None:
    error_of(await anna.http.post("/v1/schedules", json={"message": "hello", "every": 60, "agent": "nobody"}), 422)


async def test_schedules_of_the_settings_are_listed(serve: Serve) -> None:
    schedules = {"morning": {"message": "What is new?", "cron": "0 9 * * *"}}
    async with serve(saying("Done."), store="memory", scheduler={"schedules": schedules}) as server:
        (found,) = (await server.http.get("/v1/schedules")).json()["schedules"]
        assert (found["id"], found["name"], found["message"]) == ("settings:morning", "morning", "What is new?")
