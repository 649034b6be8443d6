"""The channel's own records: answers on their way out, updates that were handled, pairings and flood waits.

One SQLite file in the extension's folder or, if the store is shared, tables in its database. The statements are the
same for both. Every method commits before it returns, and none blocks the event loop. Messages are not kept here: the
kernel has accepted them.
"""

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from turnwire.core.errors import StoreError, StoreUnusableError
from turnwire.extensions.contract import TableTransactions
from turnwire.sqlite_threads import SqliteThreads

_T = TypeVar("_T")

_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS notes (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS updates (update_id INTEGER PRIMARY KEY, at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS answers (
    answer_id TEXT PRIMARY KEY, user_id TEXT NOT NULL, state TEXT NOT NULL, text TEXT, stopped INTEGER NOT NULL,
    reply_to INTEGER, buttons TEXT, at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS parts (
    answer_id TEXT NOT NULL, number INTEGER NOT NULL, message_id INTEGER, sent_after INTEGER, shown TEXT,
    PRIMARY KEY (answer_id, number));
CREATE TABLE IF NOT EXISTS asks (answer_id TEXT PRIMARY KEY, body BLOB NOT NULL, at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS floods (chat_id INTEGER PRIMARY KEY, until REAL NOT NULL);
CREATE TABLE IF NOT EXISTS paired (user_id INTEGER PRIMARY KEY, name TEXT NOT NULL, at REAL NOT NULL);
"""
# Version 0 kept the updates themselves until they were handled. `inbox` stays until `drop_inbox`.
_FROM_VERSION_0 = """
INSERT OR IGNORE INTO updates SELECT update_id, at FROM inbox WHERE done;
DELETE FROM inbox WHERE done;
"""
_KEEP_SECONDS = 7 * 24 * 3600
_ANSWER_COLUMNS = "answer_id, user_id, state, text, stopped, reply_to, buttons"
_ANSWER_VALUES = "?, ?, ?, ?, ?, ?, ?, ?"

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


class MessagePart(msgspec.Struct, frozen=True):
    """One message of an answer. Without a `message_id`, it was being sent when `sent_after` was the newest id known.

    `shown` is the digest of its final content, so that it is not written again.
    """

    message_id: int | None = None
    sent_after: int | None = None
    shown: str | None = None


class Records:
    """The database of the channel."""

    def __init__(self, path: Path, shared: TableTransactions | None = None) -> None:
        self._path = path
        self._shared = shared
        self._prefix = "" if shared is None else "telegram_"
        self._threads = SqliteThreads(self._connect, name="telegram-records")

    async def open(self) -> None:
        """Delete old rows of the shared tables. Raises StoreError if these cannot be used."""
        if self._shared is not None:
            await self._do(self._prune)

    async def close(self) -> None:
        # The kernel closes shared tables, which may be used again after a stop.
        if self._shared is None:
            await self._threads.close()

    async def check(self) -> None:
        """Raise ShuttingDownError if another process runs the channel now."""
        if self._shared is not None:
            await self._do(lambda _: None)

    async def _do(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        try:
            return await (self._shared or self._threads).transaction(work)
        except sqlite3.Error as error:
            raise StoreError(f"the records of Telegram cannot be used: {error}") from error

    def _connect(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        database = sqlite3.connect(self._path, check_same_thread=False, isolation_level=None)
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        if database.execute("PRAGMA user_version").fetchone()[0] > _VERSION:
            database.close()
            raise StoreUnusableError(str(self._path), "a newer Turnwire has written it; use that one")
        migration = _FROM_VERSION_0 if _has_table(database, "inbox") else ""
        database.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} {migration} PRAGMA user_version = {_VERSION}; COMMIT;")
        self._prune(database)
        return database

    def _prune(self, database: sqlite3.Connection) -> None:
        oldest, prefix = (time.time() - _KEEP_SECONDS,), self._prefix
        database.execute(f"DELETE FROM {prefix}updates WHERE at < ?", oldest)
        database.execute(f"DELETE FROM {prefix}answers WHERE state IN ('delivered', 'refused') AND at < ?", oldest)
        database.execute(f"DELETE FROM {prefix}parts WHERE answer_id NOT IN (SELECT answer_id FROM {prefix}answers)")
        database.execute(f"DELETE FROM {prefix}asks WHERE at < ?", oldest)

    # Notes

    async def note(self, name: str) -> str | None:
        query = f"SELECT value FROM {self._prefix}notes WHERE name = ?"
        row = await self._do(lambda db: db.execute(query, (name,)).fetchone())
        return row[0] if row else None

    async def set_note(self, name: str, value: str) -> None:
        statement = self._upsert("notes", "name", "value")
        await self._do(lambda db: db.execute(statement, (name, value)))

    # Updates

    async def is_handled(self, update_id: int) -> bool:
        query = f"SELECT 1 FROM {self._prefix}updates WHERE update_id = ?"
        return await self._do(lambda db: db.execute(query, (update_id,)).fetchone()) is not None

    async def set_handled(self, update_id: int) -> None:
        """Remember an update, which Telegram may send again. The ids do not always grow, so each is kept for a week."""
        row, statement = (update_id, time.time()), self._upsert("updates", "update_id", "at")
        await self._do(lambda db: db.execute(statement, row))

    async def inbox(self) -> list[dict[str, Any]]:
        """Return the updates that an older version has left unhandled, in order."""

        def read(db: sqlite3.Connection) -> list[dict[str, Any]]:
            if self._shared is not None or not _has_table(db, "inbox"):
                return []
            rows = db.execute("SELECT body FROM inbox WHERE NOT done ORDER BY update_id").fetchall()
            return [msgspec.json.decode(row[0]) for row in rows]

        return await self._do(read)

    async def drop_inbox(self) -> None:
        if self._shared is None:
            await self._do(lambda db: db.execute("DROP TABLE IF EXISTS inbox"))

    # Answers

    async def begin(self, answer: Answer) -> Answer:
        """Insert the answer unless its id is there already, and return the stored one."""

        def insert(db: sqlite3.Connection) -> Answer:
            statement = f"INSERT INTO {self._prefix}answers VALUES ({_ANSWER_VALUES}) ON CONFLICT DO NOTHING"
            db.execute(statement, _answer_row(answer))
            return self._select_answers(db, "answer_id = ?", answer.answer_id)[0]

        return await self._do(insert)

    async def finish(self, answer: Answer) -> bool:
        """Commit the final text: from here on it will be posted. Return False if it was posted, or has another one.

        The same text again is the same answer: a transaction is repeated if its connection is lost.
        """
        answers = f"{self._prefix}answers"
        statement = f"""INSERT INTO {answers} VALUES ({_ANSWER_VALUES}) ON CONFLICT (answer_id) DO UPDATE
            SET state = excluded.state, text = excluded.text, stopped = excluded.stopped, buttons = excluded.buttons
            WHERE {answers}.state = 'live' OR ({answers}.state = 'final' AND {answers}.text = excluded.text)
            RETURNING answer_id"""
        return bool(await self._do(lambda db: db.execute(statement, _answer_row(answer)).fetchall()))

    async def settle(self, answer: Answer, state: AnswerState) -> None:
        """Set the state of an answer whose text was posted, unless `close_ask` has replaced the text meanwhile."""
        statement = f"UPDATE {self._prefix}answers SET state = ? WHERE answer_id = ? AND text = ?"
        await self._do(lambda db: db.execute(statement, (state, answer.answer_id, answer.text)))

    async def answer(self, answer_id: str) -> Answer | None:
        return next(iter(await self._do(lambda db: self._select_answers(db, "answer_id = ?", answer_id))), None)

    async def undelivered(self) -> list[Answer]:
        return await self._do(lambda db: self._select_answers(db, "state = ?", "final"))

    # The messages of an answer

    async def parts(self, answer_id: str) -> dict[int, MessagePart]:
        query = (
            f"SELECT number, message_id, sent_after, shown FROM {self._prefix}parts WHERE answer_id = ? ORDER BY number"
        )
        rows = await self._do(lambda db: db.execute(query, (answer_id,)).fetchall())
        return {row[0]: MessagePart(*row[1:]) for row in rows}

    async def set_part(self, answer_id: str, number: int, part: MessagePart | None) -> None:
        key = (answer_id, number)

        def write(db: sqlite3.Connection) -> None:
            db.execute(f"DELETE FROM {self._prefix}parts WHERE answer_id = ? AND number = ?", key)
            if part is not None:
                row = (*key, part.message_id, part.sent_after, part.shown)
                db.execute(f"INSERT INTO {self._prefix}parts VALUES (?, ?, ?, ?, ?)", row)

        await self._do(write)

    async def message_ids(self, chat_id: int, after: int) -> set[int]:
        """Return the ids above `after` of the bot's own messages in this chat."""
        query = f"""SELECT message_id FROM {self._prefix}parts JOIN {self._prefix}answers USING (answer_id)
            WHERE message_id > ? AND (user_id = ? OR user_id LIKE ? || ':%')"""
        rows = await self._do(lambda db: db.execute(query, (after, str(chat_id), str(chat_id))).fetchall())
        return {row[0] for row in rows}

    async def newest_messages(self) -> list[tuple[str, int]]:
        """Return the id of the newest message that was sent to each `user_id`."""
        query = f"""SELECT user_id, max(message_id) FROM {self._prefix}parts
            JOIN {self._prefix}answers USING (answer_id) GROUP BY user_id"""
        rows = await self._do(lambda db: db.execute(query).fetchall())
        return [(row[0], row[1]) for row in rows if row[1] is not None]

    # Flood waits

    async def set_flood(self, chat_id: int, seconds: float) -> None:
        row, statement = (chat_id, time.time() + seconds), self._upsert("floods", "chat_id", "until")
        await self._do(lambda db: db.execute(statement, row))

    async def floods(self) -> list[tuple[int, float]]:
        """Return the chats with a flood wait, and the seconds that it still lasts."""

        def read(db: sqlite3.Connection) -> list[tuple[int, float]]:
            now = time.time()
            db.execute(f"DELETE FROM {self._prefix}floods WHERE until < ?", (now,))
            return [(row[0], row[1] - now) for row in db.execute(f"SELECT chat_id, until FROM {self._prefix}floods")]

        return await self._do(read)

    # Pairings

    async def paired(self) -> list[int]:
        query = f"SELECT user_id FROM {self._prefix}paired ORDER BY at"
        rows = await self._do(lambda db: db.execute(query).fetchall())
        return [row[0] for row in rows]

    async def pair(self, user_id: int, name: str) -> None:
        row, statement = (user_id, name, time.time()), self._upsert("paired", "user_id", "name", "at")
        await self._do(lambda db: db.execute(statement, row))

    # Approval requests and questions

    async def set_ask(self, answer_id: str, body: bytes) -> None:
        row, statement = (answer_id, body, time.time()), self._upsert("asks", "answer_id", "body", "at")
        await self._do(lambda db: db.execute(statement, row))

    async def ask(self, answer_id: str) -> bytes | None:
        """Return an approval request that is not decided yet, or a question that is not answered."""
        query = f"SELECT body FROM {self._prefix}asks WHERE answer_id = ?"
        row = await self._do(lambda db: db.execute(query, (answer_id,)).fetchone())
        return row[0] if row else None

    async def asks(self, user_id: str, prefix: str) -> dict[str, bytes]:
        """Return the open asks of this user whose `answer_id` begins with `prefix`, oldest first."""
        query = f"""SELECT answer_id, body FROM {self._prefix}asks JOIN {self._prefix}answers USING (answer_id)
            WHERE user_id = ? AND answer_id LIKE ? ORDER BY {self._prefix}answers.at, answer_id"""
        return dict(await self._do(lambda db: db.execute(query, (user_id, f"{prefix}%")).fetchall()))

    async def close_ask(self, answer_id: str, text: str, update_id: int | None = None) -> Answer | None:
        """Remove an open ask, and replace its answer's text and buttons, to be posted like a new one.

        `update_id` is the update that answers it; the same transaction marks it as handled.
        """

        def close(db: sqlite3.Connection) -> Answer | None:
            db.execute(f"DELETE FROM {self._prefix}asks WHERE answer_id = ?", (answer_id,))
            statement = (
                f"UPDATE {self._prefix}answers SET state = 'final', text = ?, buttons = NULL WHERE answer_id = ?"
            )
            db.execute(statement, (text, answer_id))
            if update_id is not None:
                db.execute(self._upsert("updates", "update_id", "at"), (update_id, time.time()))
            return next(iter(self._select_answers(db, "answer_id = ?", answer_id)), None)

        return await self._do(close)

    def _select_answers(self, db: sqlite3.Connection, where: str, value: str) -> list[Answer]:
        query = f"SELECT {_ANSWER_COLUMNS} FROM {self._prefix}answers WHERE {where} ORDER BY at"
        rows = db.execute(query, (value,)).fetchall()
        return [Answer(*row[:4], stopped=bool(row[4]), reply_to=row[5], buttons=row[6]) for row in rows]

    def _upsert(self, table: str, key: str, *columns: str) -> str:
        """Return the statement that inserts a row, or replaces the one with its key."""
        values = ", ".join("?" * (len(columns) + 1))
        changes = ", ".join(f"{column} = excluded.{column}" for column in columns)
        return (
            f"INSERT INTO {self._prefix}{table} ({', '.join((key, *columns))}) VALUES ({values})"
            f" ON CONFLICT ({key}) DO UPDATE SET {changes}"
        )


def _has_table(database: sqlite3.Connection, name: str) -> bool:
    query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
    return database.execute(query, (name,)).fetchone() is not None


def _answer_row(answer: Answer) -> tuple[Any, ...]:
    return (*msgspec.structs.astuple(answer), time.time())
