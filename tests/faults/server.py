"""One server of the campaign: `turnwire serve` with the agents of the campaign and more frequent maintenance.

Its store is PostgreSQL if the settings name a database, and SQLite otherwise. FAULTS_DOCS is a folder of documents.
"""

import os

from tests.faults import agents
from turnwire.app import Turnwire
from turnwire.cli.serve import configure_logging, serve_alone
from turnwire.settings import read_settings

_MAINTENANCE_INTERVAL = 2.0


def main() -> None:
    settings = read_settings()
    configure_logging(settings, "warning")
    turnwire = Turnwire(
        agents={name: getattr(agents, name) for name in agents.ALL},
        store="postgres" if settings.database_url else "sqlite",
        settings=settings,
        docs=[folder] if (folder := os.environ.get("FAULTS_DOCS")) else (),
        extensions=[],
        maintenance_interval=_MAINTENANCE_INTERVAL,
    )
    serve_alone(turnwire)


if __name__ == "__main__":
    main()
