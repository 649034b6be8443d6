"""Approvals from the agent's side: the request for them and the decisions about them.

An agent that needs a person's approval raises `WaitForApproval`, which suspends its turn: nothing is held but the log
and a checkpoint. When all requests are decided, any process calls the agent again, with the decisions and the
checkpoint in `Turn.resumption`.
"""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from turnwire.core.log.events import ApprovalRequestEvent, QuestionEvent, ReplyEvent


class Decision(Struct, frozen=True, kw_only=True):
    """A person's decision about one call. `args` are those that the person allowed; no others may be used.

    `is_repeat` is True if the call ran when its worker was lost, so that it may have taken effect already.
    `requested_args` are those of the model, if the person has changed them.
    """

    call_id: str
    tool: str
    args: dict[str, Any]
    approved: bool
    reason: str | None = None
    by: str | None = None
    is_repeat: bool = False
    requested_args: dict[str, Any] | None = None

    @property
    def denial(self) -> str:
        """Return the result of a denied call, for the model."""
        if self.is_repeat:
            why = f" ({self.reason})" if self.reason else ""
            return f"Outcome unknown: it broke off while it ran, and the user did not allow it to run again{why}."
        return f"Denied: {self.reason}" if self.reason else "Denied: the user did not allow this."


class Resumption(Struct, frozen=True):
    """The decisions about all requests of a suspended agent, the replies to its questions, and its checkpoint."""

    decisions: tuple[Decision, ...]
    checkpoint: bytes
    replies: tuple[ReplyEvent, ...] = ()


class WaitForApproval(Exception):
    """Raised by an agent to suspend its turn. The agent gets `checkpoint` back when it continues, in any process.

    With `questions`, the turn waits for replies to them too. An agent that keeps a journal can `ask` instead.
    """

    def __init__(
        self,
        requests: Sequence[ApprovalRequestEvent],
        checkpoint: bytes = b"",
        questions: Sequence[QuestionEvent] = (),
    ) -> None:
        super().__init__(f"{len(requests)} call(s) need approval")
        if not requests and not questions:
            raise ValueError("there is nothing to approve; pass at least one request")
        self.requests = tuple(requests)
        self.checkpoint = checkpoint
        self.questions = tuple(questions)
