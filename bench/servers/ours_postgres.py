"""Turnwire with the PostgreSQL database of `TURNWIRE_DATABASE_URL`, which other processes may share."""

from pathlib import Path

from starlette.types import ASGIApp

from bench.servers.ours import ROOMY, Source
from turnwire import Turnwire
from turnwire.settings import Settings


def app(data: Path | None) -> ASGIApp:
    settings = Settings()
    roomy = ROOMY.model_copy(
        update={
            "database_url": settings.database_url,
            "max_worker_turns": min(settings.max_worker_turns, 1) * ROOMY.max_running_turns,
        }
    )
    return Turnwire(agent=Source(), store="postgres", settings=roomy).asgi()
