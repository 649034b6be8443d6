"""The worker of this process: claims turns, keeps its lease, obeys commands and recovers turns of lost workers.

The store decides which turns may run, so any number of processes can work at once. `execution` runs a single turn.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from time import monotonic
from typing import Any

from turnwire.core import metrics
from turnwire.core.contracts.agents import Agent, HistorySource
from turnwire.core.contracts.stores import RUNNABLE, Store, UnfinishedFilter
from turnwire.core.errors import StoreError, TurnEndedError, TurnNotFoundError, TurnTakenError
from turnwire.core.ids import new_id
from turnwire.core.log.follow import fold_log
from turnwire.core.log.turns import SHUTDOWN, Stop, TurnRecord, cancelled
from turnwire.core.people.budget import Limits, Spending, UsageMeter
from turnwire.core.run.execution import Execution, ExecutionState, WorkerServices
from turnwire.core.run.recovery import is_queued_by

logger = logging.getLogger("turnwire.runner")

_SHUTDOWN_PATIENCE_SECONDS = 0.3
_STORE_PATIENCE_SECONDS = 1
# A shutdown waits this long for ends that the store does not take; the next process writes them.
_ENDING_PATIENCE_SECONDS = 10
# A worker stops its turns when this part of its lease has passed: soon afterwards, another may claim them.
_SAFE_PART = 0.8
# The delay before a worker that spreads turns claims a new one: for each turn that it runs, and the longest.
_SPREAD_SECONDS, _MAX_SPREAD_SECONDS = 0.005, 0.025


class WorkerLease:
    """The worker's id in the store, and how long its turns are safe from other workers."""

    def __init__(self, store: Store, seconds: float) -> None:
        self.id = new_id()
        self._store = store
        self._seconds = seconds
        self._name = f"{socket.gethostname()}:{os.getpid()}"
        self.safe_until = 0.0
        # The ids that this worker has had, whose turns are to be taken over.
        self._lost_ids: list[str] = []

    async def renew(self, *, draining: bool) -> None:
        requested_at = monotonic()
        await self._store.renew(self.id, name=self._name, draining=draining)
        self.safe_until = requested_at + _SAFE_PART * self._seconds

    @property
    def is_safe(self) -> bool:
        return monotonic() < self.safe_until or not self._store.is_shared

    def give_up(self) -> None:
        """Take another id: under the old one, renewals would keep the lost turns from being taken over."""
        self._lost_ids.append(self.id)
        self.id = new_id()

    async def retire_lost(self) -> None:
        while self._lost_ids:
            await self._store.retire(self._lost_ids[-1])
            self._lost_ids.pop()


