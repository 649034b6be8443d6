"""Token budgets per principal and day over HTTP: reported while tokens are left, 429 when they are spent."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.server.conftest import Serve, StoreKind
from tests.serving import Client, Puppet, error_of, quick_settings, saying, serving
from turnwire import Turnwire
from turnwire.core.log.events import ToolCallEvent, UsageEvent

ROUTES = (
    "/chat",
    "/chat/stream",
    "/v1/sessions/mine/turns",
    "/v1/rag/sessions/mine/messages",
    "/v1/rag/sessions/mine/messages/stream",
)


def costing(tokens: int) -> Any:
    return saying("Hello.", UsageEvent(model="m", input_tokens=tokens - 1, output_tokens=1))


def is_next_midnight(text: str) -> bool:
    moment, now = datetime.fromisoformat(text), datetime.now(UTC)
    return moment.time() == datetime.min.time() and now < moment <= now + timedelta(days=1)


@pytest.mark.parametrize("route", ROUTES)
async def test_spent_budget_is_a_429_with_the_reset_time(serve: Serve, kind: StoreKind, route: str) -> None:
    async with serve(costing(120), store=kind, max_tokens_per_day=100) as server:
        await server.http.post("/chat", json={"message": "Hello", "session_id": "mine"})
        written = await server.written()
        response = await server.http.post(route, json={"message": "Hello"})
        error = error_of(response, 429)
        assert (error["code"], error["limit"], error["used"], error["left"]) == ("budget_spent", 100, 120, 0)
        assert is_next_midnight(error["resets_at"])
        assert 0 < int(response.headers["retry-after"]) <= 86_400
        assert await server.written() == written == (1, 1)


@pytest.mark.parametrize("route", ["/chat", "/v1/rag/sessions/mine/messages"])
async def test_answer_has_the_remaining_budget(serve: Serve, route: str) -> None:
    async with serve(costing(30), max_tokens_per_day=100) as server:
        budgets = [(await server.http.post(route, json={"message": "Hello"})).json()["budget"] for _ in range(2)]
        assert [budget["tokens_left"] for budget in budgets] == [70, 40]
        assert is_next_midnight(budgets[0]["resets_at"])


@pytest.mark.parametrize("route", ["/chat/stream", "/v1/rag/sessions/mine/messages/stream"])
async def test_stream_header_has_the_remaining_budget(serve: Serve, route: str) -> None:
    async with serve(costing(30), max_tokens_per_day=100) as server:
        await server.http.post("/chat", json={"message": "Hello"})
        async with server.http.stream("POST", route, json={"message": "Hello"}) as response:
            # A text stream begins when there is something to say, which may be after its turn was counted.
            assert response.headers["x-tokens-left"] in ("70", "40")


async def test_without_limit_only_the_used_tokens_are_reported(serve: Serve) -> None:
    async with serve(costing(30)) as server:
        answer = await server.http.post("/chat", json={"message": "Hello"})
        assert "budget" not in answer.json()
        async with server.ask() as stream:
            assert "x-tokens-left" not in stream.headers
            await stream.rest()
        budget = (await server.http.get("/v1/budget")).json()
        assert is_next_midnight(budget.pop("resets_at"))
        assert budget == {"limit": None, "used": 60, "left": None}


async def test_budget_is_per_principal(serve: Serve, kind: StoreKind) -> None:
    def authenticate(scope: dict[str, Any]) -> str:
        return dict(scope["headers"])[b"x-user"].decode()

    async with serve(costing(120), store=kind, max_tokens_per_day=100, authenticate=authenticate) as server:
        anna, bob = Client(server.url, {"X-User": "anna"}), Client(server.url, {"X-User": "bob"})
        assert (await anna.http.post("/chat", json={"message": "Hello"})).json()["budget"]["tokens_left"] == 0
        error_of(await anna.http.post("/chat", json={"message": "Hello"}), 429)
        budget = [(await client.http.get("/v1/budget")).json() for client in (anna, bob)]
        assert [(each["limit"], each["used"], each["left"]) for each in budget] == [(100, 120, 0), (100, 0, 100)]
        assert (await bob.http.post("/chat", json={"message": "Hello"})).status_code == 200
        await anna.http.aclose()
        await bob.http.aclose()


async def test_running_turn_over_budget_ends_with_the_code_and_keeps_its_answer(
    serve: Serve, kind: StoreKind, puppet: Puppet
) -> None:
    async with serve(store=kind, max_tokens_per_day=100) as server, server.ask() as stream:
        (await puppet.part()).say("A start ", UsageEvent(output_tokens=101), ToolCallEvent("c1", "find", {}))
        frames = await stream.rest()
        assert [frame.type for frame in frames] == ["session", "message", "token", "usage", "error", "done"]
        assert (frames[-2].event["code"], frames[-1].event["outcome"]) == ("budget_spent", "failed")
        assert (await server.snapshot(stream.turn_id))["state"]["text"] == "A start "
        assert (await server.http.get("/v1/budget")).json()["used"] == 101


async def test_spent_budget_survives_session_deletion_and_restart(tmp_path: Path) -> None:
    settings = quick_settings(tmp_path, max_tokens_per_day=100)
    for _ in range(2):
        async with serving(Turnwire(costing(50), settings=settings)) as server:
            answer = await server.http.post("/chat", json={"message": "Hello"})
            assert (await server.http.delete(f"/v1/sessions/{answer.json()['session_id']}")).status_code == 204
    async with serving(Turnwire(costing(50), settings=settings)) as server:
        assert error_of(await server.http.post("/chat", json={"message": "Hello"}), 429)["used"] == 100


async def test_repeated_request_joins_its_turn_with_spent_budget(serve: Serve) -> None:
    async with serve(costing(120), max_tokens_per_day=100) as server:
        again = [
            await server.http.post("/chat", json={"message": "Hello"}, headers={"Idempotency-Key": "k"})
            for _ in range(2)
        ]
        assert again[0].json()["turn_id"] == again[1].json()["turn_id"]


async def test_too_many_steps_end_a_turn(serve: Serve, kind: StoreKind, puppet: Puppet) -> None:
    async with serve(store=kind, max_steps_per_turn=2) as server, server.ask() as stream:
        (await puppet.part()).say(*(ToolCallEvent(f"c{number}", "find", {}) for number in range(3)))
        frames = await stream.rest()
        assert [frame.type for frame in frames][2:] == ["tool_call", "tool_call", "error", "done"]
        assert frames[-2].event["code"] == "max_turns"
