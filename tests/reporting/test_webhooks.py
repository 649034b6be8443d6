"""Tests of webhooks: signed, delivered at least once, retried over failures and restarts."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError
from standardwebhooks import Webhook, WebhookVerificationError

from tests.reporting.http_receiver import ENDLESS, ReceivedRequest, Receiver, run_receiver
from tests.serving import PATIENCE, quick_settings, until, within
from turnwire import Settings, Turn, Turnwire, call_client_tool
from turnwire import ask as ask_user
from turnwire.core import metrics
from turnwire.core.errors import AgentError
from turnwire.core.log.codec import now_ms
from turnwire.core.log.events import UsageEvent
from turnwire.core.run.runner import TurnRequest
from turnwire.reporting import webhooks
from turnwire.scheduler.schedule import Schedule
from turnwire.scheduler.service import SchedulerService

SECRET = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with run_receiver() as receiver:
        yield receiver


async def answer(turn: Turn) -> Any:
    yield "An answer "
    yield UsageEvent("m", 3, 4)
    if turn.message == "fail":
        raise AgentError("what was asked cannot be", code="no_such_thing")
    yield "in private."


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "RETRY_SECONDS", 0.02)


@pytest.fixture
def brief_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let claims of the outbox run out soon, and let no webhook be given up."""
    monkeypatch.setattr(webhooks, "TIMEOUT_SECONDS", 0.5)
    monkeypatch.setattr(webhooks, "MAX_ATTEMPTS", 1000)


def turnwire_with_webhooks(
    receiver: Receiver, folder: Path, store: Any = "memory", agent: Any = answer, **settings: Any
) -> Turnwire:
    options = {"webhook_url": f"{receiver.url}/hook", "webhook_secret": SECRET, **settings}
    return Turnwire(agent, store=store, settings=quick_settings(folder, **options))


async def ask(turnwire: Turnwire, message: str = "hello") -> str:
    return (await turnwire.runner.start(TurnRequest(principal="ann", message=message))).record.id


def verify(call: ReceivedRequest) -> dict[str, Any]:
    """Verify the signature with the standard's own library and return the payload."""
    return Webhook(SECRET).verify(call.body, call.headers)


def delivered_turns(receiver: Receiver) -> set[str]:
    """Return the turns of the received webhooks."""
    return {call.headers["webhook-id"] for call in receiver.received}


async def test_end_of_a_scheduled_turn_is_delivered(receiver: Receiver, tmp_path: Path) -> None:
    turnwire = turnwire_with_webhooks(receiver, tmp_path)
    async with turnwire.lifespan():
        now = now_ms()
        schedule = Schedule(id="", principal="ann", message="hello", created_at=now, at=now)
        added = await turnwire.services.of(SchedulerService).scheduler.add(schedule)
        await receiver.count(1)
        run = await turnwire.services.of(SchedulerService).scheduler.last_run(added)
        assert run is not None
        assert delivered_turns(receiver) == {run.turn_id}


async def test_ended_turn_is_delivered_signed_and_without_content(receiver: Receiver, tmp_path: Path) -> None:
    turnwire = turnwire_with_webhooks(receiver, tmp_path)
    async with turnwire.lifespan():
        turn_id = await ask(turnwire, "a question in private")
        (call,) = await receiver.count(1)
    payload = verify(call)
    assert (call.path, call.headers["webhook-id"], payload["type"]) == ("/hook", turn_id, "turn.done")
    data = payload["data"]
    assert (data["turn_id"], data["principal"], data["agent"]) == (turn_id, "ann", "default")
    assert (data["outcome"], data["usage"]) == ("completed", {"input_tokens": 3, "output_tokens": 4})
    assert data["timings"]["total_ms"] >= 0
    assert payload["timestamp"] == data["ended_at"]
    assert b"private" not in call.body
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(call.body + b" ", call.headers)


async def test_webhook_content_adds_message_and_answer(receiver: Receiver, tmp_path: Path) -> None:
    turnwire = turnwire_with_webhooks(receiver, tmp_path, content_in=["webhooks"])
    async with turnwire.lifespan():
        await ask(turnwire, "fail")
        (call,) = await receiver.count(1)
    data = verify(call)["data"]
    assert (data["message"], data["content"]) == ("fail", "An answer ")
    assert (data["outcome"], data["error"]) == ("failed", "no_such_thing")
    assert data["error_message"] == "what was asked cannot be"


async def test_failed_request_and_redirect_are_retried(receiver: Receiver, tmp_path: Path) -> None:
    receiver.statuses, delivered = [500, 302, 503], metrics.WEBHOOKS.values["delivered"]
    turnwire = turnwire_with_webhooks(receiver, tmp_path)
    async with turnwire.lifespan():
        turn_id = await ask(turnwire)
        calls = await receiver.count(4)
        await until(lambda: metrics.WEBHOOKS.values["delivered"] == delivered + 1)
    assert {(call.path, call.headers["webhook-id"]) for call in calls} == {("/hook", turn_id)}
    assert len({call.body for call in calls}) == 1
    assert all(verify(call) for call in calls)


