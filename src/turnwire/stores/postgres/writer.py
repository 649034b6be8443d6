"""Group commit: appends of all turns of this process, committed together by one task.

While one group is being committed, the next one gathers, and for at least the commit interval. Nothing is published
before the server has confirmed the commit. If the connection is lost before that, the logs themselves are read to find
out what became of the group, so an event is neither written twice nor given up, and an agent merely waits.
"""

import asyncio
import logging
import math
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from turnwire.core import metrics
from turnwire.core.contracts.stores import RUNNABLE, AppendRequest, Refusal
from turnwire.core.errors import (
    FencedError,
    PositionError,
    StoreAwayError,
    StoreError,
    StoreFullError,
    TurnEndedError,
    TurnNotFoundError,
    TurnwireError,
)
from turnwire.core.people.budget import tokens_in
from turnwire.stores.lines import SealedLogs, to_entry_lines, to_lines
from turnwire.stores.postgres.connections import (
    PLANNED_ONCE,
    RETRY,
    RETRY_SECONDS,
    ConnectionPool,
    DatabaseConnection,
    DiskFull,
    Refused,
    Unwritable,
    close_quietly,
    is_transient,
    reason,
)
from turnwire.stores.postgres.notifications import CommitNotifier
from turnwire.stores.postgres.rows import has_calls, read_log
from turnwire.stores.rows import folded
from turnwire.stores.rules import entry_refusal

logger = logging.getLogger("turnwire.stores.postgres")

_FULL_DISK_FAILURES = _UNKNOWN_FAILURES = 6
_CLOSE_SECONDS = 15.0


# The guards of an append; for each there is a test that fails without it.
FENCE = "head.epoch = i.epoch"
POSITION = "head.last_position = i.first_position - 1"
WRITABLE = "head.phase IN ('running', 'waiting')"
# A queued turn has no writer, so any process may end it when its message has entered another turn.
ENDABLE = "(head.phase IN ('running', 'waiting') OR (head.phase = 'queued' AND i.outcome = 'joined'))"
_INPUT = """
    SELECT * FROM unnest($1::text[], $2::int[], $3::int[], $4::int[], $5::bytea[])
    AS i (id, epoch, first_position, last_position, body)
"""
PLAIN = f"""
    WITH i AS ({_INPUT}), moved AS (
        UPDATE turnwire.head SET last_position = i.last_position FROM i
        WHERE head.id = i.id AND {FENCE} AND {POSITION} AND {WRITABLE}
        RETURNING head.id, head.number, head.day, i.last_position, i.first_position, i.epoch, i.body
    ), logged AS (
        INSERT INTO turnwire.event (day, turn, last_position, first_position, epoch, body)
        SELECT day, number, last_position, first_position, epoch, body FROM moved WHERE body IS NOT NULL
    )
    SELECT id FROM moved
"""
CHANGING = f"""
    WITH i AS (
        SELECT * FROM unnest($1::text[], $2::int[], $3::int[], $4::int[], $5::bytea[], $6::text[], $7::bigint[],
            $8::bigint[], $9::text[], $10::text[], $11::bytea[], $12::bigint[])
        AS i (id, epoch, first_position, last_position, body, change, until,
            ended_at, outcome, folded_answer, state, tokens)
    ), moved AS (
        UPDATE turnwire.head SET last_position = i.last_position,
            phase = coalesce(i.change, head.phase),
            worker = CASE WHEN i.change IS NULL THEN head.worker END,
            waiting_until = coalesce(i.until, head.waiting_until)
        FROM i WHERE i.change IS DISTINCT FROM 'ended' AND head.id = i.id AND {FENCE} AND {POSITION} AND {WRITABLE}
        RETURNING head.id, head.number, head.day, i.last_position, i.first_position, i.epoch, i.body, i.change
    ), ended AS (
        DELETE FROM turnwire.head USING i
        WHERE i.change = 'ended' AND head.id = i.id AND {FENCE} AND {POSITION} AND {ENDABLE}
        RETURNING head.id, head.number, head.day, i.last_position, i.first_position, i.epoch, i.body,
            head.principal, head.worker, head.started_at, head.waiting_until,
            i.ended_at, i.outcome, i.folded_answer, i.state, i.tokens
    ), logged AS (
        INSERT INTO turnwire.event (day, turn, last_position, first_position, epoch, body)
        SELECT day, number, last_position, first_position, epoch, body FROM moved WHERE body IS NOT NULL
        UNION ALL SELECT day, number, last_position, first_position, epoch, body FROM ended
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
        INSERT INTO turnwire.outbox (turn_id, due_at, attempts) SELECT ended.id, 0, 0 FROM ended WHERE $13::boolean
        UNION ALL SELECT moved.id, 0, 0 FROM moved WHERE $14::boolean AND moved.change = 'waiting'
        ON CONFLICT (turn_id) DO UPDATE SET due_at = excluded.due_at, attempts = excluded.attempts
    )
    SELECT id FROM moved UNION ALL SELECT id FROM ended
"""


