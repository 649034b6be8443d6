"""What keeps a log a log: one writer, no gap, one end. Shared by the stores that decide in this process."""

import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from turnwire.core.contracts import Admission, Refusal, Wake, Worker
from turnwire.core.errors import (
    BudgetSpentError,
    FencedError,
    PositionError,
    SessionBusyError,
    TooManyTurnsError,
    TurnEndedError,
)
from turnwire.core.logged import LoggedEvent, now_ms

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


def lasting(options: dict[str, Any]) -> dict[str, Any]:
    """What is kept of a turn's options when it has ended: not the files, which nobody is given again."""
    return {name: value for name, value in options.items() if name != "attachments"}


class Leases:
    """Which workers of this process are alive. A worker that is not known here is dead."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._until: dict[str, float] = {}
        self._since: dict[str, int] = {}

    def renew(self, worker: str) -> None:
        self._until[worker] = self._clock() + self._seconds
        self._since.setdefault(worker, now_ms())

    def holds(self, worker: str | None) -> bool:
        return worker is not None and self._until.get(worker, 0.0) > self._clock()

    def workers(self) -> list[Worker]:
        """Those that are alive, oldest first."""
        address, now, clock = f"{socket.gethostname()}:{os.getpid()}", now_ms(), self._clock()
        return [
            Worker(id=worker, address=address, since=since, lease_until=now + int((self._until[worker] - clock) * 1000))
            for worker, since in self._since.items()
            if self.holds(worker)
        ]


class Gatherers:
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
