"""Signed `turn.done` and `turn.waiting` webhooks in the format of Standard Webhooks, delivered at least once.

A turn enters the store's outbox in the commit that ends or suspends it, and leaves it when it is delivered or given up.
A process claims an entry for a limited time; if it dies, the claim runs out and another process delivers. So a webhook
may arrive twice (`webhook-id` identifies it: the turn's id, and for a wait its deadline), and none is lost. A wait that
is over before it could be delivered is not delivered, because nobody has to act on it any more.
"""

import asyncio
import base64
import hashlib
import hmac
import json
import logging
from contextlib import suppress
from importlib.metadata import version
from typing import Any

import httpx
import msgspec

from turnwire.core import metrics
from turnwire.core.backoff import Backoff
from turnwire.core.contracts.stores import Notice, Store
from turnwire.core.errors import NotFoundError
from turnwire.core.log.codec import now_ms, time_text
from turnwire.core.log.follow import fold_log
from turnwire.core.log.state import TurnFold
from turnwire.core.log.turns import TurnRecord, TurnState

logger = logging.getLogger("turnwire.webhooks")

SECRET_PREFIX = "whsec_"
_MAX_CONCURRENT = 8
USER_AGENT = f"Turnwire/{version('turnwire')}"
_POLL_SECONDS = 5.0
# The usual limit of the senders of Standard Webhooks: a receiver puts the work into a queue and answers at once.
TIMEOUT_SECONDS = 15.0
# Twelve attempts with a factor of three are two and a half days: a receiver that fails on a Friday has the weekend.
MAX_ATTEMPTS = 12
# The delay before the first retry: a receiver that restarts is back by then, and the answer is not late.
RETRY_SECONDS = 5.0
_MAX_DELAY_SECONDS = 86_400.0
_MAX_ANSWER_BYTES = 16 * 1024
_GONE = 410


