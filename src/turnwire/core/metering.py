"""What one turn uses while it runs, whoever runs it, and when that is too much."""

from turnwire.core.budget import Spending, tokens_in
from turnwire.core.contracts import Budget
from turnwire.core.errors import AgentError, BudgetSpentError
from turnwire.core.events import Event, ReasoningEvent, SearchEvent, TokenEvent, ToolCallEvent, UsageEvent
from turnwire.core.fold import TurnFold
from turnwire.core.turns import TurnRecord


class Meter:
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
