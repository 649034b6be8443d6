"""What a client of OpenAI's makes of the bytes of its two wires."""

import json
from collections.abc import Sequence
from typing import Any

from tests.contracts.told import Call, Told, give_up, whole_frames
from tests.wires.sse import parse


def read_openai_chat(bodies: Sequence[bytes]) -> Told:
    """Of its calls only those are told that wait."""
    told, finished = Told(), ""
    for frame in parse(whole_frames(bodies[0])):
        if frame.data == "[DONE]":
            told.outcome = {"stop": "completed", "length": "cancelled", "tool_calls": "waiting"}[finished]
            continue
        chunk = json.loads(frame.data)
        if "error" in chunk:
            told.outcome = "failed"
            continue
        delta, finished = chunk["choices"][0]["delta"], chunk["choices"][0]["finish_reason"]
        if "role" in delta:
            told.outcome, told.calls = "running", []
        told.text += delta.get("content", "")
        told.reasoning += delta.get("reasoning_content", "")
        for call in delta.get("tool_calls", ()):
            function = call["function"]
            told.calls.append(Call(function["name"], json.loads(function["arguments"]), "waiting"))
        told.citations += [(None, None, one["url_citation"]["url"]) for one in delta.get("annotations", ())]
    return told


def read_openai_responses(bodies: Sequence[bytes]) -> Told:
    """Each body is a response; what one ended with is what the next goes on from."""
    told, calls = Told(), dict[str, Call]()
    for body in bodies:
        told.outcome = "running"
        give_up(told)
        is_done = False
        ended: dict[str, Any] = {}
        for frame in parse(whole_frames(body)):
            is_done = frame.data == "[DONE]"
            event = {} if is_done else json.loads(frame.data)
            assert frame.event == event.get("type")
            _take_response_event(told, calls, event)
            ended = event.get("response", ended)
        asks = any(item["type"] == "mcp_approval_request" for item in ended.get("output", ()))
        if is_done:
            told.outcome = "waiting" if asks and ended["status"] == "completed" else ended["status"]
            parts = [part for item in ended["output"] if item["type"] == "message" for part in item["content"]]
            for one in (one for part in parts for one in part["annotations"]):
                told.citations.append((None, one.get("file_id"), one.get("url")))
            assert told.text.endswith("".join(part["text"] for part in parts))
    return told


def _take_response_event(told: Told, calls: dict[str, Call], event: dict[str, Any]) -> None:
    match event.get("type"):
        case "response.output_text.delta":
            told.text += event["delta"]
        case "response.reasoning_summary_text.delta":
            told.reasoning += event["delta"]
        case "response.output_item.done":
            _take_item(told, calls, event["item"])
        case _:
            pass


def _take_item(told: Told, calls: dict[str, Call], item: dict[str, Any]) -> None:
    match item["type"]:
        case "function_call":
            assert item["call_id"] not in calls, "two calls that a client cannot tell apart"
            calls[item["call_id"]] = Call(item["name"], json.loads(item["arguments"]))
            told.calls.append(calls[item["call_id"]])
        case "function_call_output":
            calls[item["call_id"]].end(item["status"] == "completed", item["output"])
        case "mcp_approval_request":
            own = item["id"].removeprefix("mcpr_")
            # A call whose id was used before has a number behind it.
            about = [calls[name] for name in calls if name == own or name.removeprefix(f"{own}-").isdecimal()]
            if not about:
                about = [calls.setdefault(own, Call(item["name"], json.loads(item["arguments"])))]
                told.calls += about
            about[-1].state = "waiting"
        case _:
            pass
