"""Rows into records and events, and texts into what the database can keep."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from turnwire.core.codec import LoggedEvent
from turnwire.core.errors import EventsGoneError, LogRewoundError, TurnNotFoundError
from turnwire.core.turns import TurnRecord, TurnState
from turnwire.stores.lines import from_lines, unseal
from turnwire.stores.postgres.connections import DatabaseConnection

# A turn has a head until it ends; then what the head said is in the turn itself.
RECORD = """
    t.id, t.session_id, t.principal, t.agent, t.message, t.channel, t.external_id, t.parent_turn_id,
    coalesce(h.phase, 'ended') AS phase, t.outcome, coalesce(h.worker, t.worker) AS worker,
    coalesce(h.epoch, t.epoch) AS epoch, coalesce(h.last_position, t.last_position) AS last_position,
    t.first_kept, t.created_at, coalesce(h.started_at, t.started_at) AS started_at, t.ended_at,
    coalesce(h.waiting_until, t.waiting_until) AS waiting_until, t.disconnect_grace, t.options, t.attachments
"""
TURN = "turnwire.turn t LEFT JOIN turnwire.head h ON h.id = t.id"
UNFINISHED = "turnwire.head h JOIN turnwire.turn t ON t.id = h.id"
_FIELDS = tuple(name for name in TurnRecord.__struct_fields__ if name != "options")


def record_from(row: Mapping[str, Any]) -> TurnRecord:
    options = json.loads(row["options"])
    if row["attachments"] is not None:
        options["attachments"] = json.loads(row["attachments"])
    return TurnRecord(**{name: row[name] for name in _FIELDS}, options=options)


def state_from(body: bytes | None) -> TurnState | None:
    return None if body is None else msgspec.json.decode(body, type=TurnState)


def events_from(rows: Sequence[tuple[int, bytes]], after: int) -> list[LoggedEvent]:
    """The events of some rows (first position, body), from a position on: the first row may begin before it."""
    events: list[LoggedEvent] = []
    for first_position, body in rows:
        events += from_lines(body.split(b"\n"), first_position)
    return events[after + 1 - events[0].position :] if events else []


def comparable(given: str) -> str:
    """A name that somebody asks for, in a form that the database can compare. None of ours holds what is replaced."""
    return given.encode(errors="replace").replace(b"\x00", b"\xef\xbf\xbd").decode()


def folded(text: str) -> str:
    """A text as it is searched: what differs in case only is the same."""
    return comparable(text.casefold())


# Reading one log, live or sealed.


_READ = """
    SELECT t.number, t.sealed, t.first_kept,
        CASE WHEN $4::int IS NOT NULL AND NOT t.sealed THEN (
            SELECT e.epoch FROM turnwire.event e WHERE e.day = t.day AND e.turn = t.number AND e.last_position >= $2
            ORDER BY e.last_position LIMIT 1
        ) END AS epoch_there, found.first_position, found.body
    FROM turnwire.turn t LEFT JOIN LATERAL (
        SELECT e.first_position, e.body FROM turnwire.event e
        WHERE e.day = t.day AND e.turn = t.number AND NOT t.sealed AND e.last_position > $2
            AND e.first_position <= $2 + $3
        ORDER BY e.last_position
    ) found ON true
    WHERE t.id = $1
"""


async def read_log(
    connection: DatabaseConnection, turn_id: str, after: int, limit: int, epoch: int | None = None
) -> list[LoggedEvent]:
    """Raises TurnNotFoundError, EventsGoneError, LogRewoundError."""
    limit = min(limit, 2**30)
    checked = epoch if after > 0 else None
    rows = await connection.fetch(_READ, turn_id, min(after, 2**30), limit, checked)
    if not rows:
        raise TurnNotFoundError(turn_id)
    head = rows[0]
    if after + 1 < head["first_kept"]:
        raise EventsGoneError(turn_id, after, head["first_kept"])
    if head["sealed"]:
        return await _read_sealed(connection, head["number"], turn_id, after, limit, checked)
    if checked is not None and head["epoch_there"] != checked:
        raise LogRewoundError(turn_id)
    found = [(row["first_position"], row["body"]) for row in rows if row["body"] is not None]
    return events_from(found, after)[:limit]


async def _read_sealed(
    connection: DatabaseConnection, number: int, turn_id: str, after: int, limit: int, epoch: int | None
) -> list[LoggedEvent]:
    # Sealing and expiring replace the row and its first position in one step, so they are read in one.
    query = (
        "SELECT s.body, t.first_kept FROM turnwire.sealed_log s JOIN turnwire.turn t ON t.number = s.turn"
        " WHERE s.turn = $1"
    )
    row = await connection.fetchrow(query, number)
    if row is None:
        raise TurnNotFoundError(turn_id)
    first_kept: int = row["first_kept"]
    if after + 1 < first_kept:
        raise EventsGoneError(turn_id, after, first_kept)
    lines = unseal(row["body"])
    if epoch is not None and after >= first_kept:
        (known,) = from_lines(lines[after - first_kept : after - first_kept + 1], after) or (None,)
        if known is None or known.epoch != epoch:
            raise LogRewoundError(turn_id)
    start = after + 1 - first_kept
    return from_lines(lines[start : start + limit], after + 1)
