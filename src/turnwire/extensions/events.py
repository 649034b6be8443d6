"""Tells extensions of what is asked and answered.

    user_message    {text, user_id, channel_id}                        before the agent is asked
    agent_response  {text, user_id, channel, session_id, agent_id}     when the answer is complete, streamed or not

What is told is written down first, and for each listener how far it has come. So every listener is told of everything
at least once, in order, also of what happened just before the process was killed; one that is slow or fails holds up
nobody but itself. A listener that fails at the same event again and again goes on without it.
"""

import asyncio
import json
import logging
import sqlite3
from typing import Any

from turnwire.core.codec import now_ms
from turnwire.core.errors import TurnwireError
from turnwire.extensions.calls import KernelLimits, call, reason
from turnwire.extensions.contract import Subscriber, Topic
from turnwire.extensions.journal import Journal

logger = logging.getLogger("turnwire.extensions")

TOPICS: tuple[Topic, ...] = ("user_message", "agent_response")
ATTEMPTS = 3
_PAGE = 100
_KEEP_MS = 7 * 86_400_000
_KEEP_COUNT = 10_000


def record(connection: sqlite3.Connection, topic: Topic, payload: dict[str, Any]) -> None:
    """Writes an event down, in the transaction of whatever it tells of; `EventBus.wake` must follow."""
    # What nobody has ever listened to need not be kept.
    query = "INSERT INTO told (at, topic, payload) SELECT ?, ?, ? WHERE EXISTS (SELECT 1 FROM listener WHERE topic = ?)"
    connection.execute(query, (now_ms(), topic, json.dumps(payload), topic))


class EventBus:
    def __init__(self, journal: Journal, limits: KernelLimits) -> None:
        self._journal = journal
        self._limits = limits
        self._listeners: dict[str, _Subscriber] = {}

    def subscribe(self, owner: str, topic: Topic, subscriber: Subscriber) -> None:
        """The listener is known again by its owner, its topic and how many of these came before it."""
        if topic not in TOPICS:
            raise ValueError(f"there is no topic {topic!r}; there is {' and '.join(TOPICS)}")
        count = sum(name.startswith(f"{owner}/{topic}/") for name in self._listeners)
        listener = _Subscriber(f"{owner}/{topic}/{count}", topic, subscriber, self._journal, self._limits)
        self._listeners[listener.name] = listener
        # Asked for at once, so that nothing which is told from now on can come before it.
        joined = self._journal.run(listener.join)
        listener.task = asyncio.create_task(listener.run(joined), name=f"listener {listener.name}")

    async def emit(self, topic: Topic, payload: dict[str, Any]) -> None:
        """Returns when the event is written down; nobody needs to have heard it yet."""
        await self._journal.run(lambda connection: record(connection, topic, payload))
        self.wake()

    def wake(self) -> None:
        for listener in self._listeners.values():
            listener.news.set()

    async def prune(self) -> None:
        """Forgets what is too old or too much, for those who never listen again."""
        await self._journal.run(_prune)

    async def close(self) -> None:
        tasks = [listener.task for listener in self._listeners.values() if listener.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=self._limits.closing_patience)
        self._listeners.clear()


class _Subscriber:
    def __init__(self, name: str, topic: Topic, subscriber: Subscriber, journal: Journal, limits: KernelLimits) -> None:
        self.name = name
        self.news = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self._topic = topic
        self._subscriber = subscriber
        self._journal = journal
        self._limits = limits

    async def run(self, joined: asyncio.Future[None]) -> None:
        try:
            await joined
            while True:
                self.news.clear()
                for number, payload in await self._journal.run(self._unheard):
                    await self._tell(payload)
                    await self._journal.run(lambda connection, number=number: self._heard(connection, number))
                    self.news.set()
                await self.news.wait()
        except TurnwireError:
            logger.exception("the listener %s hears nothing more until the next start", self.name)

    async def _tell(self, payload: str) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                # Each gets a copy of its own.
                await call(self._limits.channel_timeout, self._subscriber, json.loads(payload))
                return
            except Exception as error:
                logger.warning("the listener %s failed (attempt %d): %s", self.name, attempt, reason(error))
            if attempt < ATTEMPTS:
                await asyncio.sleep(self._limits.restart_delay * 2 ** (attempt - 1))
        logger.error("the listener %s goes on without an event that it failed at %d times", self.name, ATTEMPTS)

    def join(self, connection: sqlite3.Connection) -> None:
        # One that is new hears what comes, not what was.
        query = """INSERT OR IGNORE INTO listener
                   SELECT ?, ?, coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'told'), 0)"""
        connection.execute(query, (self.name, self._topic))

    def _unheard(self, connection: sqlite3.Connection) -> list[tuple[int, str]]:
        query = """SELECT id, payload FROM told WHERE topic = ?
                   AND id > (SELECT told FROM listener WHERE name = ?) ORDER BY id LIMIT ?"""
        return connection.execute(query, (self._topic, self.name, _PAGE)).fetchall()

    def _heard(self, connection: sqlite3.Connection, number: int) -> None:
        connection.execute("UPDATE listener SET told = ? WHERE name = ?", (number, self.name))
        query = "DELETE FROM told WHERE topic = ?1 AND id <= (SELECT min(told) FROM listener WHERE topic = ?1)"
        connection.execute(query, (self._topic,))


def _prune(connection: sqlite3.Connection) -> None:
    connection.execute("DELETE FROM told WHERE at < ?", (now_ms() - _KEEP_MS,))
    connection.execute("DELETE FROM told WHERE id <= (SELECT max(id) FROM told) - ?", (_KEEP_COUNT,))
