"""The channel's own tables: answers on their way out, updates that were handled, flood waits and notes.

They are in the store. Every method commits before it returns. Messages are not kept here: the kernel has accepted them.
"""

import time
from typing import Any, Literal

import msgspec

from turnwire.core.contracts.stores import SqlConnection
from turnwire.extensions.tables import ExtensionTables

TABLES = (
    "CREATE TABLE IF NOT EXISTS turnwire.telegram_notes (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    """CREATE TABLE IF NOT EXISTS turnwire.telegram_updates (
        update_id BIGINT PRIMARY KEY, at DOUBLE PRECISION NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS turnwire.telegram_answers (
        answer_id TEXT PRIMARY KEY, user_id TEXT NOT NULL, state TEXT NOT NULL, text TEXT, stopped BIGINT NOT NULL,
        reply_to BIGINT, buttons TEXT, ask TEXT, at DOUBLE PRECISION NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS turnwire.telegram_parts (
        answer_id TEXT NOT NULL, number BIGINT NOT NULL, message_id BIGINT, sent_after BIGINT, shown TEXT,
        PRIMARY KEY (answer_id, number))""",
    """CREATE TABLE IF NOT EXISTS turnwire.telegram_floods (
        chat_id BIGINT PRIMARY KEY, until DOUBLE PRECISION NOT NULL)""",
)
_KEEP_SECONDS = 7 * 24 * 3600
_ANSWER_COLUMNS = "answer_id, user_id, state, text, stopped, reply_to, buttons, ask"
_ANSWER_VALUES = "$1, $2, $3, $4, $5, $6, $7, $8, $9"

AnswerState = Literal["live", "final", "delivered", "refused"]


class Answer(msgspec.Struct, frozen=True):
    """An answer, or a notice beside the answers, that is posted as one or more messages."""

    answer_id: str
    user_id: str
    state: AnswerState
    text: str | None = None
    stopped: bool = False
    reply_to: int | None = None
    buttons: str | None = None
    """The inline keyboard below it, as Telegram's JSON."""
    ask: str | None = None
    """The approval request or the question that it shows, as JSON, until somebody has answered."""


class MessagePart(msgspec.Struct, frozen=True):
    """One message of an answer. Without a `message_id`, it was being sent when `sent_after` was the newest id known.

    `shown` is the digest of its final content, so that it is not written again.
    """

    message_id: int | None = None
    sent_after: int | None = None
    shown: str | None = None


class Records:
    """The tables of the channel."""

    def __init__(self, tables: ExtensionTables) -> None:
        self._tables = tables

    async def open(self) -> None:
        """Create the tables, and delete old rows. Raises StoreError."""
        oldest = time.time() - _KEEP_SECONDS
        await self._tables.create(*TABLES)
        await self._execute("DELETE FROM turnwire.telegram_updates WHERE at < $1", oldest)
        await self._execute(
            "DELETE FROM turnwire.telegram_answers WHERE state IN ('delivered', 'refused') AND at < $1", oldest
        )
        await self._execute(
            """DELETE FROM turnwire.telegram_parts
            WHERE answer_id NOT IN (SELECT answer_id FROM turnwire.telegram_answers)"""
        )

    async def check(self) -> None:
        """Raise ShuttingDownError if another process runs the channel now."""
        await self._fetch("SELECT 1")

    async def _fetch(self, query: str, *values: object) -> list[Any]:
        return await self._tables.transaction(lambda connection: connection.fetch(query, *values))

    async def _execute(self, query: str, *values: object) -> None:
        await self._tables.transaction(lambda connection: connection.execute(query, *values))

    async def _put(self, table: str, **columns: object) -> None:
        await self._tables.transaction(lambda connection: _put(connection, table, **columns))

    # Notes

    async def note(self, name: str) -> str | None:
        rows = await self._fetch("SELECT value FROM turnwire.telegram_notes WHERE name = $1", name)
        return rows[0][0] if rows else None

    async def set_note(self, name: str, value: str) -> None:
        await self._put("notes", name=name, value=value)

    # Updates

    async def is_handled(self, update_id: int) -> bool:
        return bool(await self._fetch("SELECT 1 FROM turnwire.telegram_updates WHERE update_id = $1", update_id))

    async def set_handled(self, update_id: int) -> None:
        """Remember an update, which Telegram may send again. The ids do not always grow, so each is kept for a week."""
        await self._put("updates", update_id=update_id, at=time.time())

    # Answers

    async def begin(self, answer: Answer) -> Answer:
        """Insert the answer unless its id is there already, and return the stored one."""
        statement = f"INSERT INTO turnwire.telegram_answers VALUES ({_ANSWER_VALUES}) ON CONFLICT DO NOTHING"

        async def insert(connection: SqlConnection) -> Answer:
            await connection.execute(statement, *_answer_row(answer))
            return (await _select_answers(connection, "answer_id = $1", answer.answer_id))[0]

        return await self._tables.transaction(insert)

    async def finish(self, answer: Answer) -> bool:
        """Commit the final text: from here on it will be posted. Return False if it was posted, or has another one.

        The same text again is the same answer: a transaction is repeated if its connection is lost.
        """
        statement = f"""INSERT INTO turnwire.telegram_answers AS old VALUES ({_ANSWER_VALUES})
            ON CONFLICT (answer_id) DO UPDATE SET
                state = excluded.state, text = excluded.text, stopped = excluded.stopped
            WHERE old.state = 'live' OR (old.state = 'final' AND old.text = excluded.text)
            RETURNING answer_id"""
        return bool(await self._fetch(statement, *_answer_row(answer)))

    async def set_state(self, answer: Answer, state: AnswerState) -> None:
        """Set the state of an answer whose text was posted, unless `close_ask` has replaced the text meanwhile."""
        statement = "UPDATE turnwire.telegram_answers SET state = $1 WHERE answer_id = $2 AND text = $3"
        await self._execute(statement, state, answer.answer_id, answer.text)

    async def answer(self, answer_id: str) -> Answer | None:
        return next(iter(await self._answers("answer_id = $1", answer_id)), None)

    async def open_asks(self, user_id: str, prefix: str) -> list[Answer]:
        """Return the approval requests or questions whose `answer_id` begins with `prefix`, oldest first."""
        where = "user_id = $1 AND answer_id LIKE $2 AND ask IS NOT NULL"
        return await self._answers(where, user_id, f"{prefix}%")

    async def close_ask(self, answer_id: str, outcome: str, update_id: int | None = None) -> Answer | None:
        """Close an open ask: add the outcome to its text and remove its buttons, to be posted like a new one.

        `update_id` is the update that answers it; the same transaction notes that it is handled.
        """
        close = """UPDATE turnwire.telegram_answers
            SET state = 'final', text = text || CAST($1 AS TEXT), buttons = NULL, ask = NULL
            WHERE answer_id = $2 AND ask IS NOT NULL"""

        async def write(connection: SqlConnection) -> Answer | None:
            await connection.execute(close, f"\n\n{outcome}", answer_id)
            if update_id is not None:
                await _put(connection, "updates", update_id=update_id, at=time.time())
            return next(iter(await _select_answers(connection, "answer_id = $1", answer_id)), None)

        return await self._tables.transaction(write)

    async def undelivered(self) -> list[Answer]:
        return await self._answers("state = $1", "final")

    async def _answers(self, where: str, *values: str) -> list[Answer]:
        return await self._tables.transaction(lambda connection: _select_answers(connection, where, *values))

    # The messages of an answer

    async def parts(self, answer_id: str) -> dict[int, MessagePart]:
        query = """SELECT number, message_id, sent_after, shown FROM turnwire.telegram_parts
            WHERE answer_id = $1 ORDER BY number"""
        return {row[0]: MessagePart(*row[1:]) for row in await self._fetch(query, answer_id)}

    async def set_part(self, answer_id: str, number: int, part: MessagePart | None) -> None:
        async def write(connection: SqlConnection) -> None:
            query = "DELETE FROM turnwire.telegram_parts WHERE answer_id = $1 AND number = $2"
            await connection.execute(query, answer_id, number)
            if part is not None:
                query = "INSERT INTO turnwire.telegram_parts VALUES ($1, $2, $3, $4, $5)"
                await connection.execute(query, answer_id, number, part.message_id, part.sent_after, part.shown)

        await self._tables.transaction(write)

    async def message_ids(self, chat_id: int, after: int) -> set[int]:
        """Return the ids above `after` of the bot's own messages in this chat."""
        query = """SELECT message_id FROM turnwire.telegram_parts JOIN turnwire.telegram_answers USING (answer_id)
            WHERE message_id > $1 AND (user_id = $2 OR user_id LIKE $3)"""
        return {row[0] for row in await self._fetch(query, after, str(chat_id), f"{chat_id}:%")}

    async def newest_messages(self) -> list[tuple[str, int]]:
        """Return the id of the newest message that was sent to each `user_id`."""
        query = """SELECT user_id, max(message_id) FROM turnwire.telegram_parts
            JOIN turnwire.telegram_answers USING (answer_id) WHERE message_id IS NOT NULL GROUP BY user_id"""
        return [(row[0], row[1]) for row in await self._fetch(query)]

    # Flood waits

    async def set_flood(self, chat_id: int, seconds: float) -> None:
        await self._put("floods", chat_id=chat_id, until=time.time() + seconds)

    async def floods(self) -> list[tuple[int, float]]:
        """Return the chats with a flood wait, and the seconds that it still lasts."""
        now = time.time()
        await self._execute("DELETE FROM turnwire.telegram_floods WHERE until < $1", now)
        return [
            (row[0], row[1] - now) for row in await self._fetch("SELECT chat_id, until FROM turnwire.telegram_floods")
        ]


async def _select_answers(connection: SqlConnection, where: str, *values: str) -> list[Answer]:
    query = f"SELECT {_ANSWER_COLUMNS} FROM turnwire.telegram_answers WHERE {where} ORDER BY at, answer_id"
    rows = await connection.fetch(query, *values)
    return [Answer(*row[:4], stopped=bool(row[4]), reply_to=row[5], buttons=row[6], ask=row[7]) for row in rows]


async def _put(connection: SqlConnection, table: str, **columns: object) -> None:
    """Insert a row, or replace the one with the same value in the first column."""
    key, *others = columns
    values = ", ".join(f"${number}" for number in range(1, len(columns) + 1))
    changes = ", ".join(f"{column} = excluded.{column}" for column in others)
    statement = f"""INSERT INTO turnwire.telegram_{table} ({", ".join(columns)}) VALUES ({values})
        ON CONFLICT ({key}) DO UPDATE SET {changes}"""
    await connection.execute(statement, *columns.values())


def _answer_row(answer: Answer) -> tuple[Any, ...]:
    row = msgspec.structs.replace(answer, stopped=int(answer.stopped))
    return (*msgspec.structs.astuple(row), time.time())
