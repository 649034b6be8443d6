"""The process of one server under test."""

import importlib
import os
import socket
from collections.abc import Mapping
from pathlib import Path

import uvicorn

from bench import measure
from bench.servers import VARIANTS
from bench.servers.gated import gated
from turnwire.cli.web_server import quiet_garbage_collector


class QuietServer(uvicorn.Server):
    """A uvicorn server with the garbage collector's settings of `turnwire serve`, which all servers get here.

    It starts on any core, because several servers start at once, and serves on one.
    """

    core: int | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        quiet_garbage_collector()
        if self.core is not None:
            measure.pin_all_threads(self.core)


def serve(name: str, port: int, core: int | None, data: Path | None, environment: Mapping[str, str]) -> None:
    """Serve a variant on one core, or on any, until the process is stopped."""
    os.environ.update(environment)
    measure.raise_open_files()
    variant = importlib.import_module(f"bench.servers.{VARIANTS[name].module}")
    server = QuietServer(
        uvicorn.Config(
            gated(variant.app(data)),
            port=port,
            http="httptools",
            loop="uvloop",
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=1,
        )
    )
    server.core = core
    server.run()
