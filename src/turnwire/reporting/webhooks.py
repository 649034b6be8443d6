"""Tells an address of the operator's that a turn has ended: signed, at least once, in the way of Standard Webhooks.

The store's outbox has a turn from the step that ends it until it is told or given up. Who delivers takes it for a
while; if that process dies, the time runs out and the next one takes it. So any number of processes may deliver, a
turn may be told of twice (its id is the `webhook-id`, for the receiver to know it by), and none is forgotten.
"""

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import random
from contextlib import suppress
from importlib.metadata import version
from typing import Any

import httpx
import msgspec
from msgspec import Struct

from turnwire.core import metrics
from turnwire.core.codec import now_ms, time_text
from turnwire.core.contracts import Notice, Store
from turnwire.core.errors import NotFoundError, StoreError
from turnwire.core.turns import TurnRecord, TurnState

logger = logging.getLogger("turnwire.webhooks")

SECRET_PREFIX = "whsec_"
_AT_ONCE = 8
_VERSION = version("turnwire")
_LOOK_SECONDS = 5.0
_LONGEST_WAIT_SECONDS = 86_400.0
_GONE = 410


class WebhookLimits(Struct, frozen=True):
    timeout: float
    attempts: int
    retry: float
    content: bool


class Webhooks:
    """Delivers what is due, a few at once. `wake` is for who knows that a turn has just ended."""

    def __init__(self, store: Store, url: str, secret: str, limits: WebhookLimits) -> None:
        self._store = store
        self._url = url
        self._key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
        self._limits = limits
        self._under_way: set[asyncio.Task[None]] = set()
        self._something = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._http: httpx.AsyncClient | None = None

    def open(self) -> None:
        self._http = httpx.AsyncClient(timeout=self._limits.timeout, follow_redirects=False)
        self._task = asyncio.create_task(self._deliver_forever())

    def wake(self, turn_id: str = "") -> None:
        self._something.set()

    async def close(self) -> None:
        """What is under way is left: it is told again by whoever comes next."""
        tasks = [task for task in (self._task, *self._under_way) if task is not None]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
        if self._http is not None:
            await self._http.aclose()

    async def _deliver_forever(self) -> None:
        while True:
            self._something.clear()
            try:
                await self._begin_due()
            except StoreError:
                logger.exception("the outbox could not be read; this is tried again")
            with suppress(TimeoutError):
                async with asyncio.timeout(min(_LOOK_SECONDS, self._limits.retry)):
                    await self._something.wait()

    async def _begin_due(self) -> None:
        room, now = _AT_ONCE - len(self._under_way), now_ms()
        if room <= 0:
            return
        # Long enough for the call, and for what is written after it.
        until = now + int(self._limits.timeout * 2_000)
        for notice in await self._store.take_due(now, until, room):
            task = asyncio.create_task(self._deliver(notice))
            self._under_way.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        self._something.set()

    async def _deliver(self, notice: Notice) -> None:
        record = notice.record
        try:
            state = await self._store.turn_state(record.id)
            failure, is_final = await self._call(record, state or TurnState())
            is_final = is_final or notice.attempts + 1 >= self._limits.attempts
            if failure is None:
                await self._store.dismiss(record.id)
                metrics.WEBHOOKS.add("delivered")
            elif is_final:
                logger.error("the webhook for turn %s is given up: %s", record.id, failure)
                await self._store.dismiss(record.id)
                metrics.WEBHOOKS.add("given_up")
            else:
                metrics.WEBHOOKS.add("failed")
                logger.warning("the webhook for turn %s failed and is tried again: %s", record.id, failure)
                await self._store.put_off(record.id, now_ms() + int(self._wait(notice.attempts) * 1000))
        except NotFoundError:
            pass  # It was erased meanwhile.
        except StoreError:
            logger.exception("the outbox could not be written; turn %s is told of again", record.id)

    async def _call(self, record: TurnRecord, state: TurnState) -> tuple[str | None, bool]:
        """Why it failed, if it did, and whether there is no use in trying again."""
        assert self._http is not None
        body = json.dumps(payload(record, state, content=self._limits.content)).encode()
        try:
            answer = await self._http.post(self._url, content=body, headers=self._headers(record.id, body))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return type(error).__name__, False
        return (None, True) if answer.is_success else (f"it answered {answer.status_code}", answer.status_code == _GONE)

    def _headers(self, turn_id: str, body: bytes) -> dict[str, str]:
        seconds = str(now_ms() // 1000)
        return {
            "content-type": "application/json",
            "user-agent": f"Turnwire/{_VERSION}",
            "webhook-id": turn_id,
            "webhook-timestamp": seconds,
            "webhook-signature": sign(self._key, turn_id, seconds, body),
        }

    def _wait(self, attempts: int) -> float:
        # Spread out, so that what failed together does not come back together.
        return min(self._limits.retry * 3**attempts, _LONGEST_WAIT_SECONDS) * random.uniform(0.9, 1.1)


def sign(key: bytes, message_id: str, seconds: str, body: bytes) -> str:
    signed = hmac.digest(key, b"%b.%b.%b" % (message_id.encode(), seconds.encode(), body), hashlib.sha256)
    return f"v1,{base64.b64encode(signed).decode()}"


def payload(record: TurnRecord, state: TurnState, *, content: bool) -> dict[str, Any]:
    told: dict[str, Any] = {
        "turn_id": record.id,
        "session_id": record.session_id,
        "external_id": record.external_id,
        "principal": record.principal,
        "agent": record.agent,
        "channel": record.channel,
        "outcome": record.outcome,
        "reason": state.reason,
        "error": state.error.code if state.error else None,
        "usage": msgspec.to_builtins(state.usage),
        "timings": state.timings,
        "created_at": time_text(record.created_at),
        "started_at": time_text(record.started_at),
        "ended_at": time_text(record.ended_at),
    }
    if content:
        told |= {
            "message": record.message,
            "content": state.text,
            "citations": msgspec.to_builtins(state.citations),
            "error_message": state.error.error if state.error else None,
        }
    return {"type": "turn.done", "timestamp": time_text(record.ended_at), "data": told}
