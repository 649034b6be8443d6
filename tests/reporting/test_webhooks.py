"""A webhook tells of every turn that ended, signed, at least once, also over failures and restarts."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from standardwebhooks import Webhook, WebhookVerificationError

from tests.reporting.receiving import Received, Receiver, receiving
from tests.serving import quick_settings, until, within
from turnwire import Settings, Turn, Turnwire
from turnwire.core import metrics
from turnwire.core.errors import AgentError
from turnwire.core.events import UsageEvent
from turnwire.core.runner import TurnRequest

SECRET = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


async def answer(turn: Turn) -> Any:
    yield "An answer "
    yield UsageEvent("m", 3, 4)
    if turn.message == "fail":
        raise AgentError("what was asked cannot be", code="no_such_thing")
    yield "in private."


def calling(receiver: Receiver, folder: Path, store: Any = "memory", **settings: Any) -> Turnwire:
    told = {"webhook_url": f"{receiver.url}/hook", "webhook_secret": SECRET, "webhook_retry": 0.02, **settings}
    return Turnwire(answer, store=store, settings=quick_settings(folder, **told))


async def ask(turnwire: Turnwire, message: str = "hello") -> str:
    return (await turnwire.runner.start(TurnRequest(principal="ann", message=message))).record.id


def opened(call: Received) -> dict[str, Any]:
    """What it says, if its signature is right in the eyes of the standard's own library."""
    return Webhook(SECRET).verify(call.body, call.headers)


def told_of(receiver: Receiver) -> set[str]:
    """The turns that it has been called about."""
    return {call.headers["webhook-id"] for call in receiver.received}


async def test_a_turn_that_ended_is_told_signed_and_without_a_word_of_what_was_said(
    receiver: Receiver, tmp_path: Path
) -> None:
    turnwire = calling(receiver, tmp_path)
    async with turnwire.lifespan():
        turn_id = await ask(turnwire, "a question in private")
        (call,) = await receiver.count(1)
    told = opened(call)
    assert (call.path, call.headers["webhook-id"], told["type"]) == ("/hook", turn_id, "turn.done")
    about = told["data"]
    assert (about["turn_id"], about["principal"], about["agent"]) == (turn_id, "ann", "default")
    assert (about["outcome"], about["usage"]) == ("completed", {"input_tokens": 3, "output_tokens": 4})
    assert about["timings"]["total_ms"] >= 0
    assert told["timestamp"] == about["ended_at"]
    assert b"private" not in call.body
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(call.body + b" ", call.headers)


async def test_with_content_the_message_and_the_answer_are_told_too(receiver: Receiver, tmp_path: Path) -> None:
    turnwire = calling(receiver, tmp_path, webhook_content=True)
    async with turnwire.lifespan():
        await ask(turnwire, "fail")
        (call,) = await receiver.count(1)
    about = opened(call)["data"]
    assert (about["message"], about["content"]) == ("fail", "An answer ")
    assert (about["outcome"], about["error"]) == ("failed", "no_such_thing")
    assert about["error_message"] == "what was asked cannot be"


async def test_a_call_that_fails_is_tried_again_and_a_redirect_is_a_failure(receiver: Receiver, tmp_path: Path) -> None:
    receiver.answers, delivered = [500, 302, 503], metrics.WEBHOOKS.values["delivered"]
    turnwire = calling(receiver, tmp_path)
    async with turnwire.lifespan():
        turn_id = await ask(turnwire)
        calls = await receiver.count(4)
        await until(lambda: metrics.WEBHOOKS.values["delivered"] == delivered + 1)
    assert {(call.path, call.headers["webhook-id"]) for call in calls} == {("/hook", turn_id)}
    assert len({call.body for call in calls}) == 1
    assert all(opened(call) for call in calls)


@pytest.mark.parametrize(("answers", "attempts", "calls"), [([500, 500, 500, 500], 3, 3), ([410], 3, 1)])
async def test_a_call_is_given_up_after_so_many_attempts_or_when_nobody_wants_it(
    receiver: Receiver, tmp_path: Path, answers: list[int], attempts: int, calls: int
) -> None:
    given_up = metrics.WEBHOOKS.values["given_up"]
    receiver.answers = answers
    turnwire = calling(receiver, tmp_path, webhook_attempts=attempts)
    async with turnwire.lifespan():
        await ask(turnwire)
        await until(lambda: metrics.WEBHOOKS.values["given_up"] == given_up + 1)
    assert len(receiver.received) == calls


async def test_what_was_not_told_is_told_by_the_next_process(receiver: Receiver, tmp_path: Path) -> None:
    receiver.answers = [0] * 1000  # It takes the call and never answers, however often it is tried.
    first = calling(receiver, tmp_path, "sqlite", webhook_timeout=0.5, webhook_attempts=1000)
    async with first.lifespan():
        turns = {await ask(first), await ask(first)}
        await until(lambda: told_of(receiver) == turns)
    receiver.answers, receiver.received = [], []
    second = calling(receiver, tmp_path, "sqlite", webhook_timeout=0.5)
    delivered = metrics.WEBHOOKS.values["delivered"]
    async with second.lifespan():
        await until(lambda: metrics.WEBHOOKS.values["delivered"] == delivered + 2)
    assert told_of(receiver) == turns
    # What was told is told once.
    third = calling(receiver, tmp_path, "sqlite")
    async with third.lifespan():
        assert await within(third.store.take_due(10**15, 10**15, 10)) == []


async def test_a_webhook_without_a_secret_is_refused_and_the_secret_is_never_quoted() -> None:
    wrong: list[dict[str, Any]] = [{}, {"webhook_secret": "hunter2"}, {"webhook_secret": "whsec_c2hvcnQ="}]
    for secret in wrong:
        with pytest.raises(ValidationError, match="openssl rand") as refused:
            Settings(webhook_url="https://example.org/hook", **secret)
        assert "hunter2" not in str(refused.value)
    assert SECRET not in repr(Settings(webhook_url="https://example.org/hook", webhook_secret=SECRET))  # type: ignore[arg-type]
    assert json.dumps(SECRET) not in Settings(webhook_secret=SECRET).model_dump_json()  # type: ignore[arg-type]
