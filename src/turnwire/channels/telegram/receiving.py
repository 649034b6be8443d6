"""How updates come in: asked for in long polls, or brought by Telegram to a webhook.

Either way they are written down before Telegram is told that they have come, so none is lost, and one that comes
twice is taken once.
"""

import asyncio
import hmac
import socket
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import uvicorn

from turnwire.channels.telegram.client import BotApi
from turnwire.channels.telegram.clock import Clock
from turnwire.channels.telegram.failures import ConflictError, FloodError, TelegramError, TokenError
from turnwire.channels.telegram.updates import ALLOWED_UPDATES
from turnwire.extensions.contract import Health

TakeUpdates = Callable[[Sequence[dict[str, Any]]], Awaitable[None]]

_SILENT_SECONDS = 120.0
_MOST_BYTES = 1024 * 1024
_FIRST_PAUSE, _MOST_PAUSE = 1.0, 60.0


class Reception:
    """Whether updates come in."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = clock.now()
        self._heard_at: float | None = None
        self._error: TelegramError | None = None

    def heard(self) -> None:
        self._heard_at, self._error = self._clock.now(), None

    def failed(self, error: TelegramError) -> None:
        self._error = error

    def health(self, patience: float | None) -> Health:
        """`patience` is how long a silence may last, and some more; None where silence means nothing."""
        match self._error:
            case TokenError():
                return Health("failed", "Telegram knows no bot with this token", "get one from @BotFather")
            case ConflictError():
                hint = "stop the other one, or give each a bot of its own"
                return Health("degraded", "somebody else takes this bot's updates with the same token", hint)
            case None:
                pass
            case _:
                return Health("degraded", f"Telegram cannot be reached: {self._error}")
        silence = self._clock.now() - (self._heard_at if self._heard_at is not None else self._began)
        if patience is not None and silence > patience + _SILENT_SECONDS:
            return Health("degraded", "nothing has been heard of Telegram for some minutes")
        return Health("running")


class Polling:
    def __init__(self, api: BotApi, reception: Reception, clock: Clock, timeout: int) -> None:
        self._api = api
        self._reception = reception
        self._clock = clock
        self._timeout = timeout
        self._offset: int | None = None

    async def run(self, take: TakeUpdates) -> None:
        """Until it is cancelled."""
        pause = _FIRST_PAUSE
        is_ours = False
        while True:
            try:
                if not is_ours:
                    # While there is a webhook, nothing can be asked for.
                    await self._api.call("deleteWebhook")
                    is_ours = True
                await self._poll(take)
                self._reception.heard()
                pause = _FIRST_PAUSE
            except TelegramError as error:
                self._reception.failed(error)
                is_ours = is_ours and not isinstance(error, ConflictError)
                flood = error.retry_after if isinstance(error, FloodError) else 0.0
                await self._clock.sleep(max(pause, flood))
                pause = min(pause * 2, _MOST_PAUSE)

    async def _poll(self, take: TakeUpdates) -> None:
        params = {"offset": self._offset, "timeout": self._timeout, "allowed_updates": ALLOWED_UPDATES}
        updates = await self._api.call("getUpdates", params, wait=float(self._timeout))
        await take(updates)
        # Naming the next one makes Telegram forget those before it. Nothing came means that it has: from then on the
        # next is whatever comes, because after a quiet week Telegram counts anew, and maybe lower.
        self._offset = max(update["update_id"] for update in updates) + 1 if updates else None


class Webhook:
    """An ASGI app for one path. Behind it nothing is done before the update is written down."""

    def __init__(self, secret: str, take: TakeUpdates, reception: Reception) -> None:
        self._secret = secret.encode()
        self._take = take
        self._reception = reception

    async def __call__(self, scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Any) -> None:
        if scope["type"] == "http":
            status = await self._answer(scope, receive)
            await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})

    async def _answer(self, scope: dict[str, Any], receive: Callable[[], Awaitable[Any]]) -> int:
        headers = dict(scope["headers"])
        given = headers.get(b"x-telegram-bot-api-secret-token", b"")
        if scope["method"] != "POST":
            return 405
        if not hmac.compare_digest(given, self._secret):
            return 401
        body = b""
        more = True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return 400
            body += message.get("body", b"")
            if len(body) > _MOST_BYTES:
                return 413
            more = message.get("more_body", False)
        try:
            update = msgspec.json.decode(body, type=dict[str, Any])
            if not isinstance(update.get("update_id"), int):
                return 400
        except msgspec.MsgspecError:
            return 400
        await self._take([update])
        self._reception.heard()
        return 200


class _Listener(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Generator[None]:
        # Signals are for the server that this one is a guest of.
        yield


async def listen(app: Webhook, host: str, port: int) -> None:
    """Serves the webhook until it is cancelled. Raises OSError if the port is taken."""
    with socket.create_server((host, port)) as bound:
        config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1)
        server = _Listener(config)
        serving = asyncio.create_task(server.serve([bound]))
        try:
            await asyncio.shield(serving)
        finally:
            server.should_exit = True
            await asyncio.wait([serving], timeout=5)
