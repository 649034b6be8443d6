"""How a turn is stopped: on request, when its readers have left, or when the server goes down."""

from msgspec import Struct

from turnwire.core.events import ErrorEvent, Outcome


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
HANDED_BACK = Stop("interrupted", "handed_back")
"""Between two steps of a turn that another worker goes on with."""
WORKER_LOST = Stop(
    "interrupted",
    "worker_lost",
    ErrorEvent("The server was lost while it worked on this answer.", "interrupted", retryable=True),
)
