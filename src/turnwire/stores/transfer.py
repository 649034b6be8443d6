"""The move of everything from one store to another, exactly as it is.

A turn is moved in one transaction, so an interrupted move is simply started again and continues with what is missing.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from turnwire.core.errors import StoreError
from turnwire.core.log.turns import Phase
from turnwire.stores.admission import TURN_COLUMNS
from turnwire.stores.database import Row

_STEP = 50
_BEFORE_TURNS = ("session", "blob")
_AFTER_TURNS = ("annotation", "spending", "api_key")
"""Keys come last, so that no client can use the target before it is complete."""


TURN_ROW = (
    *(*TURN_COLUMNS, "first_kept", "outcome", "worker", "epoch", "last_position", "started_at", "waiting_until"),
    *("ended_at", "folded_answer", "state"),
)
"""The columns of `turn` that both databases have."""


class MovingTurn(Struct, frozen=True, kw_only=True):
    """All that a store has of a turn.

    `row` has the columns of `TURN_ROW`, `lines` the log (see `stores.lines`) from `first_kept` on, `calls` the journal.
    `seal` is None for a log that is not sealed, `command` its kind and reason. `digests` are the files that it needs.
    """

    row: Mapping[str, Any]
    phase: Phase
    lines: bytes
    calls: bytes
    seal: bytes | None
    command: tuple[str, str] | None
    digests: Sequence[str] = ()


class MovingTable(Struct, frozen=True, kw_only=True):
    """A table whose rows are moved as they are. `statement` creates that of a plugin (see `TableStore`)."""

    name: str
    columns: Sequence[str]
    statement: str | None = None


class TransferSource(Protocol):
    async def open(self) -> None:
        """Open it. Raises StoreUnusableError."""
        ...

    async def close(self) -> None: ...
    async def count_turns(self) -> int: ...
    async def turns_after(self, number: int, limit: int) -> list[tuple[int, MovingTurn]]:
        """Return turns with their numbers, in the order of acceptance."""
        ...

    async def table(self, name: str) -> MovingTable:
        """Return a table that both stores have."""
        ...

    async def plugin_tables(self) -> list[MovingTable]: ...
    def pages(self, table: MovingTable) -> AsyncIterator[list[Row]]:
        """Yield some rows at a time, in the order in which they were inserted."""
        ...


class TransferTarget(Protocol):
    async def open(self) -> None:
        """Open it. Raises StoreUnusableError."""
        ...

    async def close(self) -> None: ...
    async def missing_turns(self, turn_ids: Sequence[str]) -> set[str]: ...
    async def take_turns(self, turns: Sequence[MovingTurn]) -> None: ...
    async def take_rows(self, table: MovingTable, rows: Sequence[Row]) -> int:
        """Insert the rows that are missing, and return their number."""
        ...

    async def lines_of(self, turn_id: str) -> tuple[bytes, bytes]:
        """Return the stored log and journal, for comparison."""
        ...


class Moved(Struct):
    turns: int = 0
    there_before: int = 0
    plugin_rows: int = 0


async def move(source: TransferSource, target: TransferTarget, report: Callable[[Moved], None]) -> Moved:
    """Move everything, and call `report` after each step. Raises StoreError, also if a log differs after the move."""
    moved = Moved()
    for name in _BEFORE_TURNS:
        await _move_table(source, target, await source.table(name))
    number = 0
    while batch := await source.turns_after(number, _STEP):
        number = batch[-1][0]
        missing = await target.missing_turns([turn.row["id"] for _, turn in batch])
        turns = [turn for _, turn in batch if turn.row["id"] in missing]
        await target.take_turns(turns)
        for turn in turns:
            if await target.lines_of(turn.row["id"]) != (turn.lines, turn.calls):
                raise StoreError(
                    f"the log of turn {turn.row['id']!r} differs after the move; keep the folder, and report it"
                )
        moved.turns += len(turns)
        moved.there_before += len(batch) - len(turns)
        report(moved)
    for table in await source.plugin_tables():
        moved.plugin_rows += await _move_table(source, target, table)
    for name in _AFTER_TURNS:
        await _move_table(source, target, await source.table(name))
    return moved


async def _move_table(source: TransferSource, target: TransferTarget, table: MovingTable) -> int:
    return sum([await target.take_rows(table, page) async for page in source.pages(table)])
