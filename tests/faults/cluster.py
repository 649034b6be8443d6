"""A database and several servers, each with a fault proxy to the database and one to its clients.

Over SQLite there is one server, and the database is a file of its own.
"""

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Literal

import asyncpg
import httpx

from tests.faults.proxy import FaultProxy, faulty
from tests.postgres_server import PostgresServer, execute, make_synchronous
from turnwire.server.auth import ALL_SCOPES, KeyRing
from turnwire.stores.postgres import PostgresStore
from turnwire.stores.sqlite import SqliteStore
from turnwire.stores.sqlite.schema import DATABASE_NAME

StoreName = Literal["postgres", "sqlite"]
LEASE = 2.0
START_SECONDS = 120.0
_STALL_SECONDS = 0.6
_DISK_MEGABYTES = 400
_ENGINE = ("max_wal_size=64MB", "min_wal_size=32MB", "restart_after_crash=on", "max_connections=150")
ROOT = Path(__file__).parents[2]
_SETTINGS = {
    "lease": LEASE,
    "heartbeat": 0.5,
    "write_timeout": 3,
    "stream_lifetime": 15,
    "cancel_patience": 1,
    "shutdown_grace": 1,
    "max_running_turns": 10_000,
    "max_open_streams": 10_000,
    "max_queued_turns": 1_000,
    "documents_embeddings": "off",
}


