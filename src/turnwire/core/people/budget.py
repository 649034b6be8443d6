"""Limits, and the usage that counts against them: tokens a day for a principal, steps and tokens for a turn.

A day is UTC. A turn's tokens are the input and output that its models report; they count for the day on which the turn
ends, whatever its outcome, and deleting the session does not give them back.
"""

from collections.abc import Callable

from turnwire.core.contracts.stores import Budget, TurnStore
from turnwire.core.errors import AgentError, BudgetSpentError
from turnwire.core.log.codec import now_ms
from turnwire.core.log.events import Event, ReasoningEvent, SearchEvent, TokenEvent, ToolCallEvent, Usage, UsageEvent
from turnwire.core.log.state import TurnFold
from turnwire.core.log.turn_log import LogLimits
from turnwire.core.log.turns import TurnRecord


class Limits(LogLimits, frozen=True, kw_only=True):
    """The limits of one turn, one session and one principal. Times are in seconds; a limit of 0 tokens is none.

    Each field is a setting of the same name, except those of `LogLimits`.
    """

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

    def waits_until(self, now: int) -> int:
        """Return the time, in ms, until which a turn that is suspended now waits for a person."""
        return now + int(self.approval_timeout * 1000)


DAY_MS = 86_400_000
# More than any turn uses: a number that a model server has made up must still fit into every database.
_MAX_TOKENS = 10**12


def day_of(ms: int) -> int:
    """Return the number of the day that a time in ms belongs to, as stores keep it."""
    return ms // DAY_MS


def tokens_in(usage: Usage | UsageEvent | None) -> int:
    """Return the tokens that count: input and output, which include cached and reasoning tokens."""
    if usage is None:
        return 0
    counts = (usage.input_tokens, usage.output_tokens)
    return sum(min(max(tokens, 0), _MAX_TOKENS) for tokens in counts if isinstance(tokens, int))


class Spending:
    """The tokens that each principal has used today, including turns that still run.

    The store counts the ended turns of all processes; this counts the running turns of this process. Either number may
    be too low, neither too high, so the larger one is used.
    """

    def __init__(self, store: TurnStore, limit: int, clock: Callable[[], int] = now_ms) -> None:
        self.limit = limit
        self._store = store
        self._clock = clock
        self._day = 0
        self._used: dict[str, int] = {}
        # The tokens in `_used` of each unfinished turn: a turn that continues here is not counted again.
        self._turns: dict[str, int] = {}

    async def budget(self, principal: str) -> Budget:
        """Return the budget and its use today. Raises StoreError."""
        ended = await self._store.tokens_used(principal, day_of(self._clock()))
        used = self._today()
        used[principal] = max(used.get(principal, 0), ended)
        return self._budget(principal)

    def spend(self, principal: str, turn_id: str, tokens: int) -> Budget:
        """Count the tokens of a running turn, of which `tokens` is the total so far."""
        used = self._today()
        more = max(0, tokens - self._turns.get(turn_id, 0))
        used[principal] = used.get(principal, 0) + more
        self._turns[turn_id] = self._turns.get(turn_id, 0) + more
        return self._budget(principal)

    def forget(self, turn_id: str) -> None:
        """Forget a turn that has ended, but not its tokens."""
        self._turns.pop(turn_id, None)

    def _today(self) -> dict[str, int]:
        day = day_of(self._clock())
        if day != self._day:
            self._day, self._used, self._turns = day, {}, {}
        return self._used

    def _budget(self, principal: str) -> Budget:
        return Budget(self.limit, self._used[principal], (self._day + 1) * DAY_MS)


class UsageMeter:
    """Counts the steps (tool calls and searches) and the tokens of a running turn.

    A model reports the usage of a call at its end. By then the answer may be complete, so a turn over its budget fails
    only when it continues.
    """

    __slots__ = ("_budget", "_max_steps", "_record", "_searches", "_spending", "_steps", "_tokens", "is_spent")

    def __init__(self, record: TurnRecord, max_steps: int, spending: Spending) -> None:
        self.is_spent = False
        self._record = record
        self._max_steps = max_steps
        self._steps = self._tokens = 0
        self._searches: tuple[str, ...] = ()
        self._spending = spending
        self._budget: Budget | None = None

    async def begin(self, so_far: TurnFold) -> None:
        """Read the budget. Raises BudgetSpentError if nothing is left, and StoreError."""
        self._steps = so_far.steps_taken
        if self._spending.limit:
            self._budget = await self._spending.budget(self._record.principal)
            self._spend(tokens_in(so_far.state().usage))
            if self._budget.left <= 0:
                raise self.overdraft()

    def note(self, event: Event) -> None:
        """Count an event before it is written. Raises the error that ends the turn."""
        match event:
            case UsageEvent():
                self._spend(tokens_in(event))
            case TokenEvent() | ReasoningEvent():
                if self.is_spent:
                    raise self.overdraft()
            case ToolCallEvent():
                self._step()
            case SearchEvent() if event.step_id not in self._searches:
                self._searches += (event.step_id,)
                self._step()
            case _:
                pass

    def overdraft(self) -> BudgetSpentError:
        assert self._budget is not None
        return BudgetSpentError(self._budget.limit, self._budget.used, self._budget.resets_at)

    def _spend(self, tokens: int) -> None:
        if self._budget is not None:
            self._tokens += tokens
            self._budget = self._spending.spend(self._record.principal, self._record.id, self._tokens)
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
