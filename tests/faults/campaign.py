"""People use the servers while one fault after another is made; then it is quiet, and everything comes to its end."""

import asyncio
import random
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

from msgspec import Struct, field

from tests.faults.checking import check
from tests.faults.cluster import LEASE, Cluster, Node, cluster
from tests.faults.people import Asked, People

# After the last fault: a lease, a takeover, and the longest that an agent may take for all that is queued.
_SETTLE_SECONDS = 45.0

Fault = Callable[[Cluster, random.Random], Awaitable[None]]


class Verdict(Struct, kw_only=True):
    seed: int
    faults: Counter[str] = field(default_factory=Counter[str])
    turns: int = 0
    outcomes: Counter[str] = field(default_factory=Counter[str])
    events: int = 0
    readers: int = 0
    reconnects: int = 0
    resets: int = 0
    stops: list[float] = field(default_factory=list[float])
    takeovers: list[float] = field(default_factory=list[float])
    repeated: int = 0
    strangers: int = 0
    broken: list[str] = field(default_factory=list[str])


# The faults


async def kill(cluster: Cluster, chance: random.Random) -> None:
    await _some(cluster, chance).kill()


async def terminate(cluster: Cluster, chance: random.Random) -> None:
    await _some(cluster, chance).terminate()


async def pause(cluster: Cluster, chance: random.Random) -> None:
    """Longer than the lease: when it comes back, its turns are somebody else's."""
    await _some(cluster, chance).pause(LEASE * chance.uniform(1.2, 2))


async def cut(cluster: Cluster, chance: random.Random) -> None:
    _some(cluster, chance).network.cut()


async def swallow(cluster: Cluster, chance: random.Random) -> None:
    network = _some(cluster, chance).network
    network.swallow()
    await asyncio.sleep(chance.uniform(0.2, 2 * LEASE))
    network.mend()


async def drip(cluster: Cluster, chance: random.Random) -> None:
    network = _some(cluster, chance).network
    network.drip(chance.choice((64, 512)), 0.002)
    await asyncio.sleep(chance.uniform(0.5, 2))
    network.mend()


async def restart_engine(cluster: Cluster, chance: random.Random) -> None:
    await cluster.restart_engine()


async def cut_clients(cluster: Cluster, chance: random.Random) -> None:
    if (front := _some(cluster, chance).front) is not None:
        front.cut()


async def swallow_clients(cluster: Cluster, chance: random.Random) -> None:
    if (front := _some(cluster, chance).front) is not None:
        front.swallow()
        await asyncio.sleep(chance.uniform(0.2, LEASE))
        front.mend()


async def kill_backends(cluster: Cluster, chance: random.Random) -> None:
    await cluster.kill_backends(chance.choice((0.5, 1)))


async def fill_disk(cluster: Cluster, chance: random.Random) -> None:
    await cluster.fill_disk(chance.uniform(0.5, 2))


async def jump_clock(cluster: Cluster, chance: random.Random) -> None:
    """The wall clock of one machine is an hour off, or right again."""
    cluster.nodes[0].set_clock(chance.choice((-3600, 0, 3600)))


async def stall(cluster: Cluster, chance: random.Random) -> None:
    """Somebody asks for streams and never reads them."""
    node = _some(cluster, chance)
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
    "kill_backends": (kill_backends, 1),
    "cut_clients": (cut_clients, 1),
    "swallow_clients": (swallow_clients, 1),
    "fill_disk": (fill_disk, 1),
    "jump_clock": (jump_clock, 1),
    "stall": (stall, 1),
}
"""With how often each is chosen."""


def _some(cluster: Cluster, chance: random.Random) -> Node:
    return chance.choice([node for node in cluster.nodes if node.is_up and not node.is_paused] or cluster.nodes)


