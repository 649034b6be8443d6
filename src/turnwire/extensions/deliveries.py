"""The answers that are to be brought to channels: from the message that was taken to the answer that was shown.

A message is written down, together with what the bus tells of it, before an agent is asked; its row is done when its
answer has been brought. Whatever is undone when the process ends is done by the next one.
"""

import sqlite3

from msgspec import Struct

from turnwire.core.logged import now_ms
from turnwire.extensions import bus
from turnwire.extensions.journal import Journal

_COLUMNS = "number, key, channel_id, user_id, principal, agent_id, session, text, turn_id, answer, delivered_at"
_KEEP_MS = 7 * 86_400_000
"""How long a message id is known again after its answer was brought."""


class Delivery(Struct, frozen=True, kw_only=True):
    """A message and where its answer goes. `key` names it for ever, `session` is the client's name of its session."""

    number: int
    key: str
    channel_id: str
    user_id: str
    principal: str
    agent_id: str | None
    session: str
    text: str
    turn_id: str | None = None
    answer: str | None = None
    delivered_at: int | None = None


class Deliveries:
    def __init__(self, journal: Journal, session_timeout: float) -> None:
        self._journal = journal
        self._session_timeout_ms = session_timeout * 1000

    async def take(
        self, key: str, channel_id: str, user_id: str, *, principal: str, agent_id: str | None, text: str
    ) -> tuple[Delivery, bool]:
        """Writes a message down, in its conversation, and tells the bus of it. False if it was there already."""

        def act(connection: sqlite3.Connection) -> tuple[Delivery, bool]:
            if found := _find(connection, "key = ?", key):
                return found[0], False
            session = f"{channel_id}:{user_id}:{self._conversation(connection, channel_id, user_id)}"
            connection.execute(
                """INSERT INTO delivery (key, channel_id, user_id, principal, agent_id, session, text, at)
                   VALUES (?, ?, ?, ?, ?, ?, ?, ?)""",
                (key, channel_id, user_id, principal, agent_id, session, text, now_ms()),
            )
            bus.record(connection, "user_message", {"text": text, "user_id": user_id, "channel_id": channel_id})
            return _find(connection, "key = ?", key)[0], True

        return await self._journal.run(act)

    async def conversation(self, channel_id: str, user_id: str) -> str:
        """The name of the session that this user is in now."""
        number = await self._journal.run(lambda connection: self._conversation(connection, channel_id, user_id))
        return f"{channel_id}:{user_id}:{number}"

    async def new_conversation(self, channel_id: str, user_id: str) -> None:
        def act(connection: sqlite3.Connection) -> None:
            number = self._conversation(connection, channel_id, user_id)
            _set_conversation(connection, channel_id, user_id, number + 1)

        await self._journal.run(act)

    async def started(self, delivery: Delivery) -> None:
        update = "UPDATE delivery SET turn_id = ? WHERE number = ?"
        values = (delivery.turn_id, delivery.number)
        await self._journal.run(lambda connection: connection.execute(update, values) and None)

    async def answered(self, delivery: Delivery, answer: str, session_id: str, agent_id: str | None) -> None:
        """Keeps the answer until it is brought, and tells the bus of it, once."""
        payload = {
            "text": answer,
            "user_id": delivery.user_id,
            "channel": delivery.channel_id,
            "session_id": session_id,
            "agent_id": agent_id,
        }

        def act(connection: sqlite3.Connection) -> None:
            update = "UPDATE delivery SET answer = ? WHERE number = ? AND answer IS NULL"
            if connection.execute(update, (answer, delivery.number)).rowcount:
                bus.record(connection, "agent_response", payload)
                # Silence is counted from the answer: it may have taken long.
                touch = "UPDATE conversation SET last_at = ? WHERE channel_id = ? AND user_id = ?"
                connection.execute(touch, (now_ms(), delivery.channel_id, delivery.user_id))

        await self._journal.run(act)

    async def delivered(self, delivery: Delivery) -> None:
        """The texts are in the turn's log, which people may delete; they do not stay here."""
        update = "UPDATE delivery SET delivered_at = ?, text = '', answer = '' WHERE number = ?"
        await self._journal.run(lambda connection: connection.execute(update, (now_ms(), delivery.number)) and None)

    async def undelivered(self) -> list[Delivery]:
        def act(connection: sqlite3.Connection) -> list[Delivery]:
            connection.execute("DELETE FROM delivery WHERE delivered_at < ?", (now_ms() - _KEEP_MS,))
            connection.execute("DELETE FROM delivery WHERE delivered_at IS NULL AND at < ?", (now_ms() - _KEEP_MS,))
            return _find(connection, "delivered_at IS NULL ORDER BY number")

        return await self._journal.run(act)

    def _conversation(self, connection: sqlite3.Connection, channel_id: str, user_id: str) -> int:
        """The number of the conversation: the next one after a long silence."""
        query = "SELECT number, last_at FROM conversation WHERE channel_id = ? AND user_id = ?"
        number, last_at = connection.execute(query, (channel_id, user_id)).fetchone() or (1, now_ms())
        was_silent = 0 < self._session_timeout_ms < now_ms() - last_at
        if was_silent and not _is_answering(connection, channel_id, user_id):
            number += 1
        _set_conversation(connection, channel_id, user_id, number)
        return number


def _is_answering(connection: sqlite3.Connection, channel_id: str, user_id: str) -> bool:
    query = "SELECT 1 FROM delivery WHERE channel_id = ? AND user_id = ? AND answer IS NULL LIMIT 1"
    return connection.execute(query, (channel_id, user_id)).fetchone() is not None


def _set_conversation(connection: sqlite3.Connection, channel_id: str, user_id: str, number: int) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO conversation VALUES (?, ?, ?, ?)", (channel_id, user_id, number, now_ms())
    )


def _find(connection: sqlite3.Connection, where: str, *values: str) -> list[Delivery]:
    rows = connection.execute(f"SELECT {_COLUMNS} FROM delivery WHERE {where}", values).fetchall()
    return [Delivery(**dict(zip(_COLUMNS.split(", "), row, strict=True))) for row in rows]
