"""What a person is asked, as the protocol's interrupts.

The id of one is `<turn id>:<position of the request>`, so that a decision names its turn, and never another request
for the same call.
"""

from typing import Any

from turnwire.core.events import ApprovalRequestEvent
from turnwire.wires.ag_ui.frames import known

_RESPONSE_SCHEMA = {
    "type": "object",
    "properties": {"approved": {"type": "boolean"}, "reason": {"type": "string"}},
    "required": ["approved"],
}


def interrupt_id(turn_id: str, position: int) -> str:
    return f"{turn_id}:{position}"


def interrupt(own_id: str, asked: ApprovalRequestEvent, call: str, agent: str | None = None) -> dict[str, Any]:
    """`metadata` is how TanStack AI knows an approval that it may answer."""
    return known(
        id=own_id,
        reason="tool_call",
        message=asked.reason,
        toolCallId=call,
        responseSchema=_RESPONSE_SCHEMA,
        metadata={"kind": "approval", "toolName": asked.tool, "input": asked.args},
        subagentRunId=agent,
    )
