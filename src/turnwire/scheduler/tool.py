"""The tool by which an agent schedules a message to itself. A person must approve each call."""

from typing import Annotated

from pydantic import Field

from turnwire.core.codec import now_ms, time_text
from turnwire.core.contracts import Store
from turnwire.core.emit import current_turn
from turnwire.core.errors import ToolError
from turnwire.scheduler.schedule import Schedule, ScheduleError
from turnwire.scheduler.service import Scheduler
from turnwire.tools import Tool, tool

_MAX_MINUTES = 60 * 24 * 365


def follow_up_tool(scheduler: Scheduler, store: Store) -> Tool:
    """Return the tool `schedule_follow_up`, which sends a message into the session of the turn that calls it."""

    @tool(needs_approval=True)
    async def schedule_follow_up(
        message: Annotated[str, Field(min_length=1, max_length=10_000)],
        in_minutes: Annotated[float, Field(gt=0, le=_MAX_MINUTES)],
    ) -> str:
        """Send yourself a message in this conversation later, for example to check on something."""
        turn = current_turn()
        records = await store.unfinished(turn.session_id) if turn else []
        record = next((record for record in records if turn and record.id == turn.turn_id), None)
        if record is None:
            raise ToolError("a follow-up can be scheduled in a running turn only")
        now = now_ms()
        at = now + int(in_minutes * 60_000)
        try:
            await scheduler.add(
                Schedule(
                    id="",
                    principal=record.principal,
                    message=message,
                    created_at=now,
                    name="follow-up",
                    at=at,
                    agent=record.agent,
                    session_id=record.session_id,
                )
            )
        except ScheduleError as error:
            raise ToolError(str(error)) from error
        return f"The message will be sent at {time_text(at)}."

    return schedule_follow_up
