"""How updates come in: none lost, none taken twice, one poller, a webhook that proves itself."""

import asyncio
import socket
from typing import Any

import httpx
import pytest

from tests.channels.telegram.agents import Gated
from tests.channels.telegram.bot_api import TOKEN
from tests.channels.telegram.world import ADA, World
from turnwire.channels.telegram.rate_limits import Clock
from turnwire.channels.telegram.updates import UpdateReceiver

SECRET = "a-Secret_42"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def healthy(world: World, state: str) -> None:
    async with asyncio.timeout(world.api.patience):
        while (await world.health())[0] != state:
            count = len(world.api.calls)
            await world.api.until(lambda count=count: len(world.api.calls) > count)


async def test_an_update_that_comes_twice_is_taken_once(world: World) -> None:
    await world.start()
    world.api.says(ADA, "hello")
    update = world.api._updates[0]
    await world.api.until(lambda: world.api.texts(ADA))
    world.api.again(update)
    world.api.says(ADA, "more")
    await world.api.until(lambda: len(world.api.texts(ADA)) == 2)
    await world.delivered()
    assert [text for text, *_ in world.kernel.asked] == ["hello", "more"]


async def test_what_was_said_while_nobody_listened_is_answered(world: World) -> None:
    await world.start()
    await world.api.until(lambda: world.api.made("getMe"))
    await world.crash()
    world.api.says(ADA, "anybody there?")
    await world.start()
    await world.api.until(lambda: world.api.texts(ADA) == ["You said: anybody there?"])
    await world.delivered()


async def test_telegram_may_forget_an_update_because_it_is_written_down(world: World) -> None:
    world.agent = Gated()
    await world.start()
    world.api.says(ADA, "hello")
    await world.api.until(lambda: world.kernel.asked and not world.api._updates)
    await world.crash()
    await world.start()
    await world.api.until(lambda: world.kernel.asked)
    assert [text for text, *_ in world.kernel.asked] == ["hello"]


async def test_a_second_poller_is_told_of_and_waited_out(world: World) -> None:
    await world.start()
    await world.api.until(lambda: world.api._poll)
    await healthy(world, "running")
    async with httpx.AsyncClient(base_url=f"{world.api.url}/bot{TOKEN}/", trust_env=False, timeout=30) as other:
        other_poll = asyncio.create_task(other.post("getUpdates", json={"timeout": 30, "allowed_updates": ["message"]}))
        await healthy(world, "degraded")
        health = await world.channel.health_check()
        assert "same token" in health.message
        assert (await other_poll).status_code == 409
        # The other one gives up, and all is well again.
        await healthy(world, "running")
    world.api.says(ADA, "hello")
    await world.api.until(lambda: world.api.texts(ADA))
    await world.delivered()


async def test_a_wrong_token_is_a_failure_with_a_hint(world: World) -> None:
    world.secrets["TELEGRAM_BOT_TOKEN"] = "1:wrong"
    await world.start()
    await healthy(world, "failed")
    assert "BotFather" in (await world.health())[1]


@pytest.mark.parametrize("token", ["", "not a token", "42:with space"])
async def test_without_a_token_it_waits_to_be_set_up(world: World, token: str) -> None:
    world.secrets["TELEGRAM_BOT_TOKEN"] = token
    await world.start()
    state, hint = await world.health()
    assert state == "unconfigured"
    assert "TELEGRAM_BOT_TOKEN" in hint
    assert token not in hint or not token


async def test_a_telegram_that_is_away_is_told_of_and_asked_again(world: World) -> None:
    world.api.plan("getUpdates", "bad gateway", "lost")
    await world.start()
    await healthy(world, "degraded")
    world.api.says(ADA, "hello")
    await world.api.until(lambda: world.api.texts(ADA))
    await world.delivered()
    await healthy(world, "running")


async def test_it_can_be_stopped_and_started_again(world: World) -> None:
    await world.start()
    await world.crash()
    assert (await world.health())[0] == "degraded"
    await world.channel.start()
    await world.channel.stop()
    await world.channel.destroy()


class Standing(Clock):
    """Time stands still but for the test."""

    time = 0.0

    def now(self) -> float:
        return self.time


def test_a_silence_of_minutes_is_told_of_where_it_means_something() -> None:
    clock = Standing()
    reception = UpdateReceiver(clock)
    clock.time = 100
    reception.heard()
    clock.time = 240
    assert reception.health(30).state == "running"
    clock.time = 260
    assert reception.health(30).state == "degraded"
    # At a webhook nothing is heard until somebody writes.
    assert reception.health(None).state == "running"


# Webhook


async def hooked(world: World) -> str:
    world.secrets["TELEGRAM_WEBHOOK_SECRET"] = SECRET
    port = free_port()
    url = f"http://127.0.0.1:{port}/telegram"
    await world.start(webhook_url=url, webhook_port=port)
    await world.api.until(lambda: world.api.webhook)
    return url


async def test_a_webhook_brings_updates(world: World) -> None:
    await hooked(world)
    assert world.api.webhook is not None
    assert world.api.webhook[1] == SECRET
    world.api.says(ADA, "hello")
    await world.api.until(lambda: world.api.texts(ADA) == ["You said: hello"])
    await world.delivered()
    assert world.api.made("getUpdates") == []


@pytest.mark.parametrize("secret", [None, "", "wrong", SECRET + "x"])
async def test_a_webhook_believes_only_who_knows_the_secret(world: World, secret: str | None) -> None:
    url = await hooked(world)
    world.api.says(ADA, "hello")
    forged = {"update_id": 1, "message": {"message_id": 1, "chat": {"id": ADA}, "from": {"id": ADA}, "text": "forged"}}
    headers = {} if secret is None else {"X-Telegram-Bot-Api-Secret-Token": secret}
    async with httpx.AsyncClient(trust_env=False) as http:
        assert (await http.post(url, json=forged, headers=headers)).status_code == 401
    await world.api.until(lambda: world.api.texts(ADA))
    await world.delivered()
    assert [text for text, *_ in world.kernel.asked] == ["hello"]


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"", 400), (b"[]", 400), (b"{}", 400), (b'{"update_id": "x"}', 400), (b" " * 1024 * 1025, 413)],
)
async def test_a_webhook_refuses_what_is_no_update(world: World, body: bytes, status: int) -> None:
    url = await hooked(world)
    async with httpx.AsyncClient(trust_env=False) as http:
        answer = await http.post(url, content=body, headers={"X-Telegram-Bot-Api-Secret-Token": SECRET})
        assert answer.status_code == status
        assert (await http.get(url)).status_code == 405


@pytest.mark.parametrize("secret", [None, "", "not allowed!", "x" * 257])
async def test_a_webhook_without_a_secret_is_not_opened(world: World, secret: Any) -> None:
    if secret is not None:
        world.secrets["TELEGRAM_WEBHOOK_SECRET"] = secret
    await world.start(webhook_url="https://example.org/telegram")
    state, hint = await world.health()
    assert state == "unconfigured"
    assert "TELEGRAM_WEBHOOK_SECRET" in hint
    assert world.api.webhook is None
