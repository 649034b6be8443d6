"""The rules that every store keeps: one writer, no gap, one end; admission, leases and the order of turns.

Memory and SQLite check the rules in this process, and use all of this module. PostgreSQL checks claims, positions and
the order of turns in the database, and uses the other parts.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from heapq import nsmallest
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from turnwire.core.contracts.stores import Admission, AppendRequest, Refusal, Wake, Worker
from turnwire.core.errors import (
    BudgetSpentError,
    EventsGoneError,
    FencedError,
    LogRewoundError,
    PositionError,
    SessionBusyError,
    TooManyTurnsError,
    TurnEndedError,
)
from turnwire.core.log.codec import LoggedEvent, now_ms

logger = logging.getLogger("turnwire.stores")

Read = Callable[[str, int, int], Awaitable[list[LoggedEvent]]]


class LogHead(Struct, gc=False):
    """The last position of a turn's log, and the epoch that may write to it."""

    turn_id: str
    epoch: int
    position: int
    ended: bool = False

    def claim(self) -> int:
        """Return a new epoch, which fences all older ones. Raises TurnEndedError."""
        if self.ended:
            raise TurnEndedError(self.turn_id)
        self.epoch += 1
        return self.epoch

    def refusal(self, request: AppendRequest) -> Refusal | None:
        """Return the error if the request may not be committed, else None."""
        if request.epoch != self.epoch:
            return FencedError(self.turn_id)
        if self.ended:
            return TurnEndedError(self.turn_id)
        events = request.events
        first_position = events[0].position if events else request.first_position
        if first_position != self.position + 1:
            return PositionError(self.turn_id, self.position + 1, first_position)
        return entry_refusal(request) if request.entries else None


def entry_refusal(request: AppendRequest) -> PositionError | None:
    """Return the error if a journal entry is ahead of the events that it belongs to."""
    for entry in request.entries:
        if entry.position > request.last_position:
            return PositionError(request.turn_id, request.last_position, entry.position)
    return None


def check_admission(admission: Admission, session_id: str, in_session: int, unfinished: int) -> None:
    """Check a new turn of a principal with `unfinished` turns, `in_session` of them in this session.

    Raises SessionBusyError, TooManyTurnsError, BudgetSpentError.
    """
    allowed = {"reject": 0, "interrupt": None}.get(admission.on_busy, admission.max_queued)
    if allowed is not None and in_session > allowed:
        raise SessionBusyError(session_id, in_session)
    if unfinished >= admission.max_unfinished:
        raise TooManyTurnsError(admission.max_unfinished)
    budget = admission.budget
    if budget is not None and budget.left <= 0:
        raise BudgetSpentError(budget.limit, budget.used, budget.resets_at)


