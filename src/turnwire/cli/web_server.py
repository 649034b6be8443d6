"""The address a server listens on, and the web server behind it."""

import os
import socket
from collections.abc import Callable
from typing import Any

import uvicorn

from turnwire.cli.options import fail
from turnwire.reporting.logs import log_requests

_SEND_BUFFER_BYTES = 128 * 1024


def listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Connections inherit it: a reader that takes nothing holds this much in the kernel, not megabytes.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    try:
        listening.bind((host, port))
    except OSError as error:
        fail(f"cannot listen on {host}:{port}: {error.strerror}; choose another with --port")
    listening.listen(2048)
    listening.setblocking(False)
    return listening


def url_of(host: str, listening: socket.socket) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"


class WebServer(uvicorn.Server):
    """Serves a `Turnwire` on a socket that is there. `started` and `stopping` are called when it is and does."""

    def __init__(self, turnwire: Any, started: Callable[[], None], stopping: Callable[[], None]) -> None:
        super().__init__(_configured(turnwire))
        if turnwire.settings.access_log:
            log_requests()
        self._turnwire = turnwire
        self._has_started = started
        self._is_stopping = stopping

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.should_exit:
            self._has_started()

    def refuse_connections(self) -> None:
        """Accepts no more; those that are there go on."""
        for server in self.servers:
            server.close()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Before the process may end: uvicorn raises the signal again when it is done.
        self._is_stopping()
        await super().shutdown(sockets)
        if self._turnwire.runner.has_left_behind:
            # Everything is committed and closed; an agent that will not stop must not keep the process.
            os._exit(0)


def _configured(turnwire: Any) -> uvicorn.Config:
    if turnwire.settings.access_log:
        log_requests()
    return uvicorn.Config(
        turnwire.asgi(),
        http="httptools",
        loop="auto",
        ws="websockets-sansio",
        ws_max_size=turnwire.settings.max_body_bytes,
        ws_ping_interval=turnwire.settings.heartbeat,
        ws_ping_timeout=turnwire.settings.write_timeout,
        # Tokens are too short to be worth it, and it takes memory for every socket.
        ws_per_message_deflate=False,
        lifespan="on",
        log_level="warning",
        access_log=turnwire.settings.access_log,
        log_config=None,
        server_header=False,
        # A backstop: streams are ended, and turns wound down, by ourselves.
        timeout_graceful_shutdown=int(turnwire.settings.shutdown_grace) + 1,
    )
