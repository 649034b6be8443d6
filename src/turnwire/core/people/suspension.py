"""Suspended turns, and the answers that they wait for: decisions, replies to questions, results of client tools.

A suspended turn holds nothing but its log and its journal. The process that receives an answer writes it
into that log; with the last answer, the turn is queued again in the same step. So an acknowledged answer is never lost.
"""

import asyncio
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from msgspec import Struct
from msgspec.structs import replace

from turnwire.core.contracts.stores import Store, UnfinishedFilter
from turnwire.core.errors import (
    ApprovalConflictError,
    ApprovalNotFoundError,
    EventTooLargeError,
    FencedError,
    InvalidReplyError,
    PositionError,
    QuestionNotFoundError,
    ReplyConflictError,
    ToolCallNotFoundError,
)
from turnwire.core.log.codec import now_ms
from turnwire.core.log.events import ApprovalResponseEvent, Event, ReplyEvent, ToolResultEvent
from turnwire.core.log.follow import fold_log
from turnwire.core.log.state import TurnFold
from turnwire.core.log.turn_log import TurnLog
from turnwire.core.people.budget import Limits
from turnwire.core.people.schemas import find_problem

logger = logging.getLogger("turnwire.runner")

# Two processes that answer one turn at the same time fence each other; then one tries again.
_MAX_ATTEMPTS = 8


class SuspendedTurns:
    """Writes the answers that suspended turns wait for, under the id that `worker` returns."""

    def __init__(self, store: Store, limits: Limits, worker: Callable[[], str]) -> None:
        self._store = store
        self._limits = limits
        # A turn that was suspended with its last event continues, and fails with its next one.
        self._log_limits = replace(limits, max_events_per_turn=sys.maxsize)
        self._worker = worker
        self._answering = asyncio.Lock()

    async def check(self, turn_id: str, answer: "Answer") -> None:
        """Raise what `answer` would raise because of the log."""
        answer.is_recorded(await fold_log(self._store, turn_id))

    async def answer(self, turn_id: str, answer: "Answer") -> None:
        """Write an answer, and queue the turn if it was the last one. Repeating an answer changes nothing."""
        # One at a time in this process, so that only another process can interfere.
        async with self._answering:
            for attempts_left in reversed(range(_MAX_ATTEMPTS)):
                fold = await fold_log(self._store, turn_id)
                if answer.is_recorded(fold):
                    return
                record = await self._store.hold(turn_id, self._worker())
                log = TurnLog(self._store, record, self._log_limits)
                await log.restore(fold)
                if answer.is_recorded(log.fold):
                    return
                try:
                    log.append(answer.event(log.fold))
                except EventTooLargeError as error:
                    raise InvalidReplyError(answer.content, str(error)) from None
                try:
                    await (log.flush() if log.fold.requests.is_waiting else log.release())
                    return
                except (FencedError, PositionError):
                    if not attempts_left:
                        raise

    async def answer_overdue(self) -> None:
        """Deny the requests of turns that have waited longer than the limit, and decline their questions."""
        reason = f"nobody decided within {_time_words(self._limits.approval_timeout)}"
        overdue = UnfinishedFilter(phase="waiting", overdue_at=now_ms())
        for record in await self._store.unfinished(where=overdue):
            try:
                for answer in _refusals(await fold_log(self._store, record.id), reason):
                    await self.answer(record.id, answer)
            except Exception:
                # The turn may have been deleted; the others must still get their decisions.
                logger.exception("the overdue turn %s could not be continued; this is tried again", record.id)


