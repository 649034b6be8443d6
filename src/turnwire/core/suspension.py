"""Suspended turns: decisions about the calls that they wait for.

A suspended turn holds nothing but its log and a checkpoint. The process that receives a decision writes it into that
log; with the last decision, the turn is queued again in the same step. So an acknowledged decision is never lost.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from turnwire.core.budget import Limits
from turnwire.core.codec import now_ms
from turnwire.core.contracts import Store
from turnwire.core.errors import (
    ApprovalConflictError,
    ApprovalNotFoundError,
    FencedError,
    PositionError,
    TurnwireError,
)
from turnwire.core.events import ApprovalResponseEvent
from turnwire.core.follow import fold_log
from turnwire.core.log import TurnLog
from turnwire.core.state import TurnFold

logger = logging.getLogger("turnwire.runner")

# Two processes that decide about calls of one turn at the same time fence each other; then one tries again.
_MAX_ATTEMPTS = 8


class PendingApprovals:
    """Writes decisions about calls of suspended turns, under the id that `worker` returns."""

    def __init__(self, store: Store, limits: Limits, worker: Callable[[], str]) -> None:
        self._store = store
        self._limits = limits
        self._worker = worker
        self._deciding = asyncio.Lock()

    async def check(self, turn_id: str, call_id: str, approved: bool, args: dict[str, Any] | None) -> None:
        """Raise ApprovalNotFoundError or ApprovalConflictError if `decide` would."""
        _is_decided(await fold_log(self._store, turn_id), call_id, approved, args)

    async def decide(
        self,
        turn_id: str,
        call_id: str,
        *,
        approved: bool,
        reason: str | None = None,
        by: str | None = None,
        args: dict[str, Any] | None = None,
    ) -> None:
        # One at a time in this process, so that only another process can interfere.
        async with self._deciding:
            for attempts_left in reversed(range(_MAX_ATTEMPTS)):
                if _is_decided(await fold_log(self._store, turn_id), call_id, approved, args):
                    return
                record = await self._store.hold(turn_id, self._worker())
                log = TurnLog(self._store, record, self._limits)
                await log.restore()
                if _is_decided(log.fold, call_id, approved, args):
                    return
                log.append(ApprovalResponseEvent(call_id, approved, reason, by))
                try:
                    await (log.flush() if log.fold.undecided else log.release())
                    return
                except (FencedError, PositionError):
                    if not attempts_left:
                        raise

    async def deny_overdue(self) -> None:
        """Deny the requests of turns that have waited longer than the limit."""
        reason = f"nobody decided within {_time_words(self._limits.approval_timeout)}"
        for record in await self._store.waiting(until=now_ms()):
            try:
                for request in (await fold_log(self._store, record.id)).undecided:
                    await self.decide(record.id, request.call_id, approved=False, reason=reason)
            except TurnwireError:
                # The turn may have been deleted; the others must still get their decisions.
                logger.exception("the overdue turn %s could not be continued; this is tried again", record.id)


def _is_decided(fold: TurnFold, call_id: str, approved: bool, args: dict[str, Any] | None) -> bool:
    """Return True if the same decision was made before. Raises ApprovalNotFoundError, ApprovalConflictError."""
    decision = fold.decision(call_id)
    call = decision or next((request for request in fold.undecided if request.call_id == call_id), None)
    if call is None:
        raise ApprovalNotFoundError(call_id)
    if args is not None and args != call.args:
        raise ApprovalConflictError(call_id, "has other arguments than these; read the turn again before you decide")
    if decision is not None and decision.approved != approved:
        verdict = "approved" if decision.approved else "denied"
        raise ApprovalConflictError(call_id, f"is {verdict} already; a decision cannot be changed")
    return decision is not None


def _time_words(seconds: float) -> str:
    for unit, name in ((3600, "hour"), (60, "minute")):
        if seconds >= unit:
            count = round(seconds / unit)
            return f"{count} {name}{'' if count == 1 else 's'}"
    return f"{seconds:g} seconds"
