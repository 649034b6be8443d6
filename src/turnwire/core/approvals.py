"""A person decides: how an agent asks, and what it is told.

An agent that may not go on without a person raises `WaitForApproval` and is done for now: its turn is parked, with
nothing held but its log and a checkpoint. When everything is decided the agent is asked again, by any process, with
the decisions and its checkpoint in `Turn.resumption`.
"""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from turnwire.core.events import ApprovalRequestEvent


class Decision(Struct, frozen=True, kw_only=True):
    """What was decided about one call. `args` are those that the person saw; no others may be used.

    `is_repeat` says that the call was under way when its worker was lost: it may have been done already.
    """

    call_id: str
    tool: str
    args: dict[str, Any]
    approved: bool
    reason: str | None = None
    by: str | None = None
    is_repeat: bool = False

    @property
    def denial(self) -> str:
        """What a model is told of a call that was denied."""
        if self.is_repeat:
            why = f" ({self.reason})" if self.reason else ""
            return f"Outcome unknown: it broke off while it ran, and the user did not allow it to run again{why}."
        return f"Denied: {self.reason}" if self.reason else "Denied: the user did not allow this."


class Resumption(Struct, frozen=True):
    """What a parked agent goes on with: all that it asked for, and what it left for itself."""

    decisions: tuple[Decision, ...]
    checkpoint: bytes


class WaitForApproval(Exception):
    """Raised by an agent in place of an answer. `checkpoint` is given back to it, whichever process it goes on in."""

    def __init__(self, requests: Sequence[ApprovalRequestEvent], checkpoint: bytes = b"") -> None:
        super().__init__(f"{len(requests)} call(s) need approval")
        if not requests:
            raise ValueError("there is nothing to approve")
        self.requests = tuple(requests)
        self.checkpoint = checkpoint
