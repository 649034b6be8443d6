"""What principals may use in a day: tokens, counted by the store when a turn ends and here while it runs.

A day is UTC. A turn's tokens are what its models took in and put out, as far as they say; they count for the day
the turn ends on, whatever its outcome, and deleting its session gives none of them back.
"""

from collections.abc import Callable

from turnwire.core.contracts import Budget, TurnStore
from turnwire.core.events import Usage, UsageEvent
from turnwire.core.logged import now_ms

DAY_MS = 86_400_000
# No turn uses so many. A number that some server made up must still fit into every database.
_MOST_TOKENS = 10**12


def day_of(ms: int) -> int:
    """The number of a day, as stores keep it."""
    return ms // DAY_MS


def tokens_in(usage: Usage | UsageEvent | None) -> int:
    """What counts: input and output, of which cached and reasoning tokens are parts."""
    if usage is None:
        return 0
    told = (usage.input_tokens, usage.output_tokens)
    return sum(min(max(tokens, 0), _MOST_TOKENS) for tokens in told if isinstance(tokens, int))


class Spending:
    """What each principal has used today, also in turns that have not ended.

    The store counts ended turns, of every process; this counts the turns of this process as they run. Either may know
    too little, neither too much, so the larger number is told.
    """

    def __init__(self, store: TurnStore, limit: int, clock: Callable[[], int] = now_ms) -> None:
        self.limit = limit
        self._store = store
        self._clock = clock
        self._day = 0
        self._used: dict[str, int] = {}

    async def budget(self, principal: str) -> Budget:
        """Raises StoreError."""
        ended = await self._store.tokens_used(principal, day_of(self._clock()))
        used = self._today()
        used[principal] = max(used.get(principal, 0), ended)
        return self._budget(principal)

    def spend(self, principal: str, tokens: int) -> Budget:
        """Counts what a running turn has used."""
        used = self._today()
        used[principal] = used.get(principal, 0) + tokens
        return self._budget(principal)

    def _today(self) -> dict[str, int]:
        day = day_of(self._clock())
        if day != self._day:
            self._day, self._used = day, {}
        return self._used

    def _budget(self, principal: str) -> Budget:
        return Budget(self.limit, self._used[principal], (self._day + 1) * DAY_MS)
