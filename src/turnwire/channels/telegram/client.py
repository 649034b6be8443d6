"""The Bot API over HTTP: one method, and failures told apart by what is to be done about them.

The token is part of every address. httpx writes addresses into its log, so what it logs is cleaned while a client is
open, and its own errors, which hold the request, are never let out.
"""

import logging
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import msgspec

from turnwire.channels.telegram.rate_limits import Clock

if TYPE_CHECKING:
    import httpx

# How a call of the Bot API can fail, by what is to be done about it.


BadRequestKind = Literal["not_modified", "no_message", "entities", "too_long", "no_thread", "no_chat", "other"]

# As the server words them; the first that is found counts.
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
    def __init__(self, description: str) -> None:
        super().__init__(description)
        self.description = description


class FloodError(TelegramError):
    def __init__(self, retry_after: float) -> None:
        super().__init__(f"too many calls; the next one in {retry_after:g} s")
        self.retry_after = retry_after


class BadRequestError(TelegramError):
    def __init__(self, description: str) -> None:
        super().__init__(description)
        self.kind = _kind(description.casefold())


def _kind(description: str) -> BadRequestKind:
    for words, kind in _KINDS:
        if words in description:
            return kind
    return "other"


class ForbiddenError(TelegramError): ...


class TokenError(TelegramError): ...


class ConflictError(TelegramError): ...


class UnreachableError(TelegramError): ...


class UncertainError(TelegramError): ...


_TIMEOUT_SECONDS = 20.0


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
        """Raises ImportError if httpx is not there."""
        import httpx

        self._httpx = httpx
        self._clock = clock
        self._token = token
        self._root = f"{api_url.rstrip('/')}/bot{token}/"
        # One connection a poll and a few for what is sent meanwhile.
        self._http = httpx.AsyncClient(limits=httpx.Limits(max_connections=40), follow_redirects=False)
        self._filter = _TokenFilter(token)
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(self._filter)

    async def call(self, method: str, params: Mapping[str, Any] | None = None, *, wait: float = 0.0) -> Any:
        """What Telegram answers. `wait` is how long it may take its time on purpose. Raises TelegramError."""
        told = {name: value for name, value in (params or {}).items() if value is not None}
        timeout = _TIMEOUT_SECONDS + wait
        try:
            # httpx bounds the silence between bytes; an answer that trickles in has to end too.
            async with self._clock.timeout(timeout + 5):
                response = await self._http.post(
                    self._root + method,
                    content=msgspec.json.encode(told),
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
                # A gateway that gives up says nothing about what happens behind it.
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


_LOGGERS = ("httpx", "httpcore.connection", "httpcore.http11", "httpcore.http2", "httpcore.proxy")


def _seconds(value: object) -> float:
    seconds = float(cast(float, value)) if isinstance(value, int | float) else 1.0
    return max(1.0, seconds)