class DecisionAnswer(Struct, frozen=True, kw_only=True):
    """A decision about a call. `args` are those that the person saw, `edited_args` those that the tool is to get."""

    content: ClassVar[str] = "edited_args"
    """The field that may be too large."""
    call_id: str
    approved: bool
    reason: str | None = None
    by: str | None = None
    args: dict[str, Any] | None = None
    edited_args: dict[str, Any] | None = None

    def is_recorded(self, fold: TurnFold) -> bool:
        """Return True if the same decision was made before.

        Raises ApprovalNotFoundError, ApprovalConflictError, InvalidReplyError.
        """
        decision = fold.decision(self.call_id)
        request = fold.requests.approval_request(self.call_id)
        if request is None:
            raise ApprovalNotFoundError(self.call_id)
        if self.args is not None and self.args != request.args:
            raise ApprovalConflictError(
                self.call_id, "has other arguments than these; read the turn again before you decide"
            )
        edited = self.edited_args if self.approved and self.edited_args != request.args else None
        if edited is not None and not request.editable:
            raise InvalidReplyError(
                "edited_args", f"the arguments of {request.tool!r} cannot be edited; approve or deny"
            )
        if decision is None:
            return False
        if decision.approved != self.approved:
            verdict = "approved" if decision.approved else "denied"
            raise ApprovalConflictError(self.call_id, f"is {verdict} already; a decision cannot be changed")
        if edited is not None and edited != decision.args:
            raise ApprovalConflictError(self.call_id, "is approved with other arguments already")
        return True

    def event(self, fold: TurnFold) -> Event:
        request = fold.requests.approval_request(self.call_id)
        is_edited = self.approved and request is not None and self.edited_args not in (None, request.args)
        return ApprovalResponseEvent(
            self.call_id, self.approved, self.reason, self.by, self.edited_args if is_edited else None
        )


class ReplyAnswer(Struct, frozen=True, kw_only=True):
    """The reply to a question: a value, or `declined`."""

    content: ClassVar[str] = "value"
    question_id: str
    value: Any = None
    declined: bool = False
    reason: str | None = None
    by: str | None = None

    def is_recorded(self, fold: TurnFold) -> bool:
        """Return True if the same reply was given before.

        Raises QuestionNotFoundError, ReplyConflictError, InvalidReplyError.
        """
        question, reply = fold.requests.questions.get(self.question_id), fold.requests.replies.get(self.question_id)
        if question is None:
            raise QuestionNotFoundError(self.question_id)
        if reply is not None:
            if (reply.declined, reply.value) != (self.declined, self.value):
                raise ReplyConflictError("question", self.question_id)
            return True
        if not self.declined and question.schema is not None:
            problem = find_problem(question.schema, self.value)
            if problem is not None:
                raise InvalidReplyError(*problem)
        return False

    def event(self, fold: TurnFold) -> Event:
        question = fold.requests.questions.get(self.question_id)
        path = question.agent_path if question is not None else ()
        return ReplyEvent(self.question_id, self.value, self.declined, self.reason, self.by, agent_path=path)


class ClientResultAnswer(Struct, frozen=True, kw_only=True):
    """The result of a tool that the client has run."""

    content: ClassVar[str] = "output"
    call_id: str
    output: Any = None
    is_error: bool = False

    def is_recorded(self, fold: TurnFold) -> bool:
        """Return True if the same result was sent before. Raises ToolCallNotFoundError, ReplyConflictError."""
        call, result = fold.requests.client_calls.get(self.call_id), fold.requests.client_results.get(self.call_id)
        if call is None:
            raise ToolCallNotFoundError(self.call_id)
        if result is not None and (result.success, result.result) != (not self.is_error, self.output):
            raise ReplyConflictError("call", self.call_id)
        return result is not None

    def event(self, fold: TurnFold) -> Event:
        call = fold.requests.client_calls.get(self.call_id)
        return ToolResultEvent(self.call_id, call.tool if call else "", not self.is_error, self.output)


Answer = DecisionAnswer | ReplyAnswer | ClientResultAnswer


def _refusals(fold: TurnFold, reason: str) -> Iterator[Answer]:
    """Yield the answers of a turn that nobody has answered in time."""
    for request in fold.requests.undecided:
        yield DecisionAnswer(call_id=request.call_id, approved=False, reason=reason)
    for question in fold.requests.open_questions:
        yield ReplyAnswer(question_id=question.id, declined=True, reason=reason)
    for call in fold.requests.open_client_calls:
        yield ClientResultAnswer(call_id=call.call_id, output=f"No result: {reason}.", is_error=True)


def _time_words(seconds: float) -> str:
    for unit, name in ((3600, "hour"), (60, "minute")):
        if seconds >= unit:
            count = round(seconds / unit)
            return f"{count} {name}{'' if count == 1 else 's'}"
    return f"{seconds:g} seconds"
