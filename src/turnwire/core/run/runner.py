"""The runner: starts, cancels and decides turns for routes and channels.

A turn belongs to the server, never to a request: the client may leave. The `worker` of any process runs the turns that
are accepted here.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct, field

from turnwire.core import metrics
from turnwire.core.contracts.agents import Agent, HistorySource, takes_model
from turnwire.core.contracts.stores import Accepted, Admission, Budget, Command, NewTurn, OnBusy, Store
from turnwire.core.errors import (
    AgentNotFoundError,
    BadPositionError,
    ModelNotTakenError,
    NoAgentError,
    ShuttingDownError,
    StoreError,
    TurnEndedError,
    TurnNotFoundError,
    TurnTakenError,
)
from turnwire.core.ids import new_id
from turnwire.core.log.codec import clean_text, now_ms
from turnwire.core.log.events import AttachedFile, SessionEvent
from turnwire.core.log.files import ATTACHED, Blob, history_digests
from turnwire.core.log.follow import read_all
from turnwire.core.log.history import TrimmedHistory
from turnwire.core.log.turn_log import opening_events
from turnwire.core.log.turns import TurnRecord, cancelled, new_session
from turnwire.core.people.budget import Limits, Spending
from turnwire.core.people.suspension import Answer, ClientResultAnswer, DecisionAnswer, ReplyAnswer, SuspendedTurns
from turnwire.core.run.acceptance import check_message, read_demands
from turnwire.core.run.execution import Execution, ExecutionState
from turnwire.core.run.fork import ForkPlan, copied_events, plan_fork
from turnwire.core.run.inputs import JOINS
from turnwire.core.run.presence import Presence
from turnwire.core.run.worker import TurnWorker

# The files of a session in all, so that no session fills the disk. Files of a message have settings of their own.
_MAX_SESSION_FILE_BYTES = 256 * 1024 * 1024


class TurnRequest(Struct, frozen=True, kw_only=True):
    """A message that starts a turn; without a `session_id` it also starts a session, with the given external id.

    `parent_turn_id` is the turn of the session whose history it continues, by default the last one; "" is none.
    `disconnect_grace` is None for "continue", 0 for "cancel". The option `history` has the messages from before the
    session: a list of `{"role": "user" or "assistant", "content": text}`. `attachments` describe the files of the
    message; `blobs` are those of them, and of the history, that the session may not have yet.
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
    attachments: Sequence[AttachedFile] = ()
    blobs: Sequence[Blob] = ()


class ForkRequest(Struct, frozen=True, kw_only=True):
    """A fork of a turn at a position of its log; with another message, agent or model it goes on with those."""

    source: TurnRecord
    position: int
    message: str | None = None
    agent: str | None = None
    model: str | None = None
    channel: str = "http"
    by: str | None = None
    idempotency_key: str | None = None
    fingerprint: str = ""
    on_busy: OnBusy = "enqueue"