async def test_request_that_takes_longer_than_its_time_is_retried(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the receiver sends a little now and then, so that no single read takes too long."""
    send, slow = httpx.AsyncHTTPTransport.handle_async_request, ["the first"]

    async def handle(transport: httpx.AsyncHTTPTransport, request: httpx.Request) -> httpx.Response:
        if slow:
            slow.pop()
            await asyncio.Event().wait()
        return await send(transport, request)

    monkeypatch.setattr(httpx.AsyncHTTPTransport, "handle_async_request", handle)
    failed = metrics.WEBHOOKS.values["failed"]
    monkeypatch.setattr(webhooks, "TIMEOUT_SECONDS", 1)
    turnwire = turnwire_with_webhooks(receiver, tmp_path)
    async with turnwire.lifespan():
        turn_id = await ask(turnwire)
        await receiver.count(1)
    assert delivered_turns(receiver) == {turn_id}
    assert metrics.WEBHOOKS.values["failed"] > failed


async def test_unexpected_failure_of_the_outbox_does_not_end_the_deliveries(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    turnwire = turnwire_with_webhooks(receiver, tmp_path)
    take_due, failures = turnwire.store.take_due, [RuntimeError("no store at all")]

    async def fail_once(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return await take_due(*arguments)

    monkeypatch.setattr(turnwire.store, "take_due", fail_once)
    async with turnwire.lifespan():
        turn_id = await ask(turnwire)
        await receiver.count(1)
    assert delivered_turns(receiver) == {turn_id}
    assert "outbox could not be read" in caplog.text


@pytest.mark.parametrize(("statuses", "calls"), [([500, 500, 500, 500], 3), ([410], 1)])
async def test_webhook_is_given_up_after_max_attempts_or_status_410(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statuses: list[int], calls: int
) -> None:
    monkeypatch.setattr(webhooks, "MAX_ATTEMPTS", 3)
    failures = metrics.WEBHOOKS.values["given_up"]
    receiver.statuses = statuses
    turnwire = turnwire_with_webhooks(receiver, tmp_path)
    async with turnwire.lifespan():
        await ask(turnwire)
        await until(lambda: metrics.WEBHOOKS.values["given_up"] == failures + 1)
    assert len(receiver.received) == calls


@pytest.mark.usefixtures("brief_claims")
async def test_undelivered_webhook_is_delivered_by_the_next_process(receiver: Receiver, tmp_path: Path) -> None:
    receiver.statuses = [0] * 1000  # The receiver takes every request and never answers.
    first = turnwire_with_webhooks(receiver, tmp_path, "sqlite")
    async with first.lifespan():
        turns = {await ask(first), await ask(first)}
        await until(lambda: delivered_turns(receiver) == turns)
    receiver.statuses, receiver.received = [], []
    second = turnwire_with_webhooks(receiver, tmp_path, "sqlite")
    delivered = metrics.WEBHOOKS.values["delivered"]
    async with second.lifespan():
        await until(lambda: metrics.WEBHOOKS.values["delivered"] == delivered + 2)
    assert delivered_turns(receiver) == turns
    # Delivered webhooks leave the outbox.
    third = turnwire_with_webhooks(receiver, tmp_path, "sqlite")
    async with third.lifespan():
        assert await within(third.store.take_due(10**15, 10**15, 10)) == []


async def test_webhook_without_valid_secret_is_refused_and_secret_is_not_quoted() -> None:
    invalid: list[dict[str, Any]] = [{}, {"webhook_secret": "hunter2"}, {"webhook_secret": "whsec_c2hvcnQ="}]
    for secret in invalid:
        with pytest.raises(ValidationError, match="openssl rand") as refused:
            Settings(webhook_url="https://example.org/hook", **secret)
        assert "hunter2" not in str(refused.value)
    assert SECRET not in repr(Settings(webhook_url="https://example.org/hook", webhook_secret=SECRET))  # type: ignore[arg-type]
    assert json.dumps(SECRET) not in Settings(webhook_secret=SECRET).model_dump_json()  # type: ignore[arg-type]


async def test_endless_answer_of_the_receiver_is_not_read(receiver: Receiver, tmp_path: Path) -> None:
    receiver.statuses = [ENDLESS]
    delivered = metrics.WEBHOOKS.values["delivered"]
    turnwire = turnwire_with_webhooks(receiver, tmp_path)
    await turnwire.open()
    try:
        await ask(turnwire)
        await until(lambda: metrics.WEBHOOKS.values["delivered"] == delivered + 1)
    finally:
        await within(turnwire.close())
    assert receiver.endless_bytes < 16 * 1024 * 1024


# Turns that wait


async def ask_twice(turn: Turn) -> Any:
    plan = await ask_user("Which plan?", PLAN)
    place = await call_client_tool("locate", {"exact": True})
    yield f"{plan} in {place}"


PLAN = {"type": "string", "enum": ["basic", "plus"]}
ask_twice.takes_client_tools = True  # type: ignore[attr-defined]
LOCATE = {"name": "locate", "description": "", "parameters": {"type": "object", "properties": {}}}


def waiting_turnwire(receiver: Receiver, folder: Path, **settings: Any) -> Turnwire:
    return turnwire_with_webhooks(receiver, folder, "sqlite", agent=ask_twice, webhook_waiting=True, **settings)


async def ask_with_tools(turnwire: Turnwire) -> str:
    request = TurnRequest(principal="ann", message="private plan", options={"client_tools": [LOCATE]})
    return (await turnwire.runner.start(request)).record.id


async def test_every_wait_of_a_turn_is_delivered_once_signed(receiver: Receiver, tmp_path: Path) -> None:
    turnwire = waiting_turnwire(receiver, tmp_path)
    async with turnwire.lifespan():
        turn_id = await ask_with_tools(turnwire)
        (question,) = await receiver.count(1)
        (wait,) = verify(question)["data"]["waits_for"]
        assert wait["kind"] == "question"
        await turnwire.runner.reply(turn_id, wait["id"], "plus")
        _, tool_call = await receiver.count(2)
        (call,) = verify(tool_call)["data"]["waits_for"]
        await turnwire.runner.send_tool_result(turn_id, call["id"], "Oslo")
        _, _, done = await receiver.count(3)
    assert [verify(each)["type"] for each in (question, tool_call, done)] == [
        "turn.waiting",
        "turn.waiting",
        "turn.done",
    ]
    assert call["kind"] == "client_tool"
    assert len(delivered_turns(receiver)) == 3
    assert done.headers["webhook-id"] == turn_id
    assert verify(question)["data"]["turn_id"] == turn_id
    assert b"private" not in question.body + tool_call.body
    assert b"plan?" not in question.body


async def test_content_of_a_wait_has_the_question(receiver: Receiver, tmp_path: Path) -> None:
    turnwire = waiting_turnwire(receiver, tmp_path, content_in=["webhooks"])
    async with turnwire.lifespan():
        await ask_with_tools(turnwire)
        (call,) = await receiver.count(1)
    data = verify(call)["data"]
    assert data["message"] == "private plan"
    assert [(wait["prompt"], wait["schema"]) for wait in data["waits_for"]] == [("Which plan?", PLAN)]


@pytest.mark.usefixtures("brief_claims")
async def test_wait_that_was_not_delivered_is_delivered_by_the_next_process(receiver: Receiver, tmp_path: Path) -> None:
    receiver.statuses = [0] * 1000
    first = waiting_turnwire(receiver, tmp_path)
    async with first.lifespan():
        turn_id = await ask_with_tools(first)
        await receiver.count(1)
    receiver.statuses, receiver.received = [], []
    second = waiting_turnwire(receiver, tmp_path)
    async with second.lifespan():
        (call,) = await receiver.count(1)
        assert verify(call)["data"]["turn_id"] == turn_id


async def test_wait_that_is_over_is_not_delivered_and_the_end_is(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "RETRY_SECONDS", 3600)
    receiver.statuses = [500]
    turnwire = waiting_turnwire(receiver, tmp_path)
    async with turnwire.lifespan():
        turn_id = await ask_with_tools(turnwire)
        await receiver.count(1)
        # The end replaces the notice of the wait, which is not due for an hour.
        await turnwire.runner.cancel(turn_id)
        _, done = await receiver.count(2)
        assert (verify(done)["type"], verify(done)["data"]["outcome"]) == ("turn.done", "cancelled")


async def test_waits_are_not_delivered_unless_they_are_wanted(receiver: Receiver, tmp_path: Path) -> None:
    turnwire = turnwire_with_webhooks(receiver, tmp_path, agent=ask_twice)
    async with turnwire.lifespan():
        turn_id = await ask_with_tools(turnwire)
        await until_waiting(turnwire, turn_id)
        await turnwire.runner.cancel(turn_id)
        (done,) = await receiver.count(1)
    assert verify(done)["type"] == "turn.done"


async def until_waiting(turnwire: Turnwire, turn_id: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while (await turnwire.store.find_turn("ann", turn_id)).phase != "waiting":  # noqa: ASYNC110 - the store knows
            await asyncio.sleep(0.01)
