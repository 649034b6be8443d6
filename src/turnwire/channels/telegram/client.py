"""The client of the Bot API over HTTP, with one error class for each way to react, and the rate limits of its calls.

The token is part of every URL. httpx logs URLs, so a filter removes the token from its log lines while a client is
open, and its own errors, which hold the request, are never passed on.

Telegram counts all kinds of calls to a chat together, and a call during a flood wait makes the wait longer. So every
call takes from the chat's budget first. Durable calls, which must arrive, wait for it. Cosmetic calls, such as edits
of a growing answer, are skipped when the budget is used up or a durable call waits.
"""

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec

if TYPE_CHECKING:
    import httpx

_TIMEOUT_SECONDS = 20.0
_DOWNLOAD_SECONDS = 60.0
# A call is counted when it reaches the server, not when it leaves.
_MARGIN = 1.05
# The loggers that write request URLs, which hold the token.
LOGGERS = ("httpx", "httpcore.connection", "httpcore.http11", "httpcore.http2", "httpcore.proxy")

BadRequestKind = Literal["not_modified", "no_message", "entities", "too_long", "no_thread", "no_chat", "other"]

# Phrases of the server's descriptions; the first match counts.
_KINDS: tuple[tuple[str, BadRequestKind], ...] = (
    ("message is not modified", "not_modified"),
    ("message to edit not found", "no_message"),
    ("message can't be edited", "no_message"),
    ("message_id_invalid", "no_message"),
    ("message identifier is not specified", "no_message"),
    ("message to delete not found", "no_message"),
    ("message can't be deleted", "no_message"),
    ("can't parse entities", "entities"),
    ("entity", "entities"),
    ("message is too long", "too_long"),
    ("message_too_long", "too_long"),
    ("message thread not found", "no_thread"),
    ("chat not found", "no_chat"),
    ("group chat was upgraded", "no_chat"),
)