class TurnRunner:
    """Accepts turns and commands, and runs turns with the worker of this process, which may spread them."""

    def __init__(
        self,
        store: Store,
        agents: Mapping[str, Agent],
        limits: Limits | None = None,
        history_source: HistorySource | None = None,
        *,
        spreads: bool = False,
    ) -> None:
        self._store = store
        self.agents = agents
        self._limits = limits = limits or Limits()
        self._history_source = history_source or TrimmedHistory(store, limits.history_turns, limits.history_tokens)
        self._spending = Spending(store, limits.max_tokens_per_day)
        self.suspended = SuspendedTurns(store, limits, lambda: self.worker.id)
        self.worker = TurnWorker(
            store,
            agents,
            limits,
            self._history_source,
            self._spending,
            lambda record: self.presence.expect(record),
            self._on_turn_settled,
            self._do_chores,
            spreads=spreads,
        )
        self.presence = Presence(store, lambda: self.worker.id, lambda turn_id: self.cancel(turn_id, "disconnected"))
        self._draining = False
        self.on_ended: list[Callable[[str], None]] = []
        """Callbacks for the id of each turn that this process has ended and committed: a hint, no promise."""
        self.on_settled: list[Callable[[TurnRecord], None]] = []
        """Callbacks for each turn, as it was claimed, that has ended or begun to wait for a person in this process."""

    @property
    def max_session_file_bytes(self) -> int:
        """Return the most bytes of the files of a session."""
        return _MAX_SESSION_FILE_BYTES

    async def open(self) -> None:
        self._draining = False
        await self.worker.open()

    async def start(self, request: TurnRequest) -> Accepted:
        """Accept a turn and commit its first events; it runs when the session is free.

        Raises the errors of `TurnStore.create_turn`, AgentNotFoundError, NoAgentError, AttachmentsNotTakenError,
        ModelOptionNotTakenError, ClientToolsNotTakenError, ClientToolConflictError, ShuttingDownError.
        """
        if self._draining:
            raise ShuttingDownError
        if not self.agents:
            raise NoAgentError
        busy = await self._joinable_turns(request)
        # Without a choice, a message goes to the agent of the turn that it may enter.
        agent = request.agent or next((turn.agent for turn in busy if turn.agent in self.agents), None)
        agent, options = agent or next(iter(self.agents)), request.options
        if agent not in self.agents:
            raise AgentNotFoundError(agent)
        if request.attachments:
            options = {**options, ATTACHED: msgspec.to_builtins(request.attachments)}
        demands = read_demands(options)
        check_message(agent, self.agents[agent], demands)
        if request.on_busy in ("steer", "collect") and request.parent_turn_id in (None, *(turn.id for turn in busy)):
            options = {**options, JOINS: request.on_busy}
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
            options=options,
        )
        new = NewTurn(
            record=record,
            opening=opening_events(record, request.by or request.principal, demands.attachments),
            session=session,
            idempotency_key=request.idempotency_key,
            fingerprint=request.fingerprint,
            blobs=request.blobs,
            digests={file.digest for file in demands.attachments if file.digest} | history_digests(options),
        )
        return await self._accept(new, request.on_busy)

    async def fork(self, request: ForkRequest) -> Accepted:
        """Accept a turn that shares the log of another one up to a position (see `core.fork`).

        Raises what `start` raises, BadPositionError, ModelNotTakenError, TurnNotFoundError, and EventsGoneError if the
        log has expired.
        """
        if self._draining:
            raise ShuttingDownError
        source, name = request.source, request.agent or request.source.agent
        agent = self.agents.get(name)
        if agent is None:
            raise AgentNotFoundError(name)
        options = {**source.options, "model": request.model} if request.model else source.options
        if options.get("model") is not None and not takes_model(agent):
            raise ModelNotTakenError(name)
        if not 1 <= request.position <= source.last_position:
            raise BadPositionError(request.position, source.last_position)
        events = [logged async for page in read_all(self._store, source.id) for logged in page]
        copied = copied_events(events, request.position)
        is_changed = name != source.agent or options.get("model") != source.options.get("model")
        plan = plan_fork(
            copied,
            await self._store.journal(source.id),
            agent,
            clean_text(request.message or "") or None,
            by=request.by or source.principal,
            channel=request.channel,
            is_changed=is_changed,
        )
        options = {key: value for key, value in options.items() if key != ATTACHED}
        if plan.attachments:
            options[ATTACHED] = msgspec.to_builtins(plan.attachments)
        check_message(name, agent, read_demands(options))
        return await self._accept(self._forked_turn(request, name, options, plan), request.on_busy)

    def _forked_turn(self, request: ForkRequest, name: str, options: dict[str, Any], plan: ForkPlan) -> NewTurn:
        source, now = request.source, now_ms()
        until = self._limits.waits_until(now)
        record = TurnRecord(
            id=new_id(),
            session_id=source.session_id,
            principal=source.principal,
            agent=name,
            message=plan.message,
            channel=request.channel,
            parent_turn_id=source.parent_turn_id or "",
            phase="waiting" if plan.waits else "queued",
            last_position=len(plan.events),
            created_at=now,
            waiting_until=until if plan.waits else None,
            options=options,
        )
        session = SessionEvent(record.session_id, record.id, name, forked_from=source.id, forked_at=plan.shared)
        return NewTurn(
            record=record,
            opening=plan.opening(session),
            idempotency_key=request.idempotency_key,
            fingerprint=request.fingerprint,
            forked_from=source.id,
            entries=plan.entries,
            digests=plan.digests,
        )

    async def _accept(self, new: NewTurn, on_busy: OnBusy) -> Accepted:
        admission = Admission(
            on_busy=on_busy,
            max_queued=self._limits.max_queued_turns,
            max_unfinished=self._limits.max_running_turns,
            max_file_bytes=_MAX_SESSION_FILE_BYTES,
            budget=await self.budget(new.record.principal) if self._spending.limit else None,
        )
        accepted = await self._store.create_turn(new, admission)
        if accepted.created:
            self.worker.wake(for_commands=admission.on_busy == "interrupt")
        return accepted

    async def _joinable_turns(self, request: TurnRequest) -> list[TurnRecord]:
        """Return the turns that the message may enter."""
        if request.on_busy not in ("steer", "collect") or request.session_id is None:
            return []
        turns = await self._store.unfinished(request.session_id)
        return [turn for turn in turns if turn.principal == request.principal]

    async def budget(self, principal: str) -> Budget:
        """Return the principal's budget, with the use of today, including turns that still run."""
        return await self._spending.budget(principal)

    async def cancel(self, turn_id: str, reason: str = "requested") -> None:
        """Stop a turn, wherever it runs, and return when its end is committed. An ended turn stays as it is.

        The cancel is durable before it takes effect, so it survives a crash of this process. If the worker that runs
        the turn does not answer in time, or the store does not take the end, this returns all the same and the command
        stands. Raises StoreError.
        """
        began = time.monotonic()
        patience = self._limits.cancel_patience + 2 * self._limits.lease
        with suppress(TurnEndedError, TurnNotFoundError, TimeoutError):
            # A client that leaves at once must not take its cancel with it.
            execution = await asyncio.shield(self._command_stop(turn_id, reason))
            if execution is None:
                async with asyncio.timeout(patience):
                    await self._wait_for_end(turn_id)
            else:
                async with asyncio.timeout(patience):
                    await execution.wait()
                if execution.continues_later:  # It was just being suspended or released.
                    return await self.cancel(turn_id, reason)
                if execution.state is ExecutionState.ABANDONED:  # Another worker ends it.
                    async with asyncio.timeout(patience):
                        await self._wait_for_end(turn_id)
            metrics.CANCEL.observe(time.monotonic() - began)

    async def _command_stop(self, turn_id: str, reason: str) -> Execution | None:
        """Write the command to stop a turn, then stop it if this process can. Return None if another one runs it."""
        failure: StoreError | None = None
        try:
            await self._store.command(Command(turn_id, reason))
        except StoreError as error:
            failure = error  # A full store takes no command, but it takes the end of a turn that runs here.
        try:
            return await self.worker.end(turn_id, cancelled(reason))
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
        edited_args: dict[str, Any] | None = None,
    ) -> None:
        """Record a person's decision about a call; the turn continues when it has all answers that it waits for.

        `args` are those that the person saw, if they are known; `edited_args` those that the tool gets instead, if its
        request is editable. Repeating a decision changes nothing. Raises ApprovalNotFoundError, ApprovalConflictError,
        InvalidReplyError, TurnNotWaitingError.
        """
        await self.answer(
            turn_id,
            DecisionAnswer(
                call_id=call_id, approved=approved, reason=reason, by=by, args=args, edited_args=edited_args
            ),
        )

    async def reply(
        self,
        turn_id: str,
        question_id: str,
        value: Any = None,
        *,
        declined: bool = False,
        reason: str | None = None,
        by: str | None = None,
    ) -> None:
        """Record the reply to a question of a turn; the turn continues when it has all answers that it waits for.

        Raises QuestionNotFoundError, ReplyConflictError, InvalidReplyError, TurnNotWaitingError.
        """
        answer = ReplyAnswer(
            question_id=question_id, value=None if declined else value, declined=declined, reason=reason, by=by
        )
        await self.answer(turn_id, answer)

    async def send_tool_result(self, turn_id: str, call_id: str, output: Any, *, is_error: bool = False) -> None:
        """Record the result of a tool that the client has run; the turn continues when it has all answers.

        Raises ToolCallNotFoundError, ReplyConflictError, InvalidReplyError if it is too large, TurnNotWaitingError.
        """
        await self.answer(turn_id, ClientResultAnswer(call_id=call_id, output=output, is_error=is_error))

    async def answer(self, turn_id: str, answer: Answer) -> None:
        """Record an answer of any kind. Raises what `decide`, `reply` or `send_tool_result` raises."""
        if execution := self.worker.running.get(turn_id):
            await self.suspended.check(turn_id, answer)
            await execution.wait()  # The question is in the log, so the turn is just being suspended.
        await self.suspended.answer(turn_id, answer)

    async def cancel_session(self, session_id: str) -> None:
        """Cancel all unfinished turns of a session."""
        turns = await self._store.unfinished(session_id)
        await asyncio.gather(*(self.cancel(record.id, "session_deleted") for record in reversed(turns)))

    def _on_turn_settled(self, record: TurnRecord, ended: bool) -> None:
        if ended:
            self.presence.forget(record.id)
            self._spending.forget(record.id)
            for callback in self.on_ended:
                callback(record.id)
        for callback in self.on_settled:
            callback(record)

    async def _do_chores(self) -> None:
        self.presence.record_again()
        await self.suspended.answer_overdue()

    async def drain(self, grace_seconds: float) -> None:
        """Accept no more turns, let the running ones finish within the grace period, then interrupt them.

        Queued turns stay in the store, and so do turns that another worker can continue. Another process, or the next
        process on this data, runs them.
        """
        self._draining = True
        await self.worker.drain(grace_seconds)

    async def close(self) -> None:
        self._draining = True
        self.presence.close()
        await self.worker.close()
        await self._history_source.close()
