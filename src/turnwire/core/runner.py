"""Takes messages and commands: what a route or a channel asks for.

A turn belongs to the server, never to a request: whoever asked for it may leave. `working` is what this process
runs of all that is accepted here or elsewhere.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from msgspec import Struct, field

from turnwire.core import metrics
from turnwire.core.budget import Limits, Spending
from turnwire.core.cancellation import cancelled
from turnwire.core.codec import clean_text, now_ms
from turnwire.core.contracts import (
    Accepted,
    Admission,
    Agent,
    Budget,
    Command,
    HistorySource,
    NewTurn,
    OnBusy,
    Store,
    takes_attachments,
)
from turnwire.core.errors import (
    AgentNotFoundError,
    AttachmentsNotTakenError,
    ShuttingDownError,
    StoreError,
    TurnEndedError,
    TurnNotFoundError,
    TurnTakenError,
)
from turnwire.core.execution import Execution
from turnwire.core.history import TrimmedHistory
from turnwire.core.ids import new_id
from turnwire.core.log import opening_events
from turnwire.core.presence import Presence
from turnwire.core.suspension import PendingApprovals
from turnwire.core.turns import TurnRecord, new_session
from turnwire.core.worker import TurnWorker


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
        historian: HistorySource | None = None,
    ) -> None:
        self._store = store
        self._agents = agents
        self._limits = limits = limits or Limits()
        self._historian = historian or TrimmedHistory(store, limits.history_turns, limits.history_tokens)
        self._spending = Spending(store, limits.max_tokens_per_day)
        self._waits = PendingApprovals(store, limits, lambda: self._worker.id)
        self._worker = TurnWorker(
            store, agents, limits, self._historian, self._spending, self._has_ended, self._waits.deny_overdue
        )
        self._attendance = Presence(store, lambda: self._worker.id, self._leave)
        self._draining = False
        self.on_ended: list[Callable[[str], None]] = []
        """Called with the id of each turn that this process has ended, after that is committed: a hint, no promise."""

    @property
    def worker(self) -> str:
        """The id that the turns of this process name it by."""
        return self._worker.id

    async def open(self) -> None:
        await self._worker.open()

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
            self._worker.wake(for_commands=admission.on_busy == "interrupt")
        return accepted

    async def budget(self, principal: str) -> Budget:
        """What the principal has used today, also in turns that run."""
        return await self._spending.budget(principal)

    async def cancel(self, turn_id: str, reason: str = "requested") -> None:
        """Stop a turn, wherever it runs, and return when its end is committed. An ended turn stays as it is.

        The cancel is durable before it takes effect, so it survives a crash of this process. If the worker that runs
        the turn does not answer in time, this returns all the same and the command stands. Raises StoreError.
        """
        began = time.monotonic()
        with suppress(TurnEndedError, TurnNotFoundError, TimeoutError):
            # A client that leaves at once must not take its cancel with it.
            execution = await asyncio.shield(self._command_stop(turn_id, reason))
            if execution is None:
                async with asyncio.timeout(self._limits.cancel_patience + 2 * self._limits.lease):
                    await self._wait_for_end(turn_id)
            else:
                await execution.wait()
                if execution.continues_later:  # It was just being suspended or released.
                    return await self.cancel(turn_id, reason)
            metrics.CANCEL.observe(time.monotonic() - began)

    async def _command_stop(self, turn_id: str, reason: str) -> Execution | None:
        """Write the command to stop a turn, then stop it if this process can. Return None if another one runs it."""
        failure: StoreError | None = None
        try:
            await self._store.command(Command(turn_id, reason))
        except StoreError as error:
            failure = error  # A full store takes no command, but it takes the end of a turn that runs here.
        try:
            return await self._worker.end(turn_id, cancelled(reason))
        except TurnTakenError:
            if failure is not None:
                raise failure from None
            return None

    async def _wait_for_end(self, turn_id: str) -> None:
        changed = asyncio.Event()
        unwatch = self._store.watch(turn_id, lambda _: changed.set())
        try:
            while await self._store.turn_state(turn_id) is None:
                await changed.wait()
                changed.clear()
        finally:
            unwatch()

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
        if execution := self._worker.running.get(turn_id):
            await execution.wait()  # It is just being suspended.
        await self._waits.decide(turn_id, call_id, approved=approved, reason=reason, by=by, args=args)

    async def cancel_session(self, session_id: str) -> None:
        """Stops all that runs or waits in a session."""
        turns = await self._store.unfinished(session_id)
        await asyncio.gather(*(self.cancel(record.id, "session_deleted") for record in reversed(turns)))

    def reader_joined(self, record: TurnRecord) -> None:
        self._attendance.join(record)

    def reader_left(self, turn_id: str, *, by_client: bool) -> None:
        self._attendance.depart(turn_id, by_client=by_client)

    async def _leave(self, turn_id: str) -> None:
        await self.cancel(turn_id, "disconnected")

    def _has_ended(self, turn_id: str) -> None:
        self._attendance.forget(turn_id)
        for tell in self.on_ended:
            tell(turn_id)

    @property
    def running_count(self) -> int:
        return len(self._worker.running)

    @property
    def has_left_behind(self) -> bool:
        """Whether agents that would not stop are still running."""
        return self._worker.has_left_behind

    async def drain(self, grace_seconds: float) -> None:
        """Takes no more turns, lets the running ones finish for a while, then ends them as interrupted.

        Queued turns stay in the store, and those of agents that can go on elsewhere; another process runs them, or
        the next one.
        """
        self._draining = True
        await self._worker.drain(grace_seconds)

    async def close(self) -> None:
        self._draining = True
        self._attendance.close()
        await self._worker.close()
        await self._historian.close()
