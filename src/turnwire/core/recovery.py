"""Recovery: continue a turn on another worker, from its last finished step.

A step is finished when its effects are in the log: a tool call with its result, or a person's decision. Model output
after that is void and is generated again. A call without a result may or may not have taken effect: a person decides
whether to run it again, unless the agent says that its tool may be repeated.
"""

from collections.abc import Iterator
from typing import Literal

from turnwire.core.budget import Limits
from turnwire.core.cancellation import HANDED_BACK, SHUTDOWN, WORKER_LOST, Stop
from turnwire.core.codec import now_ms
from turnwire.core.contracts import Agent, Store, Suspension, repeats, resumes
from turnwire.core.errors import EventRefusedError
from turnwire.core.events import ApprovalRequestEvent, RestartEvent, StatusEvent
from turnwire.core.history import call_messages
from turnwire.core.log import TurnLog
from turnwire.core.state import TurnFold
from turnwire.core.turns import Message, Step

MAX_RESTARTS = 3
"""The limit exists because a turn that is often lost with its worker may be what kills the workers."""
MOVING_ON = "The server is being stopped; this answer goes on elsewhere."
OUTCOME_UNKNOWN = (
    "The server was lost or stopped while this call ran, so it may have taken effect already. Run it again?"
)


def can_continue(agent: Agent, stop: Stop) -> bool:
    """Return True if another worker can continue a turn of this agent after this stop."""
    return resumes(agent) and stop in (HANDED_BACK, SHUTDOWN, WORKER_LOST)


async def release_or_suspend(
    log: TurnLog, store: Store, agent: Agent, limits: Limits, stop: Stop
) -> Literal["queued", "waiting"] | None:
    """Queue a turn for another worker, or suspend it if a person must decide first. Return its phase.

    Return None if the turn has to end: it was restarted too often, or its log is full. Raises StoreError.
    """
    fold, checkpoint = log.fold, await store.checkpoint(log.turn_id)
    doubtful: list[Step] = []
    try:
        if _is_between_steps(fold, stop):
            log.append(StatusEvent(MOVING_ON))
        elif fold.restarts >= MAX_RESTARTS or fold.undecided:
            return None
        else:
            doubtful = [call for call in unfinished_calls(fold) if not repeats(agent, call.name)]
            log.append(RestartEvent(fold.border, stop.reason))
        for call in doubtful:
            log.append(ApprovalRequestEvent(call.id, call.name, call.args or {}, OUTCOME_UNKNOWN))
    except EventRefusedError:
        return None
    # Until another worker claims the turn, nothing else would keep an agent that was left behind from writing.
    log.ended = True
    if doubtful:
        await log.suspend(Suspension(now_ms() + int(limits.approval_timeout * 1000), checkpoint))
        return "waiting"
    await log.release()
    return "queued"


def _is_between_steps(fold: TurnFold, stop: Stop) -> bool:
    """Return True if nothing has to be taken back. The loss of a worker always counts as a restart."""
    if stop is SHUTDOWN:
        return fold.state().position == fold.border and not unfinished_calls(fold)
    return stop is HANDED_BACK


def unfinished_calls(fold: TurnFold) -> list[Step]:
    """Return the calls that may have begun and have no result. A call that a person has denied never began."""
    return [
        call
        for call in fold.own_calls
        if call.state == "running" and not ((decision := fold.decision(call.id)) and not decision.approved)
    ]


def progress(fold: TurnFold) -> tuple[Message, ...]:
    """Return the work of the turn's own agent so far, as the messages that follow the user's."""
    calls = list(_parallel_calls(fold))
    messages = list(call_messages(fold.text, calls, lambda call: fold.end_of(call) is not None))
    if rest := fold.text[calls[-1][0].answer_offset if calls else 0 :]:
        messages.append(Message("assistant", rest))
    return tuple(messages)


def _parallel_calls(fold: TurnFold) -> Iterator[list[Step]]:
    """Group the calls that a model made at once: with no text between them, and none of them finished."""
    group: list[Step] = []
    for call in fold.own_calls:
        ends = [end for earlier in group if (end := fold.end_of(earlier)) is not None]
        if group and (call.answer_offset != group[0].answer_offset or call.position > min(ends, default=call.position)):
            yield group
            group = []
        group.append(call)
    if group:
        yield group
