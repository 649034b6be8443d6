"""The link to a server: requests that are retried, and the search for a server that has moved."""

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from turnwire.client.errors import ClientError, ServerUnreachableError
from turnwire.client.values import ReconnectLimits, ServerAddress

if TYPE_CHECKING:
    from turnwire.client.connection import HttpConnection, OpenStream

# A restarting server, or the proxy in front of it, answers with one of these.
AWAY = frozenset({502, 503, 504})
# A turn that was started goes on, so a reader waits for these too: the server may still count its lost stream.
PASSING = AWAY | {408, 425, 429, 500}
_MAX_RETRY_AFTER = 60.0


class Outage:
    """The time since a connection was lost, and the attempts since then."""

    def __init__(self) -> None:
        self._began_at = time.monotonic()
        self.attempts = 0
        self.is_reported = False

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began_at


class ServerLink:
    """The connection to a server, wherever `find` finds it."""

    def __init__(self, find: Callable[[], ServerAddress], timeout: float, limits: ReconnectLimits) -> None:
        self._find = find
        self._timeout = timeout
        self.limits = limits
        self._connection = self._connect(find())

    @property
    def name(self) -> str:
        return self._connection.name

    async def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        *,
        is_repeatable: bool = True,
    ) -> bytes:
        """Send a request, again if there is no answer, and return the body of the answer. Raise ClientError."""
        outage = Outage()
        while True:
            try:
                return await self._connection.send(method, path, body, headers)
            except ClientError as error:
                if not is_repeatable or not self.is_worth_a_retry(outage, error):
                    raise
                await self.wait(outage, error)

    def is_worth_a_retry(self, outage: Outage, error: ClientError) -> bool:
        """Return True if the server seems to be away, and may be back within the limit of a request."""
        is_away = isinstance(error, ServerUnreachableError) or error.status in AWAY
        return is_away and outage.seconds + (error.retry_after or 0) < self.limits.request_seconds

    async def open(self, method: str, path: str, body: Any, headers: dict[str, str]) -> "OpenStream":
        """Open a stream. Raise ClientError."""
        return await self._connection.open(method, path, body, headers)

    async def wait(self, outage: Outage, error: ClientError, seconds: float | None = None) -> None:
        """Wait before the next attempt, by default for the backoff, and look for the server again."""
        outage.attempts += 1
        if seconds is None and error.retry_after is not None:
            seconds = min(error.retry_after, _MAX_RETRY_AFTER)
        await asyncio.sleep(self.limits.backoff.delay(outage.attempts) if seconds is None else seconds)
        try:
            address = self._find()
        except ClientError:
            return  # Not back yet.
        if address != self._connection.address:
            previous, self._connection = self._connection, self._connect(address)
            await previous.close()

    async def close(self) -> None:
        await self._connection.close()

    def _connect(self, address: ServerAddress) -> "HttpConnection":
        # Loaded here, so that a program that only imports the client does not load an HTTP library.
        from turnwire.client.connection import HttpConnection

        return HttpConnection(address, self._timeout, self.limits.read_timeout)
