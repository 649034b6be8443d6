"""A running turn on a real server, whose log a test writes: for clients that are cut off in its middle."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.contracts.turns import claimed
from tests.serving import Served, quick_settings, saying, serving, within
from turnwire import Turnwire
from turnwire.core.contracts.stores import AppendRequest
from turnwire.core.log.codec import LoggedEvent, log_event
from turnwire.core.log.events import DoneEvent, Event
from turnwire.core.log.state import TurnFold
from turnwire.core.log.turns import TurnRecord
from turnwire.stores.memory import MemoryStore

_LEASE_SECONDS = 3_600


class ServedLog:
    """The turn, its server, and an API key of its owner. `watched` is set when a client begins to follow it."""

    def __init__(self, server: Served, store: MemoryStore, record: TurnRecord, key: str) -> None:
        self.server = server
        self.key = key
        self.turn_id = record.id
        self.session_id = record.session_id
        self.watched = asyncio.Event()
        self._store = store
        self._fold = TurnFold()
        self._watch = store.watch
        store.watch = self._note_watch

    def _note_watch(self, key: str, wake: Any) -> Callable[[], None]:
        if key == self.turn_id:
            self.watched.set()
        return self._watch(key, wake)

    async def open(self) -> None:
        for logged in await self._store.read(self.turn_id, 0, 10):
            self._fold.add(logged)

    async def write(self, events: Sequence[Event]) -> list[LoggedEvent]:
        """Commit events in one step; `done` ends the turn."""
        if not events:
            return []
        logged = [log_event(event, at, 1) for at, event in enumerate(events, self._fold.position + 1)]
        for event in logged:
            self._fold.add(event)
        committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def settle(count: int, error: Exception | None) -> None:
            committed.set_result(None) if error is None else committed.set_exception(error)

        state = self._fold.state() if isinstance(events[-1], DoneEvent) else None
        self._store.append(AppendRequest(self.turn_id, 1, logged, settle, state))
        await within(committed)
        return logged


@asynccontextmanager
async def served_log() -> AsyncIterator[ServedLog]:
    """Serve a turn that has begun, until the block ends."""
    store = MemoryStore(lease=_LEASE_SECONDS)
    with TemporaryDirectory() as folder:
        turnwire = Turnwire(saying("Hello."), store=store, settings=quick_settings(Path(folder)))
        async with serving(turnwire) as server:
            _, key = await turnwire.keys.create("ann", ("read", "write"))
            log = ServedLog(server, store, await claimed(store), key)
            await log.open()
            yield log
