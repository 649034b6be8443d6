"""The client of the Bot API over HTTP. There is one error class for each way to react.

The token is part of every URL. httpx logs URLs, so a filter removes the token from its log lines while a client is
open, and its own errors, which hold the request, are never passed on.
"""

import logging
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import msgspec

from turnwire.channels.telegram.rate_limits import Clock

if TYPE_CHECKING:
    import httpx

_TIMEOUT_SECONDS = 20.0
# The loggers that write request URLs, which hold the token.
_LOGGERS = ("httpx", "httpcore.connection", "httpcore.http11", "httpcore.http2", "httpcore.proxy")

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
    def __init__(self, token: str, api_url: str, clock: Clock) -> None:
        """Raises ImportError if httpx is not installed."""
        import httpx

        self._httpx = httpx
        self._clock = clock
        self._token = token
        self._root = f"{api_url.rstrip('/')}/bot{token}/"
        # One connection for the poll, the others for messages.
        self._http = httpx.AsyncClient(limits=httpx.Limits(max_connections=40), follow_redirects=False)
        self._filter = _TokenFilter(token)
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(self._filter)

    async def call(self, method: str, params: Mapping[str, Any] | None = None, *, wait: float = 0.0) -> Any:
        """Return the result of a call. `wait` is the length of a long poll. Raises TelegramError."""
        body = {name: value for name, value in (params or {}).items() if value is not None}
        timeout = _TIMEOUT_SECONDS + wait
        try:
            # httpx bounds the silence between bytes only; this bounds the whole response.
            async with self._clock.timeout(timeout + 5):
                response = await self._http.post(
                    self._root + method,
                    content=msgspec.json.encode(body),
                    headers={"content-type": "application/json"},
                    timeout=self._clock.real(timeout),
                )
        except (self._httpx.ConnectError, self._httpx.ConnectTimeout, self._httpx.PoolTimeout) as error:
            raise UnreachableError(f"{method}: {self._cleaned(error)}") from None
        except (self._httpx.HTTPError, TimeoutError) as error:
            raise UncertainError(f"{method}: {self._cleaned(error)}") from None
        return self._read(method, response)

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
                # A gateway error says nothing about the server behind it.
                return UncertainError(description)

    def _cleaned(self, error: Exception) -> str:
        return (str(error) or type(error).__name__).replace(self._token, "<token>")

    async def close(self) -> None:
        for name in _LOGGERS:
            logging.getLogger(name).removeFilter(self._filter)
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _seconds(value: object) -> float:
    seconds = float(cast(float, value)) if isinstance(value, int | float) else 1.0
    return max(1.0, seconds)
