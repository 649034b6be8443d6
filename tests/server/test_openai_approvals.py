"""Approvals by OpenAI's clients: a response ends with requests, the next one begins with decisions."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from tests.server.conftest import Serve, StoreKind
from tests.server.openai_clients import openai_of
from tests.server.test_auth import holder
from tests.serving import PATIENCE, Served, within
from turnwire import Turn
from turnwire.core.journal.waits import approval
from turnwire.core.log.events import ApprovalRequestEvent, ToolResultEvent


async def careful(turn: Turn) -> AsyncIterator[Any]:
    """Asks about two calls, then about a third, then is done."""
    yield "May I? "
    requests = [ApprovalRequestEvent(name, "pay", {"amount": 40}, "it costs") for name in ("c1", "c2")]
    for decision in await asyncio.gather(*map(approval, requests)):
        yield ToolResultEvent(decision.call_id, "pay", decision.approved, decision.reason or "paid")
    yield "And this? "
    last = await approval(ApprovalRequestEvent("c3", "tip", {}))
    yield ToolResultEvent(last.call_id, "pay", last.approved, last.reason or "paid")
    yield "Done."


@pytest.fixture
async def server(serve: Serve, kind: StoreKind) -> AsyncIterator[Served]:
    async with serve(careful, store=kind) as served:
        yield served


@pytest.fixture
async def client(server: Served) -> AsyncIterator[AsyncOpenAI]:
    async with openai_of(server) as client:
        yield client


def decisions(response: Any, approve: bool = True, reason: str | None = None) -> Any:
    requests = [item for item in response.output if item.type == "mcp_approval_request"]
    reason_field = {"reason": reason} if reason else {}
    return [
        {"type": "mcp_approval_response", "approval_request_id": item.id, "approve": approve, **reason_field}
        for item in requests
    ]


def kinds(response: Any) -> list[str]:
    return [item.type for item in response.output]


async def whole(stream: Any) -> list[Any]:
    async with asyncio.timeout(PATIENCE):
        return [event async for event in stream]


async def test_each_decision_begins_a_response_of_the_same_turn(server: Served, client: AsyncOpenAI) -> None:
    first = await within(client.responses.create(input="Buy it"))
    assert (first.status, first.output_text) == ("completed", "May I? ")
    assert kinds(first) == [
        "message",
        "function_call",
        "mcp_approval_request",
        "function_call",
        "mcp_approval_request",
    ]
    second = await within(client.responses.create(input=decisions(first), previous_response_id=first.id))
    assert (second.id, second.previous_response_id) == (f"{first.id}_2", first.id)
    assert (second.status, second.output_text) == ("completed", "And this? ")
    assert kinds(second) == [
        "function_call_output",
        "function_call_output",
        "message",
        "function_call",
        "mcp_approval_request",
    ]
    third = await within(
        client.responses.create(input=decisions(second, approve=False, reason="no"), previous_response_id=second.id)
    )
    assert (third.id, third.status, third.output_text) == (f"{first.id}_3", "completed", "Done.")
    assert third.output[0].output == "no"  # type: ignore[union-attr]
    assert len((await server.http.get("/v1/sessions")).json()["sessions"]) == 1
    for response in (first, second, third):
        assert await client.responses.retrieve(response.id) == response
    items = await client.responses.input_items.list(third.id)
    assert [(item.type, item.approve, item.reason) for item in items.data] == [  # type: ignore[union-attr]
        ("mcp_approval_response", False, "no")
    ]
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(f"{first.id}_4")


async def test_streams_end_with_the_request_and_begin_with_the_decision(client: AsyncOpenAI) -> None:
    first = await whole(await client.responses.create(input="Buy it", stream=True))
    assert first[-1].type == "response.completed"
    waiting_response = first[-1].response
    stream = await client.responses.create(
        input=decisions(waiting_response), previous_response_id=waiting_response.id, stream=True
    )
    second = await whole(stream)
    assert [event.type for event in second[:3]] == [
        "response.created",
        "response.in_progress",
        "keepalive",
    ]
    assert [event.sequence_number for event in second] == list(range(len(second)))
    assert second[-1].response.output_text == "And this? "
    # While the turn still waits, and after: each is read again from any place, and ends.
    await _resumed_everywhere(client, waiting_response.id, first)
    await _resumed_everywhere(client, second[-1].response.id, second)
    async with client.responses.stream(
        model="default",
        input=decisions(second[-1].response),
        previous_response_id=second[-1].response.id,
    ) as helper:
        final = await within(helper.get_final_response())
    assert final.output_text == "Done."
    await _resumed_everywhere(client, waiting_response.id, first)


async def _resumed_everywhere(client: AsyncOpenAI, response_id: str, events: list[Any]) -> None:
    for number in range(-1, len(events)):
        cursor: Any = {} if number < 0 else {"starting_after": number}
        rest = await whole(await client.responses.retrieve(response_id, stream=True, **cursor))
        assert [event.to_json() for event in rest] == [event.to_json() for event in events[number + 1 :]]
    with pytest.raises(openai.BadRequestError):
        await client.responses.retrieve(response_id, stream=True, starting_after=len(events) + 1)


async def test_repeated_decision_changes_nothing(client: AsyncOpenAI) -> None:
    first = await within(client.responses.create(input="Buy it"))
    deciding: Any = {"input": decisions(first), "previous_response_id": first.id}
    second = await within(client.responses.create(**deciding))
    assert await within(client.responses.create(**deciding)) == second
    streamed = await whole(await client.responses.create(**deciding, stream=True))
    assert streamed[-1].response == second
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(input=decisions(first, approve=False), previous_response_id=first.id)
    assert refused.value.code == "approval_conflict"


async def test_a_decision_may_be_taken_in_a_conversation(client: AsyncOpenAI) -> None:
    first = await within(client.responses.create(input="Buy it", conversation="shop"))
    second = await within(client.responses.create(input=decisions(first), conversation="shop"))
    assert second.output_text == "And this? "


async def test_invalid_decision_is_refused_with_its_reason(server: Served, client: AsyncOpenAI) -> None:
    first = await within(client.responses.create(input="Buy it"))
    first_decision, second_decision = decisions(first)
    wrong: list[tuple[Any, str]] = [
        ([first_decision], "missing: 'c2'"),
        ([first_decision, second_decision, {**first_decision, "approval_request_id": "mcpr_c9"}], "'c9'"),
        ([first_decision, second_decision, {**first_decision, "approval_request_id": "c1"}], "not the id of a request"),
        ([first_decision, {**second_decision, "approve": "yes"}], r"input\[1\]\.approve"),
        ([first_decision, {**second_decision, "reason": 7}], r"input\[1\]\.reason"),
        ([first_decision, {"type": "mcp_approval_response", "approve": True}], r"input\[1\]\.approval_request_id"),
        ([first_decision, second_decision, {"role": "user", "content": "and be quick"}], "send answers alone"),
    ]
    for items, message in wrong:
        with pytest.raises(openai.BadRequestError, match=message):
            await client.responses.create(input=items, previous_response_id=first.id)
    with pytest.raises(openai.BadRequestError, match="name the response"):
        await client.responses.create(input=[first_decision, second_decision])
    # Nothing of this was a decision.
    steps = (await server.snapshot(first.id.removeprefix("resp_")))["state"]["steps"]
    assert [step["state"] for step in steps] == ["waiting", "waiting"]
    assert (
        await within(client.responses.create(input=[first_decision, second_decision], previous_response_id=first.id))
    ).output_text


async def test_message_instead_of_decision_interrupts_the_turn(server: Served, client: AsyncOpenAI) -> None:
    first = await within(client.responses.create(input="Buy it"))
    key = {"Idempotency-Key": "k"}
    asking: Any = {"input": "Never mind", "previous_response_id": first.id, "extra_headers": key}
    other, again = [await within(client.responses.create(**asking)) for _ in range(2)]
    assert again == other
    assert other.output_text == "May I? "
    snapshot = await server.snapshot(first.id.removeprefix("resp_"))
    assert (snapshot["outcome"], snapshot["state"]["reason"]) == ("cancelled", "superseded")
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(input=decisions(first), previous_response_id=first.id)
    assert refused.value.code == "turn_not_waiting"


async def test_key_without_approve_scope_cannot_decide(serve: Serve) -> None:
    async with (
        serve(careful) as server,
        holder(server, "anna", ("read", "write")) as writer,
        holder(server, "anna") as approver,
        openai_of(server, writer.key) as asking,
        openai_of(server, approver.key) as deciding,
    ):
        first = await within(asking.responses.create(input="Buy it"))
        request: Any = {"input": decisions(first), "previous_response_id": first.id}
        with pytest.raises(openai.PermissionDeniedError):
            await asking.responses.create(**request)
        assert (await within(deciding.responses.create(**request))).output_text == "And this? "
