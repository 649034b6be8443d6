"""Receiving updates by polling and by webhook: none lost, none handled twice."""

import asyncio
import socket
from typing import Any

import httpx
import pytest

from tests.channels.telegram.agents import Gated
from tests.channels.telegram.bot_api import TOKEN, Refused
from tests.channels.telegram.world import ADA, World
from turnwire.channels.telegram.client import Clock
from turnwire.channels.telegram.config import TelegramConfig
from turnwire.channels.telegram.updates import UpdateReceiver
from turnwire.core.errors import StoreError

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


async def test_update_that_comes_twice_is_handled_once(world: World) -> None:
    await world.start()
    world.api.says(ADA, "hello")
    update = world.api.updates[0]
    await world.api.until(lambda: world.api.texts(ADA))
    world.api.again(update)
    world.api.says(ADA, "more")
    await world.api.until(lambda: len(world.api.texts(ADA)) == 2)
    await world.delivered()
    assert [text for text, *_ in world.kernel.received] == ["hello", "more"]


async def test_flood_wait_of_the_first_call_is_observed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def flooded(params: dict[str, Any]) -> Any:
        monkeypatch.undo()
        raise Refused(429, "Too Many Requests: retry after 30", retry_after=30)

    monkeypatch.setattr(world.api, "_do_getMe", flooded)
    await world.start()
    await world.api.until(lambda: len(world.api.made("getMe")) == 2)
    first, second = world.api.made("getMe")
    assert second.at - first.at >= 30


async def test_message_sent_while_the_server_was_down_is_answered(world: World) -> None:
    await world.start()
    await world.api.until(lambda: world.api.made("getMe"))
    await world.crash()
    world.api.says(ADA, "anybody there?")
    await world.start()
    await world.api.until(lambda: world.api.texts(ADA) == ["You said: anybody there?"])
    await world.delivered()


async def test_confirmed_update_is_answered_after_a_crash(world: World) -> None:
    world.agent = Gated()
    await world.start()
    world.api.says(ADA, "hello")
    await world.api.until(lambda: world.kernel.received and not world.api.updates)
    await world.crash()
    await world.start()
    await world.api.until(lambda: world.kernel.received)
    assert [text for text, *_ in world.kernel.received] == ["hello"]


async def test_update_that_the_kernel_has_not_accepted_is_sent_again(world: World) -> None:
    await world.start()
    accept, failures = world.kernel.accept, [StoreError("the journal is full")]

    async def fail_once(*args: Any, **options: Any) -> Any:
        if failures:
            raise failures.pop()
        return await accept(*args, **options)

    world.kernel.accept = fail_once  # type: ignore[method-assign]
    world.api.says(ADA, "hello")
    assert world.service is not None
    with pytest.raises(StoreError):
        await world.service
    # The kernel starts the service again, and Telegram sends the update again.
    world.service = asyncio.create_task(world.channel.run_background())
    await world.api.until(lambda: world.api.texts(ADA) == ["You said: hello"])
    await world.delivered()
    assert len(world.kernel.received) == 1


async def test_failing_command_does_not_block_the_next_update(world: World, caplog: pytest.LogCaptureFixture) -> None:
    await world.start()

    async def fail(user_id: str) -> None:
        raise RuntimeError("a bug")

    world.kernel.new_session = fail  # type: ignore[method-assign]
    world.api.says(ADA, "/new")
    world.api.says(ADA, "hello")
    await world.api.until(lambda: world.api.texts(ADA) == ["You said: hello"])
    await world.delivered()
    assert "could not be handled" in caplog.text


async def test_second_poller_degrades_the_channel_until_it_is_gone(world: World) -> None:
    await world.start()
    await world.api.until(lambda: world.api.polls)
    await healthy(world, "running")
    async with httpx.AsyncClient(base_url=f"{world.api.url}/bot{TOKEN}/", trust_env=False, timeout=30) as other:
        other_poll = asyncio.create_task(other.post("getUpdates", json={"timeout": 30, "allowed_updates": ["message"]}))
        await healthy(world, "degraded")
        health = await world.channel.health_check()
        assert "same token" in health.message
        assert (await other_poll).status_code == 409
        # The other poller gives up.
        await healthy(world, "running")
    world.api.says(ADA, "hello")
    await world.api.until(lambda: world.api.texts(ADA))
    await world.delivered()


async def test_wrong_token_fails_with_a_hint(world: World) -> None:
    world.secrets["TELEGRAM_BOT_TOKEN"] = "1:wrong"
    await world.start()
    await healthy(world, "failed")
    assert "BotFather" in (await world.health())[1]


