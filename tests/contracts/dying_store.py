"""A store whose process dies after a number of events and journal entries, and a turn that is run over it."""

import asyncio
from collections import Counter
from contextlib import suppress
from typing import Any

from msgspec import Struct

from tests.contracts.turns import BOUND, whole_log
from tests.core.desk import Desk, completed_answer, lose_worker, open_actor_desk, wait_until_suspended
from turnwire.core.contracts.stores import AppendRequest, JournalEntry, Refusal
from turnwire.core.errors import FencedError, TurnNotWaitingError
from turnwire.core.log.events import ApprovalRequestEvent
from turnwire.core.log.state import TurnFold
from turnwire.core.log.turns import TurnRecord, TurnState
from turnwire.stores.memory import MemoryStore

# A model call that broke off may have written some of these already.
_UNCOMPARED = ("token", "reasoning", "usage", "restart", "status")


class DyingStore(MemoryStore):
    """Commits `lifetime` events and entries, each in the order in which it was written; drops the rest of that epoch.

    A commit of a real store may end after any of them, because it depends on time how many one commit takes.
    """

    def __init__(self, lifetime: int | None = None) -> None:
        super().__init__()
        self.died = asyncio.Event()
        self.committed = 0
        self._lifetime = lifetime
        self._dead_epoch: int | None = None
        self._unsettled = 0
        self._dropped: list[AppendRequest] = []

    def append(self, request: AppendRequest) -> None:
        asyncio.get_running_loop().call_soon(self._pass_on, request)

    def _pass_on(self, request: AppendRequest) -> None:
        request.is_taken = True
        if request.epoch == self._dead_epoch:
            self._dropped.append(request)
            return
        size = len(request.events) + len(request.entries)
        if self._lifetime is None or self._dead_epoch is not None or self.committed + size <= self._lifetime:
            self._forward(request)
            return
        self._dead_epoch = request.epoch
        self._dropped.append(request)
        self._forward(_beginning(request, self._lifetime - self.committed))

    def refuse_dropped(self) -> None:
        """End what still waits for a commit in the dead process."""
        for request in self._dropped:
            request.settle(0, FencedError(request.turn_id))

    def _forward(self, request: AppendRequest) -> None:
        self.committed += len(request.events) + len(request.entries)
        self._unsettled += 1

        def settle(count: int, error: Refusal | None) -> None:
            self._unsettled -= 1
            request.settle(count, error)
            if self._dead_epoch is not None and not self._unsettled:
                self.died.set()

        if request.events or request.entries or request.new_phase:
            fields = {name: getattr(request, name) for name in ("ending", "waiting_until", "release", "entries")}
            super().append(AppendRequest(request.turn_id, request.epoch, request.events, settle, **fields))
        else:
            settle(0, None)


def _beginning(request: AppendRequest, size: int) -> AppendRequest:
    if request.new_phase:
        size = 0  # A change of the phase is one step with the events that belong to it.
    # An entry comes after the event at its position.
    order = [*((event.position, 0) for event in request.events), *((entry.position, 1) for entry in request.entries)]
    kept = sorted(order)[:size]
    events = [event for event in request.events if (event.position, 0) in kept]
    entries = request.entries[: len(kept) - len(events)]
    return AppendRequest(request.turn_id, request.epoch, events, lambda *_: None, entries=entries)


class Death(Struct):
    """The journal of a turn when its worker died, and what had been done by then."""

    entries: list[JournalEntry]
    requests: int
    done: dict[str, int]

    def finished(self, kind: str) -> list[JournalEntry]:
        started = {entry.key: entry for entry in self.entries if entry.state == "started" or entry.kind == "step"}
        return [started[entry.key] for entry in self.entries if entry.state == "finished" and entry.kind == kind]


class Outcome(Struct):
    session_id: str
    answer: str
    state: TurnState
    events: Counter[str]
    """The valid events that no restart repeats, by their type; those of agents by their name."""
    death: Death | None = None


async def run_turn(agent: Any, server: Any, done: dict[str, int], lifetime: int | None = None) -> Outcome:
    """Run a turn whose first worker dies after `lifetime` events and entries, and whose second one continues it.

    Everything that a person is asked about is approved.
    """
    store, death = DyingStore(lifetime), None
    async with open_actor_desk(store, agent) as desk:
        turn = await desk.start("Go")
        if lifetime is None:
            return await _outcome(desk, turn, None)
        ended = asyncio.create_task(_outcome(desk, turn, None))
        died = asyncio.create_task(store.died.wait())
        await asyncio.wait({ended, died}, timeout=BOUND, return_when=asyncio.FIRST_COMPLETED)
        died.cancel()
        if ended.done():
            return await ended
        ended.cancel()
        await asyncio.wait({ended})
        await lose_worker(desk)
        store.refuse_dropped()
        death = Death(await store.journal(turn.id), len(server.requests), dict(done))
    async with open_actor_desk(store, agent) as desk:
        return await _outcome(desk, turn, death)


async def _outcome(desk: Desk, turn: TurnRecord, death: Death | None) -> Outcome:
    approving = asyncio.create_task(_approve_all(desk, turn))
    try:
        answer = await completed_answer(desk, turn)
    finally:
        approving.cancel()
        await asyncio.wait({approving})
    fold, log = TurnFold(), await whole_log(desk.store, turn.id)
    for logged in log:
        fold.add(logged)
    valid = [logged for logged in log if not fold.restarts.is_void(logged.position) and logged.type not in _UNCOMPARED]
    events = Counter(f"{logged.type} {getattr(logged.event, 'name', '')}" for logged in valid)
    return Outcome(turn.session_id, answer, fold.state(), events, death)


async def _approve_all(desk: Desk, turn: TurnRecord) -> None:
    decided: set[tuple[int, str]] = set()
    while True:
        await wait_until_suspended(desk, turn)
        for logged in await whole_log(desk.store, turn.id):
            if isinstance(logged.event, ApprovalRequestEvent):
                request = logged.position, logged.event.call_id
                if request not in decided:
                    decided.add(request)
                    with suppress(TurnNotWaitingError):  # Decided before the worker died.
                        await desk.runner.decide(turn.id, logged.event.call_id, approved=True)
