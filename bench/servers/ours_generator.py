"""Turnwire with its memory store, and a route for its source alone."""

from pathlib import Path

from starlette.types import ASGIApp

from bench.servers.ours_memory import app as turnwire
from bench.servers.source_alone import beside_its_source
from bench.sources import tokens


async def consume(message: str) -> int:
    count = 0
    async for _ in tokens(message):
        count += 1
    return count


def app(data: Path | None) -> ASGIApp:
    return beside_its_source(turnwire(data), consume)
