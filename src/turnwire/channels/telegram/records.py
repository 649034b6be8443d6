"""What the channel must not forget: messages that came and are not answered yet, and answers on their way out.

One SQLite file in the extension's folder. Every method commits before it returns, and none blocks the event loop.
"""

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

# The tables of the records, and their rows.


SCHEMA = """
CREATE TABLE IF NOT EXISTS notes (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS inbox (
    update_id INTEGER PRIMARY KEY, body BLOB NOT NULL, done INTEGER NOT NULL DEFAULT 0, at REAL NOT NULL);
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

AnswerState = Literal["live", "final", "delivered", "refused"]


class Answer(msgspec.Struct, frozen=True):
    answer_id: str
    user_id: str
    state: AnswerState
    text: str | None = None
    stopped: bool = False
    reply_to: int | None = None
    buttons: str | None = None
    """What can be pressed below it, as Telegram's JSON."""


class MessagePart(msgspec.Struct, frozen=True):
    """One message of an answer. Without a `message_id`, it was being sent when `sent_after` was the newest known.

    `shown` stands for what it says, so that the same is not said again.
    """

    message_id: int | None = None
    sent_after: int | None = None
    shown: str | None = None


_COLUMNS = "answer_id, user_id, state, text, stopped, reply_to, buttons"
SLOTS = "?, ?, ?, ?, ?, ?, ?, ?"


def answer_row(answer: Answer) -> tuple[Any, ...]:
    return (*msgspec.structs.astuple(answer), time.time())


def find_answers(database: sqlite3.Connection, where: str, value: str) -> list[Answer]:
    rows = database.execute(f"SELECT {_COLUMNS} FROM answers WHERE {where} ORDER BY at", (value,)).fetchall()
    return [Answer(*row[:4], stopped=bool(row[4]), reply_to=row[5], buttons=row[6]) for row in rows]


_T = TypeVar("_T")
_KEPT_SECONDS = 7 * 24 * 3600


