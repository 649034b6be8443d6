"""Approvals on `/api/chat`: the turn waits, the client's next message decides, the answer's message continues."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.server.chat_client import URL, asks, chunks, decides, post, posting, read
from tests.server.conftest import Serve, StoreKind
from tests.server.readers import by_user, user
from tests.server.test_auth import holder
from tests.serving import Client, Served, error_of, within
from tests.wires.ui_message import UIMessage
from turnwire.core.errors import StoreError
from turnwire.core.journal.waits import approval
from turnwire.core.log.events import ApprovalRequestEvent, ToolResultEvent
from turnwire.core.log.turns import Turn

PAY, BUY = {"amount": 40, "account": 1234567890123456789}, {"what": "boat"}
SHOWN = {"amount": 40.0, "account": 1234567890123456800}
"""The first value as JavaScript reads it."""


async def careful(turn: Turn) -> AsyncIterator[Any]:
    if turn.message != "Buy it":
        yield f"Heard after {len(turn.history)}."
        return
    yield "May I? "
    requests = [ApprovalRequestEvent("c1", "pay", PAY, "it costs money"), ApprovalRequestEvent("c2", "buy", BUY)]
    for decision in await asyncio.gather(*map(approval, requests)):
        yield ToolResultEvent(decision.call_id, decision.tool, decision.approved, decision.reason)
    yield "One more. "
    last = await approval(ApprovalRequestEvent("c3", "ship", {}))
    yield ToolResultEvent(last.call_id, last.tool, last.approved, last.reason)
    yield "Done."


@pytest.fixture
async def server(serve: Serve, kind: StoreKind) -> AsyncIterator[Served]:
    async with serve(careful, store=kind) as served:
        yield served


async def waiting(client: Client, message: dict[str, Any] | None = None) -> str:
    """Return the id of a waiting turn."""
    return (await post(client, message or asks("Buy it"))).headers["x-turn-id"]


FIRST = (("c1", SHOWN, True), ("c2", BUY, False))
SECOND = (("c3", {}, True),)


async def test_waiting_turn_ends_the_message(server: Served) -> None:
    message = read(await post(server, asks("Buy it")))
    assert (message.text, message.finish_reason, message.error) == ("May I? ", "tool-calls", None)
    assert [(part["tool"], part["state"], part["input"]) for part in message.of("tool")] == [
        ("pay", "approval-requested", PAY),
        ("buy", "approval-requested", BUY),
    ]


async def test_decisions_continue_the_same_message(server: Served) -> None:
    request = await post(server, asks("Buy it"))
    turn_id = request.headers["x-turn-id"]
    message = UIMessage().read(request.content)
    first = await post(server, asks("Buy it"), decides(turn_id, *FIRST, reason="mine"), messageId=turn_id)
    assert chunks(first.content)[0].startswith(b'data: {"type":"start","')
    message.read(first.content)
    assert [part["state"] for part in message.of("tool")] == ["output-available", "output-denied", "approval-requested"]
    assert (message.text, message.finish_reason) == ("May I? One more. ", "tool-calls")
    second = await post(server, decides(turn_id, *SECOND), messageId=turn_id)
    message.read(second.content)
    assert (message.id, message.text, message.finish_reason) == (turn_id, "May I? One more. Done.", "stop")
    assert await server.written() == (1, 1)
    log = [frame.event for frame in await server.whole(turn_id) if frame.type == "approval_response"]
    assert [(event["approved"], event.get("reason"), event["by"]) for event in log[:2]] == [
        (True, "mine", "local"),
        (False, "mine", "local"),
    ]


async def test_repeated_decision_gets_the_same_stream(server: Served) -> None:
    turn_id = await waiting(server)
    first = await post(server, decides(turn_id, *FIRST))
    assert (await post(server, decides(turn_id, *FIRST))).content == first.content
    second = await post(server, decides(turn_id, *SECOND))
    # Each finds the part that followed it, though the turn has ended since.
    assert chunks((await post(server, decides(turn_id, *SECOND))).content) == chunks(second.content)
    assert chunks((await post(server, decides(turn_id, *FIRST))).content)[:3] == chunks(first.content)[:3]


async def test_waiting_turn_is_resumed_whole(server: Served) -> None:
    request = await post(server, asks("Buy it"))
    assert (await server.http.get(f"{URL}/c/stream")).content == request.content
    turn_id = request.headers["x-turn-id"]
    await post(server, decides(turn_id, *FIRST))
    message = read(await server.http.get(f"{URL}/c/stream"))
    assert (message.text, message.finish_reason) == ("May I? One more. ", "tool-calls")
    await post(server, decides(turn_id, *SECOND))
    assert (await server.http.get(f"{URL}/c/stream")).headers["x-turn-id"] == turn_id


async def test_wait_that_cannot_be_read_breaks_the_stream_so_that_it_is_resumed(
    server: Served, monkeypatch: pytest.MonkeyPatch, errors_in_the_log: list[str]
) -> None:
    store = server.turnwire.services.store
    read_log = store.read

    async def fail_once(turn_id: str, after: int, limit: int, *more: Any) -> Any:
        if limit == 1 and after:
            monkeypatch.setattr(store, "read", read_log)
            raise StoreError("the store is away")
        return await read_log(turn_id, after, limit, *more)

    errors_in_the_log.append("turn ")
    monkeypatch.setattr(store, "read", fail_once)
    with pytest.raises(httpx.RemoteProtocolError):
        await post(server, asks("Buy it"))
    message = read(await within(server.http.get(f"{URL}/c/stream")))
    assert (message.text, message.finish_reason) == ("May I? ", "tool-calls")


async def test_partial_decisions_are_kept_and_the_turn_still_waits(server: Served) -> None:
    turn_id = await waiting(server)
    for _ in range(2):
        part = read(await post(server, decides(turn_id, FIRST[0])))
        assert (part.id, part.finish_reason, part.parts) == (turn_id, "tool-calls", [])
    assert (await server.snapshot(turn_id))["phase"] == "waiting"
    # Whoever comes back meanwhile finds the question where it looks for it.
    replayed = read(await within(server.http.get(f"{URL}/c/stream")))
    assert [part["state"] for part in replayed.last_step if part["type"] == "tool"] == ["approval-requested"] * 2
    rest = replayed.read((await post(server, decides(turn_id, *FIRST))).content)
    assert [part["state"] for part in rest.of("tool")] == ["output-available", "output-denied", "approval-requested"]


async def test_invalid_decision_is_refused_with_its_reason(server: Served) -> None:
    turn_id = await waiting(server)
    other = {**PAY, "amount": 41}
    assert error_of(await post(server, decides(turn_id, ("c1", other, True))), 409)["code"] == "approval_conflict"
    assert error_of(await post(server, decides(turn_id, ("c9", {}, True))), 404)["code"] == "approval_not_found"
    assert error_of(await post(server, decides(turn_id, ("c1", SHOWN, None))), 422)["code"] == "invalid_request"
    assert error_of(await post(server, decides("nobody-s", *FIRST)), 404)["code"] == "turn_not_found"
    await post(server, asks("Hello"), chat="other")
    assert error_of(await post(server, decides(turn_id, *FIRST), chat="other"), 404)["code"] == "turn_not_found"
    assert (await server.snapshot(turn_id))["phase"] == "waiting"
    await post(server, decides(turn_id, *FIRST))
    assert error_of(await post(server, decides(turn_id, ("c1", SHOWN, False))), 409)["code"] == "approval_conflict"


async def test_stop_cancels_a_waiting_turn(server: Served) -> None:
    turn_id = await waiting(server)
    await within(server.http.post(f"{URL}/c/stop"))
    assert error_of(await post(server, decides(turn_id, *FIRST)), 409)["code"] == "turn_not_waiting"
    replayed = read(await server.http.get(f"{URL}/{turn_id}/stream"))
    assert (replayed.aborted, [part["state"] for part in replayed.of("tool")]) == (True, ["output-error"] * 2)


async def test_message_instead_of_decision_interrupts_the_wait(server: Served) -> None:
    question = asks("Buy it")
    turn_id = await waiting(server, question)
    answer = read(await post(server, question, asks("Never mind")))
    assert answer.text.startswith("Heard after ")
    assert (await server.snapshot(turn_id))["outcome"] == "cancelled"


async def test_message_with_enqueue_waits_behind_a_waiting_turn(server: Served) -> None:
    turn_id = await waiting(server)
    async with posting(server, asks("Later"), on_busy="enqueue") as queued:
        assert (await server.snapshot(queued.turn_id))["phase"] == "queued"
        await post(server, decides(turn_id, *FIRST))
        await post(server, decides(turn_id, *SECOND))
        await queued.rest()
    assert UIMessage().read(queued.raw).text.startswith("Heard after ")


async def test_each_segment_counts_its_chunks_from_zero(server: Served) -> None:
    request = await post(server, asks("Buy it"), chat=None)
    turn_id = request.headers["x-turn-id"]
    first = await post(server, decides(turn_id, *FIRST), chat=None)
    second = await post(server, decides(turn_id, *SECOND), chat=None)
    runs = [answer.headers["x-workflow-run-id"] for answer in (request, first, second)]
    assert len(set(runs)) == 3
    whole = chunks((await server.http.get(f"{URL}/{runs[0]}/stream")).content)
    assert whole == [*chunks(request.content), *chunks(first.content), *chunks(second.content)]
    for answer, run in ((request, runs[0]), (first, runs[1]), (second, runs[2])):
        begin = whole.index(chunks(answer.content)[0]) if run == runs[0] else len(whole) - len(_from(whole, answer))
        for index in range(len(chunks(answer.content))):
            rest = await server.http.get(f"{URL}/{run}/stream", params={"startIndex": index})
            assert chunks(rest.content) == whole[begin + index :]


def _from(whole: list[bytes], answer: Any) -> list[bytes]:
    """Return the chunks from the start of an answer."""
    own_chunks = chunks(answer.content)
    begins = [start for start in range(len(whole)) if whole[start : start + len(own_chunks)] == own_chunks]
    return whole[begins[-1] :]


async def test_decision_of_another_principal_is_not_found(serve: Serve) -> None:
    async with serve(careful, authenticate=by_user) as server, user(server, "anna") as anna, user(server, "bob") as bob:
        turn_id = await waiting(anna)
        assert error_of(await post(bob, decides(turn_id, *FIRST), chat=None), 404)["code"] == "turn_not_found"
        assert (await post(anna, decides(turn_id, *FIRST))).status_code == 200


async def test_key_without_approve_scope_cannot_decide(serve: Serve) -> None:
    async with (
        serve(careful) as server,
        holder(server, "anna", ("read", "write")) as writer,
        holder(server, "anna", ("read", "write", "approve")) as approver,
    ):
        turn_id = await waiting(writer)
        assert error_of(await post(writer, decides(turn_id, *FIRST)), 403)["code"] == "forbidden"
        assert (await post(approver, decides(turn_id, *FIRST))).status_code == 200


async def test_version_5_gets_a_data_part_and_decides_by_our_route(serve: Serve) -> None:
    async with serve(careful, ai_sdk={"version": 5}) as server:
        request = await post(server, asks("Buy it"))
        message = read(request, version=5)
        assert [part["data"]["state"] for part in message.of("data-approval")] == ["requested", "requested"]
        turn_id = request.headers["x-turn-id"]
        for call_id in ("c1", "c2", "c3"):
            await within(server.http.post(f"/v1/turns/{turn_id}/approvals/{call_id}", json={"approved": True}))
            if call_id == "c2":
                again = await server.http.get(f"{URL}/c/stream")  # It waits again, or soon will.
                assert again.status_code == 200
        await server.ended(turn_id)
        replayed = read(await server.http.get(f"{URL}/{turn_id}/stream"), version=5)
    assert (replayed.text, replayed.finish_reason) == ("May I? One more. Done.", "stop")
