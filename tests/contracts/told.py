"""A turn in the words that all wires share, and a log in those words."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

Cited = tuple[int | None, str | None, str | None]
"""Its number, its document and its address."""


@dataclass
class Call:
    """`state` is `open`, `waiting`, `succeeded` or `failed`; `result` is what one that succeeded said."""

    tool: str
    args: Any
    state: str = "open"
    result: str | None = None

    def end(self, success: bool, result: str) -> None:
        self.state, self.result = ("succeeded", result) if success else ("failed", None)


@dataclass
class Told:
    """`outcome` is a turn's, or `waiting`, or `running` for a stream that has not been brought to an end."""

    text: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list[Call])
    citations: list[Cited] = field(default_factory=list[Cited])
    outcome: str = "running"


def whole_frames(body: bytes) -> bytes:
    """Without a frame that has no end: a client drops it."""
    return body[: body.rfind(b"\n\n") + 2] if b"\n\n" in body else b""


def fold(events: Iterable[dict[str, Any]]) -> Told:
    """A log as plain JSON; what a wire that tells all of it must give, and what the others are held against."""
    told, calls = Told(), dict[str, Call]()
    for event in _standing(events):
        own = not event.get("agent_path")
        match event["type"]:
            case "token" if own:
                told.text += event["content"]
            case "reasoning" if own:
                told.reasoning += event["content"]
            case "citation":
                told.citations.append((event["index"], event["document_id"], event.get("url")))
            case "tool_call":
                calls[event["call_id"]] = Call(event["tool"], event["args"])
                told.calls.append(calls[event["call_id"]])
            case "tool_result":
                calls[event["call_id"]].end(event["success"], event["result"])
            case "approval_request":
                if event["call_id"] not in calls:
                    calls[event["call_id"]] = Call(event["tool"], event["args"])
                    told.calls.append(calls[event["call_id"]])
                calls[event["call_id"]].state = told.outcome = "waiting"
            case "approval_response":
                calls[event["call_id"]].state, told.outcome = "open", "running"
            case "done":
                told.outcome = event["outcome"]
                give_up(told)
            case _:
                pass
    return told


def _standing(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """A whole log without what a restart has made void."""
    kept: list[tuple[int, dict[str, Any]]] = []
    for position, event in enumerate(events, 1):
        kept.append((position, event))
        if event["type"] == "restart":
            kept = [(place, one) for place, one in kept if place <= event["from_position"]]
    return [event for _, event in kept]


def give_up(told: Told) -> None:
    """Nobody waits for an answer any more."""
    for call in told.calls:
        call.state = "open" if call.state == "waiting" else call.state
