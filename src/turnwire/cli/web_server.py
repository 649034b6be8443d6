"""The listening socket, the HTTP protocol and the uvicorn server of `turnwire serve`."""

import asyncio
import gc
import logging
import os
import socket
import sys
from collections.abc import Callable
from typing import Any, Literal
from weakref import WeakKeyDictionary

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from turnwire.cli.options import fail
from turnwire.core.errors import TurnwireError
from turnwire.reporting.logs import log_requests
from turnwire.server.errors import HttpError

logger = logging.getLogger("turnwire.server")

_SEND_BUFFER_BYTES = 128 * 1024
_GARBAGE_THRESHOLD = 10_000

_waiting: WeakKeyDictionary[ServerState, dict["GuardedProtocol", None]] = WeakKeyDictionary()


class GuardedProtocol(HttpToolsProtocol):
    """One connection. Incomplete requests have a deadline, and their number is limited.

    uvicorn itself reads heads of any size, and waits for the rest of a request for ever.
    """

    max_head_bytes = 64 * 1024
    head_seconds = 30.0
    """From the connection, or the first byte of a later request, to the end of its headers."""
    body_seconds = 30.0
    """Without a byte of the body."""
    request_seconds = 600.0
    """For a whole request."""
    max_incomplete = 0
    """The most connections that wait for a head; beyond it the oldest is closed. 0: a quarter of the system's limit."""

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


def listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the number of its protocol: without, asyncio does not turn off the delay of small writes (uvloop does).
    listening = socket.socket(family, proto=socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Connections inherit it: a stalled reader holds this much kernel memory, not megabytes.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    try:
        listening.bind((host, port))
    except OSError as error:
        fail(f"cannot listen on {host}:{port}: {error.strerror}; choose another port with --port")
    listening.listen(2048)
    listening.setblocking(False)
    return listening


def url_of(host: str, listening: socket.socket) -> str:
    """Return a URL that clients can open: for 0.0.0.0 and ::, with the address of this machine."""
    if host in ("0.0.0.0", "::"):
        host = _own_address(listening.family)
    return f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"


def _own_address(family: int) -> str:
    """Return the address that this machine has in its network; the loopback address if it has no network."""
    loopback, elsewhere = ("::1", "2001:db8::1") if family == socket.AF_INET6 else ("127.0.0.1", "192.0.2.1")
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((elsewhere, 9))  # Sends nothing: it only chooses the network.
            return probe.getsockname()[0]
        except OSError:
            return loopback


def quiet_garbage_collector() -> None:
    """Make the garbage collector run less often, and skip the objects of the start-up.

    Imported modules stay for ever, and reference counting frees the objects of a turn. By default the collector scans
    all of them every few turns, which is a tenth of the cost of a turn.
    """
    gc.freeze()
    gc.set_threshold(_GARBAGE_THRESHOLD)


class WebServer(uvicorn.Server):
    """A uvicorn server that calls `on_started` when it accepts requests and `on_stopping` before it shuts down."""

    def __init__(self, turnwire: Any, on_started: Callable[[], None], on_stopping: Callable[[], None]) -> None:
        super().__init__(uvicorn_config(turnwire))
        if turnwire.settings.access_log:
            log_requests()  # After the configuration, which sets the level of uvicorn's loggers.
        self._turnwire = turnwire
        self._on_started = on_started
        self._on_stopping = on_stopping

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            # Before uvicorn does it, which would report an error as two lines of its own.
            await self._turnwire.open()
        except TurnwireError as error:
            fail(str(error))
        await super().startup(sockets)
        quiet_garbage_collector()
        if not self.should_exit:
            self._on_started()

    def refuse_connections(self) -> None:
        """Stop accepting connections; open ones go on."""
        for server in self.servers:
            server.close()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # First, because uvicorn raises the signal again at the end, which ends the process.
        self._on_stopping()
        await super().shutdown(sockets)
        if self._turnwire.runner.worker.has_left_behind:
            # Everything is committed and closed; an agent that ignores cancellation must not keep the process.
            os._exit(0)


def uvicorn_config(turnwire: Any, lifespan: Literal["on", "off"] = "on") -> uvicorn.Config:
    return uvicorn.Config(
        turnwire.asgi(),
        http=GuardedProtocol,
        loop="auto",
        ws="websockets-sansio",
        ws_max_size=turnwire.settings.max_body_bytes,
        ws_ping_interval=turnwire.settings.heartbeat,
        ws_ping_timeout=turnwire.settings.write_timeout,
        # Tokens are too short to compress, and each compressor takes memory.
        ws_per_message_deflate=False,
        lifespan=lifespan,
        log_level="warning",
        access_log=turnwire.settings.access_log,
        log_config=None,
        server_header=False,
        # Only a backstop: Turnwire itself ends streams and turns.
        timeout_graceful_shutdown=int(turnwire.settings.shutdown_grace) + 1,
    )
