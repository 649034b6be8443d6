"""What channels are told of an agent's work: events of the log as steps, and steps as lines."""

import json
from typing import Any

from turnwire.core.events import (
    ApprovalRequestEvent,
    ApprovalResponseEvent,
    Event,
    HandoffEvent,
    ReviewEvent,
    SearchEvent,
    StatusEvent,
    ToolCallEvent,
    ToolProgressEvent,
    ToolResultEvent,
)
from turnwire.core.logged import LoggedEvent
from turnwire.extensions.contract import StreamStep

_SUMMARY_LENGTH = 120


class Steps:
    """Makes the steps of one turn. It keeps the names of running tools, which their progress does not say."""

    def __init__(self) -> None:
        self._tools: dict[str, str] = {}

    def asked(self, event: ApprovalRequestEvent) -> None:
        self._tools[event.call_id] = event.tool

    def step(self, logged: LoggedEvent) -> StreamStep | None:
        event: Event = logged.event
        match event:
            case ToolCallEvent():
                self._tools[event.call_id] = event.tool
                arguments = _short(event.args) if event.args else None
                return StreamStep(id=event.call_id, kind="tool", name=event.tool, phase="started", summary=arguments)
            case ToolProgressEvent():
                return StreamStep(
                    id=event.call_id,
                    kind="tool",
                    name=self._tools.get(event.call_id, "tool"),
                    phase="progress",
                    summary=event.text,
                    fraction=event.fraction,
                )
            case ToolResultEvent():
                phase = "finished" if event.success else "failed"
                told = _short(event.result) if event.result is not None else None
                return StreamStep(
                    id=event.call_id, kind="tool", name=event.tool, phase=phase, summary=told, elapsed_ms=event.ms
                )
            case SearchEvent():
                told = event.query if event.hits is None else f"{event.query} ({len(event.hits)} found)"
                return StreamStep(
                    id=event.step_id,
                    kind="search",
                    name=event.tool,
                    phase=event.phase,
                    summary=told,
                    elapsed_ms=event.ms,
                )
            case ReviewEvent():
                told = event.feedback or event.verdict
                return StreamStep(id=event.step_id, kind="review", name="review", phase="finished", summary=told)
            case HandoffEvent():
                return StreamStep(id=f"handoff-{logged.position}", kind="handoff", name=event.agent, phase="finished")
            case StatusEvent():
                return status_step(event.text)
            case ApprovalResponseEvent():
                verdict = "Approved" if event.approved else "Denied"
                return status_step(f"{verdict}: {self._tools.get(event.call_id, 'tool')}")
            case _:
                return None


def status_step(text: str) -> StreamStep:
    """A line on its own. It has no end; the next one takes its place."""
    return StreamStep(id="status", kind="status", name=text, phase="progress", summary=text)


def status_line(step: StreamStep) -> str | None:
    """A step as one line; None for what a line would only repeat."""
    match step.kind, step.phase:
        case "tool", "started":
            return f"Using: {step.name}"
        case "tool", "progress":
            return f"{step.name}: {step.summary}" if step.summary else None
        case _, "failed":
            return f"Failed: {step.name}"
        case "search", "started":
            return f"Searching: {step.summary}"
        case "review", _:
            return f"Reviewed: {step.summary}"
        case "handoff", _:
            return f"Handing over to: {step.name}"
        case "status", _:
            return step.name
        case _:
            return None


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    line = " ".join(text.split())
    return line if len(line) <= _SUMMARY_LENGTH else line[: _SUMMARY_LENGTH - 1] + "…"
