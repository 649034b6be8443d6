"""The listening socket and the uvicorn server of `turnwire serve`."""

import gc
import os
import socket
from collections.abc import Callable
from typing import Any

import uvicorn

from turnwire.cli.options import fail
from turnwire.core.errors import TurnwireError
from turnwire.reporting.logs import log_requests
from turnwire.server.listener import GuardedProtocol

_SEND_BUFFER_BYTES = 128 * 1024
_GARBAGE_THRESHOLD = 10_000


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


class WebServer(uvicorn.Server):
    """A uvicorn server that calls `on_started` when it accepts requests and `on_stopping` before it shuts down."""

    def __init__(self, turnwire: Any, on_started: Callable[[], None], on_stopping: Callable[[], None]) -> None:
        super().__init__(_uvicorn_config(turnwire))
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
        # What is imported by now stays, and most objects of a turn are freed without the garbage collector. By default
        # it looks at all of them every few turns, which is a tenth of the cost of a turn.
        gc.freeze()
        gc.set_threshold(_GARBAGE_THRESHOLD)
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
        if self._turnwire.runner.has_left_behind:
            # Everything is committed and closed; an agent that ignores cancellation must not keep the process.
            os._exit(0)


def _uvicorn_config(turnwire: Any) -> uvicorn.Config:
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
        lifespan="on",
        log_level="warning",
        access_log=turnwire.settings.access_log,
        log_config=None,
        server_header=False,
        # Only a backstop: Turnwire itself ends streams and turns.
        timeout_graceful_shutdown=int(turnwire.settings.shutdown_grace) + 1,
    )
