"""A campaign: users use the servers while faults are injected; then all turns must end and the logs are checked."""

import asyncio
import random
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

from msgspec import Struct, field

from tests.faults.checks import TAKEOVER_SECONDS, Takeovers, check
from tests.faults.cluster import LEASE, Cluster, Node, StoreName, cluster
from tests.faults.users import NoServerAnsweredError, SimulatedUsers, StartedTurn

# After the last fault: a lease, a takeover, and the longest run of all queued turns.
_SETTLE_SECONDS = 120.0

Fault = Callable[[Cluster, random.Random], Awaitable[None]]


class Verdict(Struct, kw_only=True):
    """The results of a campaign. `broken` lists the violated promises."""

    seed: int
    faults: Counter[str] = field(default_factory=Counter[str])
    turns: int = 0
    outcomes: Counter[str] = field(default_factory=Counter[str])
    events: int = 0
    readers: int = 0
    reconnects: int = 0
    resets: int = 0
    stops: list[float] = field(default_factory=list[float])
    takeovers: Takeovers = field(default_factory=Takeovers)
    repeated: int = 0
    strangers: int = 0
    unanswered: list[str] = field(default_factory=list[str])
    """Requests that were given up: the machine was too slow, which breaks no promise."""
    broken: list[str] = field(default_factory=list[str])


# The faults


async def kill(cluster: Cluster, rng: random.Random) -> None:
    await _pick_node(cluster, rng).kill()


async def terminate(cluster: Cluster, rng: random.Random) -> None:
    await _pick_node(cluster, rng).terminate()


async def pause(cluster: Cluster, rng: random.Random) -> None:
    """Pause a server for longer than its lease, so that others take its turns."""
    await _pick_node(cluster, rng).pause(LEASE * rng.uniform(1.2, 2))


async def cut(cluster: Cluster, rng: random.Random) -> None:
    _pick_node(cluster, rng).network.cut()


async def swallow(cluster: Cluster, rng: random.Random) -> None:
    network = _pick_node(cluster, rng).network
    network.swallow()
    await asyncio.sleep(rng.uniform(0.2, 2 * LEASE))
    network.mend()


async def drip(cluster: Cluster, rng: random.Random) -> None:
    network = _pick_node(cluster, rng).network
    network.drip(rng.choice((64, 512)), 0.002)
    await asyncio.sleep(rng.uniform(0.5, 2))
    network.mend()


async def restart_engine(cluster: Cluster, rng: random.Random) -> None:
    await cluster.restart_engine()


async def fail_over(cluster: Cluster, rng: random.Random) -> None:
    await cluster.fail_over(rng.uniform(0.2, 2))


async def cut_clients(cluster: Cluster, rng: random.Random) -> None:
    if (front := _pick_node(cluster, rng).front) is not None:
        front.cut()


async def swallow_clients(cluster: Cluster, rng: random.Random) -> None:
    if (front := _pick_node(cluster, rng).front) is not None:
        front.swallow()
        await asyncio.sleep(rng.uniform(0.2, LEASE))
        front.mend()


async def kill_backends(cluster: Cluster, rng: random.Random) -> None:
    await cluster.kill_backends(rng.choice((0.5, 1)))


async def fill_disk(cluster: Cluster, rng: random.Random) -> None:
    await cluster.fill_disk(rng.uniform(0.5, 2))


async def lock_database(cluster: Cluster, rng: random.Random) -> None:
    await cluster.lock_database(rng.uniform(0.5, 8))


async def upgrade(cluster: Cluster, rng: random.Random) -> None:
    """Stop a server of the older Turnwire, which is started again as this one."""
    if (node := next((node for node in cluster.nodes if node.old_source), None)) is not None:
        node.old_source = None
        await node.terminate()


async def jump_clock(cluster: Cluster, rng: random.Random) -> None:
    """Set the wall clock of one server an hour off, or right again."""
    cluster.nodes[0].set_clock(rng.choice((-3600, 0, 3600)))