class ServerProcess:
    """One server, whose process may be dead. Another process has imported everything, and forks it."""

    module = "tests.faults.server"

    def __init__(self, number: int, folder: Path) -> None:
        self.number = number
        self.url = ""
        self.is_paused = False
        self.is_ready = False
        self._folder = folder
        self._template: asyncio.subprocess.Process | None = None
        self._environment: dict[str, str] = {}
        self._reading: asyncio.Task[None] | None = None
        self._pid: int | None = None
        self._started = asyncio.Event()
        self._ended = asyncio.Event()
        self._port = 0
        self.lost_at: list[float] = []

    @property
    def address(self) -> str:
        """Return the URL for clients."""
        return self.url

    @property
    def port(self) -> int:
        return self._port

    @property
    def is_up(self) -> bool:
        return self._pid is not None

    def settings(self) -> dict[str, object]:
        """Return the settings of the server, beside those that all servers have."""
        return {"data": self._folder / f"node{self.number}"}

    def variables(self) -> dict[str, str]:
        """Return further environment variables."""
        return {}

    async def start(self) -> None:
        template = await self._ready_template()
        assert template.stdin is not None
        self._started.clear()
        self._ended.clear()
        template.stdin.write(f"{self._port}\n".encode())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(START_SECONDS):
                await self._started.wait()
        if not self.is_ready:
            # The database may have been down; `keep_up` starts the server again.
            await self.kill()

    async def _ready_template(self) -> asyncio.subprocess.Process:
        """Return the process that forks servers with the environment of now."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TURNWIRE_")}
        settings = {**_SETTINGS, **self.settings()}
        own = {f"TURNWIRE_{name.upper()}": str(value) for name, value in settings.items()}
        environment = {**inherited, **own, **self.variables()}
        if self._template is not None and environment != self._environment:
            await self.close()
        if self._template is None:
            self._environment = environment
            with (self._folder / f"node{self.number}.log").open("ab") as errors:
                self._template = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", self.module),
                    cwd=ROOT,
                    env=environment,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=errors,
                )
            self._reading = asyncio.create_task(self._read(self._template))
        return self._template

    async def _read(self, template: asyncio.subprocess.Process) -> None:
        assert template.stdout is not None
        while line := (await template.stdout.readline()).decode():
            if line.startswith("pid "):
                self._pid = int(line.split()[1])
            elif line.strip() == "ended":
                self._pid, self.is_ready = None, False
                self._ended.set()
                self._started.set()
            elif "listening on " in line:
                self.url = line.split("listening on ")[1].split()[0]
                self._port = int(self.url.rpartition(":")[2])
                self.is_ready = True
                self._started.set()

    async def keep_up(self) -> None:
        while True:
            if not self.is_up:
                await self.start()
            await asyncio.sleep(0.05)

    async def kill(self) -> None:
        await self._end(signal.SIGKILL)

    async def terminate(self) -> None:
        await self._end(signal.SIGTERM)

    async def _end(self, number: int) -> None:
        if self._pid is not None:
            if number == signal.SIGKILL:
                self.lost_at.append(time.monotonic())
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, number)
            await self._ended.wait()

    async def close(self) -> None:
        """Kill the server and the process that forks it."""
        if self._template is not None and self._reading is not None:
            await self.kill()
            self._template.kill()
            await self._template.wait()
            await self._reading
            self._template = None

    async def pause(self, seconds: float) -> None:
        """Stop the process for a while, like a swapping or migrating machine."""
        if (pid := self._pid) is None:
            return
        self.is_paused = True
        self.lost_at.append(time.monotonic())
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            try:
                await asyncio.sleep(seconds)
            finally:
                self.is_paused = False
                os.kill(pid, signal.SIGCONT)


class Node(ServerProcess):
    """One server of a cluster, and its network to the database and to its clients; over SQLite, its `data` folder."""

    def __init__(self, number: int, folder: Path, store: "tuple[str, FaultProxy] | Path") -> None:
        super().__init__(number, folder)
        self.front: FaultProxy | None = None
        self.has_clock = False
        """Whether its wall clock can be set, which makes its processes several times as slow to start."""
        self.old_source: Path | None = None
        """The sources of an older Turnwire, which the next process runs."""
        self._store = store
        self._clock = folder / f"node{number}.clock"

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.front.port}" if self.front else self.url

    @property
    def network(self) -> FaultProxy:
        """Return the connection to the database."""
        assert not isinstance(self._store, Path)
        return self._store[1]

    @property
    def is_well(self) -> bool:
        is_connected = isinstance(self._store, Path) or self.network.is_whole
        return self.is_up and self.is_ready and not self.is_paused and is_connected

    def settings(self) -> dict[str, object]:
        if isinstance(self._store, Path):
            return {**super().settings(), "data": self._store}
        database, network = self._store
        return {**super().settings(), "database_url": f"postgresql://postgres@127.0.0.1:{network.port}/{database}"}

    def variables(self) -> dict[str, str]:
        source = {"PYTHONPATH": str(self.old_source)} if self.old_source else {}
        return {**self._fake_clock(), **source, "FAULTS_NODE": str(self.number)}

    def _fake_clock(self) -> dict[str, str]:
        """Return the variables for a settable wall clock. The monotonic clock stays right."""
        if not self.has_clock or (library := faketime()) is None:
            return {}
        if not self._clock.exists():
            self.set_clock(0)
        return {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(self._clock),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }

    def set_clock(self, seconds: int) -> None:
        self._clock.write_text(f"{seconds:+d}")


class Cluster:
    """The database, the servers and the API keys of the users. `disk` is that of the database."""

    def __init__(self, engines: list[PostgresServer], nodes: list[Node], keys: dict[str, str], disk: Path) -> None:
        self._engines = engines
        self.nodes = nodes
        self.keys = keys
        self.disk = disk
        self._restarting = asyncio.Lock()
        self.away: list[tuple[float, float]] = []
        """When the database was down."""
        self.full: list[tuple[float, float]] = []
        """When the database could be read, and not written."""
        self.stalled: list[tuple[float, float]] = []

    @property
    def engine(self) -> PostgresServer:
        assert self._engines, "the store is not PostgreSQL"
        return self._engines[-1]

    @property
    def can_fill_disk(self) -> bool:
        return self.disk.is_mount()

    @property
    def is_well(self) -> bool:
        """Return True if a request should be answered: some server and its database are there."""
        return not self._restarting.locked() and any(node.is_well for node in self.nodes)

    def client(self, principal: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(headers={"Authorization": f"Bearer {self.keys[principal]}"}, timeout=20)

    async def restart_engine(self) -> None:
        async with self._restarting:
            since = time.monotonic()
            if await asyncio.to_thread(lambda: self.engine.is_up):
                await asyncio.to_thread(self.engine.stop)
            await asyncio.to_thread(self.engine.start)
            self.away.append((since, time.monotonic()))

    async def fail_over(self, seconds: float) -> None:
        """Give the database a synchronous standby, lose it after a while, and let the standby take its place."""
        async with self._restarting:
            lost = self.engine
            standby = await asyncio.to_thread(_new_engine, self.disk, lost)
            self._engines.insert(0, standby)
            await make_synchronous(lost)
            await asyncio.sleep(seconds)
            since = time.monotonic()
            await asyncio.to_thread(lost.stop)
            await asyncio.to_thread(standby.promote)
            for node in self.nodes:
                node.network.target = standby.socket
            self._engines.remove(lost)
            self.away.append((since, time.monotonic()))
            await asyncio.to_thread(lost.remove)

    async def fill_disk(self, seconds: float) -> None:
        """Fill the database's own disk for a while."""
        assert self.can_fill_disk
        async with self._restarting:
            since = time.monotonic()
            ballast = self.disk / "ballast"
            try:
                await asyncio.to_thread(_fill, ballast)
                await asyncio.sleep(seconds)
            finally:
                await asyncio.to_thread(ballast.unlink, missing_ok=True)
            for engine in self._engines:
                if not await asyncio.to_thread(lambda engine=engine: engine.is_up):  # It cannot write its log.
                    await asyncio.to_thread(engine.start)
            self.away.append((since, time.monotonic()))
            self.full.append((since, time.monotonic()))

    async def lock_database(self, seconds: float) -> None:
        """Hold the write lock of an SQLite database, as a backup program may."""
        async with self._restarting:
            since = time.monotonic()
            path = self.disk / "data" / DATABASE_NAME
            connection = sqlite3.connect(path, isolation_level=None, timeout=30, check_same_thread=False)
            try:
                await asyncio.to_thread(connection.execute, "BEGIN IMMEDIATE")
                await asyncio.sleep(seconds)
            finally:
                connection.close()
            self.away.append((since, time.monotonic()))
            self.full.append((since, time.monotonic()))

    async def kill_backends(self, part: float) -> None:
        """Terminate this share of the database connections; not beside a failover.

        A commit whose connection is terminated while it waits for the standby is kept and shown without it: PostgreSQL
        may lose it then.
        """
        others = "pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
        query = f"SELECT pg_terminate_backend(pid) FROM {others} AND random() < {part}"
        async with self._restarting:
            with contextlib.suppress(OSError, TimeoutError, asyncpg.PostgresError):
                async with asyncio.timeout(5):
                    await execute(self.engine.url("postgres"), query)

    async def wait_for_servers(self) -> None:
        """Wait until half of the servers are ready, but not for ever."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(START_SECONDS):
                await asyncio.sleep(0.1)  # A server that was just killed is noticed.
                while 2 * sum(node.is_ready for node in self.nodes) < len(self.nodes):  # noqa: ASYNC110 - processes start
                    await asyncio.sleep(0.05)

    async def keep_up(self) -> None:
        """Restart dead servers, as a supervisor does."""
        async with asyncio.TaskGroup() as group:
            for node in self.nodes:
                group.create_task(node.keep_up())
            group.create_task(self._watch())

    async def _watch(self) -> None:
        """Record times without bounds: this process was not scheduled, or no server could take over."""
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.1)
            if (now := time.monotonic()) - before > _STALL_SECONDS or not any(node.is_well for node in self.nodes):
                self.stalled.append((before, now))


@asynccontextmanager
async def cluster(
    count: int,
    folder: Path,
    store: StoreName = "postgres",
    old_source: Path | None = None,
    *,
    has_clock: bool = False,
) -> AsyncIterator[Cluster]:
    """Start servers, of an older Turnwire if its sources are named. `has_clock`: the first one's clock can be set."""
    with _small_disk() as disk:
        if store == "sqlite":
            async with _sqlite_node(disk or folder, folder, old_source, has_clock) as servers:
                yield servers
            return
        engines = [await asyncio.to_thread(_new_engine, disk or folder)]
        try:
            async with _nodes(engines, count, disk or folder, folder, old_source, has_clock) as servers:
                yield servers
        finally:
            for engine in engines:
                await asyncio.to_thread(engine.remove)


