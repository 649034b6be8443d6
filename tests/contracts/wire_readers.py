"""A reader for each wire, written from its protocol alone, and the limits of what the wire can carry."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.contracts.log_strategies import CLIENT_TOOLS
from tests.contracts.openai_readers import read_openai_chat, read_openai_responses
from tests.contracts.turn_summary import Call, TurnSummary, fold, reopen_waiting_calls, whole_frames
from tests.wires.a2a_rules import Task
from tests.wires.ag_ui_rules import Rules, frames_of
from tests.wires.sse import parse
from tests.wires.ui_message import UIMessage

# sse_chat and websocket


def read_sse_chat(bodies: Sequence[bytes]) -> TurnSummary:
    return fold(json.loads(frame.data) for frame in parse(whole_frames(bodies[0])))


def read_websocket(bodies: Sequence[bytes]) -> TurnSummary:
    return fold(json.loads(line)["event"] for line in bodies[0].split(b"\n")[:-1])


# three_phase_text


def read_three_phase_text(bodies: Sequence[bytes]) -> TurnSummary:
    lines, _, rest = bodies[0].partition(b"\x1d")
    answer, _, trailer = rest.partition(b"\x1e")
    events = [json.loads(line) for line in lines.split(b"\n")[:-1] if line]
    text = answer.decode(errors="ignore")  # A cut may go through a character.
    try:
        end = json.loads(trailer)
    except json.JSONDecodeError:
        return replace(fold(events), text=text, outcome="running")
    if "error" in end:
        text = text.removesuffix(end["error"]["message"])[:-2]
    summary = fold([*events, *end["events"]])
    reopen_waiting_calls(summary)
    cited = [(span["index"], span["document_id"], None) for span in end["spans"]]
    return replace(summary, text=text, citations=cited, outcome=end["outcome"])


# AI SDK


def read_ai_sdk(bodies: Sequence[bytes]) -> TurnSummary:
    message = UIMessage(6).read(whole_frames(bodies[0]))
    waits = message.is_done and message.finish_reason == "tool-calls"
    outcome = "waiting" if waits else message.metadata["outcome"] if message.is_done else "running"
    if message.is_done:
        # The fields that every client reads must agree with our own metadata.
        assert message.aborted is (outcome == "cancelled")
        assert (message.error is not None) is (outcome in ("failed", "interrupted"))
        assert (message.finish_reason == "stop") is (outcome == "completed")
    summary = TurnSummary(message.text, "".join(part["text"] for part in message.of("reasoning")), outcome=outcome)
    for part in message.of("tool"):
        assert part["dynamic"] is (part["tool"] not in ("question", *CLIENT_TOOLS))
        if part["tool"] == "question" and not part["dynamic"]:
            if waits and part["state"] == "input-available":
                summary.questions.append(part["input"]["prompt"])
            continue
        call = Call(part["tool"], part.get("input"))
        match part["state"]:
            case "output-available" if not part.get("preliminary"):
                call.end(True, part["output"])
            case "output-error" if part["error"] != "The turn ended before this tool did.":
                call.end(False, "")
            case "output-denied":
                call.end(False, "")
            case "approval-requested" if waits:
                call.state = "waiting"
            case "input-available" if waits and not part["dynamic"]:
                call.state = "waiting"
            case _:
                pass
        summary.calls.append(call)
    cited = [part["data"] for part in message.of("data-citation")]
    summary.citations = [(item["index"], item["document_id"], item.get("url")) for item in cited]
    return summary


# AG-UI


def read_ag_ui(bodies: Sequence[bytes]) -> TurnSummary:
    summary, calls, rules, ended = TurnSummary(), dict[str, Call](), Rules(), set[str]()
    for _, event in frames_of(whole_frames(bodies[0])):
        rules.take(event)
        is_own = "subagentRunId" not in event
        match event["type"]:
            case "TEXT_MESSAGE_CONTENT" if is_own:
                summary.text += event["delta"]
            case "REASONING_MESSAGE_CONTENT" if is_own:
                summary.reasoning += event["delta"]
            case "TOOL_CALL_START":
                calls[event["toolCallId"]] = Call(event["toolCallName"], "")
                summary.calls.append(calls[event["toolCallId"]])
            case "TOOL_CALL_ARGS":
                calls[event["toolCallId"]].args += event["delta"]
            case "TOOL_CALL_END":
                calls[event["toolCallId"]].args = json.loads(calls[event["toolCallId"]].args)
            case "TOOL_CALL_RESULT" if event["messageId"].endswith(":unanswered"):
                ended.add(event["toolCallId"])
            case "TOOL_CALL_RESULT":
                failed = event["content"].startswith('{"error":')
                calls[event["toolCallId"]].end(not failed, event["content"])
            case "CUSTOM" if event["name"] == "turnwire.tool_result":
                answer = event["value"]
                calls[answer["toolCallId"]].end(answer["success"], answer["result"])
            case "CUSTOM" if event["name"] == "turnwire.citation":
                cited = event["value"]
                summary.citations.append((cited["index"], cited["document_id"], cited.get("url")))
            case "RUN_STARTED":
                summary.outcome, summary.questions = "running", []
                reopen_waiting_calls(summary)
            case "RUN_ERROR":
                summary.outcome = "failed"
            case "RUN_FINISHED":
                outcome = event["outcome"]["type"]
                summary.outcome = {"success": "completed", "interrupt": "waiting"}.get(outcome) or outcome
                for item in event["outcome"].get("interrupts", ()):
                    if item["metadata"]["kind"] == "question":
                        summary.questions.append(item["message"])
                    else:
                        calls[item["toolCallId"]].state = "waiting"
                # A client runs the calls of its own tools that have no result.
                for call_id, call in calls.items():
                    if call.tool in CLIENT_TOOLS and call.state == "open" and call_id not in ended:
                        call.state = summary.outcome = "waiting"
            case _:
                pass
    return summary


# A2A


def read_a2a(bodies: Sequence[bytes]) -> TurnSummary:
    task, events = Task(), list[dict[str, Any]]()
    for update in parse(whole_frames(bodies[0])):
        events += task.take(json.loads(update.data))
    summary = fold(events)
    if task.state != "TASK_STATE_INPUT_REQUIRED":
        reopen_waiting_calls(summary)
    states = {"COMPLETED": "completed", "FAILED": "failed", "CANCELED": "cancelled", "INPUT_REQUIRED": "waiting"}
    outcome = states.get(task.state.removeprefix("TASK_STATE_"), "running")
    return replace(summary, text=task.text, outcome=outcome)


# Limits of the wires


def _unchanged(summary: TurnSummary) -> TurnSummary:
    return summary


def _reduce_for_text(summary: TurnSummary) -> TurnSummary:
    """Drop URLs, and the citations of a failed turn, whose trailer has all evidence, cited or not.

    Events after the start of the answer are in the trailer, so they are missing until the turn has ended.
    """
    has_ended = summary.outcome not in ("running", "waiting")
    has_sources = has_ended and summary.outcome not in ("failed", "interrupted")
    return replace(
        summary,
        outcome=summary.outcome if has_ended else "running",
        citations=[(*cited[:2], None) for cited in summary.citations] if has_sources else [],
        calls=summary.calls if has_ended else [],
        reasoning=summary.reasoning if has_ended else "",
        questions=[],
    )


def _without_interrupted(summary: TurnSummary) -> TurnSummary:
    """Merge `interrupted` into `failed`, because the protocol has one outcome for both."""
    return replace(summary, outcome="failed" if summary.outcome == "interrupted" else summary.outcome)


def _reduce_for_chat(summary: TurnSummary) -> TurnSummary:
    """Drop finished tool calls, citations without a URL, and repeated citations of one page."""
    pages = dict.fromkeys((None, None, url) for _, _, url in summary.citations if url)
    return replace(
        _without_interrupted(summary),
        citations=list(pages),
        calls=[call for call in summary.calls if call.state == "waiting"],
    )


def _reduce_for_responses(summary: TurnSummary) -> TurnSummary:
    """Drop citations, which need a text in the same response; `check_annotations` checks them.

    The results of the client's functions are no output either.
    """
    calls = [
        replace(call, state="open", result=None) if call.runs_on_client and call.state != "waiting" else call
        for call in summary.calls
    ]
    return replace(_without_interrupted(summary), citations=[], calls=calls)


@dataclass(frozen=True)
class Reader:
    """A wire's reader. `reduce` drops what the wire cannot carry; `cursor` is what a client resumes by.

    On a wire without a cursor, a client must be able to see that a stream is incomplete.
    """

    read: Callable[[Sequence[bytes]], TurnSummary]
    reduce: Callable[[TurnSummary], TurnSummary] = _unchanged
    cursor: str | None = None
    is_sse: bool = True


READERS: Mapping[str, Reader] = {
    "a2a": Reader(read_a2a, _without_interrupted, "frame"),
    "ag_ui": Reader(read_ag_ui, _without_interrupted, "frame"),
    "ai_sdk": Reader(read_ai_sdk),
    "openai_chat": Reader(read_openai_chat, _reduce_for_chat),
    "openai_responses": Reader(read_openai_responses, _reduce_for_responses, "frame"),
    "sse_chat": Reader(read_sse_chat, cursor="position"),
    "three_phase_text": Reader(read_three_phase_text, _reduce_for_text, "byte", is_sse=False),
    "websocket": Reader(read_websocket, cursor="position", is_sse=False),
}