class Webhooks:
    """Delivers the due webhooks, a few at a time. `wake` starts a delivery without waiting for the next poll.

    With `content`, payloads have the message and the answer; with `waiting`, turns that wait are delivered too.
    """

    def __init__(self, store: Store, url: str, secret: str, *, content: bool = False, waiting: bool = False) -> None:
        self._store = store
        self._url = url
        self._key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
        self._has_content = content
        self._has_waits = waiting
        # Jitter, so that webhooks that failed together are not retried together.
        self._backoff = Backoff(first=RETRY_SECONDS, longest=_MAX_DELAY_SECONDS, factor=3, jitter=0.1)
        self._deliveries: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._http: httpx.AsyncClient | None = None

    def open(self) -> None:
        self._http = httpx.AsyncClient(timeout=TIMEOUT_SECONDS, follow_redirects=False)
        self._task = asyncio.create_task(self._deliver_forever())

    def wake(self, turn: TurnRecord | None = None) -> None:
        self._wake.set()

    async def close(self) -> None:
        """Stop at once. Interrupted deliveries are repeated when their claims run out."""
        tasks = [task for task in (self._task, *self._deliveries) if task is not None]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
        if self._http is not None:
            await self._http.aclose()

    async def _deliver_forever(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self._start_due()
            except Exception:
                # Whatever it is, later webhooks must not be lost with it.
                logger.exception("the webhook outbox could not be read and is retried")
            with suppress(TimeoutError):
                async with asyncio.timeout(min(_POLL_SECONDS, RETRY_SECONDS)):
                    await self._wake.wait()

    async def _start_due(self) -> None:
        room, now = _MAX_CONCURRENT - len(self._deliveries), now_ms()
        if room <= 0:
            return
        # The claim covers the request and the write after it.
        until = now + int(TIMEOUT_SECONDS * 2_000)
        for notice in await self._store.take_due(now, until, room):
            task = asyncio.create_task(self._deliver(notice))
            self._deliveries.add(task)
            task.add_done_callback(self._on_delivered)

    def _on_delivered(self, task: asyncio.Task[None]) -> None:
        self._deliveries.discard(task)
        self._wake.set()

    async def _deliver(self, notice: Notice) -> None:
        record = notice.record
        try:
            if (body := await self._payload(record)) is None:
                return await self._store.reschedule(notice, None)
            failure, is_final = await self._post(message_id(record), json.dumps(body).encode())
            is_final = is_final or notice.attempts + 1 >= MAX_ATTEMPTS
            if failure is None:
                await self._store.reschedule(notice, None)
                metrics.WEBHOOKS.add("delivered")
            elif is_final:
                logger.error("webhook for turn %s failed for the last time: %s", record.id, failure)
                await self._store.reschedule(notice, None)
                metrics.WEBHOOKS.add("given_up")
            else:
                metrics.WEBHOOKS.add("failed")
                logger.warning("webhook for turn %s failed and is retried: %s", record.id, failure)
                delay = self._backoff.delay(notice.attempts + 1)
                await self._store.reschedule(notice, now_ms() + int(delay * 1000))
        except NotFoundError:
            pass  # The turn was erased meanwhile.
        except Exception:
            logger.exception("the webhook of turn %s could not be made or recorded; it is delivered again", record.id)

    async def _payload(self, record: TurnRecord) -> dict[str, Any] | None:
        """Return the payload for a turn; None if there is nothing to deliver any more."""
        content = self._has_content
        if record.phase == "ended":
            state = await self._store.turn_state(record.id)
            return payload(record, state or TurnState(), content=content)
        if record.phase == "waiting" and self._has_waits:
            return waiting_payload(record, await fold_log(self._store, record.id), content=content)
        return None

    async def _post(self, message_id: str, body: bytes) -> tuple[str | None, bool]:
        """Send the webhook. Return the failure, None on success, and True if a retry is useless."""
        assert self._http is not None
        try:
            headers = self._headers(message_id, body)
            # The client's own timeout is that of a single read or write.
            async with (
                asyncio.timeout(TIMEOUT_SECONDS),
                self._http.stream("POST", self._url, content=body, headers=headers) as response,
            ):
                # Only the status counts. A short answer is read, so that the connection can be used again.
                if response.headers.get("content-length", "").isdigit() and (
                    int(response.headers["content-length"]) <= _MAX_ANSWER_BYTES
                ):
                    await response.aread()
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
            return type(error).__name__, False
        if response.is_success:
            return None, True
        return f"HTTP status {response.status_code}", response.status_code == _GONE

    def _headers(self, message_id: str, body: bytes) -> dict[str, str]:
        seconds = str(now_ms() // 1000)
        return {
            "content-type": "application/json",
            "user-agent": USER_AGENT,
            "webhook-id": message_id,
            "webhook-timestamp": seconds,
            "webhook-signature": sign(self._key, message_id, seconds, body),
        }


def sign(key: bytes, message_id: str, seconds: str, body: bytes) -> str:
    digest = hmac.digest(key, b"%b.%b.%b" % (message_id.encode(), seconds.encode(), body), hashlib.sha256)
    return f"v1,{base64.b64encode(digest).decode()}"


def message_id(record: TurnRecord) -> str:
    """Return the id of a webhook: the same for every attempt, another one for each wait of a turn."""
    return record.id if record.phase == "ended" else f"{record.id}-waiting-{record.waiting_until}"


def _facts(record: TurnRecord) -> dict[str, Any]:
    return {
        "turn_id": record.id,
        "session_id": record.session_id,
        "external_id": record.external_id,
        "principal": record.principal,
        "agent": record.agent,
        "channel": record.channel,
    }


def waiting_payload(record: TurnRecord, fold: TurnFold, *, content: bool) -> dict[str, Any]:
    """Return the payload for a turn that waits, with each thing that it waits for."""
    waits = [
        *(("approval", each.call_id, {"tool": each.tool, "args": each.args}) for each in fold.requests.undecided),
        *(
            ("question", each.id, {"prompt": each.prompt, "schema": each.schema})
            for each in fold.requests.open_questions
        ),
        *(
            ("client_tool", each.call_id, {"tool": each.tool, "args": each.args})
            for each in fold.requests.open_client_calls
        ),
    ]
    data = {
        **_facts(record),
        "waits_for": [{"kind": kind, "id": id, **(details if content else {})} for kind, id, details in waits],
        "expires_at": time_text(record.waiting_until),
        "created_at": time_text(record.created_at),
        "started_at": time_text(record.started_at),
    }
    if content:
        data |= {"message": record.message, "content": fold.text}
    return {"type": "turn.waiting", "timestamp": time_text(now_ms()), "data": data}


def payload(record: TurnRecord, state: TurnState, *, content: bool) -> dict[str, Any]:
    """Return the payload for a turn that has ended."""
    data: dict[str, Any] = {
        **_facts(record),
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
        data |= {
            "message": record.message,
            "content": state.text,
            "citations": msgspec.to_builtins(state.citations),
            "error_message": state.error.error if state.error else None,
        }
    return {"type": "turn.done", "timestamp": time_text(record.ended_at), "data": data}
