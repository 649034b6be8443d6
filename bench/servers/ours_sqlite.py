"""Turnwire with its default store: a token is sent after it is committed to SQLite."""

from pathlib import Path

from starlette.types import ASGIApp

from bench.servers.ours import ROOMY, Source
from turnwire import Turnwire


def app(data: Path | None) -> ASGIApp:
    if data is None:
        raise ValueError("the sqlite variant needs a folder; pass --data DIR")
    return Turnwire(agent=Source(), store="sqlite", data=data, settings=ROOMY).asgi()