class TurnWorker:
    """Runs the turns that this process has claimed.

    `on_continued` is called with each claimed turn that has run before. `on_settled` is called with each turn that has
    ended or begun to wait for a person here, as it was claimed, and with True if it has ended. `chores` is called after
    each renewal of the lease. With `spreads`, the worker leaves turns to workers that run fewer, so that an agent that
    blocks its process delays few others.
    """

    def __init__(
        self,
        store: Store,
        agents: Mapping[str, Agent],
        limits: Limits,
        history_source: HistorySource,
        spending: Spending,
        on_continued: Callable[[TurnRecord], None],
        on_settled: Callable[[TurnRecord, bool], None],
        chores: Callable[[], Coroutine[Any, Any, None]],
        *,
        spreads: bool = False,
    ) -> None:
        self.running: dict[str, Execution] = {}
        self._services = WorkerServices(store, limits, history_source, self._release)
        self._agents = agents
        self._spending = spending
        self._on_continued = on_continued
        self._on_settled = on_settled
        self._chores = chores
        self._spreads = spreads
        self._lease = WorkerLease(store, limits.lease)
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False
        self._woken = asyncio.Event()
        self._renewed = asyncio.Event()
        self._has_commands = True
        # Held from the claim of a turn until it is in `running`.
        self._claiming = asyncio.Lock()
        self._unwatch: list[Callable[[], None]] = []
        self._loops: list[asyncio.Task[None]] = []

    @property
    def id(self) -> str:
        """Return the id under which this worker claims turns. It changes when the lease runs out."""
        return self._lease.id

    @property
    def _store(self) -> Store:
        return self._services.store

    @property
    def _limits(self) -> Limits:
        return self._services.limits

    async def open(self) -> None:
        """Recover the turns of lost workers, then start to claim turns."""
        self._draining = False
        await self._renew()
        await self._take_over()
        self._watch()
        self._loops = [
            asyncio.create_task(self._work()),
            asyncio.create_task(self._keep_lease()),
            asyncio.create_task(self._recover()),
            asyncio.create_task(self._time_out_turns()),
        ]
        if self._store.is_shared:
            self._loops.append(asyncio.create_task(self._guard_lease()))
        self.wake()

    def wake(self, *, for_commands: bool = False) -> None:
        """Make the worker look for turns to claim and, with `for_commands`, for turns to stop."""
        self._has_commands = self._has_commands or for_commands
        self._woken.set()

    async def end(self, turn_id: str, stop: Stop) -> Execution:
        """End a turn that runs here, or that no worker runs.

        Raises TurnEndedError, TurnTakenError, TurnNotFoundError.
        """
        async with self._claiming:
            execution = self.running.get(turn_id)
            if execution is not None:
                execution.stop(stop)
                return execution
            return self._execute(await self._store.claim(turn_id, self.id), stop)

    @property
    def has_left_behind(self) -> bool:
        """Return True while an agent runs, also one that would not stop when its turn was ended."""
        return any(not task.done() for task in self._tasks)

    async def drain(self, grace_seconds: float) -> None:
        """Claim no more turns, and let the running ones finish within the grace period.

        Turns that another worker can continue are released after their current step, or when the grace period is over;
        the others are interrupted then.
        """
        self._draining = True
        async with self._claiming:
            pass  # A claim under way has its turns in `running` from here on.
        for execution in self.running.values():
            execution.release_after_step()
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(_STORE_PATIENCE_SECONDS):
                await self._renew()  # So that the other processes see that this one drains.
        try:
            async with asyncio.timeout(grace_seconds):
                await self._idle.wait()
        except TimeoutError:
            for execution in list(self.running.values()):
                execution.stop(SHUTDOWN, patience=_SHUTDOWN_PATIENCE_SECONDS)
            with suppress(TimeoutError):
                async with asyncio.timeout(_ENDING_PATIENCE_SECONDS):
                    await self._idle.wait()

    async def close(self) -> None:
        self._draining = True
        for unwatch in self._unwatch:
            unwatch()
        await _cancel(self._loops)
        await _cancel(self._tasks)
        for execution in list(self.running.values()):
            logger.error("turn %s could not be ended; the next process ends it", execution.turn_id)
            execution.abandon()
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(_STORE_PATIENCE_SECONDS):
                await self._store.retire(self.id)

    def _watch(self) -> None:
        for unwatch in self._unwatch:
            unwatch()
        self._unwatch = [
            self._store.watch(RUNNABLE, lambda _: self.wake()),
            self._store.watch(self.id, lambda _: self.wake(for_commands=True)),
        ]

    # Turns and commands

    async def _work(self) -> None:
        while True:
            await self._woken.wait()
            self._woken.clear()
            if self._has_commands:
                self._has_commands = False
                await _log_failure(self._obey_commands(), "commands could not be obeyed")
            await _log_failure(self._claim_turns(), "turns could not be claimed")

    async def _obey_commands(self) -> None:
        for command in await self._store.commands(self.id):
            with suppress(TurnEndedError, TurnTakenError, TurnNotFoundError):
                await self.end(command.turn_id, cancelled(command.reason))

    async def _claim_turns(self) -> None:
        if self._spreads and self.running:
            await asyncio.sleep(min(_SPREAD_SECONDS * len(self.running), _MAX_SPREAD_SECONDS))
        async with self._claiming:
            free = self._free_room
            if self._draining or free <= 0 or not self._lease.is_safe:
                return
            worker = self.id
            claimed = await self._store.claim_next(worker, free)
            if worker != self.id:
                # The lease ran out before the reply came: the turns belong to the old id, and are taken over from it.
                return
            for record in claimed:
                if record.epoch > 1:
                    self._on_continued(record)
                self._execute(record)
        if any(record.epoch > 1 for record in claimed):
            self.wake(for_commands=True)  # A turn that ran before may have a command that its last worker did not obey.
        elif claimed and (self._store.is_shared or len(claimed) == free):
            self.wake()  # The store may have more turns; a shared one may have skipped some that others held.

    @property
    def _free_room(self) -> int:
        """Return how many more turns this worker runs now."""
        free = self._limits.max_worker_turns - len(self.running)
        return min(free, len(self.running) + 1) if self._spreads else free

    def _execute(self, record: TurnRecord, stop: Stop | None = None, *, is_lost: bool = False) -> Execution:
        meter = UsageMeter(record, self._limits.max_steps_per_turn, self._spending)
        execution = Execution(self._services, self._agents.get(record.agent), record, meter, is_lost=is_lost)
        if stop is not None:
            execution.stop(stop)
        self.running[record.id] = execution
        self._idle.clear()
        task = execution.start()
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return execution

    def _release(self, execution: Execution) -> None:
        # An agent that will not stop keeps its task, but not its session.
        if self.running.get(execution.turn_id) is execution:
            del self.running[execution.turn_id]
        if not self.running:
            self._idle.set()
        if execution.state in (ExecutionState.ENDED, ExecutionState.SUSPENDED):
            self._on_settled(execution.record, execution.state is ExecutionState.ENDED)
        if self._store.is_shared or len(self.running) + 1 >= self._limits.max_worker_turns:
            self.wake()  # There is room for another turn.

    async def _time_out_turns(self) -> None:
        """Stop the turns whose time is over. A timer for each turn would take half a kilobyte of memory."""
        loop, seconds = asyncio.get_running_loop(), min(1.0, self._limits.turn_timeout / 10)
        while True:
            await asyncio.sleep(seconds)
            now = loop.time()
            for execution in list(self.running.values()):
                execution.check_deadline(now)

    # The lease

    async def _renew(self) -> None:
        await self._lease.renew(draining=self._draining)

    async def _keep_lease(self) -> None:
        while True:
            await asyncio.sleep(self._limits.lease / 4)
            await _log_failure(self._renew(), "the lease could not be renewed")
            self._renewed.set()

    async def _recover(self) -> None:
        """Look for turns that nobody runs, after each renewal. A slow answer of the store does not cost the lease."""
        while True:
            await self._renewed.wait()
            self._renewed.clear()
            if self._lease.is_safe:
                await _log_failure(self._find_orphans(), "this worker's turns could not be compared")
                await _log_failure(self._take_over(), "turns of lost workers could not be taken over")
                await _log_failure(self._chores(), "overdue approvals could not be denied")
                self.wake(for_commands=True)

    async def _guard_lease(self) -> None:
        """Abandon all turns when other workers may consider this one lost."""
        while True:
            await asyncio.sleep(max(0.02, self._lease.safe_until - monotonic()))
            if not self._lease.is_safe and self.running:
                logger.error("the lease of worker %s ran out; its %d turns are abandoned", self.id, len(self.running))
                for execution in list(self.running.values()):
                    execution.abandon()
                self._lease.give_up()
                self._watch()

    async def _take_over(self) -> None:
        """Continue or end the turns of lost workers. Those beyond the room here are left to any worker."""
        await self._lease.retire_lost()
        async with self._claiming:
            worker = self.id
            records = [] if self._draining else await self._store.take_over(worker)
            if not records or worker != self.id:
                return
            metrics.TAKEOVERS.add(count=len(records))
            stops = await self._commanded_stops(worker)
            room = self._free_room
            for index, record in enumerate(records):
                self._on_continued(record)
                execution = self._execute(record, stops.get(record.id), is_lost=True)
                if index >= room:
                    execution.release_after_step()

    async def _find_orphans(self) -> None:
        """Run the turns that the store counts as this worker's and that do not run here.

        The reply to their claim was lost, or the claim counts in memory but could not be committed.
        """
        async with self._claiming:
            worker = self.id
            # The running turns are listed before the query: one of them may end or be released before the reply comes.
            where = UnfinishedFilter(phase="running", worker=worker, except_for=list(self.running))
            for turn in await self._store.unfinished(where=where):
                logger.warning("turn %s belongs to this worker, which does not run it; it is claimed again", turn.id)
                with suppress(TurnEndedError, TurnTakenError, TurnNotFoundError):
                    is_lost = await self._has_begun(turn)
                    record = await self._store.claim(turn.id, worker)
                    if worker != self.id:
                        return  # The lease ran out meanwhile, and with it these claims.
                    self._execute(record, is_lost=is_lost)

    async def _has_begun(self, turn: TurnRecord) -> bool:
        """Return False if this worker's claim is the first one since the turn was queued, so that no agent runs it.

        Otherwise the claim was a takeover, or an earlier one has run the agent, which must not begin again.
        """
        last = await self._store.read(turn.id, turn.last_position - 1, 1)
        fold = await fold_log(self._store, turn.id)
        return not any(logged.epoch == turn.epoch - 1 and is_queued_by(logged, fold) for logged in last)

    async def _commanded_stops(self, worker: str) -> dict[str, Stop]:
        try:
            commands = await self._store.commands(worker)
        except StoreError as error:
            # The turns are claimed, so this must go on; a turn that is continued gets its command at the next renewal.
            logger.warning("commands to turns of lost workers could not be read: %s", error)
            return {}
        return {command.turn_id: cancelled(command.reason) for command in commands}


async def _log_failure(action: Coroutine[Any, Any, object], failure: str) -> None:
    """Run an action that is repeated later anyway, so that its failure does not end the loop that runs it."""
    try:
        await action
    except StoreError as error:
        logger.warning("%s: %s", failure, error)
    except Exception:
        logger.exception("%s", failure)


async def _cancel(tasks: Iterable[asyncio.Task[None]]) -> None:
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    if tasks:
        # Bounded, since an agent that was left behind may never end.
        await asyncio.wait(tasks, timeout=_SHUTDOWN_PATIENCE_SECONDS)
