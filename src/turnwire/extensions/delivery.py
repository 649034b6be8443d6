"""Deliveries: from an accepted message to an answer that its channel has taken, in order for each user."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar
from urllib.parse import quote, unquote

from msgspec import Struct
from msgspec.structs import replace

from turnwire.core.backoff import Backoff
from turnwire.core.contracts.stores import SqlConnection, Store
from turnwire.core.errors import NoAgentError, NotFoundError, ShuttingDownError, StoreError, TurnwireError
from turnwire.core.log.codec import now_ms
from turnwire.core.log.turns import TurnState
from turnwire.extensions.calls import ExtensionLimits, cancel_all
from turnwire.extensions.channels import NO_AGENT, ChannelHost, ChannelStream, error_text, final_text, follow_turn
from turnwire.extensions.contract import MessageReceipt
from turnwire.extensions.events import EventBus, record_event
from turnwire.extensions.tables import ExtensionTables

logger = logging.getLogger("turnwire.extensions")

T = TypeVar("T")
_COLUMNS = "key, channel_id, user_id, principal, agent_id, session, text, turn_id, answer, delivered_at"
_KEEP_MS = 7 * 86_400_000
"""The time that a message id is recognized after its answer was delivered."""
_INSERT = """
    INSERT INTO turnwire.channel_delivery
        (key, number, channel_id, user_id, principal, agent_id, session, text, at)
    SELECT $1, 1 + coalesce(max(number), 0), CAST($2 AS TEXT), $3, $4, $5, $6, $7, CAST($8 AS BIGINT)
    FROM turnwire.channel_delivery WHERE channel_id = $2
"""
_CONVERSATION = "SELECT number, last_at FROM turnwire.channel_conversation WHERE channel_id = $1 AND user_id = $2"
_SET_CONVERSATION = """
    INSERT INTO turnwire.channel_conversation (channel_id, user_id, number, last_at) VALUES ($1, $2, $3, $4)
    ON CONFLICT (channel_id, user_id) DO UPDATE SET number = excluded.number, last_at = excluded.last_at
"""
_IS_ANSWERING = """
    SELECT 1 FROM turnwire.channel_delivery WHERE channel_id = $1 AND user_id = $2 AND answer IS NULL LIMIT 1
