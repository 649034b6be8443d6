"""The verification of ended turns: their logs and journals are compared with their seals (see `core.log.seals`)."""

import hashlib
import hmac
import zlib
from collections.abc import Sequence
from typing import Literal, Protocol

from msgspec import Struct

from turnwire.core.contracts.stores import JournalEntry, Seal
from turnwire.core.errors import StoreError, TurnwireError
from turnwire.core.log.codec import LoggedEvent
from turnwire.core.log.follow import PAGE
from turnwire.core.log.seals import MARK_BYTES, digest_lines, marks_digest, signature_of
from turnwire.core.log.state import fold_events
from turnwire.core.log.turns import TurnRecord, TurnState
from turnwire.stores.lines import to_entry_lines, to_lines


class Verdict(Struct, frozen=True, kw_only=True):
    """The result of a verification.

    `gap` is an intact turn whose events have expired, `unsealed` one that has no seal (yet). A `broken` one differs
    from its seal: `problem` says how, and `position` is the first position of the log, or the first entry of the
    journal, that was changed, dropped or swapped, if it is known.
    """

    turn_id: str
    state: Literal["intact", "gap", "unsealed", "broken"]
    is_signed: bool = False
    problem: str | None = None
    position: int | None = None
    sealed_at: int | None = None


class SealedSource(Protocol):
    """The part of a store that verification reads."""

    async def read(self, turn_id: str, after: int, limit: int) -> list[LoggedEvent]: ...
    async def journal(self, turn_id: str) -> list[JournalEntry]: ...
    async def seal(self, turn_id: str) -> Seal | None: ...
    async def turn_state(self, turn_id: str) -> TurnState | None: ...


async def verify_turn(store: SealedSource, record: TurnRecord, keys: Sequence[bytes]) -> Verdict:
    """Compare a turn with its seal. With keys, the seal must be signed with one of them."""
    try:
        seal = await store.seal(record.id)
        if seal is None:
            return Verdict(turn_id=record.id, state="unsealed")
        if (problem := _seal_problem(seal, record, keys)) is not None:
            return Verdict(turn_id=record.id, state="broken", problem=problem)
        events: list[LoggedEvent] = []
        position = record.first_kept - 1
        while page := await store.read(record.id, position, PAGE):
            events += page
            position = page[-1].position
        problem, position = _log_problem(seal, record, events, await store.journal(record.id))
        if problem is None:
            problem, position = _state_problem(record, events, await store.turn_state(record.id))
    except StoreError:
        raise
    except (TurnwireError, ValueError, zlib.error) as error:
        # Bytes that were changed may not even be readable.
        return Verdict(turn_id=record.id, state="broken", problem=f"it cannot be read: {error}")
    if problem is not None:
        return Verdict(turn_id=record.id, state="broken", problem=problem, position=position)
    state = "gap" if record.first_kept > 1 else "intact"
    return Verdict(turn_id=record.id, state=state, is_signed=seal.signature is not None, sealed_at=seal.sealed_at)


def _seal_problem(seal: Seal, record: TurnRecord, keys: Sequence[bytes]) -> str | None:
    if seal.turn_id != record.id:
        return f"its seal is that of turn {seal.turn_id}"
    if keys and seal.signature is None:
        return "its seal is not signed"
    if keys and not any(hmac.compare_digest(signature_of(seal, key), seal.signature or "") for key in keys):
        return "the signature of its seal is wrong: the seal was changed, or signed with another key"
    if (seal.log_marks or seal.journal_marks) and seal.marks != marks_digest(seal.log_marks, seal.journal_marks):
        return "the marks of its seal were changed"
    return None


def _log_problem(
    seal: Seal, record: TurnRecord, events: Sequence[LoggedEvent], entries: Sequence[JournalEntry]
) -> tuple[str | None, int | None]:
    """Return what differs, and the first position that does."""
    if record.first_kept > 1:
        is_last = record.first_kept == seal.events and len(events) == 1
        if not is_last or hashlib.sha256(to_lines(events)).hexdigest() != seal.last:
            return "its last event was changed", seal.events
        return None, None
    for name, body, digest, marks in (
        ("log", to_lines(events), seal.log, seal.log_marks),
        ("journal", to_entry_lines(entries), seal.journal, seal.journal_marks),
    ):
        found, found_marks = digest_lines(body)
        if found != digest:
            number = _first_difference(found_marks, marks)
            what = "position" if name == "log" else "entry"
            return f"its {name} was changed, or something was dropped or swapped, from {what} {number} on", number
    return None, None


def _first_difference(found: bytes, sealed: bytes) -> int:
    step = MARK_BYTES
    for number in range(min(len(found), len(sealed)) // step):
        if found[number * step : (number + 1) * step] != sealed[number * step : (number + 1) * step]:
            return number + 1
    return min(len(found), len(sealed)) // step + 1


def _state_problem(
    record: TurnRecord, events: Sequence[LoggedEvent], state: TurnState | None
) -> tuple[str | None, int | None]:
    """Compare what is stored beside the log: the state of the turn, and its record."""
    if record.first_kept > 1:
        return None, None
    fold = fold_events(events)
    folded = fold.state()
    for name, stored, expected in (
        ("message", record.message, fold.message),
        ("outcome", record.outcome, folded.outcome),
        ("last position", record.last_position, folded.position),
        ("answer", state and state.text, folded.text),
        ("citations", state and state.citations, folded.citations),
    ):
        if stored != expected:
            return f"its stored {name} is not that of its log", None
    return None, None
