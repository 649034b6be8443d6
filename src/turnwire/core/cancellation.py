"""How a turn is stopped: on request, when its readers have left, or when the server goes down."""

import asyncio
from collections.abc import Callable

from msgspec import Struct

from turnwire.core.events import ErrorEvent, Outcome

# A stream that the server itself closed (a deploy, a slow reader) is expected back within this time.
_RETURN_SECONDS = 30.0


class Stop(Struct, frozen=True):
    """Why a running turn must end, and what its log says then."""

    outcome: Outcome
    reason: str
    error: ErrorEvent | None = None


def cancelled(reason: str) -> Stop:
    return Stop("cancelled", reason)


SHUTDOWN = Stop(
    "interrupted",
    "shutdown",
    ErrorEvent("The server was stopped while it worked on this answer.", "interrupted", retryable=True),
)
WORKER_LOST = Stop(
    "interrupted",
    "worker_lost",
    ErrorEvent("The server was lost while it worked on this answer.", "interrupted", retryable=True),
)


class Attendance:
    """Counts the readers of a turn that ends without them, and calls `leave` when the last one has been gone
    for its grace. Leaving is not stopping: only a turn that asks for it has an attendance, and one that nobody
    has begun to read is not left.
    """

    def __init__(self, grace: float, leave: Callable[[], None]) -> None:
        self._grace = grace
        self._leave = leave
        self._readers = 0
        self._timer: asyncio.TimerHandle | None = None

    def join(self) -> None:
        self._readers += 1
        self.close()

    def depart(self, *, by_client: bool) -> None:
        self._readers -= 1
        if self._readers > 0:
            return
        grace = self._grace if by_client else max(self._grace, _RETURN_SECONDS)
        self._timer = asyncio.get_running_loop().call_later(grace, self._leave)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
