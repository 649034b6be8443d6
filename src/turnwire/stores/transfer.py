"""Moving everything from one store to another: exactly as it is, in steps that can be repeated.

A turn is moved whole, in one transaction, or not at all. So a move that was broken off is simply started again, and
goes on with what is not there yet.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from turnwire.core.contracts import ApiKey, Command
from turnwire.core.errors import StoreError
from turnwire.core.turns import Session, TurnRecord

_STEP = 50


class MovingTurn(Struct, frozen=True, kw_only=True):
    """All that a store has of a turn. `lines` is its log (`lines`), from the position `record.first_kept` on."""

    record: TurnRecord
    idempotency_key: str | None
    fingerprint: str
    lines: bytes
    state: bytes | None
    checkpoint: bytes | None
    command: Command | None


class TokensSpent(Struct, frozen=True):
    principal: str
    day: int
    tokens: int


class TransferSource(Protocol):
    async def count_turns(self) -> int: ...
    async def sessions_after(self, session_id: str, limit: int) -> list[Session]: ...
    async def turns_after(self, number: int, limit: int) -> list[tuple[int, MovingTurn]]:
        """With the number of each, in the order they were accepted."""
        ...

    async def spent(self) -> list[TokensSpent]: ...
    async def list_keys(self) -> list[ApiKey]: ...


class TransferTarget(Protocol):
    async def missing_turns(self, turn_ids: Sequence[str]) -> set[str]: ...
    async def take_sessions(self, sessions: Sequence[Session]) -> None: ...
    async def take_turns(self, turns: Sequence[MovingTurn]) -> None: ...
    async def take_spent(self, spent: Sequence[TokensSpent]) -> None: ...
    async def take_keys(self, keys: Sequence[ApiKey]) -> None: ...
    async def lines_of(self, turn_id: str) -> bytes:
        """The log as it is kept now, to be compared."""
        ...


class Moved(Struct):
    turns: int = 0
    there_before: int = 0


async def move(source: TransferSource, target: TransferTarget, tell: Callable[[Moved], None]) -> Moved:
    """Raises StoreError, also if what was written reads otherwise than it should."""
    moved = Moved()
    last = ""
    while sessions := await source.sessions_after(last, _STEP):
        await target.take_sessions(sessions)
        last = sessions[-1].id
    number = 0
    while found := await source.turns_after(number, _STEP):
        number = found[-1][0]
        missing = await target.missing_turns([turn.record.id for _, turn in found])
        turns = [turn for _, turn in found if turn.record.id in missing]
        await target.take_turns(turns)
        for turn in turns:
            if await target.lines_of(turn.record.id) != turn.lines:
                raise StoreError(f"the log of turn {turn.record.id!r} was not moved as it is; this should not happen")
        moved.turns += len(turns)
        moved.there_before += len(found) - len(turns)
        tell(moved)
    # At the end, so that nobody with a key comes before everything is there.
    await target.take_spent(await source.spent())
    await target.take_keys(await source.list_keys())
    return moved
