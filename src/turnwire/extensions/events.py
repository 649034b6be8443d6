"""The event bus: two kinds of events, published to the extensions that have subscribed.

    user_message    {text, user_id, channel_id}                        before the turn starts
    agent_response  {text, user_id, channel, session_id, agent_id}     when the answer is complete, streamed or not

Every event is committed with what it reports, and each subscription has a cursor. So every subscriber gets every event
at least once and in order, also those just before the process was killed. A slow or failing subscriber delays nobody
else. One that keeps failing at the same event skips it.
"""

import asyncio
import json
import logging
from contextlib import suppress
from typing import Any

from turnwire.core.backoff import Backoff
from turnwire.core.contracts.stores import SqlConnection
from turnwire.core.errors import ShuttingDownError, TurnwireError
from turnwire.core.log.codec import now_ms
from turnwire.extensions.calls import ExtensionLimits, call, cancel_all, reason
from turnwire.extensions.contract import Subscriber, Topic
from turnwire.extensions.tables import ExtensionTables

logger = logging.getLogger("turnwire.extensions")

TOPICS: tuple[Topic, ...] = ("user_message", "agent_response")
ATTEMPTS = 3
_PAGE = 100
_KEEP_MS = 7 * 86_400_000
_KEEP_COUNT = 10_000
_MAX_RETRY_SECONDS = 60.0
_POLL_SECONDS = 2.0
# Numbers are committed in order, because a cursor never goes back. Events that all have read are deleted, so the next
# number is above the cursors too.
_INSERT = """
    INSERT INTO turnwire.extension_event (id, at, topic, payload)
    SELECT 1 + max(last), CAST($1 AS BIGINT), $2, $3 FROM (
        SELECT coalesce(max(id), 0) AS last FROM turnwire.extension_event
        UNION ALL SELECT coalesce(max(last_event), 0) FROM turnwire.extension_subscription
    ) AS numbers WHERE last >= 0
    ON CONFLICT DO NOTHING RETURNING id
"""


async def record_event(connection: SqlConnection, topic: Topic, payload: dict[str, Any]) -> None:
    """Insert an event in the transaction of what it reports; the caller must call `EventBus.wake` afterwards."""
    # Events without a subscription are not kept.
    query = "SELECT 1 FROM turnwire.extension_subscription WHERE topic = $1 LIMIT 1"
    if await connection.fetchrow(query, topic) is None:
        return
    # A process that inserts at the same time may take the number.
    while await connection.fetchval(_INSERT, now_ms(), topic, json.dumps(payload)) is None:
        pass


class EventBus:
    """The subscriptions of all extensions."""

    def __init__(self, tables: ExtensionTables, limits: ExtensionLimits) -> None:
        self.tables = tables
        self._limits = limits
        self._subscriptions: dict[str, _Subscription] = {}
        self._running: set[str] = set()
        """The extensions that this process runs, if the store is shared."""

    def subscribe(self, owner: str, topic: Topic, subscriber: Subscriber) -> None:
        """Add a subscription, unless the same was added at an earlier start of the extension.

        The next process finds its cursor by its owner, its topic and its number.
        """
        if topic not in TOPICS:
            raise ValueError(f"there is no topic {topic!r}; there is {' and '.join(TOPICS)}")
        known = [found for found in self._owned(owner) if found.topic == topic]
        if any(found.subscriber == subscriber for found in known):
            return
        subscription = _Subscription(f"{owner}/{topic}/{len(known)}", topic, subscriber, self.tables, self._limits)
        self._subscriptions[subscription.name] = subscription
        # Queued at once, so that it is committed before any later event.
        subscription.inserted = self.tables.transaction(subscription.insert)
        if not self.tables.is_shared or owner in self._running:
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
        await self.tables.transaction(lambda connection: record_event(connection, topic, payload))
        self.wake()

    def wake(self) -> None:
        for subscription in self._subscriptions.values():
            subscription.has_news.set()

    async def prune(self) -> None:
        """Delete old and excess events, which subscriptions that never come back would keep for ever."""
        await self.tables.transaction(_prune)

    async def close(self) -> None:
        tasks = [subscription.task for subscription in self._subscriptions.values()]
        await cancel_all(tasks, self._limits.closing_patience)
        self._subscriptions.clear()


class _Subscription:
    """One subscriber with its cursor in the store."""

    def __init__(
        self, name: str, topic: Topic, subscriber: Subscriber, tables: ExtensionTables, limits: ExtensionLimits
    ) -> None:
        self.name = name
        self.has_news = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.inserted: asyncio.Future[None] | None = None
        self._owner = name.partition("/")[0]
        self.topic = topic
        self.subscriber = subscriber
        self._tables = tables
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
                for number, payload in await self._tables.transaction(self._next_events, self._owner):
                    await self._publish(payload)
                    await self._tables.transaction(
                        lambda connection, number=number: self._advance(connection, number), self._owner
                    )
                    self.has_news.set()
                # Another process may have published something meanwhile.
                with suppress(TimeoutError):
                    async with asyncio.timeout(_POLL_SECONDS if self._tables.is_shared else None):
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

    async def insert(self, connection: SqlConnection) -> None:
        # A new subscription starts at the next event.
        newest = await connection.fetchval("SELECT coalesce(max(id), 0) FROM turnwire.extension_event")
        query = "INSERT INTO turnwire.extension_subscription VALUES ($1, $2, $3) ON CONFLICT DO NOTHING"
        await connection.execute(query, self.name, self.topic, newest)

    async def _next_events(self, connection: SqlConnection) -> list[tuple[int, str]]:
        query = """SELECT id, payload FROM turnwire.extension_event WHERE topic = $1 AND id >
                   (SELECT last_event FROM turnwire.extension_subscription WHERE name = $2) ORDER BY id LIMIT $3"""
        return [(row[0], row[1]) for row in await connection.fetch(query, self.topic, self.name, _PAGE)]

    async def _advance(self, connection: SqlConnection, number: int) -> None:
        query = "UPDATE turnwire.extension_subscription SET last_event = $1 WHERE name = $2"
        await connection.execute(query, number, self.name)
        query = """DELETE FROM turnwire.extension_event WHERE topic = $1
                   AND id <= (SELECT min(last_event) FROM turnwire.extension_subscription WHERE topic = $1)"""
        await connection.execute(query, self.topic)


async def _prune(connection: SqlConnection) -> None:
    await connection.execute("DELETE FROM turnwire.extension_event WHERE at < $1", now_ms() - _KEEP_MS)
    query = """DELETE FROM turnwire.extension_event
               WHERE id <= (SELECT max(id) FROM turnwire.extension_event) - CAST($1 AS BIGINT)"""
    await connection.execute(query, _KEEP_COUNT)