def _new_engine(disk: Path, primary: PostgresServer | None = None) -> PostgresServer:
    """Start a database server on this disk; the standby of another one if a primary is named."""
    return PostgresServer(*_ENGINE, folder=Path(tempfile.mkdtemp(prefix="engine-", dir=disk)), primary=primary)


@asynccontextmanager
async def _nodes(
    engines: list[PostgresServer], count: int, disk: Path, folder: Path, old_source: Path | None, has_clock: bool
) -> AsyncIterator[Cluster]:
    (engine,) = engines
    database = await asyncio.to_thread(engine.new_database)
    keys = await _keys_of("postgres", engine.url(database), old_source)
    async with AsyncExitStack() as stack:
        networks = [await stack.enter_async_context(faulty(engine.socket)) for _ in range(count)]
        nodes = [Node(number, folder, (database, network)) for number, network in enumerate(networks)]
        yield await _started(stack, Cluster(engines, nodes, keys, disk), old_source, has_clock)


@asynccontextmanager
async def _sqlite_node(disk: Path, folder: Path, old_source: Path | None, has_clock: bool) -> AsyncIterator[Cluster]:
    keys = await _keys_of("sqlite", str(disk / "data"), old_source)
    async with AsyncExitStack() as stack:
        servers = Cluster([], [Node(0, folder, disk / "data")], keys, disk)
        yield await _started(stack, servers, old_source, has_clock)


