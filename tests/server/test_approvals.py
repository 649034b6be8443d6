"""Approvals over HTTP: scopes, answers, and the routes that wait for a turn."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.server.conftest import Serve, StoreKind
from tests.server.readers import by_user, user
from tests.server.test_auth import holder
from tests.serving import Client, Served, error_of, within
from turnwire.core.journal.waits import approval
from turnwire.core.log.events import ApprovalRequestEvent, ToolResultEvent
from turnwire.core.log.turns import Turn


async def careful(turn: Turn) -> AsyncIterator[Any]:
    yield "May I? "
    decision = await approval(ApprovalRequestEvent("c1", "pay", {"amount": 40}, "it costs money"))
    yield ToolResultEvent("c1", "pay", decision.approved, decision.reason)
    yield "Paid." if decision.approved else decision.denial


@pytest.fixture
async def server(serve: Serve, kind: StoreKind) -> AsyncIterator[Served]:
    async with serve(careful, store=kind) as served:
        yield served


async def decide(server: Client, turn_id: str, call_id: str = "c1", **body: Any) -> Any:
    return await server.http.post(f"/v1/turns/{turn_id}/approvals/{call_id}", json={"approved": True, **body})


async def test_stream_shows_the_approval_request_stays_open_and_continues(server: Served) -> None:
    async with server.ask() as stream:
        request = (await stream.until("approval_request"))[-1]
        assert request.event == {
            "type": "approval_request",
            "call_id": "c1",
            "tool": "pay",
            "args": {"amount": 40},
            "reason": "it costs money",
        }
        snapshot = (await server.http.get(f"/v1/turns/{stream.turn_id}")).json()
        assert snapshot["phase"] == "waiting"
        assert snapshot["state"]["steps"][0]["state"] == "waiting"
        answer = await decide(server, stream.turn_id, reason="go ahead", args={"amount": 40})
        assert answer.status_code == 200
        frames = await stream.rest()
    assert [frame.type for frame in frames] == ["approval_response", "tool_result", "token", "response", "done"]
    assert frames[0].event == {
        "type": "approval_response",
        "call_id": "c1",
        "approved": True,
        "reason": "go ahead",
        "by": "local",
    }


async def test_request_is_denied_after_the_approval_timeout(serve: Serve) -> None:
    async with serve(careful, approval_timeout=0.05, lease=2) as server, server.ask("Buy it") as stream:
        (denied,) = [frame.event for frame in await stream.rest() if frame.type == "approval_response"]
    assert denied["approved"] is False


@pytest.mark.parametrize("route", ["/chat", "/v1/rag/sessions/shop/messages"])
async def test_json_route_answers_202_with_the_approvals(server: Served, route: str) -> None:
    asking: Any = {"json": {"message": "Buy it"}, "headers": {"Idempotency-Key": "k"}}
    waiting = await within(server.http.post(route, **asking))
    assert waiting.status_code == 202
    body = waiting.json()
    assert (body["outcome"], body["content"]) == (None, "May I? ")
    assert body["approvals"] == [{"call_id": "c1", "tool": "pay", "args": {"amount": 40}, "reason": "it costs money"}]
    await decide(server, body["turn_id"], approved=False, reason="too dear")
    # The same request again finds the turn, and now its answer.
    ended = await within(server.http.post(route, **asking))
    assert (ended.status_code, ended.json()["content"]) == (200, "May I? Denied: too dear")


async def test_invalid_decision_is_refused_with_its_reason(server: Served) -> None:
    async with server.ask() as stream:
        await stream.until("approval_request")
        turn_id = stream.turn_id
        assert error_of(await decide(server, turn_id, "c2"), 404)["code"] == "approval_not_found"
        assert error_of(await decide(server, "nobody-s"), 404)["code"] == "turn_not_found"
        assert error_of(await decide(server, turn_id, args={"amount": 41}), 409)["code"] == "approval_conflict"
        wrong: list[dict[str, Any]] = [{"approved": "yes"}, {"approved": None}, {"reason": 7}, {"args": [40]}]
        for body in wrong:
            assert error_of(await decide(server, turn_id, **body), 422)["code"] == "invalid_request"
        assert (await server.http.get(f"/v1/turns/{turn_id}")).json()["phase"] == "waiting"
        assert (await decide(server, turn_id)).status_code == 200
        assert error_of(await decide(server, turn_id, approved=False), 409)["code"] == "approval_conflict"
        await stream.rest()
    assert (await decide(server, turn_id)).status_code == 200


async def test_decision_about_a_turn_that_ended_while_waiting_is_refused(server: Served) -> None:
    async with server.ask() as stream:
        await stream.until("approval_request")
        await server.http.post(f"/v1/turns/{stream.turn_id}/cancel")
        assert error_of(await decide(server, stream.turn_id), 409)["code"] == "turn_not_waiting"


async def test_decision_of_another_principal_is_not_found(serve: Serve) -> None:
    async with serve(careful, authenticate=by_user) as server, user(server, "anna") as anna, user(server, "bob") as bob:
        turn_id = await waiting_turn(anna)
        assert error_of(await decide(bob, turn_id), 404)["code"] == "turn_not_found"
        assert (await decide(anna, turn_id)).status_code == 200


async def test_key_without_approve_scope_cannot_decide(serve: Serve) -> None:
    async with (
        serve(careful) as server,
        holder(server, "anna", ("read", "write")) as writer,
        holder(server, "anna", ("approve",)) as approver,
    ):
        turn_id = await waiting_turn(writer)
        assert error_of(await decide(writer, turn_id), 403)["code"] == "forbidden"
        assert (await decide(approver, turn_id)).status_code == 200


async def waiting_turn(client: Client) -> str:
    async with client.ask() as stream:
        await stream.until("approval_request")
        return stream.turn_id
