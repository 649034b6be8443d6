"""The event bus: messages and answers, published to the extensions that have subscribed.

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
from typing import Any

from turnwire.core.backoff import Backoff
from turnwire.core.codec import now_ms
from turnwire.core.errors import TurnwireError
from turnwire.extensions.calls import KernelLimits, call, cancel_all, reason
from turnwire.extensions.contract import Subscriber, Topic
from turnwire.extensions.journal import Journal

logger = logging.getLogger("turnwire.extensions")

TOPICS: tuple[Topic, ...] = ("user_message", "agent_response")
ATTEMPTS = 3
_PAGE = 100
_KEEP_MS = 7 * 86_400_000
_KEEP_COUNT = 10_000
_MAX_RETRY_SECONDS = 60.0


def record(connection: sqlite3.Connection, topic: Topic, payload: dict[str, Any]) -> None:
    """Insert an event in the transaction of what it reports; the caller must call `EventBus.wake` afterwards."""
    # Events without a subscription are not kept.
    query = "INSERT INTO told (at, topic, payload) SELECT ?, ?, ? WHERE EXISTS (SELECT 1 FROM listener WHERE topic = ?)"
    connection.execute(query, (now_ms(), topic, json.dumps(payload), topic))


class EventBus:
    """The subscriptions of all extensions."""

    def __init__(self, journal: Journal, limits: KernelLimits) -> None:
        self._journal = journal
        self._limits = limits
        self._subscriptions: dict[str, _Subscription] = {}

    def subscribe(self, owner: str, topic: Topic, subscriber: Subscriber) -> None:
        """Subscribe. The next process finds the cursor by the owner, the topic and the number of the subscription."""
        if topic not in TOPICS:
            raise ValueError(f"there is no topic {topic!r}; there is {' and '.join(TOPICS)}")
        number = sum(name.startswith(f"{owner}/{topic}/") for name in self._subscriptions)
        subscription = _Subscription(f"{owner}/{topic}/{number}", topic, subscriber, self._journal, self._limits)
        self._subscriptions[subscription.name] = subscription
        # Queued at once, so that no event of later on can come before it.
        inserted = self._journal.run(subscription.insert)
        subscription.task = asyncio.create_task(subscription.run(inserted), name=f"subscription {subscription.name}")

    async def emit(self, topic: Topic, payload: dict[str, Any]) -> None:
        """Commit an event. Subscribers get it later."""
        await self._journal.run(lambda connection: record(connection, topic, payload))
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
        self._topic = topic
        self._subscriber = subscriber
        self._journal = journal
        self._limits = limits
        self._backoff = Backoff(first=limits.restart_delay, longest=_MAX_RETRY_SECONDS)

    async def run(self, inserted: asyncio.Future[None]) -> None:
        try:
            await inserted
            while True:
                self.has_news.clear()
                for number, payload in await self._journal.run(self._next_events):
                    await self._publish(payload)
                    await self._journal.run(lambda connection, number=number: self._advance(connection, number))
                    self.has_news.set()
                await self.has_news.wait()
        except TurnwireError:
            logger.exception("subscription %s stops until the next start", self.name)

    async def _publish(self, payload: str) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                # Every subscriber gets a copy of its own.
                await call(self._limits.channel_timeout, self._subscriber, json.loads(payload))
                return
            except Exception as error:
                logger.warning("subscription %s failed (attempt %d): %s", self.name, attempt, reason(error))
            if attempt < ATTEMPTS:
                await self._backoff.wait(attempt)
        logger.error("subscription %s skips an event that it failed at %d times", self.name, ATTEMPTS)

    def insert(self, connection: sqlite3.Connection) -> None:
        # A new subscription starts at the next event.
        query = """INSERT OR IGNORE INTO listener
                   SELECT ?, ?, coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'told'), 0)"""
        connection.execute(query, (self.name, self._topic))

    def _next_events(self, connection: sqlite3.Connection) -> list[tuple[int, str]]:
        query = """SELECT id, payload FROM told WHERE topic = ?
                   AND id > (SELECT told FROM listener WHERE name = ?) ORDER BY id LIMIT ?"""
        return connection.execute(query, (self._topic, self.name, _PAGE)).fetchall()

    def _advance(self, connection: sqlite3.Connection, number: int) -> None:
        connection.execute("UPDATE listener SET told = ? WHERE name = ?", (number, self.name))
        query = "DELETE FROM told WHERE topic = ?1 AND id <= (SELECT min(told) FROM listener WHERE topic = ?1)"
        connection.execute(query, (self._topic,))


def _prune(connection: sqlite3.Connection) -> None:
    connection.execute("DELETE FROM told WHERE at < ?", (now_ms() - _KEEP_MS,))
    connection.execute("DELETE FROM told WHERE id <= (SELECT max(id) FROM told) - ?", (_KEEP_COUNT,))
