"""What principals may use in a day: tokens, counted by the store when a turn ends and here while it runs.

A day is UTC. A turn's tokens are what its models took in and put out, as far as they say; they count for the day
the turn ends on, whatever its outcome, and deleting its session gives none of them back.
"""

from collections.abc import Callable

from msgspec import Struct

from turnwire.core.codec import now_ms
from turnwire.core.contracts import Budget, TurnStore
from turnwire.core.errors import AgentError, BudgetSpentError
from turnwire.core.events import Event, ReasoningEvent, SearchEvent, TokenEvent, ToolCallEvent, Usage, UsageEvent
from turnwire.core.state import TurnFold
from turnwire.core.turns import TurnRecord

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


# What one turn uses while it runs, whoever runs it, and when that is too much.


class UsageMeter:
    """Counts the steps (tool calls and searches) and the tokens of a turn.

    A model says what a call has cost when it is over. A turn that is over its budget by then may have said all it
    had to say, so it is not ended before it goes on.
    """

    def __init__(self, record: TurnRecord, max_steps: int, spending: Spending) -> None:
        self.is_spent = False
        self._principal = record.principal
        self._max_steps = max_steps
        self._steps = 0
        self._searches: set[str] = set()
        self._spending = spending
        self._budget: Budget | None = None

    async def begin(self, so_far: TurnFold) -> None:
        """Looks at what is left. Raises BudgetSpentError if that is nothing, StoreError."""
        self._steps = so_far.steps_taken
        if self._spending.limit:
            self._budget = await self._spending.budget(self._principal)
            self._spend(tokens_in(so_far.state().usage))
            if self._budget.left <= 0:
                raise self.overdraft()

    def note(self, event: Event) -> None:
        """Counts an event that is about to be written. Raises the error that the turn is to end with."""
        match event:
            case UsageEvent():
                self._spend(tokens_in(event))
            case TokenEvent() | ReasoningEvent():
                if self.is_spent:
                    raise self.overdraft()
            case ToolCallEvent():
                self._step()
            case SearchEvent() if event.step_id not in self._searches:
                self._searches.add(event.step_id)
                self._step()
            case _:
                pass

    def overdraft(self) -> BudgetSpentError:
        assert self._budget is not None
        return BudgetSpentError(self._budget.limit, self._budget.used, self._budget.resets_at)

    def _spend(self, tokens: int) -> None:
        if self._budget is not None:
            self._budget = self._spending.spend(self._principal, tokens)
            self.is_spent = self.is_spent or self._budget.used > self._budget.limit

    def _step(self) -> None:
        if self.is_spent:
            raise self.overdraft()
        self._steps += 1
        if self._steps > self._max_steps:
            raise AgentError(
                f"The agent has taken {self._max_steps} steps, the limit for one turn, and is not done; ask for less "
                "at once.",
                code="max_turns",
            )


# What one turn, one session and one principal may use. Times are in seconds.


class Limits(Struct, frozen=True, kw_only=True):
    max_event_bytes: int = 256 * 1024
    max_events_per_turn: int = 100_000
    max_uncommitted_events: int = 1_000
    max_queued_turns: int = 8
    max_running_turns: int = 64
    max_worker_turns: int = 1_000
    max_steps_per_turn: int = 100
    max_tokens_per_day: int = 0
    history_turns: int = 50
    history_tokens: int = 32_000
    turn_timeout: float = 600
    approval_timeout: float = 86_400
    cancel_patience: float = 5
    lease: float = 10
