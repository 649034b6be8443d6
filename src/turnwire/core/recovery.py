"""Turns that go on elsewhere: from their last finished step, when their worker was lost or is being stopped.

A finished step is one whose effects stand in the log: a tool call with its result, or what a person has decided. What
a model was saying since then is void, and said again. A call without a result may or may not have had its effect:
unless its tool may be repeated, a person is asked.
"""

from collections.abc import Iterator

from turnwire.core.budget import Limits
from turnwire.core.cancellation import HANDED_BACK, SHUTDOWN, WORKER_LOST, Stop
from turnwire.core.codec import now_ms
from turnwire.core.contracts import Agent, Store, Suspension, repeats, resumes
from turnwire.core.errors import EventRefusedError
from turnwire.core.events import ApprovalRequestEvent, RestartEvent, StatusEvent
from turnwire.core.history import result_text
from turnwire.core.log import TurnLog
from turnwire.core.state import TurnFold
from turnwire.core.turns import Message, Step, ToolRequest

MOST_RESTARTS = 3
"""A turn that has cost more workers than this may be what kills them."""
MOVING_ON = "The server is being stopped; this answer goes on elsewhere."
OUTCOME_UNKNOWN = (
    "The server was lost or stopped while this call ran, so it may have taken effect already. Run it again?"
)


def may_go_on(agent: Agent | None, stop: Stop) -> bool:
    """Whether what stops a turn is no reason to end it."""
    return agent is not None and resumes(agent) and stop in (HANDED_BACK, SHUTDOWN, WORKER_LOST)


async def set_aside(log: TurnLog, store: Store, agent: Agent, limits: Limits, stop: Stop) -> bool:
    """Leaves a turn for whoever claims it next, or parks it if a person must decide first; the log is closed here.

    False if it has to be ended: it was begun again too often, or its log is full. Raises StoreError.
    """
    fold, checkpoint = log.fold, await store.checkpoint(log.turn_id)
    asked: list[Step] = []
    try:
        if _is_between_steps(fold, stop):
            log.append(StatusEvent(MOVING_ON))
        elif fold.restarts >= MOST_RESTARTS or fold.undecided:
            return False
        else:
            asked = [call for call in calls_under_way(fold) if not repeats(agent, call.name)]
            log.append(RestartEvent(fold.border, stop.reason))
        for call in asked:
            log.append(ApprovalRequestEvent(call.id, call.name, call.args or {}, OUTCOME_UNKNOWN))
    except EventRefusedError:
        return False
    # Whoever was left behind must not write any more: until somebody claims the turn, nothing else would stop them.
    log.ended = True
    if asked:
        await log.park(Suspension(now_ms() + int(limits.approval_timeout * 1000), checkpoint))
    else:
        await log.release()
    return True


def calls_under_way(fold: TurnFold) -> list[Step]:
    """Calls that may have been begun and have not ended. One that a person has denied never began."""
    return [
        call
        for call in fold.own_calls
        if call.state == "running" and not ((decision := fold.decision(call.id)) and not decision.approved)
    ]


def progress(fold: TurnFold) -> tuple[Message, ...]:
    """What a turn's own agent has done in it, as messages after the user's."""
    return tuple(_messages(fold))


def _messages(fold: TurnFold) -> Iterator[Message]:
    text, told = fold.text, 0
    for calls in _requests(fold):
        said, told = text[told : calls[0].answer_offset], calls[0].answer_offset
        yield Message("assistant", said, tuple(ToolRequest(call.id, call.name, call.args or {}) for call in calls))
        for call in calls:
            if fold.end_of(call) is not None:
                yield Message("tool", result_text(call), call_id=call.id)
    if text[told:]:
        yield Message("assistant", text[told:])


def _requests(fold: TurnFold) -> Iterator[list[Step]]:
    """The calls, those together that a model asked for at once: nothing was said, and none had ended, in between."""
    group: list[Step] = []
    for call in fold.own_calls:
        ends = [end for one in group if (end := fold.end_of(one)) is not None]
        if group and (call.answer_offset != group[0].answer_offset or call.position > min(ends, default=call.position)):
            yield group
            group = []
        group.append(call)
    if group:
        yield group


def _is_between_steps(fold: TurnFold, stop: Stop) -> bool:
    """Nothing has been said since the last step, so nothing has to be taken back. A lost worker counts in any case."""
    if stop is SHUTDOWN:
        return fold.state().position == fold.border and not calls_under_way(fold)
    return stop is HANDED_BACK