class Records:
    def __init__(self, path: Path) -> None:
        self._path = path
        # One thread, so that whatever is asked for first is done first.
        self._thread = ThreadPoolExecutor(1, "telegram-records")
        self._database: sqlite3.Connection | None = None

    async def _do(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        def commit() -> _T:
            if self._database is None:
                self._database = self._open()
            with self._database:
                return work(self._database)

        # A cancelled caller does not take back what it has asked for.
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._thread, commit))

    def _open(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        database = sqlite3.connect(self._path, check_same_thread=False)
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.executescript(SCHEMA)
        old = (time.time() - _KEPT_SECONDS,)
        with database:
            database.execute("DELETE FROM inbox WHERE done AND at < ?", old)
            database.execute("DELETE FROM answers WHERE state IN ('delivered', 'refused') AND at < ?", old)
            database.execute("DELETE FROM parts WHERE answer_id NOT IN (SELECT answer_id FROM answers)")
            database.execute("DELETE FROM asks WHERE at < ?", old)
        return database

    async def close(self) -> None:
        def shut() -> None:
            if self._database is not None:
                self._database.close()
                self._database = None

        await asyncio.get_running_loop().run_in_executor(self._thread, shut)
        self._thread.shutdown(wait=False)

    # Notes

    async def note(self, name: str) -> str | None:
        row = await self._do(lambda db: db.execute("SELECT value FROM notes WHERE name = ?", (name,)).fetchone())
        return row[0] if row else None

    async def set_note(self, name: str, value: str) -> None:
        await self._do(lambda db: db.execute("INSERT OR REPLACE INTO notes VALUES (?, ?)", (name, value)))

    # What came

    async def take_in(self, updates: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Keeps them. Returns those that had not come before."""

        def insert(db: sqlite3.Connection) -> list[dict[str, Any]]:
            new: list[dict[str, Any]] = []
            for update in updates:
                row = (update["update_id"], msgspec.json.encode(update), time.time())
                if db.execute("INSERT OR IGNORE INTO inbox (update_id, body, at) VALUES (?, ?, ?)", row).rowcount:
                    new.append(update)
            return new

        return await self._do(insert)

    async def waiting(self) -> list[dict[str, Any]]:
        """What came and was not done with, in order."""
        rows = await self._do(
            lambda db: db.execute("SELECT body FROM inbox WHERE NOT done ORDER BY update_id").fetchall()
        )
        return [msgspec.json.decode(row[0]) for row in rows]

    async def done_with(self, update_id: int) -> None:
        await self._do(lambda db: db.execute("UPDATE inbox SET done = 1, body = '' WHERE update_id = ?", (update_id,)))

    # What goes out

    async def begin(self, answer: Answer) -> Answer:
        """Keeps a new answer, or returns what is known of it."""

        def insert(db: sqlite3.Connection) -> Answer:
            db.execute(f"INSERT OR IGNORE INTO answers VALUES ({SLOTS})", answer_row(answer))
            return find_answers(db, "answer_id = ?", answer.answer_id)[0]

        return await self._do(insert)

    async def finish(self, answer: Answer) -> bool:
        """From here on it will be delivered, whatever happens. False if it had been finished before."""
        statement = f"""INSERT INTO answers VALUES ({SLOTS}) ON CONFLICT (answer_id) DO UPDATE
            SET state = excluded.state, text = excluded.text, stopped = excluded.stopped, buttons = excluded.buttons
            WHERE state = 'live'"""
        return bool(await self._do(lambda db: db.execute(statement, answer_row(answer)).rowcount))

    async def rewrite(self, answer_id: str, text: str) -> Answer | None:
        """Another text in place of one that was sent, without its buttons; to be delivered like a new one."""

        def update(db: sqlite3.Connection) -> Answer | None:
            statement = "UPDATE answers SET state = 'final', text = ?, buttons = NULL WHERE answer_id = ?"
            db.execute(statement, (text, answer_id))
            return next(iter(find_answers(db, "answer_id = ?", answer_id)), None)

        return await self._do(update)

    async def is_answered(self, message: str) -> bool:
        """Whether anything was finished that answers this message, under its name or one that begins with it."""
        query = "SELECT 1 FROM answers WHERE state != 'live' AND (answer_id = ? OR answer_id LIKE ? || '#%') LIMIT 1"
        return await self._do(lambda db: db.execute(query, (message, message)).fetchone()) is not None

    async def settle(self, answer_id: str, state: AnswerState) -> None:
        await self._do(lambda db: db.execute("UPDATE answers SET state = ? WHERE answer_id = ?", (state, answer_id)))

    async def answer(self, answer_id: str) -> Answer | None:
        return next(iter(await self._do(lambda db: find_answers(db, "answer_id = ?", answer_id))), None)

    async def undelivered(self) -> list[Answer]:
        return await self._do(lambda db: find_answers(db, "state = ?", "final"))

    async def parts(self, answer_id: str) -> dict[int, MessagePart]:
        query = "SELECT number, message_id, sent_after, shown FROM parts WHERE answer_id = ? ORDER BY number"
        rows = await self._do(lambda db: db.execute(query, (answer_id,)).fetchall())
        return {row[0]: MessagePart(*row[1:]) for row in rows}

    async def set_part(self, answer_id: str, number: int, part: MessagePart | None) -> None:
        key = (answer_id, number)

        def write(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM parts WHERE answer_id = ? AND number = ?", key)
            if part is not None:
                row = (*key, part.message_id, part.sent_after, part.shown)
                db.execute("INSERT INTO parts VALUES (?, ?, ?, ?, ?)", row)

        await self._do(write)

    async def known_messages(self, chat_id: int, after: int) -> set[int]:
        """The ids of this chat's messages that were sent by the bot and are accounted for."""
        query = """SELECT message_id FROM parts JOIN answers USING (answer_id)
            WHERE message_id > ? AND (user_id = ? OR user_id LIKE ? || ':%')"""
        rows = await self._do(lambda db: db.execute(query, (after, str(chat_id), str(chat_id))).fetchall())
        return {row[0] for row in rows}

    async def newest_messages(self) -> list[tuple[str, int]]:
        """By `user_id`, the newest message that was sent there."""
        query = "SELECT user_id, max(message_id) FROM parts JOIN answers USING (answer_id) GROUP BY user_id"
        rows = await self._do(lambda db: db.execute(query).fetchall())
        return [(row[0], row[1]) for row in rows if row[1] is not None]

    # How long nothing may be sent

    async def set_flood(self, chat_id: int, seconds: float) -> None:
        row = (chat_id, time.time() + seconds)
        await self._do(lambda db: db.execute("INSERT OR REPLACE INTO floods VALUES (?, ?)", row))

    async def floods(self) -> list[tuple[int, float]]:
        """The chats that are closed, and for how many seconds still."""

        def read(db: sqlite3.Connection) -> list[tuple[int, float]]:
            now = time.time()
            db.execute("DELETE FROM floods WHERE until < ?", (now,))
            return [(row[0], row[1] - now) for row in db.execute("SELECT chat_id, until FROM floods")]

        return await self._do(read)

    # Who may

    async def paired(self) -> list[int]:
        rows = await self._do(lambda db: db.execute("SELECT user_id FROM paired ORDER BY at").fetchall())
        return [row[0] for row in rows]

    async def pair(self, user_id: int, name: str) -> None:
        row = (user_id, name, time.time())
        await self._do(lambda db: db.execute("INSERT OR REPLACE INTO paired VALUES (?, ?, ?)", row))

    # What a person was asked

    async def set_ask(self, answer_id: str, body: bytes) -> None:
        row = (answer_id, body, time.time())
        await self._do(lambda db: db.execute("INSERT OR REPLACE INTO asks VALUES (?, ?, ?)", row))

    async def take_ask(self, answer_id: str) -> bytes | None:
        """What was asked, to the one who answers first: a button may be pressed twice."""

        def take(db: sqlite3.Connection) -> bytes | None:
            row = db.execute("SELECT body FROM asks WHERE answer_id = ?", (answer_id,)).fetchone()
            db.execute("DELETE FROM asks WHERE answer_id = ?", (answer_id,))
            return row[0] if row else None

        return await self._do(take)