def _with_entries(statement: str, first_parameter: int) -> str:
    """Return the statement that also writes the journal entries of the turns that pass the guards."""
    before, result, after = statement.rpartition("SELECT id FROM moved")
    ended = "UNION ALL SELECT id, number FROM ended" if "ended AS" in statement else ""
    return f"""{before.rstrip()}, recorded AS (
        INSERT INTO turnwire.call (turn, body)
        SELECT written.number, e.body FROM (SELECT id, number FROM moved {ended}) written
        JOIN unnest(${first_parameter}::text[], ${first_parameter + 1}::bytea[]) AS e (id, body) ON e.id = written.id
    )
    {result}{after}"""


async def write_group(
    connection: DatabaseConnection, group: Sequence[AppendRequest], *, noting: tuple[bool, bool]
) -> set[str]:
    """Commit the appends that pass the guards, and return their turns. A turn may be in the group only once.

    `noting` says whether ended turns, and those that begin to wait, enter the outbox.
    """
    columns = _columns(group)
    if all(append.new_phase is None for append in group):
        statement, values = PLAIN, columns
    else:
        statement, values = CHANGING, (*columns, *_changes(group), *noting)
    if entries := [(append.turn_id, to_entry_lines(append.entries)) for append in group if append.entries]:
        statement, values = _with_entries(statement, len(values) + 1), (*values, *map(list, zip(*entries, strict=True)))
    return {row[0] for row in await connection.fetch(statement, *values)}


def _columns(group: Sequence[AppendRequest]) -> tuple[list[object], ...]:
    return (
        [append.turn_id for append in group],
        [append.epoch for append in group],
        [append.first_position for append in group],
        [append.last_position for append in group],
        [to_lines(append.events) if append.events else None for append in group],
    )


def _changes(group: Sequence[AppendRequest]) -> tuple[list[object], ...]:
    endings = [(append.ending, append.events[-1].at if append.events else 0) for append in group]
    return (
        [append.new_phase for append in group],
        [append.waiting_until for append in group],
        [at if state else None for state, at in endings],
        [state.outcome if state else None for state, _ in endings],
        [folded(state.text) if state else None for state, _ in endings],
        [msgspec.json.encode(state) if state else None for state, _ in endings],
        [tokens_in(state.usage) if state else 0 for state, _ in endings],
    )