async def _started(stack: AsyncExitStack, cluster: Cluster, old_source: Path | None, has_clock: bool) -> Cluster:
    """Start the servers, which are killed at the end."""
    cluster.nodes[0].has_clock = has_clock
    for node in cluster.nodes:
        node.old_source = old_source
        stack.push_async_callback(node.close)
        await node.start()
        node.front = await stack.enter_async_context(faulty(node.port))
    return cluster


def faketime() -> Path | None:
    """Return Debian's `libfaketime`, if it is installed."""
    return next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)


@contextmanager
def _small_disk() -> Iterator[Path | None]:
    """Mount a small disk that can be filled; None without the right to mount."""
    folder = Path(tempfile.mkdtemp(prefix="turnwire-disk-"))
    command = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_MEGABYTES}m", "tmpfs", str(folder)]
    is_mounted = os.geteuid() == 0 and subprocess.run(command, check=False, capture_output=True).returncode == 0
    try:
        yield folder if is_mounted else None
    finally:
        if is_mounted:
            subprocess.run(["umount", "-l", str(folder)], check=False)
        with contextlib.suppress(OSError):
            folder.rmdir()


def _fill(ballast: Path) -> None:
    with ballast.open("wb") as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * 1_048_576)
            file.flush()


async def _keys_of(store: StoreName, location: str, old_source: Path | None) -> dict[str, str]:
    """Make the keys, and with them the schema of the sources that the servers run."""
    environment = {**os.environ, "PYTHONPATH": str(old_source or ROOT / "src")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.faults.cluster", store, location),
        cwd=ROOT,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, "the keys of the users could not be made"
    return json.loads(output)


async def make_keys(store: PostgresStore | SqliteStore) -> dict[str, str]:
    """Open a store, and return new API keys of the users."""
    await store.open()
    try:
        ring = KeyRing(store)
        return {name: (await ring.create(name, ALL_SCOPES))[1] for name in ("ann", "bob")}
    finally:
        await store.close()


if __name__ == "__main__":
    kind, location = sys.argv[1:]
    store = PostgresStore(location) if kind == "postgres" else SqliteStore(Path(location))
    print(json.dumps(asyncio.run(make_keys(store))))
