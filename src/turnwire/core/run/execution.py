"""The execution of one claimed turn: from its log, through its agent, to its `done`."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from enum import Enum, auto
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from turnwire.core.backoff import Backoff
from turnwire.core.contracts.agents import (
    Agent,
    HistorySource,
    continues_diverged,
    repeats,
    resumes,
)
from turnwire.core.contracts.stores import Refusal, Store
from turnwire.core.errors import (
    AgentError,
    AgentNotFoundError,
    EventRefusedError,
    FencedError,
    LogRewoundError,
    StoreError,
    StoreFullError,
    TurnEndedError,
    TurnNotFoundError,
    TurnwireError,
)
from turnwire.core.journal.turn_journal import Recording, TurnJournal, count_saved, fold_journal
from turnwire.core.journal.waits import ClientTool, TurnWaits
from turnwire.core.log.approvals import Decision
from turnwire.core.log.codec import OPENING_POSITION, LoggedEvent, comparable, encode_event, now_ms
from turnwire.core.log.event_kinds import NOT_COMPARED, RESERVED
from turnwire.core.log.events import (
    ApprovalRequestEvent,
    ApprovalResponseEvent,
    ErrorEvent,
    Event,
    ReasoningEvent,
    ResponseEvent,
    RestartEvent,
    StatusEvent,
    TokenEvent,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
)
from turnwire.core.log.files import ATTACHED, TurnFiles, encoded_attachments
from turnwire.core.log.follow import read_all
from turnwire.core.log.history import earlier_messages, imported_history
from turnwire.core.log.scope import TurnScope, weak_callback
from turnwire.core.log.state import TurnFold, fold_events
from turnwire.core.log.turn_log import TurnLog
from turnwire.core.log.turns import HANDED_BACK, SHUTDOWN, WAITING, WORKER_LOST, Message, Stop, Turn, TurnRecord
from turnwire.core.people.budget import Limits, UsageMeter
from turnwire.core.run.acceptance import MessageDemands, check_message, read_demands
from turnwire.core.run.inputs import JOINS, TurnInputs
from turnwire.core.run.recovery import (
    BEGUN_AGAIN,
    NOT_REPEATED,
    TurnPast,
    progress,
    read_past,
    recover,
    unfinished_calls,
    void_outputs,
)

logger = logging.getLogger("turnwire.runner")


class ExecutionState(Enum):
    """The life cycle of an execution.

    STARTING ─▶ RUNNING ─▶ STOPPING ─▶ ENDING ─▶ ENDED
                   │                      ├────▶ SUSPENDED
                   └──▶ SUSPENDED         └────▶ RELEASED

    A stop while STARTING leads to STOPPING without a run of the agent; a completed or failed agent goes from RUNNING to
    ENDING. ABANDONED can follow every state but the final ones.
    """

    STARTING = auto()  # The log is being read.
    RUNNING = auto()  # The agent runs.
    STOPPING = auto()  # The agent is being cancelled; `_stop` has the reason.
    ENDING = auto()  # The last events are being written.
    ENDED = auto()  # Final: the end is committed, by this worker or by another one.
    SUSPENDED = auto()  # Final: the turn waits for a person.
    RELEASED = auto()  # Final: the turn is queued for another worker.
    ABANDONED = auto()  # Final: nothing more is written, since another worker may own the turn.


_STOPPABLE = (ExecutionState.STARTING, ExecutionState.RUNNING)
_FINAL = (ExecutionState.ENDED, ExecutionState.SUSPENDED, ExecutionState.RELEASED, ExecutionState.ABANDONED)
# Between attempts to read the log at the start of a turn, and to write its end.
_RETRY = Backoff(first=0.1, longest=2.0, jitter=0.3)
# After so many failures that are no errors of the store, the log itself is the problem.
_MAX_UNREADABLE = 6


class WorkerServices(Struct, frozen=True):
    """The parts that all executions of a worker share. `on_finished` is called with each one in its final state."""

    store: Store
    limits: Limits
    history_source: HistorySource
    on_finished: Callable[["Execution"], None]


class Execution:
    """Runs one turn in one task. There may be thousands, so nothing is made here that most turns do not need.

    A turn that `is_lost` was run by a worker that is gone: it is recovered first.
    """

    __slots__ = (
        "__weakref__",
        "_agent",
        "_deadline",
        "_finished",
        "_inputs",
        "_is_lost",
        "_log",
        "_logged",
        "_meter",
        "_patience",
        "_releases_after_step",
        "_response",
        "_scope",
        "_services",
        "_stop",
        "_task",
        "record",
        "state",
    )

    def __init__(
        self,
        services: WorkerServices,
        agent: Agent | None,
        record: TurnRecord,
        meter: UsageMeter,
        *,
        is_lost: bool = False,
    ) -> None:
        self.state = ExecutionState.STARTING
        self.record = record
        """The turn as it was claimed."""
        self._services = services
        self._agent = agent
        self._meter = meter
        self._is_lost = is_lost
        self._log = TurnLog(services.store, record, services.limits, weak_callback(self._on_store_failure))
        self._inputs = TurnInputs(services.store, record, self._log, services.limits)
        self._scope = TurnScope(record.id, record.session_id, record.principal)
        self._task: asyncio.Task[None] | None = None
        self._stop: Stop | None = None
        self._releases_after_step = False
        self._response: ResponseEvent | None = None
        # The number of each logged event that the agent will yield again after a restart.
        self._logged: Counter[bytes] | None = None
        self._deadline: float | None = None
        # Ends the turn without an agent that does not stop.
        self._patience: asyncio.Task[None] | None = None
        # Made by the first call of `wait`.
        self._finished: asyncio.Future[None] | None = None

    @property
    def turn_id(self) -> str:
        return self.record.id

    @property
    def continues_later(self) -> bool:
        """Return True if the turn is not over: it waits for a person or for another worker."""
        return self.state in (ExecutionState.SUSPENDED, ExecutionState.RELEASED)

    @property
    def _is_finished(self) -> bool:
        return self.state in _FINAL

    def start(self) -> asyncio.Task[None]:
        self._task = asyncio.create_task(self._run(), name=f"turn {self.turn_id}")
        return self._task

    async def wait(self) -> None:
        """Wait for a final state. The agent may still run then, if it did not stop."""
        if not self._is_finished:
            if self._finished is None:
                self._finished = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._finished)

    # Requests from outside the task, and the transitions they cause

    def stop(self, stop: Stop, patience: float | None = None) -> None:
        """Cancel the agent and end the turn; close the log of an agent that does not stop within `patience` seconds."""
        if self.state not in _STOPPABLE:
            return
        if self.state is ExecutionState.RUNNING and self._task is not None:
            seconds = self._services.limits.cancel_patience if patience is None else patience
            self._patience = asyncio.create_task(self._leave_agent_behind(seconds))
            self._task.cancel()
        self.state, self._stop = ExecutionState.STOPPING, stop

    def release_after_step(self) -> None:
        """Leave the turn to another worker after its current step, if its agent can continue there."""
        self._releases_after_step = self._agent is not None and resumes(self._agent)

    def abandon(self) -> None:
        """Stop the agent and write nothing more, because another worker may own the turn by now."""
        self._log.close()
        if self.state is ExecutionState.RUNNING and self._task is not None:
            self._task.cancel()
        self._finish(ExecutionState.ABANDONED)

    async def _leave_agent_behind(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if self.state is ExecutionState.STOPPING:
            logger.warning("the agent %r does not stop in turn %s; it is left behind", self.record.agent, self.turn_id)
            await self._end()

    def _finish(self, state: ExecutionState) -> None:
        if self._patience is not None:
            self._patience.cancel()
        if not self._is_finished:
            self.state = state
            if self._finished is not None and not self._finished.done():
                self._finished.set_result(None)
            self._services.on_finished(self)
            self._task = None  # The task refers to the execution.

    # The task

    async def _run(self) -> None:
        self._scope.enter()
        try:
            past = await self._restore_log()
        except asyncio.CancelledError:
            self._finish(ExecutionState.ABANDONED)  # The server stops; nothing of the turn has run here.
            raise
        except Exception as error:
            await self._end(error)
            return
        try:
            if past is not None and self._is_lost and self.state is ExecutionState.STARTING:
                await self._recover(past)
            if self._releases_after_step:
                self.stop(HANDED_BACK)
            if past is not None and self.state is ExecutionState.STARTING:
                self.state = ExecutionState.RUNNING
                await self._run_agent(past)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            await self._end(error)
        else:
            await self._end(past=past)

    async def _restore_log(self) -> TurnPast | None:
        """Read the journal and the log, and retry while the store fails: no other worker would run or end the turn.

        Return None if the turn was deleted.
        """
        failures = unreadable = 0
        has_run = self.record.epoch > 1 or self.record.last_position > OPENING_POSITION
        while not self._is_finished:
            try:
                entries = await self._services.store.journal(self.turn_id) if has_run else ()
                past = TurnPast(fold_journal(entries))
                await self._log.restore(note=past.note)
                return past
            except TurnNotFoundError:
                self._finish(ExecutionState.ABANDONED)
            except Exception as error:
                failures += 1
                unreadable += not isinstance(error, StoreError)
                if unreadable >= _MAX_UNREADABLE:
                    raise
                logger.warning("the log of turn %s could not be read; this is tried again: %s", self.turn_id, error)
                await _RETRY.wait(failures)
        return None

    async def _recover(self, past: TurnPast) -> None:
        """Recover a turn whose worker was lost: go on here, or stop so that it waits, ends or is left to others."""
        recovery = recover(past, self._log.fold, self._agent, WORKER_LOST)
        logger.warning("turn %s had lost its worker; now it is %s", self.turn_id, recovery.phase)
        if recovery.phase == "queued" and not self._releases_after_step:
            with suppress(EventRefusedError, StoreError):
                for event in recovery.events:
                    self._log.append(event)
                # Committed before the agent runs: if that kills the process each time, the restarts are counted.
                return await self._log.flush()
        self.stop(WORKER_LOST)

    async def _run_agent(self, past: TurnPast) -> None:
        agent, log = self._agent, self._log
        if agent is None:
            raise AgentNotFoundError(self.record.agent)
        options = read_demands(self.record.options)
        check_message(self.record.agent, agent, options)
        await self._meter.begin(log.fold)
        self._deadline = asyncio.get_running_loop().time() + await self._remaining_seconds()
        self._open_scope(agent, past.recording, options.client_tools)
        self._note_past(past)
        await self._inputs.collect()
        try:
            await self._write_answer(agent, options)
        except Exception:
            has_diverged = self._journal.divergence is not None and self.state is ExecutionState.RUNNING
            if not (has_diverged and continues_diverged(agent)):
                raise
            self._open_scope(agent, self._begin_again(), options.client_tools)
            await self._write_answer(agent, options)
        finally:
            self._deadline = None

    def _open_scope(self, agent: Agent, recording: Recording, tools: Mapping[str, ClientTool]) -> None:
        """Give the code of the agent what it finds in its scope."""
        scope, services = self._scope, self._services
        scope.open(self._log, weak_callback(self._check_emitted))
        scope.journal = TurnJournal(
            self._log,
            recording,
            services.limits,
            repeats=partial(repeats, agent),
            hands_over=weak_callback(self._hands_over),
            client_tools=tools,
        )
        scope.waits = TurnWaits(self._log, scope.journal, tools, weak_callback(self._begin_waiting))
        scope.inputs = self._inputs
        scope.files = TurnFiles(services.store, self.record.session_id)

    @property
    def _journal(self) -> TurnJournal:
        return self._scope.journal

    @property
    def _waits(self) -> TurnWaits:
        return self._scope.waits

    def _note_past(self, past: TurnPast) -> None:
        """Note the events that the agent need not write again, and the void ones that came out of its tools."""
        recording, fold = past.recording, self._log.fold
        if not recording.calls:
            return
        if not recording.is_waiting:
            count_saved(recording)
        self._logged, void = Counter(), list[LoggedEvent]()
        for logged in past.events:
            if fold.restarts.is_void(logged.position):
                void.append(logged)
            elif not self._is_not_repeated(logged.event):
                self._logged[comparable(logged.event)] += 1
        self._journal.void_outputs = void_outputs(void, recording, fold)

    def _begin_again(self) -> Recording:
        """Keep the finished tool steps of an agent that has changed, take back what follows, and record from here."""
        log, journal = self._log, self._journal
        logger.warning("the agent %r has changed in turn %s: %s", self.record.agent, self.turn_id, journal.divergence)
        for call in unfinished_calls(log.fold):
            log.append(ToolResultEvent(call.id, call.name, False, NOT_REPEATED))
        log.append(RestartEvent(log.fold.restarts.border, "diverged"))
        log.append(StatusEvent(BEGUN_AGAIN))
        self._logged = None
        return journal.begin_again()

    def _hands_over(self) -> bool:
        """Hand the turn to another worker if this one drains and no call is open. Return True if it does."""
        if not self._releases_after_step or self._journal.open_calls:
            return False
        self.stop(HANDED_BACK)
        return True

    async def _remaining_seconds(self) -> float:
        """Return the time left for the turn; the time it has waited for people does not count."""
        started_at = self.record.started_at
        if self.record.epoch == 1 or started_at is None:
            return self._services.limits.turn_timeout
        elapsed_ms = await self._store_time() - started_at - self._log.fold.requests.waited_ms
        return self._services.limits.turn_timeout - max(elapsed_ms, 0) / 1000

    async def _store_time(self) -> int:
        """Return the time of the last renewal by a shared store's clock, which has dated the turn's start."""
        if self._services.store.is_shared:
            with suppress(StoreError):
                for worker in await self._services.store.workers():
                    if worker.id == self.record.worker:
                        return worker.lease_until - int(self._services.limits.lease * 1000)
        return now_ms()

    def _begin_waiting(self) -> None:
        """Stop the agent and suspend the turn: all that it still does is wait for answers."""
        if self.state is ExecutionState.RUNNING:
            self._journal.close()
            self.stop(WAITING)

    async def _suspend_waiting(self) -> ExecutionState:
        """Commit what the agent waits for and the suspension in one step: what is asked can always be answered."""
        log = self._log
        for event in list(self._waits.events()):
            self._meter.note(event)
            log.append(event)
        for entry in self._journal.waiting_calls or ():
            log.record(replace(entry, position=log.position))
        log.close()  # For an agent that was left behind.
        await log.suspend(self._services.limits.waits_until(now_ms()))
        return ExecutionState.SUSPENDED

    # The agent's input

    async def _make_turn(self, sent: MessageDemands) -> Turn:
        record = self.record
        history = await imported_history(self._services.store, record)
        if record.parent_turn_id:  # Otherwise it is the first turn of its session, or continues none.
            history += await self._services.history_source.recall(record)
        history += tuple(earlier_messages(self._log.fold.state()))
        options = {name: value for name, value in record.options.items() if name not in (JOINS, ATTACHED)}
        if sent.attachments:
            options["attachments"] = await encoded_attachments(sent.attachments, self._scope.files)
        if self._meter.is_spent:  # A summary of the history costs tokens too.
            raise self._meter.overdraft()
        return Turn(
            id=record.id,
            session_id=record.session_id,
            principal=record.principal,
            message=self._inputs.message,
            agent=record.agent,
            channel=record.channel,
            history=history,
            options=options,
            progress=await self._progress(),
            parent_turn_id=record.parent_turn_id,
            attachments=sent.attachments,
            metadata=record.options.get("metadata") or {},
            model_options=sent.model,
        )

    async def _progress(self) -> tuple[Message, ...]:
        """Return the finished tool steps from which an agent that has changed continues."""
        if not self._journal.recording.has_diverged:
            return ()
        await self._log.flush()
        base, pages = self._journal.recording.base, read_all(self._services.store, self.turn_id)
        return progress(fold_events([logged async for page in pages for logged in page if logged.position <= base]))

    # The agent's output

    async def _write_answer(self, agent: Agent, options: MessageDemands) -> None:
        """Run the agent and write what it yields. The loop is the path of every token."""
        answer = agent.answer(await self._make_turn(options))
        log, meter, running = self._log, self._meter, ExecutionState.RUNNING
        repeating = self._journal if self._journal.repeats_text else None
        append_token = log.append_token
        try:
            async for event in answer:
                if isinstance(event, str):
                    if meter.is_spent:
                        raise meter.overdraft()
                    if event and not (repeating is not None and repeating.repeats_text):
                        append_token(event)
                else:
                    self._write(event)
                if log.is_behind:
                    await log.wait_for_room()
                if self.state is not running:
                    return
        finally:
            if isinstance(answer, AsyncGenerator):
                await answer.aclose()
        if self.state is running:
            self._journal.check_complete()

    def _write(self, event: Event) -> None:
        log, fold = self._log, self._log.fold
        if isinstance(event, ToolCallEvent | ToolResultEvent) and self._waits.is_client_call(event):
            for each in self._waits.events_for(event):
                self._meter.note(each)
                log.append(each)
            return
        is_repeated_text = self._journal.repeats_text and isinstance(event, TokenEvent | ReasoningEvent)
        if is_repeated_text or (self._logged and self._is_logged(event, self._logged)):
            return
        match event:
            case ResponseEvent():
                # Its content becomes tokens, so that the answer is always the concatenation of the tokens.
                self._response = event
                encode_event(event)  # An invalid response must fail here, not at the end of the turn.
                if event.content and not fold.has_answer:
                    log.append(TokenEvent(event.content))
            case ToolCallEvent() if fold.is_running(event.call_id) and (decision := fold.decision(event.call_id)):
                _check_arguments(event, decision)
            case ApprovalRequestEvent() | ApprovalResponseEvent():
                raise EventRefusedError(
                    f"an agent must not yield {type(event).__name__}; to ask a person, await approval()"
                )
            case ErrorEvent():
                raise AgentError(event.error, code=event.code, retryable=event.retryable)
            case _ if isinstance(event, RESERVED):
                raise EventRefusedError(f"an agent must not yield {type(event).__name__}; Turnwire writes it")
            case _:
                self._meter.note(event)
                log.append(event)
                if isinstance(event, ToolResultEvent):
                    self._journal.note_change()

    def _is_logged(self, event: Event, counts: Counter[bytes]) -> bool:
        """Return True, once, for an event that the agent yielded before a restart and that is still valid."""
        if self._is_not_repeated(event):
            return False
        body = comparable(encode_event(event)[0])
        if not counts[body]:
            return False
        counts[body] -= 1
        return True

    def _is_not_repeated(self, event: Event) -> bool:
        # Only an agent that journals steps of its own reports the usage of a finished call again.
        return isinstance(event, NOT_COMPARED) or (isinstance(event, UsageEvent) and not self._journal.has_steps_only)

    def _check_emitted(self, event: Event) -> None:
        """Count an event that a tool emits. The tool may catch the error, so a refusal also stops the turn."""
        try:
            self._meter.note(event)
        except TurnwireError as error:
            self.stop(self._failure(error))
            raise

    # Reasons to stop

    def check_deadline(self, now: float) -> None:
        """Stop the agent if the time of the turn is over; `now` is the event loop's time."""
        if self._deadline is None or now < self._deadline:
            return
        text = f"The answer took longer than {self._services.limits.turn_timeout:g} seconds."
        self.stop(Stop("failed", "turn_timeout", ErrorEvent(text, "turn_timeout", True)))

    def _on_store_failure(self, error: Refusal) -> None:
        if self.state is ExecutionState.RUNNING:
            self.stop(_stop_after(error))

    def _failure(self, error: BaseException) -> Stop:
        """Return the stop for an error; its details go to the server's log alone."""
        # The agent's own library may raise CancelledError too; the server shuts down only if this task was cancelled.
        if isinstance(error, asyncio.CancelledError) and self._task is not None and self._task.cancelling():
            return SHUTDOWN
        if not isinstance(error, TurnwireError):
            logger.exception("the agent %r failed in turn %s", self.record.agent, self.turn_id, exc_info=error)
        return Stop("failed", *explain_error(error))

    # The end

    async def _end(self, error: BaseException | None = None, past: TurnPast | None = None) -> None:
        if self._is_finished or self.state is ExecutionState.ENDING:
            return
        stop = self._stop or (None if error is None else self._failure(error))
        self.state = ExecutionState.ENDING
        # A task of its own, since readers need the end also when this task is cancelled.
        await _wait_uncancelled(asyncio.create_task(self._write_end(stop, past)))

    async def _write_end(self, stop: Stop | None, past: TurnPast | None) -> None:
        """Write the end until it is committed, by this worker or by another one, or the turn is abandoned.

        `past` is what was read before the agent began.
        """
        last_position = self._log.position
        failures = 0
        state = ExecutionState.ENDED
        while not self._is_finished:
            try:
                if failures:
                    await self._log.rewind()
                    if stop is None and self._log.position < last_position:
                        stop = _stop_after(StoreError("a part of the answer could not be written"))
                state = await self._try_to_end(stop, None if failures else past)
                break
            except TurnEndedError:
                logger.warning("turn %s was ended by another worker before", self.turn_id)
                break
            except FencedError:
                logger.warning("turn %s was taken over by another worker, which ends it", self.turn_id)
                state = ExecutionState.ABANDONED
                break
            except (LogRewoundError, TurnNotFoundError) as error:
                # To write on would give readers other events at positions that they have seen. Claimed again, the turn
                # has another epoch, which tells them.
                logger.error("the database has lost committed events of turn %s: %s", self.turn_id, error)
                state = ExecutionState.ABANDONED
                break
            except StoreError as error:
                logger.warning("the end of turn %s could not be written; this is tried again: %s", self.turn_id, error)
                if stop is None and isinstance(error, StoreFullError):
                    stop = _stop_after(error)  # The reserve of a full disk has no room for a whole response.
            except Exception as error:
                stop = self._failure(error)
            failures += 1
            await _RETRY.wait(failures)
        self._finish(state)

    async def _try_to_end(self, stop: Stop | None, past: TurnPast | None) -> ExecutionState:
        if stop is None:
            response = whole_response(self._log.fold, self._response)
            await self._inputs.settle()
            await self._log.end("completed", response=response)
        elif (state := await self._hand_over(stop, past)) is not None:
            return state
        else:
            await self._inputs.settle()
            await self._log.end(stop.outcome, reason=stop.reason, error=stop.error)
        return ExecutionState.ENDED

    async def _hand_over(self, stop: Stop, past: TurnPast | None) -> ExecutionState | None:
        """Leave the turn to other workers and return its final state here, or None if it has to end."""
        log = self._log
        if stop not in (WAITING, HANDED_BACK, SHUTDOWN, WORKER_LOST) or self._agent is None:
            return None
        if not self._is_finished:
            log.reopen()
        if stop is WAITING:
            return await self._suspend_waiting()
        if not resumes(self._agent):
            return None
        past = past or await read_past(self._services.store, log)
        recovery = recover(past, log.fold, self._agent, stop)
        try:
            for event in recovery.events:
                log.append(event)
        except EventRefusedError:
            return None
        if recovery.phase == "ended":
            return None
        # Until another worker claims the turn, nothing else would keep an agent that was left behind from writing.
        log.close()
        if recovery.phase == "queued":
            await log.release()
            return ExecutionState.RELEASED
        await log.suspend(self._services.limits.waits_until(now_ms()))
        return ExecutionState.SUSPENDED