"""
_MAX_RETRY_SECONDS = 60.0


class Delivery(Struct, frozen=True):
    """A message and where its answer goes. `session` is the external id of its session, once it is accepted."""

    key: str
    channel_id: str
    user_id: str
    principal: str
    agent_id: str | None = None
    text: str = ""
    session: str = ""
    turn_id: str | None = None
    answer: str | None = None
    delivered_at: int | None = None

    @property
    def message_id(self) -> str:
        return unquote(self.key.removeprefix(f"{self.channel_id}:{self.user_id}:"))


def delivery_key(channel_id: str, user_id: str, message_id: str) -> str:
    """Return the key of a message. The id is quoted, so that no two messages of different users have one key."""
    return f"{channel_id}:{user_id}:{quote(message_id, safe='')}"


class DeliveryRecords:
    """The deliveries and conversations in the store."""

    def __init__(self, tables: ExtensionTables, session_timeout: float) -> None:
        self._tables = tables
        self._session_timeout_ms = session_timeout * 1000

    async def add(self, message: Delivery) -> tuple[Delivery, bool]:
        """Commit a message with its `user_message` event. Return its row, and False if its key was there already."""
        channel_id, user_id = message.channel_id, message.user_id
        payload = {"text": message.text, "user_id": user_id, "channel_id": channel_id}

        async def insert(connection: SqlConnection) -> tuple[Delivery, bool]:
            if rows := await _select(connection, "key = $1", message.key):
                return rows[0], False
            conversation = await self._conversation(connection, channel_id, user_id)
            row = replace(message, session=f"{channel_id}:{user_id}:{conversation}")
            columns = (row.key, channel_id, user_id, row.principal, row.agent_id, row.session, row.text)
            await connection.execute(_INSERT, *columns, now_ms())
            await record_event(connection, "user_message", payload)
            return row, True

        return await self._tables.transaction(insert, channel_id)

    async def conversation(self, channel_id: str, user_id: str) -> str:
        """Return the external id of the session that this user is in now."""
        number = await self._tables.transaction(lambda connection: self._conversation(connection, channel_id, user_id))
        return f"{channel_id}:{user_id}:{number}"

    async def new_conversation(self, channel_id: str, user_id: str) -> None:
        async def update(connection: SqlConnection) -> None:
            number = await self._conversation(connection, channel_id, user_id)
            await connection.execute(_SET_CONVERSATION, channel_id, user_id, number + 1, now_ms())

        await self._tables.transaction(update, channel_id)

    async def set_turn(self, delivery: Delivery) -> None:
        query = "UPDATE turnwire.channel_delivery SET turn_id = $1 WHERE key = $2"
        await self._execute(delivery, query, delivery.turn_id, delivery.key)

    async def set_answer(self, delivery: Delivery, answer: str, session_id: str, agent_id: str | None) -> None:
        """Keep the answer until it is delivered, with its `agent_response` event, which is published once."""
        payload = {
            "text": answer,
            "user_id": delivery.user_id,
            "channel": delivery.channel_id,
            "session_id": session_id,
            "agent_id": agent_id,
        }
        update = "UPDATE turnwire.channel_delivery SET answer = $1 WHERE key = $2 AND answer IS NULL RETURNING key"
        # The session timeout runs from the answer: it may have taken long.
        touch = "UPDATE turnwire.channel_conversation SET last_at = $1 WHERE channel_id = $2 AND user_id = $3"

        async def write(connection: SqlConnection) -> None:
            if await connection.fetchrow(update, answer, delivery.key) is not None:
                await record_event(connection, "agent_response", payload)
                await connection.execute(touch, now_ms(), delivery.channel_id, delivery.user_id)

        await self._tables.transaction(write, delivery.channel_id)

    async def set_delivered(self, delivery: Delivery) -> None:
        """Note that the answer is delivered. Both texts are removed: they are in the log, which people may delete."""
        query = "UPDATE turnwire.channel_delivery SET delivered_at = $1, text = '', answer = '' WHERE key = $2"
        await self._execute(delivery, query, now_ms(), delivery.key)

    async def _execute(self, delivery: Delivery, query: str, *values: object) -> None:
        await self._tables.transaction(lambda connection: connection.execute(query, *values), delivery.channel_id)

    async def undelivered(self) -> list[Delivery]:
        """Delete the rows that are too old, and return the undelivered ones in order."""
        prune = "DELETE FROM turnwire.channel_delivery WHERE coalesce(delivered_at, at) < $1"

        async def prune_and_select(connection: SqlConnection) -> list[Delivery]:
            await connection.execute(prune, now_ms() - _KEEP_MS)
            return await _select(connection, "delivered_at IS NULL ORDER BY channel_id, number")

        return await self._tables.transaction(prune_and_select)

    async def _conversation(self, connection: SqlConnection, channel_id: str, user_id: str) -> int:
        """Return the number of the user's conversation, which is a new one after a long silence."""
        row = await connection.fetchrow(_CONVERSATION, channel_id, user_id)
        number, last_at = row or (1, now_ms())
        was_silent = 0 < self._session_timeout_ms < now_ms() - last_at
        if was_silent and await connection.fetchrow(_IS_ANSWERING, channel_id, user_id) is None:
            number += 1
        await connection.execute(_SET_CONVERSATION, channel_id, user_id, number, now_ms())
        return number


async def _select(connection: SqlConnection, where: str, *values: str) -> list[Delivery]:
    rows = await connection.fetch(f"SELECT {_COLUMNS} FROM turnwire.channel_delivery WHERE {where}", *values)
    return [Delivery(**dict(zip(_COLUMNS.split(", "), row, strict=True))) for row in rows]


