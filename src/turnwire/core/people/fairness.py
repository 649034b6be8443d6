"""Fair slots: one mechanism for everything that many principals share and that one of them could use up.

A principal holds at most a few slots. A free slot goes to the principal that was served longest ago, so a principal
with a hundred requests delays another one by a single request. A principal with too many waiting requests
is refused, before any work is done.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from turnwire.core import metrics
from turnwire.core.errors import TooManyRequestsError


class FairSlots:
    """A fixed number of slots. A principal holds at most `each` of them, and at most `waiting` of its requests wait.

    With `rests`, a slot that was given back counts as its principal's for as long again as it was held, so that no
    principal keeps a processor busy all the time. Others may take it at once.
    """

    def __init__(self, name: str, *, slots: int, each: int, waiting: int, rests: bool = False) -> None:
        self._name = name
        self.free = slots
        self.each = each
        self.max_waiting = waiting
        self._rests = rests
        self._held: Counter[str] = Counter()
        # In the order in which the principals were served; one that is served goes to the end.
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}

    def held_by(self, principal: str) -> int:
        """Return how many slots a principal holds."""
        return self._held[principal]

    def waiting_of(self, principal: str) -> int:
        """Return how many requests of a principal wait for a slot."""
        return len(self._queues.get(principal, ()))

    @asynccontextmanager
    async def slot(self, principal: str) -> AsyncGenerator[None]:
        """Hold a slot in this context. Raises TooManyRequestsError."""
        await self.take(principal)
        since = asyncio.get_running_loop().time()
        try:
            yield
        finally:
            self.give_back(principal, asyncio.get_running_loop().time() - since)

    async def take(self, principal: str) -> None:
        if self.free > 0 and self._held[principal] < self.each and principal not in self._queues:
            self._take(principal)
        else:
            await self._wait(principal)

    def give_back(self, principal: str, seconds: float = 0) -> None:
        """Give back a slot that was held for this number of seconds."""
        self.free += 1
        if self._rests and seconds:
            asyncio.get_running_loop().call_later(seconds, self._release, principal)
            self._hand_out()
        else:
            self._release(principal)

    def _release(self, principal: str) -> None:
        self._held[principal] -= 1
        if not self._held[principal]:
            del self._held[principal]
        self._hand_out()

    def _take(self, principal: str) -> None:
        self.free -= 1
        self._held[principal] += 1

    async def _wait(self, principal: str) -> None:
        if self.waiting_of(principal) >= self.max_waiting:
            metrics.OVERLOADS.add(self._name)
            raise TooManyRequestsError(self._name)
        queue = self._queues.setdefault(principal, deque())
        ticket: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(ticket)
        try:
            await ticket
        except asyncio.CancelledError:
            if ticket.done() and not ticket.cancelled():
                self.give_back(principal)  # The slot came at the same moment.
            elif ticket in queue:
                queue.remove(ticket)
                if not queue:
                    self._queues.pop(principal, None)
            raise

    def _hand_out(self) -> None:
        while self.free > 0:
            principal = next((name for name in self._queues if self._held[name] < self.each), None)
            if principal is None:
                return
            queue = self._queues.pop(principal)
            ticket = queue.popleft()
            if queue:
                self._queues[principal] = queue
            if not ticket.done():
                self._take(principal)
                ticket.set_result(None)
