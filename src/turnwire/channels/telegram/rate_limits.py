"""How much may be sent: one budget a chat, shared by everything that is sent there.

Telegram's limits are per chat and count all kinds of calls together; throttles that each keep to a limit break it in
sum, and a call made during a flood wait makes it longer. So every call asks here first. What must arrive (*durable*)
waits its turn; what only looks nice (*cosmetic*) is given up when there is no room, or when anything durable waits.
"""

import asyncio
import random
import time
from collections import deque
from typing import Protocol

# Time, as the channel counts it: every pause, limit and time-out is asked of one clock.


class Clock:
    """`speed` is for tests: at 20, thirty seconds pass in one and a half, for everything that shares the clock."""

    def __init__(self, speed: float = 1.0) -> None:
        self.speed = speed

    def now(self) -> float:
        return time.monotonic() * self.speed

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self.speed)

    def real(self, seconds: float) -> float:
        """The same length for those who count real seconds."""
        return seconds / self.speed

    def timeout(self, seconds: float) -> asyncio.Timeout:
        return asyncio.timeout(seconds / self.speed)


# A call is counted by the server when it gets there, not when it leaves.
_MARGIN = 1.05


class Allowance(Protocol):
    def ready_in(self, now: float) -> float:
        """Seconds until a call fits; 0 if one does now."""
        ...

    def take(self, now: float) -> None: ...


class Bucket:
    """So many at once, and one more every `1 / rate` seconds."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst = rate, burst
        self._left, self._at = float(burst), 0.0

    def _refill(self, now: float) -> None:
        if now > self._at:
            self._left = min(float(self._burst), self._left + (now - self._at) * self._rate)
            self._at = now

    def ready_in(self, now: float) -> float:
        self._refill(now)
        return max(0.0, (1.0 - self._left) / self._rate)

    def take(self, now: float) -> None:
        self._refill(now)
        self._left -= 1.0


class Window:
    """At most `limit` in any stretch of `seconds`."""

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
    """The room that one chat has. Topics of a chat share it."""

    def __init__(self, clock: Clock, everywhere: Allowance, is_private: bool) -> None:
        self._clock = clock
        self._everywhere = everywhere
        self._messages: Allowance = Bucket(rate=1.0, burst=3) if is_private else Window(20, 60.0)
        self._drafts: tuple[Allowance, ...] = (Window(20, 5.0), Window(40, 30.0))
        self._closed_until = 0.0
        self._turn = asyncio.Lock()
        self._waiting = 0

    @property
    def closed_for(self) -> float:
        """Seconds that a flood wait still lasts."""
        return max(0.0, self._closed_until - self._clock.now())

    def close(self, retry_after: float) -> None:
        """Nothing more goes out until the server allows it, and a little later, so that not everybody comes at once."""
        until = self._clock.now() + retry_after + random.uniform(0.1, 1.0)
        self._closed_until = max(self._closed_until, until)

    async def wait(self) -> None:
        """Durable: returns when a call may be made, first come, first served."""
        self._waiting += 1
        try:
            async with self._turn:
                while (pause := self._ready_in(self._messages, self._everywhere)) > 0:
                    await self._clock.sleep(pause)
                self._take(self._messages, self._everywhere)
        finally:
            self._waiting -= 1

    def take(self) -> bool:
        """Cosmetic: whether a call may be made now."""
        return self._waiting == 0 and self._try(self._messages, self._everywhere)

    def take_typing(self) -> bool:
        return self._waiting == 0 and self._try(self._messages, self._everywhere, *self._drafts)

    def take_draft(self) -> bool:
        return self._try(self._everywhere, *self._drafts)

    def _ready_in(self, *allowances: Allowance) -> float:
        now = self._clock.now()
        return max(self._closed_until - now, *(allowance.ready_in(now) for allowance in allowances))

    def _take(self, *allowances: Allowance) -> None:
        now = self._clock.now()
        for allowance in allowances:
            allowance.take(now)

    def _try(self, *allowances: Allowance) -> bool:
        if self._ready_in(*allowances) > 0:
            return False
        self._take(*allowances)
        return True


class Budgets:
    """The budgets of all chats, and what they have in common."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._everywhere = Window(30, 1.0)
        self._chats: dict[int, ChatBudget] = {}

    def of(self, chat_id: int) -> ChatBudget:
        if chat_id not in self._chats:
            # People's chats have positive ids, those of groups and channels are negative.
            self._chats[chat_id] = ChatBudget(self._clock, self._everywhere, is_private=chat_id > 0)
        return self._chats[chat_id]
