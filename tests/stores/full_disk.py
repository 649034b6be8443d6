"""The check of a full disk, on a real one: run as `python -m tests.stores.full_disk FOLDER`.

`check_full_disk` takes functions that fill the disk and make room again, so it can run on a simulated disk too.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from tests.contracts.turns import ended, followed, started, whole_log
from tests.core.desk import Gate, open_desk
from turnwire.core.errors import StoreFullError
from turnwire.core.log.events import DoneEvent, ErrorEvent
from turnwire.core.log.turns import Turn
from turnwire.stores.sqlite import SqliteStore
from turnwire.stores.sqlite.disk import BALLAST_NAME


async def check_full_disk(store: SqliteStore, fill: Callable[[], None], make_room: Callable[[], None]) -> None:
    gate = Gate()

    async def chatty(turn: Turn) -> AsyncIterator[str]:
        yield "before"
        await gate.wait()
        for number in range(100_000):
            yield f"{number} " + "x" * 100
            await asyncio.sleep(0)

    earlier = await ended(store)
    async with open_desk(store, chatty) as desk:
        turn = await desk.start()
        await gate.reached()
        fill()
        gate.open()
        log = await followed(store, turn.id)
        error, done = log[-2].event, log[-1].event
        assert isinstance(error, ErrorEvent), error
        assert (error.code, error.retryable) == ("disk_full", True)
        assert isinstance(done, DoneEvent)
        assert (done.outcome, done.reason) == ("failed", "disk_full")
        assert [logged.position for logged in log] == list(range(1, len(log) + 1))

        # New turns are refused, and old ones can be read.
        for _ in range(2):
            try:
                await started(store, session_id=earlier.session_id)
            except StoreFullError:
                continue
            raise AssertionError("a turn was accepted on a full disk")
        assert len(await whole_log(store, earlier.id)) == earlier.last_position
        assert (await store.find_turn("ann", turn.id)).outcome == "failed"

        make_room()
        again = await desk.start(session_id=earlier.session_id)
        await followed(store, again.id, count=3)
        await desk.cancel(again)
        assert (await desk.end(again)).outcome == "cancelled"


async def main(folder: Path) -> None:
    store = SqliteStore(folder / "data")
    await store.open()
    ballast, filler = folder / "data" / BALLAST_NAME, folder / "filler"
    assert ballast.exists()

    def fill() -> None:
        with filler.open("wb", buffering=0) as file:
            for size in (1 << 20, 1 << 12, 1):
                try:
                    while file.write(bytes(size)):
                        pass
                except OSError:
                    continue

    await check_full_disk(store, fill, filler.unlink)
    assert ballast.exists(), "the ballast must be restored"
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
