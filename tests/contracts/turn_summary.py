"""A turn reduced to what all wires carry, and the fold of a log into it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

CitedSource = tuple[int | None, str | None, str | None]
"""The number, document id and URL of a citation."""


@dataclass
class Call:
    """A tool call. `state` is `open`, `waiting`, `succeeded` or `failed`; only a call that succeeded has a `result`.

    `runs_on_client` is not compared: a client knows its own tools by their names.
    """

    tool: str
    args: Any
    state: str = "open"
    result: str | None = None
    runs_on_client: bool = field(default=False, compare=False)

    def end(self, success: bool, result: str) -> None:
        self.state, self.result = ("succeeded", result) if success else ("failed", None)


@dataclass
class TurnSummary:
    """A turn as a client knows it. `outcome` is the turn's, `waiting`, or `running` for an unfinished stream.

    `questions` are the prompts of the questions that it waits for.
    """

    text: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list[Call])
    citations: list[CitedSource] = field(default_factory=list[CitedSource])
    outcome: str = "running"
    questions: list[str] = field(default_factory=list[str])


def whole_frames(body: bytes) -> bytes:
    """Return the body without an incomplete last frame, which clients drop."""
    return body[: body.rfind(b"\n\n") + 2] if b"\n\n" in body else b""


def fold(events: Iterable[dict[str, Any]]) -> TurnSummary:
    """Fold a log of plain JSON events. The readers of all wires are compared with the result."""
    summary, calls, questions = TurnSummary(), dict[str, Call](), dict[str, str]()
    for event in _standing(events):
        is_own = not event.get("agent_path")
        match event["type"]:
            case "token" if is_own:
                summary.text += event["content"]
            case "reasoning" if is_own:
                summary.reasoning += event["content"]
            case "citation":
                summary.citations.append((event["index"], event["document_id"], event.get("url")))
            case "tool_call":
                call = calls[event["call_id"]] = Call(event["tool"], event["args"])
                summary.calls.append(call)
                if event.get("runs_on") == "client":
                    call.runs_on_client, call.state, summary.outcome = True, "waiting", "waiting"
            case "tool_result":
                call = calls[event["call_id"]]
                call.end(event["success"], event["result"])
                summary.outcome = "running" if call.runs_on_client else summary.outcome
            case "question":
                questions[event["id"]], summary.outcome = event["prompt"], "waiting"
            case "reply":
                questions.pop(event["question_id"], None)
                summary.outcome = "running"
            case "approval_request":
                if event["call_id"] not in calls:
                    calls[event["call_id"]] = Call(event["tool"], event["args"])
                    summary.calls.append(calls[event["call_id"]])
                calls[event["call_id"]].state = summary.outcome = "waiting"
            case "approval_response":
                calls[event["call_id"]].state, summary.outcome = "open", "running"
            case "done":
                summary.outcome = event["outcome"]
                reopen_waiting_calls(summary)
                questions.clear()
            case _:
                pass
    summary.questions = list(questions.values())
    return summary


def _standing(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the events of a whole log that no restart has made void."""
    standing: list[tuple[int, dict[str, Any]]] = []
    for position, event in enumerate(events, 1):
        standing.append((position, event))
        if event["type"] == "restart":
            standing = [(index, item) for index, item in standing if index <= event["from_position"]]
    return [event for _, event in standing]


def reopen_waiting_calls(summary: TurnSummary) -> None:
    """Set waiting calls back to open, because the turn waits no longer."""
    for call in summary.calls:
        call.state = "open" if call.state == "waiting" else call.state
