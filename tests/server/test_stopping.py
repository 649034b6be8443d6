"""Cancelling a turn, and the policies for readers that leave."""

import asyncio
from typing import Any

import msgspec
import pytest

from tests.server.conftest import Serve, StoreKind
from tests.serving import Puppet, Served, Stream, error_of, within
from turnwire.core.errors import TurnTakenError
from turnwire.core.log.events import ToolCallEvent, UsageEvent


async def cancel(server: Served, turn_id: str) -> dict[str, Any]:
    response = await server.http.post(f"/v1/turns/{turn_id}/cancel")
    assert response.status_code == 200
    return response.json()


async def test_cancel_answers_when_the_turn_has_stopped_and_keeps_its_text(server: Served, puppet: Puppet) -> None:
    async with server.ask() as stream:
        part = await puppet.part()
        part.say("As far as ", UsageEvent("m", 5, 3), ToolCallEvent("c1", "slow", {}))
        await stream.until("tool_call")
        snapshot = await cancel(server, stream.turn_id)
        assert (snapshot["phase"], snapshot["outcome"]) == ("ended", "cancelled")
        assert snapshot["state"]["text"] == "As far as "
        assert snapshot["state"]["usage"] == {"input_tokens": 5, "output_tokens": 3}
        assert snapshot["state"]["reason"] == "requested"
        assert part.over.is_set()
        frames = await stream.rest()
        assert [frame.type for frame in frames] == ["done"]
        assert (frames[0].event["outcome"], frames[0].event["reason"]) == ("cancelled", "requested")
    exported = (await server.http.get(f"/v1/sessions/{stream.session_id}/export")).json()
    roles = [message["role"] for message in exported["transcript"]]
    # No tool call is left without a result, or the model provider would refuse the history.
    assert roles == ["user", "assistant", "tool", "assistant"]


async def test_repeated_cancel_changes_nothing(server: Served, puppet: Puppet) -> None:
    turn_id = await server.start()
    await puppet.part()
    first, second = await asyncio.gather(cancel(server, turn_id), cancel(server, turn_id))
    third = await cancel(server, turn_id)
    assert first["state"] == second["state"] == third["state"]
    assert [frame.type for frame in await server.whole(turn_id)] == ["session", "message", "done"]


async def test_cancelling_a_turn_that_has_ended_changes_nothing(server: Served, puppet: Puppet) -> None:
    async with server.ask() as stream:
        (await puppet.part()).end()
        frames = await stream.rest()
    assert (await cancel(server, stream.turn_id))["outcome"] == "completed"
    assert await server.whole(stream.turn_id) == frames


async def test_a_queued_turn_is_cancelled_without_being_run(server: Served, puppet: Puppet) -> None:
    async with server.ask("One", session_id="s") as first, server.ask("Two", session_id="s") as second:
        part = await puppet.part()
        assert (await cancel(server, second.turn_id))["outcome"] == "cancelled"
        assert (await second.rest())[-1].event["outcome"] == "cancelled"
        part.end()
        assert (await first.rest())[-1].event["outcome"] == "completed"
    async with server.ask("Three", session_id="s"):
        assert (await puppet.part()).turn.message == "Three"
    assert [part.turn.message for part in puppet.parts] == ["One", "Three"]


async def test_agent_that_ignores_cancellation_is_abandoned(serve: Serve, kind: StoreKind) -> None:
    let_go = asyncio.Event()

    async def stubborn(turn: object):
        yield "I "
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue
        yield "never stop."

    async with serve(stubborn, kind, cancel_patience=0.05) as server, server.ask(session_id="s") as stream:
        await stream.until("token")
        snapshot = await cancel(server, stream.turn_id)
        assert (snapshot["outcome"], snapshot["state"]["text"]) == ("cancelled", "I ")
        assert (await stream.rest())[-1].type == "done"
        let_go.set()
        async with server.ask(session_id="s") as following:
            assert (await following.rest())[-1].event["outcome"] == "completed"
        assert len(await server.whole(stream.turn_id)) == len(stream.seen)


