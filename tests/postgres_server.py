"""A PostgreSQL server of the tests' own: started when the first test needs one, stopped with the test run.

It listens on a socket in a temporary folder, so that any number can run side by side. What is on its disk need not
outlive the machine, unless a test says so.
"""

import asyncio
import atexit
import os
import pwd
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Coroutine
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import asyncpg

from turnwire.channels.telegram import records as telegram
from turnwire.extensions import tables as extensions
from turnwire.stores.postgres.connections import ConnectionPool
from turnwire.stores.postgres.schema import migrate

T = TypeVar("T")
_PATIENCE = 120.0
# What is committed outlives the server, as it must, but not the machine.
_FAST = ("fsync=off", "full_page_writes=off")
_SMALL = ("shared_buffers=32MB", "max_wal_size=256MB", "max_connections=60", "autovacuum_naptime=600")
TABLES = (
    *("head", "command", "reader", "turn", "event", "call", "sealed_log"),
    *("session", "worker", "spending", "outbox", "api_key", "annotation"),
    *("lease", "secret"),
)
_PLUGIN_TABLES = re.findall(r"TABLE IF NOT EXISTS (\S+)", " ".join((*extensions.TABLES, *telegram.TABLES)))
_DOCUMENTS = (
    *(
        "TABLE IF EXISTS turnwire.passage_vector",
        "TABLE IF EXISTS turnwire.passage",
        "TABLE IF EXISTS turnwire.document",
    ),
    *("TABLE IF EXISTS turnwire.document_root", "TABLE IF EXISTS turnwire.index_version"),
    "TEXT SEARCH CONFIGURATION IF EXISTS turnwire.words",
    "TEXT SEARCH DICTIONARY IF EXISTS turnwire.stems",
)