def without_attachments(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that are kept when a turn has ended: no later call gets its files."""
    return {name: value for name, value in options.items() if name != "attachments"}


async def read_with_epoch(read: Read, turn_id: str, after: int, limit: int, epoch: int) -> list[LoggedEvent]:
    """Read events after `after`, and check the epoch of the event at `after`. Raises what `LogReader.read` raises."""
    try:
        events = await read(turn_id, after - 1, limit + 1)
    except EventsGoneError as gone:
        if after + 1 < gone.first_kept:
            raise
        return await read(turn_id, after, limit)
    if not events or events[0].epoch != epoch:
        raise LogRewoundError(turn_id)
    # A page with that event alone may be full: of its bytes, or of those of the row that it is the last event of.
    return events[1:] or await read(turn_id, after, limit)


class Leases:
    """The live workers of this process, and the workers in which each turn has readers. An unknown worker is dead."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._until: dict[str, float] = {}
        self._workers: dict[str, Worker] = {}
        self._attending: dict[str, set[str]] = {}

    def renew(self, worker: str, name: str, draining: bool) -> None:
        self._until[worker] = self._clock() + self._seconds
        previous = self._workers.get(worker)
        started_at = previous.started_at if previous else now_ms()
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
        attending = self._attending.setdefault(turn_id, set())
        (attending.add if present else attending.discard)(worker)
        if not attending:
            del self._attending[turn_id]
        return any(map(self.holds, attending))

    def forget_readers(self, turn_id: str) -> None:
        """Drop the readers of a turn that has ended."""
        self._attending.pop(turn_id, None)


class ReadyQueue:
    """The unfinished turns of each session, in the order of acceptance. Only the first of a session may run."""

    def __init__(self) -> None:
        self._sessions: dict[str, list[str]] = {}
        self._queued: set[str] = set()
        self._ready: set[str] = set()

    def add(self, session_id: str, turn_id: str, *, queued: bool = True) -> bool:
        """Add a turn to its session. Return True if it may run at once."""
        self._sessions.setdefault(session_id, []).append(turn_id)
        return queued and self.queue(session_id, turn_id)

    def queue(self, session_id: str, turn_id: str) -> bool:
        """Queue a turn, for the first time or again. Return True if the session's first turn may run."""
        self._queued.add(turn_id)
        return self._mark_first_ready(session_id)

    def take(self, turn_id: str) -> None:
        """Remove the turn from the queue: a worker has it, or it has ended."""
        self._queued.discard(turn_id)
        self._ready.discard(turn_id)

    def end(self, session_id: str, turn_id: str) -> bool:
        """Remove an ended turn from its session. Return True if the session's next turn may run now."""
        self.take(turn_id)
        turns = self._sessions[session_id]
        turns.remove(turn_id)
        if not turns:
            del self._sessions[session_id]
            return False
        return self._mark_first_ready(session_id)

    def _mark_first_ready(self, session_id: str) -> bool:
        first = self._sessions[session_id][0]
        if first not in self._queued:
            return False
        self._ready.add(first)
        return True

    def ready(self, limit: int) -> list[str]:
        """Return the turns that may run, oldest first: ids grow with time."""
        return nsmallest(limit, self._ready)

    @property
    def session_count(self) -> int:
        """Return the number of sessions with unfinished turns: no more turns than that run or wait."""
        return len(self._sessions)

    def unfinished(self, session_id: str) -> list[str]:
        return list(self._sessions.get(session_id, ()))


class CommitSchedule:
    """Calls `commit` on the event loop when it is requested: soon after a quiet moment, otherwise once an interval.

    A commit costs wake-ups and, on disk, a flush. A few milliseconds gather many events of a busy process into one.
    """

    def __init__(self, commit: Callable[[], None], interval: float) -> None:
        self._commit = commit
        self._interval = interval
        self._is_requested = False
        self._next_at = 0.0

    def request(self) -> None:
        if self._is_requested:
            return
        self._is_requested = True
        loop = asyncio.get_running_loop()
        delay = self._next_at - loop.time()
        if delay > 0:
            loop.call_later(delay, self._run, loop)
        else:
            # Not at once: whatever else this iteration of the loop brings goes into the same commit.
            loop.call_soon(self._run, loop)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_requested = False
        self._next_at = loop.time() + self._interval
        self._commit()


class Watchers:
    """The callbacks of `watch`, by the key that they watch."""

    def __init__(self) -> None:
        # Tuples, so that a callback may add and remove watches.
        self._wakes: dict[str, tuple[Wake, ...]] = {}

    def add(self, key: str, wake: Wake) -> Callable[[], None]:
        self._wakes[key] = (*self._wakes.get(key, ()), wake)
        return partial(self._remove, key, wake)

    def _remove(self, key: str, wake: Wake) -> None:
        wakes = list(self._wakes.pop(key, ()))
        if wake in wakes:
            wakes.remove(wake)
        if wakes:
            self._wakes[key] = tuple(wakes)

    def notify(self, key: str, events: Sequence[LoggedEvent]) -> None:
        for wake in self._wakes.get(key, ()):
            try:
                wake(events)
            except Exception:
                # The writer and the readers of every other turn come after it.
                logger.exception("a watcher of %s failed", key)

    def notify_all(self) -> None:
        for key in tuple(self._wakes):
            self.notify(key, ())
