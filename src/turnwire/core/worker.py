"""Runs turns in this process: claims them, keeps its lease, obeys commands, and picks up after workers that died.

The store says which turns may run, so that any number of processes can do this at once. `execution` is how a single
turn runs; this is who runs what.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from time import monotonic
from typing import Any

from turnwire.core import metrics
from turnwire.core.budget import Limits, Spending, UsageMeter
from turnwire.core.cancellation import SHUTDOWN, WORKER_LOST, Stop, cancelled
from turnwire.core.contracts import RUNNABLE, Agent, HistorySource, Store
from turnwire.core.errors import FencedError, StoreError, TurnEndedError, TurnNotFoundError, TurnTakenError
from turnwire.core.execution import Execution
from turnwire.core.ids import new_id
from turnwire.core.log import TurnLog
from turnwire.core.recovery import may_go_on, set_aside
from turnwire.core.turns import TurnRecord

logger = logging.getLogger("turnwire.runner")

_SHUTDOWN_PATIENCE_SECONDS = 0.3
# A worker that has not renewed its lease for this part of it must stop: another may soon have its turns.
_SAFE_PART = 0.8


class TurnWorker:
    """`ended` is called with the id of a turn that has ended here; `chores` are done each time the lease is renewed."""

    def __init__(
        self,
        store: Store,
        agents: Mapping[str, Agent],
        limits: Limits,
        historian: HistorySource,
        spending: Spending,
        ended: Callable[[str], None],
        chores: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        self.id = new_id()
        self.running: dict[str, Execution] = {}
        self._store = store
        self._agents = agents
        self._limits = limits
        self._historian = historian
        self._spending = spending
        self._ended = ended
        self._chores = chores
        self._name = f"{socket.gethostname()}:{os.getpid()}"
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False
        self._wanted = asyncio.Event()
        self._is_commanded = True
        # Whoever claims a turn has it in `running` before anybody else looks there.
        self._claiming = asyncio.Lock()
        self._safe_until = 0.0
        self._lost_ids: list[str] = []
        self._unwatch: list[Callable[[], None]] = []
        self._loops: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Closes what a dead process left running, or takes it up, and goes on with what it left queued."""
        await self._renew()
        await self._take_over()
        self._watch()
        self._loops = [asyncio.create_task(self._work()), asyncio.create_task(self._keep_lease())]
        if self._store.is_shared:
            self._loops.append(asyncio.create_task(self._guard_lease()))
        self.look()

    def look(self, *, for_commands: bool = False) -> None:
        """There may be something to run, or to stop."""
        self._is_commanded = self._is_commanded or for_commands
        self._wanted.set()

    async def end(self, turn_id: str, stop: Stop) -> Execution:
        """Ends a turn that runs here, or that nobody runs. Raises TurnEndedError, TurnTakenError, TurnNotFoundError."""
        async with self._claiming:
            execution = self.running.get(turn_id)
            if execution is not None:
                execution.stop(stop)
                return execution
            return self._execute(await self._store.claim(turn_id, self.id), stop)

    @property
    def has_left_behind(self) -> bool:
        return any(not task.done() for task in self._tasks)

    async def drain(self, grace_seconds: float) -> None:
        """Claims no more, and lets what runs finish for a while. What can go on elsewhere is left to others, when its
        next step has ended and at the latest then; the rest is ended as interrupted.
        """
        self._draining = True
        async with self._claiming:
            pass  # What was being claimed is running now.
        for execution in self.running.values():
            execution.hand_back()
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(1):
                await self._renew()  # So that everybody knows.
        try:
            async with asyncio.timeout(grace_seconds):
                await self._idle.wait()
        except TimeoutError:
            for execution in list(self.running.values()):
                execution.stop(SHUTDOWN, patience=_SHUTDOWN_PATIENCE_SECONDS)
            await self._idle.wait()

    async def close(self) -> None:
        self._draining = True
        for unwatch in self._unwatch:
            unwatch()
        await _cancel(self._loops)
        await _cancel(self._tasks)
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(1):
                await self._store.retire(self.id)

    def _watch(self) -> None:
        for unwatch in self._unwatch:
            unwatch()
        self._unwatch = [
            self._store.watch(RUNNABLE, lambda _: self.look()),
            self._store.watch(self.id, lambda _: self.look(for_commands=True)),
        ]

    # Claiming and obeying

    async def _work(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            if self._is_commanded:
                self._is_commanded = False
                await _tried(self._obey(), "commands could not be obeyed")
            await _tried(self._claim_more(), "turns could not be claimed")

    async def _obey(self) -> None:
        for command in await self._store.commands(self.id):
            with suppress(TurnEndedError, TurnTakenError, TurnNotFoundError):
                await self.end(command.turn_id, cancelled(command.reason))

    async def _claim_more(self) -> None:
        async with self._claiming:
            free = self._limits.max_worker_turns - len(self.running)
            if self._draining or free <= 0 or not self._is_safe:
                return
            worker = self.id
            claimed = await self._store.claim_next(worker, free)
            if worker != self.id:
                # The lease ran out before the answer came. They are a lost worker's now, and taken over as such.
                return
            for record in claimed:
                self._execute(record)
        if claimed:
            self.look()  # There may be more than were given at once.

    def _execute(self, record: TurnRecord, stop: Stop | None = None) -> Execution:
        execution = Execution(
            self._store,
            self._agents.get(record.agent),
            record,
            self._limits,
            self._release,
            self._historian,
            UsageMeter(record, self._limits.max_steps_per_turn, self._spending),
        )
        if stop is not None:
            execution.stop(stop)
        self.running[record.id] = execution
        self._idle.clear()
        task = asyncio.create_task(execution.run(), name=f"turn {record.id}")
        execution.task = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return execution

    def _release(self, execution: Execution) -> None:
        # An agent that will not stop keeps its task, but not its session.
        if self.running.get(execution.turn_id) is execution:
            del self.running[execution.turn_id]
        if not self.running:
            self._idle.set()
        if not execution.is_set_aside:
            self._ended(execution.turn_id)
        self.look()  # There is room for another.

    # The lease

    async def _renew(self) -> None:
        asked = monotonic()
        await self._store.renew(self.id, name=self._name, draining=self._draining)
        self._safe_until = asked + _SAFE_PART * self._limits.lease

    @property
    def _is_safe(self) -> bool:
        return monotonic() < self._safe_until or not self._store.is_shared

    async def _keep_lease(self) -> None:
        while True:
            await asyncio.sleep(self._limits.lease / 4)
            await _tried(self._renew(), "the lease could not be renewed")
            if self._is_safe:
                await _tried(self._take_over(), "turns of lost workers could not be taken over")
                await _tried(self._chores(), "the turns that wait could not be looked after")
                self.look(for_commands=True)

    async def _guard_lease(self) -> None:
        """Lets go of everything when others may think that this worker is dead."""
        while True:
            await asyncio.sleep(max(0.02, self._safe_until - monotonic()))
            if not self._is_safe and self.running:
                logger.error("the lease of worker %s ran out; its %d turns are let go", self.id, len(self.running))
                for execution in list(self.running.values()):
                    execution.abandon()
                # Those turns are the old worker's. With its name, this one would keep them from being taken over.
                self._lost_ids.append(self.id)
                self.id = new_id()
                self._watch()

    async def _take_over(self) -> None:
        while self._lost_ids:
            await self._store.retire(self._lost_ids[-1])
            self._lost_ids.pop()
        if self._draining:
            return
        for record in await self._store.take_over(self.id):
            metrics.TAKEOVERS.add()
            if not await self._set_lost_aside(record):
                await self._close_lost(record)

    async def _set_lost_aside(self, record: TurnRecord) -> bool:
        """Leaves it to whoever has room for it. False if it must be closed."""
        agent = self._agents.get(record.agent)
        if agent is None or not may_go_on(agent, WORKER_LOST):
            return False
        log = TurnLog(self._store, record, self._limits)
        await log.restore()
        try:
            goes_on = await set_aside(log, self._store, agent, self._limits, WORKER_LOST)
        except FencedError:
            return True  # Somebody else has it.
        except StoreError:
            logger.exception("turn %s of a lost worker could not be taken up", record.id)
            return False
        if goes_on:
            logger.warning("turn %s goes on from its last step: its worker was lost", record.id)
        return goes_on

    async def _close_lost(self, record: TurnRecord) -> None:
        log = TurnLog(self._store, record, self._limits)
        await log.restore()
        try:
            await log.end(WORKER_LOST.outcome, reason=WORKER_LOST.reason, error=WORKER_LOST.error)
        except (StoreError, TurnEndedError):
            logger.exception("turn %s of a lost worker could not be closed", record.id)
        else:
            logger.warning("turn %s was interrupted: its worker was lost", record.id)
            self._ended(record.id)


async def _tried(doing: Coroutine[Any, Any, None], failure: str) -> None:
    """What fails is tried again with the next renewal; the task that does it must live."""
    try:
        await doing
    except StoreError as error:
        logger.warning("%s: %s", failure, error)
    except Exception:
        logger.exception("%s", failure)


async def _cancel(tasks: "set[asyncio.Task[None]] | list[asyncio.Task[None]]") -> None:
    for task in list(tasks):
        task.cancel()
    if tasks:
        # Not for ever: an agent that was left behind may never end.
        await asyncio.wait(list(tasks), timeout=_SHUTDOWN_PATIENCE_SECONDS)
