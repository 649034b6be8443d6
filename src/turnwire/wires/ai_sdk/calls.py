"""How the tool calls of a turn stand: a result, a progress or a question must be about a call that the client knows."""

from typing import Any

import msgspec

from turnwire.core.events import (
    ApprovalRequestEvent,
    ApprovalResponseEvent,
    ToolCallEvent,
    ToolProgressEvent,
    ToolResultEvent,
)
from turnwire.wires.ai_sdk.chunks import chunk, known

_NO_WORDS = "The tool failed."
_AGAIN = "A person is asked about this call again."
_UNANSWERED = "The turn ended before this tool did."


class Calls:
    """`in_step` are the calls that were made since the step began, by the ids that the client is given."""

    def __init__(self, version: int) -> None:
        self._version = version
        self._ids: dict[str, str] = {}
        self._open: dict[str, None] = {}
        self._asked: dict[str, ApprovalRequestEvent] = {}
        self._denied: set[str] = set()
        self.in_step: set[str] = set()

    @property
    def are_settled(self) -> bool:
        """Whether there are calls in the step, and all of them have ended."""
        return bool(self.in_step) and self.in_step.isdisjoint(self._open)

    def is_open(self, call_id: str) -> bool:
        return self._ids.get(call_id) in self._open

    def is_at_hand(self, call_id: str) -> bool:
        """Whether it is open and of this step, where a client looks for what a person has to decide."""
        return self.is_open(call_id) and self._ids[call_id] in self.in_step

    def call(self, event: ToolCallEvent | ApprovalRequestEvent, position: int) -> bytes:
        return self._announce(event.call_id, event.tool, event.args, event.agent_path, position)

    def progress(self, event: ToolProgressEvent) -> bytes:
        if not self.is_open(event.call_id):
            return b""
        output = known(text=event.text, fraction=event.fraction, data=event.data)
        fields = {"toolCallId": self._ids[event.call_id], "output": output, "dynamic": True, "preliminary": True}
        return chunk("tool-output-available", fields)

    def result(self, event: ToolResultEvent, position: int) -> bytes:
        begun = b""
        if event.call_id not in self._ids:
            begun = self._announce(event.call_id, event.tool, {}, event.agent_path, position)
        call = self._ids[event.call_id]
        if call in self._denied:
            return b""  # It never ran: what it "said" is what the model was told of the denial.
        self._open.pop(call, None)
        if event.success:
            return begun + _ended(call, event.result)
        return begun + _failed(call, _words(event.result))

    def ask(self, event: ApprovalRequestEvent) -> bytes:
        """A question about a call that is open; its id is that of the call."""
        call = self._ids[event.call_id]
        self._asked[call] = event
        if self._version == 5:
            return self._told(call, {"state": "requested"})
        return chunk("tool-approval-request", known(approvalId=call, toolCallId=call, reason=event.reason))

    def decide(self, event: ApprovalResponseEvent) -> bytes:
        call = self._ids.get(event.call_id, "")
        if call not in self._asked:
            return b""
        said = b""
        if self._version == 5:
            state = "approved" if event.approved else "denied"
            said = self._told(call, known(state=state, answer=event.reason, by=event.by))
        elif self._version >= 7:
            fields = known(approvalId=call, approved=event.approved, reason=event.reason)
            said = chunk("tool-approval-response", fields)
        if event.approved:
            return said
        self._denied.add(call)
        self._open.pop(call, None)
        if self._version == 5:
            return said + _failed(call, f"Denied: {event.reason}" if event.reason else "Denied.")
        return said + chunk("tool-output-denied", {"toolCallId": call})

    def give_up(self) -> bytes:
        """Ends what is still open: a client would show it as running for ever."""
        unanswered, self._open = self._open, {}
        return b"".join(_failed(call, _UNANSWERED) for call in unanswered)

    def _announce(self, call_id: str, tool: str, args: dict[str, Any], path: tuple[str, ...], position: int) -> bytes:
        # An agent may use an id again; to the client that would be news of the call that has ended.
        call = f"{call_id}-{position}" if call_id in self._ids else call_id
        ended = b""
        if self.is_open(call_id):
            # Asked about again, after a wait: the earlier part would be shown as running for ever.
            ended = _ended(self._ids[call_id], _AGAIN)
            del self._open[self._ids[call_id]]
        self._ids[call_id] = call
        self._open[call] = None
        self.in_step.add(call)
        within = {"turnwire": {"agentPath": list(path)}} if path else None
        named = known(toolCallId=call, toolName=tool, dynamic=True, providerMetadata=within)
        return ended + chunk("tool-input-start", named) + chunk("tool-input-available", {**named, "input": args})

    def _told(self, call: str, more: dict[str, Any]) -> bytes:
        asked = self._asked[call]
        what = known(call_id=asked.call_id, tool=asked.tool, args=asked.args, reason=asked.reason)
        return chunk("data-approval", {"id": call, "data": {**what, **more}})


def _ended(call: str, output: Any) -> bytes:
    return chunk("tool-output-available", {"toolCallId": call, "output": output, "dynamic": True})


def _failed(call: str, text: str) -> bytes:
    return chunk("tool-output-error", {"toolCallId": call, "errorText": text, "dynamic": True})


def _words(result: Any) -> str:
    if result is None or result == "":
        return _NO_WORDS
    return result if isinstance(result, str) else msgspec.json.encode(result).decode()