def explain_error(error: BaseException) -> tuple[str, ErrorEvent]:
    """Return the reason for `done` and an error for the user, in words that are safe to show."""
    match error:
        case AgentError():
            event = ErrorEvent(str(error), str(error.code), bool(error.retryable))
        case TurnwireError():
            event = ErrorEvent(str(error), error.code)
        case _:
            text = f"The agent failed ({type(error).__name__}). The server's log tells more."
            event = ErrorEvent(text, "agent_failed")
    return event.code, event


def whole_response(fold: TurnFold, response: ResponseEvent | None) -> ResponseEvent:
    """Return the agent's response, if it gave one, completed from the log."""
    response, state = response or ResponseEvent(""), fold.state()
    return ResponseEvent(
        content=state.text,
        citations=response.citations or tuple(state.citations),
        mode=response.mode,
        tools_used=response.tools_used or tuple(state.tools_used),
        usage=response.usage or state.usage,
        timings={**state.timings, "total_ms": fold.elapsed(now_ms()), **(response.timings or {})},
        model=response.model,
        model_error=response.model_error,
    )


def _stop_after(error: Refusal) -> Stop:
    return Stop("failed", error.code, ErrorEvent(str(error), error.code, True))


async def _wait_uncancelled(task: asyncio.Task[None]) -> None:
    """Wait for a task to finish, ignoring the cancellation of the caller."""
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            continue
    task.result()


def _check_arguments(call: ToolCallEvent, decision: Decision) -> None:
    """Raise AgentError unless the call is exactly the one that a person has decided about."""
    logged, _ = encode_event(call)
    assert isinstance(logged, ToolCallEvent)
    if logged.tool != decision.tool or logged.args not in (decision.args, decision.requested_args):
        raise AgentError(
            f"The agent wanted to call {decision.tool!r} with other arguments than those that were decided about.",
            code="approval_conflict",
        )