@pytest.mark.parametrize("token", ["", "not a token", "42:with space"])
async def test_channel_without_a_valid_token_is_unconfigured(world: World, token: str) -> None:
    world.secrets["TELEGRAM_BOT_TOKEN"] = token
    await world.start()
    state, hint = await world.health()
    assert state == "unconfigured"
    assert "TELEGRAM_BOT_TOKEN" in hint
    assert token not in hint or not token


async def test_unavailable_telegram_degrades_the_channel_and_is_retried(world: World) -> None:
    world.api.plan("getUpdates", "bad gateway", "lost")
    await world.start()
    await healthy(world, "degraded")
    world.api.says(ADA, "hello")
    await world.api.until(lambda: world.api.texts(ADA))
    await world.delivered()
    await healthy(world, "running")


async def test_channel_is_stopped_and_started_again(world: World) -> None:
    await world.start()
    await world.crash()
    assert (await world.health())[0] == "degraded"
    await world.channel.start()
    await world.channel.stop()
    await world.channel.destroy()


class ManualClock(Clock):
    """A clock that only the test moves."""

    time = 0.0

    def now(self) -> float:
        return self.time


def test_silence_degrades_polling_but_not_a_webhook() -> None:
    clock = ManualClock()
    polling, webhook = (receiver(clock, webhook_url=url) for url in (None, "https://example.org/telegram"))
    clock.time = 140
    assert polling.health().state == "running"
    clock.time = 160
    assert polling.health().state == "degraded"
    # A webhook is silent until a person writes.
    assert webhook.health().state == "running"


def receiver(clock: Clock, **config: Any) -> UpdateReceiver:
    async def ignore(updates: Any, bot: Any) -> None: ...

    api: Any = None
    return UpdateReceiver(api, clock, TelegramConfig.model_validate(config), "", ignore)


# Webhook


async def hooked(world: World) -> str:
    world.secrets["TELEGRAM_WEBHOOK_SECRET"] = SECRET
    port = free_port()
    url = f"http://127.0.0.1:{port}/telegram"
    await world.start(webhook_url=url, webhook_port=port)
    await world.api.until(lambda: world.api.webhook)
    return url


async def test_webhook_receives_updates(world: World) -> None:
    await hooked(world)
    assert world.api.webhook is not None
    assert world.api.webhook[1] == SECRET
    world.api.says(ADA, "hello")
    await world.api.until(lambda: world.api.texts(ADA) == ["You said: hello"])
    await world.delivered()
    assert world.api.made("getUpdates") == []


@pytest.mark.parametrize("secret", [None, "", "wrong", SECRET + "x"])
async def test_webhook_without_the_right_secret_is_refused(world: World, secret: str | None) -> None:
    url = await hooked(world)
    world.api.says(ADA, "hello")
    forged = {"update_id": 1, "message": {"message_id": 1, "chat": {"id": ADA}, "from": {"id": ADA}, "text": "forged"}}
    headers = {} if secret is None else {"X-Telegram-Bot-Api-Secret-Token": secret}
    async with httpx.AsyncClient(trust_env=False) as http:
        assert (await http.post(url, json=forged, headers=headers)).status_code == 401
    await world.api.until(lambda: world.api.texts(ADA))
    await world.delivered()
    assert [text for text, *_ in world.kernel.received] == ["hello"]


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"", 400), (b"[]", 400), (b"{}", 400), (b'{"update_id": "x"}', 400), (b" " * 1024 * 1025, 413)],
)
async def test_webhook_refuses_invalid_bodies(world: World, body: bytes, status: int) -> None:
    url = await hooked(world)
    async with httpx.AsyncClient(trust_env=False) as http:
        answer = await http.post(url, content=body, headers={"X-Telegram-Bot-Api-Secret-Token": SECRET})
        assert answer.status_code == status
        assert (await http.get(url)).status_code == 405


@pytest.mark.parametrize("secret", [None, "", "not allowed!", "x" * 257])
async def test_webhook_without_a_valid_secret_is_not_opened(world: World, secret: Any) -> None:
    if secret is not None:
        world.secrets["TELEGRAM_WEBHOOK_SECRET"] = secret
    await world.start(webhook_url="https://example.org/telegram")
    state, hint = await world.health()
    assert state == "unconfigured"
    assert "TELEGRAM_WEBHOOK_SECRET" in hint
    assert world.api.webhook is None
