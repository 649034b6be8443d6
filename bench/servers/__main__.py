"""Serve one variant: `python -m bench.servers raw --port 8001`."""

import argparse
import importlib
from pathlib import Path

import uvicorn

from bench import measure
from bench.servers import VARIANTS
from bench.servers.gated import gated


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.servers", description=__doc__)
    parser.add_argument("name", choices=VARIANTS)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--core", type=int, help="run on this core only")
    parser.add_argument("--data", type=Path, help="the data folder of the server")
    options = parser.parse_args()

    # Before the app is built, because threads inherit the core.
    if options.core is not None:
        measure.pin(options.core)
    measure.raise_open_files()
    variant = importlib.import_module(f"bench.servers.{VARIANTS[options.name].module}")
    uvicorn.Server(
        uvicorn.Config(
            gated(variant.app(options.data)),
            port=options.port,
            http="httptools",
            loop="uvloop",
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=1,
        )
    ).run()


if __name__ == "__main__":
    main()
