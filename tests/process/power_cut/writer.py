"""A program that writes turns to an SQLite store, and notes in the file `acknowledged` what the store has taken."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from tests.contracts.turns import claimed
from turnwire.core.errors import StoreError
from turnwire.core.log.events import TokenEvent
from turnwire.core.log.turn_log import TurnLog
from turnwire.core.log.turns import TurnRecord
from turnwire.core.people.budget import Limits
from turnwire.stores.sqlite import SqliteStore

_TURNS = 6
_EVENTS = 25


async def main(folder: Path) -> None:
    store = SqliteStore(folder / "data")
    await store.open()
    notes, offset = os.open(folder / "acknowledged", os.O_WRONLY | os.O_CREAT, 0o600), 0

    def note(turn_id: str, position: int) -> None:
        nonlocal offset
        offset += os.pwrite(notes, f"{turn_id} {position}\n".encode(), offset)

    async def write(number: int, record: TurnRecord) -> None:
        log = TurnLog(store, record, Limits())
        await log.restore()
        while log.position < _EVENTS:
            position = log.position + 1
            try:
                log.append(TokenEvent(f"{position} " * (1 + 200 * (position % 7 == number))))
                await log.flush()
                note(record.id, position)
                if position % 9 == number:
                    await store.maintain(expire_before=0)
            except StoreError:
                await _until_it_works(log.rewind)

    records = [await claimed(store) for _ in range(_TURNS)]
    for record in records:
        note(record.id, record.last_position)
    (folder / "faults_begin").touch()
    await asyncio.gather(*(write(number, record) for number, record in enumerate(records)))
    with suppress(StoreError):
        await store.close()


async def _until_it_works(action: Callable[[], Awaitable[None]]) -> None:
    for _ in range(1_000):
        try:
            return await action()
        except StoreError:
            continue
    raise AssertionError("the store has not recovered from faults that pass")


asyncio.run(main(Path(sys.argv[1])))
