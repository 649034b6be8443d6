"""A store whose process dies after a number of events and journal entries, and a run of a turn over every such death."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct

from tests.contracts.turns import BOUND, whole_log
from tests.core.desk import Desk, completed_answer, lose_worker, open_actor_desk
from turnwire.core.contracts import AppendRequest, JournalEntry, Refusal
from turnwire.core.state import TurnFold
from turnwire.core.turns import TurnRecord, TurnState
from turnwire.stores.memory import MemoryStore


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
        self._commit, self.append = self.append, self._take

    def _take(self, request: AppendRequest) -> None:
        asyncio.get_running_loop().call_soon(self._pass_on, request)

    def _pass_on(self, request: AppendRequest) -> None:
        request.is_taken = True
        if request.epoch == self._dead_epoch:
            return
        size = len(request.events) + len(request.entries)
        if self._lifetime is None or self._dead_epoch is not None or self.committed + size <= self._lifetime:
            self._forward(request)
            return
        self._dead_epoch = request.epoch
        self._forward(_beginning(request, self._lifetime - self.committed))

    def _forward(self, request: AppendRequest) -> None:
        self.committed += len(request.events) + len(request.entries)
        self._unsettled += 1

        def settle(count: int, error: Refusal | None) -> None:
            self._unsettled -= 1
            request.settle(count, error)
            if self._dead_epoch is not None and not self._unsettled:
                self.died.set()

        if request.events or request.entries or request.new_phase:
            fields = {name: getattr(request, name) for name in ("ending", "suspension", "release", "entries")}
            self._commit(AppendRequest(request.turn_id, request.epoch, request.events, settle, **fields))
        else:
            settle(0, None)


def _beginning(request: AppendRequest, size: int) -> AppendRequest:
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
        started = {entry.key: entry for entry in self.entries if entry.state == "started"}
        return [started[entry.key] for entry in self.entries if entry.state == "finished" and entry.kind == kind]


class Outcome(Struct):
    answer: str
    state: TurnState
    death: Death | None = None


Decide = Callable[[Desk, TurnRecord], Awaitable[None]]


async def run_turn(
    agent: Any, server: Any, done: dict[str, int], lifetime: int | None = None, decide: Decide | None = None
) -> Outcome:
    """Run a turn whose first worker dies after `lifetime` events and entries, and whose second one continues it."""
    store, death = DyingStore(lifetime), None
    async with open_actor_desk(store, agent) as desk:
        turn = await desk.start("Go")
        if lifetime is None:
            return await _outcome(desk, turn, None, decide)
        ended = asyncio.create_task(_outcome(desk, turn, None, decide))
        died = asyncio.create_task(store.died.wait())
        await asyncio.wait({ended, died}, timeout=BOUND, return_when=asyncio.FIRST_COMPLETED)
        died.cancel()
        if ended.done():
            return await ended
        ended.cancel()
        await asyncio.wait({ended})
        await lose_worker(desk)
        death = Death(await store.journal(turn.id), len(server.requests), dict(done))
    async with open_actor_desk(store, agent) as desk:
        return await _outcome(desk, turn, death, decide)


async def _outcome(desk: Desk, turn: TurnRecord, death: Death | None, decide: Decide | None) -> Outcome:
    deciding = asyncio.create_task(decide(desk, turn)) if decide else None
    try:
        answer = await completed_answer(desk, turn)
    finally:
        if deciding is not None:
            deciding.cancel()
            await asyncio.wait({deciding})
    fold = TurnFold()
    for logged in await whole_log(desk.store, turn.id):
        fold.add(logged)
    return Outcome(answer, fold.state(), death)
