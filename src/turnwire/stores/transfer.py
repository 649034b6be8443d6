"""The move of everything from one store to another, exactly as it is.

A turn is moved in one transaction, so an interrupted move is simply started again and continues with what is missing.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol

from msgspec import Struct

from turnwire.core.contracts.stores import Annotation, ApiKey, Command
from turnwire.core.errors import StoreError
from turnwire.core.log.files import Blob
from turnwire.core.log.turns import Session, TurnRecord

_STEP = 50


class MovingTurn(Struct, frozen=True, kw_only=True):
    """All that a store has of a turn.

    `lines` is its log (see `stores.lines`) from `record.first_kept` on, `calls` its journal. `seal` is None for a log
    that is not sealed. `digests` are the files that it needs.
    """

    record: TurnRecord
    idempotency_key: str | None
    fingerprint: str
    lines: bytes
    calls: bytes
    seal: bytes | None
    state: bytes | None
    command: Command | None
    digests: Sequence[str] = ()


class TokensSpent(Struct, frozen=True):
    principal: str
    day: int
    tokens: int


class PluginTable(Struct, frozen=True, kw_only=True):
    """A table of a plugin (see `TableStore`), with the statement that creates it and its rows."""

    name: str
    statement: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


class TransferSource(Protocol):
    async def count_turns(self) -> int: ...
    async def sessions_after(self, session_id: str, limit: int) -> list[Session]: ...
    def blobs_of(self, session_id: str) -> AsyncIterator[Blob]: ...
    async def turns_after(self, number: int, limit: int) -> list[tuple[int, MovingTurn]]:
        """Return turns with their numbers, in the order of acceptance."""
        ...

    async def plugin_tables(self) -> list[PluginTable]: ...
    async def annotations(self) -> list[Annotation]: ...
    async def spent(self) -> list[TokensSpent]: ...
    async def list_keys(self) -> list[ApiKey]: ...


class TransferTarget(Protocol):
    async def missing_turns(self, turn_ids: Sequence[str]) -> set[str]: ...
    async def take_sessions(self, sessions: Sequence[Session]) -> None: ...
    async def take_blob(self, session_id: str, blob: Blob) -> None: ...
    async def take_turns(self, turns: Sequence[MovingTurn]) -> None: ...
    async def take_plugin_table(self, table: PluginTable) -> int:
        """Insert the rows that are missing, and return their number."""
        ...

    async def take_annotations(self, annotations: Sequence[Annotation]) -> None: ...
    async def take_spent(self, spent: Sequence[TokensSpent]) -> None: ...
    async def take_keys(self, keys: Sequence[ApiKey]) -> None: ...
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
    last = ""
    while sessions := await source.sessions_after(last, _STEP):
        await target.take_sessions(sessions)
        for session in sessions:
            async for blob in source.blobs_of(session.id):
                await target.take_blob(session.id, blob)
        last = sessions[-1].id
    number = 0
    while batch := await source.turns_after(number, _STEP):
        number = batch[-1][0]
        missing = await target.missing_turns([turn.record.id for _, turn in batch])
        turns = [turn for _, turn in batch if turn.record.id in missing]
        await target.take_turns(turns)
        for turn in turns:
            if await target.lines_of(turn.record.id) != (turn.lines, turn.calls):
                raise StoreError(
                    f"the log of turn {turn.record.id!r} differs after the move; keep the folder, and report it"
                )
        moved.turns += len(turns)
        moved.there_before += len(batch) - len(turns)
        report(moved)
    for table in await source.plugin_tables():
        moved.plugin_rows += await target.take_plugin_table(table)
    await target.take_annotations(await source.annotations())
    # Keys come last, so that no client can use the target before it is complete.
    await target.take_spent(await source.spent())
    await target.take_keys(await source.list_keys())
    return moved