async def stall(cluster: Cluster, rng: random.Random) -> None:
    """Open streams and never read them."""
    node = _pick_node(cluster, rng)
    port = node.port
    sockets: list[socket.socket] = []
    for _ in range(20):
        try:
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            sock.setblocking(False)
            await asyncio.wait_for(asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port)), 1)
            body = b'{"message": "400 0.001", "agent": "counting"}'
            head = f"POST /chat/stream HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
            key = f"Authorization: Bearer {cluster.keys['bob']}\r\nContent-Length: {len(body)}\r\n\r\n"
            await asyncio.get_running_loop().sock_sendall(sock, head.encode() + key.encode() + body)
            sockets.append(sock)
        except (OSError, TimeoutError):
            pass
    await asyncio.sleep(1)
    for sock in sockets:
        sock.close()


FAULTS: dict[str, tuple[Fault, int]] = {
    "kill": (kill, 9),
    "terminate": (terminate, 2),
    "pause": (pause, 3),
    "cut": (cut, 2),
    "swallow": (swallow, 2),
    "drip": (drip, 1),
    "restart_engine": (restart_engine, 3),
    "fail_over": (fail_over, 1),
    "kill_backends": (kill_backends, 1),
    "cut_clients": (cut_clients, 1),
    "swallow_clients": (swallow_clients, 1),
    "fill_disk": (fill_disk, 1),
    "jump_clock": (jump_clock, 1),
    "stall": (stall, 1),
    "lock_database": (lock_database, 2),
    "upgrade": (upgrade, 1),
}
"""Every fault with its weight."""
_OF_STORES: dict[StoreName, set[str]] = {
    "postgres": {"cut", "swallow", "drip", "restart_engine", "fail_over", "kill_backends"},
    "sqlite": {"lock_database"},
}


def faults_of(store: StoreName) -> list[str]:
    """Return the faults that servers with this store can have."""
    others = set[str]().union(*(names for name, names in _OF_STORES.items() if name != store))
    return [name for name in FAULTS if name not in others | {"upgrade"}]


def _pick_node(cluster: Cluster, rng: random.Random) -> Node:
    return rng.choice([node for node in cluster.nodes if node.is_ready and not node.is_paused] or cluster.nodes)