class Clock:
    """The clock of every pause and limit of the channel, which tests replace."""

    def now(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class TelegramError(Exception):
    """A call of the Bot API failed."""

    def __init__(self, description: str) -> None:
        super().__init__(description)
        self.description = description


class FloodError(TelegramError):
    """Too many calls: wait for `retry_after` seconds (429)."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"too many calls; wait {retry_after:g} s")
        self.retry_after = retry_after


class BadRequestError(TelegramError):
    """The call cannot work as it is; `kind` gives the reason (400)."""

    def __init__(self, description: str) -> None:
        super().__init__(description)
        self.kind = _kind(description.casefold())


def _kind(description: str) -> BadRequestKind:
    for phrase, kind in _KINDS:
        if phrase in description:
            return kind
    return "other"


class ForbiddenError(TelegramError):
    """The bot was blocked or removed from the chat (403)."""


class TokenError(TelegramError):
    """The token is not valid (401, 404)."""


class ConflictError(TelegramError):
    """Another process polls for this bot, or a webhook is set (409)."""


class UnreachableError(TelegramError):
    """The call was not made: retry it."""


class UncertainError(TelegramError):
    """The call may have been made: look before retrying it."""


class _ApiReply(msgspec.Struct):
    ok: bool
    result: Any = None
    description: str = ""
    error_code: int = 0
    parameters: dict[str, Any] = {}


class _TokenFilter(logging.Filter):
    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if self._token in message:
            record.msg, record.args = message.replace(self._token, "<token>"), None
        return True


class BotApi:
    """The client of one bot."""

    def __init__(self, token: str, api_url: str, clock: Clock) -> None:
        """Raises ImportError if httpx is not installed."""
        import httpx

        self._httpx = httpx
        self._clock = clock
        self._token = token
        self._root = f"{api_url.rstrip('/')}/bot{token}/"
        self._files = f"{api_url.rstrip('/')}/file/bot{token}/"
        # One connection for the poll, the others for messages.
        self._http = httpx.AsyncClient(limits=httpx.Limits(max_connections=40), follow_redirects=False)
        self._filter = _TokenFilter(token)
        for name in LOGGERS:
            logging.getLogger(name).addFilter(self._filter)

    async def call(self, method: str, params: Mapping[str, Any] | None = None, *, wait: float = 0.0) -> Any:
        """Return the result of a call. `wait` is the length of a long poll. Raises TelegramError."""
        body = {name: value for name, value in (params or {}).items() if value is not None}
        timeout = _TIMEOUT_SECONDS + wait
        try:
            # httpx bounds the silence between bytes only; this bounds the whole response.
            async with asyncio.timeout(timeout + 5):
                response = await self._http.post(
                    self._root + method,
                    content=msgspec.json.encode(body),
                    headers={"content-type": "application/json"},
                    timeout=timeout,
                )
        except (self._httpx.ConnectError, self._httpx.ConnectTimeout, self._httpx.PoolTimeout) as error:
            raise UnreachableError(f"{method}: {self._cleaned(error)}") from None
        except (self._httpx.HTTPError, TimeoutError) as error:
            raise UncertainError(f"{method}: {self._cleaned(error)}") from None
        return self._read(method, response)

    async def download(self, file_id: str, max_bytes: int) -> bytes:
        """Return a file that somebody sent. Raises TelegramError, also for one that is larger."""
        path = (await self.call("getFile", {"file_id": file_id})).get("file_path")
        received = bytearray()
        try:
            async with asyncio.timeout(_DOWNLOAD_SECONDS):
                async with self._http.stream("GET", f"{self._files}{path}", timeout=_TIMEOUT_SECONDS) as response:
                    if response.status_code != 200:
                        raise BadRequestError(f"the file could not be read: HTTP {response.status_code}")
                    async for chunk in response.aiter_bytes():
                        received += chunk
                        if len(received) > max_bytes:
                            raise BadRequestError(f"the file is over {max_bytes:,} bytes")
        except (self._httpx.HTTPError, TimeoutError) as error:
            raise UncertainError(f"the file could not be read: {self._cleaned(error)}") from None
        return bytes(received)

    def _read(self, method: str, response: "httpx.Response") -> Any:
        try:
            reply = msgspec.json.decode(response.content, type=_ApiReply)
        except msgspec.MsgspecError:
            reply = _ApiReply(ok=False, description=f"HTTP {response.status_code}", error_code=response.status_code)
        if reply.ok and response.status_code == 200:
            return reply.result
        raise self._failure(method, reply, response.status_code)

    def _failure(self, method: str, reply: _ApiReply, status: int) -> TelegramError:
        code = reply.error_code or status
        description = f"{method}: {reply.description.replace(self._token, '<token>')}"
        match code:
            case 429:
                return FloodError(_seconds(reply.parameters.get("retry_after")))
            case 400:
                return BadRequestError(description)
            case 401 | 404:
                return TokenError(description)
            case 403:
                return ForbiddenError(description)
            case 409:
                return ConflictError(description)
            case _ if 400 < code < 500:
                return BadRequestError(description)
            case _:
                # A gateway's error does not say whether the server behind it has made the call.
                return UncertainError(description)

    def _cleaned(self, error: Exception) -> str:
        return (str(error) or type(error).__name__).replace(self._token, "<token>")

    async def close(self) -> None:
        for name in LOGGERS:
            logging.getLogger(name).removeFilter(self._filter)
        await self._http.aclose()


def _seconds(value: object) -> float:
    seconds = float(cast(float, value)) if isinstance(value, int | float) else 1.0
    return max(1.0, seconds)


# Rate limits


class Bucket:
    """A token bucket: `burst` calls at once, and one more every `1 / rate` seconds."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst = rate, burst
        self._tokens, self._refilled_at = float(burst), 0.0

    def _refill(self, now: float) -> None:
        if now > self._refilled_at:
            self._tokens = min(float(self._burst), self._tokens + (now - self._refilled_at) * self._rate)
            self._refilled_at = now

    def ready_in(self, now: float) -> float:
        self._refill(now)
        return max(0.0, (1.0 - self._tokens) / self._rate)

    def take(self, now: float) -> None:
        self._refill(now)
        self._tokens -= 1.0


class Window:
    """A sliding window: at most `limit` calls in any `seconds`."""

    def __init__(self, limit: int, seconds: float) -> None:
        self._limit, self._seconds = limit, seconds * _MARGIN
        self._taken: deque[float] = deque()

    def ready_in(self, now: float) -> float:
        while self._taken and self._taken[0] <= now - self._seconds:
            self._taken.popleft()
        if len(self._taken) < self._limit:
            return 0.0
        return self._taken[-self._limit] + self._seconds - now

    def take(self, now: float) -> None:
        self._taken.append(now)


Allowance = Bucket | Window
"""A limit that calls are counted against."""


class ChatBudget:
    """The budget of one chat, which its topics share."""

    def __init__(self, clock: Clock, shared: Allowance, is_private: bool) -> None:
        self._clock = clock
        self._shared = shared
        self._messages: Allowance = Bucket(rate=1.0, burst=3) if is_private else Window(20, 60.0)
        self._drafts: tuple[Allowance, ...] = (Window(20, 5.0), Window(40, 30.0))
        self._closed_until = 0.0
        self._lock = asyncio.Lock()
        self._waiting = 0

    @property
    def closed_for(self) -> float:
        """The seconds that a flood wait still lasts."""
        return max(0.0, self._closed_until - self._clock.now())

    def close(self, retry_after: float) -> None:
        """Allow no call until the flood wait is over, plus some jitter."""
        until = self._clock.now() + retry_after + random.uniform(0.1, 1.0)
        self._closed_until = max(self._closed_until, until)

    async def wait(self) -> None:
        """Wait until a durable call may be made, in the order of the callers."""
        self._waiting += 1
        try:
            async with self._lock:
                while (pause := self._ready_in(self._messages, self._shared)) > 0:
                    await self._clock.sleep(pause)
                self._take(self._messages, self._shared)
        finally:
            self._waiting -= 1

    def take(self) -> bool:
        """Return True if a cosmetic call may be made now."""
        return self._waiting == 0 and self._take_now(self._messages, self._shared)

    def take_typing(self) -> bool:
        return self._waiting == 0 and self._take_now(self._messages, self._shared, *self._drafts)

    def take_draft(self) -> bool:
        return self._take_now(self._shared, *self._drafts)

    def _ready_in(self, *allowances: Allowance) -> float:
        now = self._clock.now()
        return max(self._closed_until - now, *(allowance.ready_in(now) for allowance in allowances))

    def _take(self, *allowances: Allowance) -> None:
        now = self._clock.now()
        for allowance in allowances:
            allowance.take(now)

    def _take_now(self, *allowances: Allowance) -> bool:
        if self._ready_in(*allowances) > 0:
            return False
        self._take(*allowances)
        return True


class Budgets:
    """The budgets of all chats, and the limit that they share."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._shared = Window(30, 1.0)
        self._chats: dict[int, ChatBudget] = {}

    def of(self, chat_id: int) -> ChatBudget:
        if chat_id not in self._chats:
            # Private chats have positive ids, groups and channels negative ones.
            self._chats[chat_id] = ChatBudget(self._clock, self._shared, is_private=chat_id > 0)
        return self._chats[chat_id]
