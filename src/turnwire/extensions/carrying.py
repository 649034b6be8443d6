"""Brings answers to channels: one lane for each user of a channel, in which answers go one after the other."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

from turnwire.core.contracts import Store
from turnwire.core.errors import NotFoundError, ShuttingDownError, TurnwireError
from turnwire.core.turns import TurnState
from turnwire.extensions.bus import EventBus
from turnwire.extensions.channels import Channel, Showing
from turnwire.extensions.deliveries import Deliveries, Delivery
from turnwire.extensions.following import Listener
from turnwire.extensions.limits import KernelLimits
from turnwire.extensions.texts import final_text

logger = logging.getLogger("turnwire.extensions")


class Errand:
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


class Lane:
    def __init__(self) -> None:
        self.starting = asyncio.Lock()
        self.visitors = 0
        self.errands: list[Errand] = []
        """All that are not done: those being started, and those in the queue."""
        self.queue: deque[Errand] = deque()
        self.task: asyncio.Task[None] | None = None


class Carrier:
    def __init__(
        self,
        store: Store,
        channels: Mapping[str, Channel],
        deliveries: Deliveries,
        bus: EventBus,
        limits: KernelLimits,
    ) -> None:
        self._store = store
        self._channels = channels
        self._deliveries = deliveries
        self._bus = bus
        self._limits = limits
        self._lanes: dict[tuple[str, str], Lane] = {}

    @asynccontextmanager
    async def taking(self, channel_id: str, user_id: str) -> AsyncGenerator[Lane]:
        """The user's lane, with nobody else at its beginning: turns start in the order of their messages."""
        key = (channel_id, user_id)
        lane = self._lanes.setdefault(key, Lane())
        lane.visitors += 1
        try:
            async with lane.starting:
                yield lane
        finally:
            lane.visitors -= 1
            self._tidy(key, lane)

    def errands(self, channel_id: str, user_id: str) -> list[Errand]:
        lane = self._lanes.get((channel_id, user_id))
        return list(lane.errands) if lane else []

    def carry(self, errand: Errand) -> None:
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

    def _unfinished(self) -> list[Errand]:
        return [errand for lane in self._lanes.values() for errand in lane.errands]

    async def _is_ended(self, errand: Errand) -> bool:
        turn_id = errand.delivery.turn_id
        if errand.refusal is not None or turn_id is None:
            return errand.refusal is not None
        try:
            return await self._store.turn_state(turn_id) is not None
        except TurnwireError:
            return False

    async def _run(self, key: tuple[str, str], lane: Lane) -> None:
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

    def _tidy(self, key: tuple[str, str], lane: Lane) -> None:
        if not lane.errands and not lane.visitors and lane.task is None:
            self._lanes.pop(key, None)

    async def _bring(self, errand: Errand) -> None:
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

    async def _show(self, errand: Errand, showing: Showing) -> tuple[str, bool]:
        """Shows the turn from its beginning to its end: its text, and whether the channel has taken it."""
        turn_id = errand.delivery.turn_id
        assert turn_id is not None
        state = await self._store.turn_state(turn_id) if errand.is_resumed else None
        if state is not None:
            # An answer that was complete before this process began is a message, not a stream.
            text = await self._answered(errand, state)
            return text, await showing.send(text)
        await showing.start()
        state = await Listener(showing.chunk, showing.step, showing.ask, showing.restart).hear(self._store, turn_id)
        text = await self._answered(errand, state)
        stopped = state.text if state.outcome == "cancelled" else None
        return text, await showing.end(text, cancelled_text=stopped)

    async def _answered(self, errand: Errand, state: TurnState) -> str:
        errand.has_ended = True
        text = final_text(state)
        await self._deliveries.answered(errand.delivery, text, state.session_id, state.agent)
        self._bus.wake()
        return text

    async def _insist(self, errand: Errand, showing: Showing, text: str) -> None:
        """An answer is not given up for one failure: it is sent again, and by the next process if need be."""
        for attempt in range(1, self._limits.delivery_attempts):
            await asyncio.sleep(self._limits.restart_delay * 2 ** (attempt - 1))
            if await showing.send(text):
                await self._deliveries.delivered(errand.delivery)
                return
        where = f"{errand.delivery.user_id!r} on {errand.delivery.channel_id!r}"
        logger.error("an answer for %s could not be delivered; it is tried again at the next start", where)
