"""A simulation of many workers and databases from the measured costs of one of each.

A queueing model, run commit by commit. A worker is one core; each of its writers (one per database) commits what
arrived since its last commit, as the store does. A database is some cores and one log flush at a time, which all
waiting commits share. Sessions are assigned to databases by rendezvous hashing of their ids.

It ignores networks, tables other than the log, and vacuum. The same seed gives the same result.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from random import Random

from bench.results import quantiles

MAX_PENDING = 1_000
"""Uncommitted events of one turn before its agent must wait."""
_SAMPLES = 4
"""Events of a group whose age is sampled."""


@dataclass(frozen=True)
class Costs:
    """The costs in microseconds, measured by `calibration`."""

    speak: float
    """Worker, an event: from the agent to the log."""
    encode: float
    """Worker, an event: into the group that is committed."""
    group: float
    """Worker, a group: the call of the driver."""
    deliver: float
    """Worker, an event and a reader: encoded for its wire and sent."""
    commit: float
    """Database, a commit of any size."""
    commit_turn: float
    """Database, each turn in it."""
    commit_event: float
    """Database, each event in it."""
    flush: float
    """Database, until its log is on the disk; not CPU time."""
    hint: float
    """Database, a NOTIFY."""
    listener: float
    """Database and worker, a process that receives it."""
    look: float
    """Database, a query for new events."""
    look_turn: float
    """Database, each turn in that query."""
    read: float
    """Worker, an event that comes from the database."""


@dataclass(frozen=True)
class Cluster:
    workers: int = 1
    databases: int = 1
    database_cores: int = 2
    turns: int = 200
    rate: float = 20.0
    """Events a turn and second."""
    readers: float = 1.0
    """Of each turn."""
    elsewhere: float = 0.0
    """The share of readers in other processes than the turn's."""
    seconds: float = 2.0
    seed: int = 1


@dataclass
class Outcome:
    events_per_second: float
    p50_ms: float
    p99_ms: float
    events_per_commit: float
    worker_busy: float
    """Of the busiest worker's core."""
    database_busy: float
    """Of the busiest database's cores."""
    worker_us: float
    """CPU of all workers, an event."""
    database_us: float
    fullest: float
    """The turns of the fullest database, over the mean."""


def database_of(session_id: str, databases: int) -> int:
    """Return the database of a session by rendezvous hashing: a new database moves only its own share."""
    return max(range(databases), key=lambda name: blake2b(f"{name}/{session_id}".encode(), digest_size=8).digest())


def simulate(cluster: Cluster, costs: Costs) -> Outcome:
    return _Run(cluster, costs).outcome()


def at_full_speed(cluster: Cluster, costs: Costs) -> Outcome:
    """Simulate agents that yield events as fast as their worker's core allows."""
    return simulate(replace(cluster, rate=2e6 / costs.speak / cluster.turns * cluster.workers), costs)


