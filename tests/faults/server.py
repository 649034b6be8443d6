"""One server of the campaign: `turnwire serve` with the agents of the campaign and more frequent maintenance.

Its store is PostgreSQL if the settings name a database, and SQLite otherwise.

To import a server takes a second of computing, which is most of what a campaign with many kills would do. So this
process imports it once, and each line of its input forks a new server that listens on the port of this line: it prints
`pid 17`, what the server prints, and `ended` when that process has ended.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress

from tests.faults import agents
from tests.process.template import import_server
from turnwire import app
from turnwire.app import Turnwire
from turnwire.cli.serve import configure_logging, serve_alone
from turnwire.settings import read_settings

_MAINTENANCE_INTERVAL = 2.0
_PARENT_DEATH_SIGNAL = 1


def fork_servers(serve: Callable[[], None]) -> None:
    """Fork a server for each line of the input, one after another."""
    _die_with_parent()
    with suppress(ImportError):  # An older Turnwire has other modules, which its servers import themselves.
        import_server()
    while port := sys.stdin.readline().strip():
        if (pid := os.fork()) == 0:
            _die_with_parent()
            os.environ["TURNWIRE_PORT"] = port
            print(f"pid {os.getpid()}", flush=True)
            serve()
            return
        os.waitpid(pid, 0)
        print("ended", flush=True)


def _die_with_parent() -> None:
    """Leave no server behind, however the campaign ends. Only for Linux."""
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def serve() -> None:
    app.MAINTENANCE_INTERVAL = _MAINTENANCE_INTERVAL
    settings = read_settings()
    configure_logging(settings, "warning")
    turnwire = Turnwire(
        agents={name: getattr(agents, name) for name in agents.ALL},
        store="postgres" if settings.database_url else "sqlite",
        settings=settings,
        extensions=[],
    )
    serve_alone(turnwire)


if __name__ == "__main__":
    fork_servers(serve)
