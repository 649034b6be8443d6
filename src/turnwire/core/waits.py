"""Turns that wait for a person: they hold nothing but their log, and go on when everything is decided.

Whoever takes a decision writes it into the log of the waiting turn. So a decision that was acknowledged is never
lost, and a process that is gone between the last decision and what follows from it leaves a turn that the next one
finds decided.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from turnwire.core.contracts import Store
from turnwire.core.errors import ApprovalConflictError, ApprovalNotFoundError, TurnwireError
from turnwire.core.events import ApprovalResponseEvent
from turnwire.core.fold import TurnFold
from turnwire.core.follow import PAGE
from turnwire.core.limits import Limits
from turnwire.core.log import TurnLog
from turnwire.core.logged import now_ms
from turnwire.core.turns import TurnRecord

logger = logging.getLogger("turnwire.runner")


class Waits:
    """The turns that wait in this process. `resume` is called with one that may go on."""

    def __init__(self, store: Store, limits: Limits, worker: str, resume: Callable[[TurnRecord], None]) -> None:
        self._store = store
        self._limits = limits
        self._worker = worker
        self._resume = resume
        self._waiting: dict[str, TurnRecord] = {}
        self._deciding = asyncio.Lock()

    def __contains__(self, turn_id: str) -> bool:
        return turn_id in self._waiting

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, record: TurnRecord) -> None:
        self._waiting[record.id] = record

    def take(self, turn_id: str) -> TurnRecord | None:
        """The turn, if it waits; it does not any more."""
        return self._waiting.pop(turn_id, None)

    async def check(self, turn_id: str, call_id: str, approved: bool, args: dict[str, Any] | None) -> None:
        """Raises ApprovalNotFoundError and ApprovalConflictError, as `decide` would."""
        _is_repeated(await self._read(turn_id), call_id, approved, args)

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
        # One at a time: two that hold a turn at once would fence each other.
        async with self._deciding:
            if _is_repeated(await self._read(turn_id), call_id, approved, args):
                return
            record = await self._store.hold(turn_id, self._worker)
            log = TurnLog(self._store, record, self._limits)
            await log.restore()
            if not _is_repeated(log.fold, call_id, approved, args):
                log.append(ApprovalResponseEvent(call_id, approved, reason, by))
                await log.flush()
            if not log.fold.undecided:
                self._resume(record)

    async def resume_decided(self) -> None:
        """For a process that takes over the waiting turns of another."""
        for record in list(self._waiting.values()):
            if not (await self._read(record.id)).undecided:
                self._resume(record)

    async def deny_overdue(self) -> None:
        reason = f"nobody decided within {_time_words(self._limits.approval_timeout)}"
        for record in await self._store.waiting():
            if record.waiting_until is None or record.waiting_until > now_ms():
                continue
            try:
                for asked in (await self._read(record.id)).undecided:
                    await self.decide(record.id, asked.call_id, approved=False, reason=reason)
            except TurnwireError:
                # It may be gone; the others, and the lease that is kept beside this, must not suffer.
                logger.exception("the wait of turn %s could not be ended; this is tried again", record.id)

    async def _read(self, turn_id: str) -> TurnFold:
        fold, position = TurnFold(), 0
        while events := await self._store.read(turn_id, position, PAGE):
            for logged in events:
                fold.add(logged)
            position = events[-1].position
        return fold


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
