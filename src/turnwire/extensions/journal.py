"""The kernel's journal: accepted messages, deliveries and published events.

It is one SQLite file of the data folder or, if the store is shared, in the same database as the logs. The statements
are the same for both, so they use what both understand.

The event bus publishes two kinds of events to the extensions that have subscribed:

    user_message    {text, user_id, channel_id}                        before the turn starts
    agent_response  {text, user_id, channel, session_id, agent_id}     when the answer is complete, streamed or not

Every event is committed to the journal, with a cursor for each subscription. So every subscriber gets every event at
least once and in order, also those just before the process was killed. A slow or failing subscriber delays nobody
else. One that keeps failing at the same event skips it.
"""

import asyncio
import json
import logging
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from turnwire.core.backoff import Backoff
from turnwire.core.errors import ShuttingDownError, StoreError, StoreUnusableError, TurnwireError
from turnwire.core.log.codec import now_ms
from turnwire.extensions.calls import KernelLimits, call, cancel_all, reason
from turnwire.extensions.contract import Subscriber, Topic
from turnwire.extensions.tables import SharedTables
from turnwire.sqlite_threads import SqliteThreads

logger = logging.getLogger("turnwire.extensions")

T = TypeVar("T")

FILE_NAME = "extensions.db"
_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS told (id INTEGER PRIMARY KEY AUTOINCREMENT, at INTEGER, topic TEXT, payload TEXT) STRICT;
CREATE TABLE IF NOT EXISTS listener (name TEXT PRIMARY KEY, topic TEXT, told INTEGER) STRICT;
CREATE TABLE IF NOT EXISTS conversation (
    channel_id TEXT, user_id TEXT, number INTEGER, last_at INTEGER, PRIMARY KEY (channel_id, user_id)
) STRICT;
CREATE TABLE IF NOT EXISTS delivery (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    key TEXT UNIQUE,
    channel_id TEXT,
    user_id TEXT,
    principal TEXT,
    agent_id TEXT,
    session TEXT,
    text TEXT,
    at INTEGER,
    turn_id TEXT,
    answer TEXT,
    delivered_at INTEGER
) STRICT;
CREATE INDEX IF NOT EXISTS undelivered ON delivery (number) WHERE delivered_at IS NULL;
"""

TOPICS: tuple[Topic, ...] = ("user_message", "agent_response")
ATTEMPTS = 3
_PAGE = 100
_KEEP_MS = 7 * 86_400_000
_KEEP_COUNT = 10_000
_MAX_RETRY_SECONDS = 60.0
_POLL_SECONDS = 2.0


class Journal:
    """The database that the event bus and the delivery queue share, so that one transaction can cover both."""

    def __init__(self, folder: Path | None, shared: SharedTables | None = None) -> None:
        """Keep the journal in `folder`, in memory if there is none, or in a shared database."""
        self._folder = folder
        self._shared = shared
        self._threads = shared or SqliteThreads(self._connect, name="turnwire-extensions")

    @property
    def is_shared(self) -> bool:
        return self._shared is not None

    async def open(self) -> None:
        """Open the journal. Raises StoreUnusableError if the file cannot be used."""
        await self._threads.open()

    async def close(self) -> None:
        """Finish the transactions that were queued before, then close the file."""
        await self._threads.close()

    def run(self, work: Callable[[sqlite3.Connection], T], owner: str | None = None) -> asyncio.Future[T]:
        """Queue `work(connection)` as one transaction, behind those queued before, even if the caller is cancelled.

        `owner` is the extension that it is for. Raises StoreError, and ShuttingDownError after `close` or if another
        process runs the extension now.
        """
        if self._threads.is_closed:
            raise ShuttingDownError
        if self._shared is not None:
            return self._shared.transaction(work, owner)
        return asyncio.ensure_future(_with_store_errors(self._threads.transaction(work)))

    def _connect(self) -> sqlite3.Connection:
        path = ":memory:" if self._folder is None else self._folder / FILE_NAME
        try:
            if self._folder is not None:
                self._folder.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            if connection.execute("PRAGMA user_version").fetchone()[0] > _VERSION:
                connection.close()
                raise StoreUnusableError(str(path), "a newer Turnwire has written it; use that one")
            connection.executescript(_SCHEMA)
            connection.execute(f"PRAGMA user_version = {_VERSION}")
        except (OSError, sqlite3.Error) as error:
            raise StoreUnusableError(str(path), f"{error}; move the file away to start with a new one") from error
        return connection


async def _with_store_errors(transaction: asyncio.Future[T]) -> T:
    try:
        return await transaction
    except sqlite3.Error as error:
        raise StoreError(f"the extensions' journal cannot be used: {error}") from error


# Events


def record_event(connection: sqlite3.Connection, topic: Topic, payload: dict[str, Any]) -> None:
    """Insert an event in the transaction of what it reports; the caller must call `EventBus.wake` afterwards."""
    # Events without a subscription are not kept.
    query = """INSERT INTO told (at, topic, payload) SELECT CAST(? AS bigint), CAST(? AS text), CAST(? AS text)
               WHERE EXISTS (SELECT 1 FROM listener WHERE topic = ?)"""
    connection.execute(query, (now_ms(), topic, json.dumps(payload), topic))


class EventBus:
    """The subscriptions of all extensions."""

    def __init__(self, journal: Journal, limits: KernelLimits) -> None:
        self._journal = journal
        self._limits = limits
        self._subscriptions: dict[str, _Subscription] = {}
        self._running: set[str] = set()
        """The extensions that this process runs, if the journal is shared."""

    def subscribe(self, owner: str, topic: Topic, subscriber: Subscriber) -> None:
        """Add a subscription, unless the same was added at an earlier start of the extension.

        The next process finds its cursor by its owner, its topic and its number.
        """
        if topic not in TOPICS:
            raise ValueError(f"there is no topic {topic!r}; there is {' and '.join(TOPICS)}")
        known = [found for found in self._owned(owner) if found.topic == topic]
        if any(found.subscriber == subscriber for found in known):
            return
        subscription = _Subscription(f"{owner}/{topic}/{len(known)}", topic, subscriber, self._journal, self._limits)
        self._subscriptions[subscription.name] = subscription
        # Queued at once, so that it is committed before any later event.
        subscription.inserted = self._journal.run(subscription.insert)
        if not self._journal.is_shared or owner in self._running:
            subscription.start()

    def has_subscribed(self, owner: str) -> bool:
        return bool(self._owned(owner))

    def start(self, owner: str) -> None:
        """Publish events to the subscriptions of an extension that this process runs from now on."""
        self._running.add(owner)
        for subscription in self._owned(owner):
            subscription.start()

    async def stop(self, owner: str) -> None:
        """Leave the subscriptions of an extension to another process."""
        self._running.discard(owner)
        subscriptions = self._owned(owner)
        await cancel_all([subscription.task for subscription in subscriptions], self._limits.closing_patience)
        for subscription in subscriptions:
            subscription.task = None

    def _owned(self, owner: str) -> "list[_Subscription]":
        return [found for name, found in self._subscriptions.items() if name.startswith(f"{owner}/")]

    async def emit(self, topic: Topic, payload: dict[str, Any]) -> None:
        """Commit an event. Subscribers get it later."""
        await self._journal.run(lambda connection: record_event(connection, topic, payload))
        self.wake()

    def wake(self) -> None:
        for subscription in self._subscriptions.values():
            subscription.has_news.set()

    async def prune(self) -> None:
        """Delete old and excess events, which subscriptions that never come back would keep for ever."""
        await self._journal.run(_prune)

    async def close(self) -> None:
        tasks = [subscription.task for subscription in self._subscriptions.values()]
        await cancel_all(tasks, self._limits.closing_patience)
        self._subscriptions.clear()


class _Subscription:
    """One subscriber with its cursor in the journal."""

    def __init__(self, name: str, topic: Topic, subscriber: Subscriber, journal: Journal, limits: KernelLimits) -> None:
        self.name = name
        self.has_news = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.inserted: asyncio.Future[None] | None = None
        self._owner = name.partition("/")[0]
        self.topic = topic
        self.subscriber = subscriber
        self._journal = journal
        self._limits = limits
        self._backoff = Backoff(first=limits.restart_delay, longest=_MAX_RETRY_SECONDS)

    def start(self) -> None:
        if self.task is None:
            self.task = asyncio.create_task(self._run(), name=f"subscription {self.name}")

    async def _run(self) -> None:
        try:
            if self.inserted is not None:
                await asyncio.shield(self.inserted)  # The next start waits for it again.
            while True:
                self.has_news.clear()
                for number, payload in await self._journal.run(self._next_events, self._owner):
                    await self._publish(payload)
                    await self._journal.run(
                        lambda connection, number=number: self._advance(connection, number), self._owner
                    )
                    self.has_news.set()
                # Another process may have published something meanwhile.
                with suppress(TimeoutError):
                    async with asyncio.timeout(_POLL_SECONDS if self._journal.is_shared else None):
                        await self.has_news.wait()
        except ShuttingDownError:
            pass  # Another process runs the extension.
        except TurnwireError:
            logger.exception("subscription %s stops until the next start", self.name)

    async def _publish(self, payload: str) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                # Every subscriber gets a copy of its own.
                await call(self._limits.channel_timeout, self.subscriber, json.loads(payload))
                return
            except Exception as error:
                logger.warning("subscription %s failed (attempt %d): %s", self.name, attempt, reason(error))
            if attempt < ATTEMPTS:
                await self._backoff.wait(attempt)
        logger.error("subscription %s skips an event that it failed at %d times", self.name, ATTEMPTS)

    def insert(self, connection: sqlite3.Connection) -> None:
        # A new subscription starts at the next event.
        query = """INSERT INTO listener (name, topic, told)
                   VALUES (?, ?, coalesce((SELECT max(id) FROM told), 0)) ON CONFLICT DO NOTHING"""
        connection.execute(query, (self.name, self.topic))

    def _next_events(self, connection: sqlite3.Connection) -> list[tuple[int, str]]:
        query = """SELECT id, payload FROM told WHERE topic = ?
                   AND id > (SELECT told FROM listener WHERE name = ?) ORDER BY id LIMIT ?"""
        return connection.execute(query, (self.topic, self.name, _PAGE)).fetchall()

    def _advance(self, connection: sqlite3.Connection, number: int) -> None:
        connection.execute("UPDATE listener SET told = ? WHERE name = ?", (number, self.name))
        query = "DELETE FROM told WHERE topic = ? AND id <= (SELECT min(told) FROM listener WHERE topic = ?)"
        connection.execute(query, (self.topic, self.topic))


def _prune(connection: sqlite3.Connection) -> None:
    connection.execute("DELETE FROM told WHERE at < ?", (now_ms() - _KEEP_MS,))
    query = "DELETE FROM told WHERE id <= (SELECT max(id) FROM told) - CAST(? AS bigint)"
    connection.execute(query, (_KEEP_COUNT,))
