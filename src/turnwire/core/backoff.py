"""The delays between attempts: one policy for every retry loop."""

import asyncio
import random
from collections.abc import Awaitable, Callable

from msgspec import Struct

# Beyond this many failures every policy has reached its longest delay; the power below would overflow.
_MAX_EXPONENT = 64


class Backoff(Struct, frozen=True, kw_only=True):
    """Exponential backoff with a cap and jitter.

    The caller counts the failures, so a loop, a restarted process and a database row can all use it. `jitter` is the
    share by which a delay may be shorter or longer, so that callers that failed together do not retry together.
    """

    first: float
    longest: float
    factor: float = 2.0
    jitter: float = 0.0

    def delay(self, failures: int, uniform: Callable[[float, float], float] = random.uniform) -> float:
        """Return the seconds to wait before the next attempt, after `failures` failed ones (at least 1)."""
        exponent = min(max(failures - 1, 0), _MAX_EXPONENT)
        return min(self.first * self.factor**exponent, self.longest) * uniform(1 - self.jitter, 1 + self.jitter)

    async def wait(self, failures: int, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Sleep for the delay before the next attempt."""
        await sleep(self.delay(failures))
