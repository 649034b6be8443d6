"""Time, as the channel counts it: every pause, limit and time-out is asked of one clock."""

import asyncio
import time


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
