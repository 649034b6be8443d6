"""Turnwire with PostgreSQL: `TURNWIRE_DATABASE_URL` says which, and other processes may use it too."""

from pathlib import Path

from starlette.types import ASGIApp

from bench.servers.ours import ROOMY, Source
from turnwire import Turnwire
from turnwire.settings import Settings


def app(data: Path | None) -> ASGIApp:
    given = Settings()
    roomy = ROOMY.model_copy(
        update={
            "database_url": given.database_url,
            "max_worker_turns": min(given.max_worker_turns, 1) * ROOMY.max_running_turns,
        }
    )
    return Turnwire(agent=Source(), store="postgres", settings=roomy).asgi()
