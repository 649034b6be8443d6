"""Readers of the two OpenAI wires."""

import json
from collections.abc import Sequence
from typing import Any

from tests.contracts.log_strategies import CLIENT_TOOLS
from tests.contracts.turn_summary import Call, TurnSummary, reopen_waiting_calls, whole_frames
from tests.wires.sse import parse
from turnwire.wires.openai.chat.encoder import NEXT_PARAGRAPH, QUESTION_NOTE


def read_openai_chat(bodies: Sequence[bytes]) -> TurnSummary:
    """Read a completion stream, which has only the calls that wait."""
    summary, finished, begun = TurnSummary(), "", 0
    for frame in parse(whole_frames(bodies[0])):
        if frame.data == "[DONE]":
            summary.outcome = {"stop": "completed", "length": "cancelled", "tool_calls": "waiting"}[finished]
            summary.outcome = "waiting" if summary.questions else summary.outcome
            continue
        chunk = json.loads(frame.data)
        if "error" in chunk:
            summary.outcome = "failed"
            continue
        delta, finished = chunk["choices"][0]["delta"], chunk["choices"][0]["finish_reason"]
        if "role" in delta:
            summary.outcome, summary.calls, summary.questions, begun = "running", [], [], len(summary.text)
        if (text := delta.get("content", "")).endswith(QUESTION_NOTE):
            after = NEXT_PARAGRAPH if len(summary.text) > begun else ""
            assert text.startswith(after)
            summary.questions.append(text.removesuffix(QUESTION_NOTE)[len(after) :])
        else:
            summary.text += text
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
        summary.outcome, summary.questions = "running", []
        reopen_waiting_calls(summary)
        is_done = False
        ended: dict[str, Any] = {}
        for frame in parse(whole_frames(body)):
            is_done = frame.data == "[DONE]"
            event = {} if is_done else json.loads(frame.data)
            assert frame.event == event.get("type")
            _take_response_event(summary, calls, event)
            ended = event.get("response", ended)
        waits = any(call.state == "waiting" for call in summary.calls) or bool(summary.questions)
        if is_done:
            summary.outcome = "waiting" if waits and ended["status"] == "completed" else ended["status"]
            parts = [part for item in ended["output"] if item["type"] == "message" for part in item["content"]]
            parts = [part for part in parts if not part["text"].endswith(QUESTION_NOTE)]
            for annotation in (annotation for part in parts for annotation in part["annotations"]):
                summary.citations.append((None, annotation.get("file_id"), annotation.get("url")))
            assert summary.text.endswith("".join(part["text"] for part in parts))
    return summary


def _take_response_event(summary: TurnSummary, calls: dict[str, Call], event: dict[str, Any]) -> None:
    match event.get("type"):
        case "response.output_text.delta":
            if event["delta"].endswith(QUESTION_NOTE):
                summary.questions.append(event["delta"].removesuffix(QUESTION_NOTE))
            else:
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
            call = calls[item["call_id"]] = Call(item["name"], json.loads(item["arguments"]))
            summary.calls.append(call)
            if call.tool in CLIENT_TOOLS:
                call.runs_on_client, call.state = True, "waiting"
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
