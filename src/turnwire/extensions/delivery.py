"""Brings answers to channels: one lane for each user of a channel, in which answers go one after the other."""

import asyncio
import logging
import sqlite3
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

from msgspec import Struct

from turnwire.core.codec import now_ms
from turnwire.core.contracts import Store
from turnwire.core.errors import NotFoundError, ShuttingDownError, TurnwireError
from turnwire.core.turns import TurnState
from turnwire.extensions import events
from turnwire.extensions.calls import KernelLimits
from turnwire.extensions.channels import Channel, Showing, TurnListener, final_text
from turnwire.extensions.events import EventBus
from turnwire.extensions.journal import Journal

# The answers that are to be brought to channels: from the message that was taken to the answer that was shown.


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


class DeliveryRecords:
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
            events.record(connection, "user_message", {"text": text, "user_id": user_id, "channel_id": channel_id})
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
                events.record(connection, "agent_response", payload)
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


logger = logging.getLogger("turnwire.extensions")


class PendingDelivery:
    """One answer on its way. `text` is the answer, once the channel has it or has refused it for the first time."""

    def __init__(self, delivery: Delivery, *, is_resumed: bool = False) -> None:
        self.delivery = delivery
        self.is_resumed = is_resumed
        self.is_cancelled = False
        self.has_ended = False
        self.refusal: str | None = None
        self.text: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        # Nobody may be waiting for it.
        self.text.add_done_callback(lambda text: text.cancelled() or text.exception())

    def settle(self, text: str) -> None:
        if not self.text.done():
            self.text.set_result(text)

    def abandon(self, error: Exception) -> None:
        if not self.text.done():
            self.text.set_exception(error)


class UserQueue:
    def __init__(self) -> None:
        self.starting = asyncio.Lock()
        self.visitors = 0
        self.errands: list[PendingDelivery] = []
        """All that are not done: those being started, and those in the queue."""
        self.queue: deque[PendingDelivery] = deque()
        self.task: asyncio.Task[None] | None = None


class DeliveryQueue:
    def __init__(
        self,
        store: Store,
        channels: Mapping[str, Channel],
        deliveries: DeliveryRecords,
        bus: EventBus,
        limits: KernelLimits,
    ) -> None:
        self._store = store
        self._channels = channels
        self._deliveries = deliveries
        self._bus = bus
        self._limits = limits
        self._lanes: dict[tuple[str, str], UserQueue] = {}

    @asynccontextmanager
    async def taking(self, channel_id: str, user_id: str) -> AsyncGenerator[UserQueue]:
        """The user's lane, with nobody else at its beginning: turns start in the order of their messages."""
        key = (channel_id, user_id)
        lane = self._lanes.setdefault(key, UserQueue())
        lane.visitors += 1
        try:
            async with lane.starting:
                yield lane
        finally:
            lane.visitors -= 1
            self._tidy(key, lane)

    def errands(self, channel_id: str, user_id: str) -> list[PendingDelivery]:
        lane = self._lanes.get((channel_id, user_id))
        return list(lane.errands) if lane else []

    def carry(self, errand: PendingDelivery) -> None:
        """Brings the answer when those before it in the lane have been brought."""
        key = (errand.delivery.channel_id, errand.delivery.user_id)
        lane = self._lanes[key]
        lane.queue.append(errand)
        if lane.task is None:
            lane.task = asyncio.create_task(self._run(key, lane), name=f"answers to {key[1]} on {key[0]}")

    async def close(self, patience: float) -> None:
        """What has ended is brought, if its channel is quick about it; the rest is left to the next process."""
        ended = [errand.text for errand in self._unfinished() if await self._is_ended(errand)]
        if ended:
            await asyncio.wait(ended, timeout=patience)
        tasks = [lane.task for lane in self._lanes.values() if lane.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=patience)
        for errand in self._unfinished():
            errand.abandon(ShuttingDownError())

    def _unfinished(self) -> list[PendingDelivery]:
        return [errand for lane in self._lanes.values() for errand in lane.errands]

    async def _is_ended(self, errand: PendingDelivery) -> bool:
        turn_id = errand.delivery.turn_id
        if errand.refusal is not None or turn_id is None:
            return errand.refusal is not None
        try:
            return await self._store.turn_state(turn_id) is not None
        except TurnwireError:
            return False

    async def _run(self, key: tuple[str, str], lane: UserQueue) -> None:
        while lane.queue:
            errand = lane.queue.popleft()
            try:
                await self._bring(errand)
            except Exception as error:
                # The journal or the store: the answer is left to the next process.
                logger.exception("the answer %s could not be brought", errand.delivery.key)
                errand.abandon(error)
            lane.errands.remove(errand)
        lane.task = None
        self._tidy(key, lane)

    def _tidy(self, key: tuple[str, str], lane: UserQueue) -> None:
        if not lane.errands and not lane.visitors and lane.task is None:
            self._lanes.pop(key, None)

    async def _bring(self, errand: PendingDelivery) -> None:
        delivery = errand.delivery
        channel = self._channels.get(delivery.channel_id)
        if channel is None:
            raise LookupError(f"there is no channel {delivery.channel_id!r} any more")
        showing = channel.show(delivery.user_id)
        if errand.refusal is not None:
            await showing.start()
            text, is_brought = errand.refusal, await showing.end(errand.refusal, cancelled_text=None)
        else:
            try:
                text, is_brought = await self._show(errand, showing)
            except NotFoundError:
                # Its session was deleted: there is nothing to bring.
                text, is_brought = "", True
        if is_brought:
            await self._deliveries.delivered(delivery)
        errand.settle(text)
        if not is_brought:
            await self._insist(errand, showing, text)

    async def _show(self, errand: PendingDelivery, showing: Showing) -> tuple[str, bool]:
        """Shows the turn from its beginning to its end: its text, and whether the channel has taken it."""
        turn_id = errand.delivery.turn_id
        assert turn_id is not None
        state = await self._store.turn_state(turn_id) if errand.is_resumed else None
        if state is not None:
            # An answer that was complete before this process began is a message, not a stream.
            text = await self._answered(errand, state)
            return text, await showing.send(text)
        await showing.start()
        state = await TurnListener(showing.chunk, showing.step, showing.ask, showing.restart).hear(self._store, turn_id)
        text = await self._answered(errand, state)
        stopped = state.text if state.outcome == "cancelled" else None
        return text, await showing.end(text, cancelled_text=stopped)

    async def _answered(self, errand: PendingDelivery, state: TurnState) -> str:
        errand.has_ended = True
        text = final_text(state)
        await self._deliveries.answered(errand.delivery, text, state.session_id, state.agent)
        self._bus.wake()
        return text

    async def _insist(self, errand: PendingDelivery, showing: Showing, text: str) -> None:
        """An answer is not given up for one failure: it is sent again, and by the next process if need be."""
        for attempt in range(1, self._limits.delivery_attempts):
            await asyncio.sleep(self._limits.restart_delay * 2 ** (attempt - 1))
            if await showing.send(text):
                await self._deliveries.delivered(errand.delivery)
                return
        where = f"{errand.delivery.user_id!r} on {errand.delivery.channel_id!r}"
        logger.error("an answer for %s could not be delivered; it is tried again at the next start", where)
