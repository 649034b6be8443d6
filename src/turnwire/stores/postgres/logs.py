"""Reading one log, live or sealed."""

from turnwire.core.errors import EventsGoneError, LogRewoundError, TurnNotFoundError
from turnwire.core.logged import LoggedEvent
from turnwire.stores.lines import from_lines, unseal
from turnwire.stores.postgres.connections import Connection
from turnwire.stores.postgres.rows import events_from

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
    connection: Connection, turn_id: str, after: int, limit: int, epoch: int | None = None
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
    connection: Connection, number: int, turn_id: str, after: int, limit: int, epoch: int | None
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
