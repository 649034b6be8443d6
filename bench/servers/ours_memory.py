"""Turnwire with its memory store: nothing survives the process."""

from pathlib import Path

from starlette.types import ASGIApp

from bench.servers.ours import ROOMY, answer
from turnwire import Turnwire


def app(data: Path | None) -> ASGIApp:
    return Turnwire(agent=answer, store="memory", settings=ROOMY).asgi()