class Campaign:
    def __init__(self, cluster: Cluster, seed: int, faults: list[str], tell: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._chance = random.Random(seed)
        self._faults = faults
        self._tell = tell
        self._people = People(cluster, random.Random(seed + 1), self._attend)
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_over = False
        self.verdict = Verdict(seed=seed)

    async def run(self, seconds: float, pace: float) -> Verdict:
        """`pace` is how long it is between two faults, on average."""
        supervising = asyncio.create_task(self._cluster.keep_up())
        talking = [asyncio.create_task(self._talk()) for _ in range(6)]
        try:
            await self._torture(seconds, pace)
        finally:
            self._is_over = True
            await asyncio.wait(talking)
        self._tell("no more faults; everything must come to its end")
        await self._settle(supervising)
        broken, self.verdict.takeovers = await check(self._people, self._cluster)
        self.verdict.broken += broken
        supervising.cancel()
        await self._count()
        await self._people.close()
        return self.verdict

    async def _torture(self, seconds: float, pace: float) -> None:
        end = time.monotonic() + seconds
        # Each at least once, in some order, then as they come.
        first = self._chance.sample(self._faults, len(self._faults))
        while time.monotonic() < end:
            weights = [FAULTS[name][1] for name in self._faults]
            name = first.pop() if first else self._chance.choices(self._faults, weights)[0]
            self.verdict.faults[name] += 1
            self._spawn(FAULTS[name][0](self._cluster, self._chance))
            await asyncio.sleep(self._chance.uniform(0.5, 1.5) * pace)
            if sum(self.verdict.faults.values()) % 20 == 0:
                self._tell(f"{dict(self.verdict.faults)}, {len(self._people.asked)} turns")

    async def _talk(self) -> None:
        chance, people = self._chance, self._people
        while not self._is_over:
            try:
                await people.talk()
            except Exception as error:  # Whoever was told something odd says so, and goes on.
                self.verdict.broken.append(f"somebody could not go on: {type(error).__name__}: {error}")
            await asyncio.sleep(chance.uniform(0.1, 0.6))

    def _attend(self, asked: Asked) -> None:
        chance, people = self._chance, self._people
        if asked.agent == "asking":
            self._spawn(people.allow(asked))
        if asked.leaves:
            self._spawn(self._leave(asked))
            return
        for _ in range(2):
            self._spawn(people.read(asked))
        if chance.random() < 0.15:
            self._spawn(self._stop_later(asked))
        if chance.random() < 0.1:
            self._spawn(people.pry(asked))

    async def _stop_later(self, asked: Asked) -> None:
        await asyncio.sleep(self._chance.uniform(0, 1.5))
        await self._people.stop(asked)

    async def _leave(self, asked: Asked) -> None:
        """Reads a little, goes, and does not come back for a while."""
        try:
            async with asyncio.timeout(self._chance.uniform(0.1, 0.5)):
                await self._people.read(asked)
        except TimeoutError:
            await asyncio.sleep(2)
            await self._people.read(asked)

    def _spawn(self, doing: Awaitable[None]) -> None:
        task = asyncio.ensure_future(doing)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Future[None]") -> None:
        self._tasks.discard(task)  # pyright: ignore[reportArgumentType]
        if not task.cancelled() and (error := task.exception()) is not None:
            self.verdict.broken.append(f"{type(error).__name__}: {error}")

    async def _settle(self, supervising: asyncio.Task[None]) -> None:
        end = time.monotonic() + _SETTLE_SECONDS
        while self._tasks and time.monotonic() < end:
            await asyncio.wait(self._tasks, timeout=1)
        if self._tasks:
            late = [
                f"{asked.turn_id} ({asked.agent}) on {one.wire}: {len(one.frames)} frames, {one.connections} times"
                for asked in self._people.asked
                for one in asked.readers
                if not one.is_whole
            ]
            self.verdict.broken.append(f"{len(self._tasks)} people still wait; not all was seen of {late[:10]}")
            for task in list(self._tasks):
                task.cancel()
        if supervising.done():
            self.verdict.broken.append(f"a server could not be started: {supervising.exception()}")

    async def _count(self) -> None:
        verdict, people = self.verdict, self._people
        readers = [reader for asked in people.asked for reader in asked.readers]
        verdict.turns, verdict.readers = len(people.asked), len(readers)
        verdict.reconnects = sum(reader.connections - 1 for reader in readers)
        verdict.resets = sum(reader.resets for reader in readers)
        verdict.repeated, verdict.strangers, verdict.stops = people.repeated, people.strangers, people.stops
        for asked in people.asked:
            seen = next((one.frames for one in asked.readers if one.wire in ("sse_chat", "websocket")), [])
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
    faults: list[str] | None = None,
    tell: Callable[[str], None] = print,
) -> Verdict:
    async with cluster(workers, folder) as made:
        possible = [name for name in faults or FAULTS if name != "fill_disk" or made.can_fill_disk]
        return await Campaign(made, seed, possible, tell).run(seconds, pace)
