"""The client: one error class for each way to react, and a token that never leaks."""

import logging
import traceback
from typing import Any

import pytest

from tests.channels.telegram.bot_api import TOKEN, BotApi
from tests.channels.telegram.world import ADA, World
from turnwire.channels.telegram import client
from turnwire.channels.telegram.client import (
    BadRequestError,
    Clock,
    FloodError,
    ForbiddenError,
    TelegramError,
    TokenError,
    UncertainError,
    UnreachableError,
)


async def failure(api: BotApi, method: str, token: str = TOKEN, url: str | None = None, **params: Any) -> TelegramError:
    calling = client.BotApi(token, url or api.url, api.clock)
    with pytest.raises(TelegramError) as caught:
        await calling.call(method, params)
    await calling.close()
    return caught.value


async def test_each_failure_has_its_error_class(clock: Clock) -> None:
    async with BotApi(clock) as api:
        api.says(ADA, "hello")
        message = {"chat_id": ADA, "message_id": 999, "text": "x"}
        unknown = await failure(api, "editMessageText", **message)
        assert isinstance(unknown, BadRequestError)
        assert unknown.kind == "no_message"
        long = await failure(api, "sendMessage", chat_id=ADA, text="x" * 4097)
        assert isinstance(long, BadRequestError)
        assert long.kind == "too_long"
        bad = await failure(
            api, "sendMessage", chat_id=ADA, text="x", entities=[{"type": "bold", "offset": 0, "length": 9}]
        )
        assert isinstance(bad, BadRequestError)
        assert bad.kind == "entities"
        assert isinstance(await failure(api, "getMe", token="1:wrong"), TokenError)
        assert isinstance(await failure(api, "getMe", url="http://127.0.0.1:9"), UnreachableError)
        for fault in ("cut", "hang", "lost", "bad gateway"):
            api.plan("getMe", fault)
            assert isinstance(await failure(api, "getMe"), UncertainError)
        api.blocked.add(ADA)
        assert isinstance(await failure(api, "sendMessage", chat_id=ADA, text="x"), ForbiddenError)
        api.flood(ADA, 30)
        flooded = await failure(api, "sendMessage", chat_id=ADA, text="x")
        assert isinstance(flooded, FloodError)
        assert flooded.retry_after >= 30


async def test_token_is_in_no_log_error_or_file(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    await world.start()
    world.api.plan("sendMessage", "bad gateway", "cut", "lost")
    world.api.says(ADA, "hello")
    await world.api.until(lambda: world.api.texts(ADA))
    await world.delivered()
    errors = [
        await failure(world.api, "getMe", url="http://127.0.0.1:9"),
        await failure(world.api, "nothing"),
        await failure(world.api, "getMe", url="http://nowhere.invalid:1"),
    ]
    output = caplog.text + "".join("".join(traceback.format_exception(error)) for error in errors)
    assert "HTTP Request: POST" in output
    assert "/bot<token>/sendMessage" in output
    assert TOKEN not in output
    assert all(error.__cause__ is None for error in errors)
    assert TOKEN not in world.stored_text()


async def test_log_filters_are_removed_with_the_client(clock: Clock) -> None:
    before = {name: len(logging.getLogger(name).filters) for name in client.LOGGERS}
    opened = client.BotApi(TOKEN, "http://127.0.0.1:9", clock)
    assert all(len(logging.getLogger(name).filters) == count + 1 for name, count in before.items())
    await opened.close()
    assert {name: len(logging.getLogger(name).filters) for name in before} == before
