"""What many turns have to say, committed in one statement.

Each turn's head is checked and moved in the statement that writes its events: the epoch is the writer's, the position
is the one before, and the turn has not ended. What fails a check is not written; the rest of the group is.
"""

from collections.abc import Sequence

import msgspec

from turnwire.core.budget import tokens_in
from turnwire.core.contracts import Parking, Refusal, Settle
from turnwire.core.errors import FencedError, PositionError, TurnEndedError
from turnwire.core.logged import LoggedEvent
from turnwire.core.turns import TurnState
from turnwire.stores.lines import to_lines
from turnwire.stores.postgres.connections import Connection
from turnwire.stores.postgres.rows import folded


class Append:
    """What one turn adds to its log in one commit."""

    __slots__ = ("ending", "epoch", "events", "parking", "release", "settle", "turn_id")

    def __init__(self, turn_id: str, epoch: int, events: list[LoggedEvent], settle: Settle) -> None:
        self.turn_id = turn_id
        self.epoch = epoch
        self.events = events
        self.settle = settle
        self.ending: TurnState | None = None
        self.parking: Parking | None = None
        self.release = False

    @property
    def is_plain(self) -> bool:
        return self.ending is None and self.parking is None and not self.release

    @property
    def change(self) -> str | None:
        """What becomes of the turn in the same step."""
        if self.ending is not None:
            return "ended"
        if self.parking is not None:
            return "waiting"
        return "queued" if self.release else None


# Each of these is there for a reason, and for each there is a test that fails without it.
FENCE = "head.epoch = i.epoch"
PLACE = "head.last_position = i.first_position - 1"
LIFE = "head.phase IN ('running', 'waiting')"
_INPUT = """
    SELECT * FROM unnest($1::text[], $2::int[], $3::int[], $4::int[], $5::bytea[])
    AS i (id, epoch, first_position, last_position, body)
"""


PLAIN = f"""
    WITH i AS ({_INPUT}), moved AS (
        UPDATE turnwire.head SET last_position = i.last_position FROM i
        WHERE head.id = i.id AND {FENCE} AND {PLACE} AND {LIFE}
        RETURNING head.id, head.number, head.day, i.last_position, i.first_position, i.epoch, i.body
    ), logged AS (
        INSERT INTO turnwire.event (day, turn, last_position, first_position, epoch, body)
        SELECT day, number, last_position, first_position, epoch, body FROM moved
    )
    SELECT id FROM moved
"""
CHANGING = f"""
    WITH i AS (
        SELECT * FROM unnest($1::text[], $2::int[], $3::int[], $4::int[], $5::bytea[], $6::text[], $7::bigint[],
            $8::bytea[], $9::bigint[], $10::text[], $11::text[], $12::bytea[], $13::bigint[])
        AS i (id, epoch, first_position, last_position, body, change, until,
            checkpoint, ended_at, outcome, folded_answer, state, tokens)
    ), moved AS (
        UPDATE turnwire.head SET last_position = i.last_position,
            phase = coalesce(i.change, head.phase),
            worker = CASE WHEN i.change IS NULL THEN head.worker END,
            waiting_until = coalesce(i.until, head.waiting_until)
        FROM i WHERE i.change IS DISTINCT FROM 'ended' AND head.id = i.id AND {FENCE} AND {PLACE} AND {LIFE}
        RETURNING head.id, head.number, head.day, i.last_position, i.first_position, i.epoch, i.body, i.checkpoint
    ), ended AS (
        DELETE FROM turnwire.head USING i
        WHERE i.change = 'ended' AND head.id = i.id AND {FENCE} AND {PLACE} AND {LIFE}
        RETURNING head.id, head.number, head.day, i.last_position, i.first_position, i.epoch, i.body,
            head.principal, head.worker, head.started_at, head.waiting_until,
            i.ended_at, i.outcome, i.folded_answer, i.state, i.tokens
    ), logged AS (
        INSERT INTO turnwire.event (day, turn, last_position, first_position, epoch, body)
        SELECT day, number, last_position, first_position, epoch, body FROM moved
        UNION ALL SELECT day, number, last_position, first_position, epoch, body FROM ended
    ), parked AS (
        INSERT INTO turnwire.checkpoint (turn_id, body)
        SELECT id, checkpoint FROM moved WHERE checkpoint IS NOT NULL
        ON CONFLICT (turn_id) DO UPDATE SET body = excluded.body
    ), closed AS (
        UPDATE turnwire.turn SET outcome = ended.outcome, ended_at = ended.ended_at, epoch = ended.epoch,
            last_position = ended.last_position, folded_answer = ended.folded_answer, state = ended.state,
            attachments = NULL, worker = ended.worker, started_at = ended.started_at,
            waiting_until = ended.waiting_until
        FROM ended WHERE turn.number = ended.number
    ), spent AS (
        INSERT INTO turnwire.spending (principal, day, tokens)
        SELECT principal, ended_at / 86400000, sum(tokens) FROM ended WHERE tokens > 0 GROUP BY 1, 2 ORDER BY 1, 2
        ON CONFLICT (principal, day) DO UPDATE SET tokens = spending.tokens + excluded.tokens
    ), noted AS (
        INSERT INTO turnwire.outbox (turn_id, due_at, attempts) SELECT ended.id, 0, 0 FROM ended WHERE $14::boolean
    )
    SELECT id FROM moved UNION ALL SELECT id FROM ended
"""


