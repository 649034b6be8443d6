"""Serve one variant: `python -m bench.servers raw --port 8001`."""

import argparse
from pathlib import Path

from bench.servers import VARIANTS
from bench.servers.process import serve

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.servers", description=__doc__)
    parser.add_argument("name", choices=VARIANTS)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--core", type=int, help="serve on this core only")
    parser.add_argument("--data", type=Path, help="the data folder of the server")
    options = parser.parse_args()
    serve(options.name, options.port, options.core, options.data, {})
