"""The HTTP protocol of `turnwire serve`: uvicorn's, with limits on the size and the time of a request.

uvicorn reads the head of a request without a bound and waits for the rest of one for ever.
"""

import asyncio
import logging
import sys
from weakref import WeakKeyDictionary

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from turnwire.server.errors import HttpError

logger = logging.getLogger("turnwire.server")

_waiting: WeakKeyDictionary[ServerState, dict["GuardedProtocol", None]] = WeakKeyDictionary()


class GuardedProtocol(HttpToolsProtocol):
    """One connection. A request that is not complete has a deadline, and there are not too many of them."""

    max_head_bytes = 64 * 1024
    head_seconds = 30.0
    """From the connection, or the first byte of a later request, to the end of its headers."""
    body_seconds = 30.0
    """Without a byte of the body."""
    request_seconds = 600.0
    """For a whole request."""
    max_incomplete = 0
    """The most connections that wait for the head of a request; then the oldest is closed. 0 is by the system."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._is_in_head = True
        self._began = self._active = self.loop.time()
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._active = self.loop.time()
        self._head_bytes += len(data)
        super().data_received(data)
        if self._is_in_head and self._head_bytes > self.max_head_bytes and not self.transport.is_closing():
            self._refuse(HttpError(431, "headers_too_large", f"the headers are over {self.max_head_bytes:,} bytes"))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if not self._is_in_head:
            self._is_in_head = True
            self._began = self.loop.time()
            self._await_head()

    def on_headers_complete(self) -> None:
        if sum(len(name) + len(value) for name, value in self.headers) + len(self.url) > self.max_head_bytes:
            self._refuse(HttpError(431, "headers_too_large", f"the headers are over {self.max_head_bytes:,} bytes"))
            return
        self._is_in_head = False
        self._waiting.pop(self, None)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self._is_in_head:
            self._end_waiting()
            self._head_bytes = 0
            super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        self._end_waiting()
        super().handle_websocket_upgrade()

    # Deadlines

    @property
    def _waiting(self) -> dict["GuardedProtocol", None]:
        """Return the connections of this server that wait for a head, oldest first."""
        return _waiting.setdefault(self.server_state, {})

    def _await_head(self) -> None:
        self._waiting[self] = None
        if len(self._waiting) > (self.max_incomplete or _max_incomplete()):
            oldest = next(iter(self._waiting))
            logger.warning("there are too many incomplete requests; the oldest is closed")
            oldest._end_waiting()
            oldest.transport.abort()
        if self._timer is None:
            self._timer = self.loop.call_later(min(self.head_seconds, self.body_seconds), self._check)

    def _end_waiting(self) -> None:
        self._waiting.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        """Close a request that takes too long, or look again later."""
        now = self.loop.time()
        until = min(
            self._began + (self.head_seconds if self._is_in_head else self.request_seconds),
            self._began + self.head_seconds if self._is_in_head else self._active + self.body_seconds,
        )
        if now < until:
            self._timer = self.loop.call_later(until - now, self._check)
            return
        self._timer = None
        if self._is_in_head and not self._head_bytes:
            self._end_waiting()
            self.transport.close()  # Nothing was asked, so there is nothing to answer.
        elif not self._is_in_head and self.cycle.response_started:
            self.transport.abort()
        else:
            self._refuse(HttpError(408, "request_timeout", "the request was not complete in time"))

    def _refuse(self, error: HttpError) -> None:
        self._end_waiting()
        reason = {408: b"Request Timeout", 431: b"Request Header Fields Too Large"}[error.status]
        self.transport.write(
            b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
            % (error.status, reason, len(error.body), error.body)
        )
        self.transport.close()


def _max_incomplete() -> int:
    """Return a quarter of the connections that the system lets this process have."""
    if sys.platform == "win32":
        return 512
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1_024 if soft == resource.RLIM_INFINITY else max(64, min(1_024, soft // 4))
