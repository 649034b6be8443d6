"""What keeps a log a log: one writer, no gap, one end. Shared by the stores that decide in this process."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from heapq import nsmallest
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from turnwire.core.codec import LoggedEvent, now_ms
from turnwire.core.contracts import Admission, LogReader, Refusal, Wake, Worker
from turnwire.core.errors import (
    BudgetSpentError,
    EventsGoneError,
    FencedError,
    LogRewoundError,
    PositionError,
    SessionBusyError,
    TooManyTurnsError,
    TurnEndedError,
    TurnTakenError,
)
from turnwire.core.turns import TurnRecord

logger = logging.getLogger("turnwire.stores")


class Head:
    """Where a turn's log stands and who may write to it."""

    __slots__ = ("ended", "epoch", "position", "turn_id", "worker")

    def __init__(self, turn_id: str, epoch: int, position: int, *, ended: bool = False) -> None:
        self.turn_id = turn_id
        self.epoch = epoch
        self.position = position
        self.ended = ended
        self.worker: str | None = None

    def claim(self, worker: str) -> int:
        if self.ended:
            raise TurnEndedError(self.turn_id)
        self.worker = worker
        self.epoch += 1
        return self.epoch

    def refusal(self, epoch: int, events: Sequence[LoggedEvent]) -> Refusal | None:
        """Why these events may not be appended, or None."""
        if epoch != self.epoch:
            return FencedError(self.turn_id)
        if self.ended:
            return TurnEndedError(self.turn_id)
        if events[0].position != self.position + 1:
            return PositionError(self.turn_id, self.position + 1, events[0].position)
        return None


def check_admission(admission: Admission, session_id: str, in_session: int, unfinished: int) -> None:
    """Whether a principal with so many unfinished turns, some of them in this session, may start another.

    Raises SessionBusyError, TooManyTurnsError, BudgetSpentError.
    """
    allowed = {"reject": 0, "enqueue": admission.max_queued}.get(admission.on_busy)
    if allowed is not None and in_session > allowed:
        raise SessionBusyError(session_id, in_session)
    if unfinished >= admission.max_unfinished:
        raise TooManyTurnsError(admission.max_unfinished)
    budget = admission.budget
    if budget is not None and budget.left <= 0:
        raise BudgetSpentError(budget.limit, budget.used, budget.resets_at)


def check_free(record: TurnRecord, worker: str, leases: "Leases") -> None:
    """Whether a worker may claim the turn. Raises TurnTakenError."""
    if record.phase == "running" and record.worker != worker and leases.holds(record.worker):
        raise TurnTakenError(record.id)


async def read_known(reader: LogReader, turn_id: str, after: int, limit: int, epoch: int) -> list[LoggedEvent]:
    """Reads the event at `after` too, to see that it is the one that the reader has. Raises LogRewoundError."""
    try:
        events = await reader.read(turn_id, after - 1, limit + 1)
    except EventsGoneError as gone:
        if after + 1 < gone.first_kept:
            raise
        return await reader.read(turn_id, after, limit)
    if not events or events[0].epoch != epoch:
        raise LogRewoundError(turn_id)
    return events[1:]


def lasting(options: dict[str, Any]) -> dict[str, Any]:
    """What is kept of a turn's options when it has ended: not the files, which nobody is given again."""
    return {name: value for name, value in options.items() if name != "attachments"}