async def write_group(connection: Connection, group: Sequence[Append], *, keeps_outbox: bool) -> set[str]:
    """Commits what may be written. Returns the turns for which it was: each is in the group once."""
    columns = _columns(group)
    if all(append.is_plain for append in group):
        rows = await connection.fetch(PLAIN, *columns)
    else:
        rows = await connection.fetch(CHANGING, *columns, *_changes(group), keeps_outbox)
    return {row[0] for row in rows}


def _columns(group: Sequence[Append]) -> tuple[list[object], ...]:
    return (
        [append.turn_id for append in group],
        [append.epoch for append in group],
        [append.events[0].position for append in group],
        [append.events[-1].position for append in group],
        [to_lines(append.events) for append in group],
    )


def _changes(group: Sequence[Append]) -> tuple[list[object], ...]:
    endings = [(append.ending, append.events[-1].at) for append in group]
    return (
        [append.change for append in group],
        [append.parking.until if append.parking else None for append in group],
        [append.parking.checkpoint if append.parking else None for append in group],
        [at if state else None for state, at in endings],
        [state.outcome if state else None for state, _ in endings],
        [folded(state.text) if state else None for state, _ in endings],
        [msgspec.json.encode(state) if state else None for state, _ in endings],
        [tokens_in(state.usage) if state else 0 for state, _ in endings],
    )


async def refusals(connection: Connection, group: Sequence[Append]) -> dict[str, Refusal]:
    """Why these have not been written: what their heads say."""
    query = "SELECT id, epoch, last_position FROM turnwire.head WHERE id = ANY($1)"
    heads = {row[0]: (row[1], row[2]) for row in await connection.fetch(query, [one.turn_id for one in group])}
    told: dict[str, Refusal] = {}
    ended = [append for append in group if append.turn_id not in heads]
    query = "SELECT id, epoch FROM turnwire.turn WHERE id = ANY($1)"
    epochs = dict(await connection.fetch(query, [one.turn_id for one in ended])) if ended else {}
    for append in group:
        turn_id = append.turn_id
        epoch, position = heads.get(turn_id, (epochs.get(turn_id, append.epoch), None))
        if epoch != append.epoch:
            told[turn_id] = FencedError(turn_id)
        elif position is None:
            told[turn_id] = TurnEndedError(turn_id)
        elif append.events[0].position != position + 1:
            told[turn_id] = PositionError(turn_id, position + 1, append.events[0].position)
        else:
            # It was given back, and nobody has claimed it since.
            told[turn_id] = FencedError(turn_id)
    return told
