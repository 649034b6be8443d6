"""`/v1/ws`: many turns on one socket, with the promises of every other stream."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.server.conftest import Serve
from tests.server.socket_client import Talk, positions, talking, text_of
from tests.serving import Puppet, Served, error_of, let_time_pass, saying, until, within
from turnwire.core.journal.waits import approval
from turnwire.core.log.events import ApprovalRequestEvent, Event, ToolResultEvent
from turnwire.core.log.turn_log import TurnLog
from turnwire.core.log.turns import Turn


async def asking(turn: Turn) -> AsyncIterator[Event | str]:
    """Calls a tool that a person must allow."""
    decision = await approval(ApprovalRequestEvent("c1", "pay", {"amount": 7}, "it is money"))
    yield ToolResultEvent("c1", "pay", decision.approved, "paid")
    yield "Done."


# Turns


async def test_a_turn_is_started_and_watched_to_its_end(server: Served, puppet: Puppet) -> None:
    async with talking(server) as talk:
        accepted = await talk.ask("start", message="Hello", session_id="mine")
        part = await puppet.part()
        part.say("Hello ", "there")
        part.end()
        events = await talk.events(accepted["turn_id"])
    assert accepted["type"] == "accepted"
    assert accepted["created"] is True
    assert positions(events) == list(range(1, len(events) + 1))
    assert [message["event"]["type"] for message in events] == [
        "session",
        "message",
        "token",
        "token",
        "response",
        "done",
    ]
    assert [json.dumps(message["event"]) for message in events] == [
        json.dumps(frame.event) for frame in await server.whole(accepted["turn_id"])
    ]


async def test_two_turns_share_a_socket_by_their_ids(serve: Serve, puppet: Puppet) -> None:
    async with serve() as server, talking(server) as talk:
        first_id = (await talk.ask("start", message="One"))["turn_id"]
        first = await puppet.part()
        second_id = (await talk.ask("start", message="Two"))["turn_id"]
        second = await puppet.part()
        for number in range(20):
            (first if number % 2 else second).say(str(number % 10))
        first.end()
        second.end()
        assert text_of(await talk.events(first_id)) == "1357913579"
        assert text_of(await talk.events(second_id)) == "0246802468"


async def test_client_continues_at_every_position_without_loss(server: Served, puppet: Puppet) -> None:
    async with talking(server) as talk:
        turn_id = (await talk.ask("start", message="Hello"))["turn_id"]
        part = await puppet.part()
        part.say(*"abc")
        part.end()
        whole = await talk.events(turn_id)
    async with talking(server) as talk:
        for after in range(len(whole)):
            await talk.ask("follow", turn_id=turn_id, after=after, epoch=whole[after - 1]["epoch"] if after else None)
            assert await talk.events(turn_id) == whole[after:]


async def test_dropped_client_continues_live(server: Served, puppet: Puppet) -> None:
    async with talking(server) as talk:
        turn_id = (await talk.ask("start", message="Hello"))["turn_id"]
        part = await puppet.part()
        part.say("a")
        seen = await talk.events(turn_id, until="token")
        talk.connection.transport.abort()
    part.say("b")
    async with talking(server) as talk:
        await talk.ask("follow", turn_id=turn_id, after=seen[-1]["position"])
        part.say("c")
        part.end()
        rest = await talk.events(turn_id)
    assert text_of(seen + rest) == "abc"
    assert positions(seen + rest) == list(range(1, len(seen + rest) + 1))


async def test_follow_at_the_end_is_accepted_without_events(serve: Serve) -> None:
    async with serve(saying("a")) as server, talking(server) as talk:
        turn_id = (await talk.ask("start", message="Hello"))["turn_id"]
        last = (await talk.events(turn_id))[-1]["position"]
        accepted = await talk.ask("follow", turn_id=turn_id, after=last)
        assert (accepted["phase"], accepted["outcome"], accepted["last_position"]) == ("ended", "completed", last)
        assert (await talk.ask("ping"))["type"] == "pong"
        assert talk.pending == []


async def test_unknown_position_is_a_reset_and_a_replay(serve: Serve) -> None:
    async with serve(saying("a")) as server, talking(server) as talk:
        turn_id = (await talk.ask("start", message="Hello"))["turn_id"]
        whole = await talk.events(turn_id)
        for wrong in ({"after": 999}, {"after": 3, "epoch": 77}):
            await talk.ask("follow", turn_id=turn_id, **wrong)
            assert (await talk.hear()) == {"type": "reset", "turn_id": turn_id}
            assert await talk.events(turn_id) == whole


async def test_expired_events_are_a_gap_with_a_snapshot(serve: Serve) -> None:
    async with serve(saying("a", "b"), store="sqlite") as server, talking(server) as talk:
        turn_id = (await talk.ask("start", message="Hello"))["turn_id"]
        await talk.events(turn_id)
        await server.turnwire.store.maintain(expire_before=2**50)
        await talk.ask("follow", turn_id=turn_id)
        gap = await talk.hear()
    assert (gap["type"], gap["turn_id"], gap["state"]["text"]) == ("gap", turn_id, "ab")


async def test_repeated_start_joins_the_same_turn(server: Served, puppet: Puppet) -> None:
    async with talking(server) as talk:
        first = await talk.ask("start", message="Hello", turn_id="mine")
        (await puppet.part()).end()
        await talk.events(first["turn_id"])
        again = await talk.ask("start", message="Hello", turn_id="mine", after=2)
        assert (again["turn_id"], again["created"]) == (first["turn_id"], False)
        assert positions(await talk.events(first["turn_id"]))[0] == 3
        assert await talk.refused("start", message="Goodbye", turn_id="mine") == "idempotency_conflict"
        keyed = [await talk.ask("start", message="Key", idempotency_key="k") for _ in range(2)]
        assert keyed[0]["turn_id"] == keyed[1]["turn_id"]
    assert (await server.written())[1] == 2


async def test_cancel_runs_while_other_messages_are_answered(serve: Serve, puppet: Puppet) -> None:
    async with serve() as server, talking(server) as talk:
        turn_id = (await talk.ask("start", message="Hello"))["turn_id"]
        part = await puppet.part()
        part.say("partial")
        await talk.events(turn_id, until="token")
        await talk.say("cancel", id="stop", turn_id=turn_id)
        events = await talk.events(turn_id)
        assert events[-1]["event"]["outcome"] == "cancelled"
        replies = talk.pending or [await talk.hear()]
        assert (replies[0]["id"], replies[0]["phase"], replies[0]["outcome"]) == ("stop", "ended", "cancelled")
        assert (await talk.ask("cancel", turn_id=turn_id))["outcome"] == "cancelled"
    await within(part.over.wait())


async def test_disconnect_follows_the_policy_of_each_turn(serve: Serve, puppet: Puppet) -> None:
    async with serve() as server:
        async with talking(server) as talk:
            stays = (await talk.ask("start", message="Stay"))["turn_id"]
            staying = await puppet.part()
            goes = (await talk.ask("start", message="Go", on_disconnect="cancel"))["turn_id"]
            await puppet.part()
        assert (await server.ended(goes))["outcome"] == "cancelled"
        staying.end()
        assert (await server.ended(stays))["outcome"] == "completed"


async def test_unfollowing_leaves_one_turn_and_keeps_the_socket(serve: Serve, puppet: Puppet) -> None:
    async with serve() as server, talking(server) as talk:
        turn_id = (await talk.ask("start", message="Go", on_disconnect="cancel"))["turn_id"]
        await puppet.part()
        await talk.events(turn_id, until="message")
        assert (await talk.ask("unfollow", turn_id=turn_id))["type"] == "accepted"
        assert (await server.ended(turn_id))["outcome"] == "cancelled"
        assert (await talk.ask("ping"))["type"] == "pong"
        assert talk.pending == []


async def test_waiting_turn_is_approved_on_the_same_socket(serve: Serve) -> None:
    async with serve(asking) as server, talking(server) as talk:
        turn_id = (await talk.ask("start", message="Pay"))["turn_id"]
        await talk.events(turn_id, until="approval_request")
        decision: dict[str, Any] = {"turn_id": turn_id, "call_id": "c1"}
        assert await talk.refused("approve", **decision) == "invalid_request"
        assert await talk.refused("approve", **decision, approved=True, args={"amount": 70}) == "approval_conflict"
        assert await talk.refused("approve", turn_id=turn_id, call_id="c2", approved=True) == "approval_not_found"
        assert (await talk.ask("approve", **decision, approved=True, args={"amount": 7}))["type"] == "accepted"
        events = await talk.events(turn_id)
    assert [message["event"]["type"] for message in events[:2]] == ["approval_response", "tool_result"]
    assert text_of(events) == "Done."


# What is refused


async def test_invalid_message_is_refused_and_the_socket_stays_open(serve: Serve) -> None:
    async with serve(saying("a")) as server, talking(server) as talk:
        for invalid in (
            "",
            "{",
            "[]",
            "null",
            '"start"',
            "{}",
            '{"type":"dance"}',
            '{"type":"ping","id":{}}',
            b"\xff\x00",
        ):
            await talk.connection.send(invalid)
            message = await talk.hear()
            assert (message["type"], message["id"]) == ("error", None)
            assert message["error"]["code"] in ("invalid_json", "invalid_request")
        assert await talk.refused("start") == "invalid_request"
        assert await talk.refused("start", message=" ") == "invalid_request"
        assert await talk.refused("start", message="x", agent="nobody") == "agent_not_found"
        assert await talk.refused("follow", turn_id="nothing") == "turn_not_found"
        assert await talk.refused("follow", turn_id="x", after=-1) == "invalid_request"
        assert await talk.refused("cancel", turn_id="../..") == "invalid_request"
        assert (await talk.ask("ping"))["type"] == "pong"
    assert await server.written() == (0, 0)


async def test_a_message_that_is_too_large_ends_the_socket(serve: Serve) -> None:
    async with serve(saying("a"), max_body_bytes=1_000) as server, talking(server) as talk:
        await talk.say("start", message="x" * 1_000)
        assert (await talk.closed())[0] == 1009
    assert await server.written() == (0, 0)


async def test_message_limit_counts_bytes(serve: Serve) -> None:
    async with serve(saying("a"), max_body_bytes=1_000) as server, talking(server) as talk:
        await talk.connection.send(json.dumps({"type": "start", "message": "é" * 500}, ensure_ascii=False))
        assert (await talk.closed())[0] == 1009
    assert await server.written() == (0, 0)


async def test_message_rate_is_limited(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnwire.server.streams.socket.MAX_MESSAGES_PER_SECOND", 20)
    async with serve(saying("a")) as server, talking(server) as talk:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for number in range(30):
            await talk.say("ping", id=number)
        assert [(await talk.hear())["id"] for _ in range(30)] == list(range(30))
        assert loop.time() - begun > 0.4


async def test_plain_http_request_is_426(server: Served) -> None:
    for path in ("/v1/ws", "/api/chat/ws"):
        answer = await server.http.get(path)
        assert error_of(answer, 426)["code"] == "upgrade_required"
        assert answer.headers["upgrade"] == "websocket"


# Who may


async def refusal(server: Served, path: str = "/v1/ws", **options: Any) -> tuple[int, str]:
    with pytest.raises(InvalidStatus) as refused:
        async with talking(server, path, **options):
            pass
    response = refused.value.response
    return response.status_code, json.loads(response.body)["error"]["code"]


async def test_a_socket_is_refused_before_it_is_open(serve: Serve) -> None:
    async with serve(saying("a"), allowed_origins=["https://app.example"]) as server:
        assert await refusal(server, "/v1/nothing") == (404, "not_found")
        assert await refusal(server, origin="https://evil.example") == (403, "origin_not_allowed")
        assert await refusal(server, origin="null") == (403, "origin_not_allowed")
        assert await refusal(server, host="evil.example") == (421, "host_not_allowed")
        for origin in ("https://app.example", f"http://127.0.0.1:{server.port}", None):
            async with talking(server, origin=origin) as talk:
                assert (await talk.ask("ping"))["type"] == "pong"


async def test_a_page_of_another_origin_cannot_use_a_cookie(serve: Serve) -> None:
    async with serve(saying("a"), authenticate=lambda scope: "ann") as server:
        assert await refusal(server, origin="https://evil.example") == (403, "origin_not_allowed")
        async with talking(server, origin=f"http://127.0.0.1:{server.port}") as talk:
            await talk.ask("start", message="Hi")
    assert await server.written("ann") == (1, 1)


async def test_a_key_comes_as_a_header_or_as_a_subprotocol_and_never_in_the_address(serve: Serve) -> None:
    async with serve(saying("a")) as server:
        _, key = await server.turnwire.keys.create("ann", ["read", "write"])
        assert await refusal(server) == (401, "unauthorized")
        assert await refusal(server, f"/v1/ws?key={key}&access_token={key}") == (401, "unauthorized")
        assert await refusal(server, subprotocols=["turnwire", f"turnwire.key.{key}x"]) == (401, "unauthorized")
        async with talking(server, additional_headers={"Authorization": f"Bearer {key}"}) as talk:
            assert talk.connection.subprotocol is None
        async with talking(server, subprotocols=["turnwire", f"turnwire.key.{key}"]) as talk:
            assert talk.connection.subprotocol == "turnwire"
            await talk.ask("start", message="Hi")
    assert await server.written("ann") == (1, 1)


async def test_each_message_needs_its_scope_and_its_owner(serve: Serve, puppet: Puppet) -> None:
    async with serve() as server:
        keys = {
            name: (await server.turnwire.keys.create(name.split("-")[0], scopes))[1]  # type: ignore[arg-type]
            for name, scopes in (("ann", ["read", "write", "approve"]), ("ann-reads", ["read"]), ("bob", ["write"]))
        }
        as_: dict[str, Any] = {name: {"additional_headers": {"X-API-Key": key}} for name, key in keys.items()}
        async with talking(server, **as_["ann"]) as ann:
            turn_id = (await ann.ask("start", message="Hi"))["turn_id"]
            async with talking(server, **as_["ann-reads"]) as talk:
                assert (await talk.ask("follow", turn_id=turn_id))["type"] == "accepted"
                assert await talk.refused("start", message="Hi") == "forbidden"
                assert await talk.refused("cancel", turn_id=turn_id) == "forbidden"
                assert await talk.refused("approve", turn_id=turn_id, call_id="c", approved=True) == "forbidden"
            async with talking(server, **as_["bob"]) as talk:
                assert await talk.refused("cancel", turn_id=turn_id) == "turn_not_found"
                assert await talk.refused("unfollow", turn_id=turn_id) == "turn_not_found"
                assert await talk.refused("follow", turn_id=turn_id) == "forbidden"
            (await puppet.part()).end()
            assert (await ann.events(turn_id))[-1]["event"]["outcome"] == "completed"


async def test_a_socket_and_each_turn_on_it_count_as_streams(serve: Serve, puppet: Puppet) -> None:
    async with serve(max_open_streams=3) as server, talking(server) as talk:
        turns = [(await talk.ask("start", message="Hi"))["turn_id"] for _ in range(2)]
        assert await talk.refused("start", message="Hi") == "too_many_streams"
        assert await refusal(server) == (429, "too_many_streams")
        assert (await talk.ask("follow", turn_id=turns[0]))["type"] == "accepted"
        await talk.ask("unfollow", turn_id=turns[0])
        assert (await talk.ask("start", message="Hi"))["type"] == "accepted"
        for _ in range(3):
            (await puppet.part()).end()
        assert await server.written() == (3, 3)
    async with serve(max_open_streams=1) as server:
        async with talking(server):
            assert await refusal(server) == (429, "too_many_streams")
        await until(lambda: server.turnwire.streams.open_count == 0)
        async with talking(server):
            pass


# How it ends


async def test_a_revoked_key_ends_its_sockets(serve: Serve, puppet: Puppet) -> None:
    async with serve() as server:
        key, text = await server.turnwire.keys.create("ann", ["read", "write"])
        async with talking(server, subprotocols=["turnwire", f"turnwire.key.{text}"]) as talk:
            turn_id = (await talk.ask("start", message="Hi"))["turn_id"]
            token = server.turnwire.control_token
            await server.http.delete(f"/v1/keys/{key.id}", headers={"Authorization": f"Bearer {token}"})
            assert (await talk.closed())[0] == 1008
        (await puppet.part()).end()
        await server.reached(turn_id, 4)


async def test_draining_server_sends_reconnect(serve: Serve, puppet: Puppet) -> None:
    async with serve(shutdown_grace=5) as server, talking(server) as talk:
        await talk.ask("start", message="Hi")
        part = await puppet.part()
        server.turnwire.drain()
        code, messages = await talk.closed()
        assert code == 1012
        assert messages[-1]["type"] == "reconnect"
        assert messages[-1]["retry_ms"] > 0
        part.end()
        assert await refusal(server) == (503, "shutting_down")


async def test_socket_past_its_lifetime_is_asked_to_reconnect(serve: Serve) -> None:
    async with serve(saying("a"), stream_lifetime=0.2) as server, talking(server) as talk:
        code, messages = await talk.closed()
    assert (code, messages[-1]["type"]) == (1012, "reconnect")


async def test_idle_socket_has_a_heartbeat(serve: Serve) -> None:
    async with serve(saying("a"), heartbeat=0.1) as server, talking(server) as talk:
        assert await talk.hear() == {"type": "heartbeat"}


async def test_client_that_reads_nothing_is_closed_without_delaying_others(
    serve: Serve, puppet: Puppet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TurnLog, "_check_response_size", lambda log, size: None)
    async with serve(write_timeout=60) as server, talking(server) as talk:
        (stalled,) = server.turnwire.streams.connections
        turn_id = (await talk.ask("start", message="Hi"))["turn_id"]
        part = await puppet.part()
        talk.connection.transport.pause_reading()
        async with talking(server) as other:
            await other.ask("follow", turn_id=turn_id)
            for _ in range(300):
                part.say("x" * 20_000)
            part.end()
            assert len(text_of(await other.events(turn_id))) == 6_000_000
            assert stalled.is_blocked
            # The server closes the socket, and breaks the connection when that is not taken either.
            let_time_pass(server.turnwire, 2 * 60)
        await until(lambda: server.turnwire.streams.open_count == 0)
        talk.connection.transport.resume_reading()
        await talk.closed()
        async with talking(server) as again:
            seen = [message for message in talk.pending if message["type"] == "event"]
            await again.ask("follow", turn_id=turn_id, after=seen[-1]["position"])
            rest = await again.events(turn_id)
    assert positions(seen + rest) == list(range(1, 305))


async def test_slow_client_gets_the_close_code(serve: Serve, puppet: Puppet) -> None:
    async with serve(write_timeout=60) as server, talking(server) as talk:
        await talk.ask("start", message="Hi")
        part = await puppet.part()
        talk.connection.transport.pause_reading()
        part.say(*["x" * 20_000] * 300)
        (socket,) = server.turnwire.streams.connections
        assert await most_queued(socket, lambda: socket.is_blocked) < 200_000
        let_time_pass(server.turnwire, 60)
        assert socket.is_finished
        talk.connection.transport.resume_reading()
        assert (await talk.closed())[0] == 1013
        part.end()


async def test_messages_of_a_client_that_does_not_read_are_not_handled(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnwire.server.streams.socket.MAX_MESSAGES_PER_SECOND", 1e9)
    async with serve(saying("a"), write_timeout=0.3) as server, talking(server) as talk:
        talk.connection.transport.pause_reading()
        (socket,) = server.turnwire.streams.connections
        sending = asyncio.create_task(_send_for_ever(talk))
        assert await most_queued(socket, lambda: server.turnwire.streams.open_count == 0) < 200_000
        talk.connection.transport.abort()
        await within(asyncio.wait([sending]))
        assert isinstance(sending.exception(), ConnectionClosed)


async def most_queued(socket: Any, holds: Callable[[], bool]) -> int:
    """Return the largest queue size until a condition holds."""
    most = 0

    def look() -> bool:
        nonlocal most
        most = max(most, socket.queued_bytes)
        return holds()

    await until(look)
    assert most > 0
    return most


async def _send_for_ever(talk: Talk) -> None:
    while True:
        await talk.say("ping", id="x" * 128)
