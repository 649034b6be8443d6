"""The HTTP client of a Turnwire server, shared by the console and the command line."""

import uuid
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import asynccontextmanager
from typing import Any, Self, cast
from urllib.parse import urlsplit

import httpx
from msgspec import Struct

from turnwire.core.codec import clean_text

_CONNECT_SECONDS = 10.0
_TIMEOUT_SECONDS = 30.0


class HostError(Exception):
    """A request that failed. The message says why, and what to do."""


class ServerAddress(Struct, frozen=True):
    """The URL of a server and the API key for it; `is_local` if it was found through its data folder."""

    url: str
    key: str | None = None
    is_local: bool = False


class ServerClient:
    """A client of one server. `hint` is what a person can do when the server does not answer."""

    def __init__(
        self,
        address: ServerAddress,
        *,
        read_timeout: float = _TIMEOUT_SECONDS,
        hint: str = "check its address, or start one with `turnwire serve`",
    ) -> None:
        self.address = address
        self._hint = hint
        headers = {"Authorization": f"Bearer {address.key}"} if address.key else {}
        if address.is_local:
            headers["Host"] = "localhost"  # Always allowed, whatever name or address the server listens on.
        try:
            self._http = httpx.AsyncClient(
                base_url=address.url,
                headers=headers,
                timeout=httpx.Timeout(_TIMEOUT_SECONDS, connect=_CONNECT_SECONDS, read=read_timeout),
                # A proxy from the environment cannot reach a server on this machine.
                trust_env=not address.is_local,
                # Loading certificates takes a while, and plain HTTP has none to verify.
                verify=urlsplit(address.url).scheme == "https",
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise HostError(f"{address.url} is not a valid URL: {error}") from error

    @property
    def name(self) -> str:
        return f"the server at {self.address.url}"

    async def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a JSON request and return the JSON response. Raise HostError if either fails."""
        try:
            response = await self._http.request(method, path, json=body, follow_redirects=method == "GET")
        except httpx.TransportError as error:
            raise self.unreachable(error) from error
        if not response.is_success:
            raise HostError(_error_message(response))
        try:
            return cast("dict[str, Any]", response.json())
        except ValueError as error:
            raise HostError(f"{self.name} did not answer with JSON; check that it is a Turnwire server") from error

    @asynccontextmanager
    async def stream(self, cursor: "TurnCursor") -> AsyncGenerator[httpx.Response]:
        """Open the event stream after the cursor; start the turn if it has none yet.

        Raise HostError if the server refuses, and TransportError if it may come back.
        """
        if cursor.turn_id is None:
            # A retry with the same key starts no second turn.
            headers = {"Idempotency-Key": cursor.idempotency_key}
            opening = self._http.stream("POST", "/chat/stream", headers=headers, json=cursor.body)
        else:
            headers = {"Last-Event-ID": cursor.last_event_id} if cursor.last_event_id else {}
            opening = self._http.stream("GET", f"/v1/turns/{cursor.turn_id}/events", headers=headers)
        async with opening as response:
            # A restarting server, or the proxy in front of it, answers with one of these.
            if response.status_code in (502, 503, 504) and cursor.is_sent:
                raise httpx.ReadError(f"HTTP status {response.status_code}")
            cursor.is_sent = True
            if response.is_error:
                await response.aread()
                raise HostError(_error_message(response))
            cursor.turn_id = response.headers.get("X-Turn-Id", cursor.turn_id)
            yield response

    def unreachable(self, error: Exception) -> HostError:
        return HostError(f"{self.name} does not answer ({error_text(error)}); {self._hint}")

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class TurnCursor:
    """The position of a client in one turn's event stream, kept across connections."""

    def __init__(self, body: dict[str, str]) -> None:
        self.body = body
        self.idempotency_key = uuid.uuid4().hex
        self.turn_id: str | None = None
        self.last_event_id: str | None = None
        self.position = 0
        self.is_sent = False
        """True once the server may have received the message."""

    def advance(self, event_id: str) -> bool:
        """Move to an event. Return False if it was read before."""
        position = int(event_id.partition(".")[0])
        if position <= self.position:
            return False
        self.last_event_id, self.position = event_id, position
        return True

    def rewind(self) -> None:
        self.last_event_id, self.position = None, 0


class SseFrame(Struct, frozen=True):
    data: bytes
    id: str | None = None


async def sse_frames(chunks: AsyncIterable[bytes]) -> AsyncGenerator[SseFrame]:
    """Parse server-sent events. Comments, unknown fields and an incomplete last frame are left out."""
    rest = b""
    event_id, data = None, list[bytes]()
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            name, _, value = line.removesuffix(b"\r").partition(b":")
            value = value.removeprefix(b" ")
            if name == b"id":
                event_id = value.decode("latin-1")
            elif name == b"data":
                data.append(value)
            elif not name and not line.strip():
                if data:
                    yield SseFrame(b"\n".join(data), event_id)
                event_id, data = None, []


def error_text(error: Exception) -> str:
    return clean_text(str(error)) or type(error).__name__


def _error_message(response: httpx.Response) -> str:
    try:
        message = clean_text(str(response.json()["error"]["message"]))
    except (ValueError, KeyError, TypeError):
        message = f"the server answered {response.status_code} {response.reason_phrase}"
    if response.status_code == 401:
        message += "; pass a key with --key, or set TURNWIRE_API_KEY"
    return message
