"""Several servers on one PostgreSQL database, and their CPU time."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench import measure
from bench.processes import Server, shared_database, start
from bench.servers import VARIANTS
from tests.postgres_server import PostgresServer


@dataclass(frozen=True)
class Fleet:
    servers: list[Server]
    database: PostgresServer

    def cpu_seconds(self) -> float:
        """Return the CPU time of the servers, without the database."""
        return sum(server.cpu_seconds() for server in self.servers)

    def database_cpu(self) -> "DatabaseCpu":
        return DatabaseCpu(self.database)


class DatabaseCpu:
    """The CPU time of the database's processes from now on, without those that ended since."""

    def __init__(self, database: PostgresServer) -> None:
        self._parent = int((database.data / "postmaster.pid").read_text().split()[0])
        self._before = self._used()

    def seconds(self) -> float:
        return sum(used - self._before.get(pid, 0.0) for pid, used in self._used().items())

    def _used(self) -> dict[int, float]:
        children = Path(f"/proc/{self._parent}/task/{self._parent}/children").read_text().split()
        return {pid: measure.cpu_seconds(pid) for pid in (self._parent, *map(int, children))}


@contextmanager
def fleet(running: int, reading: int = 0) -> Iterator[Fleet]:
    """Run servers that run turns, and servers that only have readers, on a new database."""
    database = shared_database()
    url = database.url(database.new_database())
    with ExitStack() as stack:
        servers: list[Server] = []
        for number in range(running + reading):
            data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
            overrides = {"TURNWIRE_DATABASE_URL": url}
            if number >= running:
                overrides["TURNWIRE_MAX_WORKER_TURNS"] = "0"
            # On any core, because several processes on one core would wait for each other.
            server = start(VARIANTS["postgres"], data, None, **overrides)
            stack.callback(server.stop)
            servers.append(server)
        for server in servers:
            server.wait_until_ready()
        yield Fleet(servers, database)