class PostgresServer:
    """A server of its own, or the standby of another one."""

    def __init__(self, *settings: str, folder: Path | None = None, primary: "PostgresServer | None" = None) -> None:
        self.folder = folder or Path(tempfile.mkdtemp(prefix="turnwire-postgres-"))
        self.data = self.folder / "data"
        self._settings = (*_SMALL, *settings)
        self._databases = 0
        # The server refuses to run as root, and its files must be its own.
        self._user = pwd.getpwnam("postgres") if os.geteuid() == 0 else None
        if self._user is not None:
            os.chown(self.folder, self._user.pw_uid, self._user.pw_gid)
        if primary is None:
            initial = ("-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "-N")
            self._call("initdb", "-D", str(self.data), *initial)
        else:
            source = ("-h", str(primary.folder), "-U", "postgres", "-c", "fast")
            self._call("pg_basebackup", "-D", str(self.data), *source, "--write-recovery-conf")
        with (self.data / "postgresql.conf").open("a") as conf:
            conf.write(f"unix_socket_directories = '{self.folder}'\nlisten_addresses = '127.0.0.1'\nport = 5432\n")
            conf.writelines(
                f"{name} = {value}\n" for name, _, value in (setting.partition("=") for setting in self._settings)
            )
        self.start()
        # However this process ends, its server goes with it: the pipe is closed then.
        # A signal to the whole group is not for the watchdog: it has the server to stop.
        stop = f"trap '' INT TERM; read _; {_binaries() / 'pg_ctl'} -D {self.data} -s -m immediate stop"
        stop += f"; rm -rf {self.folder}"
        self._watchdog = subprocess.Popen(["sh", "-c", stop], stdin=subprocess.PIPE, **self._quietly())

    @property
    def socket(self) -> Path:
        return self.folder / ".s.PGSQL.5432"

    def start(self) -> None:
        self._call("pg_ctl", "-D", str(self.data), "-s", "-w", "-l", str(self.folder / "log"), "start", "-o", "-h ''")

    def stop(self, mode: str = "immediate") -> None:
        self._call("pg_ctl", "-D", str(self.data), "-s", "-w", "-m", mode, "stop")

    def promote(self) -> None:
        """Make a standby the primary."""
        self._call("pg_ctl", "-D", str(self.data), "-s", "-w", "promote")

    def configure(self, name: str, value: str) -> None:
        """Set an option that needs no restart."""
        run_aside(execute(self.url("postgres"), f"ALTER SYSTEM SET {name} = '{value}'"))
        self._call("pg_ctl", "-D", str(self.data), "-s", "reload")

    @property
    def is_up(self) -> bool:
        status = [_binaries() / "pg_ctl", "-D", str(self.data), "status"]
        return subprocess.run(status, check=False, timeout=240, **self._quietly()).returncode == 0

    def restart(self) -> None:
        """As after the server was killed: it recovers from its log."""
        self.stop()
        self.start()

    def remove(self) -> None:
        self._watchdog.communicate()

    def url(self, database: str, *others: "PostgresServer") -> str:
        """Return the URL of a database on this server, and on its standbys."""
        folders = ",".join(quote(str(server.folder)) for server in (self, *others))
        return f"postgresql://postgres@/{database}?host={folders}"

    def new_database(self, template: str = "template0") -> str:
        self._databases += 1
        name = f"test_{self._databases}"
        run_aside(execute(self.url("postgres"), f"CREATE DATABASE {name} TEMPLATE {template}"))
        return name

    def _call(self, program: str, *arguments: str) -> None:
        subprocess.run([_binaries() / program, *arguments], check=True, timeout=240, **self._quietly())

    def _quietly(self) -> dict[str, Any]:
        """As the server's user. What it has to say is in its log; nobody's output is kept open by it."""
        quietly: dict[str, Any] = {"cwd": self.folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        if self._user is not None:
            quietly |= {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": ()}
        return quietly


async def make_synchronous(primary: PostgresServer) -> None:
    """Let the commits of a server wait for its standby from now on."""
    await asyncio.to_thread(primary.configure, "synchronous_standby_names", "*")
    await wait_for_answer(primary, "SELECT bool_or(sync_state = 'sync') FROM pg_stat_replication")
    # Commits begin to wait when the checkpointer has read the option, which it does before a checkpoint.
    await execute(primary.url("postgres"), "CHECKPOINT")


async def wait_for_answer(server: PostgresServer, query: str) -> None:
    """Wait until a server answers a query with true."""
    connection = await asyncpg.connect(server.url("postgres"))
    try:
        async with asyncio.timeout(_PATIENCE):
            while not await connection.fetchval(query):  # noqa: ASYNC110 - the database notifies nobody
                await asyncio.sleep(0.02)
    finally:
        await connection.close()


@cache
def _binaries() -> Path:
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    assert installed, "these tests need PostgreSQL 14 or newer; on Debian and Ubuntu: apt-get install postgresql"
    return installed[-1].parent


@cache
def shared_server() -> PostgresServer:
    """The one server of this test process."""
    server = PostgresServer(*_FAST)
    atexit.register(server.remove)
    return server


class Databases:
    """Databases with our tables in them. One that a test has left is emptied for the next, which is much faster."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self._free: list[str] = []
        self._template: str | None = None

    def take(self) -> str:
        if self._free:
            return self._free.pop()
        if self._template is None:
            self._template = self.server.new_database()
            run_aside(_migrate(self.server.url(self._template)))
        return self.server.new_database(self._template)

    def give_back(self, name: str) -> None:
        statements = [f"DELETE FROM turnwire.{table}" for table in TABLES]
        statements += [f"DROP TABLE IF EXISTS {table}" for table in _PLUGIN_TABLES]
        statements += [f"DROP {thing}" for thing in _DOCUMENTS]
        run_aside(_kill_backends(self.server.url(name), ";".join(statements)))
        self._free.append(name)


@cache
def shared_databases() -> Databases:
    return Databases(shared_server())


async def _migrate(url: str) -> None:
    connection = await ConnectionPool(url, 1).connect()
    await migrate(connection, "the template")
    await connection.close(timeout=5)


async def execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


def run_aside(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine, now: in a thread with an event loop of its own, while the caller's stands still."""
    results: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            results.append(asyncio.run(coroutine))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return results[0]


def kill_backends(url: str) -> None:
    """Ends every connection to the database, and returns when none of them can write any more."""
    run_aside(_kill_backends(url))


async def _kill_backends(url: str, then: str = "") -> None:
    """End every other connection, and execute a statement."""
    connection = await asyncpg.connect(url)
    others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    try:
        # Again each time: one may have been connecting when the others were ended.
        while await connection.fetchval(f"SELECT count(pg_terminate_backend(pid)) {others}"):  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.002)
        if then:
            await connection.execute(then)
    finally:
        await connection.close()
