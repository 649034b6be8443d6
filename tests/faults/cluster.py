"""A database and several servers on it, each behind a network of its own."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx

from tests.faults.agents import ALL
from tests.faults.proxy import FaultProxy, faulty
from tests.postgres_server import PostgresServer
from turnwire.server.auth import ALL_SCOPES, KeyRing
from turnwire.stores.postgres import PostgresStore

LEASE = 2.0
START_SECONDS = 30.0
_ROOT = Path(__file__).parents[2]
_SETTINGS = {
    "lease": LEASE,
    "heartbeat": 0.5,
    "write_timeout": 3,
    "stream_lifetime": 15,
    "cancel_patience": 1,
    "shutdown_grace": 1,
    "text_start_timeout": 0.2,
    "maintenance_interval": 2,
    "max_running_turns": 10_000,
    "max_open_streams": 10_000,
    "max_queued_turns": 1_000,
    "embeddings": "off",
}


class Node:
    """One server process, which may be dead, and the network between it and the database."""

    def __init__(self, number: int, folder: Path, database: str, network: FaultProxy) -> None:
        self.number = number
        self.network = network
        self.url = ""
        self._folder = folder
        self._database = database
        self._process: asyncio.subprocess.Process | None = None
        self._port = 0
        self.lost_at: list[float] = []
        self.is_paused = False

    @property
    def is_up(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        named = [part for name in ALL for part in ("--agent", f"tests.faults.agents:{name}")]
        url = f"postgresql://postgres@127.0.0.1:{self.network.port}/{self._database}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TURNWIRE_")}
        told = {f"TURNWIRE_{name.upper()}": str(value) for name, value in _SETTINGS.items()}
        with (self._folder / f"node{self.number}.log").open("ab") as errors:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "turnwire", "serve", "--port", str(self._port), *named),
                *("--data", str(self._folder / f"node{self.number}")),
                cwd=_ROOT,
                env={**kept, **told, "TURNWIRE_DATABASE_URL": url, "FAULTS_NODE": str(self.number)},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
            )
        await self._listen()

    async def _listen(self) -> None:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(START_SECONDS):
                while line := (await process.stdout.readline()).decode():
                    if "listening on " in line:
                        self.url = line.split("listening on ")[1].split()[0]
                        self._port = int(self.url.rpartition(":")[2])
                        return
        except TimeoutError:
            pass
        # The database may have been away; whoever looks after it starts it again.
        await self.kill()

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
        if self._process is not None and self._process.returncode is None:
            if number == signal.SIGKILL:
                self.lost_at.append(time.monotonic())
            self._process.send_signal(number)
            await self._process.wait()

    async def pause(self, seconds: float) -> None:
        """As a machine that swaps, or a virtual one that is moved."""
        assert self._process is not None
        self.is_paused = True
        self.lost_at.append(time.monotonic())
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGSTOP)
            try:
                await asyncio.sleep(seconds)
            finally:
                self._process.send_signal(signal.SIGCONT)
                self.is_paused = False


class Cluster:
    def __init__(self, engine: PostgresServer, nodes: list[Node], keys: dict[str, str], folder: Path) -> None:
        self.engine = engine
        self.nodes = nodes
        self.keys = keys
        self.folder = folder
        self._restarting = asyncio.Lock()
        self.away: list[tuple[float, float]] = []
        """When the database was not there."""

    def client(self, principal: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(headers={"Authorization": f"Bearer {self.keys[principal]}"}, timeout=20)

    async def restart_engine(self) -> None:
        async with self._restarting:
            since = time.monotonic()
            await asyncio.to_thread(self.engine.restart)
            self.away.append((since, time.monotonic()))

    async def keep_up(self) -> None:
        """Starts again what has died, as a supervisor does."""
        async with asyncio.TaskGroup() as group:
            for node in self.nodes:
                group.create_task(node.keep_up())


@asynccontextmanager
async def cluster(count: int, folder: Path) -> AsyncIterator[Cluster]:
    engine = await asyncio.to_thread(PostgresServer)
    try:
        database = await asyncio.to_thread(engine.new_database)
        keys = await _make_keys(engine.url(database))
        async with AsyncExitStack() as stack:
            path = engine.folder / ".s.PGSQL.5432"
            networks = [await stack.enter_async_context(faulty(path)) for _ in range(count)]
            nodes = [Node(number, folder, database, network) for number, network in enumerate(networks)]
            try:
                for node in nodes:
                    await node.start()
                yield Cluster(engine, nodes, keys, folder)
            finally:
                for node in nodes:
                    await node.kill()
    finally:
        await asyncio.to_thread(engine.remove)


async def _make_keys(url: str) -> dict[str, str]:
    store = PostgresStore(url)
    await store.open()
    try:
        ring = KeyRing(store)
        return {name: (await ring.create(name, ALL_SCOPES))[1] for name in ("ann", "bob")}
    finally:
        await store.close()
