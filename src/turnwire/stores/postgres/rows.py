"""The reading of logs, and the server's clock."""

from collections.abc import Sequence

from turnwire.core.errors import EventsGoneError, LogRewoundError, TurnNotFoundError
from turnwire.core.log.codec import LoggedEvent
from turnwire.stores.lines import PAGE_BYTES, SealedLogs, event_page, from_lines, page_of
from turnwire.stores.postgres.connections import DatabaseConnection

# The server's clock in ms, unless a test passes another. All leases use it, because no two machines agree on the time.
NOW = "coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)"


def events_from(rows: Sequence[tuple[int, bytes]], after: int) -> list[LoggedEvent]:
    """Return the events after a position; `rows` are (first position, body), and the first may begin before it."""
    events: list[LoggedEvent] = []
    for first_position, body in rows:
        events += from_lines(body.split(b"\n"), first_position)
    return events[after + 1 - events[0].position :] if events else []


_READ = f"""
    SELECT t.number, t.sealed, t.first_kept,
        CASE WHEN $4::int IS NOT NULL AND NOT t.sealed THEN (
            SELECT e.epoch FROM turnwire.event e WHERE e.day = t.day AND e.turn = t.number AND e.last_position >= $2
            ORDER BY e.last_position LIMIT 1
        ) END AS epoch_there, found.first_position, found.body
    FROM turnwire.turn t LEFT JOIN LATERAL (
        SELECT e.first_position, e.last_position, e.body,
            -- The rows before this one, without the first, most of which may be before the page; the length of a row is
            -- known without reading it.
            sum(octet_length(e.body)) OVER (ORDER BY e.last_position) - octet_length(e.body)
                - first_value(octet_length(e.body)) OVER (ORDER BY e.last_position) AS bytes_before
        FROM (
            SELECT e.first_position, e.last_position, e.body FROM turnwire.event e
            WHERE e.day = t.day AND e.turn = t.number AND NOT t.sealed AND e.last_position > $2
                AND e.last_position <= $2 + $3
            UNION ALL (
                -- The row that begins in the page and ends after it: the next one of the index, or none.
                SELECT e.first_position, e.last_position, e.body FROM turnwire.event e
                WHERE e.day = t.day AND e.turn = t.number AND NOT t.sealed AND e.last_position > $2 + $3
                ORDER BY e.last_position LIMIT 1
            )
        ) e
        ORDER BY last_position
    ) found ON found.first_position <= $2 + $3 AND found.bytes_before < {PAGE_BYTES}
    WHERE t.id = $1
"""


async def read_log(
    connection: DatabaseConnection,
    sealed_logs: SealedLogs,
    turn_id: str,
    after: int,
    limit: int,
    epoch: int | None = None,
) -> list[LoggedEvent]:
    """Read a log, live or sealed. Raises TurnNotFoundError, EventsGoneError, LogRewoundError."""
    limit = min(limit, 2**30)
    epoch = epoch if after > 0 else None
    rows = await connection.fetch(_READ, turn_id, min(after, 2**30), limit, epoch)
    if not rows:
        raise TurnNotFoundError(turn_id)
    head = rows[0]
    if after + 1 < head["first_kept"]:
        raise EventsGoneError(turn_id, after, head["first_kept"])
    if head["sealed"]:
        number, first_kept = head["number"], head["first_kept"]
        lines = sealed_logs.get(number, first_kept)
        if lines is None:
            lines, first_kept = await _read_sealed(connection, sealed_logs, number, turn_id)
        if after + 1 < first_kept:
            raise EventsGoneError(turn_id, after, first_kept)
        return _page(lines, first_kept, turn_id, after, limit, epoch)
    if epoch is not None and head["epoch_there"] != epoch:
        raise LogRewoundError(turn_id)
    bodies = [(row["first_position"], row["body"]) for row in rows if row["body"] is not None]
    return event_page(events_from(bodies, after), limit)


async def _read_sealed(
    connection: DatabaseConnection, sealed_logs: SealedLogs, number: int, turn_id: str
) -> tuple[list[bytes], int]:
    """Return the lines of a sealed log, and the position of the first."""
    # Expiring changes the row and its first position in one step, so they are read in one.
    query = (
        "SELECT s.body, t.first_kept FROM turnwire.sealed_log s JOIN turnwire.turn t ON t.number = s.turn"
        " WHERE s.turn = $1"
    )
    row = await connection.fetchrow(query, number)
    if row is None:
        raise TurnNotFoundError(turn_id)
    first_kept: int = row["first_kept"]
    return sealed_logs.add(number, first_kept, row["body"]), first_kept


def _page(
    lines: list[bytes], first_kept: int, turn_id: str, after: int, limit: int, epoch: int | None
) -> list[LoggedEvent]:
    if epoch is not None and after >= first_kept:
        (event,) = from_lines(lines[after - first_kept : after - first_kept + 1], after) or (None,)
        if event is None or event.epoch != epoch:
            raise LogRewoundError(turn_id)
    start = after + 1 - first_kept
    return from_lines(page_of(lines, start, limit), after + 1)


async def has_calls(connection: DatabaseConnection, turn_id: str, body: bytes) -> bool:
    """Return True if these entries of a turn are committed."""
    query = (
        "SELECT EXISTS (SELECT 1 FROM turnwire.call c JOIN turnwire.turn t ON t.number = c.turn"
        " WHERE t.id = $1 AND c.body = $2)"
    )
    return await connection.fetchval(query, turn_id, body)
