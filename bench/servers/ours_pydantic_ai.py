"""Turnwire with its memory store, and the same agent that Pydantic AI's own adapters serve."""

from pathlib import Path

from starlette.types import ASGIApp

from bench.servers.ours import ROOMY
from bench.servers.scripted_agent import AGENT, consume
from bench.servers.source_alone import beside_its_source
from turnwire import Turnwire


def app(data: Path | None) -> ASGIApp:
    return beside_its_source(Turnwire(agent=AGENT, store="memory", settings=ROOMY).asgi(), consume)
