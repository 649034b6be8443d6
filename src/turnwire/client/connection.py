"""HTTP requests to one address: its key, timeouts and errors. The only module of the client that needs httpx."""

from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import httpx

from turnwire.client.errors import ClientError, RefusedError, ServerUnreachableError
from turnwire.client.values import ServerAddress
from turnwire.core.log.codec import clean_text

_CONNECT_SECONDS = 10.0
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class HttpConnection:
    """The connections to a server at one address."""

    def __init__(self, address: ServerAddress, timeout: float, stream_timeout: float) -> None:
        self.address = address
        headers = {"Authorization": f"Bearer {address.key}"} if address.key else {}
        if address.is_local:
            headers["Host"] = "localhost"  # Always allowed, whatever name or address the server listens on.
        connect = min(_CONNECT_SECONDS, timeout)
        self._stream_timeout = httpx.Timeout(timeout, connect=connect, read=stream_timeout)
        try:
            self._http = httpx.AsyncClient(
                base_url=address.url,
                headers=headers,
                timeout=httpx.Timeout(timeout, connect=connect),
                # Every stream that is read has a connection of its own.
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
                # A proxy from the environment cannot reach a server on this machine.
                trust_env=not (address.is_local or urlsplit(address.url).hostname in _LOOPBACK),
                # Loading certificates takes a while, and plain HTTP has none to verify.
                verify=urlsplit(address.url).scheme == "https",
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise ClientError(f"{address.url} is not a valid URL: {error}", code="invalid_url") from error

    @property
    def name(self) -> str:
        return f"the server at {self.address.url}"

    async def send(self, method: str, path: str, body: Any, headers: dict[str, str] | None) -> bytes:
        """Send a request and return the body of the response. Raise ClientError."""
        try:
            response = await self._http.request(
                method, path, json=body, headers=headers, follow_redirects=method == "GET"
            )
        except (httpx.RequestError, httpx.InvalidURL) as error:
            raise self.unreachable(error) from error
        return _checked(response).content

    async def open(self, method: str, path: str, body: Any, headers: dict[str, str]) -> "OpenStream":
        """Send a request and return the response with an open body. Raise ClientError."""
        request = self._http.build_request(method, path, json=body, headers=headers, timeout=self._stream_timeout)
        try:
            response = await self._http.send(request, stream=True)
            if not response.is_success:
                await response.aread()
        except (httpx.RequestError, httpx.InvalidURL) as error:
            raise self.unreachable(error) from error
        return OpenStream(self, _checked(response))

    def unreachable(self, error: Exception) -> ServerUnreachableError:
        is_sent = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.UnsupportedProtocol)
        reason = clean_text(str(error)) or type(error).__name__
        return ServerUnreachableError(f"{self.name} does not answer ({reason})", reason=reason, is_sent=is_sent)

    async def close(self) -> None:
        await self._http.aclose()


class OpenStream:
    """An open response of a server, whose body is read in chunks."""

    def __init__(self, connection: HttpConnection, response: httpx.Response) -> None:
        self.status = response.status_code
        self.headers = response.headers
        self.has_data = False
        """True once anything was received, if only a heartbeat."""
        self._connection = connection
        self._response = response

    async def chunks(self) -> AsyncGenerator[bytes]:
        """Yield the body. Raise ServerUnreachableError if the connection breaks."""
        try:
            async for chunk in self._response.aiter_bytes():
                self.has_data = True
                yield chunk
        except (httpx.RequestError, httpx.StreamError) as error:
            raise self._connection.unreachable(error) from error

    async def close(self) -> None:
        await self._response.aclose()


def _checked(response: httpx.Response) -> httpx.Response:
    """Return a successful response. Raise RefusedError for any other."""
    if response.is_success:
        return response
    code, message = "http_error", f"the server answered {response.status_code} {response.reason_phrase}"
    try:
        error = response.json()["error"]
        code, message = str(error["code"]), clean_text(str(error["message"]))
    except (ValueError, LookupError, TypeError):
        pass  # A proxy's page, not an answer of Turnwire.
    raise RefusedError(message, status=response.status_code, code=code, retry_after=_retry_after(response))


def _retry_after(response: httpx.Response) -> float | None:
    """Return the seconds of the header `Retry-After`, which may be a number or a date."""
    text = response.headers.get("Retry-After", "").strip()
    if text.isdecimal():
        return float(text)
    try:
        return max(0.0, (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError):
        return None
