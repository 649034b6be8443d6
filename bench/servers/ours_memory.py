"""Turnwire with its memory store: nothing survives the process."""

from pathlib import Path

from starlette.types import ASGIApp

from bench.servers.ours import ROOMY, Source
from turnwire import Turnwire


def app(data: Path | None) -> ASGIApp:
    return Turnwire(agent=Source(), store="memory", settings=ROOMY).asgi()
