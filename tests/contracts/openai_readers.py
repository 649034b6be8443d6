"""Readers of the two OpenAI wires."""

import json
from collections.abc import Sequence
from typing import Any

from tests.contracts.turn_summary import Call, TurnSummary, reopen_waiting_calls, whole_frames
from tests.wires.sse import parse


def read_openai_chat(bodies: Sequence[bytes]) -> TurnSummary:
    """Read a completion stream, which has only the calls that wait."""
    summary, finished = TurnSummary(), ""
    for frame in parse(whole_frames(bodies[0])):
        if frame.data == "[DONE]":
            summary.outcome = {"stop": "completed", "length": "cancelled", "tool_calls": "waiting"}[finished]
            continue
        chunk = json.loads(frame.data)
        if "error" in chunk:
            summary.outcome = "failed"
            continue
        delta, finished = chunk["choices"][0]["delta"], chunk["choices"][0]["finish_reason"]
        if "role" in delta:
            summary.outcome, summary.calls = "running", []
        summary.text += delta.get("content", "")
        summary.reasoning += delta.get("reasoning_content", "")
        for call in delta.get("tool_calls", ()):
            function = call["function"]
            summary.calls.append(Call(function["name"], json.loads(function["arguments"]), "waiting"))
        summary.citations += [
            (None, None, annotation["url_citation"]["url"]) for annotation in delta.get("annotations", ())
        ]
    return summary


def read_openai_responses(bodies: Sequence[bytes]) -> TurnSummary:
    """Read the responses of a turn, one body each; each continues the one before."""
    summary, calls = TurnSummary(), dict[str, Call]()
    for body in bodies:
        summary.outcome = "running"
        reopen_waiting_calls(summary)
        is_done = False
        ended: dict[str, Any] = {}
        for frame in parse(whole_frames(body)):
            is_done = frame.data == "[DONE]"
            event = {} if is_done else json.loads(frame.data)
            assert frame.event == event.get("type")
            _take_response_event(summary, calls, event)
            ended = event.get("response", ended)
        has_request = any(item["type"] == "mcp_approval_request" for item in ended.get("output", ()))
        if is_done:
            summary.outcome = "waiting" if has_request and ended["status"] == "completed" else ended["status"]
            parts = [part for item in ended["output"] if item["type"] == "message" for part in item["content"]]
            for annotation in (annotation for part in parts for annotation in part["annotations"]):
                summary.citations.append((None, annotation.get("file_id"), annotation.get("url")))
            assert summary.text.endswith("".join(part["text"] for part in parts))
    return summary


def _take_response_event(summary: TurnSummary, calls: dict[str, Call], event: dict[str, Any]) -> None:
    match event.get("type"):
        case "response.output_text.delta":
            summary.text += event["delta"]
        case "response.reasoning_summary_text.delta":
            summary.reasoning += event["delta"]
        case "response.output_item.done":
            _take_item(summary, calls, event["item"])
        case _:
            pass


def _take_item(summary: TurnSummary, calls: dict[str, Call], item: dict[str, Any]) -> None:
    match item["type"]:
        case "function_call":
            assert item["call_id"] not in calls, "two calls have one id"
            calls[item["call_id"]] = Call(item["name"], json.loads(item["arguments"]))
            summary.calls.append(calls[item["call_id"]])
        case "function_call_output":
            calls[item["call_id"]].end(item["status"] == "completed", item["output"])
        case "mcp_approval_request":
            call_id = item["id"].removeprefix("mcpr_")
            # A reused call id has a number behind it.
            matches = [calls[name] for name in calls if name == call_id or name.removeprefix(f"{call_id}-").isdecimal()]
            if not matches:
                matches = [calls.setdefault(call_id, Call(item["name"], json.loads(item["arguments"])))]
                summary.calls += matches
            matches[-1].state = "waiting"
        case _:
            pass
