"""Rate limits: one budget for each chat, shared by all calls.

Telegram counts all kinds of calls to a chat together, and a call during a flood wait makes the wait longer. So every
call takes from the chat's budget first. Durable calls, which must arrive, wait for it. Cosmetic calls, such as edits
of a growing answer, are skipped when the budget is used up or a durable call waits.
"""

import asyncio
import random
import time
from collections import deque
from typing import Protocol

# A call is counted when it reaches the server, not when it leaves.
_MARGIN = 1.05


class Clock:
    """The clock of every pause, limit and timeout of the channel.

    `speed` is for tests: at 20, thirty seconds pass in one and a half, for everything that shares the clock.
    """

    def __init__(self, speed: float = 1.0) -> None:
        self.speed = speed

    def now(self) -> float:
        return time.monotonic() * self.speed

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self.speed)

    def real(self, seconds: float) -> float:
        """Return the same duration in real seconds."""
        return seconds / self.speed

    def timeout(self, seconds: float) -> asyncio.Timeout:
        return asyncio.timeout(seconds / self.speed)


class Allowance(Protocol):
    """A limit that calls are counted against."""

    def ready_in(self, now: float) -> float:
        """Return the seconds until the next call is allowed; 0 if it is now."""
        ...

    def take(self, now: float) -> None: ...


class Bucket:
    """A token bucket: `burst` calls at once, and one more every `1 / rate` seconds."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst = rate, burst
        self._tokens, self._refilled_at = float(burst), 0.0

    def _refill(self, now: float) -> None:
        if now > self._refilled_at:
            self._tokens = min(float(self._burst), self._tokens + (now - self._refilled_at) * self._rate)
            self._refilled_at = now

    def ready_in(self, now: float) -> float:
        self._refill(now)
        return max(0.0, (1.0 - self._tokens) / self._rate)

    def take(self, now: float) -> None:
        self._refill(now)
        self._tokens -= 1.0


class Window:
    """A sliding window: at most `limit` calls in any `seconds`."""

    def __init__(self, limit: int, seconds: float) -> None:
        self._limit, self._seconds = limit, seconds * _MARGIN
        self._taken: deque[float] = deque()

    def ready_in(self, now: float) -> float:
        while self._taken and self._taken[0] <= now - self._seconds:
            self._taken.popleft()
        if len(self._taken) < self._limit:
            return 0.0
        return self._taken[-self._limit] + self._seconds - now

    def take(self, now: float) -> None:
        self._taken.append(now)


class ChatBudget:
    """The budget of one chat, which its topics share."""

    def __init__(self, clock: Clock, shared: Allowance, is_private: bool) -> None:
        self._clock = clock
        self._shared = shared
        self._messages: Allowance = Bucket(rate=1.0, burst=3) if is_private else Window(20, 60.0)
        self._drafts: tuple[Allowance, ...] = (Window(20, 5.0), Window(40, 30.0))
        self._closed_until = 0.0
        self._lock = asyncio.Lock()
        self._waiting = 0

    @property
    def closed_for(self) -> float:
        """The seconds that a flood wait still lasts."""
        return max(0.0, self._closed_until - self._clock.now())

    def close(self, retry_after: float) -> None:
        """Allow no call until the flood wait is over, plus some jitter."""
        until = self._clock.now() + retry_after + random.uniform(0.1, 1.0)
        self._closed_until = max(self._closed_until, until)

    async def wait(self) -> None:
        """Wait until a durable call may be made, in the order of the callers."""
        self._waiting += 1
        try:
            async with self._lock:
                while (pause := self._ready_in(self._messages, self._shared)) > 0:
                    await self._clock.sleep(pause)
                self._take(self._messages, self._shared)
        finally:
            self._waiting -= 1

    def take(self) -> bool:
        """Return True if a cosmetic call may be made now."""
        return self._waiting == 0 and self._take_now(self._messages, self._shared)

    def take_typing(self) -> bool:
        return self._waiting == 0 and self._take_now(self._messages, self._shared, *self._drafts)

    def take_draft(self) -> bool:
        return self._take_now(self._shared, *self._drafts)

    def _ready_in(self, *allowances: Allowance) -> float:
        now = self._clock.now()
        return max(self._closed_until - now, *(allowance.ready_in(now) for allowance in allowances))

    def _take(self, *allowances: Allowance) -> None:
        now = self._clock.now()
        for allowance in allowances:
            allowance.take(now)

    def _take_now(self, *allowances: Allowance) -> bool:
        if self._ready_in(*allowances) > 0:
            return False
        self._take(*allowances)
        return True


class Budgets:
    """The budgets of all chats, and the limit that they share."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._shared = Window(30, 1.0)
        self._chats: dict[int, ChatBudget] = {}

    def of(self, chat_id: int) -> ChatBudget:
        if chat_id not in self._chats:
            # Private chats have positive ids, groups and channels negative ones.
            self._chats[chat_id] = ChatBudget(self._clock, self._shared, is_private=chat_id > 0)
        return self._chats[chat_id]
