"""Measurement of the simulation's costs of a worker and a database on this machine.

CPU times are of the process and of the database's own process, so that they hold on a busy machine; a flush is wall
time, the difference between commits that wait for the disk and commits that do not.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from statistics import median

from bench import measure
from bench.simulation import Costs
from bench.store_load import claimed_turn, write_all_turns
from turnwire.core.contracts.stores import AppendRequest
from turnwire.core.log.codec import LoggedEvent, now_ms
from turnwire.stores.memory import MemoryStore
from turnwire.stores.postgres import PostgresStore
from turnwire.stores.postgres.connections import BY_KEY, PLANNED_ONCE, ConnectionPool, DatabaseConnection
from turnwire.stores.postgres.notifications import READ
from turnwire.stores.postgres.rows import events_from
from turnwire.stores.postgres.writer import write_group

_TOKEN = b'{"type":"token","content":"twelve chars"}'
SHAPES = ((1, 1), (8, 1), (64, 1), (200, 1), (64, 16), (200, 16))
"""Turns in a commit, and events of each."""


async def calibrate(url: str, repeats: int, deliver: float = 0.0) -> Costs:
    """Measure the costs on an empty database, with `repeats` commits of each shape. `deliver` is passed through."""
    spoken = (await write_all_turns(MemoryStore(), 100))["us_per_event"]
    store = PostgresStore(url)
    await store.open()
    try:
        await store.renew("bench")
        turns = [(await claimed_turn(store)).id for _ in range(max(turns for turns, _ in SHAPES))]
        bench = _Bench(ConnectionPool(url, 1), turns)
        return await bench.costs(repeats, spoken, deliver)
    finally:
        await store.close()


class _Bench:
    def __init__(self, connections: ConnectionPool, turns: list[str]) -> None:
        self.connections = connections
        self.turns = turns
        self.positions = dict.fromkeys(turns, 2)

    async def costs(self, repeats: int, spoken: float, deliver: float) -> Costs:
        durable = await self.connections.connect(**BY_KEY)
        unflushed = await self.connections.connect(**BY_KEY, synchronous_commit="off")
        following = await self.connections.connect(**PLANNED_ONCE)
        listening = await self.connections.connect()
        try:
            for connection in (durable, unflushed):
                await self.commit(connection, 200, 1)
            await self.look(following, 1)
            ours: list[Sequence[float]] = []
            theirs: list[Sequence[float]] = []
            waits: list[float] = []
            for turns, each in SHAPES:
                quick = await _spent(unflushed, lambda t=turns, e=each: self.commit(unflushed, t, e), repeats)
                sure = await _spent(durable, lambda t=turns, e=each: self.commit(durable, t, e), repeats)
                ours.append((1, turns * each, quick.ours))
                theirs.append((1, turns, turns * each, quick.theirs))
                waits.append(sure.clock - quick.clock)
            group, encode = fitted(ours)
            commit, commit_turn, commit_event = fitted(theirs)
            hint = await _spent(unflushed, lambda: _notify(unflushed), repeats)
            await listening.add_listener("turnwire-bench", lambda *_: None)
            heard = await _spent(unflushed, lambda: _notify(unflushed), repeats)
            looks: list[Sequence[float]] = []
            reads: list[float] = []
            for turns in (1, 200):
                spent = await _spent(following, lambda t=turns: self.look(following, t), repeats)
                looks.append((1, turns, spent.theirs))
                reads.append(spent.ours)
            look, look_turn = fitted(looks)
            return Costs(
                speak=spoken,
                encode=encode,
                group=group,
                deliver=deliver,
                commit=commit,
                commit_turn=commit_turn,
                commit_event=commit_event,
                flush=max(1.0, median(waits)),
                hint=hint.theirs,
                listener=max(1.0, heard.ours - hint.ours),
                look=look,
                look_turn=look_turn,
                read=(reads[1] - reads[0]) / 199,
            )
        finally:
            for connection in (durable, unflushed, following, listening):
                connection.terminate()

    async def commit(self, connection: DatabaseConnection, turns: int, each: int) -> None:
        group: list[AppendRequest] = []
        for turn_id in self.turns[:turns]:
            first = self.positions[turn_id] + 1
            events = [LoggedEvent(first + n, 1, now_ms(), _TOKEN) for n in range(each)]
            group.append(AppendRequest(turn_id, 1, events, lambda *_: None))
            self.positions[turn_id] += each
        written = await write_group(connection, group, noting=(False, False))
        assert len(written) == turns, "a commit that was to be measured was refused"

    async def look(self, connection: DatabaseConnection, turns: int) -> None:
        """Query the last event of each turn."""
        turn_ids = self.turns[:turns]
        after = [self.positions[turn_id] - 1 for turn_id in turn_ids]
        for (_, first, _, body), position in zip(await connection.fetch(READ, turn_ids, after), after, strict=True):
            events_from([(first, body)], position)


class _Spent:
    """Medians of one call, in microseconds: the clock, our CPU, and that of the database's process."""

    def __init__(self, clock: list[float], ours: float, theirs: float) -> None:
        self.clock, self.ours, self.theirs = median(clock) * 1e6, ours * 1e6, theirs * 1e6


async def _spent(connection: DatabaseConnection, call: Callable[[], Awaitable[None]], repeats: int) -> _Spent:
    pid = await connection.fetchval("SELECT pg_backend_pid()")
    clock: list[float] = []
    ours, theirs = time.process_time(), measure.cpu_seconds(pid)
    for _ in range(repeats):
        started = time.perf_counter()
        await call()
        clock.append(time.perf_counter() - started)
    return _Spent(clock, (time.process_time() - ours) / repeats, (measure.cpu_seconds(pid) - theirs) / repeats)


async def _notify(connection: DatabaseConnection) -> None:
    await connection.execute("SELECT pg_notify('turnwire-bench', $1)", "+" + "x" * 4000)


def fitted(rows: Sequence[Sequence[float]]) -> list[float]:
    """Fit non-negative weights that explain the last number of each row by the others, by relative error."""
    scaled = [[value / row[-1] for value in row[:-1]] for row in rows]
    weights = [0.0] * len(scaled[0])
    for _ in range(2000):
        for n in range(len(weights)):
            error = sum(row[n] * (1 - sum(w * x for w, x in zip(weights, row, strict=True))) for row in scaled)
            weights[n] = max(0.0, weights[n] + error / sum(row[n] ** 2 for row in scaled))
    return weights
