"""A checker for AG-UI streams: the frames and the order of their events.

The rules are those of the official client's verifier, and two stricter ones: nothing is open after RUN_ERROR, and every
tool call of an ended run has a result or an interrupt, unless the run has called tools of the client.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any

CLIENT_TOOLS = ("client_find", "client_ask", "find")
_FRAME = re.compile(rb"id: (\d+)\ndata: (\{[\x20-\x7e]*\})\n\n")

REQUIRED: dict[str, tuple[str, ...]] = {
    "RUN_STARTED": ("threadId", "runId"),
    "RUN_FINISHED": ("threadId", "runId"),
    "RUN_ERROR": ("message",),
    "STEP_STARTED": ("stepName",),
    "STEP_FINISHED": ("stepName",),
    "TEXT_MESSAGE_START": ("messageId",),
    "TEXT_MESSAGE_CONTENT": ("messageId", "delta"),
    "TEXT_MESSAGE_END": ("messageId",),
    "REASONING_START": ("messageId",),
    "REASONING_END": ("messageId",),
    "REASONING_MESSAGE_START": ("messageId", "role"),
    "REASONING_MESSAGE_CONTENT": ("messageId", "delta"),
    "REASONING_MESSAGE_END": ("messageId",),
    "TOOL_CALL_START": ("toolCallId", "toolCallName"),
    "TOOL_CALL_ARGS": ("toolCallId", "delta"),
    "TOOL_CALL_END": ("toolCallId",),
    "TOOL_CALL_RESULT": ("messageId", "toolCallId", "content"),
    "ACTIVITY_SNAPSHOT": ("messageId", "activityType", "content"),
    "ACTIVITY_DELTA": ("messageId", "activityType", "patch"),
    "SUBAGENT_STARTED": ("subagentRunId", "name"),
    "SUBAGENT_FINISHED": ("subagentRunId",),
    "CUSTOM": ("name", "value"),
}
_OPENS = {
    "TEXT_MESSAGE_START": ("text", "messageId"),
    "REASONING_START": ("span", "messageId"),
    "REASONING_MESSAGE_START": ("reasoning", "messageId"),
    "TOOL_CALL_START": ("call", "toolCallId"),
    "SUBAGENT_STARTED": ("subagent", "subagentRunId"),
}
_CONTINUES = {
    "TEXT_MESSAGE_CONTENT": "text",
    "REASONING_MESSAGE_CONTENT": "reasoning",
    "TOOL_CALL_ARGS": "call",
}
_CLOSES = {
    "TEXT_MESSAGE_END": "text",
    "REASONING_END": "span",
    "REASONING_MESSAGE_END": "reasoning",
    "TOOL_CALL_END": "call",
    "SUBAGENT_FINISHED": "subagent",
}


def frames_of(body: bytes) -> list[tuple[int, dict[str, Any]]]:
    """Return the events with their ids. Fail at any byte that is not part of a frame with an id and one data line."""
    assert _FRAME.sub(b"", body) == b""
    return [(int(number), json.loads(data)) for number, data in _FRAME.findall(body)]


@dataclass
class Rules:
    """The state of a stream. It takes one event after the other and fails at the first that breaks a rule."""

    state: str = "unstarted"
    open: dict[tuple[str, str], str | None] = field(default_factory=dict[tuple[str, str], Any])
    steps: set[str] = field(default_factory=set[str])
    subagents: set[str] = field(default_factory=set[str])
    calls: dict[str, bool] = field(default_factory=dict[str, bool])
    client_calls: set[str] = field(default_factory=set[str])
    ids: set[str] = field(default_factory=set[str])
    activities: dict[str, Any] = field(default_factory=dict[str, Any])

    def take(self, event: dict[str, Any]) -> None:
        kind = event["type"]
        assert kind in REQUIRED, f"unknown event {kind}"
        assert all(name in event for name in REQUIRED[kind]), event
        assert all(value is not None for value in event.values()), event
        if kind == "RUN_STARTED":
            assert self.state in ("unstarted", "finished")
            self.state, self.subagents, self.open, self.steps = "running", set(), {}, set()
            return
        assert self.state == "running", f"{kind} while the run is {self.state}"
        tag = event.get("subagentRunId")
        if kind not in ("SUBAGENT_STARTED", "SUBAGENT_FINISHED"):
            assert tag is None or ("subagent", tag) in self.open, "sub-agent is not running"
        if kind in _OPENS:
            self._open(kind, event, tag)
        elif kind in _CONTINUES:
            self._open_key(_CONTINUES[kind], event, tag)
            assert event["delta"] != ""
        elif kind in _CLOSES:
            del self.open[self._open_key(_CLOSES[kind], event, tag)]
        else:
            self._other(kind, event)

    def _open(self, kind: str, event: dict[str, Any], tag: str | None) -> None:
        item, name = _OPENS[kind]
        key = item, event[name]
        assert key not in self.open
        if item in ("text", "span", "call"):
            assert event[name] not in self.ids, "id was used before"
            self.ids.add(event[name])
        if item == "call":
            self.calls[event[name]] = False
            if event["toolCallName"] in CLIENT_TOOLS:
                self.client_calls.add(event[name])
        if item == "subagent":
            assert event[name] not in self.subagents, "sub-agent started twice in one run"
            parent = event.get("parentSubagentRunId")
            assert parent is None or parent in self.subagents
            self.subagents.add(event[name])
        self.open[key] = tag

    def _open_key(self, item: str, event: dict[str, Any], tag: str | None) -> tuple[str, str]:
        name = {"call": "toolCallId", "subagent": "subagentRunId"}.get(item, "messageId")
        key = item, event[name]
        assert key in self.open, f"{event['type']} of an item that is not open"
        assert self.open[key] == tag, "item was started by another agent"
        return key

    def _other(self, kind: str, event: dict[str, Any]) -> None:
        match kind:
            case "STEP_STARTED":
                assert event["stepName"] not in self.steps
                self.steps.add(event["stepName"])
            case "STEP_FINISHED":
                self.steps.remove(event["stepName"])
            case "TOOL_CALL_RESULT":
                assert event["toolCallId"] in self.calls
                assert event["messageId"] not in self.ids
                self.ids.add(event["messageId"])
                self.calls[event["toolCallId"]] = True
            case "ACTIVITY_SNAPSHOT":
                assert event["messageId"] not in self.ids
                self.ids.add(event["messageId"])
                self.activities[event["messageId"]] = dict(event["content"])
            case "ACTIVITY_DELTA":
                for change in event["patch"]:
                    assert change["op"] == "add"
                    self.activities[event["messageId"]][change["path"].removeprefix("/")] = change["value"]
            case "RUN_FINISHED" | "RUN_ERROR":
                self._end(kind, event)
            case _:
                assert kind == "CUSTOM"
                if event["name"] == "turnwire.tool_result":
                    self.calls[event["value"]["toolCallId"]] = True

    def _end(self, kind: str, event: dict[str, Any]) -> None:
        assert not self.open, f"still open: {self.open}"
        assert not self.steps
        outcome = event.get("outcome", {"type": "success"})
        assert outcome["type"] in ("success", "cancelled", "interrupt")
        unanswered = {call for call, answered in self.calls.items() if not answered}
        if outcome["type"] == "interrupt":
            interrupts = outcome["interrupts"]
            assert interrupts
            assert len({interrupt["id"] for interrupt in interrupts}) == len(interrupts)
            assert all(value is not None for interrupt in interrupts for value in interrupt.values())
            named = {interrupt["toolCallId"] for interrupt in interrupts if "toolCallId" in interrupt}
            assert named <= unanswered
        else:
            assert not unanswered or unanswered & self.client_calls
        assert all(value is not None for usage in event.get("usage", []) for value in usage.values())
        self.state = "failed" if kind == "RUN_ERROR" else "finished"


def check(body: bytes) -> list[dict[str, Any]]:
    """Return the events of a whole stream, after checking them."""
    frames = frames_of(body)
    assert [number for number, _ in frames] == list(range(1, len(frames) + 1)), "ids are not 1, 2, 3 …"
    rules = Rules()
    for _, event in frames:
        rules.take(event)
    return [event for _, event in frames]