async def refusals(connection: DatabaseConnection, group: Sequence[AppendRequest]) -> dict[str, Refusal]:
    """Return the errors of appends that did not pass the guards, by turn."""
    query = "SELECT id, epoch, last_position FROM turnwire.head WHERE id = ANY($1)"
    heads = {row[0]: (row[1], row[2]) for row in await connection.fetch(query, [append.turn_id for append in group])}
    errors: dict[str, Refusal] = {}
    ended = [append for append in group if append.turn_id not in heads]
    query = "SELECT id, epoch FROM turnwire.turn WHERE id = ANY($1)"
    epochs = dict(await connection.fetch(query, [append.turn_id for append in ended])) if ended else {}
    for append in group:
        turn_id = append.turn_id
        epoch, position = heads.get(turn_id, (epochs.get(turn_id, append.epoch), None))
        if epoch != append.epoch:
            errors[turn_id] = FencedError(turn_id)
        elif position is None:
            errors[turn_id] = TurnEndedError(turn_id)
        elif append.first_position != position + 1:
            errors[turn_id] = PositionError(turn_id, position + 1, append.first_position)
        else:
            # The turn was released, and has not been claimed since.
            errors[turn_id] = FencedError(turn_id)
    return errors


class PostgresWriter:
    def __init__(
        self,
        connections: ConnectionPool,
        notifier: CommitNotifier,
        *,
        keeps_outbox: bool,
        notes_waits: bool,
        interval: float,
    ) -> None:
        self._connections = connections
        self._notifier = notifier
        self._noting = (keeps_outbox, notes_waits)
        self._interval = interval
        self._waiting: list[AppendRequest] = []
        # The turns of the group under way whose append is not settled.
        self._committing: set[str] = set()
        self._committed = asyncio.Event()
        self._has_work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._connection: DatabaseConnection | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._write_all(), name="turnwire-writer")

    async def close(self) -> None:
        """Commit what was appended before, if the database can be reached in time."""
        if self._task is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await self._idle.wait()
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._connection is not None:
            await close_quietly(self._connection)

    async def settled(self, turn_id: str) -> None:
        """Return when all earlier appends of this turn are committed or refused. Raises StoreAwayError."""
        try:
            async with asyncio.timeout(RETRY_SECONDS):
                while turn_id in self._committing or any(waiting.turn_id == turn_id for waiting in self._waiting):
                    await self._committed.wait()
        except TimeoutError as error:
            raise StoreAwayError("earlier events of the turn are not committed yet") from error

    def append(self, request: AppendRequest) -> None:
        self._waiting.append(request)
        self._idle.clear()
        self._has_work.set()

    async def _write_all(self) -> None:
        loop, next_at = asyncio.get_running_loop(), 0.0
        while True:
            await self._has_work.wait()
            if (delay := next_at - loop.time()) > 0:
                await asyncio.sleep(delay)
            next_at = (began := loop.time()) + self._interval
            self._has_work.clear()
            if group := self._next_group():
                self._committing = {append.turn_id for append in group}
                try:
                    await self._commit(group)
                except Exception as error:
                    logger.exception("a commit failed")
                    self._refuse(
                        self._unsettled(group), {}, StoreError(f"the log could not be written: {type(error).__name__}")
                    )
                metrics.note_commit(sum([len(append.events) for append in group]), loop.time() - began)
                self._committing = set()
                self._committed.set()
                self._committed = asyncio.Event()
            if self._waiting:
                self._has_work.set()
            elif not self._has_work.is_set():
                self._idle.set()

    def _next_group(self) -> list[AppendRequest]:
        """Take the waiting appends, one per turn: the next one of a turn is checked against the position after this."""
        group: dict[str, AppendRequest] = {}
        later: list[AppendRequest] = []
        for append in self._waiting:
            if append.turn_id in group:
                later.append(append)
                continue
            append.is_taken = True
            if refusal := entry_refusal(append):
                append.settle(len(append.events), refusal)
            else:
                group[append.turn_id] = append
        self._waiting = later
        return list(group.values())

    async def _commit(self, group: list[AppendRequest]) -> None:
        failures = 0
        # Whatever the driver says after a lost connection, the server may have committed the group.
        is_unsure = was_unsure = False
        while group:
            try:
                connection = await self._connect()
                async with self._connections.held(connection):
                    if is_unsure:
                        group = await self._settle_committed(connection, group)
                        is_unsure = False
                        continue
                    written = await write_group(connection, group, noting=self._noting)
            except Unwritable as error:
                await self._commit_each(group, error)
                return
            except DiskFull:
                group = self._keep_endings(group)
                failures = max(failures, _FULL_DISK_FAILURES - 1)
            except Exception as error:
                # After a lost connection the driver may also fail in unknown ways; then it works again soon.
                if not is_transient(error) and (isinstance(error, Refused) or failures >= _UNKNOWN_FAILURES):
                    raise
                if not was_unsure:
                    logger.warning("the database was lost during a commit (%s); trying again", reason(error))
                is_unsure = was_unsure = True
                self._drop_connection()
            else:
                # The next group is on its way before this one is published.
                self._committing -= written
                published = [append for append in group if append.turn_id in written]
                asyncio.get_running_loop().call_soon(self._publish, published)
                refused = [append for append in group if append.turn_id not in written]
                if refused:
                    await self._refuse_with_reasons(refused, was_unsure)
                return
            failures += 1
            await RETRY.wait(failures)

    async def _refuse_with_reasons(self, group: list[AppendRequest], was_unsure: bool) -> None:
        async def find(connection: DatabaseConnection, _: bool) -> tuple[list[AppendRequest], dict[str, Refusal]]:
            # The server may have committed the first attempt after this process looked for it.
            rest = self._unsettled(group)
            if was_unsure:
                rest = await self._settle_committed(connection, rest)
            return rest, await refusals(connection, rest)

        self._refuse(*await self._connections.run(find, retry_for=math.inf))

    async def _commit_each(self, group: list[AppendRequest], error: Exception) -> None:
        """Commit the appends one by one, so that one that cannot be stored fails its own turn only."""
        if len(group) == 1:
            logger.error("events of turn %s cannot be stored: %s", group[0].turn_id, reason(error))
            self._refuse(group, {}, StoreError(f"this cannot be written: {reason(error)}"))
            return
        for append in group:
            await self._commit([append])

    def _keep_endings(self, group: list[AppendRequest]) -> list[AppendRequest]:
        """Refuse all but endings, which are retried until the server's disk has room. Return the endings."""
        logger.error("the database's disk is full: running turns are ended, new ones refused, until there is room")
        self._refuse([append for append in group if append.ending is None], {}, StoreFullError())
        return [append for append in group if append.ending is not None]

    async def _settle_committed(
        self, connection: DatabaseConnection, group: list[AppendRequest]
    ) -> list[AppendRequest]:
        """Publish the appends that the logs show as committed. Return the others, which have to be written again."""
        committed: list[AppendRequest] = []
        for append in group:
            if not append.events:
                if await has_calls(connection, append.turn_id, to_entry_lines(append.entries)):
                    committed.append(append)
                continue
            try:
                events = await read_log(connection, SealedLogs(), append.turn_id, append.first_position - 1, 1)
            except TurnNotFoundError:
                continue  # The next attempt to write it reports that.
            except TurnwireError:
                events = []
            if events and events[0].epoch == append.epoch:
                committed.append(append)
        self._committing -= {append.turn_id for append in committed}
        self._publish(committed)
        return self._unsettled(group)

    def _unsettled(self, group: Sequence[AppendRequest]) -> list[AppendRequest]:
        return [append for append in group if append.turn_id in self._committing]

    async def _connect(self) -> DatabaseConnection:
        if self._connection is None or self._connection.is_closed():
            self._connection = await self._connections.connect(**PLANNED_ONCE)
        return self._connection

    def _drop_connection(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    def _publish(self, group: Sequence[AppendRequest]) -> None:
        for append in group:
            if append.events:
                self._notifier.committed(append.turn_id, append.events)
            if append.ending is not None or append.release:
                self._notifier.changed(RUNNABLE)
            append.settle(len(append.events), None)

    def _refuse(
        self, group: Sequence[AppendRequest], errors: dict[str, Refusal], default: StoreError | None = None
    ) -> None:
        for append in group:
            self._committing.discard(append.turn_id)
            append.settle(len(append.events), errors.get(append.turn_id) or default or FencedError(append.turn_id))