class PendingDelivery:
    """A delivery of this process. `is_resumed` marks one that an earlier process has accepted."""

    def __init__(self, delivery: Delivery, *, is_resumed: bool) -> None:
        self.delivery = delivery
        self.receipt = MessageReceipt(delivery.message_id, delivery.user_id)
        self.task: asyncio.Task[None] | None = None
        self.is_resumed = is_resumed
        self.is_cancelled = False
        self.is_started = False
        self.has_ended = False
        self.refusal: str | None = None
        """The error text of a turn that could not be started."""


class UserQueue:
    """The pending deliveries to one user of one channel, in the order of their messages.

    Turns are started one after the other, and their answers are delivered one after the other: starting never waits for
    a delivery. Both locks are fair.
    """

    def __init__(self) -> None:
        self.pending: list[PendingDelivery] = []
        self.current: PendingDelivery | None = None
        """The delivery whose answer is being sent to the channel."""
        self.starting = asyncio.Lock()
        self.delivering = asyncio.Lock()


class DeliveryQueue:
    """The user queues of all channels. `start` starts the turn of a delivery."""

    def __init__(
        self,
        store: Store,
        channels: Mapping[str, ChannelHost],
        records: DeliveryRecords,
        bus: EventBus,
        limits: ExtensionLimits,
        start: Callable[[PendingDelivery], Awaitable[None]],
    ) -> None:
        self._store = store
        self._channels = channels
        self._records = records
        self._bus = bus
        self._limits = limits
        self._start = start
        self._backoff = Backoff(first=limits.restart_delay, longest=_MAX_RETRY_SECONDS)
        self._queues: dict[tuple[str, str], UserQueue] = {}
        self._is_closed = False

    def pending(self, channel_id: str, user_id: str) -> list[PendingDelivery]:
        queue = self._queues.get((channel_id, user_id))
        return list(queue.pending) if queue else []

    def current(self, channel_id: str, user_id: str) -> PendingDelivery | None:
        queue = self._queues.get((channel_id, user_id))
        return queue.current if queue else None

    def add(self, delivery: Delivery, *, is_resumed: bool) -> MessageReceipt:
        """Queue a delivery, unless one with its key is pending, and return its receipt."""
        for pending in self.pending(delivery.channel_id, delivery.user_id):
            if pending.delivery.key == delivery.key:
                return pending.receipt
        pending = PendingDelivery(delivery, is_resumed=is_resumed)
        if self._is_closed:
            pending.receipt.fail(ShuttingDownError())
            return pending.receipt
        key = (delivery.channel_id, delivery.user_id)
        queue = self._queues.setdefault(key, UserQueue())
        queue.pending.append(pending)
        pending.task = asyncio.create_task(self._process(queue, pending), name=f"answer to {key[1]} on {key[0]}")
        return pending.receipt

    async def drop(self, channel_id: str) -> None:
        """Leave the deliveries of a channel to the process that runs the channel now."""
        queues = [self._queues.pop(key) for key in list(self._queues) if key[0] == channel_id]
        await self._cancel([pending for queue in queues for pending in queue.pending])

    async def close(self, patience: float) -> None:
        """Deliver finished answers within the grace period; leave the rest to the next process."""
        self._is_closed = True
        unfinished = [pending for queue in self._queues.values() for pending in queue.pending]
        await self._cancel([pending for pending in unfinished if not pending.is_started])
        have_ended = await asyncio.gather(*map(self._has_ended, unfinished))
        ended = [pending.receipt.text for pending, has_ended in zip(unfinished, have_ended, strict=True) if has_ended]
        if ended:
            await asyncio.wait(ended, timeout=patience)
        await self._cancel(unfinished)

    async def _cancel(self, deliveries: Sequence[PendingDelivery]) -> None:
        await cancel_all([pending.task for pending in deliveries], self._limits.closing_patience)
        for pending in deliveries:
            pending.receipt.fail(ShuttingDownError())

    async def _has_ended(self, pending: PendingDelivery) -> bool:
        if pending.refusal is not None or pending.delivery.turn_id is None:
            return pending.refusal is not None
        try:
            return await self._store.turn_state(pending.delivery.turn_id) is not None
        except TurnwireError:
            return False

    async def _process(self, queue: UserQueue, pending: PendingDelivery) -> None:
        """Start the turn of a message and deliver its answer, both after those of the messages before."""
        # What is not delivered is in the store, and left to the next process.
        error: Exception = ShuttingDownError()
        try:
            async with queue.starting:
                await self._start_turn(pending)
                pending.is_started = True
            async with queue.delivering:
                await self._deliver(queue, pending)
        except ShuttingDownError:
            pass
        except Exception as failure:
            step = "its answer could not be delivered" if pending.is_started else "its turn could not be started"
            logger.exception("message %s: %s", pending.delivery.key, step)
            error = failure
        finally:
            if queue.current is pending:
                queue.current = None
            queue.pending.remove(pending)
            pending.receipt.fail(error)
            key = (pending.delivery.channel_id, pending.delivery.user_id)
            # After `drop`, there may be another queue of the same user.
            if not queue.pending and self._queues.get(key) is queue:
                del self._queues[key]

    async def _start_turn(self, pending: PendingDelivery) -> None:
        if pending.delivery.turn_id is not None:
            return
        try:
            await self._until_stored(lambda: self._start(pending))
        except ShuttingDownError:
            raise
        except NoAgentError:
            pending.refusal = NO_AGENT
        except TurnwireError as error:
            pending.refusal = error_text(str(error))

    async def _until_stored(self, work: Callable[[], Awaitable[T]]) -> T:
        """Call `work` until the store can be used: the message was promised an answer."""
        failures = 0
        while True:
            try:
                return await work()
            except StoreError as error:
                failures += 1
                logger.warning("the store failed (attempt %d), and an answer waits for it: %s", failures, error)
                await self._backoff.wait(failures)

    async def _deliver(self, queue: UserQueue, pending: PendingDelivery) -> None:
        delivery = pending.delivery
        channel = self._channels.get(delivery.channel_id)
        if channel is None:
            raise ShuttingDownError
        stream = ChannelStream(channel, delivery.user_id)

        async def follow() -> tuple[str, bool]:
            await channel.wait_for_delivery(delivery.user_id)
            queue.current = pending
            return await self._stream(pending, stream)

        try:
            text, is_delivered = await self._until_stored(follow)
        except NotFoundError:
            # The session was deleted, and the answer with it.
            text, is_delivered = "", True
        if is_delivered:
            await self._until_stored(lambda: self._records.set_delivered(delivery))
        pending.receipt.complete(text)
        if not is_delivered:
            await self._retry(pending, stream, text)

    async def _stream(self, pending: PendingDelivery, stream: ChannelStream) -> tuple[str, bool]:
        """Stream the turn to the channel. Return the answer's text, and True if the channel has taken it."""
        if pending.refusal is not None:
            await stream.start()
            return pending.refusal, await stream.end(pending.refusal, cancelled_text=None)
        turn_id = pending.delivery.turn_id
        assert turn_id is not None
        state = await self._store.turn_state(turn_id)
        if state is not None and state.outcome == "joined":
            return await self._finish(pending, state), True  # Its answer is that of the turn before.
        if state is not None and pending.is_resumed:
            # An answer that was complete before this process started is a message, not a stream.
            text = await self._finish(pending, state)
            return text, await stream.send(text)
        await stream.start()
        state = await follow_turn(self._store, turn_id, stream)
        text = await self._finish(pending, state)
        return text, await stream.end(text, cancelled_text=state.text if state.outcome == "cancelled" else None)

    async def _finish(self, pending: PendingDelivery, state: TurnState) -> str:
        pending.has_ended = True
        text = final_text(state)
        await self._records.set_answer(pending.delivery, text, state.session_id, state.agent)
        self._bus.wake()
        return text

    async def _retry(self, pending: PendingDelivery, stream: ChannelStream, text: str) -> None:
        for attempt in range(1, self._limits.delivery_attempts):
            await self._backoff.wait(attempt)
            if await stream.send(text):
                return await self._until_stored(lambda: self._records.set_delivered(pending.delivery))
        where = f"{pending.delivery.user_id!r} on {pending.delivery.channel_id!r}"
        logger.error("the answer for %s could not be delivered; the next start tries again", where)
