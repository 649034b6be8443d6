"""Serve one variant: `python -m bench.servers raw --port 8001`."""

import argparse
import importlib
import socket
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


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.servers", description=__doc__)
    parser.add_argument("name", choices=VARIANTS)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--core", type=int, help="serve on this core only")
    parser.add_argument("--data", type=Path, help="the data folder of the server")
    options = parser.parse_args()

    measure.raise_open_files()
    variant = importlib.import_module(f"bench.servers.{VARIANTS[options.name].module}")
    server = QuietServer(
        uvicorn.Config(
            gated(variant.app(options.data)),
            port=options.port,
            http="httptools",
            loop="uvloop",
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=1,
        )
    )
    server.core = options.core
    server.run()


if __name__ == "__main__":
    main()
