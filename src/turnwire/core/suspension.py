"""Turns that wait for a person: they hold nothing but their log, and go on when everything is decided.

Whoever takes a decision writes it into the log of the waiting turn, from whatever process; with the last one, in the
same step, the turn is queued again. So a decision that was acknowledged is never lost, and takes effect.
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
_MOST_TRIES = 8


class PendingApprovals:
    """Decides about calls of turns that wait, wherever they ran. `worker` tells by which name it writes."""

    def __init__(self, store: Store, limits: Limits, worker: Callable[[], str]) -> None:
        self._store = store
        self._limits = limits
        self._worker = worker
        self._deciding = asyncio.Lock()

    async def check(self, turn_id: str, call_id: str, approved: bool, args: dict[str, Any] | None) -> None:
        """Raises ApprovalNotFoundError and ApprovalConflictError, as `decide` would."""
        _is_repeated(await fold_log(self._store, turn_id), call_id, approved, args)

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
        # One at a time here, so that only another process can be in the way.
        async with self._deciding:
            for tries_left in reversed(range(_MOST_TRIES)):
                if _is_repeated(await fold_log(self._store, turn_id), call_id, approved, args):
                    return
                record = await self._store.hold(turn_id, self._worker())
                log = TurnLog(self._store, record, self._limits)
                await log.restore()
                if _is_repeated(log.fold, call_id, approved, args):
                    return
                log.append(ApprovalResponseEvent(call_id, approved, reason, by))
                try:
                    await (log.flush() if log.fold.undecided else log.release())
                    return
                except (FencedError, PositionError):
                    if not tries_left:
                        raise

    async def deny_overdue(self) -> None:
        reason = f"nobody decided within {_time_words(self._limits.approval_timeout)}"
        for record in await self._store.waiting(until=now_ms()):
            try:
                for asked in (await fold_log(self._store, record.id)).undecided:
                    await self.decide(record.id, asked.call_id, approved=False, reason=reason)
            except TurnwireError:
                # It may be gone; the others, and the lease that is kept beside this, must not suffer.
                logger.exception("the wait of turn %s could not be ended; this is tried again", record.id)


def _is_repeated(fold: TurnFold, call_id: str, approved: bool, args: dict[str, Any] | None) -> bool:
    """Whether exactly this was decided before. Raises ApprovalNotFoundError, ApprovalConflictError."""
    decided = fold.decision(call_id)
    asked = decided or next((asked for asked in fold.undecided if asked.call_id == call_id), None)
    if asked is None:
        raise ApprovalNotFoundError(call_id)
    if args is not None and args != asked.args:
        raise ApprovalConflictError(call_id, "has other arguments than these; read the turn again before you decide")
    if decided is not None and decided.approved != approved:
        raise ApprovalConflictError(call_id, f"is {'approved' if decided.approved else 'denied'} already")
    return decided is not None


def _time_words(seconds: float) -> str:
    for unit, name in ((3600, "hour"), (60, "minute")):
        if seconds >= unit:
            count = round(seconds / unit)
            return f"{count} {name}{'' if count == 1 else 's'}"
    return f"{seconds:g} seconds"