def most_turns(cluster: Cluster, costs: Costs, p99_ms: float = 100.0) -> int:
    """Return the most turns at the cluster's rate whose events are all read in time, within 2 %."""
    low, high = cluster.workers, 4_096 * cluster.workers
    while high - low > max(1, low // 50):
        turns = (low + high) // 2
        outcome = simulate(replace(cluster, turns=turns), costs)
        # The last events are not committed yet when the simulation ends.
        expected = turns * cluster.rate * (1 - outcome.p99_ms / 1000 / cluster.seconds)
        is_fine = outcome.p99_ms <= p99_ms and outcome.events_per_second > 0.95 * expected
        low, high = (turns, high) if is_fine else (low, turns)
    return low


class _Cores:
    """Cores that serve first come, first served; calls must be in the order of time."""

    def __init__(self, count: int) -> None:
        self._free = [0.0] * count
        self.used = 0.0

    def take(self, at: float, work: float) -> float:
        """Run some work and return its end."""
        end = max(at, self._free[0]) + work
        heapq.heapreplace(self._free, end)
        self.used += work
        return end

    def busy(self, until: float) -> float:
        return min(1.0, self.used / until / len(self._free))


class _Database:
    def __init__(self, cores: int) -> None:
        self.cores = _Cores(cores)
        self._flush_starts = self._flush_ends = 0.0

    def flush(self, at: float, work: float) -> float:
        """Return the end of the next flush, which covers all that wait when it starts."""
        if at >= self._flush_ends:
            self._flush_starts, self._flush_ends = at, at + work
        elif at > self._flush_starts:
            self._flush_starts, self._flush_ends = self._flush_ends, self._flush_ends + work
        return self._flush_ends


@dataclass
class _Writer:
    """The writer of one worker for one database."""

    worker: int
    database: int
    turns: int
    since: float = 0.0


@dataclass
class _Hub:
    """The events in a database that a worker has yet to read."""

    is_reading: bool = False
    turns: float = 0.0
    events: int = 0
    born: list[float] = field(default_factory=list[float])


class _Run:
    def __init__(self, cluster: Cluster, costs: Costs) -> None:
        self.cluster, self.costs = cluster, costs
        self.random = Random(cluster.seed)
        self.end = cluster.seconds * 1e6
        self.workers = [_Cores(1) for _ in range(cluster.workers)]
        self.databases = [_Database(cluster.database_cores) for _ in range(cluster.databases)]
        self.hubs = {(w, d): _Hub() for w in range(cluster.workers) for d in range(cluster.databases)}
        self.agenda: list[tuple[float, int, Callable[[float], None]]] = []
        self.noted = self.delivered = self.commits = self.committed = 0
        self.ages: list[float] = []
        placed: dict[tuple[int, int], int] = {}
        for turn in range(cluster.turns):
            key = turn % cluster.workers, database_of(f"{cluster.seed}-{turn}", cluster.databases)
            placed[key] = placed.get(key, 0) + 1
        self.writers = [_Writer(w, d, turns) for (w, d), turns in sorted(placed.items())]

    def outcome(self) -> Outcome:
        for writer in self.writers:
            self.at(self.random.random() * 1000, lambda t, writer=writer: self.begin(writer, t))
        while self.agenda and self.agenda[0][0] < self.end:
            at, _, do = heapq.heappop(self.agenda)
            do(at)
        share = [sum(w.turns for w in self.writers if w.database == d) for d in range(len(self.databases))]
        ages = quantiles(self.ages)
        return Outcome(
            self.committed / self.end * 1e6,
            ages.get("p50", 0.0) / 1000,
            ages.get("p99", 0.0) / 1000,
            self.committed / max(1, self.commits),
            max(worker.busy(self.end) for worker in self.workers),
            max(database.cores.busy(self.end) for database in self.databases),
            sum(worker.used for worker in self.workers) / max(1, self.committed),
            sum(database.cores.used for database in self.databases) / max(1, self.committed),
            max(share) / (self.cluster.turns / len(share)),
        )

    def at(self, when: float, do: Callable[[float], None]) -> None:
        self.noted += 1
        heapq.heappush(self.agenda, (when, self.noted, do))

    def varied(self, work: float) -> float:
        return work * (0.5 + 0.5 * self.random.expovariate(1))

    def begin(self, writer: _Writer, t: float) -> None:
        """Group all events since the last commit; if there are none, wait for the next."""
        rate = writer.turns * self.cluster.rate / 1e6
        count = self.arrived(rate * (t - writer.since))
        if count:
            self.hand_over(writer, count, t)
        else:
            self.at(t + self.random.expovariate(rate), lambda t: self.hand_over(writer, 1, t))

    def hand_over(self, writer: _Writer, count: int, t: float) -> None:
        # One core cannot yield more in that time.
        spoken = int((t - writer.since) / self.costs.speak)
        count = min(count, writer.turns * MAX_PENDING, max(1, spoken))
        waited = t - writer.since if count > 1 else 0.0
        born = [t - waited * self.random.random() for _ in range(min(count, _SAMPLES))]
        writer.since = t
        costs, core = self.costs, self.workers[writer.worker]
        handed = core.take(t, costs.group + count * costs.encode)
        # Meanwhile the agents go on, on average as fast as commits allow.
        core.take(t, count * costs.speak)
        turns = writer.turns * (1 - (1 - 1 / writer.turns) ** count)
        self.at(handed, lambda t: self.commit(writer, count, turns, born, t))

    def arrived(self, mean: float) -> int:
        if mean > 50:
            return max(0, round(self.random.gauss(mean, mean**0.5)))
        count, left = 0, self.random.expovariate(1)
        while left < mean:
            count, left = count + 1, left + self.random.expovariate(1)
        return count

    def commit(self, writer: _Writer, count: int, turns: float, born: list[float], t: float) -> None:
        costs, database = self.costs, self.databases[writer.database]
        work = costs.commit + turns * costs.commit_turn + count * costs.commit_event
        done = database.cores.take(t, self.varied(work))
        self.at(done, lambda t: self.flush(writer, count, turns, born, t))

    def flush(self, writer: _Writer, count: int, turns: float, born: list[float], t: float) -> None:
        done = self.databases[writer.database].flush(t, self.varied(self.costs.flush))
        self.at(done, lambda t: self.publish(writer, count, turns, born, t))

    def publish(self, writer: _Writer, count: int, turns: float, born: list[float], t: float) -> None:
        cluster, costs = self.cluster, self.costs
        self.commits += 1
        self.committed += count
        self.begin(writer, t)
        here = cluster.readers * (1 - cluster.elsewhere)
        shown = self.workers[writer.worker].take(t, count * here * costs.deliver)
        if here:
            self.ages += [shown - at for at in born]
        if cluster.workers == 1:
            return
        heard = self.databases[writer.database].cores.take(t, costs.hint + costs.listener * cluster.workers)
        for worker in range(cluster.workers):
            if worker != writer.worker:
                self.workers[worker].take(t, costs.listener)
        if cluster.elsewhere:
            reader = (writer.worker + 1) % cluster.workers
            self.at(heard, lambda t: self.hear(reader, writer.database, count, turns, born, t))

    def hear(self, worker: int, database: int, count: int, turns: float, born: list[float], t: float) -> None:
        hub = self.hubs[worker, database]
        hub.turns += turns * min(1.0, self.cluster.elsewhere * self.cluster.readers)
        hub.events += count
        hub.born += born
        if not hub.is_reading:
            self.look(worker, database, t)

    def look(self, worker: int, database: int, t: float) -> None:
        """Query for all new events, one query at a time."""
        costs, hub, cluster = self.costs, self.hubs[worker, database], self.cluster
        count, turns, born = hub.events, hub.turns, hub.born
        self.hubs[worker, database] = hub = _Hub(is_reading=True)
        read = self.databases[database].cores.take(t, self.varied(costs.look + turns * costs.look_turn))

        def show(t: float) -> None:
            share = cluster.readers * cluster.elsewhere
            shown = self.workers[worker].take(t, count * (min(1.0, share) * costs.read + share * costs.deliver))
            self.ages.extend(shown - at for at in born)
            hub.is_reading = False
            if hub.events:
                self.look(worker, database, t)

        self.at(read, show)
