"""The reasons to stop a running turn: a request, readers that left, a shutdown, a lost worker."""

from msgspec import Struct

from turnwire.core.events import ErrorEvent, Outcome


class Stop(Struct, frozen=True):
    """A reason to stop a turn, with the outcome and the error that its log ends with."""

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
HANDED_BACK = Stop("interrupted", "handed_back")
"""A stop between two steps: another worker continues the turn."""