class Campaign:
    """One run of faults against a cluster."""

    def __init__(
        self,
        cluster: Cluster,
        seed: int,
        faults: list[str],
        report: Callable[[str], None],
        takeover_seconds: float,
    ) -> None:
        self._cluster = cluster
        self._takeover_seconds = takeover_seconds
        self._rng = random.Random(seed)
        self._faults = faults
        self._report = report
        self._users = SimulatedUsers(cluster, random.Random(seed + 1), self._attend)
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_over = False
        self.verdict = Verdict(seed=seed)

    async def run(self, seconds: float, pace: float) -> Verdict:
        """Run the campaign. `pace` is the average time between two faults."""
        supervising = asyncio.create_task(self._cluster.keep_up())
        talking = [asyncio.create_task(self._talk()) for _ in range(6)]
        try:
            await self._inject_faults(seconds, pace)
        finally:
            self._is_over = True
            await asyncio.wait(talking)
        self._report("no more faults; all turns must end")
        await self._settle(supervising)
        try:
            broken, self.verdict.takeovers = await check(self._users, self._cluster, self._takeover_seconds)
        except NoServerAnsweredError as error:
            broken = [f"no server answers after the last fault: {error}"]
        self.verdict.broken += broken
        supervising.cancel()
        await self._count()
        await self._users.close()
        return self.verdict

    async def _inject_faults(self, seconds: float, pace: float) -> None:
        end = time.monotonic() + seconds
        # Each fault once in random order, then by weight.
        first = self._rng.sample(self._faults, len(self._faults))
        while first or time.monotonic() < end:
            weights = [FAULTS[name][1] for name in self._faults]
            name = first.pop() if first else self._rng.choices(self._faults, weights)[0]
            self.verdict.faults[name] += 1
            self._spawn(FAULTS[name][0](self._cluster, self._rng))
            await self._cluster.wait_for_servers()  # Otherwise a slow machine would have none that serves.
            await asyncio.sleep(self._rng.uniform(0.5, 1.5) * pace)
            if sum(self.verdict.faults.values()) % 20 == 0:
                self._report(f"{dict(self.verdict.faults)}, {len(self._users.turns)} turns")

    async def _talk(self) -> None:
        rng, users = self._rng, self._users
        while not self._is_over:
            try:
                await users.talk()
            except NoServerAnsweredError as error:
                self.verdict.unanswered.append(str(error))
            except Exception as error:  # An unexpected answer is a violation; the user goes on.
                self.verdict.broken.append(f"a user could not go on: {type(error).__name__}: {error}")
            await asyncio.sleep(rng.uniform(0.1, 0.6))

    def _attend(self, turn: StartedTurn) -> None:
        rng, users = self._rng, self._users
        if turn.agent == "asking":
            self._spawn(users.allow(turn), turn)
        if turn.leaves:
            self._spawn(self._leave(turn), turn)
            return
        for _ in range(2):
            self._spawn(users.read(turn), turn)
        if rng.random() < 0.15:
            self._spawn(self._stop_later(turn), turn)
        if rng.random() < 0.1:
            self._spawn(users.pry(turn), turn)

    async def _stop_later(self, turn: StartedTurn) -> None:
        await asyncio.sleep(self._rng.uniform(0, 1.5))
        await self._users.stop(turn)

    async def _leave(self, turn: StartedTurn) -> None:
        """Read for a moment, disconnect, and come back later."""
        try:
            async with asyncio.timeout(self._rng.uniform(0.1, 0.5)):
                await self._users.read(turn)
        except TimeoutError:
            await asyncio.sleep(2)
            await self._users.read(turn)

    def _spawn(self, awaitable: Awaitable[None], turn: StartedTurn | None = None) -> None:
        task = asyncio.ensure_future(awaitable)
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._done(task, turn))

    def _done(self, task: "asyncio.Future[None]", turn: StartedTurn | None) -> None:
        self._tasks.discard(task)  # pyright: ignore[reportArgumentType]
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, NoServerAnsweredError):
            self.verdict.unanswered.append(str(error))
            if turn is not None:
                turn.is_unattended = True
        else:
            self.verdict.broken.append(f"{type(error).__name__}: {error}")

    async def _settle(self, supervising: asyncio.Task[None]) -> None:
        end = time.monotonic() + _SETTLE_SECONDS
        while self._tasks and time.monotonic() < end:
            await asyncio.wait(self._tasks, timeout=1)
        if self._tasks:
            late = [
                f"{turn.turn_id} ({turn.agent}) on {reader.wire}: {len(reader.frames)} frames"
                for turn in self._users.turns
                for reader in turn.readers
                if not reader.is_whole
            ]
            self.verdict.broken.append(f"{len(self._tasks)} tasks still wait; readers without an end: {late[:10]}")
            for task in list(self._tasks):
                task.cancel()
        if supervising.done():
            self.verdict.broken.append(f"a server could not be started: {supervising.exception()}")

    async def _count(self) -> None:
        verdict, users = self.verdict, self._users
        readers = [reader for turn in users.turns for reader in turn.readers]
        verdict.turns, verdict.readers = len(users.turns), len(readers)
        verdict.reconnects = sum(reader.connections - 1 for reader in readers)
        verdict.resets = sum(reader.resets for reader in readers)
        verdict.repeated, verdict.strangers, verdict.stops = users.repeated, users.strangers, users.stops
        for turn in users.turns:
            seen = next((reader.frames for reader in turn.readers if reader.wire in ("sse_chat", "websocket")), [])
            verdict.events += len(seen)
            if seen and seen[-1][1]["type"] == "done":
                verdict.outcomes[seen[-1][1]["outcome"]] += 1


async def run_campaign(
    *,
    seconds: float,
    seed: int,
    workers: int,
    folder: Path,
    pace: float = 1.0,
    store: StoreName = "postgres",
    faults: list[str] | None = None,
    old_source: Path | None = None,
    takeover_seconds: float = TAKEOVER_SECONDS,
    report: Callable[[str], None] = print,
) -> Verdict:
    chosen = faults or faults_of(store)
    async with cluster(workers, folder, store, old_source, has_clock="jump_clock" in chosen) as servers:
        possible = [name for name in chosen if name != "fill_disk" or servers.can_fill_disk]
        return await Campaign(servers, seed, possible, report, takeover_seconds).run(seconds, pace)
