"""Decisions that come with a message: each is about a call, and about the arguments that the person was shown."""

from typing import Any, cast

from turnwire.core.turns import TurnRecord
from turnwire.server.auth import Caller
from turnwire.server.errors import HttpError
from turnwire.server.routes.ai_sdk.messages import UIMessage
from turnwire.server.turnwire import Turnwire

_EXACT, _LARGEST = 2**53, 2**1023


async def decide(turnwire: Turnwire, caller: Caller, record: TurnRecord, said: UIMessage) -> set[str]:
    """Takes them, and returns the calls. Repeating them changes nothing.

    Raises ApprovalNotFoundError, ApprovalConflictError, TurnNotWaitingError, HttpError 422.
    """
    steps = {step.id: step for step in (await turnwire.state(record)).steps if step.kind == "tool"}
    decided: set[str] = set()
    for part in said.parts:
        if (decision := part.decision) is None:
            continue
        if decision.approved is None:
            raise HttpError(422, "invalid_request", "approval: neither approved nor denied")
        # A call whose id was used before has the position of the second one behind it.
        known = (one for one in (decision.id, decision.id.rpartition("-")[0]) if one in steps)
        call_id = next(known, decision.id)
        asked = steps[call_id].args if call_id in steps else None
        await turnwire.runner.decide(
            record.id,
            call_id,
            approved=decision.approved,
            reason=decision.reason,
            by=caller.principal,
            args=asked if _as_shown(asked) == _as_shown(part.input) else part.input,
        )
        decided.add(call_id)
    return decided


def _as_shown(value: Any) -> Any:
    """A value as JavaScript reads it: a person there sees large numbers rounded, and sends them back so."""
    if isinstance(value, dict):
        return {name: _as_shown(one) for name, one in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_as_shown(one) for one in cast("list[Any]", value)]
    is_large = isinstance(value, int) and not isinstance(value, bool) and _EXACT < abs(value) < _LARGEST
    return float(value) if is_large else value