async def test_cancel_that_is_not_acknowledged_in_time_is_a_202_and_stands(
    server: Served, puppet: Puppet, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn_id = await server.start()
    part = await puppet.part()
    runner = server.turnwire.runner
    # As if another process ran the turn, and did not answer.
    monkeypatch.setattr(runner.worker, "end", _taken)
    impatient = msgspec.structs.replace(runner._limits, lease=0.01, cancel_patience=0.01)
    monkeypatch.setattr(runner, "_limits", impatient)
    answer = await server.http.post(f"/v1/turns/{turn_id}/cancel")
    assert (answer.status_code, answer.json()["phase"]) == (202, "running")
    monkeypatch.undo()
    await within(part.over.wait())
    assert (await server.ended(turn_id))["outcome"] == "cancelled"
    assert (await server.http.post(f"/v1/turns/{turn_id}/cancel")).status_code == 200


async def _taken(turn_id: str, stop: object) -> None:
    raise TurnTakenError(turn_id)


async def test_deleting_a_session_stops_its_turns(server: Served, puppet: Puppet) -> None:
    async with server.ask("One", session_id="s") as first, server.ask("Two", session_id="s") as second:
        part = await puppet.part()
        assert (await server.http.delete("/v1/sessions/s")).status_code == 204
        await within(part.over.wait())
        for stream in (first, second):
            assert (await stream.rest())[-1].event["reason"] == "session_deleted"
            assert error_of(await server.http.get(f"/v1/turns/{stream.turn_id}"), 404)
    assert error_of(await server.http.get("/v1/sessions/s"), 404)
    assert await server.written() == (0, 0)


# Leaving is not stopping, unless it was asked for.


async def left_after_the_first_token(server: Served, puppet: Puppet, on_disconnect: Any) -> tuple[Stream, Any]:
    async with server.ask(on_disconnect=on_disconnect) as stream:
        part = await puppet.part()
        part.say("Half")
        await stream.until("token")
    return stream, part


async def test_turn_with_cancel_policy_is_cancelled_when_its_reader_leaves(server: Served, puppet: Puppet) -> None:
    stream, part = await left_after_the_first_token(server, puppet, "cancel")
    await within(part.over.wait())
    snapshot = await server.ended(stream.turn_id)
    assert (snapshot["outcome"], snapshot["state"]["reason"]) == ("cancelled", "disconnected")
    assert snapshot["state"]["text"] == "Half"


async def test_a_turn_with_two_readers_is_not_cancelled_by_the_first_to_leave(server: Served, puppet: Puppet) -> None:
    async with server.ask(on_disconnect="cancel") as first:
        part = await puppet.part()
        turn_id = first.turn_id
        async with server.events(turn_id) as second:
            await second.until("message")
            await first.response.aclose()
            part.say("Still here")
            await second.until("token")
            assert not part.over.is_set()
        await within(part.over.wait())
    assert (await server.ended(turn_id))["outcome"] == "cancelled"


async def test_a_turn_with_a_grace_waits_for_its_reader_to_come_back(server: Served, puppet: Puppet) -> None:
    stream, part = await left_after_the_first_token(server, puppet, {"grace": 30})
    async with server.events(stream.turn_id, last_id=stream.seen[-1].id) as again:
        part.say(" and half")
        await again.until("token")
        part.end()
        assert (await again.rest())[-1].event["outcome"] == "completed"


async def test_a_turn_with_a_grace_is_cancelled_when_nobody_comes_back(server: Served, puppet: Puppet) -> None:
    stream, part = await left_after_the_first_token(server, puppet, {"grace": 0.05})
    await within(part.over.wait())
    assert (await server.ended(stream.turn_id))["outcome"] == "cancelled"


async def test_turn_without_any_reader_is_not_cancelled(server: Served, puppet: Puppet) -> None:
    await server.http.post("/v1/sessions", json={"id": "s"})
    body = {"message": "Hello", "on_disconnect": "cancel"}
    turn_id = (await server.http.post("/v1/sessions/s/turns", json=body)).json()["turn_id"]
    part = await puppet.part()
    part.say("To nobody")
    part.end()
    assert (await server.ended(turn_id))["outcome"] == "completed"


async def test_disconnect_from_chat_cancels_a_turn_with_that_policy(server: Served, puppet: Puppet) -> None:
    body = {"message": "Hello", "on_disconnect": "cancel"}
    asking = asyncio.create_task(server.http.post("/chat", json=body))
    part = await puppet.part()
    asking.cancel()
    await within(part.over.wait())
    assert (await server.ended(part.turn.id))["outcome"] == "cancelled"


@pytest.mark.parametrize("on_disconnect", ["stop", {"grace": -1}, {"grace": 1e9}, {"grace": "soon"}, {}, 5, None])
async def test_unknown_disconnect_policy_is_refused(serve: Serve, on_disconnect: Any) -> None:
    async with serve() as server:
        response = await server.http.post("/chat/stream", json={"message": "Hello", "on_disconnect": on_disconnect})
        assert "on_disconnect" in error_of(response, 422)["message"]
        assert await server.written() == (0, 0)
