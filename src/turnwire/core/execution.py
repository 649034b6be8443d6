"""One turn while it runs, once it is claimed: to its `done`, whatever the agent does."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable

import msgspec

from turnwire.core.approvals import Decision, Resumption, WaitForApproval
from turnwire.core.budget import Limits, UsageMeter
from turnwire.core.cancellation import HANDED_BACK, SHUTDOWN, WORKER_LOST, Stop
from turnwire.core.codec import encode_event, now_ms
from turnwire.core.contracts import Agent, HistorySource, Refusal, Store, Suspension, resumes, takes_attachments
from turnwire.core.emit import enter_turn, set_running_turn
from turnwire.core.errors import (
    AgentError,
    AgentNotFoundError,
    AttachmentsNotTakenError,
    EventRefusedError,
    FencedError,
    StoreError,
    TurnwireError,
)
from turnwire.core.events import (
    RESERVED,
    ApprovalRequestEvent,
    ApprovalResponseEvent,
    ErrorEvent,
    Event,
    ResponseEvent,
    TokenEvent,
    ToolCallEvent,
    ToolResultEvent,
)
from turnwire.core.log import TurnLog
from turnwire.core.recovery import calls_under_way, may_go_on, progress, set_aside
from turnwire.core.turns import Message, Turn, TurnRecord

logger = logging.getLogger("turnwire.runner")


class Execution:
    """Runs one turn in one task. `finished` is done when its end is committed, or cannot be, or when it is set aside:
    parked, or left for another worker.
    """

    def __init__(
        self,
        store: Store,
        agent: Agent | None,
        record: TurnRecord,
        limits: Limits,
        on_finished: Callable[["Execution"], None],
        historian: HistorySource,
        meter: UsageMeter,
    ) -> None:
        self.turn_id = record.id
        self.session_id = record.session_id
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[None] | None = None
        self._store = store
        self._agent = agent
        self.record = record
        self._limits = limits
        self._on_finished = on_finished
        self.is_set_aside = False
        self._historian = historian
        self._meter = meter
        self._log: TurnLog | None = None
        self._decided: dict[str, Decision] = {}
        self._standing: list[Event] = []
        self._is_leaving = False
        self._stop: Stop | None = None
        self._ending = False
        self._is_abandoned = False
        self._response: ResponseEvent | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._last_resort: asyncio.Task[None] | None = None

    def stop(self, stop: Stop, patience: float | None = None) -> None:
        """Asks the turn to end. An agent that does not let go in time is left behind: its log is closed."""
        if self._stop is not None or self._ending:
            return
        self._stop = stop
        if self.task is None or self._log is None:
            return  # Not begun yet: `run` looks at `_stop` before it calls the agent.
        self.task.cancel()
        self._lose_patience(self._limits.cancel_patience if patience is None else patience)

    def hand_back(self) -> None:
        """Asks the turn to be left for another worker when its next step has ended, if its agent can go on there."""
        self._is_leaving = self._agent is not None and resumes(self._agent)

    def abandon(self) -> None:
        """Lets go of a turn that another worker may have by now: the agent is stopped, and nothing more is written."""
        self._is_abandoned = True
        if self._log is not None:
            self._log.ended = True
        self.stop(WORKER_LOST)
        if not self.finished.done():
            self._finish()

    async def run(self) -> None:
        enter_turn(self.turn_id, self.session_id)
        log = TurnLog(self._store, self.record, self._limits, self._store_failed)
        try:
            await log.restore()
        except Exception:
            logger.exception("the log of turn %s could not be read", self.turn_id)
            self._finish()
            return
        self._log = log
        try:
            waits = await self._answer(log)
            if waits is not None and self._stop is None:
                await self._park(log, waits)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            await self._end(self._stop or self._verdict(error))
        else:
            if not self.is_set_aside:
                await self._end(self._stop)

    async def _answer(self, log: TurnLog) -> WaitForApproval | None:
        """Returns what the agent waits for, if it does."""
        if self._stop is not None:
            return None
        if self._agent is None:
            raise AgentNotFoundError(self.record.agent)
        if self._is_leaving:
            self._stop = HANDED_BACK
            return None
        if self.record.options.get("attachments") and not takes_attachments(self._agent):
            # It was another agent of that name that the turn was accepted for, before a restart.
            raise AttachmentsNotTakenError(self.record.agent)
        await self._meter.begin(log.fold)
        clock = asyncio.get_running_loop().call_later(self._seconds_left(log), self._time_out)
        set_running_turn(log, self._note)
        try:
            await self._write_all(log, self._agent.answer(await self._turn(log)))
        except WaitForApproval as waits:
            return waits
        finally:
            clock.cancel()
        return None

    async def _turn(self, log: TurnLog) -> Turn:
        record = self.record
        history = await self._told_history() + await self._historian.recall(record)
        if self._meter.is_spent:  # By a summary of what came before, say.
            raise self._meter.overdraft()
        return Turn(
            id=record.id,
            session_id=record.session_id,
            principal=record.principal,
            message=record.message,
            agent=record.agent,
            channel=record.channel,
            history=history,
            options=record.options,
            resumption=await self._resumption(log),
            progress=self._progress(log),
        )

    async def _told_history(self) -> tuple[Message, ...]:
        """What was said elsewhere before the session began; its first turn was told."""
        told = self.record.options.get("history")
        if not told and self.record.parent_turn_id is not None:
            first = await self._store.next_turn(self.record.session_id, None)
            told = first and first.options.get("history")
        return tuple(msgspec.convert(told, list[Message])) if told else ()

    async def _resumption(self, log: TurnLog) -> Resumption | None:
        decisions = log.fold.decisions
        if not decisions:
            return None
        self._decided = {decision.call_id: decision for decision in decisions}
        return Resumption(decisions, await self._store.checkpoint(self.turn_id))

    def _progress(self, log: TurnLog) -> tuple[Message, ...]:
        if self._agent is None or not resumes(self._agent):
            return ()
        self._standing = [ToolCallEvent(call.id, call.name, call.args) for call in calls_under_way(log.fold)]
        return progress(log.fold)

    def _seconds_left(self, log: TurnLog) -> float:
        """The turn's clock stands still while it waits for a person."""
        ran_ms = now_ms() - (self.record.started_at or now_ms()) - log.fold.waited_ms
        return self._limits.turn_timeout - max(ran_ms, 0) / 1000

    async def _park(self, log: TurnLog, waits: WaitForApproval) -> None:
        """What the agent asks for is in the log from the moment that the turn waits, and not before."""
        for asked in waits.requests:
            if not log.fold.has_call(asked.call_id):
                log.append(ToolCallEvent(asked.call_id, asked.tool, asked.args, agent_path=asked.agent_path))
            log.append(asked)
        until = now_ms() + int(self._limits.approval_timeout * 1000)
        try:
            await log.park(Suspension(until, waits.checkpoint))
        except asyncio.CancelledError:
            # It is handed over, and who has seen the turn wait must not see it end because the process does.
            await _see_through(asyncio.create_task(log.flush()))
        if self._stop is None:
            self.is_set_aside = True
            self._finish()

    async def _write_all(self, log: TurnLog, answer: AsyncIterator[Event | str]) -> None:
        # This loop is the path of every token.
        append_token, meter = log.append_token, self._meter
        try:
            async for event in answer:
                if isinstance(event, str):
                    if meter.is_spent:
                        raise meter.overdraft()
                    if event:
                        append_token(event)
                else:
                    self._write(log, event)
                if log.is_behind:
                    await log.room()
                if self._stop is not None:
                    return
        finally:
            if isinstance(answer, AsyncGenerator):
                await answer.aclose()

    def _write(self, log: TurnLog, event: Event) -> None:
        match event:
            case ResponseEvent():
                # Its words become tokens, so that the answer is always what the tokens say.
                self._response = event
                encode_event(event)  # One that is not as declared must fail here, not at the end.
                if not log.fold.text and event.content:
                    log.append(TokenEvent(event.content))
            case ToolCallEvent(call_id=call_id) if call_id in self._decided:
                # It is in the log since it was asked for.
                _check_arguments(event, self._decided[call_id])
            case ToolCallEvent() if self._standing and (kept := encode_event(event)[0]) in self._standing:
                self._standing.remove(kept)  # It is in the log since it was first begun.
            case ApprovalRequestEvent() | ApprovalResponseEvent():
                raise EventRefusedError(
                    f"an agent must not yield {type(event).__name__}; to ask a person, raise WaitForApproval"
                )
            case ErrorEvent():
                raise AgentError(event.error, code=event.code, retryable=event.retryable)
            case _ if isinstance(event, RESERVED):
                raise EventRefusedError(f"an agent must not yield {type(event).__name__}; Turnwire writes it")
            case _:
                self._meter.note(event)
                log.append(event)
                if self._is_leaving and isinstance(event, ToolResultEvent) and not calls_under_way(log.fold):
                    self._leave()

    def _note(self, event: Event) -> None:
        """An event from inside a tool. An error that is raised there may be caught there, so it stops the turn too."""
        try:
            self._meter.note(event)
        except TurnwireError as error:
            self.stop(Stop("failed", *self._explain(error)))
            raise

    def _leave(self) -> None:
        if self._stop is None:
            self._stop = HANDED_BACK  # The agent is closed where it is: between two steps.
            self._lose_patience(self._limits.cancel_patience)

    def _time_out(self) -> None:
        text = f"The answer took longer than {self._limits.turn_timeout:g} seconds."
        self.stop(Stop("failed", "turn_timeout", ErrorEvent(text, "turn_timeout", True)))

    def _verdict(self, error: BaseException) -> Stop:
        # An agent's own library may cancel things too; only a cancelled task means that the server goes down.
        if isinstance(error, asyncio.CancelledError) and self.task is not None and self.task.cancelling():
            return SHUTDOWN
        return Stop("failed", *self._explain(error))

    def _explain(self, error: BaseException) -> tuple[str, ErrorEvent]:
        """The reason for `done`, and words for the user. Details go to the server's log alone."""
        match error:
            case AgentError():
                event = ErrorEvent(str(error), str(error.code), bool(error.retryable))
            case TurnwireError():
                event = ErrorEvent(str(error), error.code)
            case _:
                logger.exception("the agent %r failed in turn %s", self.record.agent, self.turn_id, exc_info=error)
                text = f"The agent failed ({type(error).__name__}). The server's log tells more."
                event = ErrorEvent(text, "agent_failed")
        return event.code, event

    def _store_failed(self, error: Refusal) -> None:
        self.stop(Stop("failed", error.code, ErrorEvent(str(error), error.code, True)))

    def _lose_patience(self, seconds: float) -> None:
        self._patience = asyncio.get_running_loop().call_later(seconds, self._leave_behind)

    def _leave_behind(self) -> None:
        if not self._ending:
            logger.warning("the agent %r does not stop in turn %s; it is left behind", self.record.agent, self.turn_id)
            self._last_resort = asyncio.create_task(self._end(self._stop))

    async def _end(self, stop: Stop | None) -> None:
        if self._ending or self._is_abandoned:
            return
        self._ending = True
        # The end is written in a task of its own: whoever cancels this one, readers still need to see it.
        await _see_through(asyncio.create_task(self._write_end(stop)))

    async def _write_end(self, stop: Stop | None) -> None:
        log = self._log
        assert log is not None
        try:
            if stop is None:
                await log.end("completed", response=self._whole_response(log))
            elif not await self._set_aside(log, stop):
                await log.end(stop.outcome, reason=stop.reason, error=stop.error)
        except FencedError:
            logger.warning("turn %s was taken over by another worker", self.turn_id)
        except StoreError as error:
            await self._write_failed_end(log, error)
        finally:
            self._finish()

    async def _set_aside(self, log: TurnLog, stop: Stop) -> bool:
        if self._agent is not None and may_go_on(self._agent, stop):
            self.is_set_aside = await set_aside(log, self._store, self._agent, self._limits, stop)
        return self.is_set_aside

    async def _write_failed_end(self, log: TurnLog, error: StoreError) -> None:
        try:
            await log.rewind()
            await log.end("failed", reason=error.code, error=ErrorEvent(str(error), error.code, True))
        except StoreError:
            logger.exception("the end of turn %s could not be written", self.turn_id)

    def _whole_response(self, log: TurnLog) -> ResponseEvent:
        state, given = log.fold.state(), self._response
        return ResponseEvent(
            content=state.text,
            citations=given.citations if given and given.citations else tuple(state.citations),
            mode=given.mode if given else None,
            tools_used=given.tools_used if given and given.tools_used else tuple(state.tools_used),
            usage=given.usage if given and given.usage else state.usage,
            timings={
                **state.timings,
                "total_ms": log.fold.elapsed(now_ms()),
                **((given.timings or {}) if given else {}),
            },
        )

    def _finish(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
        if not self.finished.done():
            self.finished.set_result(None)
            self._on_finished(self)


async def _see_through(writing: asyncio.Task[None]) -> None:
    """Waits for it, whoever cancels the one who waits."""
    while not writing.done():
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            continue
    writing.result()


def _check_arguments(call: ToolCallEvent, decision: Decision) -> None:
    """A person has decided about these arguments and no others."""
    kept, _ = encode_event(call)
    assert isinstance(kept, ToolCallEvent)
    if (kept.tool, kept.args) != (decision.tool, decision.args):
        raise AgentError(
            f"The agent wanted to call {decision.tool!r} with other arguments than those that were decided about.",
            code="approval_conflict",
        )
