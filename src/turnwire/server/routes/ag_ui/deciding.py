"""What a person has decided about interrupts: the decisions of a turn that waits."""

from turnwire.core.errors import ApprovalNotFoundError
from turnwire.core.turns import TurnRecord
from turnwire.server.auth import Caller
from turnwire.server.errors import HttpError
from turnwire.server.routes.ag_ui.messages import ResumeEntry
from turnwire.server.routes.ag_ui.runs import Story
from turnwire.server.turnwire import Turnwire


def turn_of(entries: list[ResumeEntry]) -> str:
    """The turn that is decided about. Raises ApprovalNotFoundError, HttpError 422."""
    turns = {entry.interrupt_id.rpartition(":")[0] for entry in entries}
    if len(turns) != 1:
        raise HttpError(422, "invalid_request", "resume: the interrupts are of more than one run")
    (turn_id,) = turns
    if not turn_id:
        raise ApprovalNotFoundError(entries[0].interrupt_id)
    return turn_id


async def decide(
    turnwire: Turnwire, caller: Caller, record: TurnRecord, story: Story, entries: list[ResumeEntry]
) -> int:
    """Takes them, all or none, and returns the number of the run that follows. Repeating them changes nothing.

    Raises ApprovalNotFoundError, ApprovalConflictError, TurnNotWaitingError, HttpError 422.
    """
    decided = {_position(entry, story): (entry, entry.approved) for entry in entries}
    missing = sorted(story.open - decided.keys())
    if missing and not story.open.isdisjoint(decided):
        names = ", ".join(f"{record.id}:{position}" for position in missing)
        raise HttpError(
            422, "invalid_request", f"resume: every open interrupt is decided at once; there is also {names}"
        )
    calls = {asked.event.call_id: position for position, asked in story.asked.items()}
    for position, (entry, approved) in decided.items():
        asked = story.asked[position].event
        if calls[asked.call_id] != position:
            continue  # It was decided long ago, and the call has been asked about again.
        await turnwire.runner.decide(
            record.id, asked.call_id, approved=approved, reason=entry.reason, by=caller.principal, args=entry.args
        )
    return max(story.asked[position].run for position in decided) + 1


def _position(entry: ResumeEntry, story: Story) -> int:
    number = entry.interrupt_id.rpartition(":")[2]
    position = int(number) if number.isascii() and number.isdecimal() and len(number) < 10 else 0
    if position not in story.asked:
        raise ApprovalNotFoundError(entry.interrupt_id)
    return position
