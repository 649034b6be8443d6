"""Runs turns: accepts them, gives each session one at a time, stops them, and picks up after a crash.

A turn belongs to this process, never to a request: whoever asked for it may leave. `execution`
is how a single turn runs; this is who runs when.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct, field

from turnwire.core import metrics
from turnwire.core.budget import Spending
from turnwire.core.cancellation import SHUTDOWN, WORKER_LOST, Attendance, Stop, cancelled
from turnwire.core.compaction import TrimmedHistory
from turnwire.core.contracts import (
    Accepted,
    Admission,
    Agent,
    Budget,
    Historian,
    NewTurn,
    OnBusy,
    Store,
    takes_attachments,
)
from turnwire.core.encoding import clean_text
from turnwire.core.errors import (
    AgentNotFoundError,
    AttachmentsNotTakenError,
    ShuttingDownError,
    StoreError,
    TurnEndedError,
)
from turnwire.core.execution import Execution
from turnwire.core.ids import new_id
from turnwire.core.limits import Limits
from turnwire.core.log import TurnLog, opening_events
from turnwire.core.logged import now_ms
from turnwire.core.metering import Meter
from turnwire.core.sessions import new_session
from turnwire.core.turns import TurnRecord
from turnwire.core.waits import Waits

logger = logging.getLogger("turnwire.runner")

_SHUTDOWN_PATIENCE_SECONDS = 0.3


class TurnRequest(Struct, frozen=True, kw_only=True):
    """A message that asks for a turn; with no `session_id` it begins a session, by the client's name if it has one.

    `parent_turn_id` is the turn of that session whose history it continues, by default the last one; "" is none.
    `disconnect_grace` is None for "continue", 0 for "cancel". The option `history` is what was said elsewhere
    before the session began: a list of `{"role": "user" or "assistant", "content": text}`.
    """

    principal: str
    message: str
    session_id: str | None = None
    session_external_id: str | None = None
    agent: str | None = None
    channel: str = "http"
    by: str | None = None
    external_id: str | None = None
    idempotency_key: str | None = None
    fingerprint: str = ""
    on_busy: OnBusy = "enqueue"
    parent_turn_id: str | None = None
    disconnect_grace: float | None = None
    options: dict[str, Any] = field(default_factory=dict[str, Any])


class TurnRunner:
    def __init__(
        self,
        store: Store,
        agents: Mapping[str, Agent],
        limits: Limits | None = None,
        historian: Historian | None = None,
    ) -> None:
        self.worker = new_id()
        self._store = store
        self._agents = agents
        self._limits = limits = limits or Limits()
        self._historian = historian or TrimmedHistory(store, limits.history_turns, limits.history_tokens)
        self._spending = Spending(store, limits.max_tokens_per_day)
        self._running: dict[str, Execution] = {}
        self._queues: dict[str, deque[TurnRecord]] = {}
        self._current: dict[str, str] = {}
        self._waits = Waits(store, self._limits, self.worker, self._resume)
        self._attendance: dict[str, Attendance] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False
        self._lease_keeper: asyncio.Task[None] | None = None
        self.on_ended: list[Callable[[str], None]] = []
        """Called with the id of each turn that this process has ended, after that is committed: a hint, no promise."""

    async def open(self) -> None:
        """Closes what a dead process left running, and goes on with what it left queued."""
        await self._store.renew(self.worker)
        await self._close_orphans()
        for record in await self._store.waiting():
            self._keep_waiting(record)
        for record in await self._store.queued():
            self._enqueue(record)
        await self._waits.resume_decided()
        self._lease_keeper = asyncio.create_task(self._keep_lease())

    async def start(self, request: TurnRequest) -> Accepted:
        """Accepts a turn and commits its beginning; it runs when the session is free.

        Raises what `TurnStore.create_turn` raises, AgentNotFoundError, AttachmentsNotTakenError and ShuttingDownError.
        """
        if self._draining:
            raise ShuttingDownError
        agent = request.agent or next(iter(self._agents))
        if agent not in self._agents:
            raise AgentNotFoundError(agent)
        if request.options.get("attachments") and not takes_attachments(self._agents[agent]):
            raise AttachmentsNotTakenError(agent)
        session = None
        if request.session_id is None:
            session = new_session(request.principal, request.session_external_id)
        record = TurnRecord(
            id=new_id(),
            session_id=session.id if session else request.session_id or "",
            principal=request.principal,
            agent=agent,
            message=clean_text(request.message),
            channel=request.channel,
            external_id=request.external_id,
            parent_turn_id=request.parent_turn_id,
            last_position=2,
            created_at=now_ms(),
            disconnect_grace=request.disconnect_grace,
            options=request.options,
        )
        new = NewTurn(
            record=record,
            opening=opening_events(record, request.by or request.principal),
            session=session,
            idempotency_key=request.idempotency_key,
            fingerprint=request.fingerprint,
        )
        admission = Admission(
            on_busy=request.on_busy,
            max_queued=self._limits.max_queued_turns,
            max_unfinished=self._limits.max_running_turns,
            budget=await self.budget(request.principal) if self._spending.limit else None,
        )
        # Whoever asked may be gone before the answer: what is accepted must run all the same.
        return await asyncio.shield(self._accept(new, admission))

    async def _accept(self, new: NewTurn, admission: Admission) -> Accepted:
        accepted = await self._store.create_turn(new, admission)
        if accepted.created:
            if admission.on_busy == "interrupt":
                self._supersede(accepted.record.session_id)
            self._enqueue(accepted.record)
        return accepted

    async def budget(self, principal: str) -> Budget:
        """What the principal has used today, also in turns that run."""
        return await self._spending.budget(principal)

    async def cancel(self, turn_id: str, reason: str = "requested") -> None:
        """Stops a turn and returns when its end is committed. A turn that has ended is left as it is."""
        began = time.monotonic()
        execution = self._stop(turn_id, cancelled(reason))
        if execution is not None:
            await asyncio.shield(execution.finished)
            metrics.CANCEL.observe(time.monotonic() - began)

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
        """Takes a person's decision about a call; the turn goes on when all of its calls are decided.

        `args` are those that the person saw, if they are known. The same decision again is the same decision.
        Raises ApprovalNotFoundError, ApprovalConflictError, TurnNotWaitingError.
        """
        await self._waits.check(turn_id, call_id, approved, args)
        if execution := self._running.get(turn_id):
            await asyncio.shield(execution.finished)  # It is just being parked.
        await self._waits.decide(turn_id, call_id, approved=approved, reason=reason, by=by, args=args)

    async def cancel_session(self, session_id: str) -> None:
        """Stops all that runs or waits in a session."""
        turns = [execution.turn_id for execution in self._running.values() if execution.session_id == session_id]
        turns += [record.id for record in self._queues.get(session_id, ())]
        if (current := self._current.get(session_id)) is not None and current in self._waits:
            turns.append(current)
        await asyncio.gather(*(self.cancel(turn_id, "session_deleted") for turn_id in turns))

    def reader_joined(self, turn_id: str) -> None:
        if attendance := self._attendance.get(turn_id):
            attendance.join()

    def reader_left(self, turn_id: str, *, by_client: bool) -> None:
        if attendance := self._attendance.get(turn_id):
            attendance.depart(by_client=by_client)

    @property
    def running_count(self) -> int:
        return len(self._running)

    @property
    def queued_count(self) -> int:
        return sum(map(len, self._queues.values()))

    @property
    def waiting_count(self) -> int:
        return len(self._waits)

    @property
    def has_left_behind(self) -> bool:
        """Whether agents that would not stop are still running."""
        return any(not task.done() for task in self._tasks)

    async def drain(self, grace_seconds: float) -> None:
        """Takes no more turns, lets the running ones finish for a while, then ends them as interrupted.

        Queued turns stay in the store; the next process runs them.
        """
        self._draining = True
        self._queues.clear()
        try:
            async with asyncio.timeout(grace_seconds):
                await self._idle.wait()
        except TimeoutError:
            for execution in list(self._running.values()):
                execution.stop(SHUTDOWN, patience=_SHUTDOWN_PATIENCE_SECONDS)
            await self._idle.wait()

    async def close(self) -> None:
        self._draining = True
        if self._lease_keeper is not None:
            self._lease_keeper.cancel()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            # Not for ever: an agent that was left behind may never end.
            await asyncio.wait(self._tasks, timeout=_SHUTDOWN_PATIENCE_SECONDS)
        await self._historian.close()

    def _enqueue(self, record: TurnRecord) -> None:
        if record.disconnect_grace is not None:
            self._attendance[record.id] = Attendance(record.disconnect_grace, lambda: self._leave(record.id))
        self._queues.setdefault(record.session_id, deque()).append(record)
        self._advance(record.session_id)

    def _advance(self, session_id: str) -> None:
        queue = self._queues.get(session_id)
        if not queue or session_id in self._current or self._draining:
            return
        record = queue.popleft()
        if not queue:
            del self._queues[session_id]
        self._current[session_id] = record.id
        self._execute(record)

    def _execute(self, record: TurnRecord, stop: Stop | None = None) -> Execution:
        execution = Execution(
            self._store,
            self._agents.get(record.agent),
            record,
            self._limits,
            self.worker,
            self._release,
            self._historian,
            Meter(record, self._limits.max_steps_per_turn, self._spending),
        )
        if stop is not None:
            execution.stop(stop)
        self._running[record.id] = execution
        self._idle.clear()
        task = asyncio.create_task(execution.run(), name=f"turn {record.id}")
        execution.task = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return execution

    def _release(self, execution: Execution) -> None:
        # An agent that will not stop keeps its task, but not its session.
        del self._running[execution.turn_id]
        if execution.is_parked:
            if not self._running:
                self._idle.set()
            self._keep_waiting(execution.record)
            return
        self._tell_ended(execution.turn_id)
        if attendance := self._attendance.pop(execution.turn_id, None):
            attendance.close()
        if not self._running:
            self._idle.set()
        if self._current.get(execution.session_id) == execution.turn_id:
            del self._current[execution.session_id]
            self._advance(execution.session_id)

    def _stop(self, turn_id: str, stop: Stop) -> Execution | None:
        """Ends a turn whether it runs or waits. None if it does neither here."""
        execution = self._running.get(turn_id)
        if execution is not None:
            execution.stop(stop)
            return execution
        if record := self._waits.take(turn_id):
            return self._execute(record, stop)
        for queue in self._queues.values():
            for record in queue:
                if record.id == turn_id:
                    queue.remove(record)
                    return self._execute(record, stop)
        return None

    def _leave(self, turn_id: str) -> None:
        self._stop(turn_id, cancelled("disconnected"))

    def _supersede(self, session_id: str) -> None:
        """The newest message wins: whatever ran or waited in the session ends."""
        for record in self._queues.pop(session_id, ()):
            self._execute(record, cancelled("superseded"))
        for execution in self._running.values():
            if execution.session_id == session_id:
                execution.stop(cancelled("superseded"))
        if waiting := self._waits.take(self._current.get(session_id, "")):
            self._execute(waiting, cancelled("superseded"))

    # Turns that wait for a person

    def _keep_waiting(self, record: TurnRecord) -> None:
        """It holds nothing but its place in the session."""
        self._waits.add(record)
        self._current[record.session_id] = record.id

    def _resume(self, record: TurnRecord) -> None:
        # While the server goes down it stays as it is; the next process finds everything decided.
        if not self._draining and self._waits.take(record.id) is not None:
            self._execute(record)

    async def _keep_lease(self) -> None:
        while True:
            await asyncio.sleep(self._limits.lease / 4)
            try:
                await self._store.renew(self.worker)
                await self._close_orphans()
                await self._waits.deny_overdue()
            except StoreError:
                logger.exception("the lease of worker %s could not be renewed", self.worker)

    async def _close_orphans(self) -> None:
        for record in await self._store.take_over(self.worker):
            metrics.TAKEOVERS.add()
            log = TurnLog(self._store, record, self._limits)
            await log.restore()
            try:
                await log.end(WORKER_LOST.outcome, reason=WORKER_LOST.reason, error=WORKER_LOST.error)
            except (StoreError, TurnEndedError):
                logger.exception("turn %s of a lost worker could not be closed", record.id)
            else:
                logger.warning("turn %s was interrupted: its worker was lost", record.id)
                self._tell_ended(record.id)

    def _tell_ended(self, turn_id: str) -> None:
        for tell in self.on_ended:
            tell(turn_id)
