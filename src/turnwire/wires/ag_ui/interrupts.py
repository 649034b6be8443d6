"""What a person is asked, as the protocol's interrupts.

The id of one is `<turn id>:<position of the request>`, so that a decision names its turn, and never another request
for the same call.
"""

from typing import Any

from turnwire.core.events import ApprovalRequestEvent, ApprovalResponseEvent
from turnwire.wires.ag_ui.frames import Told, custom, known
from turnwire.wires.ag_ui.voices import Path

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


class Questions:
    """What a run waits for. It goes on when everything is decided; what is decided before is told then."""

    def __init__(self) -> None:
        self.decided: Told = []
        self._asked: dict[Path, list[dict[str, Any]]] = {}
        self._undecided: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._asked)

    def ask(self, own_id: str, event: ApprovalRequestEvent, call: str, agent: str | None) -> None:
        self._asked.setdefault(event.agent_path, []).append(interrupt(own_id, event, call, agent))
        self._undecided.add(event.call_id)

    def decide(self, event: ApprovalResponseEvent, call: str | None) -> bool:
        """Whether everything is decided now."""
        value = known(toolCallId=call, approved=event.approved, reason=event.reason, by=event.by, callId=event.call_id)
        self.decided.append(custom("turnwire.approval", value))
        self._undecided.discard(event.call_id)
        return not self._undecided

    @property
    def interrupts(self) -> list[dict[str, Any]]:
        return [one for those in self._asked.values() for one in those]

    @property
    def ids(self) -> dict[Path, list[str]]:
        """The interrupts of each agent."""
        return {path: [one["id"] for one in those] for path, those in self._asked.items()}