class Leases:
    """Which workers of this process are alive, and which turns are read in them. One that is not known is dead."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._until: dict[str, float] = {}
        self._workers: dict[str, Worker] = {}
        self._attended: dict[str, set[str]] = {}

    def renew(self, worker: str, name: str, draining: bool) -> None:
        self._until[worker] = self._clock() + self._seconds
        known = self._workers.get(worker)
        started_at = known.started_at if known else now_ms()
        self._workers[worker] = Worker(id=worker, name=name, started_at=started_at, draining=draining)

    def retire(self, worker: str) -> None:
        self._until.pop(worker, None)
        self._workers.pop(worker, None)

    def holds(self, worker: str | None) -> bool:
        return worker is not None and self._until.get(worker, 0.0) > self._clock()

    def workers(self, running: Counter[str | None]) -> list[Worker]:
        ends = {worker: now_ms() + int((until - self._clock()) * 1000) for worker, until in self._until.items()}
        return [
            replace(worker, lease_until=ends[worker.id], running=running[worker.id])
            for worker in self._workers.values()
            if self.holds(worker.id)
        ]

    def attend(self, turn_id: str, worker: str, present: bool) -> bool:
        attending = self._attended.setdefault(turn_id, set())
        (attending.add if present else attending.discard)(worker)
        if not attending:
            del self._attended[turn_id]
        return any(map(self.holds, attending))

    def leave(self, turn_id: str) -> None:
        """The turn has ended."""
        self._attended.pop(turn_id, None)


class CommitHooks:
    """Who has something for the next commit."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], None]] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, gather: Callable[[], None]) -> None:
        self._waiting.append(gather)

    def run(self) -> None:
        waiting, self._waiting = self._waiting, []
        for gather in waiting:
            try:
                gather()
            except Exception:
                # One that fails must not keep the others from being committed.
                logger.exception("what a turn wrote could not be gathered")


class Watchers:
    """Who wants to know about commits to which turn or session."""

    def __init__(self) -> None:
        self._wakes: dict[str, list[Wake]] = {}

    def add(self, key: str, wake: Wake) -> Callable[[], None]:
        self._wakes.setdefault(key, []).append(wake)
        return partial(self._remove, key, wake)

    def _remove(self, key: str, wake: Wake) -> None:
        wakes = self._wakes.get(key)
        if wakes and wake in wakes:
            wakes.remove(wake)
            if not wakes:
                del self._wakes[key]

    def notify(self, key: str, events: Sequence[LoggedEvent]) -> None:
        wakes = self._wakes.get(key)
        if wakes is not None:
            for wake in tuple(wakes) if len(wakes) > 1 else wakes:
                try:
                    wake(events)
                except Exception:
                    # The store has others to tell: the writer, and the readers of every other turn.
                    logger.exception("a watcher of %s failed", key)

    def notify_all(self) -> None:
        for key in tuple(self._wakes):
            self.notify(key, ())

    def keys(self) -> list[str]:
        return list(self._wakes)


# Whose turn it is: for the stores that decide in this process.


class ReadyQueue(Struct):
    """The unfinished turns of each session, in the order they were accepted. The first of a session may run."""

    _sessions: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    _queued: set[str] = field(default_factory=set[str])
    _ready: set[str] = field(default_factory=set[str])

    def add(self, session_id: str, turn_id: str, *, queued: bool = True) -> bool:
        """True if it may run at once."""
        self._sessions.setdefault(session_id, []).append(turn_id)
        return queued and self.queue(session_id, turn_id)

    def queue(self, session_id: str, turn_id: str) -> bool:
        """It waits to be run, for the first time or again. True if it may at once."""
        self._queued.add(turn_id)
        return self._look_at_first(session_id)

    def take(self, turn_id: str) -> None:
        """It does not wait to be run any more."""
        self._queued.discard(turn_id)
        self._ready.discard(turn_id)

    def end(self, session_id: str, turn_id: str) -> bool:
        """True if another turn of the session may run now."""
        self.take(turn_id)
        turns = self._sessions[session_id]
        turns.remove(turn_id)
        if not turns:
            del self._sessions[session_id]
            return False
        return self._look_at_first(session_id)

    def _look_at_first(self, session_id: str) -> bool:
        first = self._sessions[session_id][0]
        if first not in self._queued:
            return False
        self._ready.add(first)
        return True

    def ready(self, limit: int) -> list[str]:
        """Those that may run, oldest first: their ids grow with time."""
        return nsmallest(limit, self._ready)

    def unfinished(self, session_id: str) -> list[str]:
        return list(self._sessions.get(session_id, ()))
